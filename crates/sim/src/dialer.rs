//! Connects the real client to the server of a world over simulated links of random quality.
//!
//! Keeps the links that a client has dialled. The client recovers from a cut by dialling again, as over a network.

use exec_server_client::transport::{BoxFuture, Connect, Connection};

use crate::{
    link::{CutKind, Direction},
    prelude::*,
    wire::FRAMING,
};

/// Opens links for one client. Clones share the same state.
#[derive(Clone)]
pub struct Dialer {
    name: String,
    server: Arc<Server>,
    trace: Trace,
    state: Arc<Mutex<DialerState>>,
}

struct DialerState {
    rng: Rng,
    /// New links have no faults: the world is in its final phase.
    is_good: bool,
    /// The link dialled last.
    current: Option<SimLink>,
    /// The link on which the client last had its session.
    up: Option<SimLink>,
    dialled: u32,
    started_at: Instant,
}

impl Dialer {
    /// A dialer that has not dialled yet.
    pub fn new(name: String, server: Arc<Server>, trace: Trace, rng: Rng) -> Self {
        let state =
            DialerState { rng, is_good: false, current: None, up: None, dialled: 0, started_at: Instant::now() };
        Self { name, server, trace, state: Arc::new(Mutex::new(state)) }
    }

    /// From now on new links have no faults, and the current link is fast.
    pub fn repair(&self) {
        let mut state = self.state.lock();
        state.is_good = true;
        if let Some(link) = &state.current {
            link.repair();
        }
    }

    /// How many links were dialled.
    pub fn dialled(&self) -> u32 {
        self.state.lock().dialled
    }

    /// The client has its session on the current link.
    pub fn mark_up(&self) {
        let mut state = self.state.lock();
        state.up = state.current.clone();
    }

    /// The client starts with a new session.
    pub fn reset_session(&self) {
        let mut state = self.state.lock();
        (state.up, state.started_at) = (None, Instant::now());
    }

    /// When the client last received anything on a link that had its session.
    pub fn last_received(&self) -> Instant {
        let state = self.state.lock();
        state.up.as_ref().map_or(state.started_at, SimLink::last_received)
    }

    /// Applies a random fault to the current link.
    pub fn apply_fault(&self, rng: &mut Rng) {
        let Some(link) = self.state.lock().current.clone() else { return };
        let direction = if rng.chance(50) { Direction::Up } else { Direction::Down };
        let (bytes, rest) = (rng.within(1..3000), Duration::from_millis(rng.within(10..6000)));
        let what = match rng.within(0..7) {
            0 | 1 => {
                let cut = if rng.chance(50) { CutKind::AtOnce } else { CutKind::AfterDelivery };
                self.trace.count(Branch::CutBetween);
                link.cut(cut);
                format!("{cut:?}")
            }
            2 | 3 => {
                self.trace.count(Branch::CutInside);
                link.cut_after(direction, bytes);
                format!("cut after {bytes} bytes {direction:?}")
            }
            4 => {
                self.trace.count(Branch::HalfOpen);
                link.half_open();
                "half-open".to_owned()
            }
            5 => {
                let pace = rng.chance(70).then(|| *rng.pick(&[50_u64, 500, 5000]));
                link.pace(Direction::Down, pace);
                format!("pace {pace:?}")
            }
            _ => {
                self.trace.count(Branch::Stall);
                link.stall(direction, Instant::now() + rest);
                format!("{direction:?} stalls for {rest:?}")
            }
        };
        self.trace.line(format_args!("{} link: {what}", self.name));
    }

    fn dial(&self) -> Result<Connection, Error> {
        let mut state = self.state.lock();
        state.dialled += 1;
        let number = state.dialled;
        let quality = if state.is_good { LinkQuality::GOOD } else { LinkQuality::draw(&mut state.rng) };
        let (link, ours, theirs) = SimLink::new(quality);
        // Some links are cut soon, some are half-open from the start.
        match state.rng.within(0..100) {
            _ if state.is_good => {}
            0..8 => {
                let bytes = state.rng.within(1..2000);
                let direction = if state.rng.chance(50) { Direction::Up } else { Direction::Down };
                link.cut_after(direction, bytes);
            }
            8..11 => link.half_open(),
            _ => {}
        }
        let is_up = self.server.accept(theirs);
        self.trace.line(format_args!("{} dials link {number}: {}", self.name, if is_up { "open" } else { "refused" }));
        if !is_up {
            return Err(Error::Connect {
                address: self.address(),
                failure: exec_server_client::ConnectFailure::NotListening,
                reason: "nobody listens".to_owned(),
            });
        }
        state.current = Some(link);
        Ok(Connection { stream: ours, framing: FRAMING, carrier: None })
    }
}

impl Connect for Dialer {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>> {
        Box::pin(async { self.dial() })
    }

    fn address(&self) -> String {
        "sim:".to_owned()
    }
}
