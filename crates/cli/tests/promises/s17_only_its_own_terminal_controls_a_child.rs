//! S17: every child leads its own session, with or without a terminal, and only its own terminal controls it. A child cannot reach the
//! terminal in which the server was started, nor inject input into it; in a sandbox not even into its own.

use crate::{
    prelude::*,
    promises::{host_helpers::compile, sandbox_helpers::special},
};

/// Tries to get at a terminal and prints a line for each attempt. The second ioctl number differs in bits that the kernel ignores.
const INTRUDER: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
static void tell(const char *what, long result, const char *success) {
    printf("%s=%s\n", what, result < 0 ? strerrorname_np(errno) : success);
}

int main(int argc, char **argv) {
    char key = '#';
    printf("leads=%d\n", getsid(0) == getpid());
    tell("tty", open("/dev/tty", O_RDWR), "open");
    int other = open(argv[1], O_RDWR | O_NOCTTY);
    tell("other", other, "open");
    tell("type", syscall(SYS_ioctl, other, (unsigned long) TIOCSTI, &key), "typed");
    tell("high", syscall(SYS_ioctl, other, (unsigned long) TIOCSTI | 0xffffffff00000000ul, &key), "typed");
    tell("console", syscall(SYS_ioctl, other, (unsigned long) TIOCLINUX, &key), "done");
    tell("upper", syscall(SYS_ioctl, other, (unsigned long) TIOCLINUX | 0xff00000000ul, &key), "done");
    tell("steal", syscall(SYS_ioctl, other, (unsigned long) TIOCSCTTY, 0), "stolen");
    printf("done\n");
    return 0;
}

"#;

/// Starts a server on a terminal, as an unprivileged user, because root may do everything regardless of sessions.
fn start_on_terminal(outer: &mut Client, mark: &str, state: &str) -> String {
    let argv = [binary(), "serve", "--state-dir", state, "--kill-on-exit", "--allow-host", mark];
    outer.ok("process/start", with(start_params("server", &argv), json!({"tty": true})));
    let said = outer.wait_output("server", "\n");
    said.lines().find(|line| line.starts_with("ws://")).unwrap_or_else(|| panic!("a URL in {said:?}")).trim().to_owned()
}

/// Runs the intruder and returns its output.
fn told(client: &mut Client, params: Value) -> String {
    client.run_params(params).text().replace('\r', "")
}

/// The result of one attempt.
fn line<'a>(said: &'a str, name: &str) -> &'a str {
    said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} in {said}"))
}

/// A sandboxed command may share its terminal with one that is not sandboxed, which would run any injected input.
#[test]
fn in_a_sandbox_a_child_types_into_no_terminal_not_even_its_own() {
    let server = TestServer::start();
    let intruder = compile(server.dir(), "intruder", INTRUDER, &[]);
    server.open_dir();
    let (mut client, _) = server.modern_client();
    let mut params = with(start_params("free", &[&intruder, "/dev/tty"]), json!({"tty": true}));
    let said = told(&mut client, params.clone());
    // Without a sandbox no seccomp filter is active, so the error comes from the terminal itself.
    assert_eq!(line(&said, "other="), "open");
    assert!(["ENOTTY", "EINVAL"].contains(&line(&said, "console=")), "{said}");
    params["processId"] = json!("boxed");
    let policy = sandbox(vec![special("root", "read")], "enabled");
    let said = told(&mut client, confined(params, &policy));
    assert_eq!(line(&said, "other="), "open");
    for attempt in ["type=", "high=", "console=", "upper="] {
        assert_eq!(line(&said, attempt), "EPERM", "{attempt} in {said}");
    }
}

#[test]
fn a_child_neither_has_nor_reaches_the_terminal_of_its_server() {
    let outer = TestServer::builder().args(["--run-as", "nobody"]).start();
    let intruder = compile(outer.dir(), "intruder", INTRUDER, &[]);
    outer.open_dir();
    let (mut keeper, _) = outer.modern_client();
    let mark = format!("inner-{}", outer.mark());
    let state = std::env::temp_dir().join(&mark);
    let url = start_on_terminal(&mut keeper, &mark, &state.display().to_string());
    let server = keeper.pid_of("server");
    let terminal = std::fs::read_link(format!("/proc/{server}/fd/0")).expect("the terminal of the server");
    assert!(terminal.starts_with("/dev/pts"), "{}", terminal.display());

    let mut client = Client::connect(&url).expect("connect to the server on the terminal");
    client.initialize();
    for tty in [false, true] {
        let id = format!("intruder-{tty}");
        let argv = [&*intruder, &terminal.display().to_string()];
        let said = told(&mut client, with(start_params(&id, &argv), json!({"tty": tty})));
        let line = |name: &str| line(&said, name);
        assert_eq!(line("leads="), "1", "it leads its session");
        assert_eq!(line("tty="), if tty { "open" } else { "ENXIO" }, "its own terminal or none");
        assert_eq!(line("other="), "open", "the same user may open it: the rest is what protects");
        for attempt in ["type=", "high=", "steal="] {
            assert!(["EPERM", "EIO"].contains(&line(attempt)), "{attempt}{}", line(attempt));
        }
        assert_eq!(line("done"), "");
    }
    // With a terminal, `/dev/tty` is the child's own one.
    let said = client.run_params(tty("own", "tty; echo here > /dev/tty")).text();
    assert!(said.starts_with("/dev/pts/") && said.contains("here"), "{said}");
    assert_ne!(said.lines().next().map(str::trim), terminal.to_str());
    drop(client);
    keeper.ok("process/terminate", json!({"processId": "server", "graceMs": 5000}));
    keeper.collect("server");
    wait_gone("the server on the terminal", &marked(&mark));
    std::fs::remove_dir_all(&state).expect("remove its state");
}
