//! `process/signal` and `process/terminate`: which processes they reach, their answers, and how the end is reported (spec 3.6, 3.7).

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use testkit::{TestServer, assert_error, pid_of, process, sh, tty, wait_for, wait_gone, wait_pid_gone, with};

/// Names and numbers of signals whose default action ends a process.
const DEADLY: [(&str, i64); 24] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
    ("RTMIN", 34),
    ("RTMAX", 64),
];

#[test]
fn exec_process_signal_interrupts_process() {
    let server = TestServer::start();
    let mut client = server.client();
    for tty in [false, true] {
        let id = format!("p{tty}");
        let script = "trap 'echo int; exit 7' INT; echo ready; while :; do sleep 0.01; done";
        client.ok("process/start", with(sh(&id, script), json!({"tty": tty})));
        client.wait_output(&id, "ready");
        assert_eq!(client.ok("process/signal", json!({"processId": id, "signal": "interrupt"})), json!({}));
        let ended = client.collect(&id);
        assert!(String::from_utf8_lossy(&ended.stdout).contains("int"), "tty {tty}");
        assert_eq!((ended.code(), &ended.exited["cause"]), (7, &json!("exit")));
        // A signal to an ended process is not an error.
        assert_eq!(client.ok("process/signal", json!({"processId": id, "signal": "interrupt"})), json!({}));
    }
    assert_eq!(client.ok("process/signal", json!({"processId": "never", "signal": "interrupt"})), json!({}));
}

#[test]
fn every_posix_name_is_understood_in_every_form() {
    let server = TestServer::start();
    let mut client = server.client();
    let forms: [fn(&str) -> String; 4] =
        [|name| format!("SIG{name}"), str::to_owned, str::to_lowercase, |name| format!("sig{}", name.to_lowercase())];
    for (number, (name, signal)) in DEADLY.into_iter().enumerate() {
        let id = format!("p{number}");
        // In the test's directory, in case a core file is written.
        client.ok("process/start", with(sh(&id, "echo up; exec sleep 1000"), json!({"cwd": server.dir()})));
        client.wait_output(&id, "up");
        let form = forms[number % forms.len()](name);
        client.ok("process/signal", json!({"processId": id, "signal": form}));
        let ended = client.collect(&id);
        assert_eq!((ended.code(), &ended.exited["cause"]), (128 + signal, &json!("signal")), "{form}");
        assert_eq!(ended.exited["signal"], format!("SIG{name}"), "{form}");
    }
}

#[test]
fn an_unknown_signal_is_refused_whatever_the_process() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "exec sleep 1000"));
    for name in ["", "SIG", "9", "15", "NOPE", "SIGNOPE", "TERM ", "kill -9", "RTMIN+31", "\u{130}NT"] {
        for id in ["p", "never"] {
            let error = client.fails("process/signal", json!({"processId": id, "signal": name}));
            assert_eq!((error.code, error.kind()), (-32602, "unknownSignal"), "{name:?}");
        }
    }
    assert_eq!(client.ok("process/read", process("p"))["exited"], false);
}

#[test]
fn a_process_can_be_stopped_and_continued() {
    let server = TestServer::start();
    let mut client = server.client();
    let pid = pid_of(&client.ok("process/start", sh("p", "exec sleep 1000")));
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('T'))
    };
    client.ok("process/signal", json!({"processId": "p", "signal": "SIGSTOP"}));
    wait_for("stop of the process", || state(pid) == Some(true));
    client.ok("process/signal", json!({"processId": "p", "signal": "CONT"}));
    wait_for("continuation of the process", || state(pid) == Some(false));
}

#[test]
fn a_signal_goes_to_the_whole_group() {
    let server = TestServer::start();
    let mut client = server.client();
    for tty in [false, true] {
        let id = format!("p{tty}");
        client.ok("process/start", with(sh(&id, "sleep 1000 & echo child $!.; wait"), json!({"tty": tty})));
        let said = client.wait_output(&id, ".");
        let child = said.trim_start_matches("child ").trim_end().trim_end_matches('.').parse().expect("a pid");
        client.ok("process/signal", json!({"processId": id, "signal": "TERM"}));
        assert_eq!(client.collect(&id).code(), 143);
        wait_pid_gone(child);
    }
}

#[test]
fn terminate_kills_at_once_and_says_that_it_ran() {
    let server = TestServer::start();
    let mut client = server.client();
    for tty in [false, true] {
        let id = format!("p{tty}");
        client.ok(
            "process/start",
            with(sh(&id, "trap '' TERM INT HUP; echo up; while :; do sleep 0.01; done"), json!({"tty": tty})),
        );
        client.wait_output(&id, "up");
        assert_eq!(client.ok("process/terminate", process(&id)), json!({"running": true}));
        let ended = client.collect(&id);
        assert_eq!((ended.code(), &ended.exited["signal"]), (137, &json!("SIGKILL")), "tty {tty}");
        assert_eq!(ended.exited["cause"], "terminated");
    }
}

#[test]
fn terminate_reports_false_after_process_exit() {
    let server = TestServer::start();
    let mut client = server.client();
    client.run("p", &["true"]);
    assert_eq!(client.ok("process/terminate", process("p")), json!({"running": false}));
    assert_eq!(client.ok("process/terminate", process("never")), json!({"running": false}));
    assert_eq!(
        client.ok("process/terminate", with(process("never"), json!({"graceMs": 5}))),
        json!({"running": false})
    );
}

#[test]
fn terminate_behind_a_start_leaves_nothing() {
    let server = TestServer::start();
    let mut client = server.client();
    for number in 0..20 {
        let id = format!("p{number}");
        let start = client.send_request("process/start", sh(&id, "exec sleep 1000"));
        let terminate = client.send_request("process/terminate", process(&id));
        assert_eq!(client.answer(terminate).expect("terminate")["running"], true);
        let started = client.answer(start).expect("start");
        assert_eq!(client.collect(&id).code(), 137);
        wait_pid_gone(pid_of(&started));
        // A second start with the same id is refused.
        assert_error(&client.fails("process/start", sh(&id, "exec sleep 1000")), -32600, "duplicateProcess");
    }
    let running = |list: Value| {
        list["processes"].as_array().expect("a list").iter().filter(|info| info["exited"] == false).count()
    };
    assert_eq!(running(client.ok("process/list", json!({}))), 0);
    // No unnamed child is left running either.
    wait_for("end of every child", || {
        !server
            .processes()
            .iter()
            .any(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep")))
    });
}

#[test]
fn a_grace_period_lets_a_process_end_by_itself() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.01; done"));
    client.wait_output("p", "up");
    assert_eq!(client.ok("process/terminate", with(process("p"), json!({"graceMs": 20_000})))["running"], true);
    let ended = client.collect("p");
    assert_eq!((ended.stdout.as_slice(), ended.code()), (b"bye\n".as_slice(), 4));
    // A process that dies from SIGTERM ended as requested.
    client.ok("process/start", sh("q", "echo up; exec sleep 1000"));
    client.wait_output("q", "up");
    client.ok("process/terminate", with(process("q"), json!({"graceMs": 20_000})));
    let ended = client.collect("q");
    assert_eq!((ended.code(), &ended.exited["cause"]), (143, &json!("terminated")));
}

#[test]
fn a_child_that_ignores_the_polite_signal_is_killed_after_the_grace_period() {
    let server = TestServer::start();
    let mut client = server.client();
    for (number, grace) in [0, 100].into_iter().enumerate() {
        let id = format!("p{number}");
        client.ok("process/start", sh(&id, "trap '' TERM; echo up; while :; do sleep 0.01; done"));
        client.wait_output(&id, "up");
        client.ok("process/terminate", with(process(&id), json!({"graceMs": grace})));
        let ended = client.collect(&id);
        assert_eq!((ended.code(), &ended.exited["cause"]), (137, &json!("terminated")));
    }
}

#[test]
fn terminate_without_grace_overtakes_a_grace_period() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", sh("p", "trap '' TERM; echo up; while :; do sleep 0.01; done"));
    client.wait_output("p", "up");
    client.ok("process/terminate", with(process("p"), json!({"graceMs": 1_000_000})));
    assert_eq!(client.ok("process/terminate", process("p"))["running"], true);
    assert_eq!(client.collect("p").code(), 137);
}

#[test]
fn terminate_reaches_children_that_left_the_group_and_the_session() {
    let server = TestServer::start();
    let mut client = server.client();
    for (number, grace) in [None, Some(50)].into_iter().enumerate() {
        let id = format!("p{number}");
        // These children are in another session, and one has lost its parent: they can be found only as descendants.
        let script = "setsid sh -c 'trap \"\" TERM; echo a $$.; while :; do sleep 0.01; done' & \
                      (setsid sh -c 'sleep 1000 & echo b $!.; wait' &) ; wait; exec sleep 1000";
        client.ok("process/start", sh(&id, script));
        let mut said = client.wait_output(&id, ".");
        if said.matches('.').count() < 2 {
            said += &client.wait_output(&id, ".");
        }
        let pids: BTreeSet<u32> =
            said.split('.').filter_map(|part| part.trim().trim_start_matches(['a', 'b', ' ']).parse().ok()).collect();
        assert_eq!(pids.len(), 2, "{said}");
        let params = grace.map_or_else(|| process(&id), |ms| with(process(&id), json!({"graceMs": ms})));
        client.ok("process/terminate", params);
        client.collect(&id);
        wait_gone("double-forked children", &pids);
    }
}

#[test]
fn pty_terminate_kills_background_children_in_same_process_group() {
    let server = TestServer::start();
    let mut client = server.client();
    client.ok("process/start", tty("p", "sleep 1000 & echo child $!.; wait"));
    let said = client.wait_output("p", ".");
    let child = said.trim_start_matches("child ").trim_end().trim_end_matches('.').parse().expect("a pid");
    client.ok("process/terminate", process("p"));
    assert_eq!(client.collect("p").code(), 137);
    wait_pid_gone(child);
}
