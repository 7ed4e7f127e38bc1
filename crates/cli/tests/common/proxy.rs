//! A TCP proxy between client and server that cuts links: on demand, or after a number of bytes, at any position in a message. It does not
//! parse the bytes.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

use super::random;

/// A running proxy. Dropping it stops the proxy.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    server: SocketAddr,
    /// Whether connections are let through.
    is_open: watch::Sender<bool>,
    /// Changes when all links must be cut.
    cut: watch::Sender<u64>,
    /// Number of links made.
    links: AtomicU64,
    /// How many bytes the next links may carry; `None` means unlimited.
    lives: Mutex<Option<Lives>>,
    /// Number of links that ended because of their byte limit.
    cuts: watch::Sender<u64>,
}

/// The byte limits of future links.
struct Lives {
    seed: u64,
    most: u64,
    left: u64,
}

impl Proxy {
    /// Starts a proxy in front of `IP:PORT`.
    pub(crate) async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a port");
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(Shared {
            server: server.parse().expect("an address"),
            is_open: watch::Sender::new(true),
            cut: watch::Sender::new(0),
            links: AtomicU64::new(0),
            lives: Mutex::new(None),
            cuts: watch::Sender::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, _tasks: tasks }
    }

    /// A server's URL, redirected to this proxy. The server must allow the host `127.0.0.1` at any port.
    pub(crate) fn through(&self, url: &str) -> String {
        url.replace(&self.shared.server.to_string(), &self.address.to_string())
    }

    /// Cuts all current links.
    pub(crate) fn cut(&self) {
        self.shared.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts every link, and every new one at once, until [`open`](Self::open).
    pub(crate) fn shut(&self) {
        self.shared.is_open.send_replace(false);
        self.cut();
    }

    /// Lets connections through again.
    pub(crate) fn open(&self) {
        self.shared.is_open.send_replace(true);
    }

    /// How many links there were.
    pub(crate) fn links(&self) -> u64 {
        self.shared.links.load(Ordering::Relaxed)
    }

    /// Limits each of the next `count` links to a random number of bytes, counted in both directions, and cuts the current links.
    pub(crate) fn cut_by_itself(&self, seed: u64, count: u64, most: u64) {
        *self.shared.lives.lock().expect("no panic under the lock") = Some(Lives { seed, most, left: count });
        self.cut();
    }

    /// Watches how many links ended because of their byte limit.
    pub(crate) fn cuts(&self) -> watch::Receiver<u64> {
        self.shared.cuts.subscribe()
    }
}

impl Shared {
    /// The byte limit of the next link.
    fn life(&self) -> Option<u64> {
        let mut lives = self.lives.lock().expect("no panic under the lock");
        let lives = lives.as_mut().filter(|lives| lives.left > 0)?;
        lives.left -= 1;
        Some(random(&mut lives.seed) % lives.most)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut links = JoinSet::new();
    loop {
        let (near, _) = listener.accept().await.expect("accept a connection");
        while links.try_join_next().is_some() {}
        if *shared.is_open.borrow() {
            shared.links.fetch_add(1, Ordering::Relaxed);
            links.spawn(link(near, Arc::clone(&shared)));
        }
    }
}

async fn link(near: TcpStream, shared: Arc<Shared>) {
    let mut cut = shared.cut.subscribe();
    let life = shared.life();
    // If the server is down, the link ends as with a cut.
    let Ok(far) = TcpStream::connect(shared.server).await else { return };
    near.set_nodelay(true).ok(); // Optional; only makes tests faster.
    far.set_nodelay(true).ok();
    let left = Arc::new(AtomicU64::new(life.unwrap_or(u64::MAX)));
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    // If one direction ends, the other one is cut too.
    tokio::select! {
        _ = cut.changed() => {}
        () = pass(near_read, far_write, &left) => {}
        () = pass(far_read, near_write, &left) => {}
    }
    if left.load(Ordering::Relaxed) == 0 {
        shared.cuts.send_modify(|cuts| *cuts += 1);
    }
}

/// Forwards bytes until the byte limit is used up, which may be in the middle of a message.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, left: &AtomicU64) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let Ok(read @ 1..) = from.read(&mut bytes).await else { return };
        let before =
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(read as u64)));
        let allowed = usize::try_from(before.unwrap_or(0)).unwrap_or(usize::MAX).min(read);
        if to.write_all(&bytes[..allowed]).await.is_err() || left.load(Ordering::Relaxed) == 0 {
            return;
        }
    }
}
