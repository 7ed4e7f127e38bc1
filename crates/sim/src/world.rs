//! A world: a server, its holders and children, a few clients of every kind, and their faults, all decided by one seed.
//!
//! The world owns the order of operations. Each step is one operation and some time. After each step it checks the invariants that no event
//! reports. At the end everything must have been delivered.

use std::sync::atomic::{AtomicU64, Ordering};

use exec_server_holder::HolderLimits;
use exec_server_server::core::Config;
use tokio::task::LocalSet;

use crate::{
    client_files::ClientFiles,
    holders::Holders,
    idle_gate::IdleGate,
    legacy_client::LegacyClient,
    prelude::*,
    rival::Rival,
    trace::{Counters, Recording, Sent},
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
    let gate = IdleGate::default();
    let parked = gate.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .max_blocking_threads(1)
        .on_thread_park(move || parked.mark_parked())
        .build()?;
    let local = LocalSet::new();
    let lived = local.block_on(&runtime, async {
        let mut world = World::new(seed, gate.clone())?;
        world.context.spawn(gate.clone().run_wakeups());
        world.run().await?;
        let recording = world.context.trace.take();
        drop(world);
        io::Result::Ok(recording)
    });
    gate.open();
    let Recording { text, failure, counters, sent } = lived?;
    Ok(Report { seed, trace: text, counters, sent, failure })
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) context: WorldContext,
    pub(crate) holders: Arc<Holders>,
    pub(crate) server: Arc<Server>,
    /// Model clients, which speak the wire protocol directly.
    pub(crate) clients: Vec<Rc<RefCell<ModelClient>>>,
    /// Model clients whose session has ended.
    pub(crate) retired: Vec<Rc<RefCell<ModelClient>>>,
    /// Programs that use the real client library.
    pub(crate) users: Vec<User>,
    pub(crate) legacy_clients: Vec<Rc<RefCell<LegacyClient>>>,
    pub(crate) rivals: Vec<Rival>,
    pub(crate) next_process: u32,
    /// Children write more than their logs may hold.
    pub(crate) is_heavy: bool,
    pub(crate) has_disk: bool,
    retained_max: u64,
}

impl World {
    fn new(seed: u64, gate: IdleGate) -> io::Result<Self> {
        let mut rng = Rng::new(seed);
        let context = WorldContext::default();
        let has_disk = has_disk(seed);
        let disk_quota_bytes = if has_disk { *rng.pick(&[2 << 20, 64 << 20, 64 << 20]) } else { 0 };
        let limits = HolderLimits {
            disk_quota_bytes,
            free_floor_bytes: 0,
            free_floor_percent: 0,
            ttl_ms: SESSION_TTL_MS,
            // Disable archiving: a world has no server that serves archived sessions from files.
            archive_after_ms: exec_server_holder::control::TTL_NONE,
            ..HolderLimits::default()
        };
        let holders = Holders::new(limits, gate.clone())?;
        let sessions = AtomicU64::new(0);
        let config = Config {
            // With fewer than three segments a child could block forever: one segment stays readable, one is sealed, one is being written.
            memory_cap_bytes: *rng.pick(&[3 << 20, 4 << 20]),
            ack_window_bytes: *rng.pick(&[128 << 10, 512 << 10, 4 << 20]),
            before_file_work: Arc::new({
                let gate = gate.clone();
                move || gate.wait_until_idle()
            }),
            session_ids: Arc::new(move || {
                // The same format as a real id, but the same in every run of a seed.
                format!("{:08x}-0000-4000-8000-{seed:012x}", sessions.fetch_add(1, Ordering::Relaxed))
            }),
            ..Config::default()
        };
        // The memory cap, the segment that is being written beyond it, and the disk.
        let retained_max = config.memory_cap_bytes + (1 << 20) + disk_quota_bytes;
        let server = Server::new(config, holders.clone(), context.trace.clone());
        Ok(Self {
            rng,
            context,
            holders,
            server,
            clients: Vec::new(),
            retired: Vec::new(),
            users: Vec::new(),
            legacy_clients: Vec::new(),
            rivals: Vec::new(),
            next_process: 0,
            is_heavy: has_disk,
            has_disk,
            retained_max,
        })
    }

    async fn run(&mut self) -> io::Result<()> {
        self.context.spawn(self.holders.clone().run_pending(self.context.clone()));
        self.server.start().await?;
        // With a disk, start at least two clients: one must remain that can observe that the disk of the other is full.
        let fewest = if self.has_disk { 2 } else { 1 };
        for _ in 0..self.rng.within(fewest..fewest + 2) {
            let client = self.new_client();
            self.clients.push(client);
            self.connect(self.clients.len() - 1, AttachMode::New);
        }
        for number in 0..self.rng.within(0..3) {
            let (name, rng) = (format!("u{number}"), self.rng.fork());
            self.users.push(User::new(name, self.server.clone(), self.context.clone(), rng));
        }
        let steps = self.rng.within(20..80);
        for _ in 0..steps {
            if self.context.trace.has_failed() {
                return Ok(());
            }
            self.step().await?;
            self.replace_ended_clients();
            self.check();
        }
        self.finish().await
    }

    fn new_client(&mut self) -> Rc<RefCell<ModelClient>> {
        let kind = if self.rng.chance(65) { ClientKind::Acknowledges } else { ClientKind::Reference };
        let name = format!("c{}", self.clients.len() + self.retired.len());
        let client = ModelClient::new(name, kind, self.server.clone(), self.context.clone(), self.rng.fork());
        let mut state = client.borrow_mut();
        state.files = ClientFiles::new(self.holders.files_dir(&state.name));
        state.acks_promptly = self.rng.chance(50);
        state.announces_gaps |= self.rng.chance(30);
        if kind == ClientKind::Acknowledges {
            state.retained_max = Some(self.retained_max);
        }
        drop(state);
        client
    }

    /// Connects a client over a link of random quality.
    pub(crate) fn connect(&mut self, client: usize, arrival: AttachMode) -> u32 {
        let quality = LinkQuality::draw(&mut self.rng);
        self.connect_over(client, arrival, quality)
    }

    pub(crate) fn connect_over(&mut self, client: usize, arrival: AttachMode, quality: LinkQuality) -> u32 {
        let (link, ours, theirs) = SimLink::new(quality);
        self.server.accept(theirs);
        // If the answer to the first `initialize` was lost, the client has no session to resume.
        let arrival = if self.clients[client].borrow().session.is_none() { AttachMode::New } else { arrival };
        if arrival == AttachMode::New {
            self.clients[client].borrow_mut().drop_connections(false);
        }
        ModelClient::connect(&self.clients[client], link, ours, arrival)
    }

    /// Replaces clients whose session has ended, and handles sessions that users have just opened.
    pub(crate) fn replace_ended_clients(&mut self) {
        self.users.iter_mut().for_each(User::poll_open);
        for index in 0..self.clients.len() {
            let is_over = {
                let client = self.clients[index].borrow();
                client.refused.is_some() || client.ended
            };
            if is_over {
                let client = self.new_client();
                let old = std::mem::replace(&mut self.clients[index], client);
                if old.borrow().refused.as_deref() == Some("sessionExpired") {
                    self.context.trace.count(Branch::Expired);
                }
                old.borrow_mut().drop_connections(false);
                self.retired.push(old);
                self.connect(index, AttachMode::New);
            }
        }
    }

    /// Checks the invariants that no event reports.
    pub(crate) fn check(&mut self) {
        for client in self.clients.iter().chain(&self.retired) {
            client.borrow_mut().views.values_mut().for_each(ProcessView::check_stdin);
        }
        self.users.iter().flat_map(|user| user.processes.values()).for_each(|user_process| user_process.check());
    }

    /// Polls a condition every 20 ms. Returns false on timeout. Also returns true if the world has failed already.
    pub(crate) async fn until(&mut self, within: Duration, mut is_so: impl FnMut(&mut Self) -> bool) -> bool {
        let deadline = Instant::now() + within;
        loop {
            if is_so(self) || self.context.trace.has_failed() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}
