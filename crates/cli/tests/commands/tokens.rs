//! `token create` and the notes that `serve` prints: which server a token is for, where it is written, and how to connect.

use crate::prelude::*;

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.local_addr().expect("an address").port()
}

#[test]
fn a_token_is_created_for_the_server_that_its_listener_or_url_names() {
    let home = Home::new();
    let port = free_port();
    let state = home.path().join(format!("state/exec-server/ws-127.0.0.1-{port}"));
    let listen = format!("ws://127.0.0.1:{port}");
    let connect = format!("ws://localhost:{port}/?token=x");
    for (name, flag, url) in [("by-listener", "--listen", &listen), ("by-url", "--connect", &connect)] {
        let (_, said, code) = outcome(home.command(&["token", "create", name, flag, url]));
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("note: no server has used `"), "{said}");
        let table = fs::read_to_string(state.join("tokens.toml")).expect("the table of that server");
        assert!(table.contains(name), "{table}");
    }
    let (_, said, code) = outcome(home.command(&["token", "create", "elsewhere", "--connect", "ssh://build-host"]));
    assert_eq!(code, Some(255));
    assert!(said.contains("run `exec-server token` on the machine of the server"));
}

#[test]
fn a_token_that_cannot_be_printed_is_an_error() {
    let home = Home::new();
    let mut command = home.command(&["token", "create", "unseen"]);
    command.stdout(fs::File::options().write(true).open("/dev/full").expect("open"));
    let ended = finish(command);
    assert_eq!(ended.status.code(), Some(255));
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(text.contains("write standard output: No space left on device"), "{text}");
}

#[test]
fn a_token_that_no_listener_requires_causes_a_warning() {
    let home = Home::new();
    let (_, said, code) = outcome(home.command(&["run", "-d", "--", "true"]));
    assert_eq!(code, Some(0), "{said}");
    let (_, said, code) = outcome(home.command(&["token", "create", "useless"]));
    assert_eq!(code, Some(0));
    assert!(said.contains("warning: the server at unix://") && said.contains(" does not require a token"), "{said}");
    let server = TestServer::start();
    let state = server.state_dir().to_str().expect("text").to_owned();
    let (_, said, code) = outcome(home.command(&["token", "create", "useful", "--state-dir", &state]));
    assert_eq!(code, Some(0));
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn a_token_is_written_to_a_new_file_that_only_its_owner_can_read() {
    let home = Home::new();
    let out = home.path().join("ci.token");
    let file = out.to_str().expect("text");
    let (printed, said, code) = outcome(home.command(&["token", "create", "ci", "--out", file]));
    assert_eq!((code, printed.as_str()), (Some(0), ""), "{said}");
    let token = fs::read_to_string(&out).expect("the token");
    assert!(token.trim().len() >= 43, "{token}");
    assert_eq!(mode_of(&out) & 0o777, 0o600);
    let (_, said, code) = outcome(home.command(&["token", "create", "other-name", "--out", file]));
    assert_eq!(code, Some(255));
    assert!(said.contains("for the token: File exists"), "{said}");
    let table = fs::read_to_string(home.state_dir().join("tokens.toml")).expect("the table");
    assert!(!table.contains("other-name"), "{table}");
}

#[test]
fn serve_prints_where_its_state_is_and_a_command_that_works() {
    let server = TestServer::start();
    wait_for("the command", || server.stderr().contains("try: "));
    let said = server.stderr();
    assert!(said.contains(&format!("state: {}\n", server.state_dir().display())), "{said}");
    let line = said.lines().find_map(|line| line.strip_prefix("try: exec-server ")).expect("the command");
    assert!(!line.contains("token="), "{line}");
    let home = Home::new();
    let words: Vec<&str> = line.split(' ').collect();
    let (out, said, code) = outcome(home.command(&words));
    assert_eq!(code, Some(0), "{line}: {said}");
    assert!(out.starts_with("Linux "));
}
