//! A client's end of one connection: sends and receives frames, without interpreting the messages.
//!
//! Owns two tasks, which end with it. Messages are queued in order until the link accepts them. The queue is limited by the few requests
//! that the model client makes.

use bytes::Bytes;
use exec_server_protocol::limits;
use exec_server_rpc::{Framing, InboundFrame, Outbox, Receiver, WebSocketRole};
use tokio::{sync::Notify, task::JoinSet};

use crate::prelude::*;

/// What arrives on a connection.
pub enum Arrival {
    Message(Value),
    Ping,
    /// The end of the connection, with its reason. Nothing follows.
    End(String),
}

/// The sending side of a connection. Owns the tasks of both sides.
pub struct WireConnection {
    queue: Rc<SendQueue>,
    /// Dropped with the wire, which aborts both tasks.
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct SendQueue {
    out: RefCell<VecDeque<OutgoingFrame>>,
    wakeup: Notify,
}

enum OutgoingFrame {
    Message(Vec<u8>),
    Pong(Bytes),
}

pub const FRAMING: Framing = Framing::WebSocket { role: WebSocketRole::Client, max: limits::MESSAGE_BYTES };

impl WireConnection {
    /// Starts to send and to receive.
    pub fn new(stream: ByteStream, handle: impl Fn(Arrival) + 'static) -> Self {
        let queue = Rc::new(SendQueue::default());
        let mut tasks = JoinSet::new();
        let ByteStream { reader, mut writer, leftover, .. } = stream;
        let outgoing = queue.clone();
        tasks.spawn_local(async move {
            let mut outbox = Outbox::new(FRAMING);
            loop {
                for out in outgoing.out.take() {
                    match out {
                        OutgoingFrame::Message(text) => outbox.message(text.len(), |buf| buf.extend_from_slice(&text)),
                        OutgoingFrame::Pong(payload) => outbox.pong(&payload),
                    }
                }
                if outbox.flush_to(&mut writer).await.is_err() {
                    return; // The reader sees the same end and reports it.
                }
                outgoing.wakeup.notified().await;
            }
        });
        let incoming = queue.clone();
        tasks.spawn_local(async move {
            let mut receiver = Receiver::new(FRAMING, reader, leftover);
            loop {
                match receiver.recv().await {
                    Ok(InboundFrame::Message(text)) => match serde_json::from_slice(&text) {
                        Ok(message) => handle(Arrival::Message(message)),
                        Err(error) => return handle(Arrival::End(format!("not JSON: {error}"))),
                    },
                    Ok(InboundFrame::Ping(payload)) => {
                        handle(Arrival::Ping);
                        incoming.push(OutgoingFrame::Pong(payload));
                    }
                    Ok(InboundFrame::Pong(_)) => {}
                    Err(closed) => return handle(Arrival::End(closed.to_string())),
                }
            }
        });
        Self { queue, _tasks: tasks }
    }

    /// Queues a message.
    pub fn send(&self, message: &Value) {
        self.send_text(message.to_string());
    }

    /// Queues any text as a message.
    pub fn send_text(&self, text: String) {
        self.queue.push(OutgoingFrame::Message(text.into_bytes()));
    }
}

impl SendQueue {
    fn push(&self, out: OutgoingFrame) {
        self.out.borrow_mut().push_back(out);
        self.wakeup.notify_one();
    }
}
