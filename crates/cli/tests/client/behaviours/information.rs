//! Information about a place and its processes, and the environment that a place gives to processes.

use crate::prelude::*;
use exec_server_client::{
    Generation,
    protocol::{
        environment::Status,
        process::{EnvPolicy, Inherit},
    },
};

pub(crate) async fn the_environment_tells_of_itself(place: &Place) {
    let client = place.client();
    let info = client.environment_info().await.expect("environment/info");
    let shell = info.shell.expect("a shell");
    assert!(shell.path.ends_with(&shell.name), "{shell:?}");
    assert!(info.cwd.is_some_and(|cwd| cwd.starts_with("file:///")));
    assert!(info.temp_dir.is_some_and(|dir| dir.starts_with("file:///")));
    assert_eq!(client.environment_status().await.expect("environment/status").status, Status::Ready);
    let server = client.server();
    assert_eq!(server.generation, Generation::Current);
    assert_eq!(server.info.map(|info| info.name).as_deref(), Some("exec-server"));
    assert!(client.session_id().is_some());
    assert!(matches!(client.state(), ConnectionState::Connected));
    assert!(!client.address().contains("token"), "{}", client.address());
}

pub(crate) async fn processes_are_listed(place: &Place) {
    assert_eq!(place.client().list(Scope::Session).await.expect("list"), []);
    let running = place.start(sh("exec cat").id("a").cwd("/")).await;
    let ended = place.start(Start::new(["sh", "-c", "printf 12345; exit 3"]).id("b").tty(None)).await;
    ended.wait().await.expect("it ends");
    for scope in [Scope::Session, Scope::All] {
        let listed = place.client().list(scope).await.expect("list");
        let [a, b] = listed.as_slice() else { panic!("two processes: {listed:?}") };
        assert_eq!((a.process_id.as_str(), a.pid, a.tty, a.cwd.as_str()), ("a", running.pid(), false, "/"));
        assert_eq!((a.exited, &a.exit, a.closed, a.output_bytes), (false, &None, false, 0));
        assert_eq!(a.argv, ["sh", "-c", "exec cat"]);
        assert_eq!(Some(&a.session_id), place.client().session_id().as_ref());
        assert_eq!((b.process_id.as_str(), b.tty, b.exited, b.closed, b.output_bytes), ("b", true, true, true, 5));
        assert_eq!(b.exit.as_ref().map(|exit| exit.exit_code), Some(3));
    }
}

pub(crate) async fn a_process_runs_where_it_should(place: &Place) {
    let info = place.client().environment_info().await.expect("environment/info");
    // Without `cwd` a process starts in the server's own directory. `cwd` may be a path or a URI.
    let own = info.cwd.expect("a directory");
    assert_eq!(format!("file://{}\n", place.say("pwd").await.trim_end()), format!("{own}\n"));
    let odd = place.path("a dir with ß, % and \u{1f980}");
    place.say(&format!("mkdir '{odd}'")).await;
    let told = tell(&place.start(Start::new(["pwd"]).cwd(&odd)).await).await;
    assert_eq!(String::from_utf8(told.stdout).expect("text"), format!("{odd}\n"));
    let told = tell(&place.start(Start::new(["pwd"]).cwd("file:///usr/bin")).await).await;
    assert_eq!(told.stdout, b"/usr/bin\n");
}

async fn environment(place: &Place, start: Start) -> Vec<String> {
    let told = tell(&place.start(start).await).await;
    let text = String::from_utf8(told.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

fn env() -> Start {
    Start::new(["/usr/bin/env"])
}

fn policy(inherit: Inherit) -> EnvPolicy {
    let none = Vec::new();
    EnvPolicy {
        inherit,
        ignore_default_excludes: false,
        exclude: none.clone(),
        set: std::collections::BTreeMap::new(),
        include_only: none,
    }
}

pub(crate) async fn the_environment_follows_its_policy(place: &Place) {
    let home = format!("HOME={}", place.home());
    // By default only the core variables are inherited.
    let core = environment(place, env().env("OURS", "1")).await;
    assert!(core.contains(&home) && core.contains(&"OURS=1".to_owned()), "{core:?}");
    assert!(!core.iter().any(|line| line.starts_with("ONLY_THERE=") || line.starts_with("DEEP_SECRET=")), "{core:?}");

    let all = environment(place, env().inherit(Inherit::All)).await;
    assert!(all.contains(&home) && all.contains(&"ONLY_THERE=yes".to_owned()), "{all:?}");
    assert!(!all.iter().any(|line| line.starts_with("DEEP_SECRET=")), "{all:?}");

    assert_eq!(environment(place, env().inherit(Inherit::None).env("A", "1")).await, ["A=1"]);
    assert_eq!(environment(place, env().env_policy(None).env("B", "ß\u{1f980}")).await, ["B=ß\u{1f980}"]);

    let chosen = EnvPolicy {
        ignore_default_excludes: true,
        exclude: vec!["HOM?".to_owned()],
        set: [("SET_HERE".to_owned(), "too".to_owned())].into(),
        include_only: vec!["*_THERE".to_owned(), "DEEP_*".to_owned(), "SET_*".to_owned(), "HOME".to_owned()],
        ..policy(Inherit::All)
    };
    let mut lines = environment(place, env().env_policy(Some(chosen)).env("TOP", "1")).await;
    lines.sort_unstable();
    assert_eq!(lines, ["DEEP_SECRET=hidden", "ONLY_THERE=yes", "SET_HERE=too", "TOP=1"]);
}

pub(crate) async fn a_program_sees_the_name_it_is_given(place: &Place) {
    let start = Start::new(["sh", "-c", "tr '\\0' ' ' </proc/$$/cmdline", "x"]).arg0("renamed");
    assert!(tell(&place.start(start).await).await.stdout.starts_with(b"renamed -c "));
}

pub(crate) async fn a_terminal_has_the_name_it_is_given(place: &Place) {
    let start = Start::new(["sh", "-c", "echo $TERM; tty -s && echo tty"]).tty(None).term("vt220");
    assert_eq!(tell(&place.start(start).await).await.stdout, b"vt220\r\ntty\r\n");
}
