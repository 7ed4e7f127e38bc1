//! Tests of the client against a scripted server. A test plays the server by hand: a [`Connect`] delivers each connection to a [`Door`] as
//! a [`Peer`]. No code of the real server is involved.
//!
//! All tests run on the paused clock. A wait that nothing can end reaches [`DEADLINE`] at once, so a hang becomes a failure.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic, in its helpers too")]

mod acks;
mod adopting_server;
mod calls;
mod copies;
mod distant_copies;
mod early_start;
mod event_text;
mod events;
mod flood;
mod frames;
mod handshake;
mod hostile;
mod hostile_files;
mod hostile_numbers;
mod http;
mod input;
mod other_sessions;
mod peer;
mod prelude;
mod recovery;
mod reference;
mod silent_link;
mod v0;

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use exec_server_client::{
    Builder, Client, ConnectFailure, ConnectionState, Error, Process, Start,
    transport::{BoxFuture, Connect, Connection},
};
use exec_server_rpc::{Framing, WebSocketRole, memory};
use tokio::{sync::mpsc, time::timeout};

pub(crate) use event_text::{collect, error_kind, next, spell, take};
pub(crate) use peer::{Kind, Peer};

/// The session id of every scripted server.
pub(crate) const SESSION: &str = "session-1";

/// Longer than any wait of the client itself: a session lives 30 days at most.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40 * 24 * 60 * 60);

const LINE_MAX: usize = 96 << 20;

/// The outcome of the next attempts to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Accept,
    Refuse,
    Hang,
}

#[derive(Debug)]
struct Shared {
    mode: Mutex<Mode>,
    attempts: AtomicUsize,
    capacity: usize,
    near: Framing,
    far: Framing,
    /// Whether links report how long the peer has been silent, as TCP does.
    has_probe: bool,
}

/// The transport to the scripted server.
#[derive(Debug)]
pub(crate) struct Scripted {
    shared: Arc<Shared>,
    peers: mpsc::Sender<Peer>,
}

/// Where connections arrive on the server side.
#[derive(Debug)]
pub(crate) struct Door {
    shared: Arc<Shared>,
    peers: mpsc::Receiver<Peer>,
}

impl Connect for Scripted {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, Error>> {
        Box::pin(async {
            self.shared.attempts.fetch_add(1, Ordering::Relaxed);
            let mode = *self.shared.mode.lock().unwrap();
            match mode {
                Mode::Accept => {}
                Mode::Refuse => {
                    let reason = "refused by the script".to_owned();
                    return Err(Error::Connect {
                        address: self.address(),
                        failure: ConnectFailure::NotListening,
                        reason,
                    });
                }
                Mode::Hang => pending().await,
            }
            let (mut near, far) = memory(self.shared.capacity);
            let peer = Peer::new(far, self.shared.far);
            near.probe = self.shared.has_probe.then(|| peer.probe());
            if self.peers.send(peer).await.is_err() {
                let reason = "the test is over".to_owned();
                return Err(Error::Connect { address: self.address(), failure: ConnectFailure::Permanent, reason });
            }
            Ok(Connection { stream: near, framing: self.shared.near, carrier: None })
        })
    }

    fn address(&self) -> String {
        "scripted".to_owned()
    }
}

impl Door {
    /// The next connection.
    pub(crate) async fn accept(&mut self) -> Peer {
        within(self.peers.recv()).await.expect("the client connects")
    }

    /// The next connection after its handshake, and the params of `initialize`.
    pub(crate) async fn welcome(&mut self, kind: Kind) -> (Peer, serde_json::Value) {
        let mut peer = self.accept().await;
        let params = peer.initialize(kind).await;
        (peer, params)
    }

    /// Refuses every attempt from now on.
    pub(crate) fn refuse(&self) {
        *self.shared.mode.lock().unwrap() = Mode::Refuse;
    }

    /// Makes every attempt from now on hang.
    pub(crate) fn hang(&self) {
        *self.shared.mode.lock().unwrap() = Mode::Hang;
    }

    /// Accepts attempts again.
    pub(crate) fn reopen(&self) {
        *self.shared.mode.lock().unwrap() = Mode::Accept;
    }

    /// The number of attempts to connect so far.
    pub(crate) fn attempts(&self) -> usize {
        self.shared.attempts.load(Ordering::Relaxed)
    }
}

/// A server with newline framing.
pub(crate) fn scripted() -> (Scripted, Door) {
    with_framing(1 << 20, Framing::Lines { max: LINE_MAX }, Framing::Lines { max: LINE_MAX })
}

/// A server with newline framing on pipes of `capacity` bytes. The client accepts lines of at most `max` bytes.
pub(crate) fn narrow(capacity: usize, max: usize) -> (Scripted, Door) {
    with_framing(capacity, Framing::Lines { max }, Framing::Lines { max: LINE_MAX })
}

/// A server with WebSocket framing, after the upgrade.
pub(crate) fn websocket() -> (Scripted, Door) {
    let framing = |role| Framing::WebSocket { role, max: LINE_MAX };
    with_framing(1 << 20, framing(WebSocketRole::Client), framing(WebSocketRole::Server))
}

/// A server whose links can die without a close.
pub(crate) fn probed() -> (Scripted, Door) {
    let framing = Framing::Lines { max: LINE_MAX };
    let (mode, attempts) = (Mutex::new(Mode::Accept), AtomicUsize::new(0));
    behind(Shared { mode, attempts, capacity: 1 << 20, near: framing, far: framing, has_probe: true })
}

fn with_framing(capacity: usize, near: Framing, far: Framing) -> (Scripted, Door) {
    let (mode, attempts) = (Mutex::new(Mode::Accept), AtomicUsize::new(0));
    behind(Shared { mode, attempts, capacity, near, far, has_probe: false })
}

fn behind(shared: Shared) -> (Scripted, Door) {
    let shared = Arc::new(shared);
    let (peers_tx, peers_rx) = mpsc::channel(64);
    (Scripted { shared: Arc::clone(&shared), peers: peers_tx }, Door { shared, peers: peers_rx })
}

/// A client of a scripted server, its connection, and the door for later connections.
pub(crate) async fn connect(kind: Kind) -> (Client, Peer, Door) {
    connect_with(Client::builder(), kind).await
}

/// Like [`connect`], with options.
pub(crate) async fn connect_with(builder: Builder, kind: Kind) -> (Client, Peer, Door) {
    connect_by(scripted(), builder, kind).await
}

/// Like [`connect_with`], over this transport.
pub(crate) async fn connect_by(way: (Scripted, Door), builder: Builder, kind: Kind) -> (Client, Peer, Door) {
    let (way, mut door) = way;
    let (client, (peer, _)) = both(builder.open(way), door.welcome(kind)).await;
    (client.unwrap(), peer, door)
}

/// Like [`connect`], with the started process `p`.
pub(crate) async fn running(kind: Kind) -> (Client, Peer, Door, Process) {
    let (client, mut peer, door) = connect(kind).await;
    let process = start(&client, &mut peer, named("p")).await;
    (client, peer, door, process)
}

/// Like [`connect`], with the started processes `p` and `q`.
pub(crate) async fn running_two(kind: Kind) -> (Client, Peer, Door, [Process; 2]) {
    let (client, mut peer, door, process) = running(kind).await;
    let other = start(&client, &mut peer, named("q")).await;
    (client, peer, door, [process, other])
}

/// Starts a process, and plays the server's side of the start.
pub(crate) async fn start(client: &Client, peer: &mut Peer, start: Start) -> Process {
    let (process, _) = both(client.start(start), peer.serve_start()).await;
    process.unwrap()
}

/// A process with this name.
pub(crate) fn named(id: &str) -> Start {
    Start::new(["program"]).id(id).pipe_stdin(true)
}

/// Waits for something that must happen before the deadline.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("it happens before the deadline")
}

/// Runs both sides of a conversation to their ends.
pub(crate) async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    within(async { tokio::join!(a, b) }).await
}

/// Awaits something while the server's side goes on without an end.
pub(crate) async fn during<T>(serving: impl Future<Output = ()>, happening: impl Future<Output = T>) -> T {
    tokio::select! {
        done = within(happening) => done,
        () = serving => panic!("the server's side has ended"),
    }
}

/// Waits until the client has such a state.
pub(crate) async fn until(client: &Client, is_met: impl FnMut(&ConnectionState) -> bool) -> ConnectionState {
    within(client.watch_state().wait_for(is_met)).await.unwrap().clone()
}

pub(crate) async fn is_connected(client: &Client) {
    until(client, |state| matches!(state, ConnectionState::Connected)).await;
}

/// Waits until the client has lost its session, and returns the error.
pub(crate) async fn lost(client: &Client) -> Error {
    let state = until(client, |state| matches!(state, ConnectionState::Lost { .. })).await;
    let ConnectionState::Lost { error } = state else { panic!("{state:?}") };
    error
}

/// Runs all tasks until they are idle.
pub(crate) async fn settle() {
    timeout(Duration::from_millis(1), pending::<()>()).await.unwrap_err();
}

/// Whether a future is still pending when all tasks are idle.
pub(crate) async fn is_pending(future: impl Future) -> bool {
    timeout(Duration::from_millis(1), future).await.is_err()
}
