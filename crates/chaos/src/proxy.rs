//! The proxy: accepts connections, draws a plan for each one and starts its two directions.
//!
//! It owns the links and the record of injected faults, and can blackhole or cut all links at once.

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use crate::{
    Event, Plan, Random, Way,
    pipe::{Link, Pipe},
};

/// Number of faults that are kept one by one. Older ones are dropped.
const REMEMBERED: usize = 1 << 16;

/// A fault that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected {
    /// Number of the connection in the order of arrival, starting at 0.
    pub connection: u64,
    pub way: Way,
    /// The byte position in that direction, as the sender counts.
    pub byte: u64,
    pub event: Event,
}

/// State that the proxy shares with its threads.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    over: AtomicBool,
    shut: AtomicBool,
    disarmed: AtomicBool,
    count: AtomicU64,
    connections: AtomicU64,
    injected: Mutex<VecDeque<Injected>>,
    links: Mutex<Vec<Weak<Link>>>,
    /// Blackholed links that are kept open, so that a peer does not notice that the other one is gone.
    kept: Mutex<Vec<Arc<Link>>>,
}

impl Shared {
    /// Returns whether an event takes effect now. If so, counts it.
    pub(crate) fn injects(&self, fault: Injected) -> bool {
        if self.disarmed.load(Ordering::Relaxed) {
            return false;
        }
        let mut injected = self.injected.lock();
        if injected.len() == REMEMBERED {
            injected.pop_front();
        }
        injected.push_back(fault);
        self.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    pub(crate) fn keep(&self, link: &Arc<Link>) {
        if !self.over.load(Ordering::Relaxed) {
            self.kept.lock().push(Arc::clone(link));
        }
    }

    fn live(&self) -> Vec<Arc<Link>> {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.iter().filter_map(Weak::upgrade).collect()
    }

    fn cut(&self, event: Event) {
        for link in self.live() {
            link.cut(event);
        }
        self.kept.lock().clear();
    }
}

/// A proxy in front of a server. Dropping it cuts all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free loopback port. `draw` creates the plan of each connection.
    pub fn start(
        upstream: SocketAddr,
        seed: u64,
        draw: impl FnMut(&mut Random) -> Plan + Send + 'static,
    ) -> io::Result<Self> {
        Self::listen(TcpListener::bind("127.0.0.1:0")?, upstream, seed, draw)
    }

    /// Like [`Proxy::start`], with the caller's listener.
    pub fn listen(
        listener: TcpListener,
        upstream: SocketAddr,
        seed: u64,
        mut draw: impl FnMut(&mut Random) -> Plan + Send + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let for_acceptor = Arc::clone(&shared);
        let acceptor = thread::Builder::new().name("chaos".into()).spawn(move || {
            let shared = for_acceptor;
            while let Ok((client, _)) = listener.accept() {
                if shared.over.load(Ordering::Relaxed) {
                    return;
                }
                // Checked again after the link is registered, because `shut` may run in between.
                if shared.shut.load(Ordering::SeqCst) {
                    continue;
                }
                let number = shared.connections.fetch_add(1, Ordering::Relaxed);
                // Derive the numbers from the seed and the connection number only: then the numbers that one connection
                // uses do not affect the next one.
                let mut random = Random::new(seed ^ Random::new(number).next());
                let plan = draw(&mut random);
                // If the server does not accept a connection now, drop the client's connection.
                if let Ok(server) = TcpStream::connect(upstream) {
                    link(client, server, number, (&plan, random), &shared).ok(); // A dead socket counts as a cut.
                    if shared.shut.load(Ordering::SeqCst) {
                        shared.cut(Event::Fin);
                    }
                }
            }
        })?;
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Number of events that have happened.
    pub fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// The events that have happened, in order. At most the last 65,536.
    pub fn injected(&self) -> Vec<Injected> {
        self.shared.injected.lock().iter().copied().collect()
    }

    /// Disables all further events, also in open connections.
    pub fn disarm(&self) {
        self.shared.disarmed.store(true, Ordering::Relaxed);
    }

    /// Discards from now on what open connections send in these directions. Does not affect new connections. Up to 64
    /// KiB that were already read may still pass.
    pub fn blackhole(&self, ways: &[Way]) {
        for link in self.shared.live() {
            ways.iter().for_each(|way| link.swallow(*way));
        }
    }

    /// Cuts all open connections. New ones are accepted.
    pub fn cut(&self, event: Event) {
        self.shared.cut(event);
    }

    /// Cuts all open connections, and closes new ones at once until [`Proxy::open`]. The closed ones are not counted.
    pub fn shut(&self) {
        self.shared.shut.store(true, Ordering::SeqCst);
        self.cut(Event::Fin);
    }

    /// Accepts connections again after [`Proxy::shut`].
    pub fn open(&self) {
        self.shared.shut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.cut(Event::Fin);
        // The acceptor checks the flag only when a connection arrives, so make one.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            acceptor.join().ok(); // If `draw` panicked, that is already reported.
        }
        // Cut again: the acceptor may have accepted a connection after the first cut.
        self.cut(Event::Fin);
    }
}

fn link(
    client: TcpStream,
    server: TcpStream,
    number: u64,
    (plan, mut random): (&Plan, Random),
    shared: &Arc<Shared>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let link = Arc::new(Link { number, client, server, swallows: Default::default() });
    {
        let mut links = shared.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&link));
    }
    for way in [Way::Up, Way::Down] {
        let pipe = Pipe {
            link: Arc::clone(&link),
            shared: Arc::clone(shared),
            way,
            shape: plan.shape(way),
            events: plan.events(way),
            random: random.fork(),
            at: 0,
            skip: 0,
            tail: Vec::new(),
        };
        thread::Builder::new().name(format!("chaos {number} {way:?}")).spawn(move || pipe.run())?;
    }
    Ok(())
}
