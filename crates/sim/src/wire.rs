//! A client's end of one connection: frames in and out, and nothing of what they say.
//!
//! Owns two tasks, which end with it. Messages wait in order until the link takes them; the queue is bounded by what the model client
//! asks for, which is little.

use std::{cell::RefCell, collections::VecDeque, rc::Rc};

use bytes::Bytes;
use exec_server_protocol::limits;
use exec_server_rpc::{Framing, Inbound, Outbox, Receiver, Role, Stream};
use serde_json::Value;
use tokio::{sync::Notify, task::JoinSet};

/// Whom a connection tells what it heard.
pub trait Ear: 'static {
    /// A message came.
    fn heard(&self, connection: u32, message: Value);
    /// The peer lives and says nothing else.
    fn pinged(&self, connection: u32);
    /// Nothing more will come, for this reason.
    fn ended(&self, connection: u32, why: &str);
}

/// The sending side of a connection, and the owner of both.
pub struct Wire {
    queue: Rc<Queue>,
    /// Dropped with the wire: both tasks end.
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Queue {
    out: RefCell<VecDeque<Out>>,
    bell: Notify,
}

enum Out {
    Message(Vec<u8>),
    Pong(Bytes),
}

const FRAMING: Framing = Framing::WebSocket { role: Role::Client, max: limits::MESSAGE_BYTES };

impl Wire {
    /// Begins to send and to listen.
    pub fn new(number: u32, stream: Stream, ear: impl Ear) -> Self {
        let queue = Rc::new(Queue::default());
        let mut tasks = JoinSet::new();
        let Stream { reader, mut writer, leftover, .. } = stream;
        let outgoing = queue.clone();
        tasks.spawn_local(async move {
            let mut outbox = Outbox::new(FRAMING);
            loop {
                for out in outgoing.out.take() {
                    match out {
                        Out::Message(text) => outbox.message(text.len(), |buf| buf.extend_from_slice(&text)),
                        Out::Pong(payload) => outbox.pong(&payload),
                    }
                }
                if outbox.flush_to(&mut writer).await.is_err() {
                    return; // The reading side sees the same end and says so.
                }
                outgoing.bell.notified().await;
            }
        });
        let incoming = queue.clone();
        tasks.spawn_local(async move {
            let mut receiver = Receiver::new(FRAMING, reader, leftover);
            loop {
                match receiver.recv().await {
                    Ok(Inbound::Message(text)) => match serde_json::from_slice(&text) {
                        Ok(message) => ear.heard(number, message),
                        Err(error) => return ear.ended(number, &format!("not JSON: {error}")),
                    },
                    Ok(Inbound::Ping(payload)) => {
                        ear.pinged(number);
                        incoming.push(Out::Pong(payload));
                    }
                    Ok(Inbound::Pong(_)) => {}
                    Err(closed) => return ear.ended(number, &closed.to_string()),
                }
            }
        });
        Self { queue, _tasks: tasks }
    }

    /// Sends a message, when the link takes it.
    pub fn send(&self, message: &Value) {
        self.send_text(message.to_string());
    }

    /// Sends any text as a message.
    pub fn send_text(&self, text: String) {
        self.queue.push(Out::Message(text.into_bytes()));
    }
}

impl Queue {
    fn push(&self, out: Out) {
        self.out.borrow_mut().push_back(out);
        self.bell.notify_one();
    }
}
