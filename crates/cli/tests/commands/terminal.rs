//! `run -t` and `attach` on a real terminal: raw mode and its restoration, resizing, detach keys, redrawing.

use crate::prelude::*;

/// A terminal program that prints its size for each line it reads, and exits on the line `end`. A signal interrupts its `read`.
const SHOW: &str = "stty -echo; trap 'echo drawn' WINCH; echo ready; \
                    while :; do if read -r line; then \
                    stty size; echo \"<$line>\"; test \"$line\" = end && exit 5; fi; done";

const DETACH: &[u8] = b"\x1d\x1d";

/// Types a line again until the program answers with this size and the line.
fn wait_for_size(terminal: &mut Terminal, size: &str, word: &str) {
    let mut seen = String::new();
    wait_for("the size", || {
        terminal.keys(format!("{word}\r").as_bytes());
        seen += &terminal.see(&format!("<{word}>\r\n"));
        seen.contains(&format!("{size}\r\n"))
    });
}

/// Starts `run -t` with this program of `sh`.
fn run_in_terminal(home: &Home, server: &TestServer, program: &str) -> (Terminal, Running) {
    Terminal::with(24, 80, home.command(&["run", "-t", "--connect", server.url(), "--", "sh", "-c", program]))
}

#[test]
fn a_run_on_a_server_has_the_whole_terminal_and_restores_it() {
    let (server, home) = (TestServer::start(), Home::new());
    let mut terminal = Terminal::new(33, 44);
    assert!(!terminal.is_raw());
    let mut child = terminal.start(home.command(&["run", "-t", "--connect", server.url(), "--", "sh", "-c", SHOW]));
    terminal.see("ready\r\n");
    assert!(terminal.is_raw());
    terminal.exchange(b"one\r", "33 44\r\n<one>\r\n");
    terminal.resize(55, 66);
    // The terminal is not our controlling terminal, so the kernel sends no SIGWINCH.
    signal(child.id(), Signal::WINCH);
    wait_for_size(&mut terminal, "55 66", "again");
    terminal.exchange(b"end\r", "<end>\r\n");
    assert_eq!(end_of(&mut child).code(), Some(5));
    assert!(!terminal.is_raw(), "given back");
}

#[test]
fn control_characters_belong_to_the_program() {
    let (server, home) = (TestServer::start(), Home::new());
    let program = "trap 'echo interrupted; exit 4' INT; echo ready; while :; do sleep 0.02; done";
    let (mut terminal, mut child) = run_in_terminal(&home, &server, program);
    terminal.see("ready\r\n");
    terminal.exchange(b"\x03", "interrupted\r\n");
    assert_eq!(end_of(&mut child).code(), Some(4));
}

#[test]
fn the_keys_leave_a_run_and_attach_returns_to_it() {
    let (server, home) = (TestServer::start(), Home::new());
    let url = server.url();
    let args = ["run", "-t", "--name", "work", "--connect", url, "--", "sh", "-c", SHOW];
    let (mut terminal, mut child) = Terminal::with(24, 80, home.command(&args));
    terminal.see("ready\r\n");
    terminal.exchange(b"first\r", "<first>\r\n");
    terminal.exchange(DETACH, "left `work` running");
    assert_eq!(end_of(&mut child).code(), Some(0));
    assert!(!terminal.is_raw());

    let (mut terminal, mut child) = Terminal::with(30, 100, home.command(&["attach", "--connect", url, "wor"]));
    // The earlier output is shown again, and the program was made to redraw.
    terminal.see("<first>\r\n");
    terminal.see("drawn\r\n");
    assert!(terminal.is_raw());
    wait_for_size(&mut terminal, "30 100", "second");
    // A single detach key is passed to the program.
    terminal.exchange(b"\x1dend\r", "<\x1dend>\r\n");
    terminal.keys(b"end\r");
    assert_eq!(end_of(&mut child).code(), Some(5));
    assert!(!terminal.is_raw());
}

#[test]
fn a_single_detach_key_is_passed_on_also_when_no_other_follows() {
    let (server, home) = (TestServer::start(), Home::new());
    let program = "stty raw -echo; echo ready; head -c 1 | od -An -tx1; exit 7";
    let (mut terminal, mut child) = run_in_terminal(&home, &server, program);
    terminal.see("ready");
    terminal.exchange(b"\x1d", "1d");
    assert_eq!(end_of(&mut child).code(), Some(7));
}

#[test]
fn attach_detaches_by_keys_and_by_signals_and_the_process_continues() {
    let home = Home::new();
    home.ok(&["run", "-d", "-t", "--name", "work", "--", "sh", "-c", SHOW]);
    for round in 0..2 {
        let (mut terminal, mut child) = Terminal::with(24, 80, home.command(&["attach", "work"]));
        terminal.see("attached to `work`; press Ctrl-] twice to leave it running");
        terminal.see("ready\r\n");
        terminal.exchange(b"hello\r", "<hello>\r\n");
        assert!(terminal.is_raw());
        let code = if round == 0 {
            terminal.keys(DETACH);
            0
        } else {
            signal(child.id(), Signal::TERM);
            143
        };
        terminal.see("exec-server: detached; `work` keeps running");
        assert_eq!(end_of(&mut child).code(), Some(code));
        assert!(!terminal.is_raw());
        assert_eq!(home.listed("work").expect("listed")["exited"], false);
    }
    home.ok(&["kill", "-s", "HUP", "work"]);
    assert_eq!(home.run(&["wait", "work"]).status.code(), Some(129));
}

#[test]
fn two_attached_clients_see_the_same() {
    let home = Home::new();
    home.ok(&["run", "-d", "-t", "--name", "work", "--", "sh", "-c", SHOW]);
    let (mut left, mut right) = (Terminal::new(24, 80), Terminal::new(24, 80));
    let mut children = [&left, &right].map(|terminal| terminal.start(home.command(&["attach", "work"])));
    left.see("ready\r\n");
    right.see("ready\r\n");
    left.keys(b"from the left\r");
    right.see("<from the left>\r\n");
    right.keys(b"end\r");
    left.see("<end>\r\n");
    for child in &mut children {
        assert_eq!(end_of(child).code(), Some(5));
    }
}

#[test]
fn a_suspended_client_restores_the_terminal_until_it_continues() {
    let (server, home) = (TestServer::start(), Home::new());
    let (mut terminal, mut child) = run_in_terminal(&home, &server, SHOW);
    terminal.see("ready\r\n");
    signal(child.id(), Signal::TSTP);
    wait_for("it to stop", || state(child.id()).as_deref() == Some("T"));
    assert!(!terminal.is_raw());
    signal(child.id(), Signal::CONT);
    wait_for("it to go on", || terminal.is_raw());
    terminal.exchange(b"end\r", "<end>\r\n");
    assert_eq!(end_of(&mut child).code(), Some(5));
    assert!(!terminal.is_raw());
}

#[test]
fn a_lost_server_restores_the_terminal() {
    let home = Home::new();
    let mut server = TestServer::start();
    let args = ["run", "-t", "--recover-for", "300ms", "--connect", server.url(), "--", "sh", "-c", SHOW];
    let (mut terminal, mut child) = Terminal::with(24, 80, home.command(&args));
    terminal.see("ready\r\n");
    server.kill();
    terminal.see("reconnecting");
    assert_eq!(end_of(&mut child).code(), Some(255));
    assert!(!terminal.is_raw());
}

#[test]
fn attach_to_a_process_without_a_terminal_shows_new_output_and_sends_lines() {
    let home = Home::new();
    let gate = home.path().join("gate");
    let program = format!("echo old; until test -e {}; do echo new; sleep 0.02; done; exit 6", gate.display());
    home.ok(&["run", "-d", "--name", "job", "--", "sh", "-c", &program]);
    wait_for("its first words", || home.ok(&["logs", "job"]).starts_with("old\nnew"));
    let (mut terminal, mut child) = Terminal::with(24, 80, home.command(&["attach", "job"]));
    terminal.see("press Ctrl-] twice and Enter to leave it running");
    let seen = terminal.see("new\r\n");
    assert!(!seen.contains("old") && !terminal.is_raw(), "{seen}");
    std::fs::write(&gate, "").expect("open the gate");
    assert_eq!(end_of(&mut child).code(), Some(6));
}

#[test]
fn the_end_of_a_terminal_ends_the_programs_on_it() {
    let (server, home) = (TestServer::start(), Home::new());
    let url = server.url();
    let program = format!("trap 'echo bye; exit 3' HUP; {SHOW}");
    let args = ["run", "-t", "--name", "work", "--connect", url, "--", "sh", "-c", &program];
    let (mut terminal, mut owner) = Terminal::with(24, 80, home.command(&args));
    terminal.see("ready\r\n");
    let (mut other, mut guest) = Terminal::with(24, 80, home.command(&["attach", "--connect", url, "work"]));
    other.see("ready\r\n");
    drop(other);
    assert_eq!(end_of(&mut guest).code(), Some(129), "a guest leaves");
    assert_eq!(state(owner.id()).as_deref(), Some("S"));
    drop(terminal);
    assert_eq!(end_of(&mut owner).code(), Some(3), "the program is told as by the kernel");
}

/// A server behind a link that the test can cut: the next message of the client ends the link, and no new link is accepted before `open`.
fn cuttable(server: &TestServer) -> (MessageProxy, Arc<AtomicBool>) {
    let is_cut = Arc::new(AtomicBool::new(false));
    let cut = Arc::clone(&is_cut);
    let proxy = MessageProxy::start(server.url(), move |side, _| {
        if side == Side::Client && cut.swap(false, Ordering::SeqCst) { Verdict::Shut } else { Verdict::Pass }
    });
    (proxy, is_cut)
}

#[test]
fn a_cut_is_shown_on_the_last_row_and_the_screen_is_drawn_again_afterwards() {
    let (server, home) = (TestServer::start(), Home::new());
    let (proxy, cut) = cuttable(&server);
    for switch in ["", "printf '\\033[?1049h'; "] {
        let program = format!("{switch}{SHOW}");
        let args = ["run", "-t", "--connect", &proxy.url(), "--", "sh", "-c", &program];
        let (mut terminal, mut child) = Terminal::with(24, 80, home.command(&args));
        terminal.see("ready\r\n");
        cut.store(true, Ordering::SeqCst);
        terminal.keys(b"while it is away\r");
        let seen = terminal.see("reconnecting\x1b[0m\x1b[K\x1b8");
        // On the alternate screen the program redraws the last row later. On the normal screen the text is scrolled up by one row instead.
        let begin = if switch.is_empty() { "\x1b7\x1b[24;1H\n\x1b[0;7m" } else { "\x1b7\x1b[24;1H\x1b[0;7m" };
        assert!(seen.contains(&format!("{begin}exec-server: connection lost (")), "{seen:?}");
        proxy.open();
        let seen = terminal.see("drawn\r\n");
        assert!(seen.contains("\x1b7\x1b[24;1H\x1b[0m\x1b[2K\x1b8"), "the row is empty again: {seen:?}");
        assert!(!seen.contains("connected again"), "no line of ours is in the program's picture: {seen:?}");
        // The program got two sizes; the second one is ours.
        wait_for_size(&mut terminal, "24 80", "again");
        terminal.exchange(b"end\r", "<end>\r\n");
        assert_eq!(end_of(&mut child).code(), Some(5));
    }
}

#[test]
fn a_server_that_stops_is_reported_after_three_seconds_and_so_is_its_answer() {
    let (server, home) = (TestServer::start(), Home::new());
    let mut command = home.command(&["run", "--connect", server.url(), "--", "sh", "-c", "echo up; read line; exit 5"]);
    let mut child = spawn(command.stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    read_until(child.stdout.as_mut().expect("stdout is a pipe"), "up\n");
    let mut waiting = spawn(home.command(&["logs", "-f", "--connect", server.url(), "sh"]).stdin(Stdio::null()));
    read_until(waiting.stdout.as_mut().expect("stdout is a pipe"), "up\n");
    let (mut stderr, mut other) = (child.stderr.take().expect("a pipe"), waiting.stderr.take().expect("a pipe"));
    signal(server.pid(), Signal::STOP);
    assert_eq!(read_until(&mut stderr, "\n"), "exec-server: no answer for 3 s; waiting\n");
    let said = read_until(&mut other, "\n");
    assert!(said.starts_with("exec-server: no answer from ws://127.0.0.1:") && said.ends_with("waiting\n"), "{said}");
    signal(server.pid(), Signal::CONT);
    assert_eq!(read_until(&mut stderr, "\n"), "exec-server: the server answers again\n");
    assert!(read_until(&mut other, "\n").ends_with("answers again\n"));
    stdin.write_all(b"go on\n").expect("write");
    assert_eq!(end_of(&mut child).code(), Some(5));
    assert_eq!(end_of(&mut waiting).code(), Some(0));
}
