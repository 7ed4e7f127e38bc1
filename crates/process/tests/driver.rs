//! Children that a script simulates.

mod common;

use std::io::ErrorKind;

use common::{PIPE, PIPE_OPEN, PTY, finish, read_until, wait_exit, write_all};
use exec_server_process::{Child, CloseStdinOutcome, TerminalSize};

#[test]
fn driver_backed_process_can_expose_split_stdout_and_stderr() {
    let (child, driver) = Child::scripted(PIPE).expect("a script opens");
    driver.write_stdout(b"out").expect("there is room");
    driver.write_stderr(b"err").expect("there is room");
    driver.exit(3);
    driver.close_all();
    let finished = finish(child);
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str(), finished.code), ("out", "err", 3));
}

#[test]
fn driver_backed_process_can_resize_via_resizer_hook() {
    let (child, driver) = Child::scripted(PTY).expect("a script opens");
    child.resize(TerminalSize { rows: 5, cols: 6 }).expect("a terminal has a size");
    assert_eq!(driver.resizes(), [TerminalSize::default(), TerminalSize { rows: 5, cols: 6 }]);
    let (child, driver) = Child::scripted(PIPE).expect("a script opens");
    assert!(child.resize(TerminalSize::default()).is_err());
    assert!(driver.resizes().is_empty());
}

#[test]
fn driver_backed_process_drains_output_that_arrives_after_exit_signal() {
    let (mut child, driver) = Child::scripted(PIPE).expect("a script opens");
    driver.write_stdout(b"before ").expect("there is room");
    driver.exit(0);
    assert_eq!(wait_exit(&mut child).code, 0);
    driver.write_stdout(b"after").expect("there is room");
    driver.close_all();
    assert_eq!(finish(child).stdout, "before after");
}

#[test]
fn driver_backed_interrupt_terminates_once() {
    let (mut child, driver) = Child::scripted(PIPE).expect("a script opens");
    driver.on_signal(|driver, signal| {
        assert!(!driver.has_exited());
        driver.exit(100 + signal);
    });
    child.signal_group(libc::SIGINT).expect("the script lives");
    child.signal_group(libc::SIGINT).expect("a zombie takes signals");
    assert_eq!(driver.signals(), [libc::SIGINT, libc::SIGINT]);
    assert_eq!(wait_exit(&mut child).code, 102);
    let error = child.signal_group(libc::SIGINT).expect_err("it was reaped");
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    assert_eq!(driver.signals().len(), 2);
}

#[test]
fn kill_ends_a_script_that_ignores_all_signals() {
    let (mut child, driver) = Child::scripted(PIPE).expect("a script opens");
    driver.on_signal(|_driver, _signal| {});
    child.signal_group(libc::SIGTERM).expect("the script lives");
    assert_eq!(child.try_wait().expect("the script can be asked"), None);
    let killed = child.kill_tree().expect("a script can be killed");
    assert_eq!((killed.signalled, killed.complete), (1, true));
    assert_eq!(wait_exit(&mut child).signal, Some(9));
    assert_eq!(driver.signals(), [libc::SIGTERM, libc::SIGKILL]);
    assert_eq!(finish(child).code, 137);
}

#[test]
fn signals_without_a_hook_act_as_on_a_plain_process() {
    let (mut child, driver) = Child::scripted(PIPE).expect("a script opens");
    child.signal_group(libc::SIGWINCH).expect("the script lives");
    assert!(!driver.has_exited());
    child.signal_group(libc::SIGTERM).expect("the script lives");
    assert_eq!(wait_exit(&mut child).code, 143);
}

#[test]
fn script_reads_what_was_written_to_stdin() {
    for stdio in [PIPE_OPEN, PTY] {
        let (mut child, driver) = Child::scripted(stdio).expect("a script opens");
        let mut buf = [0; 16];
        let error = driver.read_stdin(&mut buf).expect_err("nothing was written");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        write_all(child.stdin().expect("input is open"), b"hello");
        assert_eq!(driver.read_stdin(&mut buf).expect("there is input"), 5);
        let closed = child.close_stdin().expect("the input ends");
        let end = if stdio == PTY { (CloseStdinOutcome::EofSent, 1) } else { (CloseStdinOutcome::Closed, 0) };
        assert_eq!((closed, driver.read_stdin(&mut buf).expect("the end is there")), end);
        drop(child);
    }
}

#[test]
fn scripted_terminal_in_raw_mode_has_no_end_of_input() {
    let (mut child, driver) = Child::scripted(PTY).expect("a script opens");
    driver.set_canonical(false);
    assert_eq!(child.close_stdin().expect("the mode is known"), CloseStdinOutcome::RawMode);
    driver.write_pty(b"still here").expect("there is room");
    read_until(child.pty().expect("a terminal"), "still here");
    assert_eq!(child.pidfd().map(|_fd| ()), None);
}
