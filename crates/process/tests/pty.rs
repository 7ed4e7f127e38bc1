//! Children on a terminal.

mod common;

use std::os::fd::AsFd;

use common::{
    PIPE, PTY, finish, interactive_shell, is_gone, is_reaped, number_after, on_terminal, pipe_with, read_until, run,
    sh, spawn, wait_exit, wait_until, write_all,
};
use exec_server_process::{CloseStdinOutcome, SpawnError, StdioMode, TerminalSize};

#[test]
fn pty_repl_emits_output_and_exits() {
    let child = interactive_shell().spawn().expect("sh starts");
    let master = child.pty().expect("a terminal");
    read_until(master, "ready> ");
    write_all(master, b"echo $((6 * 7))\n");
    read_until(master, "42\r\n");
    write_all(master, b"exit 3\n");
    assert_eq!(finish(child).code, 3);
}

#[test]
fn pipe_and_pty_share_interface() {
    for (stdio, newline) in [(PIPE, "\n"), (PTY, "\r\n")] {
        let finished = run(sh(stdio, "echo same; exit 5"));
        assert_eq!(format!("{}{}", finished.stdout, finished.pty), format!("same{newline}"));
        assert_eq!(finished.code, 5);
    }
}

#[test]
fn pty_is_the_controlling_terminal_of_its_own_session() {
    let child = sh(PTY, "tty; cut -d' ' -f5,6,8 /proc/$$/stat; : </dev/tty && echo opened").spawn().expect("sh starts");
    let pid = child.pid().as_raw_pid();
    let text = finish(child).pty;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("/dev/pts/"), "{text}");
    assert_eq!(lines[1..], [format!("{pid} {pid} {pid}").as_str(), "opened"]);
}

#[test]
fn pty_size_is_set_before_the_program_runs() {
    assert_eq!(run(sh(PTY, "stty size")).pty, "24 80\r\n");
    assert_eq!(run(sh(StdioMode::Pty(TerminalSize { rows: 7, cols: 133 }), "stty size")).pty, "7 133\r\n");
    assert_eq!(PTY, StdioMode::Pty(TerminalSize::default()));
}

#[test]
fn resize_is_seen_by_the_child() {
    let script = "trap 'stty size; exit 6' WINCH; echo armed; while :; do sleep 0.01; done";
    let child = on_terminal(script, "armed");
    child.resize(TerminalSize { rows: 50, cols: 120 }).expect("the size changes");
    read_until(child.pty().expect("a terminal"), "50 120\r\n");
    assert_eq!(finish(child).code, 6);
}

#[test]
fn environment_is_exactly_what_was_given() {
    for stdio in [PIPE, PTY] {
        let mut spawn = spawn(stdio, &["/usr/bin/env"]);
        spawn.env = vec![c"ONLY=this".to_owned(), c"EMPTY=".to_owned()];
        let finished = run(spawn);
        let text = format!("{}{}", finished.stdout, finished.pty);
        assert_eq!(text.lines().collect::<Vec<_>>(), ["ONLY=this", "EMPTY="]);
    }
}

#[test]
fn pty_terminate_kills_background_children_in_same_process_group() {
    // Without job control, the background job stays in the leader's group.
    let mut child = sh(PTY, "sleep 1000 & echo bg=$!; wait").spawn().expect("sh starts");
    let background = number_after(&read_until(child.pty().expect("a terminal"), "\n"), "bg");
    child.signal_group(libc::SIGKILL).expect("the group is there");
    assert_eq!(wait_exit(&mut child).code, 137);
    assert!(is_reaped(child.pid()));
    wait_until("the end of the background job", || is_gone(background));
}

#[test]
fn interrupt_character_reaches_the_foreground_group() {
    let child = on_terminal("trap 'echo caught; exit 9' INT; echo armed; while :; do sleep 0.01; done", "armed");
    write_all(child.pty().expect("a terminal"), &[3]);
    read_until(child.pty().expect("a terminal"), "caught");
    assert_eq!(finish(child).code, 9);
}

#[test]
fn close_stdin_of_a_canonical_terminal_ends_the_input() {
    let mut child = spawn(PTY, &["cat"]).spawn().expect("cat starts");
    write_all(child.stdin().expect("the terminal takes input"), b"line\n");
    read_until(child.pty().expect("a terminal"), "line\r\nline\r\n");
    assert_eq!(child.close_stdin().expect("the character is sent"), CloseStdinOutcome::EofSent);
    assert_eq!(finish(child).code, 0);
}

#[test]
fn close_stdin_of_a_raw_terminal_reports_raw_mode() {
    let mut child = on_terminal("stty raw -echo; echo raw; exec cat", "raw");
    assert_eq!(child.close_stdin().expect("the mode can be read"), CloseStdinOutcome::RawMode);
    assert_eq!(child.try_wait().expect("the child can be waited for"), None);
}

#[test]
fn output_before_the_exit_is_complete_on_a_terminal() {
    let finished = run(sh(PTY, "stty -opost; head -c 300000 /dev/zero | tr '\\0' y"));
    assert_eq!((finished.pty.len(), finished.code), (300_000, 0));
}

#[test]
fn terminal_output_is_complete_when_it_is_read_after_the_reap() {
    for _round in 0..50 {
        let mut child = sh(PTY, "stty -opost; head -c 2000 /dev/zero | tr '\\0' z").spawn().expect("sh starts");
        assert_eq!(wait_exit(&mut child).code, 0);
        assert_eq!(finish(child).pty.len(), 2000);
    }
}

#[test]
fn terminal_ends_when_the_slave_is_released() {
    let mut child = spawn(PTY, &["true"]).spawn().expect("true starts");
    let master = child.pty().expect("a terminal").try_clone_to_owned().expect("a descriptor is free");
    wait_exit(&mut child);
    child.release_slave();
    let mut rest = Vec::new();
    common::read_to_end(master.as_fd(), &mut rest);
    assert_eq!(rest, b"");
}

#[test]
fn pty_spawn_can_preserve_inherited_fds() {
    let mut spawn = sh(PTY, "head -n 1 <&5");
    spawn.extra_fds = vec![(pipe_with(b"declared\n"), 5)];
    assert_eq!(run(spawn).pty, "declared\r\n");
}

#[test]
fn pty_preserving_inherited_fds_keeps_repl_running() {
    let (read, write) = rustix::pipe::pipe().expect("a pipe opens");
    rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).expect("the flag is set");
    let mut spawn = interactive_shell();
    spawn.extra_fds = vec![(write, 5)];
    let child = spawn.spawn().expect("sh starts");
    let master = child.pty().expect("a terminal");
    read_until(master, "ready> ");
    write_all(master, b"echo through >&5; echo st''ill\n");
    read_until(master, "still\r\n");
    assert_eq!(read_until(read.as_fd(), "\n"), "through\n");
    write_all(master, b"exit 0\n");
    assert_eq!(finish(child).code, 0);
}

#[test]
fn pty_spawn_with_inherited_fds_reports_exec_failures() {
    let file = std::fs::File::open("/dev/null").expect("the null device opens");
    let mut spawn = spawn(PTY, &["/no/such/program"]);
    spawn.extra_fds = vec![(file.into(), 5)];
    let error = spawn.spawn().expect_err("the program does not exist");
    assert!(matches!(error, SpawnError::Exec { .. }), "{error:?}");
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn pty_spawn_with_inherited_fds_supports_resize() {
    let file = std::fs::File::open("/dev/null").expect("the null device opens");
    let mut spawn = sh(PTY, "echo up; read line; stty size");
    spawn.extra_fds = vec![(file.into(), 5)];
    let child = spawn.spawn().expect("sh starts");
    read_until(child.pty().expect("a terminal"), "up");
    child.resize(TerminalSize { rows: 33, cols: 99 }).expect("the size changes");
    write_all(child.pty().expect("a terminal"), b"go\n");
    read_until(child.pty().expect("a terminal"), "33 99\r\n");
    assert_eq!(finish(child).code, 0);
}
