//! R10: a mistake that waiting cannot fix is reported within half a second, and a wait is announced after one second.
//!
//! [`MISTAKES`] is the list of mistakes; `docs/reference/connection-errors.md` has its messages with measured times. This command writes
//! that page, preferably with a release build on an idle machine:
//!
//! ```sh
//! WRITE_CONNECTION_ERRORS=1 cargo test --release -p exec-server --test integration r10_
//! ```
//!
//! A busy machine can delay any single run. So the shortest time of a few runs counts, and each run also counts the connections it made: a
//! second attempt is a failure regardless of the time.

use std::{env, net::SocketAddr, sync::atomic::AtomicU32};

use crate::prelude::*;

/// The promised time.
const BOUND: Duration = Duration::from_millis(500);

/// The number of runs; the shortest one counts.
const RUNS: u32 = 5;

/// Each mistake with the expected words of its error and the number of connections it may cause.
const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "nothing listens on the port",
        "connection refused; is the server running, and is this its port?",
        |world| world.url(format!("ws://{}", world.closed_port())),
    )
    .tried_twice(),
    Mistake::new("there is no such Unix socket", "is the server running?", |world| {
        world.url(format!("unix://{}/none.sock", world.dir.path().display()))
    })
    .tried_twice(),
    Mistake::new("the host is unknown", "host `no-such-host.invalid` is not found; check the name", |world| {
        world.url("ws://no-such-host.invalid:4000".to_owned())
    }),
    Mistake::new(
        "no token, or a wrong one",
        "token missing or rejected (401); set `--token-file` or `EXEC_SERVER_TOKEN`",
        |world| world.url(format!("ws://{}", world.plain.address())),
    ),
    Mistake::new(
        "a name that the server does not answer to (403)",
        "allow the name there with `--allow-host`",
        |world| world.answering("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"),
    ),
    Mistake::new("a web server without this path (404)", "answered HTTP 404; is it an exec-server?", |world| {
        world.answering("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    }),
    Mistake::new("a redirect", "answered HTTP 302, which points elsewhere; give the final address", |world| {
        world.answering("HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n")
    }),
    Mistake::new("a server that does not speak HTTP", "the answer is not HTTP; is it an exec-server?", |world| {
        world.answering("SSH-2.0-OpenSSH_9.2p1\r\n")
    }),
    Mistake::new("a server that hangs up", "it hung up on the upgrade to WebSocket; is it an exec-server?", |world| {
        world.answering("")
    })
    .tried_twice(),
    Mistake::new(
        "`wss://` to a server without TLS",
        "the answer is not TLS; for a plain server use `ws://`",
        |world| world.tls_url(format!("wss://{}", world.plain.address())),
    ),
    Mistake::new("`ws://` to a server with TLS", "A TLS server needs `wss://`", |world| {
        world.url(format!("ws://{}", world.tls.address()))
    }),
    Mistake::new(
        "a certificate of an authority that is not trusted",
        "an authority that is not trusted here; pass its CA with `--tls-ca`",
        |world| {
            let mut asked = world.url(format!("wss://{}", world.tls.address()));
            asked.args.extend(["--tls-ca".to_owned(), world.others.ca().display().to_string()]);
            asked
        },
    ),
    Mistake::new(
        "no client certificate where one is required",
        "requires a client certificate that it trusts",
        |world| world.tls_url(format!("wss://{}", world.mutual.address())),
    ),
];

struct Mistake {
    what: &'static str,
    words: &'static str,
    make: fn(&World) -> Asked,
    attempts: u32,
}

impl Mistake {
    const fn new(what: &'static str, words: &'static str, make: fn(&World) -> Asked) -> Self {
        Self { what, words, make, attempts: 1 }
    }

    const fn tried_twice(self) -> Self {
        Self { attempts: 2, ..self }
    }
}

/// A command line, and the number of connections it has made so far if the test accepts them.
struct Asked {
    args: Vec<String>,
    attempts: Option<Arc<AtomicU32>>,
}

/// Servers of all kinds.
struct World {
    dir: TempDir,
    ours: Authority,
    others: Authority,
    plain: TestServer,
    tls: TestServer,
    mutual: TestServer,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("make a directory");
        let (ours, others) = (Authority::new(dir.path(), "ours"), Authority::new(dir.path(), "others"));
        let identity = ours.server("server");
        let secure = || TestServer::builder().listen_tls(&identity);
        let (tls, mutual) = (secure().start(), secure().path_arg("--client-ca", &ours.ca()).start());
        Self { dir, ours, others, plain: TestServer::start(), tls, mutual }
    }

    fn url(&self, url: String) -> Asked {
        Asked { args: vec!["--connect".to_owned(), url], attempts: None }
    }

    fn tls_url(&self, url: String) -> Asked {
        let mut asked = self.url(url);
        asked.args.extend(["--tls-ca".to_owned(), self.ours.ca().display().to_string()]);
        asked
    }

    fn closed_port(&self) -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port")
    }

    /// A server that answers every request with this text, closes the connection and counts it. Its thread accepts connections until the
    /// test program ends.
    fn answering(&self, answer: &'static str) -> Asked {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let mut asked = self.url(format!("ws://{}", listener.local_addr().expect("an address")));
        let attempts = Arc::new(AtomicU32::new(0));
        asked.attempts = Some(Arc::clone(&attempts));
        thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.expect("accept");
                attempts.fetch_add(1, Ordering::SeqCst);
                socket.set_read_timeout(Some(DEADLINE)).expect("set a deadline");
                let mut head = Vec::new();
                let mut chunk = [0; 4096];
                while !head.ends_with(b"\r\n\r\n") {
                    match socket.read(&mut chunk) {
                        Ok(read @ 1..) => head.extend_from_slice(&chunk[..read]),
                        Ok(0) | Err(_) => break,
                    }
                }
                socket.write_all(answer.as_bytes()).ok(); // The client may have gone already.
            }
        });
        asked
    }

    fn command(&self, args: &[String]) -> Command {
        let mut command = Command::new(binary());
        for name in ["EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL", "EXEC_SERVER_TOKEN"] {
            command.env_remove(name);
        }
        command.env("HOME", self.dir.path()).env("XDG_CONFIG_HOME", self.dir.path()).arg("ps").args(args);
        command.stdin(Stdio::null());
        command
    }
}

/// Runs a command; returns its output and the time it took.
fn run(mut command: Command) -> (Output, Duration) {
    let began = Instant::now();
    let output = command.output().expect("run exec-server");
    (output, began.elapsed())
}

/// The text for the page, without the address and the paths, which vary.
fn shown(said: &str, world: &World) -> String {
    let said = said.trim_end().strip_prefix("exec-server: ").expect("it says who speaks");
    let (tried, why) = said.strip_prefix("connect to ").and_then(|rest| rest.split_once(": ")).expect("what was tried");
    assert!(!tried.is_empty(), "{said}");
    format!("connect to …: {}", why.replace(&world.dir.path().display().to_string(), "…"))
}

/// The cells of a row of the page.
fn cells(line: &str) -> [&str; 3] {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    cells.try_into().expect("three cells")
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/connection-errors.md")
}

const HEAD: &str = "\
# Connection errors and their times

A mistake that waiting cannot change is reported at once. The times are from the start of `exec-server ps --connect …` to its end; a test holds each
below 0.5 s. Where nothing listens, or what listens hangs up, one more attempt is made after 0.2 s, because the server may just be starting; `--wait DUR` waits longer.

This page is generated: `WRITE_CONNECTION_ERRORS=1 cargo test --release -p exec-server --test integration r10_`.

| mistake | error | time |
|---|---|---|
";

#[test]
fn every_mistake_is_reported_within_half_a_second_without_attempts_in_vain() {
    let world = World::new();
    let mut rows = Vec::new();
    for mistake in MISTAKES {
        let asked = (mistake.make)(&world);
        let mut shortest = Duration::MAX;
        let mut message = String::new();
        for _ in 0..RUNS {
            let before = asked.attempts.as_ref().map_or(0, |attempts| attempts.load(Ordering::SeqCst));
            let (output, took) = run(world.command(&asked.args));
            let said = text(&output.stderr);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(255), 0), "{}: {said}", mistake.what);
            assert!(said.contains(mistake.words), "{}: {said}", mistake.what);
            assert_eq!(said.lines().count(), 1, "{}: {said}", mistake.what);
            if let Some(attempts) = &asked.attempts {
                let made = attempts.load(Ordering::SeqCst) - before;
                assert_eq!(made, mistake.attempts, "{}: connections made", mistake.what);
            }
            message = shown(&said, &world);
            shortest = shortest.min(took);
            if shortest <= BOUND && env::var_os("WRITE_CONNECTION_ERRORS").is_none() {
                break;
            }
        }
        assert!(shortest <= BOUND, "{}: {shortest:?}", mistake.what);
        rows.push((mistake.what, message, shortest));
    }
    if env::var_os("WRITE_CONNECTION_ERRORS").is_some() {
        let lines =
            rows.iter().map(|(what, message, took)| format!("| {what} | {message} | {:.3} s |\n", took.as_secs_f64()));
        fs::create_dir_all(page().parent().expect("a folder")).expect("make the folder");
        fs::write(page(), HEAD.to_owned() + &lines.collect::<String>()).expect("write the page");
    }
    let text = fs::read_to_string(page()).expect("read the page");
    let rest = text.strip_prefix(HEAD).expect("the page begins as the test writes it");
    let written: Vec<[&str; 3]> = rest.lines().map(cells).collect();
    let expected: Vec<[&str; 2]> = rows.iter().map(|(what, message, _)| [*what, message.as_str()]).collect();
    assert_eq!(written.iter().map(|[what, message, _]| [*what, *message]).collect::<Vec<_>>(), expected);
    for [what, _, time] in written {
        let seconds: f64 = time.strip_suffix(" s").and_then(|number| number.parse().ok()).expect("a time");
        assert!(seconds <= BOUND.as_secs_f64(), "{what}: {seconds}");
    }
}

#[test]
fn wait_waits_for_a_server_that_starts_later_and_for_no_permanent_mistake() {
    let world = World::new();
    let socket = world.dir.path().join("later.sock");
    let url = format!("unix://{}", socket.display());
    let wait = ["--wait".to_owned(), "20s".to_owned()];
    let args = [["--connect".to_owned(), url.clone()], wait.clone()].concat();
    let mut waiting = spawn(world.command(&args).stderr(Stdio::piped()));
    // It still waits long after a run without the flag has given up.
    let (given_up, _) = run(world.command(&args[..2]));
    assert_eq!(given_up.status.code(), Some(255));
    assert!(waiting.try_wait().expect("look").is_none(), "it waits");
    let server = TestServer::builder().listen(&url).start();
    let output = finish_child(waiting);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    drop(server);
    let mut asked = world.answering("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    asked.args.extend(wait);
    let (refused, _) = run(world.command(&asked.args));
    assert_eq!(refused.status.code(), Some(255));
    assert_eq!(asked.attempts.expect("counted").load(Ordering::SeqCst), 1, "a permanent mistake is not tried again");
}

#[test]
fn a_wait_is_announced_on_a_terminal_and_on_nothing_else() {
    let world = World::new();
    // The kernel accepts connections into the backlog, and no answer ever comes.
    let mute = TcpListener::bind("127.0.0.1:0").expect("listen");
    let url = format!("ws://{}/", mute.local_addr().expect("an address"));
    let file = format!("[[environments]]\nid = \"mute\"\nurl = \"{url}\"\nconnect_timeout_sec = 2\n");
    fs::create_dir_all(world.dir.path().join("exec-server")).expect("make a folder");
    fs::write(world.dir.path().join("exec-server/environments.toml"), file).expect("write the file");
    let args = ["--connect".to_owned(), "mute".to_owned()];
    let (output, took) = run(world.command(&args));
    let said = text(&output.stderr);
    assert_eq!(said, format!("exec-server: connect to {url}: no connection within 2s\n"));
    assert!(took >= Duration::from_secs(2), "the time of the file counts: {took:?}");
    let screen = pty::run(world.command(&args));
    let announced = format!("\x1b[2mexec-server: connecting to {url}\x1b[0m\r\n");
    assert_eq!(screen, format!("{announced}exec-server: connect to {url}: no connection within 2s\r\n"));
}
