//! Processes on another machine, as if they were children of this program, and through cut links as if these did not
//! happen.
//!
//! A [`Client`] is a *session* with a server, not a socket. It is the same session through every reconnect, and its
//! processes live on the server, whatever becomes of us. A [`Process`] is a handle of one of them: a log of numbered
//! events, a line for its input, and calls. The whole of it in one piece:
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
//!         Event::Closed { .. } => println!("and nothing more will be written"),
//!         Event::Failed(error) => return Err(error),
//!     }
//! }
//! client.end_session().await
//! # }
//! ```
//!
//! The folder `examples` has three programs that a test runs: `run_command`, `agent`, which survives a cut and its own
//! death, and `two_readers`.
//!
//! # Connecting
//!
//! [`Client::connect`] takes a URL, [`Client::spawn`] a [`Launch`], and [`Client::builder`] has everything that can be
//! set.
//!
//! | URL | way |
//! |---|---|
//! | `ws://HOST:PORT` | WebSocket |
//! | `wss://HOST[:PORT]` | the same over TLS: the system's authorities, or [`Tls::ca_file`]; our own certificate by [`Tls::client_cert`] |
//! | `unix:///PATH` | WebSocket on a Unix socket; the kernel vouches for us, no token is needed |
//! | `ssh://[USER@]HOST[:PORT][/PATH-TO-EXEC-SERVER]` | the system's `ssh`, with its configuration, keys, agent and questions; runs `exec-server dial-stdio` there |
//! | `stdio:COMMAND ARGS…` | a program that serves on its standard streams, and ends with the client |
//!
//! A token may be part of the URL, but URLs end up in logs and lists of processes. Better is [`Builder::token`] with
//! [`Token::from_file`]. Neither errors nor `Debug` ever show one.
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
//! Any other way is a [`Connect`](transport::Connect) of one's own, given to [`Builder::open`]; the example `agent` has
//! one.
//!
//! # Starting
//!
//! [`Start`] says what: program and arguments, directory, environment, terminal, limits. Without more it runs in the
//! server's own directory, with the short list of the server's variables (`PATH`, `HOME`, `LANG` and the like), with
//! nothing to read and its two output streams apart. [`Client::start`] starts it once, even if the link is cut in
//! between. Dropping that future calls the start off.
//!
//! # Reading
//!
//! **Events.** [`Process::events`] is a cursor that begins at the first event, [`Process::events_after`] one that
//! begins behind a number. Each sees everything in order, once, replayed or live alike; there may be any number of
//! them. Output that can no longer be had is an [`Event::Gap`] in its place. [`Event::Exited`] tells the exit,
//! [`Event::Closed`] that nothing more comes: a child that the process left behind may write in between.
//!
//! **Bytes.** [`Process::stdout`] and [`Process::stderr`] are `AsyncRead`. Read both at a time, or only one: what a
//! reader that was made has not passed is kept, and holds the process back in the end.
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
//! **The end.** [`Process::wait`] returns when the process has ended and all it wrote was heard. Where nobody else
//! reads, it takes and discards the output, so that waiting alone never blocks a process.
//!
//! **At random.** [`Process::read`] asks the server for output after a number, and takes nothing away.
//!
//! # Writing
//!
//! A process has a standard input if it was started with [`Start::pipe_stdin`] or on a terminal. [`Process::write`]
//! returns when its pipe has every byte; [`Process::stdin`] is the same as `AsyncWrite`, where `shutdown` closes the
//! input. Bytes go in exactly once and in order, through cuts and restarts of the server.
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
//! # When the link is cut
//!
//! Nothing has to be done. The client connects again, with growing pauses, and resumes; cursors go on where they were,
//! writes are settled by their ids, calls that were under way are sent again where that is harmless. What waits for the
//! server meanwhile waits.
//!
//! [`Client::state`], and [`Client::watch_state`] for changes, say how it stands:
//!
//! ```text
//! Connected ──cut──▶ Recovering ──resumed──▶ Connected
//!                        └──refused, or too late──▶ Lost
//! ```
//!
//! - A link that dies without a word is noticed after 30 s. With [`Builder::report_stall_after`] a silence is reported before,
//!   as [`State::Stalled`].
//! - Recovering lasts as long as the session lives on the server (24 hours, or [`Builder::ttl`]), or
//!   [`Builder::recover_for`].
//! - With [`Builder::fail_fast`] calls do not wait for the link; they end with [`Error::Disconnected`] at once.
//! - [`Builder::call_timeout`] bounds every call. Without it a call may last as long as the recovering.
//! - A call that must not happen twice, such as a signal, ends with [`Error::UnknownOutcome`] if it was interrupted.
//! - Lost is final: every call and every handle of the session ends with the same error.
//! - A session that another connection took over is not taken back: that is `Lost`, too.
//!
//! **Coming back in another life.** Keep [`Client::session_id`] and [`Events::position`] in a file. Later:
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
//! An event counts as taken when the next one is asked for. Whoever writes down the position before that loses nothing,
//! whenever it dies.
//!
//! # Dropping
//!
//! Dropping handles ends nothing on the server: a dropped [`Process`] runs on, and a dropped [`Client`] leaves its
//! session to the time-to-live. [`Start::terminate_on_drop`] ends a process with its last handle.
//! [`Process::terminate`] ends it and everything it started, with a grace period or without. [`Client::end_session`]
//! ends all processes of the session; [`Client::close`] leaves in order and ends none.
//!
//! # Errors
//!
//! Branch on [`Error::kind`], and for the server's own errors on [`Error::server_kind`]; texts are for people.
//!
//! | [`ErrorKind`] | means | do |
//! |---|---|---|
//! | `Spawn` | ssh, or a `stdio:` program, did not start or ended before it answered; or no way to start processes here | show the text: it has the next step; trying again rarely helps |
//! | `Connect` | nothing there, or something that is not an exec-server | show the text; [`ConnectFailure`] says whether trying again can help |
//! | `ConnectTimeout` | no connection in time | try again; [`Builder::connect_retry_for`] does |
//! | `InitializeTimeout` | connected, but no answer | is it an exec-server? |
//! | `Unauthorized` | the token is missing or wrong | get the right one; trying again does not help |
//! | `Disconnected` | the link is gone and will not be mended, or [`Builder::fail_fast`] does not wait | the call had no effect; connect anew |
//! | `SessionLost` | the server does not know the session any more: expired, ended, another server | its processes are gone; begin a new session |
//! | `UnknownOutcome` | interrupted, and it may have happened | look ([`Client::list`], [`Process::read`]) before you do it again |
//! | `Decode` | an answer has the wrong shape | a bug, or not an exec-server |
//! | `Protocol` | a broken rule, or a thing that this server cannot do | show the text |
//! | `Server` | the server said no | [`Error::server_kind`]: `programNotFound`, `duplicateProcess`, `unknownProcess` … |
//!
//! # Here and there
//!
//! [`backend::Backend`] and [`backend::Running`] are the traits for code that must not know where it runs.
//! [`backend::Remote`] is a server, [`local::Local`] this very program: the same client and the same server core over
//! memory, so that both behave alike. [`environment::Environment`] picks by name or URL, as the user says in
//! `EXEC_SERVER_URL` or `environments.toml`, and connects at first use:
//!
//! ```no_run
//! use exec_server_client::{Start, environment::Environment};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let Some(environment) = Environment::from_env()? else { return Ok(()) }; // `none`
//! let place = environment.backend().await?;
//! let exit = place.start(Start::new(["make", "test"])).await?.wait().await?;
//! # let _code = exit.code;
//! # Ok(())
//! # }
//! ```
//!
//! **The hook.** Processes must not be children of a program with threads, so a small process makes them; and it has to
//! be forked while there is only one thread. A program that may run them here calls [`local::embed`] first in `main`,
//! before any runtime:
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
//! Not `#[tokio::main]`, which has its threads before the first line of `main`. Without the hook,
//! [`local::Local::start`], and an environment that is local, fail with kind `Spawn`:
//!
//! ```text
//! start `local`: there is nothing to start processes with: call `exec_server_client::local::embed()` first in
//! `main`, or give the path of `exec-server` as `LocalConfig::program`
//! ```
//!
//! A library that does not own `main` gives that path instead. A hook that comes too late says so, too, with the number
//! of threads it found.
//!
//! # Files
//!
//! [`fs::FileSystem`] is the trait for files, wherever they are: [`fs::Remote`] is a server, `fs::Local` this machine. Files
//! of any size pass whole or in blocks; a write may insist on the state of a file that was read. [`cp::copy`] copies files
//! and trees between two places, goes on where it was interrupted, and trusts neither place:
//!
//! ```no_run
//! # #[cfg(feature = "local")]
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use exec_server_client::{Client, cp, fs};
//!
//! let client = Client::connect("ssh://build-host").await?;
//! let source = cp::Place { files: Arc::new(fs::Remote::new(client)), path: "/srv/results".into() };
//! let target = cp::Place { files: Arc::new(fs::Local::new()), path: "/tmp/results".into() };
//! let report = cp::copy(&source, &target, true, &cp::Unwatched).await?;
//! println!("{} files", report.files);
//! # Ok(())
//! # }
//! ```
//!
//! # HTTP
//!
//! [`Client::http_request`] and [`Client::http_stream`] make requests from the server's host and network; see [`http`]. Dropping
//! what was not read to its end calls the request off.
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
//! # Memory and back-pressure
//!
//! Nothing here grows with what a process writes. The server sends at most a window (4 MiB) beyond what was taken; the
//! slowest cursor of a handle decides what that is. Beyond it the output waits on the server, 16 MiB in memory, and
//! then the process waits, as one that writes into a full pipe does. So: read what you open, drop what you do not read,
//! and start noisy processes that nobody needs with `Overflow::DropOldest` ([`Start::overflow`]). A handle without any
//! cursor holds its process back in the same way; [`Process::wait`] does not.
//!
//! Behind the last cursor 1 MiB of a process stays in memory for cursors that come late; older output is read back from
//! the server. Input waits in a line of at most 8 MiB or 256 writes; a full line makes [`Process::write`] wait. What a
//! hostile server sends is bounded in the same way: one that passes its window, skips numbers or breaks the framing
//! fails the process, or the session, with an error.
//!
//! # Servers of the reference
//!
//! [`Client::server`] says what is at the other end. Against a server without our additions the client keeps to that
//! server's rules, and refuses with [`Error::Protocol`] what would be ignored there.
//!
//! | [`Generation`] | known by | what is different |
//! |---|---|---|
//! | `Current` | `capabilities.ack` | nothing |
//! | `Reference` (S and H) | a session, no `ack` | a cut can be mended for 25 s; what the server dropped meanwhile is a gap; no closing of stdin, resize, grace period, time limits, list or second readers; only `interrupt` as a signal, and on S none. S forgets write ids: a write that a cut interrupted ends with `UnknownOutcome` |
//! | `V0` | a protocol version, no session | no resume: a cut is `Lost`; nothing can be read back; no signals; input only on a terminal; of the environment only what [`Start::env`] sets |

#![warn(missing_docs)]

pub mod backend;
mod backoff;
mod client;
pub mod cp;
pub mod environment;
pub mod error;
pub mod fs;
mod hearing;
pub mod http;
mod link;
mod links;
#[cfg(feature = "local")]
pub mod local;
mod process;
pub mod requests;
mod routes;
mod session;
pub mod transport;

pub use backoff::Backoff;
pub use client::{Attach, Builder, Client};
pub use error::{ConnectFailure, Error, ErrorKind};
pub use exec_server_protocol as protocol;
pub use process::{
    Chunk, Events, Output, Process, Read, Stdin,
    event::{Event, Exit, Totals},
    start::Start,
};
pub use session::{Generation, ServerDescription, State};
pub use transport::{Launch, Target, Tls, Token};

/// A word that nobody else will think of: 16 letters and digits.
pub(crate) fn random_word() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 16];
    // Without randomness no token could have been made either; a clash is refused by the server.
    getrandom::fill(&mut bytes).ok();
    bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect()
}
