//! `token create` and the notes that `serve` prints: which server a token is for, where it is written, and how to connect.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::commands::Home;
use testkit::{TestServer, finish, text, wait_for};

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.local_addr().expect("an address").port()
}

#[test]
fn a_token_is_made_for_the_server_that_is_named_by_its_listener_or_url() {
    let home = Home::new();
    let port = free_port();
    let state = home.path().join(format!("state/exec-server/ws-127.0.0.1-{port}"));
    let listen = format!("ws://127.0.0.1:{port}");
    let connect = format!("ws://localhost:{port}/?token=x");
    for (name, flag, url) in [("by-listener", "--listen", &listen), ("by-url", "--connect", &connect)] {
        let output = home.run(&["token", "create", name, flag, url]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("note: no server has used `"), "{}", text(&output.stderr));
        let table = fs::read_to_string(state.join("tokens.toml")).expect("the table of that server");
        assert!(table.contains(name), "{table}");
    }
    let output = home.run(&["token", "create", "elsewhere", "--connect", "ssh://build-host"]);
    assert_eq!(output.status.code(), Some(255));
    assert!(text(&output.stderr).contains("run `exec-server token create` on the machine of the server"));
}

#[test]
fn a_token_that_no_listener_asks_for_is_warned_about() {
    let home = Home::new();
    let output = home.run(&["run", "-d", "--", "true"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = home.run(&["token", "create", "useless"]);
    assert!(output.status.success());
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("warning: the server at unix://") && stderr.contains(" does not require a token"),
        "{stderr}"
    );
    let server = TestServer::start();
    let state = server.state_dir().to_str().expect("text").to_owned();
    let output = home.run(&["token", "create", "useful", "--state-dir", &state]);
    assert!(output.status.success());
    assert!(!text(&output.stderr).contains("warning"), "{}", text(&output.stderr));
}

#[test]
fn a_token_is_written_to_a_new_file_for_its_owner_alone() {
    let home = Home::new();
    let out = home.path().join("ci.token");
    let file = out.to_str().expect("text");
    let output = home.run(&["token", "create", "ci", "--out", file]);
    assert_eq!((output.status.success(), text(&output.stdout).as_str()), (true, ""), "{}", text(&output.stderr));
    let token = fs::read_to_string(&out).expect("the token");
    assert!(token.trim().len() >= 43, "{token}");
    assert_eq!(fs::metadata(&out).expect("it is there").permissions().mode() & 0o777, 0o600);
    let output = home.run(&["token", "create", "other-name", "--out", file]);
    assert_eq!(output.status.code(), Some(255));
    assert!(text(&output.stderr).contains("for the token: File exists"), "{}", text(&output.stderr));
    let table = fs::read_to_string(home.state_dir().join("tokens.toml")).expect("the table");
    assert!(!table.contains("other-name"), "{table}");
}

#[test]
fn serve_says_where_its_state_is_and_prints_a_command_that_works() {
    let server = TestServer::start();
    wait_for("the command", || server.stderr().contains("try: "));
    let said = server.stderr();
    assert!(said.contains(&format!("state: {}\n", server.state_dir().display())), "{said}");
    let line = said.lines().find_map(|line| line.strip_prefix("try: exec-server ")).expect("the command");
    assert!(!line.contains("token="), "{line}");
    let home = Home::new();
    let words: Vec<&str> = line.split(' ').collect();
    let output = finish(home.command(&words));
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("Linux "));
}
