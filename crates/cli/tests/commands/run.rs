//! `exec-server run`: exit codes, streams, stdin, terminals and signals, with real programs.

use std::{io::Write, os::unix::process::ExitStatusExt};

use crate::prelude::*;

fn command(args: &[&str]) -> Command {
    let mut command = program();
    command.arg("run").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns stdout, stderr and the exit code.
fn run(args: &[&str]) -> (String, String, Option<i32>) {
    outcome(command(args))
}

fn run_with_input(args: &[&str], input: &[u8]) -> Output {
    finish_with_input(command(args), input)
}

#[test]
fn streams_stay_apart_and_the_exit_code_is_kept() {
    let (out, errors, code) = run(&["--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((out.as_str(), errors.as_str(), code), ("out\n", "err\n", Some(3)));
}

#[test]
fn a_successful_run_prints_nothing() {
    assert_eq!(run(&["--", "true"]), (String::new(), String::new(), Some(0)));
}

#[test]
fn each_way_to_end_has_its_code() {
    for (argv, code) in [
        (&["sh", "-c", "exit 255"][..], 255),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["sh", "-c", "kill -TERM $$"], 143),
        (&["sh", "-c", "kill -SEGV $$"], 139),
        (&["no-such-program-anywhere"], 127),
        (&["/no/such/program"], 127),
        (&["/etc/passwd"], 126),
        (&["/etc"], 126),
    ] {
        let (_, said, seen) = run(&[&["--"], argv].concat());
        assert_eq!(seen, Some(code), "{argv:?}: {said}");
        let is_ours = argv.len() == 1;
        assert_eq!(!said.is_empty(), is_ours, "{argv:?}");
    }
}

#[test]
fn a_missing_cwd_is_an_error_and_never_home() {
    let (out, said, code) = run(&["--cwd", "/no/such/dir", "--", "pwd"]);
    assert_eq!((code, out.as_str()), (Some(255), ""));
    assert!(said.contains("/no/such/dir"));
}

#[test]
fn cwd_environment_and_arguments_arrive() {
    let dir = tempfile::Builder::new().prefix("with % and blank ").tempdir().expect("make a directory");
    let script = "pwd; echo \"$ADDED|$KEPT_TOKEN|$0\"";
    let mut command = command(&["--env", "ADDED=a=b", "--", "sh", "-c", script, "last one"]);
    command.env("KEPT_TOKEN", "kept").current_dir(dir.path());
    let path = dir.path().canonicalize().expect("the directory exists");
    assert_eq!(outcome(command).0, format!("{}\na=b|kept|last one\n", path.display()));
}

#[test]
fn stdin_goes_through_to_its_end_byte_for_byte() {
    let input = pattern(0, 3_000_001);
    let output = run_with_input(&["--", "cat"], &input);
    assert!(output.status.success());
    assert!(output.stdout == input, "{} bytes came back of {}", output.stdout.len(), input.len());
}

#[test]
fn an_empty_stdin_is_an_end_of_file() {
    let output = run_with_input(&["--", "wc", "-c"], b"");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0");
}

#[test]
fn a_program_that_does_not_read_its_stdin_ends_nevertheless() {
    let output = run_with_input(&["--", "sh", "-c", "exec 0<&-; echo done"], &pattern(0, 4_000_000));
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"done\n"[..], Some(0)));
}

#[test]
fn output_beyond_every_window_arrives_whole() {
    let (out, errors, _) = run(&["--", "sh", "-c", "head -c 30000000 /dev/zero; head -c 3000000 /dev/zero >&2"]);
    assert_eq!((out.len(), errors.len()), (30_000_000, 3_000_000));
    assert!(out.bytes().chain(errors.bytes()).all(|byte| byte == 0));
}

#[test]
fn a_closed_stdout_ends_the_program_like_a_pipe_does() {
    for program in ["yes", "trap '' PIPE; while echo y; do :; done; exit 1"] {
        assert_ends_with_its_reader(command(&["--", "sh", "-c", program]), "y\ny\n");
    }
}

#[test]
fn limits_environment_and_input_are_as_asked_for() {
    let (out, said, code) = run(&["--timeout", "200ms", "--", "sh", "-c", "echo part; exec sleep 1000"]);
    assert_eq!((out.as_str(), code), ("part\n", Some(124)));
    assert!(said.contains("killed: timeout reached"));
    assert_eq!(run(&["--idle-timeout", "200ms", "--", "sleep", "1000"]).2, Some(124));
    assert_eq!(run(&["--env-inherit", "none", "--env", "ONLY=this", "--", "/usr/bin/env"]).0, "ONLY=this\n");
    let output = run_with_input(&["-n", "--", "wc", "-c"], b"not for it");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0");
}

#[test]
fn signals_are_passed_on() {
    use rustix::process::Signal;
    for (name, number) in [("INT", Signal::INT), ("TERM", Signal::TERM), ("HUP", Signal::HUP), ("QUIT", Signal::QUIT)] {
        let program = format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child = command(&["--", "sh", "-c", &program]).spawn().expect("run exec-server");
        let mut stdout = child.stdout.take().expect("stdout is a pipe");
        read_until(&mut stdout, "ready\n");
        send_signal(child.id(), number);
        assert_eq!(read_until(&mut stdout, "\n"), format!("got {name}\n"));
        assert_eq!(child.wait().expect("wait for exec-server").code(), Some(7));
    }
}

#[test]
fn a_program_with_a_terminal_sees_one() {
    let output = run_with_input(&["-t", "--", "sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size"], b"");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "24 80\r\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn our_terminal_is_raw_during_the_run_resized_and_restored() {
    use rustix::{
        pty::OpenptFlags,
        termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
    };
    let master =
        rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("open a pty");
    rustix::pty::grantpt(&master).expect("grant the pty");
    rustix::pty::unlockpt(&master).expect("unlock the pty");
    let name = rustix::pty::ptsname(&master, Vec::new()).expect("name the pty");
    let path = name.to_str().expect("a pty has a plain name");
    let slave = std::fs::File::options().read(true).write(true).open(path).expect("open the terminal");
    let size = |rows, cols| Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size(33, 44)).expect("set the size");
    let is_canonical =
        || tcgetattr(&slave).expect("read the modes").local_modes.contains(LocalModes::ICANON | LocalModes::ECHO);
    assert!(is_canonical());
    let program = "stty size; while read -r line; do stty size; echo \"<$line>\"; done; exit 5";
    let mut child = command(&["-t", "--", "sh", "-c", program]);
    let mut child = child.stdin(slave.try_clone().expect("share the terminal")).spawn().expect("run exec-server");
    let mut stdout = child.stdout.take().expect("stdout is a pipe");
    read_until(&mut stdout, "33 44\r\n");
    assert!(!is_canonical(), "raw while the program runs");
    tcsetwinsize(&master, size(55, 66)).expect("set the size");
    // The terminal is not our controlling terminal, so the kernel sends no SIGWINCH.
    send_signal(child.id(), rustix::process::Signal::WINCH);
    let mut keys = std::fs::File::from(master.try_clone().expect("share the pty"));
    let mut seen = String::new();
    wait_for("the new size", || {
        keys.write_all(b"key\r").expect("type");
        seen += &read_until(&mut stdout, "<key>\r\n");
        seen.contains("55 66\r\n")
    });
    keys.write_all(b"\x04").expect("type");
    assert_eq!(child.wait().expect("wait for exec-server").code(), Some(5));
    assert!(is_canonical(), "given back");
}

#[test]
fn a_killed_run_leaves_no_process_behind() {
    // A killed program cannot remove its private directory, so create it in one that the test removes.
    let dir = tempfile::tempdir().expect("make a directory");
    let mut run = command(&["--", "sh", "-c", "sleep 1000 & echo $$; wait"]);
    let mut child = run.env("XDG_RUNTIME_DIR", dir.path()).spawn().expect("run exec-server");
    let mut stdout = child.stdout.take().expect("stdout is a pipe");
    let leader: u32 = read_until(&mut stdout, "\n").trim().parse().expect("a process id");
    let all = testkit::descendants(&[child.id(), leader].into());
    child.kill().expect("kill exec-server");
    assert_eq!(child.wait().expect("wait for exec-server").signal(), Some(9));
    testkit::wait_gone("the program and what it started", &all);
    testkit::wait_gone("the leader", &[leader].into());
}

#[test]
fn an_ended_run_leaves_no_process_and_no_directory() {
    let dir = tempfile::tempdir().expect("make a directory");
    let mut run = command(&["--", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo done"]);
    let run = run.env("XDG_RUNTIME_DIR", dir.path()).env("TMPDIR", dir.path());
    let status = run.status().expect("run exec-server");
    assert!(status.success());
    assert_eq!(std::fs::read_dir(dir.path()).expect("read the directory").count(), 0);
    let mark = dir.path().display().to_string();
    wait_for("end of everything it started", || {
        !std::fs::read_dir("/proc").expect("read /proc").filter_map(Result::ok).any(|entry| {
            std::fs::read(entry.path().join("environ"))
                .is_ok_and(|environ| environ.windows(mark.len()).any(|part| part == mark.as_bytes()))
        })
    });
}
