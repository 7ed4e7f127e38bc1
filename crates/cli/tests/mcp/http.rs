//! Servers over streamable HTTP, used through a manager: connected from this machine or from an executor.

use crate::{
    mcp::{Place, at_both, call, data, places, soon, until},
    prelude::*,
};
use exec_server_mcp::{
    config::{Config, Format},
    manager::{Error, Manager, ServerAuth, ServerStatus, SnapshotDetail, ToolCall},
};

at_both!(
    a_server_over_http_is_one_like_any_other,
    a_server_that_wants_a_token_says_so_and_the_way_out,
    a_forgotten_session_is_begun_anew,
    an_address_where_nobody_is_fails_only_its_server,
    discovery_timeout_unblocks_the_executor,
);

/// A test server on its own port; it ends at EOF on its stdin.
struct Listening {
    child: Child,
    url: String,
}

impl Listening {
    fn start(flags: &[&str]) -> Self {
        let mut command = Command::new(testkit::test_mcp_server());
        let command = command.args(["--http", "127.0.0.1:0"]).args(flags).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start the test server");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut url).expect("it prints its URL");
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.child.kill().ok(); // It may have ended already.
        self.child.wait().ok();
    }
}

/// A manager of the server `t` at a URL, with further configuration lines.
fn manager(place: &Place, url: &str, more: &str) -> Arc<Manager> {
    let text = format!("[mcp_servers.t]\nurl = {url:?}\nenvironment = \"{}\"\n{more}", place.environment());
    let config = Config::parse(&text, "test.toml".as_ref(), Format::Toml).expect("a configuration");
    let mut settings = place.settings(config);
    settings.variables = places::variables(&[("TOKEN", "open")]);
    place.manager_with(settings, place.hosts())
}

async fn a_server_over_http_is_one_like_any_other(place: &Place) {
    let server = Listening::start(&[]);
    let manager = manager(place, &server.url, "");
    let summary = soon("start", manager.start_all()).await.expect("start");
    assert_eq!(summary.ready, ["t"], "{summary:?}");
    assert_eq!(data(&manager, "echo", json!({"message": "m"})).await["echo"], json!("ECHOING: m"));
    assert_eq!(manager.resources_of("t").await.expect("listed").len(), 5);
    let image = call(&manager, "image", json!({"detail": "low"})).await.expect("call");
    assert_eq!(image.content[0]["_meta"], json!({"codex/imageDetail": "low"}));
    let error = manager.call(ToolCall::new("t", "error")).await.expect_err("an error");
    assert!(matches!(error, Error::Answer { .. }), "{error}");
    soon("shutdown", manager.shutdown()).await;
}

async fn a_server_that_wants_a_token_says_so_and_the_way_out(place: &Place) {
    let server = Listening::start(&["--http-token", "open"]);
    let without = manager(place, &server.url, "");
    let summary = soon("start", without.start_all()).await.expect("not required");
    assert!(summary.failed["t"].contains("`bearer_token_env_var` of `[mcp_servers.t]`"), "{summary:?}");
    assert!(matches!(without.status()["t"], ServerStatus::AuthenticationRequired { .. }), "{:?}", without.status());
    let error = call(&without, "pid", json!({})).await.expect_err("refused");
    assert!(matches!(error, Error::AuthenticationRequired { .. }), "{error}");
    assert_eq!(without.snapshot(SnapshotDetail::ToolsAndAuthOnly).await.servers["t"].auth, ServerAuth::Required);
    without.shutdown().await;

    let with = manager(place, &server.url, "bearer_token_env_var = \"TOKEN\"");
    assert_eq!(data(&with, "echo", json!({"message": "m"})).await["echo"], json!("ECHOING: m"));
    with.shutdown().await;
    let unset = manager(place, &server.url, "bearer_token_env_var = \"NOT_THERE\"");
    let summary = soon("start", unset.start_all()).await.expect("not required");
    assert!(summary.failed["t"].contains("`NOT_THERE`"), "{summary:?}");
    unset.shutdown().await;
}

async fn a_forgotten_session_is_begun_anew(place: &Place) {
    let server = Listening::start(&["--expire-after", "6"]);
    let manager = manager(place, &server.url, "");
    for n in 0..12 {
        let said = data(&manager, "echo", json!({"message": format!("{n}")})).await;
        assert_eq!(said["echo"], json!(format!("ECHOING: {n}")));
    }
    manager.shutdown().await;
}

async fn an_address_where_nobody_is_fails_only_its_server(place: &Place) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let mut config = place.config(&[("t", &[], "")]);
    let text = format!("[mcp_servers.gone]\nurl = \"http://{free}/mcp\"\nenvironment = \"{}\"", place.environment());
    config.servers.extend(Config::parse(&text, "x.toml".as_ref(), Format::Toml).expect("a configuration").servers);
    let manager = place.manager(config);
    let summary = soon("start", manager.start_all()).await.expect("not required");
    assert_eq!(summary.ready, ["t"]);
    assert!(summary.failed["gone"].contains("MCP server `gone`"), "{summary:?}");
    manager.shutdown().await;
}

async fn discovery_timeout_unblocks_the_executor(place: &Place) {
    let gone = Arc::new(AtomicUsize::new(0));
    let silent = Target::start({
        let gone = gone.clone();
        move |asked, stream| {
            let message: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
            match message["method"].as_str() {
                Some("initialize") => {
                    let info = json!({"name": "by hand", "version": "1"});
                    let result =
                        json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info});
                    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
                    let headers = [("content-type", "application/json"), ("mcp-session-id", "one")];
                    target::respond(stream, "200 OK", &headers, answer.as_bytes());
                }
                Some("tools/list") => {
                    target::wait_closed(stream);
                    gone.fetch_add(1, Ordering::Relaxed);
                }
                Some(_) => target::respond(stream, "202 Accepted", &[], b""),
                None => target::respond(stream, "405 Method Not Allowed", &[], b""),
            }
        }
    });
    let mut config = place.config(&[("t", &[], "")]);
    let (url, environment) = (silent.url("/mcp"), place.environment());
    let text =
        format!("[mcp_servers.silent]\nurl = \"{url}\"\nenvironment = \"{environment}\"\nstartup_timeout_sec = 1");
    config.servers.extend(Config::parse(&text, "x.toml".as_ref(), Format::Toml).expect("a configuration").servers);
    let manager = place.manager(config);
    let summary = soon("start", manager.start_all()).await.expect("not required");
    assert_eq!(summary.ready, ["t"], "{summary:?}");
    assert!(summary.failed["silent"].contains("no answer to `tools/list` within 1s"), "{summary:?}");
    assert!(matches!(manager.status()["silent"], ServerStatus::Failed { .. }), "{:?}", manager.status());
    // The request does not stay behind on the executor, whose connection still works.
    until("it is let go of", async || gone.load(Ordering::Relaxed) == 1).await;
    assert_eq!(data(&manager, "echo", json!({"message": "m"})).await["echo"], json!("ECHOING: m"));
    soon("shutdown", manager.shutdown()).await;
}
