//! Runs processes on another machine as if they were children of this program, and hides cut connections.
//!
//! A [`Client`] is a *session* with a server, not a socket. It keeps the same session through every reconnect. The
//! processes of a session live on the server and outlive this program. A [`Process`] is a handle to one of them: it has
//! a log of numbered events, a queue for stdin, and methods to signal, terminate and inspect the process. A complete
//! example:
//!
//! ```no_run
//! use exec_server_client::{Client, Event, Start};
//!
//! # async fn run() -> Result<(), exec_server_client::Error> {
//! let client = Client::connect("ssh://build-host").await?;
//! let process = client.start(Start::new(["make", "-j8"]).cwd("/src/project")).await?;
//! let mut events = process.events();
//! while let Some(event) = events.next().await {
//!     match event {
//!         Event::Output { stream, bytes, .. } => println!("{stream:?}: {} bytes", bytes.len()),
//!         Event::Gap { bytes, .. } => println!("{bytes:?} bytes are gone"),
//!         Event::Exited { exit, .. } => println!("exit code {}", exit.code),
//!         Event::Closed { .. } => println!("no more output"),
//!         Event::Failed(error) => return Err(error),
//!     }
//! }
//! client.end_session().await
//! # }
//! ```
//!
//! Three example programs in the folder `examples` are run by a test: `run_command`, `agent` (survives a cut connection
//! and its own death) and `two_readers`.
//!
//! # Connecting
//!
//! [`Client::connect`] takes a URL. [`Client::spawn`] takes a [`Launch`], a program that serves on its stdin and
//! stdout. [`Client::builder`] gives access to every setting.
//!
//! | URL | transport |
//! |---|---|
//! | `ws://HOST:PORT` | WebSocket |
//! | `wss://HOST[:PORT]` | WebSocket over TLS. Trusts the system's certificate authorities, or [`Tls::ca_file`]. [`Tls::client_cert`] sets a client certificate |
//! | `unix:///PATH` | WebSocket over a Unix socket. The server identifies the client by its uid, so no token is needed |
//! | `ssh://[USER@]HOST[:PORT][/PATH-TO-EXEC-SERVER]` | the system's `ssh` with its configuration, keys, agent and prompts; runs `exec-server dial-stdio` on the host |
//! | `stdio:COMMAND ARGS…` | a program that serves on its stdin and stdout, and ends with the client |
//!
//! A URL may contain a token, but URLs end up in logs and process lists. Prefer [`Builder::token`] with
//! [`Token::from_file`]. Neither errors nor `Debug` output ever contain a token.
//!
//! ```no_run
//! use std::time::Duration;
//! use exec_server_client::{Client, Tls, Token, protocol::initialize::Ttl};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder()
//!     .name("nightly")
//!     .token(Token::from_file("build.token")?)
//!     .tls(Tls::default().ca_file("build-ca.pem"))
//!     .connect_timeout(Duration::from_secs(5))
//!     .ttl(Ttl::Ms(3_600_000))
//!     .connect("wss://build.example:4000")
//!     .await?;
//! # client.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! For any other transport, implement [`Connect`](transport::Connect) and pass it to [`Builder::open`]. The example
//! `agent` does this.
//!
//! # Starting
//!
//! [`Start`] describes the process: program and arguments, working directory, environment, terminal, limits. By default
//! the process runs in the server's default directory, with a short list of the server's variables (`PATH`, `HOME`,
//! `LANG` and the like), with empty stdin, and with stdout and stderr as separate streams. [`Client::start`] starts the
//! process exactly once, even if the connection is cut during the call. Dropping the future of [`Client::start`]
//! cancels the start.
//!
//! # Reading
//!
//! **Events.** [`Process::events`] is a cursor that begins at the first event. [`Process::events_after`] begins after a
//! given sequence number. Each cursor sees every event once and in order, whether the event is replayed or live. A
//! process can have any number of cursors. Output that the server no longer has appears as an [`Event::Gap`] in its
//! place. [`Event::Exited`] carries the exit status. [`Event::Closed`] is the last event. Output can still arrive
//! between the two, from a child that the process left behind.
//!
//! **Bytes.** [`Process::stdout`] and [`Process::stderr`] implement `AsyncRead`. Read both concurrently, or create only
//! one of them. The client keeps the output that an existing reader has not read yet. A reader that is not read
//! eventually blocks the process.
//!
//! ```no_run
//! use exec_server_client::{Client, Start};
//! use tokio::io::AsyncReadExt as _;
//!
//! # async fn run(client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let process = client.start(Start::new(["uname", "-a"])).await?;
//! let mut text = String::new();
//! process.stdout().read_to_string(&mut text).await?;
//! assert_eq!(process.wait().await?.code, 0);
//! # Ok(())
//! # }
//! ```
//!
//! **Exit.** [`Process::wait`] returns when the process has ended and all of its output has arrived. If there is no
//! other reader, it consumes and discards the output, so that waiting alone never blocks the process.
//!
//! **Random access.** [`Process::read`] asks the server for output after a given sequence number. It consumes nothing.
//!
//! # Writing
//!
//! A process has a stdin if it was started with [`Start::pipe_stdin`] or on a terminal. [`Process::write`] returns when
//! every byte is in the pipe. [`Process::stdin`] does the same as an `AsyncWrite`, whose `shutdown` closes stdin. Bytes
//! arrive exactly once and in order, even if the connection is cut or the server restarts.
//!
//! ```no_run
//! use exec_server_client::{Client, Start};
//!
//! # async fn run(client: Client) -> Result<(), exec_server_client::Error> {
//! let process = client.start(Start::new(["sort"]).pipe_stdin(true)).await?;
//! process.write("b\na\n").await?;
//! process.close_stdin().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # When the connection is cut
//!
//! The caller does not have to do anything. The client reconnects with growing pauses and resumes the session. Cursors
//! continue where they were. Interrupted writes are sent again, and their ids keep the server from writing them twice.
//! Interrupted calls are sent again if a repetition is harmless. Everything that needs the server waits until the
//! client has reconnected.
//!
//! [`Client::state`] returns the state of the connection, and [`Client::watch_state`] reports its changes:
//!
//! ```text
//! Connected ──cut──▶ Recovering ──resumed──▶ Connected
//!                        └──refused, or too late──▶ Lost
//! ```
//!
//! - A TCP connection that dies without a close is noticed after 30 to 40 s. [`Builder::report_stall_after`] reports a
//!   silent connection earlier, as [`ConnectionState::Stalled`].
//! - The client tries to reconnect for as long as the server keeps the session (24 hours, or [`Builder::ttl`]), or for
//!   [`Builder::recover_for`].
//! - With [`Builder::fail_fast`], calls do not wait for a reconnect. They fail at once with [`Error::Disconnected`].
//! - [`Builder::call_timeout`] bounds every call except writes to stdin. Without it, a call can last as long as the
//!   reconnect.
//! - An interrupted call that must not happen twice, such as a signal, fails with [`Error::UnknownOutcome`].
//! - `Lost` is final: every call and every handle of the session fails with the same error.
//! - The client does not take back a session that another connection has taken over. This is also `Lost`. Over `ssh://`
//!   and `stdio:` the client cannot recognize the takeover, and takes the session back.
//!
//! **Resuming from another process.** Store [`Client::session_id`] and [`Events::position`] in a file. Later:
//!
//! ```no_run
//! use exec_server_client::{Attach, Client, protocol::SessionId};
//!
//! # async fn run(session_id: SessionId, position: u64) -> Result<(), exec_server_client::Error> {
//! let client = Client::builder().resume(session_id).takeover(true).connect("ssh://build-host").await?;
//! let process = client.attach(&"job".into(), Attach { after: position, ..Attach::default() }).await?;
//! let mut events = process.events_after(position);
//! # Ok(())
//! # }
//! ```
//!
//! An event counts as consumed when the reader asks for the next one. A program that stores the position before it asks
//! for the next event loses nothing, whenever it dies.
//!
//! # Dropping
//!
//! Dropping a handle ends nothing on the server: the process of a dropped [`Process`] keeps running, and the session of
//! a dropped [`Client`] lives until its time-to-live is over. [`Start::terminate_on_drop`] ends a process when its last
//! handle is dropped. [`Process::terminate`] ends a process and everything that it started, with or without a grace
//! period. [`Client::end_session`] ends all processes of the session. [`Client::close`] closes the connection cleanly
//! and ends no process.
//!
//! # Errors
//!
//! Branch on [`Error::kind`], and on [`Error::server_kind`] for errors that the server reports. The texts are for
//! people.
//!
//! | [`ErrorKind`] | meaning | what to do |
//! |---|---|---|
//! | `Spawn` | `ssh` or a `stdio:` program did not start, or it ended before it answered; or this program has no means to start local processes | show the text, which names the next step; a retry rarely helps |
//! | `Connect` | the server cannot be reached, or the peer is not an exec-server | show the text; [`ConnectFailure`] says whether a retry can help |
//! | `ConnectTimeout` | no connection in time | retry; [`Builder::connect_retry_for`] does this |
//! | `InitializeTimeout` | connected, but no answer to `initialize` | check that the peer is an exec-server |
//! | `Unauthorized` | the token is missing or wrong | get the right token; a retry does not help |
//! | `Disconnected` | the connection is gone and will not be restored, or [`Builder::fail_fast`] does not wait | the call was not sent, or a repetition is harmless; with `fail_fast` call again, otherwise create a new client |
//! | `SessionLost` | the server no longer knows the session: it expired, was ended, or belongs to another server; or another client has taken it over | begin a new session; its processes are gone, except after a takeover |
//! | `UnknownOutcome` | the call was interrupted and may have taken effect | check with [`Client::list`] or [`Process::read`] before you repeat it |
//! | `InputBroken` | the server refused a write to stdin and accepted a later one | the input has a hole; terminate the process |
//! | `Decode` | an answer has the wrong shape | a bug, or the peer is not an exec-server |
//! | `Protocol` | a peer broke the protocol, or the server does not support the request | show the text |
//! | `Server` | the server refused the request | [`Error::server_kind`]: `programNotFound`, `duplicateProcess`, `unknownProcess` … |
//!
//! # Local and remote
//!
//! [`local::Local`] runs processes on this machine, with the same client and the same server core connected in memory,
//! so local and remote processes behave alike. [`environment::Environment`] chooses between a server and this machine
//! by the name or URL that the user sets in `EXEC_SERVER_URL` or `environments.toml`, and connects on first use. Either
//! way the result is a [`Client`]:
//!
//! ```no_run
//! use exec_server_client::{Start, environment::Environment};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let Some(environment) = Environment::from_env()? else { return Ok(()) }; // `none`
//! let backend = environment.backend().await?;
//! let exit = backend.client().start(Start::new(["make", "test"])).await?.wait().await?;
//! # let _code = exit.code;
//! # Ok(())
//! # }
//! ```
//!
//! **The `embed` hook.** A program with threads must not fork, so a small helper process, the spawner, forks instead.
//! The spawner itself must be forked while the program has only one thread. A program that may run processes locally
//! therefore calls [`local::embed`] as the first statement of `main`, before it creates a runtime:
//!
//! ```no_run
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     exec_server_client::local::embed()?;
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         // …
//!         Ok(())
//!     })
//! }
//! ```
//!
//! Do not use `#[tokio::main]`: it creates threads before the first line of `main`. Without the hook,
//! [`local::Local::start`] and a local environment fail with an error of kind `Spawn`:
//!
//! ```text
//! start `local`: no process spawner: call `exec_server_client::local::embed()` first in `main`, or set
//! `LocalConfig::program` to the path of `exec-server`
//! ```
//!
//! A library that does not own `main` sets `LocalConfig::program` instead. If `embed` is called too late, it fails
//! with an error that names the number of threads.
//!
//! # Files
//!
//! [`fs::FileSystem`] is the trait for file access: [`fs::RemoteFiles`] works on a server, `fs::LocalFiles` on this
//! machine. Files of any size are transferred whole or in blocks. A write can be made conditional on the file being
//! unchanged since it was read. [`cp::copy`] copies files and trees between two file systems. It resumes an interrupted
//! copy, and it trusts neither side:
//!
//! ```no_run
//! # #[cfg(feature = "local")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use exec_server_client::{Client, cp, fs};
//!
//! let client = Client::connect("ssh://build-host").await?;
//! let source = cp::CopyEndpoint { files: Arc::new(fs::RemoteFiles::new(client)), path: "/srv/results".into() };
//! let target = cp::CopyEndpoint { files: Arc::new(fs::LocalFiles::new()), path: "/tmp/results".into() };
//! let report = cp::copy(&source, &target, true, &cp::NoObserver).await?;
//! println!("{} files", report.files);
//! # Ok(())
//! # }
//! ```
//!
//! # HTTP
//!
//! [`Client::http_request`] and [`Client::http_stream`] send requests from the server's host and network; see [`http`].
//! Dropping a response before its body is read to the end cancels the request.
//!
//! ```no_run
//! use exec_server_client::{Client, http::Request};
//!
//! # async fn run(client: Client) -> Result<(), exec_server_client::Error> {
//! let request = Request::new("GET", "http://intranet.example/report").header("accept", "text/csv");
//! let mut response = client.http_stream(&request).await?;
//! while let Some(piece) = response.body.chunk().await? {
//!     println!("{} bytes", piece.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Memory and backpressure
//!
//! The client's memory does not grow with the output of a process. The server sends at most one window (16 MiB) beyond
//! what was consumed. The slowest cursor of a handle decides how much counts as consumed. Further output stays on the
//! server, up to 20 MiB in memory. After that the process blocks, as if it wrote to a full pipe. Therefore read every
//! cursor that you open, drop cursors that you do not read, and start noisy processes whose output is not needed with
//! `Overflow::DropOldest` ([`Start::overflow`]). A handle without a cursor blocks its process in the same way, except
//! while a call of [`Process::wait`] is pending.
//!
//! The client keeps up to 1 MiB behind the slowest cursor of a process in memory for cursors that are created later.
//! Older output is read back from the server. Stdin is queued up to 8 MiB or 256 writes; when the queue is full,
//! [`Process::write`] waits. The same bounds protect the client from a hostile server: a server that exceeds its
//! window, skips sequence numbers or breaks the framing fails the process or the session with an error.
//!
//! # Older servers
//!
//! The client also works with servers of older generations of the protocol, which lack some features. [`compat`] lists
//! the differences, and [`Client::server`] describes the server.

#![warn(missing_docs)]

/// Defines the methods of a builder that only set a field. One line per method: `name(argument: Type) => field = value;`.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($argument:ident: $type:ty) => $($field:ident).+ = $value:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(mut self, $argument: $type) -> Self {
            self.$($field).+ = $value;
            self
        }
    )*};
}

mod backoff;
mod client;
pub mod compat;
pub mod cp;
pub mod environment;
pub mod error;
pub mod fs;
pub mod http;
mod link_state;
#[cfg(feature = "local")]
pub mod local;
mod notifications;
mod process;
mod routes;
mod server_link;
mod session;
pub mod transport;

pub use backoff::Backoff;
pub use client::{Attach, Builder, Client};
pub use compat::Generation;
pub use error::{ConnectFailure, Error, ErrorKind};
pub use exec_server_protocol::{self as protocol, method::Request, requests};
pub use process::{
    Chunk, Events, Output, Process, ReadResult, Stdin,
    event::{Event, Exit, Totals},
    start::Start,
};
pub use session::{ConnectionState, ServerDescription};
pub use transport::{Launch, Target, Tls, Token};

/// A random word of 16 lower-case letters and digits, for names that must not collide.
pub(crate) fn random_word() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 16];
    // If the system has no randomness, the word is constant. The server then refuses a duplicate process or handle, but takes
    // a write with the id of another client's write for a repeat.
    getrandom::fill(&mut bytes).ok();
    bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect()
}
