//! A faulty byte stream between a client and the server: bounded like a socket, with delay, slices, a rate limit, stalls and cuts.
//!
//! Owns the bytes in transit. Does not depend on framing: a cut occurs at its byte count. Time is tokio's paused clock, so nothing here
//! depends on the speed of the machine.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use bytes::{Buf as _, Bytes};
use exec_server_rpc::TcpProbe;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep_until},
};

use crate::prelude::*;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// The properties of a link without faults, per direction.
#[derive(Clone, Copy, Debug)]
pub struct LinkQuality {
    /// The transit time.
    pub delay: Duration,
    /// The most bytes that one read returns.
    pub slice: usize,
    /// Bytes per millisecond that the reader takes; `None` means no limit.
    pub pace: Option<u64>,
    /// The most bytes in transit before the writer blocks.
    pub capacity: usize,
}

impl LinkQuality {
    /// A link without faults.
    pub const GOOD: Self = Self { delay: Duration::ZERO, slice: 1 << 20, pace: None, capacity: 256 << 10 };

    /// A link of random quality.
    pub fn draw(rng: &mut Rng) -> Self {
        Self {
            delay: Duration::from_millis(*rng.pick(&[0, 0, 1, 5, 40])),
            slice: *rng.pick(&[200, 4096, 65_536, 1 << 20]),
            pace: None,
            capacity: *rng.pick(&[4 << 10, 64 << 10, 256 << 10]),
        }
    }
}

impl Default for LinkQuality {
    fn default() -> Self {
        Self::GOOD
    }
}

/// How a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutKind {
    /// Bytes in transit arrive, then both sides see EOF.
    AfterDelivery,
    /// Bytes in transit are lost, and both sides see a reset.
    AtOnce,
}

/// The world's control of a link.
#[derive(Clone, Debug)]
pub struct SimLink(Arc<Mutex<LinkState>>);

#[derive(Debug)]
struct LinkState {
    up: LinkPipe,
    down: LinkPipe,
    /// Since when the link is half-open: nothing from one side reaches the other.
    void_since: Option<Instant>,
    /// When the data that the client read last had arrived at its side.
    last_received: Instant,
}

#[derive(Debug, Default)]
struct LinkPipe {
    quality: LinkQuality,
    /// Bytes in transit with their arrival times, oldest first.
    queue: VecDeque<(Instant, Bytes)>,
    queued: usize,
    delivered: u64,
    /// The link is cut when this many bytes have been delivered in this direction.
    cut_at: Option<u64>,
    /// Nothing is read before this time.
    stalled_until: Option<Instant>,
    /// Half-open: writes vanish and reads hang.
    is_void: bool,
    reset: bool,
    writer_gone: bool,
    reader_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl SimLink {
    /// A link and its two ends: the client's and the server's.
    pub fn new(quality: LinkQuality) -> (Self, ByteStream, ByteStream) {
        let (up, down) = (LinkPipe::new(quality), LinkPipe::new(quality));
        let shared = Arc::new(Mutex::new(LinkState { up, down, void_since: None, last_received: Instant::now() }));
        let end = |read: Direction, write: Direction| {
            let reader = LinkReader { shared: shared.clone(), direction: read, sleep: None };
            let mut stream = ByteStream::new(reader, LinkWriter { shared: shared.clone(), direction: write });
            // Answers like the kernel: a peer that only stalls still acknowledges, a peer behind a dead line does not.
            let asked = shared.clone();
            stream.probe = Some(TcpProbe::from_fn(move || {
                let silent = asked.lock().void_since.map_or(Duration::ZERO, |since| since.elapsed());
                u32::try_from(silent.as_millis()).ok()
            }));
            stream
        };
        let (client, server) = (end(Direction::Down, Direction::Up), end(Direction::Up, Direction::Down));
        (Self(shared), client, server)
    }

    /// Ends the link now.
    pub fn cut(&self, cut: CutKind) {
        for pipe in self.0.lock().pipes() {
            pipe.end(cut);
        }
    }

    /// Resets the link when `bytes` more have been delivered in this direction. This is mostly inside a frame.
    pub fn cut_after(&self, direction: Direction, bytes: u64) {
        let mut state = self.0.lock();
        let pipe = state.pipe(direction);
        pipe.cut_at = Some(pipe.delivered + bytes);
    }

    /// From now on writes vanish and reads hang in both directions, and neither side gets an error.
    pub fn half_open(&self) {
        let mut state = self.0.lock();
        state.void_since.get_or_insert_with(Instant::now);
        for pipe in state.pipes() {
            pipe.is_void = true;
            pipe.queue.clear();
        }
    }

    /// Nothing arrives in this direction until `until`. Nothing is lost.
    pub fn stall(&self, direction: Direction, until: Instant) {
        self.0.lock().pipe(direction).stalled_until = Some(until);
    }

    /// Changes how fast the reader of this direction reads.
    pub fn pace(&self, direction: Direction, pace: Option<u64>) {
        let mut state = self.0.lock();
        let pipe = state.pipe(direction);
        pipe.quality.pace = pace;
        pipe.wake();
    }

    /// From now on the link is fast in both directions.
    pub fn repair(&self) {
        for pipe in self.0.lock().pipes() {
            pipe.quality = LinkQuality::GOOD;
            pipe.wake();
        }
    }

    /// When the data that the client read last had arrived at its side.
    pub fn last_received(&self) -> Instant {
        self.0.lock().last_received
    }
}

impl LinkState {
    fn pipes(&mut self) -> [&mut LinkPipe; 2] {
        [&mut self.up, &mut self.down]
    }

    fn pipe(&mut self, direction: Direction) -> &mut LinkPipe {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }
}

impl LinkPipe {
    fn new(quality: LinkQuality) -> Self {
        Self { quality, ..Self::default() }
    }

    fn end(&mut self, cut: CutKind) {
        match cut {
            CutKind::AfterDelivery => (self.writer_gone, self.reader_gone) = (true, true),
            CutKind::AtOnce => {
                self.reset = true;
                self.queue.clear();
            }
        }
        self.wake();
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    /// When the next byte can be read; `None` if there is none.
    fn ready_at(&self) -> Option<Instant> {
        let (arrival, _) = self.queue.front()?;
        Some(self.stalled_until.map_or(*arrival, |until| until.max(*arrival)))
    }

    /// Moves bytes into `buf`. Returns true if these were the last before the cut.
    fn deliver(&mut self, buf: &mut ReadBuf<'_>, now: Instant) -> bool {
        let left = self.cut_at.map_or(u64::MAX, |at| at.saturating_sub(self.delivered));
        let room = buf.remaining().min(self.quality.slice).min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut given = 0;
        while given < room
            && let Some((arrival, bytes)) = self.queue.front_mut()
            && *arrival <= now
        {
            let part = bytes.len().min(room - given);
            buf.put_slice(&bytes[..part]);
            bytes.advance(part);
            given += part;
            if bytes.is_empty() {
                self.queue.pop_front();
            }
        }
        self.queued -= given;
        self.delivered += given as u64;
        self.stalled_until = self.quality.pace.map(|pace| now + Duration::from_millis((given as u64).div_ceil(pace)));
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
        self.cut_at.is_some_and(|at| self.delivered >= at)
    }
}

struct LinkReader {
    shared: Arc<Mutex<LinkState>>,
    direction: Direction,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for LinkReader {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            let mut state = this.shared.lock();
            let pipe = state.pipe(this.direction);
            pipe.reader = Some(cx.waker().clone());
            if pipe.reset {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if pipe.is_void {
                return Poll::Pending;
            }
            let now = Instant::now();
            match pipe.ready_at() {
                Some(at) if at <= now => {
                    // After a clock jump or a pause of the reader, use the arrival time, not the time of the read.
                    let arrived_at = pipe.queue.front().map_or(now, |(arrival, _)| *arrival);
                    let is_last = pipe.deliver(buf, now);
                    if this.direction == Direction::Down {
                        state.last_received = arrived_at;
                    }
                    if is_last {
                        state.up.end(CutKind::AtOnce);
                        state.down.end(CutKind::AtOnce);
                    }
                    return Poll::Ready(Ok(()));
                }
                None if pipe.writer_gone => return Poll::Ready(Ok(())),
                None => return Poll::Pending,
                Some(at) => {
                    drop(state);
                    let sleep = this.sleep.insert(Box::pin(sleep_until(at)));
                    if sleep.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl Drop for LinkReader {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let pipe = state.pipe(self.direction);
        pipe.reader_gone = true;
        pipe.wake();
    }
}

struct LinkWriter {
    shared: Arc<Mutex<LinkState>>,
    direction: Direction,
}

impl AsyncWrite for LinkWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        let pipe = state.pipe(self.direction);
        if pipe.reset || pipe.reader_gone || pipe.writer_gone {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = pipe.quality.capacity.saturating_sub(pipe.queued).min(buf.len());
        if room == 0 {
            pipe.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        pipe.queued += room;
        if !pipe.is_void {
            let arrival = Instant::now() + pipe.quality.delay;
            pipe.queue.push_back((arrival, Bytes::copy_from_slice(&buf[..room])));
            if let Some(waker) = pipe.reader.take() {
                waker.wake();
            }
        }
        Poll::Ready(Ok(room))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        let pipe = state.pipe(self.direction);
        pipe.writer_gone = true;
        pipe.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for LinkWriter {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let pipe = state.pipe(self.direction);
        pipe.writer_gone = true;
        pipe.wake();
    }
}
