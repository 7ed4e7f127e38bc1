//! S24: the audit log records who did what, one line per event, and no line can be removed, changed or moved unnoticed. It contains no
//! token, no stdin and no value of a variable. If it cannot be written, strict mode refuses starts and HTTP requests, and best-effort mode
//! counts the lost records.

use crate::prelude::*;

fn events(path: &Path) -> Vec<String> {
    token_helpers::lines(path).iter().map(|line| line["event"].as_str().unwrap_or_default().to_owned()).collect()
}

fn find(path: &Path, event: &str) -> Value {
    let found = token_helpers::lines(path).into_iter().find(|line| line["event"] == event);
    found.unwrap_or_else(|| panic!("no {event} in {:?}", events(path)))
}

#[test]
fn it_records_who_did_what_without_secrets_and_shows_what_was_removed_changed_or_moved() {
    let mut server = TestServer::builder().audit().start();
    let audit = server.dir().join("audit.log");
    let token = token_helpers::create(&server, "ci", &[]);
    let mut client = token_helpers::client(&server, &token);
    let mut params = with(start_params("p", &["sh", "-c", "cat; sleep 1000", "argument"]), json!({"pipeStdin": true}));
    params["env"]["VARIABLE"] = json!("value-of-a-variable");
    client.ok("process/start", params);
    client.ok("process/write", json!({"processId": "p", "chunk": encode_base64(b"what went into stdin\n")}));
    client.ok("process/signal", json!({"processId": "p", "signal": "SIGTERM"}));
    client.collect("p");
    client.fails("process/start", start_params("q", &["/no/such"]));
    http(server.address(), &upgrade("/?token=wrong-secret", server.address(), ""));
    client.ok("process/start", start_params("r", &["sleep", "1000"]));
    client.ok("process/terminate", json!({"processId": "r"}));
    client.ok("session/end", json!({}));
    client.wait_closed();
    token_helpers::revoke(&server, "ci");
    wait_for("the last events", || {
        let is_revoked = token_helpers::lines(&audit).iter().any(|line| line["reason"] == "revoked");
        is_revoked && token_helpers::has_event(&audit, "connection.close")
    });
    let start = find(&audit, "process.start");
    let argv = json!(["sh", "-c", "cat; sleep 1000", "argument"]);
    assert_eq!((&start["principal"], &start["method"], &start["argv"]), (&json!("ci"), &json!("process/start"), &argv));
    assert_eq!((&start["cwd"], &start["sandbox"]), (&json!("/"), &json!("none")));
    assert!(start["peer"].as_str().is_some_and(|peer| peer.contains("127.0.0.1:")), "{start}");
    let exit = find(&audit, "process.exit");
    assert_eq!(
        [&exit["exitCode"], &exit["signal"], &exit["cause"]],
        [&json!(143), &json!("SIGTERM"), &json!("signal")]
    );
    assert_eq!(find(&audit, "process.run")["pid"], exit["pid"]);
    assert_eq!(find(&audit, "process.fail")["reason"], "programNotFound");
    assert_eq!(find(&audit, "process.signal")["signal"], "SIGTERM");
    assert_eq!(find(&audit, "door.refuse")["status"], 401);
    for event in
        ["server.start", "connection.open", "session.new", "process.terminate", "session.end", "connection.close"]
    {
        find(&audit, event);
    }
    server.signal(rustix::process::Signal::TERM);
    server.wait();
    let log = fs::read_to_string(&audit).expect("read the log");
    for secret in ["wrong-secret", "what went into stdin", "value-of-a-variable", server.token(), &token] {
        assert!(!log.contains(secret) && !log.contains(&encode_base64(secret.as_bytes())), "{secret}");
    }
    let whole = token_helpers::verify(&audit);
    assert_eq!(whole.status.code(), Some(0), "{whole:?}");
    let lines: Vec<&str> = log.lines().collect();
    let told = |lines: &[&str]| {
        let other = server.dir().join("other.log");
        fs::write(&other, lines.join("\n") + "\n").expect("write another log");
        let said = token_helpers::verify(&other);
        (said.status.code(), text(&said.stderr))
    };
    for n in 1..lines.len() - 1 {
        let rest: Vec<&str> = lines[..n].iter().chain(&lines[n + 1..]).copied().collect();
        let (code, said) = told(&rest);
        assert!(code == Some(1) && said.contains(&format!("line {} ", n + 1)), "without {n}: {said}");
        let mut moved = lines.clone();
        moved.swap(n, n - 1);
        let (code, said) = told(&moved);
        assert!(code == Some(1), "with {n} before its forerunner: {said}");
        // The hash of the line is unchanged, so the next line still matches it.
        let changed = lines[n].replacen("\"event\":\"", "\"event\":\"x", 1);
        let with: Vec<&str> =
            lines.iter().enumerate().map(|(at, line)| if at == n { &changed } else { *line }).collect();
        let (code, said) = told(&with);
        assert!(code == Some(1) && said.contains(&format!("line {} ", n + 1)), "with {n} changed: {said}");
    }
    assert_eq!(token_helpers::verify(&server.dir().join("nothing.log")).status.code(), Some(255));
}

#[test]
fn it_continues_after_a_crash_and_records_each_end_once() {
    let mut server = TestServer::builder().keep_holders().audit().start();
    let audit = server.dir().join("audit.log");
    let go = server.dir().join("go");
    let mut client = server.client();
    client.run("before", &["sh", "-c", "exit 3"]);
    let wait = format!("while ! test -e {}; do sleep 0.05; done; exit 5", go.display());
    let pid = client.ok("process/start", start_params("between", &["sh", "-c", &wait]))["pid"].as_u64().expect("a pid");
    let ends = |code: i64| {
        let is_it = |line: &&Value| line["event"] == "process.exit" && line["exitCode"] == code;
        token_helpers::lines(&audit).iter().filter(is_it).count()
    };
    wait_for("the first end on record", || ends(3) == 1);
    server.kill();
    // Simulates a crash in the middle of writing a line.
    let mut file = File::options().append(true).open(&audit).expect("open the log");
    file.write_all(b"{\"seq\":99,\"time\":\"2026").expect("leave half a line");
    drop(file);
    fs::write(&go, "").expect("let it end");
    wait_for("its end while no server runs", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
    });
    server.restart();
    wait_for("the end that nobody saw", || ends(5) == 1);
    let mut client = server.client();
    client.run("after", &["sh", "-c", "exit 7"]);
    wait_for("the last end on record", || ends(7) == 1);
    assert_eq!([ends(3), ends(5), ends(7)], [1, 1, 1]);
    assert_eq!(find(&audit, "audit.torn")["bytes"], 22);
    let verified = token_helpers::verify(&audit);
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
}

/// A server in its own mount namespace whose audit log is on a file system of one megabyte.
struct OnSmallDisk {
    child: Child,
    client: Client,
    url: String,
    disk: PathBuf,
    dir: Option<tempfile::TempDir>,
}

impl OnSmallDisk {
    fn start(mode: &str) -> Self {
        let dir = tempfile::tempdir().expect("make a directory");
        let disk = dir.path().join("disk");
        fs::create_dir(&disk).expect("make the place of the disk");
        let builder = TestServer::builder().args(["--audit", "{dir}/disk/audit.log", "--audit-mode", mode]);
        let server = builder.command(dir.path(), &format!("audit-{}-{mode}.test", std::process::id()));
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=1m none \"$0\" && exec \"$@\""]).arg(&disk);
        command.arg(server.get_program()).args(server.get_args());
        for (name, value) in server.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("`unshare` of util-linux starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("stdout is a pipe")).read_line(&mut url).expect("read the URL");
        assert!(url.starts_with("ws://"), "the server did not start: {url:?}");
        let mut client = Client::connect(url.trim_end()).expect("connect");
        client.initialize();
        // Its mounts are visible through `/proc/PID/root`.
        let disk = PathBuf::from(format!("/proc/{}/root{}", child.id(), disk.display()));
        Self { child, client, url: url.trim_end().to_owned(), disk, dir: Some(dir) }
    }

    fn audit(&self) -> PathBuf {
        self.disk.join("audit.log")
    }

    fn fill(&self) {
        let mut file = File::create(self.disk.join("fill")).expect("make the file that fills the disk");
        while file.write_all(&[0; 4096]).is_ok() {}
        assert!(fs::metadata(self.disk.join("fill")).expect("it is there").len() > 900_000);
    }

    fn free(&self) {
        fs::remove_file(self.disk.join("fill")).expect("free the disk");
    }

    /// Starts a process with a long argument, so that the rest of a page is used up quickly.
    fn start_one(&mut self, n: usize) -> String {
        let params = start_params(&format!("p{n}"), &["true", &"x".repeat(2000)]);
        kind_or_ok(self.client.call("process/start", params))
    }

    /// Makes the server send an HTTP request to the target.
    fn request(&mut self, target: &Target) -> String {
        let params = json!({"requestId": "r", "method": "GET", "url": target.url("/")});
        kind_or_ok(self.client.call("http/request", params))
    }

    /// The number of lost records in the metrics.
    fn lost_by_metrics(&self) -> u64 {
        let (address, token) = self.url["ws://".len()..].split_once("/?token=").expect("a token");
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n");
        let page = http(address, &head).body;
        let line = page.lines().find_map(|line| line.strip_prefix("exec_server_audit_lost_total "));
        line.expect("it is on the page").parse().expect("a number")
    }

    /// Ends the server and returns a copy of its log. Once the server's mounts are gone, only the open fd keeps the log.
    fn end(mut self) -> PathBuf {
        let copy = self.dir.take().expect("it has a directory until here").keep().join("copy.log");
        let mut log = File::open(self.audit()).expect("open the log");
        drop(self);
        std::io::copy(&mut log, &mut File::create(&copy).expect("make the copy")).expect("copy the log");
        copy
    }
}

impl Drop for OnSmallDisk {
    fn drop(&mut self) {
        // The server ends its processes, also when the test has failed.
        testkit::signal(self.child.id(), rustix::process::Signal::TERM);
        self.child.wait().ok();
    }
}

#[test]
fn on_a_full_disk_strict_mode_starts_nothing_until_it_can_write_again() {
    let mut server = OnSmallDisk::start("strict");
    let target = Target::saying("hello");
    server.client.ok("process/start", start_params("runs", &["sleep", "1000"]));
    assert!(token_helpers::has_event(&server.audit(), "process.start"), "on the disk before it ran");
    server.fill();
    let mut n = 0;
    wait_for("a start to be refused", || {
        n += 1;
        server.start_one(n) == "auditUnavailable"
    });
    assert_eq!(server.start_one(n), "auditUnavailable", "and its name is free");
    // The record of a request is shorter and may still fit into the last page of the file.
    wait_for("a request to be refused", || server.request(&target) == "auditUnavailable");
    let asked = target.asked().len();
    assert_eq!(server.request(&target), "auditUnavailable");
    assert_eq!(target.asked().len(), asked, "no request was sent");
    // Running processes can still be listed and terminated.
    assert_eq!(server.client.ok("process/list", json!({}))["processes"].as_array().map(Vec::len), Some(n));
    assert_eq!(server.client.ok("process/terminate", json!({"processId": "runs"}))["running"], true);
    server.free();
    assert_eq!(server.start_one(n), "ok");
    assert_eq!((server.request(&target).as_str(), target.asked().len()), ("ok", asked + 1));
    let of_target = |line: &Value| line["event"] == "http.request" && line["target"] == target.url("");
    assert!(token_helpers::lines(&server.audit()).iter().any(of_target), "on the disk before it was made");
    wait_for("the losses on record", || token_helpers::has_event(&server.audit(), "audit.lost"));
    let log = server.end();
    let verified = token_helpers::verify(&log);
    fs::remove_dir_all(log.parent().expect("it lies in a directory")).expect("remove the directory");
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
}

#[test]
fn on_a_full_disk_best_effort_continues_and_counts_the_lost_records() {
    let mut server = OnSmallDisk::start("best-effort");
    assert_eq!(server.lost_by_metrics(), 0);
    server.fill();
    for n in 0..40 {
        assert_eq!(server.start_one(n), "ok");
    }
    assert!(!token_helpers::lines(&server.audit()).iter().any(|line| line["process"] == "p39"));
    server.free();
    let lost = |path: &Path| token_helpers::lines(path).iter().filter_map(|line| line["count"].as_u64()).sum::<u64>();
    wait_for("the losses on record", || lost(&server.audit()) > 0);
    assert_eq!(server.start_one(40), "ok");
    // Three records for each of 41 processes; each one is either in the log or counted as lost.
    let told =
        |path: &Path| token_helpers::lines(path).iter().filter(|line| line["process"].is_string()).count() as u64;
    wait_for("the log to go on", || told(&server.audit()) + lost(&server.audit()) == 41 * 3);
    assert_eq!(server.lost_by_metrics(), lost(&server.audit()), "the metrics count each");
    let log = server.end();
    let (verified, lost) = (token_helpers::verify(&log), lost(&log));
    fs::remove_dir_all(log.parent().expect("it lies in a directory")).expect("remove the directory");
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    assert!(text(&verified.stderr).contains(&format!("{lost} records were lost")), "{verified:?}");
}
