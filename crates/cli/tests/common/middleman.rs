//! Owns somebody between client and server who reads along: each message is passed on, changed, answered in the server's place,
//! or the link is cut at it. It must not know what a message means; the test's own rule does.

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

/// Who said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// What becomes of a message.
#[derive(Debug)]
pub(crate) enum Deed {
    /// It goes on, as the rule has left it.
    Pass,
    /// The server never hears it; this is the answer, with the id of the question.
    Answer(Value),
    /// Nobody hears it, and its link ends.
    Cut,
    /// The same, and no link is made before [`Middleman::open`].
    Shut,
}

type Rule = Box<dyn FnMut(Side, &mut Value) -> Deed + Send>;

/// A middleman on a port of his own; ends with the value.
pub(crate) struct Middleman {
    address: SocketAddr,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

struct Shared {
    /// The server's, with its token.
    url: String,
    is_open: AtomicBool,
    rule: Mutex<Rule>,
}

impl Middleman {
    /// Stands before the server of this URL. Messages are JSON, because no other dialect is offered through him.
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

    /// Where he is found; he has the token himself.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Lets links be made again.
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

/// Carries messages until either side ends, or a message ends it: both ends are dropped then, as by a cut.
async fn link(near: TcpStream, shared: Arc<Shared>) {
    let Ok(mut near) = accept_async(near).await else { return };
    // A server that is down ends the link as a cut does.
    let Ok((mut far, _)) = connect_async(&shared.url).await else { return };
    loop {
        // Both are cancel safe.
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

/// What is to be sent, and where to.
fn judge(shared: &Shared, from: Side, message: Message) -> (Message, Deed) {
    if !message.is_text() && !message.is_binary() {
        return (message, Deed::Pass);
    }
    let mut said: Value = serde_json::from_slice(&message.into_data()).expect("messages are JSON");
    if from == Side::Client && said["method"] == "initialize" {
        said["params"]["capabilities"]["dialects"] = json!([]);
    }
    // The panic of a rule is the test's failure, not another one's here.
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
