//! S30: text from another machine never reaches a terminal with control characters, C1 codes or bidirectional marks; this includes errors.
//! A server that adds such characters to every text is used with every command that connects to a server, each on a real pty. The output of
//! programs and files is excluded, because it is meant to be raw.

use crate::prelude::*;

/// Colours, a title, C1 codes, a cleared screen, a forged line of ours, bidirectional and invisible marks.
const LIE: &str = "LIE\x1b[31m\x1b]0;title\x07\u{9b}2J\x7f\x08\r\nexec-server: forged\u{202e}\u{2066}\u{200f}\u{61c}";

/// Text fields of results that are shown. Those that the client sends back to the server are restored first.
const KEYS: &str = "\
    processId sessionId argv cwd signal message failure fileName linkTarget target text path uri name version";

/// Appends the lie to every text that is shown.
fn lie(value: &mut Value, is_shown: bool) {
    match value {
        Value::String(text) if is_shown => text.push_str(LIE),
        Value::Array(items) => items.iter_mut().for_each(|item| lie(item, is_shown)),
        Value::Object(fields) => {
            for (key, field) in fields.iter_mut() {
                // A client would not recognize the process that it started itself under a changed id.
                let is_own = key == "processId" && *field != "runs" && *field != "ended";
                lie(field, KEYS.split(' ').any(|shown| shown == key) && !is_own);
            }
        }
        _ => {}
    }
}

/// Removes the lie again before a message reaches the real server.
fn undo(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.replace(LIE, ""),
        Value::Array(items) => items.iter_mut().for_each(undo),
        Value::Object(fields) => fields.values_mut().for_each(undo),
        _ => {}
    }
}

/// A user, a server with one running and one ended process, and files.
struct World {
    home: TempDir,
    server: TestServer,
    _owner: Client,
}

impl World {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("make a directory");
        fs::create_dir(home.path().join("files")).expect("make a directory");
        fs::write(home.path().join("files/a"), "needle\n").expect("write a file");
        std::os::unix::fs::symlink("a", home.path().join("files/link")).expect("make a link");
        let server = TestServer::start();
        let mut owner = server.connect();
        let capabilities = json!({"ack": true, "gap": true, "concurrent": true});
        owner.initialize_with(json!({"clientName": "owner", "capabilities": capabilities, "ttlMs": "none"}));
        owner.ok("process/start", start_params("runs", &["sleep", "1000"]));
        owner.ok("process/start", start_params("ended", &["sh", "-c", "kill -TERM $$"]));
        let mut watcher = server.client();
        wait_for("its end", || watcher.listed("ended")["closed"] == true);
        Self { home, server, _owner: owner }
    }

    fn command(&self, url: &str, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        for name in ["EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL", "EXEC_SERVER_TOKEN"] {
            command.env_remove(name);
        }
        // Our own colours would hide those of a server.
        command.env("NO_COLOR", "1").env("HOME", self.home.path()).env("XDG_CONFIG_HOME", self.home.path());
        let at = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
        command.args(&args[..at]).args(["--connect", url, "--recover-for", "1s"]).args(&args[at..]);
        command
    }
}

/// Checks that nothing on the screen controls the terminal.
fn check(screen: &str, what: &dyn std::fmt::Debug) {
    // The notice about a slow connection is dim, and it is ours.
    let screen = screen.replace("\x1b[2mexec-server: ", "exec-server: ").replace("\x1b[0m\r\n", "\r\n");
    let steers = |c: char| {
        (c.is_control() && !matches!(c, '\r' | '\n' | '\t'))
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!screen.chars().any(steers), "{what:?}: {screen:?}");
    assert!(!screen.lines().any(|line| line.starts_with("exec-server: forged")), "{what:?}: {screen:?}");
}

/// Every command that connects to a server; the last ones change something.
fn commands(files: &Path) -> Vec<Vec<String>> {
    let dir = files.display().to_string();
    let lines = [
        "ps",
        "ps --json",
        "logs ended",
        "logs -f ended",
        "logs --json ended",
        "logs -f --json ended",
        "attach ended",
        "wait ended",
        "wait --json ended",
        "kill -s HUP ended",
        "kill nothing",
        "run -- echo hi",
        "run -t -- echo hi",
        "run -d -- true",
        "run -d --json -- true",
        "run --name own -- true",
        "run -- /no/such/program",
        "fs ls DIR",
        "fs ls -l DIR",
        "fs ls --json DIR",
        "fs ls DIR/none",
        "fs stat DIR/a DIR/link DIR/none",
        "fs stat --json DIR/a DIR/none",
        "fs tree DIR",
        "fs tree --json DIR",
        "fs grep needle DIR",
        "fs grep --json needle DIR",
        "fs cat DIR/none",
        "fs mkdir DIR/none/deep",
        "fs rm DIR/none",
        "cp DIR/none :DIR/other",
        "cp :DIR/none DIR/other",
        "cp -r :DIR DIR-copy",
        "mcp bridge -- true",
        "--log debug ps",
        "kill --grace 0s runs",
        "forget ended",
    ];
    let command = |line: &str| match line.strip_prefix("--log debug ") {
        Some(rest) => vec![rest.to_owned(), "--log".to_owned(), "debug".to_owned()],
        None => line.split(' ').map(|word| word.replace("DIR", &dir)).collect(),
    };
    lines.map(command).to_vec()
}

fn each(world: &World, url: &str, mut look: impl FnMut(&str, &[&str])) {
    for command in commands(&world.home.path().join("files")) {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        eprintln!("{args:?}");
        let screen = pty::run(world.command(url, &args));
        check(&screen, &args);
        look(&screen, &args);
    }
}

#[test]
fn no_refusal_of_a_server_steers_the_terminal() {
    let world = World::new();
    for first in ["initialize", "process/list", ""] {
        let proxy = MessageProxy::start(world.server.url(), move |side, message| {
            let method = message["method"].as_str().unwrap_or_default();
            let is_refused = match first {
                // Refuse everything except the handshake.
                "" => !method.is_empty() && !matches!(method, "initialize" | "initialized" | "session/end"),
                first => method == first,
            };
            if side == Side::Client && is_refused && !message["id"].is_null() {
                return Verdict::Answer(json!({"error": {"code": -32603, "message": LIE, "data": {"kind": LIE}}}));
            }
            Verdict::Pass
        });
        if first == "process/list" {
            let screen = pty::run(world.command(&proxy.url(), &["ps"]));
            check(&screen, &"ps");
            assert!(screen.contains("LIE\\u{1b}[31m"), "{screen:?}");
            continue;
        }
        let mut shown = 0;
        each(&world, &proxy.url(), |screen, _| shown += u32::from(screen.contains("LIE\\u{1b}[31m")));
        assert!(shown > 25, "the lie is shown by {shown} commands only, so this test proves little");
    }
}

#[test]
fn no_value_of_a_server_steers_the_terminal() {
    let world = World::new();
    let proxy = MessageProxy::start(world.server.url(), |side, message| {
        match side {
            Side::Client => undo(message),
            Side::Server => {
                for part in ["result", "params", "error"] {
                    if let Some(part) = message.get_mut(part) {
                        lie(part, false);
                    }
                }
            }
        }
        Verdict::Pass
    });
    let mut shown = 0;
    each(&world, &proxy.url(), |screen, args| {
        shown += u32::from(screen.contains("LIE"));
        if *args == ["ps"] {
            assert!(screen.contains("runsLIE\\u{1b}[31m"), "{screen:?}");
        }
    });
    assert!(shown > 12, "the lie is shown by {shown} commands only, so this test proves little");
}

#[test]
fn errors_on_a_pipe_are_clean_too_and_json_keeps_its_values() {
    let world = World::new();
    let refusing = MessageProxy::start(world.server.url(), |side, message| match (side, message["method"].as_str()) {
        (Side::Client, Some("process/list")) => {
            Verdict::Answer(json!({"error": {"code": -32603, "message": LIE, "data": {}}}))
        }
        _ => Verdict::Pass,
    });
    let output = world.command(&refusing.url(), &["ps"]).output().expect("run exec-server");
    let said = text(&output.stderr);
    check(&said, &"ps on a pipe");
    assert!(said.contains("LIE\\u{1b}[31m") && said.lines().count() == 1, "{said:?}");
    let lying = MessageProxy::start(world.server.url(), |side, message| {
        match side {
            Side::Client => undo(message),
            Side::Server => message.get_mut("result").into_iter().for_each(|result| lie(result, false)),
        }
        Verdict::Pass
    });
    let output = world.command(&lying.url(), &["ps", "--json"]).output().expect("run exec-server");
    let text = text(&output.stdout);
    check(&text, &"ps --json on a pipe");
    let listed: Value = serde_json::from_str(&text).expect("it is JSON");
    let names: Vec<&str> =
        listed.as_array().expect("an array").iter().filter_map(|p| p["processId"].as_str()).collect();
    assert!(names.contains(&format!("runs{LIE}").as_str()), "{names:?}");
}
