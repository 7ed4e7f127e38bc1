//! Conditions that the server inherits or finds in its environment: a file size limit, blocked signals, a disk without inodes, a state
//! directory that disappears. Each may make a request fail, but none may end the server or running processes.

use crate::prelude::*;

#[test]
fn a_write_beyond_the_file_size_limit_is_an_error_and_the_server_lives() {
    // 2 or 4 MiB, depending on the unit of the shell.
    let server = TestServer::builder().after("ulimit -f 4096").start();
    let mut client = server.client();
    let (path, large) = (server.dir().join("large"), encode_base64(&vec![b'x'; 5 << 20]));
    let error = client.call("fs/writeFile", json!({"path": path, "dataBase64": large})).expect_err("too large");
    assert!(error.message.contains("File too large"), "{error:?}");
    assert!(!path.exists(), "a part of it is left");
    let small = encode_base64(b"small");
    client.ok("fs/writeFile", json!({"path": path, "dataBase64": small}));
    // A child gets the signal like any program: the shell reports 128 + SIGXFSZ.
    let script = format!("head -c 5242880 /dev/zero > {}", server.dir().join("child").display());
    client.start(sh("child", &format!("{script}; echo $?")));
    let ended = client.collect("child");
    assert_eq!(String::from_utf8_lossy(&ended.stdout).trim_end(), "153");
}

#[test]
fn a_server_started_with_blocked_signals_ends_by_sigterm_and_blocks_none_for_its_children() {
    let script = "if [ -z \"$BLOCKED\" ]; then export BLOCKED=1; exec env --block-signal \"$0\" \"$@\"; fi";
    let mut server = TestServer::builder().after(script).start();
    let mut client = server.client();
    client.start(sh("p", "grep SigBlk /proc/self/status"));
    let ended = client.collect("p");
    assert_eq!(String::from_utf8_lossy(&ended.stdout).trim_end(), "SigBlk:\t0000000000000000");
    drop(client);
    server.signal(Signal::TERM);
    assert!(server.wait().success());
}

#[test]
fn a_server_without_free_inodes_starts_without_the_socket_for_dial_stdio() {
    let script = "if [ -z \"$SMALL_DISK\" ]; then export SMALL_DISK=1; exec unshare --mount --propagation private sh -c \
         'state=\"$TMPDIR/state\"; mkdir -p \"$state\" && mount -t tmpfs -o size=4m,nr_inodes=12,mode=0700 none \"$state\" && \
          mkdir -m 700 \"$state/sessions\" && : > \"$state/lock\" && cat /proc/sys/kernel/random/boot_id > \"$state/boot\" || exit 1; \
          n=0; while touch \"$state/fill$n\" 2> /dev/null; do n=$((n + 1)); done; exec \"$0\" \"$@\"' \"$0\" \"$@\"; fi";
    let token = "x".repeat(43);
    let dir = tempfile::tempdir().expect("make a directory");
    let file = dir.path().join("token");
    fs::write(&file, &token).expect("write the token");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("close it to others");
    let server =
        TestServer::builder().arg("--token-file").arg(file.to_str().expect("a path is text")).after(script).start();
    wait_for("the warning about the socket", || {
        let said = server.stderr();
        said.contains("serving without this socket") && said.contains("dial.sock")
    });
    let mut client = server.client();
    assert_eq!(client.ok("environment/status", json!({}))["status"], "ready");
}

#[test]
fn a_state_directory_that_goes_away_is_reported_and_what_runs_goes_on() {
    let (server, mut client) = TestServer::with_client();
    let params = with(start_params("echo", &["cat"]), json!({"pipeStdin": true}));
    client.start(params);
    let ready = || http(server.address(), "GET /readyz HTTP/1.1\r\n\r\n").status;
    assert_eq!(ready(), 200);
    let (state, away) = (server.state_dir(), server.dir().join("away"));
    fs::rename(&state, &away).expect("take the directory away");
    wait_for("the server to notice", || ready() == 503);
    assert_eq!(http(server.address(), "GET /healthz HTTP/1.1\r\n\r\n").status, 200);
    let doctor = Command::new(binary()).args(["doctor", "--state-dir"]).arg(&state).output().expect("run exec-server");
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.status.code() == Some(1) && said.contains("was removed or replaced while it ran"), "{said}");

    let line = encode_base64(b"still here\n");
    client.ok("process/write", json!({"processId": "echo", "chunk": line, "writeId": "w"}));
    client.close_stdin("echo");
    assert_eq!(client.collect("echo").stdout, b"still here\n");
    // The server holds the directory open, so a new session works too.
    let mut other = server.client();
    other.start(sh("new", "echo new"));
    assert_eq!(other.collect("new").stdout, b"new\n");

    fs::rename(&away, &state).expect("put it back");
    wait_for("the server to notice", || ready() == 200);
    let said = server.stderr();
    assert!(said.contains("the state directory is gone or was replaced") && !said.contains("panicked"), "{said}");
}
