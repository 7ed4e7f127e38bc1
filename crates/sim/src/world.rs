//! A world: a server, its holders and children, a few clients of every kind, and their faults, all decided by one seed.
//!
//! The world owns the order of operations. Each step is one operation and some time. After each step it checks the invariants that no event
//! reports. At the end everything must have been delivered.

use std::{
    cell::RefCell,
    io,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use exec_server_holder::Limits;
use exec_server_server::core::{Config, Hook, SessionIds};
use tokio::{
    task::LocalSet,
    time::{Instant, sleep},
};

use crate::{
    branch::Branch,
    client::{Arrival, Client, Kind},
    desk::Desk,
    gate::Gate,
    holders::Holders,
    link::{Link, Quality},
    relic::Relic,
    rival::Rival,
    rng::Rng,
    server::Server,
    stage::Stage,
    trace::{Counters, Record, Sent},
    user::User,
    view::View,
};

/// The result of a world.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    pub trace: String,
    pub counters: Counters,
    pub sent: Sent,
    /// The first violation, with the name of the invariant.
    pub failure: Option<String>,
}

/// Whether the holders of this seed's world can spill to disk.
pub fn has_disk(seed: u64) -> bool {
    seed % 5 == 4
}

/// Runs the world of a seed.
pub fn run(seed: u64) -> io::Result<Report> {
    let gate = Gate::default();
    let asleep = gate.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .max_blocking_threads(1)
        .on_thread_park(move || asleep.fall_asleep())
        .build()?;
    let local = LocalSet::new();
    let lived = local.block_on(&runtime, async {
        let mut world = World::new(seed, gate.clone())?;
        world.stage.spawn(gate.clone().keep_nudging());
        world.live().await?;
        let record = world.stage.trace.take();
        drop(world);
        io::Result::Ok(record)
    });
    gate.open();
    let Record { text, failure, counters, sent } = lived?;
    Ok(Report { seed, trace: text, counters, sent, failure })
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) stage: Stage,
    pub(crate) holders: Arc<Holders>,
    pub(crate) server: Arc<Server>,
    /// Model clients, which speak the wire protocol directly.
    pub(crate) clients: Vec<Rc<RefCell<Client>>>,
    /// Model clients whose session has ended.
    pub(crate) retired: Vec<Rc<RefCell<Client>>>,
    /// Programs that use the real client library.
    pub(crate) users: Vec<User>,
    pub(crate) relics: Vec<Rc<RefCell<Relic>>>,
    pub(crate) rivals: Vec<Rival>,
    pub(crate) next_client: u32,
    pub(crate) next_process: u32,
    /// Children write more than their logs may hold.
    pub(crate) is_heavy: bool,
    pub(crate) has_disk: bool,
    retained_max: u64,
}

impl World {
    fn new(seed: u64, gate: Gate) -> io::Result<Self> {
        let mut rng = Rng::new(seed);
        let stage = Stage::new();
        let has_disk = has_disk(seed);
        let disk_quota_bytes = if has_disk { *rng.pick(&[2 << 20, 64 << 20, 64 << 20]) } else { 0 };
        let limits = Limits {
            disk_quota_bytes,
            free_floor_bytes: 0,
            free_floor_percent: 0,
            ttl_ms: 120_000,
            // Disable archiving: a world has no server that serves archived sessions from files.
            archive_after_ms: exec_server_holder::wire::TTL_NONE,
            ..Limits::default()
        };
        let holders = Holders::new(limits, gate.clone())?;
        let sessions = AtomicU64::new(0);
        let config = Config {
            // With fewer than three segments a child could block forever: one segment stays readable, one is sealed, one is being written.
            memory_cap_bytes: *rng.pick(&[3 << 20, 4 << 20]),
            ack_window_bytes: *rng.pick(&[128 << 10, 512 << 10, 4 << 20]),
            before_file_work: Hook::from_fn({
                let gate = gate.clone();
                move || gate.pass()
            }),
            session_ids: SessionIds::from_fn(move || {
                // The same format as a real id, but the same in every run of a seed.
                format!("{:08x}-0000-4000-8000-{seed:012x}", sessions.fetch_add(1, Ordering::Relaxed))
            }),
            ..Config::default()
        };
        // The memory cap, the segment that is being written beyond it, and the disk.
        let retained_max = config.memory_cap_bytes + (1 << 20) + disk_quota_bytes;
        let server = Server::new(config, holders.clone(), stage.trace.clone());
        Ok(Self {
            rng,
            stage,
            holders,
            server,
            clients: Vec::new(),
            retired: Vec::new(),
            users: Vec::new(),
            relics: Vec::new(),
            rivals: Vec::new(),
            next_client: 0,
            next_process: 0,
            is_heavy: has_disk,
            has_disk,
            retained_max,
        })
    }

    async fn live(&mut self) -> io::Result<()> {
        self.stage.spawn(self.holders.clone().keep(self.stage.clone()));
        self.server.begin().await?;
        // With a disk, start at least two clients: one must remain that can observe that the disk of the other is full.
        let fewest = if self.has_disk { 2 } else { 1 };
        for _ in 0..self.rng.within(fewest..fewest + 2) {
            let client = self.new_client();
            self.clients.push(client);
            self.connect(self.clients.len() - 1, Arrival::New);
        }
        for number in 0..self.rng.within(0..3) {
            let (name, rng) = (format!("u{number}"), self.rng.fork());
            self.users.push(User::new(name, self.server.clone(), self.stage.clone(), rng));
        }
        let steps = self.rng.within(20..80);
        for _ in 0..steps {
            if self.stage.trace.has_failed() {
                return Ok(());
            }
            self.step().await?;
            self.tend();
            self.check();
        }
        self.finish().await
    }

    fn new_client(&mut self) -> Rc<RefCell<Client>> {
        let kind = if self.rng.chance(65) { Kind::Acknowledges } else { Kind::Reference };
        let name = format!("c{}", self.next_client);
        self.next_client += 1;
        let client = Client::new(name, kind, self.server.clone(), self.stage.clone(), self.rng.fork());
        let mut state = client.borrow_mut();
        state.desk = Desk::new(self.holders.desk(&state.name));
        state.acks_promptly = self.rng.chance(50);
        state.tells_gaps |= self.rng.chance(30);
        if kind == Kind::Acknowledges {
            state.retained_max = Some(self.retained_max);
        }
        drop(state);
        client
    }

    /// Connects a client over a link of random quality.
    pub(crate) fn connect(&mut self, client: usize, arrival: Arrival) -> u32 {
        let quality = Quality::draw(&mut self.rng);
        self.connect_over(client, arrival, quality)
    }

    pub(crate) fn connect_over(&mut self, client: usize, arrival: Arrival, quality: Quality) -> u32 {
        let (link, ours, theirs) = Link::new(quality);
        self.server.accept(theirs);
        // If the answer to the first `initialize` was lost, the client has no session to resume.
        let arrival = if self.clients[client].borrow().session.is_none() { Arrival::New } else { arrival };
        if arrival == Arrival::New {
            self.clients[client].borrow_mut().drop_connections(false);
        }
        Client::connect(&self.clients[client], link, ours, arrival)
    }

    /// Replaces clients whose session has ended, and handles sessions that users have just opened.
    pub(crate) fn tend(&mut self) {
        self.users.iter_mut().for_each(User::tend);
        for index in 0..self.clients.len() {
            let is_over = {
                let client = self.clients[index].borrow();
                client.refused.is_some() || client.ended
            };
            if is_over {
                let client = self.new_client();
                let old = std::mem::replace(&mut self.clients[index], client);
                if old.borrow().refused.as_deref() == Some("sessionExpired") {
                    self.stage.trace.count(Branch::Expired);
                }
                old.borrow_mut().drop_connections(false);
                self.retired.push(old);
                self.connect(index, Arrival::New);
            }
        }
    }

    /// Checks the invariants that no event reports.
    pub(crate) fn check(&mut self) {
        for client in self.clients.iter().chain(&self.retired) {
            client.borrow_mut().views.values_mut().for_each(View::check_stdin);
        }
        self.users.iter().flat_map(|user| user.held.values()).for_each(|held| held.check());
    }

    /// Polls a condition every 20 ms. Returns false on timeout. Also returns true if the world has failed already.
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
