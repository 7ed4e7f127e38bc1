//! One direction of a connection: reads bytes, shapes their flow and applies the events of the plan.
//!
//! A pipe owns the position in its stream. Both directions hold both sockets, and the last one to end closes them.

#![expect(clippy::disallowed_methods, reason = "a throttle measures the real time")]

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    Event, Random, Shape, Way,
    proxy::{Injected, Shared},
};

/// Size of one read. At most this many bytes can still pass after a blackhole was requested.
const READ_BYTES: usize = 64 << 10;

/// Reads that may be under way at once in a pipe with a latency: 128 MiB if all of them are full. Then the sender waits.
const READS_UNDER_WAY: usize = 2048;

/// Both sockets of a connection, and the flags that can change while it is open.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) number: u64,
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
    /// For each [`Way`]: all further bytes are discarded.
    pub(crate) swallows: [AtomicBool; 2],
}

impl Link {
    /// Ends the connection on both sides.
    pub(crate) fn cut(&self, event: Event) {
        let how = match event {
            // With a linger time of zero, closing the socket sends an RST. Shutting down the reads wakes the other
            // direction, so that it drops its sockets.
            Event::Rst => {
                for socket in [&self.client, &self.server] {
                    rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).ok(); // Fails if the socket is already cut.
                }
                Shutdown::Read
            }
            _ => Shutdown::Both,
        };
        for socket in [&self.client, &self.server] {
            socket.shutdown(how).ok(); // As above.
        }
    }

    /// Discards from now on all bytes of a direction.
    pub(crate) fn swallow(&self, way: Way) {
        self.swallows[way as usize].store(true, Ordering::Relaxed);
    }

    fn swallows(&self, way: Way) -> bool {
        self.swallows[way as usize].load(Ordering::Relaxed)
    }
}

enum Next {
    GoOn,
    /// The connection has ended, or this direction has.
    Stop,
}

pub(crate) struct Pipe {
    pub(crate) link: Arc<Link>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) way: Way,
    pub(crate) shape: Shape,
    /// In reverse order: the next event is last.
    pub(crate) events: Vec<(u64, Event)>,
    /// The source of random pauses and slice sizes.
    pub(crate) random: Random,
    /// Number of bytes of the stream, as the sender counts them, that were already processed.
    pub(crate) at: u64,
    /// Number of bytes still to leave out.
    pub(crate) skip: usize,
    /// The last bytes that were passed on, in case an event repeats them.
    pub(crate) tail: Vec<u8>,
}

impl Pipe {
    pub(crate) fn run(mut self) {
        let begun = Instant::now();
        let ended = if self.shape.latency.is_zero() { self.run_at_once(begun) } else { self.run_later(begun) };
        if let Next::Stop = ended {
            return;
        }
        if self.link.swallows(self.way) {
            // Do not pass on EOF either. Keep the link, so that its sockets stay open.
            return self.shared.keep(&self.link);
        }
        // Pass on EOF in this direction only. The other direction may still carry data.
        self.to().shutdown(Shutdown::Write).ok(); // Fails if the peer is already gone.
    }

    /// Passes each read on before the next one.
    fn run_at_once(&mut self, begun: Instant) -> Next {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = match self.from().read(&mut buffer) {
                Ok(count) if count > 0 => count,
                _ => return Next::GoOn,
            };
            self.pause(begun, count);
            match self.pass(&mut buffer[..count]) {
                Ok(Next::GoOn) => {}
                Ok(Next::Stop) => return Next::Stop,
                Err(_) => return Next::GoOn,
            }
        }
    }

    /// Passes each read, and the EOF, on after the latency, while a second thread reads on.
    fn run_later(&mut self, begun: Instant) -> Next {
        let link = Arc::clone(&self.link);
        let (way, latency) = (self.way, self.shape.latency);
        let (read_tx, read_rx) = mpsc::sync_channel(READS_UNDER_WAY);
        let read_ahead = move || {
            let mut from = match way {
                Way::Up => &link.client,
                Way::Down => &link.server,
            };
            let mut buffer = vec![0; READ_BYTES];
            loop {
                let count = from.read(&mut buffer).unwrap_or(0);
                let is_over = read_tx.send((Instant::now() + latency, buffer[..count].to_vec())).is_err();
                if is_over || count == 0 {
                    return;
                }
            }
        };
        let name = format!("chaos {} {way:?} ahead", self.link.number);
        if thread::Builder::new().name(name).spawn(read_ahead).is_err() {
            return Next::GoOn;
        }
        self.pass_late(begun, &read_rx)
    }

    fn pass_late(&mut self, begun: Instant, read_rx: &Receiver<(Instant, Vec<u8>)>) -> Next {
        while let Ok((due, mut bytes)) = read_rx.recv() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if bytes.is_empty() {
                break;
            }
            self.pause(begun, bytes.len());
            match self.pass(&mut bytes) {
                Ok(Next::GoOn) => {}
                Ok(Next::Stop) => return Next::Stop,
                Err(_) => break,
            }
        }
        Next::GoOn
    }

    fn from(&self) -> &TcpStream {
        match self.way {
            Way::Up => &self.link.client,
            Way::Down => &self.link.server,
        }
    }

    fn to(&self) -> &TcpStream {
        match self.way {
            Way::Up => &self.link.server,
            Way::Down => &self.link.client,
        }
    }

    fn pause(&mut self, begun: Instant, count: usize) {
        let mut pause = self.shape.delay;
        if !self.shape.jitter.is_zero() {
            let most = u64::try_from(self.shape.jitter.as_micros()).unwrap_or(u64::MAX - 1);
            pause += Duration::from_micros(self.random.between(0, most + 1));
        }
        if self.shape.throttle > 0 {
            let due = (self.at + count as u64) as f64 / self.shape.throttle as f64;
            pause = pause.max(Duration::from_secs_f64(due).saturating_sub(begun.elapsed()));
        }
        if !pause.is_zero() {
            thread::sleep(pause);
        }
    }

    /// Passes these bytes on and applies every event within them or directly after them.
    fn pass(&mut self, mut bytes: &mut [u8]) -> io::Result<Next> {
        loop {
            let due = self.events.last().copied().filter(|(byte, _)| *byte <= self.at + bytes.len() as u64);
            let Some((byte, event)) = due else {
                self.write(bytes)?;
                return Ok(Next::GoOn);
            };
            let before = usize::try_from(byte.saturating_sub(self.at)).unwrap_or(0);
            // A flip needs its byte. All other events happen as soon as the bytes before them are passed on.
            if before == bytes.len() && matches!(event, Event::Flip { .. }) {
                self.write(bytes)?;
                return Ok(Next::GoOn);
            }
            let (now, rest) = std::mem::take(&mut bytes).split_at_mut(before);
            self.write(now)?;
            bytes = rest;
            self.events.pop();
            if let Next::Stop = self.strike(byte, event, bytes)? {
                return Ok(Next::Stop);
            }
        }
    }

    fn strike(&mut self, byte: u64, event: Event, rest: &mut [u8]) -> io::Result<Next> {
        // Count the fault before the peers can notice it, so that a test never sees an uncounted fault.
        if !self.shared.injects(Injected { connection: self.link.number, way: self.way, byte, event }) {
            return Ok(Next::GoOn);
        }
        match event {
            Event::Fin | Event::Rst => {
                self.link.cut(event);
                return Ok(Next::Stop);
            }
            Event::HalfClose => {
                self.to().shutdown(Shutdown::Write)?;
                io::copy(&mut self.from(), &mut io::sink()).ok(); // Keep reading, so that the sender does not block.
                return Ok(Next::Stop);
            }
            Event::Blackhole => self.link.swallow(self.way),
            Event::BlackholeBoth => [Way::Up, Way::Down].into_iter().for_each(|way| self.link.swallow(way)),
            Event::Flip { bit } => rest[0] ^= 1 << (bit % 8),
            Event::Duplicate { bytes } => {
                let again = self.tail[self.tail.len().saturating_sub(bytes)..].to_vec();
                self.to().write_all(&again)?;
            }
            Event::Truncate { bytes } => self.skip += bytes,
        }
        Ok(Next::GoOn)
    }

    /// Passes bytes on in slices, without those to be left out. Counts all of them.
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        bytes = &bytes[skipped..];
        self.remember(bytes);
        while !bytes.is_empty() && !self.link.swallows(self.way) {
            let most = match self.shape.slice {
                0 => bytes.len(),
                slice => usize::try_from(self.random.between(1, slice as u64 + 1)).unwrap_or(1).min(bytes.len()),
            };
            self.to().write_all(&bytes[..most])?;
            bytes = &bytes[most..];
        }
        Ok(())
    }

    fn remember(&mut self, bytes: &[u8]) {
        let repeats = |(_, event): &(u64, Event)| match event {
            Event::Duplicate { bytes } => Some(*bytes),
            _ => None,
        };
        let Some(most) = self.events.iter().filter_map(repeats).max() else {
            return;
        };
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(most)..]);
        let over = self.tail.len().saturating_sub(most);
        self.tail.drain(..over);
    }
}
