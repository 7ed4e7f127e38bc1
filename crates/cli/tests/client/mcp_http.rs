//! MCP over streamable HTTP through an executor, embedded and on a server, against an MCP server that is written by hand here, so the test
//! controls every byte on the wire. It does not use rmcp's server: a mistake that is in both its client and its server would go unnoticed.

use std::{
    collections::BTreeMap,
    net::TcpStream,
    sync::{Mutex, PoisonError},
};

use rmcp::{
    RoleClient, ServiceExt as _,
    model::{CallToolRequestParams, ClientConfig},
    service::RunningService,
};
use serde_json::{Value, json};

use crate::prelude::*;
use exec_server_mcp::{
    config::HttpConfig,
    http::{Endpoint, HttpError},
};

at_both_places! {
    streamable_http_client_round_trips_through_exec_server
    streamable_http_404_session_expiry_recovers_and_retries_once
    streamable_http_404_recovery_only_retries_once
    streamable_http_401_does_not_trigger_recovery
    streamable_http_non_session_failure_does_not_trigger_recovery
    streamable_http_handshake_timeout_unblocks_remote_executor
    streamable_http_events_before_the_answer_are_heard
    streamable_http_headers_of_a_server_go_to_no_other
}

/// How the server answers calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Fine,
    /// As a stream of events, with a notification first.
    Events,
    /// The session is forgotten: 404 until `initialize` comes again.
    Forgets,
    /// 404 to every call.
    AlwaysForgets,
    Unauthorized,
    Broken,
}

/// An MCP server with one tool.
struct Server {
    target: Target,
    shared: Arc<Shared>,
}

struct Shared {
    mood: Mutex<Mood>,
    sessions: AtomicUsize,
}

impl Shared {
    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    fn start() -> Self {
        let shared = Arc::new(Shared { mood: Mutex::new(Mood::Fine), sessions: AtomicUsize::new(0) });
        let target = Target::start({
            let shared = shared.clone();
            move |asked, stream| serve(&shared, asked, stream)
        });
        Self { target, shared }
    }

    fn set(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint { url: self.target.url("/mcp"), ..Endpoint::default() }
    }

    /// How often a method was posted.
    fn heard(&self, method: &str) -> usize {
        let is_it = |asked: &Asked| {
            serde_json::from_slice::<Value>(&asked.body).is_ok_and(|message| message["method"] == method)
        };
        self.target.asked().iter().filter(|asked| is_it(asked)).count()
    }
}

fn serve(shared: &Shared, asked: &Asked, stream: &mut TcpStream) {
    if asked.path == "/moved" {
        return target::respond(stream, "307 Temporary Redirect", &[("location", "/mcp")], b"");
    }
    if asked.method != "POST" {
        // The server offers no GET stream and no DELETE of a session.
        return target::respond(stream, "405 Method Not Allowed", &[], b"");
    }
    let message: Value = serde_json::from_slice(&asked.body).expect("a message");
    let session = format!("session-{}", shared.sessions.load(Ordering::Relaxed));
    match (message["method"].as_str(), shared.mood()) {
        (Some("initialize"), mood) => {
            let session = format!("session-{}", shared.sessions.fetch_add(1, Ordering::Relaxed) + 1);
            if mood == Mood::Forgets {
                *shared.mood.lock().unwrap_or_else(PoisonError::into_inner) = Mood::Fine;
            }
            let info = json!({"name": "by hand", "version": "1"});
            let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info});
            answer(stream, &message, &result, &[("mcp-session-id", &session)]);
        }
        (_, Mood::Forgets | Mood::AlwaysForgets) if message["method"] == "tools/call" => {
            target::respond(stream, "404 Not Found", &[], b"no such session");
        }
        (_, Mood::Unauthorized) if message["method"] == "tools/call" => {
            let challenge = "Bearer resource_metadata=\"https://login.example\"";
            target::respond(stream, "401 Unauthorized", &[("www-authenticate", challenge)], b"who are you");
        }
        (_, Mood::Broken) if message["method"] == "tools/call" => {
            target::respond(stream, "500 Internal Server Error", &[], b"trouble");
        }
        (Some("tools/call"), mood) => {
            assert_eq!(asked.all("mcp-session-id"), [session.as_str()], "each call names the session");
            let text = message["params"]["arguments"]["text"].clone();
            let result = json!({"content": [{"type": "text", "text": text}]});
            match mood {
                Mood::Events => events(stream, &message, &result),
                _ => answer(stream, &message, &result, &[]),
            }
        }
        (Some("tools/list"), _) => {
            let schema = json!({"type": "object"});
            answer(stream, &message, &json!({"tools": [{"name": "echo", "inputSchema": schema}]}), &[]);
        }
        _ => target::respond(stream, "202 Accepted", &[], b""),
    }
}

fn answer(stream: &mut TcpStream, message: &Value, result: &Value, headers: &[(&str, &str)]) {
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    let headers = [&[("content-type", "application/json")], headers].concat();
    target::respond(stream, "200 OK", &headers, body.as_bytes());
}

fn events(stream: &mut TcpStream, message: &Value, result: &Value) {
    target::begin(stream, "text/event-stream");
    let note =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "working"}});
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    for part in [": sign of life\n\n".to_owned(), format!("data: {note}\n\n"), format!("data: {answer}\r\n\r\n")] {
        // Split the event in the middle.
        let (first, second) = part.as_bytes().split_at(part.len() / 2);
        target::chunk(stream, first);
        target::chunk(stream, second);
    }
    target::chunk(stream, b"");
}

type Running = RunningService<RoleClient, ClientConfig>;

async fn connect(place: &Place, endpoint: &Endpoint) -> Result<Running, HttpError> {
    let transport = endpoint.transport(place.client().clone())?;
    let started = soon("the handshake", ClientConfig::default().serve(transport)).await;
    started.map_err(|error| HttpError::of_start(&error))
}

/// A server, and a connection to it.
async fn connected(place: &Place) -> (Server, Running) {
    let server = Server::start();
    let service = connect(place, &server.endpoint()).await.expect("a handshake");
    (server, service)
}

async fn echo(service: &Running, text: &str) -> Result<String, HttpError> {
    let arguments = json!({"text": text}).as_object().cloned().expect("an object");
    let params = CallToolRequestParams::new("echo").with_arguments(arguments);
    let result = soon("the call", service.call_tool(params)).await.map_err(|error| HttpError::of_call(&error))?;
    let content = serde_json::to_value(&result.content).expect("content is JSON");
    Ok(content[0]["text"].as_str().expect("a text").to_owned())
}

async fn streamable_http_client_round_trips_through_exec_server(place: &Place) {
    let server = Server::start();
    let config = HttpConfig {
        url: server.target.url("/mcp"),
        bearer_token_env_var: Some("TOKEN".to_owned()),
        http_headers: BTreeMap::from([("x-fixed".to_owned(), "1".to_owned())]),
        env_http_headers: BTreeMap::from([
            ("x-from".to_owned(), "FROM".to_owned()),
            ("x-absent".to_owned(), "ABSENT".to_owned()),
        ]),
    };
    let error = Endpoint::read(&config, &BTreeMap::new()).expect_err("there is no token");
    assert!(error.to_string().contains("`TOKEN`"), "{error}");
    let variables = [("TOKEN", "t0ken"), ("FROM", "here")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let endpoint = Endpoint::read(&config, &BTreeMap::from(variables)).expect("all is there");
    assert!(!format!("{endpoint:?}").contains("t0ken") && !format!("{endpoint:?}").contains("here"));
    let service = connect(place, &endpoint).await.expect("a handshake");
    assert_eq!(service.list_all_tools().await.expect("tools")[0].name, "echo");
    assert_eq!(echo(&service, "hi").await.expect("an answer"), "hi");
    for asked in server.target.asked() {
        let sent = ["authorization", "x-fixed", "x-from", "x-absent"].map(|name| asked.all(name).join(","));
        assert_eq!(sent, ["Bearer t0ken", "1", "here", ""], "{asked:?}");
    }
    service.cancel().await.expect("it ends");
}

async fn streamable_http_headers_of_a_server_go_to_no_other(place: &Place) {
    let server = Server::start();
    let to = server.target.url("/mcp");
    let leading = Target::start(move |_, stream| {
        target::respond(stream, "307 Temporary Redirect", &[("location", &to)], b"");
    });
    let headers = BTreeMap::from([("x-api-key".to_owned(), "s3cret".to_owned())]);
    let mut endpoint = Endpoint { url: leading.url("/mcp"), headers, ..Endpoint::default() };
    let error = connect(place, &endpoint).await.map(drop).expect_err("it leads to another origin");
    assert!(error.to_string().contains(&server.target.url("/mcp")), "{error}");
    assert_eq!(server.target.asked(), [], "nothing was sent there");
    // A redirect to the same origin is followed, with all headers.
    endpoint.url = server.target.url("/moved");
    let service = connect(place, &endpoint).await.expect("a handshake");
    assert_eq!(echo(&service, "hi").await.expect("an answer"), "hi");
    service.cancel().await.expect("it ends");
    assert!(server.target.asked().iter().all(|asked| asked.all("x-api-key") == ["s3cret"]));
    // An endpoint without secret headers follows the redirect.
    endpoint = Endpoint { url: leading.url("/mcp"), ..Endpoint::default() };
    connect(place, &endpoint).await.expect("a handshake").cancel().await.expect("it ends");
}

async fn streamable_http_events_before_the_answer_are_heard(place: &Place) {
    let server = Server::start();
    server.set(Mood::Events);
    let service = connect(place, &server.endpoint()).await.expect("a handshake");
    let long = "x".repeat(200_000);
    for text in ["one", &long, "two"] {
        assert_eq!(echo(&service, text).await.expect("an answer"), text);
    }
    service.cancel().await.expect("it ends");
}

async fn streamable_http_404_session_expiry_recovers_and_retries_once(place: &Place) {
    let (server, service) = connected(place).await;
    assert_eq!(echo(&service, "before").await.expect("an answer"), "before");
    server.set(Mood::Forgets);
    assert_eq!(echo(&service, "again").await.expect("it is begun anew"), "again");
    assert_eq!((server.heard("initialize"), server.heard("tools/call")), (2, 3));
    assert_eq!(echo(&service, "after").await.expect("and goes on"), "after");
    assert_eq!(server.heard("initialize"), 2);
    service.cancel().await.expect("it ends");
}

async fn streamable_http_404_recovery_only_retries_once(place: &Place) {
    let (server, service) = connected(place).await;
    server.set(Mood::AlwaysForgets);
    let error = echo(&service, "x").await.expect_err("it is forgotten again");
    assert!(matches!(error, HttpError::Failed { .. }), "{error}");
    assert_eq!((server.heard("initialize"), server.heard("tools/call")), (2, 2));
    server.set(Mood::Fine);
    assert_eq!(echo(&service, "fine").await.expect("the session is good"), "fine");
    service.cancel().await.expect("it ends");
}

async fn streamable_http_401_does_not_trigger_recovery(place: &Place) {
    let (server, service) = connected(place).await;
    server.set(Mood::Unauthorized);
    let error = echo(&service, "x").await.expect_err("it is refused");
    assert!(error.is_authentication_required(), "{error:?}");
    assert!(error.to_string().contains("https://login.example"), "{error}");
    assert_eq!((server.heard("initialize"), server.heard("tools/call")), (1, 1));
    service.cancel().await.expect("it ends");
    // A 401 without a challenge, during the handshake.
    let closed = Target::start(|_, stream| target::respond(stream, "401 Unauthorized", &[], b""));
    let endpoint = Endpoint { url: closed.url("/mcp"), ..Endpoint::default() };
    let error = connect(place, &endpoint).await.map(drop).expect_err("it is refused");
    assert!(error.is_authentication_required(), "{error:?}");
    assert_eq!(closed.asked().len(), 1);
}

async fn streamable_http_non_session_failure_does_not_trigger_recovery(place: &Place) {
    let (server, service) = connected(place).await;
    server.set(Mood::Broken);
    let error = echo(&service, "x").await.expect_err("it is broken");
    assert!(matches!(&error, HttpError::Failed { reason } if reason.contains("500")), "{error}");
    assert_eq!((server.heard("initialize"), server.heard("tools/call")), (1, 1));
    server.set(Mood::Fine);
    assert_eq!(echo(&service, "fine").await.expect("the next one works"), "fine");
    service.cancel().await.expect("it ends");
    // Nothing listens at that address.
    let gone = Target::saying("").url("/mcp");
    let error =
        connect(place, &Endpoint { url: gone, ..Endpoint::default() }).await.map(drop).expect_err("nobody there");
    assert!(matches!(&error, HttpError::Failed { reason } if reason.contains("127.0.0.1")), "{error}");
}

async fn streamable_http_handshake_timeout_unblocks_remote_executor(place: &Place) {
    let gone = Arc::new(AtomicUsize::new(0));
    let silent = Target::start({
        let gone = gone.clone();
        move |_, stream| {
            target::wait_closed(stream);
            gone.fetch_add(1, Ordering::Relaxed);
        }
    });
    let endpoint = Endpoint { url: silent.url("/mcp"), ..Endpoint::default() };
    let transport = endpoint.transport(place.client().clone()).expect("a transport");
    let shaking = ClientConfig::default().serve(transport);
    // Cancel once the server has definitely received the request.
    tokio::select! {
        _ = shaking => panic!("nobody answers"),
        () = until("the server is asked", async || !silent.asked().is_empty()) => {}
    }
    until("the executor lets go of it", async || gone.load(Ordering::Relaxed) == 1).await;
    // The executor's connection still works.
    let (_server, service) = connected(place).await;
    assert_eq!(echo(&service, "fine").await.expect("an answer"), "fine");
    service.cancel().await.expect("it ends");
}
