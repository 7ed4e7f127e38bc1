//! Client and server share nothing but the network: no path, variable or program of the client's side is visible at the server.

use std::{
    env,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

use crate::{Elsewhere, prelude::*};
use exec_server_client::protocol::process::Inherit;

/// Set in a copy of this program that plays the client; contains the server's URL.
const ROLE: &str = "TEST_CLIENT_OF";

async fn say(client: &Client, start: Start) -> String {
    let told = tell(&client.start(start).await.expect("start")).await;
    assert_eq!((told.exit.code, String::from_utf8_lossy(&told.stderr).as_ref()), (0, ""));
    String::from_utf8(told.stdout).expect("text")
}

fn sh(script: &str) -> Start {
    Start::new(["sh", "-c", script])
}

/// One test in two roles: this process prepares the client's environment and then starts a copy of itself as the client, because
/// environment and working directory are shared by all threads of a process.
#[test]
fn nothing_of_the_clients_side_is_seen_there() {
    if let Ok(url) = env::var(ROLE) {
        return bounded(look(&url));
    }
    let here = tempfile::Builder::new().prefix("exec-server-here-").tempdir().expect("make a directory");
    let at = |name: &str| here.path().join(name);
    fs::create_dir(at("bin")).expect("make a directory");
    for name in ["bin/greet", "bin/only-here", "only-here"] {
        fs::write(at(name), "#!/bin/sh\necho here\n").expect("write a program");
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).expect("make it a program");
    }
    fs::write(at("secret"), "of the client").expect("write a file");
    let other = Elsewhere::start();
    let path = format!("{}:{}", at("bin").display(), env::var("PATH").unwrap_or_default());
    let outcome = Command::new(env::current_exe().expect("our own path"))
        .args(["--exact", "other_host::nothing_of_the_clients_side_is_seen_there", "--nocapture"])
        .env(ROLE, other.url())
        .env("HOME", here.path())
        .env("TMPDIR", here.path())
        .env("PATH", path)
        .env("ONLY_HERE", "yes")
        .current_dir(here.path())
        .stdin(Stdio::null())
        .output()
        .expect("start a copy of this program");
    let said = [&*outcome.stdout, &*outcome.stderr].map(String::from_utf8_lossy).concat();
    assert!(outcome.status.success() && said.contains("1 passed"), "the copy says what is wrong:\n{said}");
    let left: Vec<_> =
        fs::read_dir(here.path()).expect("list").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left.len(), 3, "the client has left something at home: {left:?}");
}

/// The client's role.
async fn look(url: &str) {
    let client = client_of().connect(url).await.expect("connect over the shared network");
    let here = env::current_dir().expect("our directory").display().to_string();

    let info = client.environment_info().await.expect("environment/info");
    assert_eq!(info.cwd.as_deref(), Some("file:///tmp/there"));
    assert!(!format!("{info:?}").contains(&here), "{info:?}");

    // All defaults of a process come from the server's machine.
    let script = "pwd; echo $HOME; echo $TMPDIR; echo $PATH; echo ${ONLY_THERE-unset} ${ONLY_HERE-unset}";
    let expected =
        |there: &str| format!("{}\n{}\n/tmp\n{}\n{there} unset\n", Elsewhere::CWD, Elsewhere::HOME, Elsewhere::PATH);
    assert_eq!(say(&client, sh(script)).await, expected("unset"));
    assert_eq!(say(&client, sh(script).inherit(Inherit::All)).await, expected("yes"));
    let all = say(&client, Start::new(["/usr/bin/env"]).inherit(Inherit::All)).await;
    assert!(!all.contains(&here) && !all.contains(ROLE), "{all}");
    assert_eq!(say(&client, Start::new(["/usr/bin/env"]).env_policy(None)).await, "");

    // Programs are looked up on the server: by name in its PATH, by relative path from its directory.
    for program in ["greet", "./bin/greet", "bin/greet"] {
        assert_eq!(say(&client, Start::new([program])).await, "there\n", "{program}");
    }
    assert_eq!(say(&client, Start::new(["./greet"]).cwd(format!("{}/bin", Elsewhere::CWD))).await, "there\n");
    for program in ["only-here", "./only-here", "bin/only-here"] {
        let error = client.start(Start::new([program])).await.expect_err("it is here and not there");
        assert_eq!(error.server_kind(), Some(Kind::ProgramNotFound), "{program}");
    }

    // The client's directories do not exist on the server: the start fails and never uses another directory.
    let error = client.start(Start::new(["pwd"]).cwd(&here)).await.expect_err("our directory is not there");
    assert_eq!(error.server_kind(), Some(Kind::CwdNotFound));
    let error = client.start(Start::new(["pwd"]).cwd(".")).await.expect_err("relative to what");
    assert_eq!(error.server_kind(), Some(Kind::RelativePath));
    let script = format!("ls -d {here} {here}/secret 2>/dev/null | wc -l; echo made there >/tmp/made; ls /tmp");
    assert_eq!(say(&client, sh(&script)).await, "0\nmade\nstate\nthere\n");
    assert!(!std::path::Path::new("/tmp/made").exists(), "that `/tmp` is not ours");

    client.end_session().await.expect("end the session");
}
