//! A WebSocket proxy that parses messages: each message is passed on, changed, answered in place of the server, or cuts the link. The rule
//! of the test decides. [`Proxy`](crate::Proxy) cuts at byte positions; this one acts on messages.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use tungstenite::{Error, Message, WebSocket};

use crate::address_of;

/// How often a link looks whether the proxy is dropped.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// The decision on a message.
#[derive(Debug)]
pub enum Verdict {
    /// Forward it, as the rule may have changed it.
    Pass,
    /// Do not forward it; send this answer with the id of the request.
    Answer(Value),
    /// Drop it and cut the link.
    Cut,
    /// Like `Cut`, and accept no new link before [`MessageProxy::open`].
    Shut,
}

type Rule = Box<dyn FnMut(Side, &mut Value) -> Verdict + Send>;

/// A running proxy. Dropping it stops the proxy.
pub struct MessageProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    /// The URL of the server, with its token.
    url: String,
    /// `IP:PORT` of the server.
    server: String,
    is_open: AtomicBool,
    is_over: AtomicBool,
    rule: Mutex<Rule>,
}

impl MessageProxy {
    /// Starts a proxy in front of the server. All messages are JSON, because the proxy removes the offer of other dialects.
    pub fn start(url: &str, rule: impl FnMut(Side, &mut Value) -> Verdict + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind a port");
        let address = listener.local_addr().expect("a bound port");
        let shared = Arc::new(Shared {
            url: url.to_owned(),
            server: address_of(url).to_owned(),
            is_open: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            rule: Mutex::new(Box::new(rule)),
        });
        let accepting = Arc::clone(&shared);
        let acceptor = thread::spawn(move || accept(&listener, &accepting));
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// The URL of the proxy. It needs no token, because the proxy adds it.
    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Accepts links again.
    pub fn open(&self) {
        self.shared.is_open.store(true, Ordering::SeqCst);
    }
}

impl Drop for MessageProxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // The acceptor checks the flag only when a connection arrives, so make one.
        TcpStream::connect(self.address).ok();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok(); // If a rule panicked, the test fails because of that.
        }
    }
}

fn accept(listener: &TcpListener, shared: &Shared) {
    thread::scope(|scope| {
        loop {
            let (near, _) = listener.accept().expect("accept a connection");
            if shared.is_over.load(Ordering::SeqCst) {
                return;
            }
            if shared.is_open.load(Ordering::SeqCst) {
                scope.spawn(move || link(near, shared));
            }
        }
    });
}

/// Forwards messages until either side ends, or a message cuts the link: then both ends are dropped.
fn link(near: TcpStream, shared: &Shared) -> Option<()> {
    near.set_nodelay(true).ok()?;
    let mut near = tungstenite::accept(near).ok()?;
    // If the server is down, the link ends as with a cut.
    let far = TcpStream::connect(&shared.server).ok()?;
    far.set_nodelay(true).ok()?;
    let (mut far, _) = tungstenite::client(&shared.url, far).ok()?;
    while !shared.is_over.load(Ordering::SeqCst) {
        forward(&mut near, &mut far, Side::Client, shared)?;
        forward(&mut far, &mut near, Side::Server, shared)?;
        let mut ends = [&near, &far].map(|end| PollFd::new(end.get_ref(), PollFlags::IN));
        poll(&mut ends, Some(&TICK)).expect("wait for messages");
    }
    None
}

/// Forwards the messages that have arrived from one side. `None` when the link is over.
fn forward(from: &mut WebSocket<TcpStream>, to: &mut WebSocket<TcpStream>, side: Side, shared: &Shared) -> Option<()> {
    loop {
        from.get_ref().set_nonblocking(true).ok()?;
        let read = from.read();
        from.get_ref().set_nonblocking(false).ok()?;
        let message = match read {
            Ok(message) => message,
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return Some(()),
            Err(_) => return None,
        };
        let (message, verdict) = judge(shared, side, message);
        match (verdict, side) {
            (Verdict::Cut | Verdict::Shut, _) => return None,
            (Verdict::Answer(_), Side::Client) => from.send(message).ok()?,
            (Verdict::Answer(_) | Verdict::Pass, _) => to.send(message).ok()?,
        }
    }
}

/// Applies the rule to a message; returns the message to send and the decision.
fn judge(shared: &Shared, from: Side, message: Message) -> (Message, Verdict) {
    if !message.is_text() && !message.is_binary() {
        return (message, Verdict::Pass);
    }
    let mut json: Value = serde_json::from_slice(&message.into_data()).expect("messages are JSON");
    if from == Side::Client && json["method"] == "initialize" {
        json["params"]["capabilities"]["dialects"] = json!([]);
    }
    // If a rule panics, the test fails because of it; do not panic here as well.
    let verdict = (shared.rule.lock().unwrap_or_else(PoisonError::into_inner))(from, &mut json);
    if let Verdict::Shut = verdict {
        shared.is_open.store(false, Ordering::SeqCst);
    }
    if let Verdict::Answer(answer) = &verdict {
        let id = json["id"].clone();
        json = answer.clone();
        json["id"] = id;
    }
    (Message::text(json.to_string()), verdict)
}
