//! Start, output, exit and close of processes.

use crate::prelude::*;
use exec_server_holder::control::StartStage;
use exec_server_log::ExitCause;

#[test]
fn output_exit_and_close_arrive_in_order() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(spec());
    let driver = rig.driver();
    driver.write_stdout(b"one").expect("room");
    driver.write_stderr(b"two").expect("room");
    driver.exit(3);
    rig.until(|rig| rig.server.log(slot).exit.is_some());
    driver.write_stdout(b"late").expect("a grandchild holds the pipe");
    rig.until(|rig| rig.server.log(slot).bytes.ends_with(b"late"));
    driver.close_all();
    let log = rig.until_closed(slot);
    assert_eq!(log.order, ["output", "exited", "output", "closed"]);
    assert_eq!((log.exit.expect("exited").code, log.closed), (3, Some((10, 0))));
    assert_eq!(rig.status(slot).closed_seq, Some(5));
}

#[test]
fn real_child_delivers_both_streams_its_code_and_usage() {
    let mut rig = HolderRig::real();
    let slot = rig.start(shell("printf out; printf err >&2; exit 5"));
    let log = rig.until_closed(slot);
    let mut bytes = log.bytes.clone();
    bytes.sort_unstable();
    assert_eq!(bytes, b"eorrtu");
    let exit = log.exit.expect("exited");
    assert_eq!((exit.code, exit.signal, exit.cause), (5, None, ExitCause::Exit));
    assert!(exit.max_rss_bytes > 0);
    assert_eq!(rig.server.pidfds, 1);
}

#[test]
fn consecutive_starts_are_answered_in_order_and_before_later_commands() {
    let mut rig = HolderRig::real();
    let mut asked = Vec::new();
    for number in 0..20_u32 {
        let cwd = if number % 6 == 5 { b"/no/such/directory".to_vec() } else { b"/".to_vec() };
        let req = rig.server.req();
        let then = if number == 1 { "exec sleep 1000" } else { "exit 0" };
        let spec = StartSpec { cwd, ..shell(&format!("echo {number}; {then}")) };
        rig.server.send(&ToHolder::Start { req, spec });
        asked.push(req);
    }
    // Terminate the process in the second slot. It runs by the time that the holder handles this command.
    let end = rig.server.req();
    rig.server.send(&ToHolder::Terminate { req: end, slot: 1, grace_ms: None });
    let mut slots = Vec::new();
    for (number, req) in asked.into_iter().enumerate() {
        match rig.until_message(|_| true) {
            FromHolder::Started { req: answered, slot, .. } => slots.push((number, answered == req, slot)),
            FromHolder::StartFailed { req: answered, stage: StartStage::Cwd, .. } => {
                assert_eq!((answered, number % 6), (req, 5));
            }
            other => panic!("start {number}: {other:?}"),
        }
    }
    assert_eq!(rig.until_message(|_| true), FromHolder::Done { req: end, status: CommandStatus::Ok });
    assert_eq!(slots.len(), 17);
    for (expected, (number, is_its_own, slot)) in (0..).zip(slots) {
        assert!(is_its_own && slot == expected, "start {number} is in slot {slot}");
        let said = &rig.until_closed(slot).bytes;
        // The second process may be killed before it writes anything.
        let is_whole = *said == format!("{number}\n").as_bytes();
        assert!(is_whole || (number == 1 && said.is_empty()), "start {number}: {said:?}");
    }
}

#[test]
fn large_output_of_a_real_child_arrives_whole() {
    let mut rig = HolderRig::real();
    let slot = rig.start(shell("head -c 40000000 /dev/zero | tr '\\0' x"));
    rig.until(|rig| {
        rig.server.release(slot);
        rig.server.log(slot).closed.is_some()
    });
    let log = rig.server.log(slot);
    assert_eq!((log.bytes.len(), log.gap_bytes), (40_000_000, 0));
    assert!(log.bytes.iter().all(|byte| *byte == b'x'));
}

#[test]
fn terminal_output_written_before_the_exit_comes_before_it() {
    let mut rig = HolderRig::real();
    let tty = Some(TerminalSize { rows: 40, cols: 132 });
    let slot = rig.start(StartSpec { tty, ..shell("stty size; exit 7") });
    let log = rig.until_closed(slot);
    assert_eq!(log.bytes, b"40 132\r\n");
    assert_eq!(log.order, ["output", "exited", "closed"]);
    assert_eq!(log.exit.expect("exited").code, 7);
}

#[test]
fn failed_start_says_what_failed_and_leaves_no_slot() {
    let mut rig = HolderRig::real();
    let cases: [(StartSpec, StartStage, i32, &[u8]); 4] = [
        (StartSpec { argv: vec![], ..spec() }, StartStage::Input, 0, b"argv"),
        (StartSpec { argv: vec![b"a\0b".to_vec()], ..spec() }, StartStage::Input, 0, b"argv"),
        (StartSpec { cwd: b"/no/such".to_vec(), ..shell("true") }, StartStage::Cwd, libc::ENOENT, b"/no/such"),
        (StartSpec { argv: vec![b"/no/prog".to_vec()], ..spec() }, StartStage::Exec, libc::ENOENT, b"/no/prog"),
    ];
    for (spec, stage, errno, detail) in cases {
        let req = rig.server.req();
        rig.server.send(&ToHolder::Start { req, spec });
        let answer = rig.until_message(|message| matches!(message, FromHolder::StartFailed { .. }));
        assert_eq!(answer, FromHolder::StartFailed { req, stage, errno, detail: detail.to_vec() });
    }
    assert_eq!(rig.start(shell("true")), 0);
}

#[test]
fn start_larger_than_a_datagram_travels_in_a_memfd() {
    let mut rig = HolderRig::real();
    let long = "x".repeat(100_000);
    let slot = rig.start(StartSpec { env: vec![format!("LONG={long}").into_bytes()], ..shell("printf %s \"$LONG\"") });
    assert_eq!(rig.until_closed(slot).bytes, long.as_bytes());
}

#[test]
fn timeout_kills_keeps_the_output_and_names_the_cause() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(StartSpec { timeout_ms: Some(500), ..spec() });
    let driver = rig.driver();
    driver.write_stdout(b"partial").expect("room");
    rig.turn();
    assert_eq!(rig.last.next_deadline_ns, Some(500 * MS));
    rig.now = 499 * MS;
    rig.turn();
    assert!(driver.signals().is_empty());
    rig.now = 500 * MS;
    let log = rig.until_closed(slot);
    assert_eq!((log.bytes.as_slice(), log.exit.expect("exited").cause), (&b"partial"[..], ExitCause::Timeout));
    assert_eq!(driver.signals(), [libc::SIGKILL]);
}

#[test]
fn output_pushes_the_idle_timeout_ahead() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(StartSpec { idle_timeout_ms: Some(100), ..spec() });
    let driver = rig.driver();
    for step in 1..5 {
        rig.now = step * 90 * MS;
        driver.write_stdout(b".").expect("room");
        rig.until(|rig| rig.server.log(slot).bytes.len() == step as usize);
    }
    assert!(driver.signals().is_empty());
    rig.now = 4 * 90 * MS + 100 * MS;
    assert_eq!(rig.until_closed(slot).exit.expect("exited").cause, ExitCause::IdleTimeout);
}

#[test]
fn terminate_sends_sigterm_first_and_kills_when_the_grace_is_over() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(spec());
    let driver = rig.driver();
    driver.on_signal(|_, _| {});
    assert_eq!(rig.request(|req| ToHolder::Terminate { req, slot, grace_ms: Some(200) }), CommandStatus::Ok);
    assert_eq!(rig.request(|req| ToHolder::Terminate { req, slot, grace_ms: Some(900) }), CommandStatus::Ok);
    rig.now = 199 * MS;
    rig.turn();
    assert_eq!(driver.signals(), [libc::SIGTERM]);
    rig.now = 200 * MS;
    let exit = rig.until_closed(slot).exit.expect("exited");
    assert_eq!((exit.code, exit.cause), (137, ExitCause::Terminated));
    assert_eq!(driver.signals(), [libc::SIGTERM, libc::SIGKILL]);
}

#[test]
fn terminate_without_grace_kills_at_once_even_within_a_grace() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(spec());
    let driver = rig.driver();
    driver.on_signal(|_, _| {});
    assert_eq!(rig.request(|req| ToHolder::Terminate { req, slot, grace_ms: Some(60_000) }), CommandStatus::Ok);
    assert_eq!(rig.request(|req| ToHolder::Terminate { req, slot, grace_ms: None }), CommandStatus::Ok);
    assert_eq!(driver.signals(), [libc::SIGTERM, libc::SIGKILL]);
    rig.until_closed(slot);
    assert_eq!(rig.request(|req| ToHolder::Terminate { req, slot, grace_ms: None }), CommandStatus::NotRunning);
}

#[test]
fn orderly_exit_after_our_sigterm_counts_as_terminated() {
    let mut rig = HolderRig::real();
    let slot = rig.start(shell("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done"));
    rig.until(|rig| rig.server.log(slot).bytes == b"ready\n");
    assert_eq!(rig.request(|req| ToHolder::Terminate { req, slot, grace_ms: Some(10_000) }), CommandStatus::Ok);
    let exit = rig.until_closed(slot).exit.expect("exited");
    assert_eq!((exit.code, exit.signal, exit.cause), (3, None, ExitCause::Terminated));
}

#[test]
fn terminate_reaches_descendants_that_hold_the_streams_of_a_dead_leader() {
    let mut rig = HolderRig::real();
    let slot = rig.start(shell("sleep 1000 & echo started"));
    rig.until(|rig| rig.server.log(slot).exit.is_some());
    assert!(rig.server.log(slot).closed.is_none());
    assert_eq!(rig.request(|req| ToHolder::Signal { req, slot, signal: libc::SIGINT }), CommandStatus::NotRunning);
    assert_eq!(rig.request(|req| ToHolder::Terminate { req, slot, grace_ms: None }), CommandStatus::StreamsHeld);
    assert_eq!(rig.until_closed(slot).exit.expect("exited").code, 0);
}

#[test]
fn output_in_the_pipe_at_a_kill_is_delivered() {
    let mut rig = HolderRig::real();
    let slot = rig.start(shell("head -c 50000 /dev/zero; touch done; sleep 1000"));
    rig.until(|rig| !rig.server.log(slot).bytes.is_empty());
    assert_eq!(rig.request(|req| ToHolder::Terminate { req, slot, grace_ms: None }), CommandStatus::Ok);
    let log = rig.until_closed(slot);
    let exit = log.exit.expect("exited");
    assert_eq!((exit.code, exit.signal, exit.cause), (137, Some(9), ExitCause::Terminated));
    assert_eq!(log.closed, Some((log.bytes.len() as u64, 0)));
}

#[test]
fn signals_and_sizes_reach_the_child() {
    let mut rig = HolderRig::scripted();
    let plain = rig.start(spec());
    let driver = rig.driver();
    driver.on_signal(|_, _| {});
    assert_eq!(rig.request(|req| ToHolder::Signal { req, slot: plain, signal: libc::SIGUSR1 }), CommandStatus::Ok);
    assert_eq!(driver.signals(), [libc::SIGUSR1]);
    assert_eq!(rig.request(|req| ToHolder::Resize { req, slot: plain, rows: 1, cols: 2 }), CommandStatus::NotATerminal);
    let tty = rig.start(StartSpec { tty: Some(TerminalSize::default()), ..spec() });
    assert_eq!(rig.request(|req| ToHolder::Resize { req, slot: tty, rows: 50, cols: 100 }), CommandStatus::Ok);
    assert_eq!(rig.driver().resizes().last(), Some(&TerminalSize { rows: 50, cols: 100 }));
    for slot in [2, u32::MAX] {
        assert_eq!(rig.request(|req| ToHolder::Resize { req, slot, rows: 1, cols: 2 }), CommandStatus::UnknownProcess);
        assert_eq!(rig.request(|req| ToHolder::Signal { req, slot, signal: 1 }), CommandStatus::UnknownProcess);
        assert_eq!(rig.request(|req| ToHolder::Terminate { req, slot, grace_ms: None }), CommandStatus::UnknownProcess);
        assert_eq!(rig.request(|req| ToHolder::Forget { req, slot }), CommandStatus::UnknownProcess);
    }
}

#[test]
fn forgotten_process_frees_its_slot_and_a_running_one_is_not_forgotten() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(spec());
    assert_eq!(rig.request(|req| ToHolder::Forget { req, slot }), CommandStatus::NotClosed);
    let driver = rig.driver();
    let data = pattern(20_000);
    driver.write_stdout(&data).expect("room");
    rig.end_process(slot);
    assert_eq!(rig.server.log(slot).bytes, data);
    assert_eq!(rig.request(|req| ToHolder::Forget { req, slot }), CommandStatus::Ok);
    assert_eq!(rig.start(StartSpec { cap_bytes: MIB, ..spec() }), slot);
    assert_eq!(rig.status(slot).next_seq, 1);
}

#[test]
fn nothing_is_announced_after_the_last_event() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(spec());
    let driver = rig.driver();
    // Everything is ready at once, with the exit first. The exit handler reads both streams to EOF, so the events of
    // the streams are handled after the close.
    driver.exit(0);
    driver.write_stdout(b"x").expect("room");
    driver.close_all();
    rig.until_closed(slot);
    for _ in 0..5 {
        rig.turn();
    }
    assert_eq!(rig.server.log(slot).segments(), 1);
}
