//! A world: a server, its holders and children, a few clients, and what befalls them, all decided by one seed.
//!
//! Owns the order of events and the end, at which everything must have come out right. Each step is one operation and some time; the
//! checks that need no event (stdin) run after each.

use std::{cell::RefCell, io, rc::Rc, sync::Arc, time::Duration};

use exec_server_holder::Limits;
use exec_server_server::core::Config;
use tokio::{
    task::LocalSet,
    time::{Instant, sleep},
};

use crate::{
    client::{Arrival, Client, Kind},
    holders::Holders,
    link::{Link, Quality},
    rng::Rng,
    server::Server,
    stage::Stage,
    trace::Counters,
    view::View,
};

/// What came of a world.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed that made it.
    pub seed: u64,
    /// Everything that happened.
    pub trace: String,
    /// How often each rare branch was taken.
    pub counters: Counters,
    /// The first thing that was wrong.
    pub failure: Option<String>,
}

/// Whether the world of a seed has a disk to spill to. Disk calls run on other threads, so that such a world keeps its promises but does
/// not repeat its trace to the letter.
pub fn has_disk(seed: u64) -> bool {
    seed % 5 == 4
}

/// Lives through the world of a seed.
pub fn run(seed: u64) -> io::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    let local = LocalSet::new();
    let (trace, failure, counters) = local.block_on(&runtime, async {
        let mut world = World::new(seed)?;
        world.live().await?;
        let record = world.stage.trace.take();
        drop(world);
        io::Result::Ok(record)
    })?;
    Ok(Report { seed, trace, counters, failure })
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) stage: Stage,
    pub(crate) holders: Arc<Holders>,
    pub(crate) server: Server,
    pub(crate) clients: Vec<Rc<RefCell<Client>>>,
    pub(crate) next_process: u32,
    /// Children write more than their logs may hold.
    pub(crate) is_heavy: bool,
    retained_max: u64,
}

impl World {
    fn new(seed: u64) -> io::Result<Self> {
        let mut rng = Rng::new(seed);
        let stage = Stage::new();
        let disk_quota_bytes = if has_disk(seed) { 64 << 20 } else { 0 };
        let limits = Limits {
            disk_quota_bytes,
            free_floor_bytes: 0,
            free_floor_percent: 0,
            ttl_ms: 120_000,
            ..Limits::default()
        };
        let holders = Holders::new(limits)?;
        let config = Config {
            // Below three segments a child could block for ever: one stays readable, one is sealed, one is written.
            memory_cap_bytes: *rng.pick(&[3 << 20, 4 << 20]),
            ack_window_bytes: *rng.pick(&[128 << 10, 512 << 10, 4 << 20]),
            ..Config::default()
        };
        // The cap, the segment that is being written beside it, and the disk.
        let retained_max = config.memory_cap_bytes + (1 << 20) + disk_quota_bytes;
        let server = Server::new(config, holders.clone());
        Ok(Self {
            rng,
            stage,
            holders,
            server,
            clients: Vec::new(),
            next_process: 0,
            is_heavy: has_disk(seed),
            retained_max,
        })
    }

    async fn live(&mut self) -> io::Result<()> {
        self.stage.spawn(self.holders.clone().keep(self.stage.clone()));
        self.server.begin(&self.stage).await?;
        for number in 0..self.rng.within(1..4) {
            let kind = if self.rng.chance(65) { Kind::Acknowledges } else { Kind::Reference };
            let client = Client::new(format!("c{number}"), kind, self.stage.clone(), self.rng.fork());
            client.borrow_mut().acks_promptly = self.rng.chance(50);
            if kind == Kind::Acknowledges {
                client.borrow_mut().retained_max = Some(self.retained_max);
            }
            self.clients.push(client);
            // One after the other: making a session writes a file on another thread.
            self.connect(usize::try_from(number).expect("few clients"), Arrival::New);
            self.until(Duration::from_secs(60), |world| {
                world.clients.iter().all(|client| client.borrow().attached.is_some())
            })
            .await;
        }
        let steps = self.rng.within(20..80);
        for _ in 0..steps {
            if self.stage.trace.has_failed() {
                return Ok(());
            }
            self.step().await?;
            self.check();
        }
        self.finish().await
    }

    /// A link as good or bad as chance has it, with a connection on it.
    pub(crate) fn connect(&mut self, client: usize, arrival: Arrival) -> u32 {
        let quality = Quality {
            delay: Duration::from_millis(*self.rng.pick(&[0, 0, 1, 5, 40])),
            slice: *self.rng.pick(&[200, 4096, 65_536, 1 << 20]),
            pace: None,
            capacity: *self.rng.pick(&[4 << 10, 64 << 10, 256 << 10]),
        };
        self.connect_over(client, arrival, quality)
    }

    pub(crate) fn connect_over(&mut self, client: usize, arrival: Arrival, quality: Quality) -> u32 {
        let (link, ours, theirs) = Link::new(quality);
        self.server.accept(theirs, &self.stage);
        Client::connect(&self.clients[client], link, ours, arrival)
    }

    /// Checks what no event tells.
    pub(crate) fn check(&mut self) {
        for client in &self.clients {
            client.borrow_mut().views.values_mut().for_each(View::check_stdin);
        }
    }

    /// Waits until something is so, by looking every few milliseconds; false when the time was over first.
    pub(crate) async fn until(&mut self, within: Duration, mut is_so: impl FnMut(&mut Self) -> bool) -> bool {
        let deadline = Instant::now() + within;
        loop {
            if is_so(self) || self.stage.trace.has_failed() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
