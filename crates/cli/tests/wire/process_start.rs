//! `process/start` and the events of a process, in the form of generations S and H (spec 3.1, 3.3, 3.7).

use std::os::unix::fs::PermissionsExt;

use crate::{prelude::*, wire::GENERATIONS};

#[test]
fn exec_server_starts_process_over_websocket() {
    let (_server, mut client) = TestServer::with_client();
    for (number, generation) in GENERATIONS.into_iter().enumerate() {
        let id = format!("p{number}");
        let result = client.start(generation.start(&id, &["true"]));
        assert_members(&result, json!({"processId": *id, "sandboxType": "none"}));
        assert!(result["pid"].as_u64().is_some_and(|pid| pid > 1));
        let ended = client.collect(&id);
        assert_eq!((ended.code(), ended.seqs), (0, vec![1, 2]));
    }
}

#[test]
fn exec_process_pushes_events() {
    let (_server, mut client) = TestServer::with_client();
    for generation in GENERATIONS {
        let id = format!("{generation:?}");
        let script = "printf out; read x; printf err >&2; read x; exit 7";
        let params = with(generation.start(&id, &["/bin/sh", "-c", script]), json!({"pipeStdin": true}));
        client.start(params);
        let output = client.expect("process/output");
        assert_eq!(output, json!({"processId": id, "seq": 1, "stream": "stdout", "chunk": "b3V0", "offset": 0}));
        client.ok("process/write", generation.write(&id, b"\n", 1));
        let output = client.expect("process/output");
        assert_eq!(output, json!({"processId": id, "seq": 2, "stream": "stderr", "chunk": "ZXJy", "offset": 3}));
        client.ok("process/write", generation.write(&id, b"\n", 2));
        let exited = client.expect("process/exited");
        assert_members(&exited, json!({"seq": 3, "exitCode": 7, "sandboxDenied": false}));
        assert_eq!((&exited["signal"], &exited["cause"]), (&Value::Null, &json!("exit")));
        assert!(exited["usage"]["maxRssBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{exited}");
        let closed = client.expect("process/closed");
        assert_eq!(closed, json!({"processId": id, "seq": 4, "outputBytes": 6, "droppedBytes": 0}));
    }
}

#[test]
fn exec_process_retains_output_after_exit_until_streams_close() {
    let (server, mut client) = TestServer::with_client();
    let gate = fifo(server.dir(), "gate");
    client.start(sh("p", &format!("(read x <{gate}; echo late) & exit 5")));
    assert_eq!(client.expect("process/exited")["exitCode"], 5);
    let read = client.ok("process/read", process("p"));
    assert_eq!((&read["exited"], &read["closed"], &read["exitCode"]), (&json!(true), &json!(false), &json!(5)));
    release(&gate);
    let output = client.expect("process/output");
    assert_eq!((&output["seq"], &output["chunk"]), (&json!(2), &json!("bGF0ZQo=")));
    assert_eq!(client.expect("process/closed")["seq"], 3);
    let read = client.ok("process/read", process("p"));
    assert_eq!(read["chunks"], json!([{"seq": 2, "stream": "stdout", "chunk": "bGF0ZQo="}]));
    assert_eq!((&read["closed"], &read["nextSeq"]), (&json!(true), &json!(4)));
}

#[test]
fn duplicate_process_ids_allow_only_one_successful_start() {
    let (_server, mut client) = TestServer::with_client();
    let requests: Vec<i64> = (0..8).map(|_| client.send_request("process/start", sh("same", "exit 0"))).collect();
    let answers: Vec<_> = requests.into_iter().map(|id| client.answer(id)).collect();
    assert!(answers[0].is_ok(), "ids are reserved in arrival order");
    for answer in &answers[1..] {
        let error = answer.as_ref().expect_err("only one start succeeds");
        assert_error(error, -32600, "duplicateProcess");
        assert_eq!(error.message, "process same already exists");
    }
    client.collect("same");
    // A closed process still has its id.
    client.refuses("process/start", sh("same", "exit 0"), -32600, "duplicateProcess");
}

#[test]
fn one_name_in_two_sessions_is_two_processes() {
    let server = TestServer::start();
    let (mut one, mut two) = (server.client(), server.client());
    one.start(sh("p", "echo one"));
    two.start(sh("p", "echo two"));
    assert_eq!(one.collect("p").stdout, b"one\n");
    assert_eq!(two.collect("p").stdout, b"two\n");
}

#[test]
fn names_of_any_text_work() {
    let (_server, mut client) = TestServer::with_client();
    for id in ["", " ", "ß\u{1F980}\n\"\\/\u{7f}", "../../etc", &"long".repeat(256)] {
        assert_eq!(client.run(id, &["true"]).code(), 0, "{} bytes", id.len());
        assert_eq!(client.ok("process/read", process(id))["closed"], true);
    }
}

#[test]
fn a_failed_start_says_why_and_frees_the_name() {
    let (server, mut client) = TestServer::with_client();
    let plain = server.dir().join("plain");
    fs::write(&plain, "echo never").expect("write a file");
    let plain = plain.display().to_string();
    for tty in [false, true] {
        for (argv, cwd, code, kind) in [
            (json!([]), "/", -32602, "emptyArgv"),
            (json!(["/no/such"]), "/", -32603, "programNotFound"),
            (json!(["no-such-program"]), "/", -32603, "programNotFound"),
            (json!([""]), "/", -32603, "programNotFound"),
            (json!([plain]), "/", -32603, "permissionDenied"),
            (json!(["/etc"]), "/", -32603, "permissionDenied"),
            (json!(["true"]), "/no/such/dir", -32603, "cwdNotFound"),
            (json!(["true"]), "file:///no/such/dir", -32603, "cwdNotFound"),
            (json!(["true"]), "/etc/passwd", -32603, "cwdNotFound"),
            (json!(["true"]), "relative", -32602, "relativePath"),
            (json!(["true"]), "", -32602, "relativePath"),
            (json!(["true"]), "./x", -32602, "relativePath"),
            (json!(["true"]), "file://host/x", -32602, "invalidUri"),
            (json!(["true"]), "file:///%00", -32602, "invalidUri"),
            (json!(["true"]), "file:///tmp?x", -32602, "invalidUri"),
            (json!(["true"]), "file:///tmp#x", -32602, "invalidUri"),
            (json!(["true"]), "file:///C:/x", -32602, "invalidUri"),
            (json!(["true", "x".repeat(256 << 10)]), "/", -32602, "invalidParams"),
        ] {
            let params = with(start_params("e", &[]), json!({"argv": argv, "cwd": cwd, "tty": tty}));
            client.refuses("process/start", params, code, kind);
        }
        assert_eq!(client.fails("process/start", start_params("e", &[])).message, "argv must not be empty");
        let id = format!("e{tty}");
        assert_eq!(client.run_params(with(sh(&id, "exit 3"), json!({"tty": tty}))).code(), 3);
    }
    // Order of checks: the path, then argv, then the id.
    client.run("taken", &["true"]);
    let empty = with(start_params("taken", &[]), json!({"cwd": "relative"}));
    client.refuses("process/start", empty, -32602, "relativePath");
    client.refuses("process/start", start_params("taken", &[]), -32602, "emptyArgv");
}

#[test]
fn start_process_rejects_non_native_cwd_before_launch() {
    let (server, mut client) = TestServer::with_client();
    let mark = server.dir().join("mark").display().to_string();
    for cwd in ["file://server/share", "file:///C:/Users", "http://x/", "C:\\x"] {
        let error = client.fails("process/start", with(sh("p", &format!("touch {mark}")), json!({"cwd": cwd})));
        assert_eq!(error.code, -32602, "{cwd}");
    }
    assert!(!fs::exists(&mark).expect("look for the mark"));
}

#[test]
fn a_working_directory_is_taken_in_either_form() {
    let (server, mut client) = TestServer::with_client();
    let dir = server.dir().join("a b\u{e9}");
    fs::create_dir(&dir).expect("make a directory");
    let native = dir.display().to_string();
    let uri = format!("file://{}", native.replace(' ', "%20").replace('\u{e9}', "%C3%A9"));
    for (number, cwd) in [native.clone(), uri].into_iter().enumerate() {
        let ended = client.run_params(with(sh(&format!("p{number}"), "pwd -P"), json!({"cwd": cwd})));
        assert_eq!(String::from_utf8_lossy(&ended.stdout).trim_end(), native);
    }
}

#[test]
fn the_program_is_looked_up_in_the_path_of_the_child() {
    let (server, mut client) = TestServer::with_client();
    let tool = server.dir().join("my-tool");
    fs::write(&tool, "#!/bin/sh\necho found\n").expect("write a script");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("make it executable");
    for tty in [false, true] {
        let params =
            with(start_params(&format!("p{tty}"), &["my-tool"]), json!({"env": {"PATH": server.dir()}, "tty": tty}));
        let ended = client.run_params(params);
        assert!(ended.stdout.starts_with(b"found"), "tty {tty}");
        // Without PATH the default search path of the system is used, on a terminal too.
        let ended =
            client.run_params(with(start_params(&format!("d{tty}"), &["true"]), json!({"env": {}, "tty": tty})));
        assert_eq!(ended.code(), 0);
    }
}

#[test]
fn a_script_without_an_interpreter_line_runs_in_the_shell() {
    let server = TestServer::start();
    let script = server.dir().join("script");
    fs::write(&script, "echo by the shell\n").expect("write a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("make it executable");
    let ended = server.client().run("p", &[&script.display().to_string()]);
    assert_eq!((ended.stdout.as_slice(), ended.code()), (b"by the shell\n".as_slice(), 0));
}

#[test]
fn argv_zero_can_be_another_name() {
    let (_server, mut client) = TestServer::with_client();
    for tty in [false, true] {
        let params = with(sh(&format!("p{tty}"), "echo $0"), json!({"arg0": "other name", "tty": tty}));
        let ended = client.run_params(params);
        assert_eq!(String::from_utf8_lossy(&ended.stdout).trim_end(), "other name", "tty {tty}");
    }
}

#[test]
fn every_child_leads_its_own_session_and_group() {
    let (_server, mut client) = TestServer::with_client();
    let script = "read pid comm state ppid pgrp sid rest </proc/$$/stat; echo $pid $pgrp $sid";
    for tty in [false, true] {
        let id = format!("p{tty}");
        let started = client.start(with(sh(&id, script), json!({"tty": tty})));
        let pid = pid_of(&started);
        let said = String::from_utf8(client.collect(&id).stdout).expect("digits");
        assert_eq!(said.trim_end(), format!("{pid} {pid} {pid}"), "tty {tty}");
    }
}

#[test]
fn a_child_has_three_descriptors_and_default_signals() {
    let (_server, mut client) = TestServer::with_client();
    for tty in [false, true] {
        let ended = client.run_params(with(sh(&format!("fd{tty}"), "ls /proc/$$/fd; :"), json!({"tty": tty})));
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2"]);
        // Without a shell in between, which may block signals itself.
        let argv = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"];
        let ended = client.run_params(with(start_params(&format!("signals{tty}"), &argv), json!({"tty": tty})));
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(said.matches("0000000000000000").count(), 2, "{said}");
    }
}

#[test]
fn a_terminal_has_one_stream_a_size_and_an_echo() {
    let (_server, mut client) = TestServer::with_client();
    let script = "stty size; echo \"[$TERM]\"; echo err >&2; echo ctty >/dev/tty; read x; echo got $x";
    client.start(tty("t", script));
    let said = client.wait_output("t", "ctty\r\n");
    assert_eq!(said, "24 80\r\n[]\r\nerr\r\nctty\r\n");
    client.ok("process/write", json!({"processId": "t", "chunk": "aGkK"}));
    let output = client.expect("process/output");
    assert_eq!(output["stream"], "pty");
    let ended = client.collect("t");
    let mut rest = testkit::decode_base64(output["chunk"].as_str().expect("a chunk"));
    rest.extend(&ended.stdout);
    assert_eq!(String::from_utf8_lossy(&rest), "hi\r\ngot hi\r\n");
    assert_eq!(ended.code(), 0);
}

#[test]
fn an_end_by_a_signal_is_128_and_its_number_on_pipe_and_terminal() {
    let (server, mut client) = TestServer::with_client();
    for (number, name) in [(9, "SIGKILL"), (15, "SIGTERM"), (1, "SIGHUP"), (6, "SIGABRT")] {
        for tty in [false, true] {
            let id = format!("{name}{tty}");
            let params = with(sh(&id, &format!("kill -{number} $$")), json!({"tty": tty, "cwd": server.dir()}));
            let ended = client.run_params(params);
            assert_eq!(ended.code(), 128 + number, "{name} tty {tty}");
            assert_eq!((&ended.exited["signal"], &ended.exited["cause"]), (&json!(name), &json!("signal")));
        }
    }
}

#[test]
fn output_of_any_bytes_arrives_unchanged() {
    let (server, mut client) = TestServer::with_client();
    let all: Vec<u8> = (0..=255).collect();
    let file = server.dir().join("bytes");
    fs::write(&file, all.repeat(300)).expect("write a file");
    let ended = client.run("p", &["cat", &file.display().to_string()]);
    assert_eq!(ended.stdout, all.repeat(300));
    assert_eq!(ended.closed["outputBytes"], 76_800);
}

#[test]
fn streams_arrive_in_order_and_apart() {
    let server = TestServer::start();
    let script = "i=0; while [ $i -lt 500 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done; exit 9";
    let ended = server.client().run_params(sh("p", script));
    let lines = |prefix: &str| (0..500).map(|i| format!("{prefix}{i}\n")).collect::<String>();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), lines("o"));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), lines("e"));
    assert_eq!(ended.seqs, (1..=ended.seqs.len() as u64).collect::<Vec<_>>(), "numbers come in order, each once");
    assert_eq!(ended.code(), 9);
}

#[test]
fn confinement_that_cannot_be_enforced_is_refused_and_none_is_not() {
    let (_server, mut client) = TestServer::with_client();
    let restricted =
        json!({"type": "managed", "file_system": {"type": "restricted", "entries": []}, "network": "restricted"});
    let nothing = json!({"sandbox": {"permissions": restricted}});
    assert_eq!(client.fails("process/start", with(sh("p", "exit 0"), nothing)).kind(), "sandboxDenied");
    for bad in [json!({"enforceManagedNetwork": true}), json!({"networkProxy": {"proxy": {"enabled": true}}})] {
        client.refuses("process/start", with(sh("p", "exit 0"), bad), -32602, "notEnforceable");
    }
    for bad in [json!({"sandbox": {"permissions": {"type": "unheard of"}}}), json!({"sandbox": "yes"})] {
        client.refuses("process/start", with(sh("p", "exit 0"), bad), -32602, "invalidParams");
    }
    for (number, good) in [
        json!({"sandbox": {"permissions": {"type": "disabled"}}}),
        json!({"sandbox": {"permissions": {"type": "external", "network": "enabled"}}}),
        json!({"enforceManagedNetwork": false, "managedNetwork": {"loopbackPorts": [1]}}),
        json!({"shellSnapshot": {"scopeId": "s", "shell": {"name": "sh", "path": "/bin/sh"}}}),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(client.run_params(with(sh(&format!("p{number}"), "exit 0"), good)).code(), 0);
    }
}

#[test]
fn many_processes_of_one_session_run_at_once_and_keep_their_order() {
    let (_server, mut client) = TestServer::with_client();
    let ids: Vec<String> = (0..100).map(|i| format!("p{i}")).collect();
    let requests: Vec<i64> =
        ids.iter().map(|id| client.send_request("process/start", piped(id, "read x; echo $x; exit 4"))).collect();
    client.answers(requests);
    for id in ids.iter().rev() {
        client.send_write(id, format!("{id}\n"));
    }
    for id in &ids {
        let ended = client.collect(id);
        assert_eq!((String::from_utf8_lossy(&ended.stdout).trim_end(), ended.code()), (id.as_str(), 4));
        assert_eq!(ended.seqs, [1, 2, 3]);
    }
}

#[test]
fn a_name_that_is_freed_while_it_starts_belongs_to_the_next_start() {
    let (_server, mut client) = TestServer::with_client();
    for round in 0..10 {
        let name = format!("t{round}");
        let first = client.send_request("process/start", start_params(&name, &["sleep", "322"]));
        let terminate = client.send_request("process/terminate", json!({"processId": name}));
        let second = client.send_request("process/start", start_params(&name, &["sleep", "323"]));
        // The first process is gone, whether it was terminated during or after its start. If the id was free again, the second process has
        // it.
        client.answer(first).ok();
        assert_eq!(client.answer(terminate).expect("terminate is answered")["running"], true);
        if let Ok(started) = client.answer(second) {
            let listed = client.ok("process/list", json!({}));
            let named: Vec<_> =
                listed["processes"].as_array().expect("a list").iter().filter(|p| p["processId"] == *name).collect();
            assert_eq!(named.len(), 1);
            assert_eq!((&named[0]["argv"][1], &named[0]["pid"]), (&json!("323"), &started["pid"]));
            assert_eq!(client.terminate(&name)["running"], true);
        }
    }
}

#[test]
fn a_shell_snapshot_that_a_policy_would_filter_is_refused_and_any_other_runs_the_plain_command() {
    let (_server, mut client) = TestServer::with_client();
    let start = |id: &str, argv: &[&str], policy: Value| {
        let snapshot = json!({"scopeId": "s", "shell": {"name": "sh", "path": "/bin/sh"}});
        with(start_params(id, argv), json!({"envPolicy": policy, "shellSnapshot": snapshot}))
    };
    let policy = |ignores: bool, exclude: &[&str], only: &[&str]| {
        let filters = json!({"ignoreDefaultExcludes": ignores, "exclude": exclude, "includeOnly": only});
        with(filters, json!({"inherit": "core", "set": {}}))
    };
    let login = ["/bin/sh", "-lc", "exit 4"];
    for filters in [policy(false, &[], &[]), policy(true, &["A*"], &[]), policy(true, &[], &["PATH"])] {
        client.refuses("process/start", start("p", &login, filters.clone()), -32602, "notEnforceable");
    }
    for (id, argv, policy) in [
        ("no-policy", &login[..], Value::Null),
        ("no-filter", &login, policy(true, &[], &[])),
        ("other-command", &["/bin/sh", "-c", "exit 4"], policy(false, &[], &[])),
        ("other-shell", &["/usr/bin/env", "sh", "-lc", "exit 4"], policy(false, &[], &[])),
    ] {
        assert_eq!(client.run_params(start(id, argv, policy)).code(), 4, "{id}");
    }
    let error = client.fails("process/start", with(sh("p", "exit 0"), json!({"shellSnapshot": {"scopeId": 1}})));
    assert_eq!((error.code, error.kind()), (-32602, "invalidParams"));
}

#[test]
fn a_deeply_nested_pattern_of_a_sandbox_is_refused_with_the_reason() {
    let (_server, mut client) = TestServer::with_client();
    for depth in [40, 300, 4000, 20_000] {
        let pattern = format!("/tmp/{}a{}", "{".repeat(depth), "}".repeat(depth));
        let entry = json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"});
        let sandbox = json!({"permissions": {
            "type": "managed", "network": "enabled", "file_system": {"type": "restricted", "entries": [entry]},
        }});
        for (method, params) in [
            ("process/start", with(sh("p", "exit 0"), json!({"sandbox": sandbox}))),
            ("fs/getMetadata", json!({"path": "/", "sandbox": sandbox})),
        ] {
            client.refuses(method, params, -32602, "notEnforceable");
        }
    }
    for pattern in [format!("{}a{}", "{".repeat(300), "}".repeat(300)), "{".repeat(8000)] {
        client.refuses("fs/glob", json!({"path": "/tmp", "pattern": pattern}), -32602, "invalidPattern");
    }
}

// A message too large for the holder's socket was silently dropped: the request got no answer, and the id stayed taken forever.
#[test]
fn a_start_that_is_too_large_for_the_holder_is_refused_and_frees_its_name() {
    let (_server, mut client) = TestServer::with_client();
    let arg = "x".repeat(1 << 20);
    let argv: Vec<&str> = std::iter::once("true").chain(std::iter::repeat_n(arg.as_str(), 17)).collect();
    client.refuses("process/start", start_params("p", &argv), -32602, "invalidParams");
    let env: serde_json::Map<String, Value> = (0..17).map(|i| (format!("V{i}"), json!(arg))).collect();
    let params = with(start_params("p", &["true"]), json!({"env": env}));
    client.refuses("process/start", params, -32602, "invalidParams");
    assert_eq!(client.processes(), json!([]));
    assert_eq!(client.run("p", &["echo", "free"]).stdout, b"free\n");
}

#[test]
fn d11_1_4_numbers_arrive_in_order_and_without_a_hole() {
    let (_server, mut client) = TestServer::with_client();
    let script = "for i in 1 2 3 4 5 6 7 8; do (head -c 200000 /dev/zero; echo x >&2) & done; wait";
    let ended = client.run_params(sh("p", script));
    assert_eq!(ended.seqs, (1..=ended.seqs.len() as u64).collect::<Vec<_>>());
    assert_eq!((ended.stdout.len(), ended.stderr.len()), (1_600_000, 16));
}

#[test]
fn d11_3_4_a_terminal_takes_arg0_cwd_and_signals_like_a_pipe() {
    let (_server, mut client) = TestServer::with_client();
    let ended = client.run_params(with(tty("arg0", "echo $0"), json!({"arg0": "/no/such/program"})));
    assert_eq!(ended.stdout, b"/no/such/program\r\n");
    client.refuses("process/start", with(tty("cwd", "pwd"), json!({"cwd": "/no/such"})), -32603, "cwdNotFound");
    assert_eq!(client.run_params(tty("signal", "kill -9 $$")).code(), 137);
    client.refuses("process/start", with(tty("exec", ""), json!({"argv": ["/no/such"]})), -32603, "programNotFound");
}

// On Linux the parent-death signal refers to the thread that spawned the child, and threads of the server come and go.
#[test]
fn d11_3_5_children_do_not_die_with_a_thread_of_the_server() {
    let (server, mut client) = TestServer::with_client();
    let gate = fifo(server.dir(), "gate");
    client.start(sh("p", &format!("echo up; read x <{gate}; echo alive")));
    client.wait_output("p", "up");
    // A burst of blocking work creates and ends threads.
    let clients: Vec<_> = (0..8).map(|_| server.client()).collect();
    let runs: Vec<_> =
        clients.into_iter().map(|mut client| thread::spawn(move || client.run("q", &["true"]).code())).collect();
    for run in runs {
        assert_eq!(run.join().expect("a client does not panic"), 0);
    }
    release(&gate);
    assert_eq!(client.collect("p").stdout, b"alive\n");
}
