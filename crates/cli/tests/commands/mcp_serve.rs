//! `mcp serve` over standard streams, with JSON lines written by hand: its self-description, commands and processes, and that nothing of a
//! session outlives it. Also has the client that the files beside it use.

use std::{
    process::ChildStdin,
    sync::mpsc::{self, Receiver},
};

use crate::prelude::*;

/// A client of `mcp serve` that follows the protocol unless a test does otherwise. Dropping it ends the server with EOF on its stdin; then
/// no descendant may be left.
pub(crate) struct Mcp {
    child: Running,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    last_id: u64,
}

impl Mcp {
    /// A user, and the server in the user's home after the handshake.
    pub(crate) fn at_home(args: &[&str]) -> (Home, Self) {
        let home = Home::new();
        let mcp = Self::start(&home, args);
        (home, mcp)
    }

    /// Starts the server and completes the handshake.
    pub(crate) fn start(home: &Home, args: &[&str]) -> Self {
        let mut mcp = Self::raw(home, args);
        let answer = mcp.request("initialize", initialize());
        assert_eq!(answer["result"]["serverInfo"]["name"], "exec-server", "{answer}");
        mcp.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        mcp
    }

    /// Starts the server in the user's home, without the handshake.
    fn raw(home: &Home, args: &[&str]) -> Self {
        let mut command = home.command(&[&["mcp", "serve"][..], args].concat());
        command.current_dir(home.path()).stderr(Stdio::inherit());
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = spawn(command.stdin(Stdio::piped()));
        let output = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let (line_tx, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                if line_tx.send(line).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        Self { child, input, lines, last_id: 0 }
    }

    fn write(&mut self, line: &str) {
        let input = self.input.as_mut().expect("standard input is open");
        writeln!(input, "{line}").and_then(|()| input.flush()).expect("write a line");
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.write(&message.to_string());
    }

    /// The next message. Every line on stdout must be a message.
    fn next(&self) -> Value {
        let line = self.lines.recv_timeout(DEADLINE).expect("a message in time");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Sends a request and returns its id.
    fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// The answer to a request; other messages before it are skipped.
    fn answer(&self, id: u64) -> Value {
        loop {
            let message = self.next();
            if message["id"] == id {
                return message;
            }
        }
    }

    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    fn begin_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// The result of a tool, also if `isError` is set.
    pub(crate) fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments}));
        assert!(answer["error"].is_null(), "{tool}: {answer}");
        answer["result"].clone()
    }

    /// The structured content of a tool that must succeed.
    pub(crate) fn ok(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], false, "{tool}: {result}");
        result["structuredContent"].clone()
    }

    /// The text of a tool that must fail.
    pub(crate) fn failure(&mut self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool}: {result}");
        result["content"][0]["text"].as_str().expect("a text").to_owned()
    }
    /// Reads the output of a process until it contains `text`; returns what was read, as JSON.
    fn hear(&mut self, id: &str, text: &str) -> String {
        let mut heard = String::new();
        wait_for(text, || {
            heard.push_str(&self.ok("read_output", json!({"process_id": id, "wait_ms": 5000}))["output"].to_string());
            heard.contains(text)
        });
        heard
    }

    pub(crate) fn tools(&mut self) -> Vec<Value> {
        let answer = self.request("tools/list", json!({}));
        answer["result"]["tools"].as_array().expect("tools").clone()
    }

    /// All descendants of the server process.
    fn family(&self) -> BTreeSet<u32> {
        descendants(&BTreeSet::from([self.child.id()]))
    }
}

impl Drop for Mcp {
    fn drop(&mut self) {
        let has_ended = self.child.try_wait().expect("check the server process").is_some();
        if has_ended || thread::panicking() {
            return;
        }
        let family = self.family();
        drop(self.input.take());
        let status = end_of(&mut self.child);
        assert!(status.success(), "{status}");
        wait_gone("what `mcp serve` has started", &family);
    }
}

pub(crate) fn initialize() -> Value {
    let client = json!({"name": "by-hand", "version": "1"});
    json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
}

/// The pid that a process wrote into a file as a whole line.
pub(crate) fn pid_in(file: &Path) -> u32 {
    let mut pid = None;
    wait_for("a pid in the file", || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|text| text.parse().ok());
        pid.is_some()
    });
    pid.expect("the wait ended with a pid")
}

#[test]
fn the_server_describes_itself_and_its_tools() {
    let home = Home::new();
    let mut mcp = Mcp::raw(&home, &[]);
    let answer = mcp.request("initialize", initialize());
    let result = &answer["result"];
    assert_eq!(result["protocolVersion"], "2025-06-18");
    assert!(result["capabilities"]["tools"].is_object(), "{result}");
    let instructions = result["instructions"].as_str().expect("a text");
    assert!(instructions.contains(&home.path().display().to_string()), "{result}");
    mcp.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let tools = mcp.tools();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    let expected = "run_command start_process read_output write_stdin signal_process list_processes \
        read_file write_file edit_file list_directory search_files";
    assert_eq!(names.join(" "), expected);
    let run = &tools[0];
    assert_eq!(run["annotations"]["readOnlyHint"], false);
    assert_eq!(run["annotations"]["openWorldHint"], true);
    assert_eq!(run["inputSchema"]["required"], json!(["command"]));
    assert_eq!(run["inputSchema"]["properties"]["timeout_ms"]["maximum"], 86_400_000);
    assert!(run["outputSchema"]["properties"]["stdout_omitted_bytes"].is_object(), "{run}");
    assert_eq!(tools[6]["annotations"]["readOnlyHint"], true);
    assert_eq!(mcp.request("ping", json!({}))["result"], json!({}));
}

#[test]
fn a_command_is_run_by_the_shell_or_directly() {
    let home = Home::new();
    std::fs::create_dir(home.path().join("sub")).expect("make a directory");
    let mut mcp = Mcp::start(&home, &[]);
    let ran = mcp.ok("run_command", json!({"command": "echo out; echo err >&2; exit 3"}));
    assert_eq!((&ran["stdout"], &ran["stderr"], &ran["exit_code"]), (&json!("out\n"), &json!("err\n"), &json!(3)));
    assert!(ran["duration_ms"].is_u64() && ran["timed_out"] == false, "{ran}");
    let script = "pwd; echo \"$A|$1\"";
    let arguments = json!({"command": ["sh", "-c", script, "x", "a  b"], "cwd": "sub", "env": {"A": "1"}});
    let ran = mcp.ok("run_command", arguments);
    assert_eq!(ran["stdout"], format!("{}\n1|a  b\n", home.path().join("sub").display()));
    let arguments = json!({"command": "echo all the same", "cwd": null, "env": null, "timeout_ms": null});
    assert_eq!(mcp.ok("run_command", arguments)["stdout"], "all the same\n");
    let ran = mcp.ok("run_command", json!({"command": "kill -KILL $$"}));
    assert_eq!((&ran["signal"], &ran["exit_code"]), (&json!("SIGKILL"), &json!(137)));
    let ran = mcp.ok("run_command", json!({"command": "cat; echo done"}));
    assert_eq!(ran["stdout"], "done\n");
    let text = mcp.failure("run_command", json!({"command": ["no-such-program-anywhere"]}));
    assert!(text.contains("no-such-program-anywhere") && text.contains("check the name"), "{text}");
    let text = mcp.failure("run_command", json!({"command": "pwd", "cwd": "missing"}));
    assert!(text.contains("missing") && text.contains("list_directory"), "{text}");
}

#[test]
fn long_output_keeps_its_beginning_and_end_and_the_omitted_bytes_are_counted() {
    let (_home, mut mcp) = Mcp::at_home(&[]);
    let command = "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last; echo e >&2";
    let ran = mcp.ok("run_command", json!({"command": command, "max_output_bytes": 4096}));
    let stdout = ran["stdout"].as_str().expect("a text");
    let omitted = ran["stdout_omitted_bytes"].as_u64().expect("a number");
    assert!(stdout.starts_with("first\nxxx") && stdout.ends_with("xxx\nlast\n"), "{stdout}");
    assert!(stdout.contains(&format!("[… {omitted} bytes left out …]")), "{stdout}");
    assert_eq!(ran["stdout_bytes"], 3_000_012);
    assert_eq!(omitted, 3_000_012 - 4096);
    assert_eq!((&ran["stderr"], &ran["stderr_omitted_bytes"]), (&json!("e\n"), &json!(0)));
}

#[test]
fn a_command_that_times_out_is_killed_with_all_it_started_and_its_output_is_returned() {
    let (home, mut mcp) = Mcp::at_home(&[]);
    // The child is in another session, where a signal to the process group does not reach it.
    let command = "echo begun; setsid sh -c 'echo $$ >pid; exec sleep 1000' & wait";
    let result = mcp.call("run_command", json!({"command": command, "timeout_ms": 1000}));
    assert_eq!(result["isError"], true, "{result}");
    let text = result["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("timed out after 1000 ms"), "{result}");
    let ran = &result["structuredContent"];
    assert_eq!((&ran["timed_out"], &ran["stdout"]), (&json!(true), &json!("begun\n")), "{ran}");
    wait_pid_gone(pid_in(&home.path().join("pid")));
}

#[test]
fn a_cancelled_call_ends_its_command_and_no_other() {
    let (home, mut mcp) = Mcp::at_home(&[]);
    let id = mcp.begin_call("run_command", json!({"command": "setsid sh -c 'echo $$ >pid; exec sleep 1000' & wait"}));
    let other = mcp.begin_call("run_command", json!({"command": "until test -e go; do sleep 0.02; done; echo went"}));
    let pid = pid_in(&home.path().join("pid"));
    mcp.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "enough"}}));
    wait_pid_gone(pid);
    std::fs::write(home.path().join("go"), "").expect("make a file");
    // A cancelled call has no answer, so the next message is the answer to the other call.
    let answer = mcp.next();
    assert_eq!(answer["id"], other, "{answer}");
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "went\n", "{answer}");
}

#[test]
fn a_long_command_reports_progress_to_clients_that_ask() {
    let (home, mut mcp) = Mcp::at_home(&[]);
    let command = "echo step one; until test -e go; do sleep 0.02; done";
    let params = json!({"name": "run_command", "arguments": {"command": command}, "_meta": {"progressToken": "mine"}});
    let id = mcp.begin("tools/call", params);
    let first = mcp.next();
    let (method, token) = (&first["method"], &first["params"]["progressToken"]);
    assert_eq!([method, token], ["notifications/progress", "mine"]);
    assert!(first["params"]["message"].as_str().is_some_and(|text| text.contains("step one")), "{first}");
    let second = mcp.next();
    let progress = |message: &Value| message["params"]["progress"].as_f64();
    assert!(progress(&second) >= progress(&first).map(|first| first + 0.5), "{second}");
    std::fs::write(home.path().join("go"), "").expect("make a file");
    assert_eq!(mcp.answer(id)["result"]["structuredContent"]["exit_code"], 0);
}

#[test]
fn background_processes_of_a_command_are_killed_and_reported() {
    let (home, mut mcp) = Mcp::at_home(&[]);
    let result = mcp.call("run_command", json!({"command": "sleep 1000 & echo $! >pid; echo done"}));
    assert_eq!(result["isError"], false, "{result}");
    let ran = &result["structuredContent"];
    assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!("done\n"), &json!(0)));
    assert!(ran["note"].as_str().is_some_and(|note| note.contains("start_process")), "{ran}");
    wait_pid_gone(pid_in(&home.path().join("pid")));
}

#[test]
fn a_process_is_started_written_to_read_and_ended() {
    let (_home, mut mcp) = Mcp::at_home(&[]);
    assert_eq!(mcp.ok("list_processes", json!({}))["processes"], json!([]));
    let command = "while read line; do echo \"got $line\"; echo \"err $line\" >&2; done; exit 4";
    let started = mcp.ok("start_process", json!({"command": command}));
    assert_eq!(started["process_id"], "p1");
    assert!(state(u32::try_from(started["pid"].as_u64().expect("a pid")).expect("small")).is_some());
    mcp.ok("write_stdin", json!({"process_id": "p1", "text": "one\n"}));
    let mut heard = String::new();
    // Output of both streams arrives, in separate pieces.
    while !(heard.contains("got one") && heard.contains("err one")) {
        let read = mcp.ok("read_output", json!({"process_id": "p1", "wait_ms": 10_000}));
        assert_eq!(read["exited"], false, "{read}");
        heard.push_str(&read["output"].to_string());
    }
    // Output that was read is not returned again by default, but can be requested with `after`.
    assert_eq!(mcp.ok("read_output", json!({"process_id": "p1"}))["output"], json!([]));
    let again = mcp.ok("read_output", json!({"process_id": "p1", "after": 0}));
    assert!(again["output"].to_string().contains("got one"), "{again}");
    mcp.ok("write_stdin", json!({"process_id": "p1", "close": true}));
    let mut read = Value::Null;
    wait_for("its end", || {
        read = mcp.ok("read_output", json!({"process_id": "p1", "wait_ms": 10_000}));
        read["closed"] == true
    });
    assert_eq!((&read["exited"], &read["exit_code"]), (&json!(true), &json!(4)), "{read}");
    let text = mcp.failure("write_stdin", json!({"process_id": "p1", "text": "late\n"}));
    assert!(text.contains("is closed, or p1 has exited"), "{text}");
    let listed = mcp.ok("list_processes", json!({}));
    assert_eq!((&listed["processes"][0]["exited"], &listed["processes"][0]["exit_code"]), (&json!(true), &json!(4)));
}

#[test]
fn processes_are_signalled_and_ended_with_what_they_started() {
    let (home, mut mcp) = Mcp::at_home(&[]);
    mcp.ok("start_process", json!({"command": "trap 'echo caught' USR1; echo ready; while :; do sleep 0.02; done"}));
    mcp.hear("p1", "ready");
    assert_eq!(mcp.ok("signal_process", json!({"process_id": "p1", "signal": "USR1"}))["was_running"], true);
    mcp.hear("p1", "caught");
    let script = "trap '' TERM; setsid sh -c 'echo $$ >pid; exec sleep 1000' & wait; sleep 1000";
    mcp.ok("start_process", json!({"command": ["sh", "-c", script]}));
    let pid = pid_in(&home.path().join("pid"));
    assert_eq!(mcp.ok("signal_process", json!({"process_id": "p2", "grace_ms": 50}))["was_running"], true);
    wait_pid_gone(pid);
    wait_for("its end", || mcp.ok("list_processes", json!({}))["processes"][1]["exited"] == true);
    assert_eq!(mcp.ok("signal_process", json!({"process_id": "p2", "signal": "INT"}))["was_running"], false);
    for (tool, arguments, told) in [
        ("signal_process", json!({"process_id": "p1", "signal": "NOPE"}), "is not a signal"),
        ("signal_process", json!({"process_id": "p9"}), "no process `p9` in this session; there are p1, p2"),
        ("read_output", json!({"process_id": "1"}), "no process `1`"),
        ("read_output", json!({"process_id": "p1", "wait_ms": 300_001}), "`wait_ms` must be between 0 and 300000"),
        ("write_stdin", json!({"process_id": "p1"}), "nothing to write"),
    ] {
        let text = mcp.failure(tool, arguments);
        assert!(text.contains(told), "{text}");
    }
}

#[test]
fn a_process_gets_a_terminal_on_request() {
    let (_home, mut mcp) = Mcp::at_home(&[]);
    mcp.ok("start_process", json!({"command": "test -t 0 && stty size; read x; echo \"<$x>\"", "tty": true}));
    mcp.ok("write_stdin", json!({"process_id": "p1", "text": "hi\n"}));
    let heard = mcp.hear("p1", "<hi>");
    assert!(heard.contains("24 80") && heard.contains("pty"), "{heard}");
}

#[test]
fn unread_output_does_not_block_a_process_and_its_loss_is_reported() {
    let (_home, mut mcp) = Mcp::at_home(&[]);
    mcp.ok("start_process", json!({"command": "head -c 40000000 /dev/zero | tr '\\0' x; echo the end"}));
    wait_for("its end", || mcp.ok("list_processes", json!({}))["processes"][0]["exited"] == true);
    let (mut bytes, mut gap, mut last) = (0, 0, String::new());
    wait_for("all that is left", || {
        let read = mcp.ok("read_output", json!({"process_id": "p1", "max_bytes": 1_048_576}));
        gap += read["gap_bytes"].as_u64().expect("a number");
        for piece in read["output"].as_array().expect("pieces") {
            last = piece["text"].as_str().expect("a text").to_owned();
            bytes += last.len() as u64;
        }
        read["closed"] == true
    });
    assert!(gap > 0 && last.ends_with("the end\n"), "{gap}");
    assert_eq!(bytes + gap, 40_000_008);
}

#[test]
fn characters_are_whole_however_the_output_is_read() {
    let (_home, mut mcp) = Mcp::at_home(&[]);
    // Each character has three bytes, so no piece of a power-of-two size ends at a character boundary.
    mcp.ok("start_process", json!({"command": "yes € | tr -d '\\n' | head -c 300000"}));
    let (mut heard, mut answers) = (String::new(), 0);
    wait_for("all of it", || {
        let read = mcp.ok("read_output", json!({"process_id": "p1", "wait_ms": 10_000, "max_bytes": 1}));
        let pieces = read["output"].as_array().expect("pieces");
        pieces.iter().for_each(|piece| heard.push_str(piece["text"].as_str().expect("a text")));
        answers += 1;
        read["closed"] == true
    });
    assert!(answers > 1 && heard == "€".repeat(100_000), "{answers} answers, {} bytes", heard.len());
}

#[test]
fn processes_end_with_their_session_however_it_ends() {
    for end in [None, Some(Signal::TERM), Some(Signal::KILL)] {
        let (home, mut mcp) = Mcp::at_home(&[]);
        mcp.ok("start_process", json!({"command": "setsid sh -c 'echo $$ >pid; exec sleep 1000' & sleep 1000"}));
        let mut pids = BTreeSet::from([pid_in(&home.path().join("pid"))]);
        let family = mcp.family();
        let Some(end) = end else {
            drop(mcp);
            wait_gone("the processes", &pids);
            continue;
        };
        let running = mcp.begin_call("run_command", json!({"command": "echo $$ >other; exec sleep 1000"}));
        pids.insert(pid_in(&home.path().join("other")));
        signal(mcp.child.id(), end);
        if end == Signal::TERM {
            // A call that is waiting gets an answer with the output so far.
            let answer = mcp.answer(running);
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            assert!(answer.to_string().contains("shutting down"), "{answer}");
        }
        assert_eq!(end_of(&mut mcp.child).success(), end == Signal::TERM);
        wait_gone("the processes", &pids);
        wait_gone("what held them", &family);
    }
}

#[test]
fn a_client_that_leaves_before_its_first_message_causes_no_error() {
    let home = Home::new();
    let mut command = home.command(&["mcp", "serve"]);
    command.stdin(Stdio::null());
    assert_eq!(outcome(command), (String::new(), String::new(), Some(0)));
}

#[test]
fn wrong_requests_are_answered_and_end_nothing() {
    let (_home, mut mcp) = Mcp::at_home(&[]);
    for (tool, arguments, told) in [
        ("run_command", json!({}), "missing field `command`"),
        ("run_command", json!({"command": 7}), "must be a string for the shell, or an array of strings"),
        ("run_command", json!({"command": ""}), "`command` is empty"),
        ("run_command", json!({"command": "true", "timeout": 5}), "unknown field `timeout`"),
        (
            "run_command",
            json!({"command": "true", "timeout_ms": 0}),
            "`timeout_ms` must be between 1 and 86400000, not 0",
        ),
        ("run_command", json!({"command": "true", "timeout_ms": "soon"}), "invalid type"),
        ("read_file", json!({"path": "x", "offset": -1}), "invalid value"),
        ("start_process", json!({"command": []}), "is empty"),
        ("search_files", json!({}), "give `pattern`"),
    ] {
        let text = mcp.failure(tool, arguments);
        assert!(text.contains(told), "{text}");
    }
    let answer = mcp.request("tools/call", json!({"name": "rm_rf", "arguments": {}}));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("unknown tool `rm_rf`")), "{answer}");
    let answer = mcp.request("no/such/method", json!({}));
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    mcp.write("this is no JSON");
    mcp.write("");
    mcp.write("{\"jsonrpc\":\"2.0\",\"id\":\"half");
    // An answer to a request that the server never sent.
    mcp.send(&json!({"jsonrpc": "2.0", "id": 999, "result": {}}));
    assert_eq!(mcp.ok("run_command", json!({"command": "echo still here"}))["stdout"], "still here\n");
}

#[test]
fn calls_beyond_the_limit_are_refused_and_the_others_continue() {
    let (home, mut mcp) = Mcp::at_home(&[]);
    let command = json!({"command": "until test -e go; do sleep 0.05; done"});
    let mut left: BTreeSet<u64> = (0..70).map(|_| mcp.begin_call("run_command", command.clone())).collect();
    let mut refused = 0;
    while refused < 6 {
        let answer = mcp.next();
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer.to_string().contains("limit reached: 64 calls per session"), "{answer}");
        assert!(left.remove(&answer["id"].as_u64().expect("an id")));
        refused += 1;
    }
    std::fs::write(home.path().join("go"), "").expect("make a file");
    while !left.is_empty() {
        let answer = mcp.next();
        assert_eq!(answer["result"]["structuredContent"]["exit_code"], 0, "{answer}");
        assert!(left.remove(&answer["id"].as_u64().expect("an id")));
    }
}

#[test]
fn the_executor_may_be_a_server() {
    let (home, server) = (Home::new(), TestServer::start());
    let mut mcp = Mcp::start(&home, &["--connect", server.url()]);
    let started = mcp.ok("start_process", json!({"command": "sleep 1000"}));
    let pid = u32::try_from(started["pid"].as_u64().expect("a pid")).expect("small");
    assert!(mcp.family().is_empty() || !mcp.family().contains(&pid), "it runs at the server");
    let ran = mcp.ok("run_command", json!({"command": "echo there", "cwd": "/"}));
    assert_eq!(ran["stdout"], "there\n");
    let file = home.path().join("file");
    mcp.ok("write_file", json!({"path": file, "content": "by way of a server"}));
    assert_eq!(std::fs::read_to_string(file).expect("the file"), "by way of a server");
    drop(mcp);
    wait_pid_gone(pid);
}

#[test]
fn a_killed_server_costs_nothing_and_one_that_forgets_costs_only_what_it_forgot() {
    let (home, mut server) = (Home::new(), TestServer::start());
    let mut mcp = Mcp::start(&home, &["--connect", server.url()]);
    mcp.ok("start_process", json!({"command": "while read x; do echo \"got $x\"; done"}));
    server.restart();
    mcp.ok("write_stdin", json!({"process_id": "p1", "text": "one\n"}));
    let read = mcp.ok("read_output", json!({"process_id": "p1", "wait_ms": 10_000}));
    assert_eq!(read["output"], json!([{"stream": "stdout", "text": "got one\n"}]));
    // An orderly shutdown ends the sessions too, so the next server does not know them.
    server.signal(Signal::TERM);
    server.wait();
    server.restart();
    assert_eq!(mcp.ok("run_command", json!({"command": "echo again"}))["stdout"], "again\n");
    let text = mcp.failure("read_output", json!({"process_id": "p1"}));
    assert!(text.contains("cannot read more output of p1"), "{text}");
    assert_eq!(mcp.ok("list_processes", json!({}))["processes"][0]["exited"], true);
    assert_eq!(mcp.ok("start_process", json!({"command": "sleep 1000"}))["process_id"], "p2");
}

#[test]
fn an_unreachable_server_is_reported_before_anything_is_served() {
    let home = Home::new();
    let (out, said, code) = outcome(home.command(&["mcp", "serve", "--connect", "unix:///nowhere/at/all.sock"]));
    assert_eq!((code, out.as_str()), (Some(255), ""));
    assert!(said.contains("/nowhere/at/all.sock"), "{said}");
}
