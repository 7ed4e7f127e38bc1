//! The cutting proxy of the tests: [`exec_server_chaos::Proxy`] in front of a server's URL. It does not parse the bytes.

use std::sync::{Arc, Mutex};

use exec_server_chaos::{Event, Plan, Random, Shape, Way};

/// A running proxy. Dropping it stops the proxy.
pub struct Proxy {
    proxy: exec_server_chaos::Proxy,
    /// `IP:PORT` of the server.
    server: String,
    limits: Arc<Mutex<ByteLimits>>,
}

/// The byte limits of future links.
struct ByteLimits {
    shape: Shape,
    random: Random,
    ways: Vec<Way>,
    most: u64,
    /// Number of links that still get a limit.
    left: u64,
}

impl Proxy {
    /// Starts a proxy in front of `IP:PORT`.
    pub fn start(server: &str) -> Self {
        Self::shaped(server, Shape::default())
    }

    /// Like [`start`](Self::start), with a limit for the bytes per second in each direction.
    pub fn throttled(server: &str, throttle: u64) -> Self {
        Self::shaped(server, Shape { throttle, ..Shape::default() })
    }

    fn shaped(server: &str, shape: Shape) -> Self {
        let limits = ByteLimits { shape, random: Random::new(0), ways: Vec::new(), most: 0, left: 0 };
        let limits = Arc::new(Mutex::new(limits));
        let drawn = Arc::clone(&limits);
        let upstream = server.parse().expect("an address");
        let draw = move |_: &mut Random| drawn.lock().expect("no panic under the lock").next();
        let proxy = exec_server_chaos::Proxy::start(upstream, 0, draw).expect("bind a port");
        Self { proxy, server: server.to_owned(), limits }
    }

    /// A server's URL, redirected to this proxy. The server must allow the host `127.0.0.1` at any port.
    pub fn through(&self, url: &str) -> String {
        url.replace(&self.server, &self.proxy.address().to_string())
    }

    /// Cuts all current links.
    pub fn cut(&self) {
        self.proxy.cut(Event::Fin);
    }

    /// Cuts every link, and every new one at once, until [`open`](Self::open).
    pub fn shut(&self) {
        self.proxy.shut();
    }

    /// Lets connections through again.
    pub fn open(&self) {
        self.proxy.open();
    }

    /// How many links there were.
    pub fn links(&self) -> u64 {
        self.proxy.connections()
    }

    /// Cuts the current links, and each of the next `count` links after fewer than `most` bytes in one of these directions.
    pub fn cut_next(&self, seed: u64, count: u64, ways: &[Way], most: u64) {
        let mut limits = self.limits.lock().expect("no panic under the lock");
        *limits = ByteLimits { shape: limits.shape, random: Random::new(seed), ways: ways.to_vec(), most, left: count };
        drop(limits);
        self.cut();
    }

    /// How many links ended because of their byte limit.
    pub fn cuts(&self) -> u64 {
        self.proxy.count()
    }
}

impl ByteLimits {
    fn next(&mut self) -> Plan {
        let plan = Plan::shaped(self.shape);
        if self.left == 0 {
            return plan;
        }
        self.left -= 1;
        let way = self.ways[usize::from(self.ways.len() > 1 && self.random.one_in(2))];
        plan.at(way, self.random.between(0, self.most), Event::Fin)
    }
}
