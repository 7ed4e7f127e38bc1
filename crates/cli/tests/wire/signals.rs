//! `process/signal` and `process/terminate`: which processes they reach, their answers, and how the end is reported (spec 3.6, 3.7).

use crate::prelude::*;

/// Names and numbers of signals whose default action ends a process.
const DEADLY: &str = "HUP=1 INT=2 QUIT=3 ILL=4 TRAP=5 ABRT=6 BUS=7 FPE=8 KILL=9 USR1=10 SEGV=11 USR2=12 \
                      PIPE=13 ALRM=14 TERM=15 XCPU=24 XFSZ=25 VTALRM=26 PROF=27 IO=29 PWR=30 SYS=31 RTMIN=34 RTMAX=64";

/// The pid in an output like `child 123.`
fn child_of(said: &str) -> u32 {
    said.trim_start_matches("child ").trim_end().trim_end_matches('.').parse().expect("a pid")
}

#[test]
fn exec_process_signal_interrupts_process() {
    let (_server, mut client) = TestServer::with_client();
    for tty in [false, true] {
        let id = format!("p{tty}");
        let script = "trap 'echo int; exit 7' INT; echo ready; while :; do sleep 0.01; done";
        client.start(with(sh(&id, script), json!({"tty": tty})));
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
    let (server, mut client) = TestServer::with_client();
    let forms = |name: &str| {
        [format!("SIG{name}"), name.to_owned(), name.to_lowercase(), format!("sig{}", name.to_lowercase())]
    };
    for (number, pair) in DEADLY.split(' ').enumerate() {
        let (name, signal) = pair.split_once('=').expect("a name and a number");
        let signal: i64 = signal.parse().expect("a number");
        let id = format!("p{number}");
        // In the test's directory, in case a core file is written.
        client.start(with(sh(&id, "echo up; exec sleep 1000"), json!({"cwd": server.dir()})));
        client.wait_output(&id, "up");
        let form = &forms(name)[number % 4];
        client.ok("process/signal", json!({"processId": id, "signal": form}));
        let ended = client.collect(&id);
        assert_eq!((ended.code(), &ended.exited["cause"]), (128 + signal, &json!("signal")), "{form}");
        assert_eq!(ended.exited["signal"], format!("SIG{name}"), "{form}");
    }
}

#[test]
fn an_unknown_signal_is_refused_whatever_the_process() {
    let (_server, mut client) = TestServer::with_process(sh("p", "exec sleep 1000"));
    for name in ["", "SIG", "9", "15", "NOPE", "SIGNOPE", "TERM ", "kill -9", "RTMIN+31", "\u{130}NT"] {
        for id in ["p", "never"] {
            client.refuses("process/signal", json!({"processId": id, "signal": name}), -32602, "unknownSignal");
        }
    }
    assert_eq!(client.ok("process/read", process("p"))["exited"], false);
}

#[test]
fn a_process_can_be_stopped_and_continued() {
    let (_server, mut client) = TestServer::with_client();
    let pid = pid_of(&client.start(sh("p", "exec sleep 1000")));
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
    let (_server, mut client) = TestServer::with_client();
    for tty in [false, true] {
        let id = format!("p{tty}");
        client.start(with(sh(&id, "sleep 1000 & echo child $!.; wait"), json!({"tty": tty})));
        let child = child_of(&client.wait_output(&id, "."));
        client.ok("process/signal", json!({"processId": id, "signal": "TERM"}));
        assert_eq!(client.collect(&id).code(), 143);
        wait_pid_gone(child);
    }
}

#[test]
fn terminate_kills_at_once_and_says_that_it_ran() {
    let (_server, mut client) = TestServer::with_client();
    for tty in [false, true] {
        let id = format!("p{tty}");
        client.start(with(sh(&id, "trap '' TERM INT HUP; echo up; while :; do sleep 0.01; done"), json!({"tty": tty})));
        client.wait_output(&id, "up");
        assert_eq!(client.terminate(&id), json!({"running": true}));
        let ended = client.collect(&id);
        assert_eq!((ended.code(), &ended.exited["signal"]), (137, &json!("SIGKILL")), "tty {tty}");
        assert_eq!(ended.exited["cause"], "terminated");
    }
}

#[test]
fn terminate_reports_false_after_process_exit() {
    let (_server, mut client) = TestServer::with_client();
    client.run("p", &["true"]);
    for params in [process("p"), process("never"), with(process("never"), json!({"graceMs": 5}))] {
        assert_eq!(client.ok("process/terminate", params), json!({"running": false}));
    }
}

#[test]
fn terminate_behind_a_start_leaves_nothing() {
    let (server, mut client) = TestServer::with_client();
    for number in 0..20 {
        let id = format!("p{number}");
        let start = client.send_request("process/start", sh(&id, "exec sleep 1000"));
        let terminate = client.send_request("process/terminate", process(&id));
        assert_eq!(client.answer(terminate).expect("terminate")["running"], true);
        let started = client.answer(start).expect("start");
        assert_eq!(client.collect(&id).code(), 137);
        wait_pid_gone(pid_of(&started));
        // A second start with the same id is refused.
        client.refuses("process/start", sh(&id, "exec sleep 1000"), -32600, "duplicateProcess");
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
    let (_server, mut client) = TestServer::with_client();
    client.start(sh("p", "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.01; done"));
    client.wait_output("p", "up");
    assert_eq!(client.ok("process/terminate", with(process("p"), json!({"graceMs": 20_000})))["running"], true);
    let ended = client.collect("p");
    assert_eq!((ended.stdout.as_slice(), ended.code()), (b"bye\n".as_slice(), 4));
    // A process that dies from SIGTERM ended as requested.
    client.start(sh("q", "echo up; exec sleep 1000"));
    client.wait_output("q", "up");
    client.ok("process/terminate", with(process("q"), json!({"graceMs": 20_000})));
    let ended = client.collect("q");
    assert_eq!((ended.code(), &ended.exited["cause"]), (143, &json!("terminated")));
}

#[test]
fn a_child_that_ignores_the_polite_signal_is_killed_after_the_grace_period() {
    let (_server, mut client) = TestServer::with_client();
    for (number, grace) in [0, 100].into_iter().enumerate() {
        let id = format!("p{number}");
        client.start(sh(&id, "trap '' TERM; echo up; while :; do sleep 0.01; done"));
        client.wait_output(&id, "up");
        client.ok("process/terminate", with(process(&id), json!({"graceMs": grace})));
        let ended = client.collect(&id);
        assert_eq!((ended.code(), &ended.exited["cause"]), (137, &json!("terminated")));
    }
}

#[test]
fn terminate_without_grace_overtakes_a_grace_period() {
    let (_server, mut client) = TestServer::with_client();
    client.start(sh("p", "trap '' TERM; echo up; while :; do sleep 0.01; done"));
    client.wait_output("p", "up");
    client.ok("process/terminate", with(process("p"), json!({"graceMs": 1_000_000})));
    assert_eq!(client.terminate("p")["running"], true);
    assert_eq!(client.collect("p").code(), 137);
}

#[test]
fn terminate_reaches_children_that_left_the_group_and_the_session() {
    let (_server, mut client) = TestServer::with_client();
    for (number, grace) in [None, Some(50)].into_iter().enumerate() {
        let id = format!("p{number}");
        // These children are in another session, and one has lost its parent: they can be found only as descendants.
        let script = "setsid sh -c 'trap \"\" TERM; echo a $$.; while :; do sleep 0.01; done' & \
                      (setsid sh -c 'sleep 1000 & echo b $!.; wait' &) ; wait; exec sleep 1000";
        client.start(sh(&id, script));
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
    let (_server, mut client) = TestServer::with_client();
    client.start(tty("p", "sleep 1000 & echo child $!.; wait"));
    let child = child_of(&client.wait_output("p", "."));
    client.terminate("p");
    assert_eq!(client.collect("p").code(), 137);
    wait_pid_gone(child);
}

// Each terminate scanned all processes of the host twice, in the only thread of the session: an echo took seconds.
#[test]
fn a_burst_of_terminates_holds_up_no_other_process() {
    let (_server, mut client) = TestServer::with_process(cat("cat"));
    let ids: Vec<String> = (0..300).map(|i| format!("s{i}")).collect();
    let starts: Vec<i64> =
        ids.iter().map(|id| client.send_request("process/start", start_params(id, &["sleep", "1000"]))).collect();
    client.answers(starts);
    let begun = Instant::now();
    let terminates: Vec<i64> = ids.iter().map(|id| client.send_request("process/terminate", process(id))).collect();
    client.send_write("cat", b"echo\n");
    client.wait_output("cat", "echo\n");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    for terminate in terminates {
        assert_eq!(client.answer(terminate), Ok(json!({"running": true})));
    }
}

#[test]
fn d11_1_1_terminate_loses_no_byte_that_was_written_before_it() {
    let (server, mut client) = TestServer::with_client();
    for round in 0..20 {
        let id = format!("p{round}");
        let gate = fifo(server.dir(), &id);
        client.start(sh(&id, &format!("head -c 60000 /dev/zero; echo end >{gate}; exec sleep 1000")));
        // The output is written, but may still be in the pipe.
        assert_eq!(fs::read_to_string(&gate).expect("read the FIFO"), "end\n");
        client.terminate(&id);
        let ended = client.collect(&id);
        assert_eq!((ended.stdout.len(), ended.code()), (60_000, 137), "the real exit code, and every byte");
        assert_eq!(ended.closed["outputBytes"], 60_000);
    }
}

#[test]
fn d11_3_2_background_children_that_let_go_of_the_streams_live_on_until_the_session_ends() {
    let (_server, mut client, _) = TestServer::with_modern_client();
    let script = "sleep 1000 </dev/null >/dev/null 2>&1 & echo $!";
    let ended = client.run_params(sh("p", script));
    let child: u32 = String::from_utf8_lossy(&ended.stdout).trim_end().parse().expect("a pid");
    let is_alive = || fs::read(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep"));
    assert_eq!(client.terminate("p")["running"], false);
    client.ok("process/forget", process("p"));
    // The reference kills the old process group when it forgets the process. Check after further work that ours does not.
    assert_eq!(client.run("q", &["true"]).code(), 0);
    assert!(is_alive());
    client.ok("session/end", json!({}));
    wait_pid_gone(child);
}

#[test]
fn d11_3_3_a_grandchild_that_holds_the_streams_is_reached_by_terminate() {
    let (_server, mut client) = TestServer::with_client();
    for (number, holder) in ["sleep 1000 &", "setsid sleep 1000 &", "(setsid sleep 1000 &);"].into_iter().enumerate() {
        for is_tty in [false, true] {
            let id = format!("p{number}{is_tty}");
            // On a terminal a background child gets SIGHUP when its session leader exits, so it ignores the signal.
            client.start(with(sh(&id, &format!("trap '' HUP; echo up; {holder} exit 5")), json!({"tty": is_tty})));
            client.wait_output(&id, "up");
            assert_eq!(client.expect("process/exited")["exitCode"], 5);
            let answer = client.terminate(&id);
            assert_eq!(answer["running"], false);
            if answer["streamsHeld"] != true {
                // The exit of the session leader may have hung the terminal up already.
                assert!(is_tty, "{holder}: {answer}");
            }
            client.expect("process/closed");
        }
    }
}
