//! A WebSocket proxy that parses messages: each message is passed on, changed, answered in place of the server, or cuts the link. The rule
//! of the test decides.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use tokio_tungstenite::{accept_async, connect_async, tungstenite::Message};

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The decision on a message.
#[derive(Debug)]
pub(crate) enum Deed {
    /// Forward it, as the rule may have changed it.
    Pass,
    /// Do not forward it; send this answer with the id of the request.
    Answer(Value),
    /// Drop it and cut the link.
    Cut,
    /// Like `Cut`, and accept no new link before [`Middleman::open`].
    Shut,
}

type Rule = Box<dyn FnMut(Side, &mut Value) -> Deed + Send>;

/// A running proxy. Dropping it stops the proxy.
pub(crate) struct Middleman {
    address: SocketAddr,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

struct Shared {
    /// The URL of the server, with its token.
    url: String,
    is_open: AtomicBool,
    rule: Mutex<Rule>,
}

impl Middleman {
    /// Starts a proxy in front of the server. All messages are JSON, because the proxy removes the offer of other dialects.
    pub(crate) fn start(url: &str, rule: impl FnMut(Side, &mut Value) -> Deed + Send + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("build a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("bind a port");
        let address = listener.local_addr().expect("a bound port");
        let shared =
            Arc::new(Shared { url: url.to_owned(), is_open: AtomicBool::new(true), rule: Mutex::new(Box::new(rule)) });
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, _runtime: runtime }
    }

    /// The URL of the proxy. It needs no token, because the proxy adds it.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Accepts links again.
    pub(crate) fn open(&self) {
        self.shared.is_open.store(true, Ordering::SeqCst);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut links = tokio::task::JoinSet::new();
    loop {
        let (near, _) = listener.accept().await.expect("accept a connection");
        if shared.is_open.load(Ordering::SeqCst) {
            links.spawn(link(near, Arc::clone(&shared)));
        }
    }
}

/// Forwards messages until either side ends, or a message cuts the link: then both ends are dropped.
async fn link(near: TcpStream, shared: Arc<Shared>) {
    let Ok(mut near) = accept_async(near).await else { return };
    // If the server is down, the link ends as with a cut.
    let Ok((mut far, _)) = connect_async(&shared.url).await else { return };
    loop {
        // Both are cancel-safe.
        let (from, message) = tokio::select! {
            message = near.next() => (Side::Client, message),
            message = far.next() => (Side::Server, message),
        };
        let Some(Ok(message)) = message else { return };
        let (message, deed) = judge(&shared, from, message);
        let passed = match (deed, from) {
            (Deed::Cut | Deed::Shut, _) => return,
            (Deed::Answer(_), _) | (Deed::Pass, Side::Server) => near.send(message).await,
            (Deed::Pass, Side::Client) => far.send(message).await,
        };
        if passed.is_err() {
            return;
        }
    }
}

/// Applies the rule to a message; returns the message to send and the decision.
fn judge(shared: &Shared, from: Side, message: Message) -> (Message, Deed) {
    if !message.is_text() && !message.is_binary() {
        return (message, Deed::Pass);
    }
    let mut said: Value = serde_json::from_slice(&message.into_data()).expect("messages are JSON");
    if from == Side::Client && said["method"] == "initialize" {
        said["params"]["capabilities"]["dialects"] = json!([]);
    }
    // If a rule panics, the test fails because of it; do not panic here as well.
    let deed = (shared.rule.lock().unwrap_or_else(PoisonError::into_inner))(from, &mut said);
    if let Deed::Shut = deed {
        shared.is_open.store(false, Ordering::SeqCst);
    }
    if let Deed::Answer(answer) = &deed {
        let id = said["id"].clone();
        said = answer.clone();
        said["id"] = id;
    }
    (Message::text(said.to_string()), deed)
}
