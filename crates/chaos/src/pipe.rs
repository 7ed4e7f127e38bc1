//! One direction of a connection: reads, shapes, and does what the plan has for each byte.
//!
//! Owns the position in the stream. Both directions hold both sockets; the last one to end closes them.

#![expect(clippy::disallowed_methods, reason = "a throttle measures the real time")]

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    Event, Random, Shape, Way,
    proxy::{Injected, Shared},
};

/// Read at once; the most that can still pass after a blackhole was asked for.
const READ_BYTES: usize = 64 << 10;

/// Both sockets of a connection and what was decided about it meanwhile.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) number: u64,
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
    pub(crate) swallow_up: AtomicBool,
    pub(crate) swallow_down: AtomicBool,
}

impl Link {
    /// Ends the connection on both sides.
    pub(crate) fn cut(&self, event: Event) {
        let how = match event {
            // With a linger of zero the close sends a reset; ending the reads wakes the other direction to let go.
            Event::Rst => {
                for socket in [&self.client, &self.server] {
                    rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).ok(); // Gone: cut already.
                }
                Shutdown::Read
            }
            _ => Shutdown::Both,
        };
        for socket in [&self.client, &self.server] {
            socket.shutdown(how).ok(); // As above.
        }
    }

    /// Whether a direction leads nowhere any more.
    fn swallows(&self, way: Way) -> &AtomicBool {
        match way {
            Way::Up => &self.swallow_up,
            Way::Down => &self.swallow_down,
        }
    }
}

/// What a pipe does after an event.
enum Next {
    GoOn,
    /// The link has ended, or this direction has.
    Stop,
}

/// One direction.
pub(crate) struct Pipe {
    pub(crate) link: Arc<Link>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) way: Way,
    pub(crate) shape: Shape,
    /// The next one last.
    pub(crate) events: Vec<(u64, Event)>,
    /// Of pauses and slices.
    pub(crate) random: Random,
    /// Bytes of the stream, as it was sent, that are behind us.
    pub(crate) at: u64,
    /// Bytes that are still to be left out.
    pub(crate) skip: usize,
    /// The last bytes that were passed on, where an event may repeat them.
    pub(crate) tail: Vec<u8>,
}

impl Pipe {
    pub(crate) fn run(mut self) {
        let begun = Instant::now();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = match self.from().read(&mut buffer) {
                Ok(count) if count > 0 => count,
                _ => break,
            };
            self.pause(begun, count);
            match self.pass(&mut buffer[..count]) {
                Ok(Next::GoOn) => {}
                Ok(Next::Stop) => return,
                Err(_) => break,
            }
        }
        if self.link.swallows(self.way).load(Ordering::Relaxed) {
            // Not even the end is told.
            return self.shared.keep(&self.link);
        }
        // The end of one direction is passed on; the other may still have something to say.
        self.to().shutdown(Shutdown::Write).ok(); // Gone by itself.
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

    /// Passes these bytes on, with every event that stands in them or right behind them.
    fn pass(&mut self, mut bytes: &mut [u8]) -> io::Result<Next> {
        loop {
            let due = self.events.last().copied().filter(|(byte, _)| *byte <= self.at + bytes.len() as u64);
            let Some((byte, event)) = due else {
                self.write(bytes)?;
                return Ok(Next::GoOn);
            };
            let before = usize::try_from(byte.saturating_sub(self.at)).unwrap_or(0);
            // A flip needs its byte; all others happen as soon as what is before them has passed.
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
        // Counted before the peers can notice, so that a run never sees a fault that is not counted.
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
                io::copy(&mut self.from(), &mut io::sink()).ok(); // Read, so that the sender is not held up.
                return Ok(Next::Stop);
            }
            Event::Blackhole => self.link.swallows(self.way).store(true, Ordering::Relaxed),
            Event::BlackholeBoth => {
                self.link.swallow_up.store(true, Ordering::Relaxed);
                self.link.swallow_down.store(true, Ordering::Relaxed);
            }
            Event::Flip { bit } => rest[0] ^= 1 << (bit % 8),
            Event::Duplicate { bytes } => {
                let again = self.tail[self.tail.len().saturating_sub(bytes)..].to_vec();
                self.to().write_all(&again)?;
            }
            Event::Truncate { bytes } => self.skip += bytes,
        }
        Ok(Next::GoOn)
    }

    /// Passes bytes on in pieces, without those that are to be left out; counts them either way.
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        bytes = &bytes[skipped..];
        self.remember(bytes);
        while !bytes.is_empty() && !self.link.swallows(self.way).load(Ordering::Relaxed) {
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
