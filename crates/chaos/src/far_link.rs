//! A link between two network namespaces with a delay, a rate and a drop-tail queue in each direction, for tests as root.
//!
//! ```text
//! namespace near ── TUN device ──▶ PacketQueue ──▶ TUN device ── namespace far
//! ```
//!
//! The kernel's own TCP runs at both ends, so a test sees its slow start, its buffers and its retransmissions. One thread
//! moves the packets. The namespaces have no name: they, their devices and this thread end with the [`FarLink`], and with
//! its program even after SIGKILL, as soon as no process is left in them. A program that a test starts in a namespace is
//! the test's to end.

#![expect(clippy::disallowed_methods, reason = "a link takes real time")]

mod packet_queue;

use std::{
    fmt, fs, io,
    net::Ipv4Addr,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    fs::fstat,
    io::Errno,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::sys::{self, InterfaceSetting};
use packet_queue::PacketQueue;

/// The device in each namespace.
const DEVICE: &str = "far0";

/// The two ends: addresses for documentation (RFC 5737), which no other network uses.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];

/// The largest packet: that of Ethernet, so that a drop loses as much as on a real link.
const MTU: usize = 1500;

/// The largest socket buffers of TCP inside, in bytes. The usual maximum, 4 or 6 MiB, is less than what a link of 200 ms
/// and 300 Mbit/s holds, and would be measured instead of the link.
const TCP_BUFFER_MAX: usize = 64 << 20;

/// The shortest time from one turn of the mover to the next. Packets that arrive within it are moved together: at
/// 300 Mbit/s a packet arrives every 40 µs, and a wake-up for each would take half of a core.
const TURN: Duration = Duration::from_micros(100);

/// Packets that are read from one device in one turn, so that a flood from one end does not delay the other end.
const PACKETS_PER_TURN: usize = 256;

/// The mover's nice value. Late turns would be measured as delay of the link. Only root creates links, so it is permitted.
const NICE: i32 = -15;

/// The properties of a link, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkShape {
    /// Twice the delay of one direction. The time in the queue is added.
    pub round_trip: Duration,
    pub bits_per_second: u64,
    /// Bytes that may wait before the transmitter. Packets that do not fit are dropped.
    pub queue_bytes: usize,
}

impl LinkShape {
    /// A link whose queue holds as many bytes as the link itself: the bandwidth-delay product.
    pub fn with_one_bdp(round_trip: Duration, bits_per_second: u64) -> Self {
        let queue_bytes = (bits_per_second as f64 / 8.0 * round_trip.as_secs_f64()) as usize;
        Self { round_trip, bits_per_second, queue_bytes: queue_bytes.max(16 * MTU) }
    }
}

/// The traffic of one direction so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Packets that arrived.
    pub packets: u64,
    /// Bytes in these packets, with their IP headers.
    pub bytes: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
}

/// One end of a link.
pub struct Namespace {
    network: OwnedFd,
    address: Ipv4Addr,
}

/// A link and its two ends. Dropping it removes all of them.
pub struct FarLink {
    near: Namespace,
    far: Namespace,
    shared: Arc<SharedQueues>,
    mover: Option<JoinHandle<()>>,
}

/// The state that the handle shares with the mover.
struct SharedQueues {
    begun: Instant,
    /// From near to far, and from far to near.
    queues: Mutex<[PacketQueue; 2]>,
    is_over: AtomicBool,
    /// Wakes the mover, which may wait for a packet.
    wake: OwnedFd,
}

impl FarLink {
    /// Creates both namespaces and connects them. Needs root and `/dev/net/tun`.
    pub fn start(shape: LinkShape) -> io::Result<Self> {
        let (near, near_tun) = Namespace::create(ADDRESSES[0], ADDRESSES[1])?;
        let (far, far_tun) = Namespace::create(ADDRESSES[1], ADDRESSES[0])?;
        let queue = || PacketQueue::new(shape.bits_per_second, shape.queue_bytes, shape.round_trip / 2);
        let shared = Arc::new(SharedQueues {
            begun: Instant::now(),
            queues: Mutex::new([queue(), queue()]),
            is_over: AtomicBool::new(false),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let for_mover = Arc::clone(&shared);
        let mover =
            thread::Builder::new().name("far link".into()).spawn(move || for_mover.run(&[near_tun, far_tun]))?;
        Ok(Self { near, far, shared, mover: Some(mover) })
    }

    /// The end of a client.
    pub fn near(&self) -> &Namespace {
        &self.near
    }

    /// The end of a server.
    pub fn far(&self) -> &Namespace {
        &self.far
    }

    /// Changes the delay of both directions. Packets that are already on the line keep theirs.
    pub fn set_round_trip(&self, round_trip: Duration) {
        let now = self.shared.begun.elapsed();
        self.shared.queues.lock().iter_mut().for_each(|queue| queue.set_delay(now, round_trip / 2));
    }

    /// Sends nothing for this time in both directions. Afterwards it sends the packets that the queues hold.
    pub fn stall(&self, time: Duration) {
        let now = self.shared.begun.elapsed();
        self.shared.queues.lock().iter_mut().for_each(|queue| queue.stall(now, time));
    }

    /// The traffic from near to far, and from far to near.
    pub fn counters(&self) -> [LinkCounters; 2] {
        self.shared.queues.lock().each_ref().map(PacketQueue::counters)
    }
}

impl fmt::Debug for FarLink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FarLink").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

impl Drop for FarLink {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // The write cannot fail: the counter of an eventfd that is read or written once does not overflow.
        rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes()).ok();
        if let Some(mover) = self.mover.take() {
            mover.join().ok(); // If the mover panicked, that is already reported.
        }
    }
}

impl Namespace {
    /// A new namespace with its end of the link, and the fd of the packets.
    fn create(address: Ipv4Addr, peer: Ipv4Addr) -> io::Result<(Self, OwnedFd)> {
        // In a thread, because it stays in the namespace.
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                let network = sys::new_network()?;
                let tun = sys::tun(DEVICE)?;
                sys::configure("lo", InterfaceSetting::Up)?;
                sys::configure(DEVICE, InterfaceSetting::Address(address))?;
                sys::configure(DEVICE, InterfaceSetting::Peer(peer))?;
                sys::configure(DEVICE, InterfaceSetting::Mtu(MTU as i32))?;
                sys::configure(DEVICE, InterfaceSetting::QueueLength(10_000))?;
                // With IPv6 the kernel would send router solicitations.
                fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").ok(); // A kernel may have no IPv6.
                sys::configure(DEVICE, InterfaceSetting::Up)?;
                for buffers in ["tcp_rmem", "tcp_wmem"] {
                    fs::write(format!("/proc/sys/net/ipv4/{buffers}"), format!("4096 131072 {TCP_BUFFER_MAX}"))?;
                }
                // A connection must not begin with what an earlier one has learned about the link.
                fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")?;
                Ok((Self { network, address }, tun))
            });
            inside.join().map_err(|_| io::Error::other("the set-up of a namespace panicked"))?
        })
        .map_err(|error: io::Error| {
            io::Error::new(error.kind(), format!("create a network namespace with a TUN device (needs root): {error}"))
        })
    }

    /// The address of this end.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The inode number that identifies the namespace in `/proc`.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(fstat(&self.network)?.st_ino)
    }

    /// Runs `work` in a thread inside. Sockets that it opens and programs that it starts stay inside.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A variable of the kernel in this namespace, such as `ipv4/tcp_congestion_control`.
    pub fn get(&self, name: &str) -> io::Result<String> {
        Ok(self.run(|| fs::read_to_string(format!("/proc/sys/net/{name}")))??.trim_end().to_owned())
    }
}

impl SharedQueues {
    /// Moves packets until the link is dropped.
    fn run(&self, devices: &[OwnedFd; 2]) {
        rustix::process::setpriority_process(None, NICE).ok(); // A container may forbid it; the link is then less exact.
        let mut buffer = vec![0; MTU];
        while !self.is_over.load(Ordering::Acquire) {
            let now = self.begun.elapsed();
            let mut next = None;
            {
                let mut queues = self.queues.lock();
                for (from, queue) in queues.iter_mut().enumerate() {
                    for _ in 0..PACKETS_PER_TURN {
                        let Ok(length) = rustix::io::read(&devices[from], &mut buffer) else { break };
                        queue.push(now, &buffer[..length]);
                    }
                    while let Some(packet) = queue.pop(now) {
                        // The kernel drops the packet if it has no memory for it, like a real receiver.
                        rustix::io::write(&devices[1 - from], &packet).ok();
                    }
                    next = [next, queue.next_arrival()].into_iter().flatten().min();
                }
            }
            thread::sleep(TURN);
            self.wait(devices, next);
        }
    }

    /// Waits for a packet, the end, or the time of the next arrival.
    fn wait(&self, devices: &[OwnedFd; 2], next: Option<Duration>) {
        let left = next.map(|next| next.saturating_sub(self.begun.elapsed()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = [&devices[0], &devices[1], &self.wake].map(|fd| PollFd::new(fd, PollFlags::IN));
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // The fds are valid and there are three of them, so only a lack of memory is left: look again after a turn.
            Err(_) => thread::sleep(TURN),
        }
    }
}
