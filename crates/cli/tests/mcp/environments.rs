//! Where servers run, and which variables they get there.

use tokio::{io::AsyncReadExt as _, net::TcpListener};

use crate::{
    mcp::{Kind, Place, at_both, bounded_remote, call, data, places::variables, soon, until},
    prelude::*,
};
use exec_server_client::{
    Token,
    environment::{Choice, RemoteSpec},
    local::LocalConfig,
};
use exec_server_mcp::manager::{Host, Hosts, KEEP, Manager, Restarts, ServerStatus};

at_both!(
    variables_that_are_named_are_passed_on_and_no_others,
    a_place_that_does_not_exist_names_the_server,
    an_executor_that_cannot_be_reached_fails_only_its_servers,
);

async fn variables_that_are_named_are_passed_on_and_no_others(place: &Place) {
    let more = "env_vars = [\"NAMED\", { name = \"SOURCED\", source = \"local\" }, \"ABSENT\"]\nenv = { SET = \"1\" }";
    let mut settings = place.settings(place.config(&[("t", &[], more)]));
    settings.variables =
        variables(&[("NAMED", "a"), ("SOURCED", "b"), ("OTHER", "c"), ("EXEC_SERVER_TOKEN", "secret")]);
    let manager = place.manager_with(settings, place.hosts());
    let env = data(&manager, "env", json!({})).await;
    assert_eq!((&env["NAMED"], &env["SOURCED"], &env["SET"]), (&json!("a"), &json!("b"), &json!("1")));
    for absent in ["ABSENT", "OTHER", "NOT_FOR_ALL", "EXEC_SERVER_TOKEN", "ONLY_THERE"] {
        assert_eq!(env.get(absent), None, "{absent}");
    }
    assert!(env["PATH"].is_string());
}

#[test]
fn a_variable_of_the_executor_is_not_copied_from_here() {
    bounded_remote(async |place| {
        let there = "env_vars = [{ name = \"ONLY_THERE\", source = \"remote\" }, { name = \"ONLY_HERE\", source = \"remote\" }]";
        let mut settings = place.settings(place.config(&[("t", &[], there)]));
        settings.variables = variables(&[("ONLY_HERE", "x"), ("ONLY_THERE", "ours")]);
        let manager = place.manager_with(settings, place.hosts());
        let value =
            async |name: &str| data(&manager, "echo", json!({"message": "", "env_var": name})).await["env"].clone();
        assert_eq!(value("ONLY_THERE").await, json!("yes"));
        assert_eq!(value("ONLY_HERE").await, json!(null));
    });
}

async fn a_place_that_does_not_exist_names_the_server(place: &Place) {
    let manager = place.configured(&[
        ("nowhere", &[], "environment = \"no-such\""),
        ("remote", &[], "environment = \"remote\""),
        ("t", &[], ""),
    ]);
    let summary = soon("start", manager.start_all()).await.expect("none is required");
    let reason = &summary.failed["nowhere"];
    assert!(reason.contains("MCP server `nowhere`") && reason.contains("`no-such`"), "{reason}");
    // The message does not suggest a value that the configuration would refuse.
    assert!(reason.contains("`local`") && !reason.contains("`none`"), "{reason}");
    match place.kind {
        Kind::Local => {
            let reason = &summary.failed["remote"];
            assert!(reason.contains("MCP server `remote`") && reason.contains("no remote environment"), "{reason}");
            assert_eq!(summary.ready, ["t"]);
        }
        Kind::Remote => assert_eq!(summary.ready, ["remote", "t"]),
    }
}

async fn an_executor_that_cannot_be_reached_fails_only_its_servers(place: &Place) {
    // A port that was just released, so nothing listens on it.
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let there = format!("environment = \"ws://{free}\"\nstartup_timeout_sec = 1");
    let manager = place.configured(&[("a", &[], &there), ("b", &[], &there), ("t", &[], "")]);
    let summary = soon("start", manager.start_all()).await.expect("none is required");
    assert_eq!(summary.ready, ["t"]);
    for name in ["a", "b"] {
        let reason = &summary.failed[name];
        assert!(reason.contains(&format!("MCP server `{name}`: its executor cannot be used")), "{reason}");
    }
    assert_eq!(manager.status()["t"], ServerStatus::Ready);
}

#[test]
fn servers_of_one_executor_share_a_session() {
    bounded_remote(async |place| {
        let url = format!("environment = \"{}\"", place.server().url());
        let manager = place.configured(&[("t", &[], ""), ("u", &[], ""), ("v", &[], &url), ("w", &[], &url)]);
        let summary = soon("start", manager.start_all()).await.expect("start");
        assert_eq!(summary.ready, ["t", "u", "v", "w"]);
        assert_eq!(place.server().sessions(), 1, "one session for all of them");
    });
}

#[test]
fn servers_with_tokens_of_their_own_run_under_them() {
    let server = TestServer::builder().arg("--audit").arg("{dir}/audit.log").start();
    let place = Place::open(Kind::Local);
    let [alice, bob] = ["alice", "bob"].map(|name| format!("environment = \"{}\"", server.url_of(name, &[])));
    let manager = place.configured(&[("t", &[], &alice), ("u", &[], &bob), ("v", &[], &alice)]);
    bounded(async {
        let summary = soon("start", manager.start_all()).await.expect("start");
        assert_eq!(summary.ready, ["t", "u", "v"], "{:?}", summary.failed);
        assert_eq!(server.sessions(), 2, "one session for each token");
        let audit = server.dir().join("audit.log");
        let starts = async || {
            let text = std::fs::read_to_string(&audit).unwrap_or_default();
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let starts = lines.filter(|line| line["event"] == "process.start");
            let mut names: Vec<String> =
                starts.map(|line| line["principal"].as_str().unwrap_or("").to_owned()).collect();
            names.sort();
            names
        };
        // The audit log is written after the answer.
        until("all starts on record", async || starts().await.len() == 3).await;
        assert_eq!(starts().await, ["alice", "alice", "bob"]);
        manager.shutdown().await;
    });
}

#[test]
fn only_the_remote_executor_is_shown_the_token_that_came_with_it() {
    let place = Place::open(Kind::Local);
    bounded(async {
        let listeners = [listener().await, listener().await, listener().await];
        let urls = listeners.each_ref().map(|listener| format!("ws://{}", listener.local_addr().expect("an address")));
        let spec = |url: &str| Choice::Remote(RemoteSpec::at("somewhere", url).expect("a URL"));
        let (remote, named) = (spec(&urls[0]), spec(&urls[1]));
        let hosts = Hosts::by_choice(LocalConfig::default(), remote, Some(Token::new("s3cret").expect("a token")), {
            let url = urls[2].clone();
            move |asked| Ok(if asked == url { spec(&url) } else { named.clone() })
        });
        let at = |environment: &str| format!("environment = \"{environment}\"");
        let more = [at("remote"), at("named"), at(&urls[2])];
        let config = place.config(&[("a", &[], &more[0]), ("b", &[], &more[1]), ("c", &[], &more[2])]);
        let manager = Manager::new(place.settings(config), hosts);
        manager.start();
        let [remote, named, url] = listeners.each_ref().map(knock);
        let (remote, named, url) = soon("three knocks", async { tokio::join!(remote, named, url) }).await;
        assert!(remote.contains("s3cret"), "{remote}");
        for other in [named, url] {
            assert!(!other.contains("s3cret") && !other.to_lowercase().contains("authorization"), "{other}");
        }
        manager.shutdown().await;
    });
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port")
}

/// Accepts a connection and returns the head of its first request.
async fn knock(listener: &TcpListener) -> String {
    let (mut socket, _) = listener.accept().await.expect("a connection");
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        assert!(socket.read_buf(&mut request).await.expect("read the request") > 0, "the end of the request");
    }
    String::from_utf8(request).expect("a request is text")
}

#[test]
fn a_cut_link_loses_and_repeats_no_message() {
    bounded_remote(async |place| {
        let proxy = Proxy::start(place.server().address());
        let hosts = place.hosts_with(Some(proxy.through(place.server().url())));
        let manager = place.manager_with(place.settings(place.config(&[("t", &["--journal", "{dir}/j"], "")])), hosts);
        manager.start_all().await.expect("start");
        for n in 0..20 {
            let calling = data(&manager, "echo", json!({"message": format!("{n}")}));
            let cutting = async { proxy.cut() };
            let (said, ()) = tokio::join!(calling, cutting);
            assert_eq!(said["echo"], json!(format!("ECHOING: {n}")));
        }
        assert_eq!(place.journaled("j", "tool", "echo"), 20, "each call reached the server once");
        assert!(proxy.links() > 5, "the link was cut: {}", proxy.links());
        manager.shutdown().await;
    });
}

#[test]
fn a_restarted_executor_is_not_noticed() {
    let mut server = TestServer::builder().keep_holders().start();
    let place = Place::open(Kind::Local);
    let hosts = place.hosts_with(Some(server.url().to_owned()));
    let config = place.config(&[("t", &[], "environment = \"remote\"")]);
    let manager = Manager::new(place.settings(config), hosts);
    bounded(async {
        let before = data(&manager, "pid", json!({})).await;
        server.restart();
        assert_eq!(data(&manager, "pid", json!({})).await, before, "the same process, and nobody was told");
        let gone = call(&manager, "sleep", json!({"ms": 10})).await.expect("call");
        assert!(!gone.is_error);
        soon("shutdown", manager.shutdown()).await;
    });
}

#[test]
fn an_executor_that_is_away_for_long_is_waited_for() {
    let mut server = TestServer::builder().start();
    let place = Place::open(Kind::Local);
    let spec = RemoteSpec::at("remote", server.url()).expect("a URL");
    let hosts = Hosts::new(move |_| Ok(Host::remote(spec.clone(), None, KEEP).recover_for(Duration::from_millis(200))));
    let mut settings = place.settings(place.config(&[("t", &[], "environment = \"remote\"\nstartup_timeout_sec = 3")]));
    let pause = Duration::from_millis(50);
    settings.restarts = Restarts { most: 1, first_pause: pause, longest_pause: pause, ..Restarts::default() };
    let manager = Manager::new(settings, hosts);
    bounded(async {
        let before = data(&manager, "pid", json!({})).await;
        server.kill();
        // More attempts than crashes of the server itself would be allowed.
        until("attempts", async || matches!(manager.status()["t"], ServerStatus::Starting { restarts: 3.. })).await;
        let error = call(&manager, "pid", json!({})).await.expect_err("it is away");
        assert!(error.to_string().contains("its executor is unreachable, and is retried"), "{error}");
        server.restart();
        until("its return", async || manager.status()["t"] == ServerStatus::Ready).await;
        assert_ne!(data(&manager, "pid", json!({})).await, before);
        tokio::time::timeout(Duration::from_secs(20), manager.shutdown()).await.expect("shutdown");
    });
}

#[test]
fn an_executor_that_is_just_being_started_is_tried_again() {
    let mut server = TestServer::builder().start();
    let place = Place::open(Kind::Local);
    server.kill();
    let config = place.config(&[("t", &[], "environment = \"remote\"")]);
    let manager = Manager::new(place.settings(config), place.hosts_with(Some(server.url().to_owned())));
    bounded(async {
        manager.start();
        tokio::task::block_in_place(|| server.restart());
        data(&manager, "pid", json!({})).await;
        tokio::time::timeout(Duration::from_secs(20), manager.shutdown()).await.expect("shutdown");
    });
}
