//! The proxy: accepts, draws a plan for each connection, and starts its two directions.
//!
//! Owns the links, the count of what was injected, and what can be done to all links at once.

use std::{
    collections::VecDeque,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use crate::{
    Event, Plan, Random, Way,
    pipe::{Link, Pipe},
};

/// The faults that are remembered one by one: the last so many.
const REMEMBERED: usize = 1 << 16;

/// One fault that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The connection, in the order of their arrival; the first is 0.
    pub connection: u64,
    /// The direction.
    pub way: Way,
    /// The byte of that direction, as the sender counts.
    pub byte: u64,
    /// What happened there.
    pub event: Event,
}

/// Shared by the proxy and its threads.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    over: AtomicBool,
    disarmed: AtomicBool,
    count: AtomicU64,
    connections: AtomicU64,
    injected: Mutex<VecDeque<Injected>>,
    links: Mutex<Vec<Weak<Link>>>,
    /// Swallowed links whose peers must not be told that the other has gone.
    kept: Mutex<Vec<Arc<Link>>>,
}

impl Shared {
    /// Whether an event happens now; if so, it is counted.
    pub(crate) fn injects(&self, fault: Injected) -> bool {
        if self.disarmed.load(Ordering::Relaxed) {
            return false;
        }
        let mut injected = lock(&self.injected);
        if injected.len() == REMEMBERED {
            injected.pop_front();
        }
        injected.push_back(fault);
        self.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    pub(crate) fn keep(&self, link: &Arc<Link>) {
        if !self.over.load(Ordering::Relaxed) {
            lock(&self.kept).push(Arc::clone(link));
        }
    }

    fn live(&self) -> Vec<Arc<Link>> {
        let mut links = lock(&self.links);
        links.retain(|link| link.strong_count() > 0);
        links.iter().filter_map(Weak::upgrade).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is inside is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A proxy in front of a server. Dropping it cuts what passes through it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free port of loopback; each connection gets the plan that is drawn for it.
    pub fn start(
        upstream: SocketAddr,
        seed: u64,
        draw: impl FnMut(&mut Random) -> Plan + Send + 'static,
    ) -> io::Result<Self> {
        Self::listen(TcpListener::bind("127.0.0.1:0")?, upstream, seed, draw)
    }

    /// As [`Proxy::start`], on a listener of the caller's.
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
                let number = shared.connections.fetch_add(1, Ordering::Relaxed);
                // Of seed and number alone: what one connection uses up does not shift the next one's.
                let mut random = Random::new(seed ^ Random::new(number).next());
                let plan = draw(&mut random);
                // A server that does not listen at this moment is a refused connection to the client too.
                if let Ok(server) = TcpStream::connect(upstream) {
                    link(client, server, number, (&plan, random), &shared).ok(); // A socket that died already is a cut.
                }
            }
        })?;
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// How many events have happened.
    pub fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// The events that have happened, in their order; the last 65,536.
    pub fn injected(&self) -> Vec<Injected> {
        lock(&self.shared.injected).iter().copied().collect()
    }

    /// From now on no event happens, also in connections that are open.
    pub fn disarm(&self) {
        self.shared.disarmed.store(true, Ordering::Relaxed);
    }

    /// Swallows, from now on, what the open connections send in these directions; new ones are not touched. At most 64 KiB that
    /// had been read already still pass.
    pub fn blackhole(&self, ways: &[Way]) {
        for link in self.shared.live() {
            for way in ways {
                match way {
                    Way::Up => link.swallow_up.store(true, Ordering::Relaxed),
                    Way::Down => link.swallow_down.store(true, Ordering::Relaxed),
                }
            }
        }
    }

    /// Cuts every open connection.
    pub fn cut(&self, event: Event) {
        for link in self.shared.live() {
            link.cut(event);
        }
        lock(&self.shared.kept).clear();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.cut(Event::Fin);
        // The acceptor looks at the flag when somebody comes.
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(acceptor) = self.acceptor.take().filter(|_| woken) {
            acceptor.join().ok(); // A plan that panicked has said so already.
        }
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
    let (swallow_up, swallow_down) = (AtomicBool::new(false), AtomicBool::new(false));
    let link = Arc::new(Link { number, client, server, swallow_up, swallow_down });
    {
        let mut links = lock(&shared.links);
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
