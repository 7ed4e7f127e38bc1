//! The task that serves a stdin queue: it sends several items from the front at a time, and settles the first one when its answer arrives.
//!
//! After a cut, every item that was not settled is sent again, in the same order and under the same ids. The server recognizes the writes
//! that it already has. If the server has no room, the refused items are also sent again in order, after a pause.
//!
//! Failure paths: a server that ignores write ids cannot recognize a repeated write, so a write that a cut interrupts there ends with an
//! unknown outcome. Items that were in flight behind a refused write may have been accepted. The order is then broken, and the whole queue
//! fails.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use exec_server_protocol::{base64, command, failure::Kind, process as wire};
use exec_server_rpc::{
    calls::PendingError,
    client::{CallError, Sent},
};
use serde_json::value::RawValue;
use tokio::time;

use super::{Input, Outcome, What};
use crate::{
    backoff::Backoff,
    error::Error,
    link::Link,
    links::Links,
    requests::{self, Method},
    session::Generation,
    transport::BoxFuture,
};

/// Limit for items in flight. The server holds writes that the process does not read, so this bounds the memory of both sides.
const UNDER_WAY: usize = 16;

/// The first and the longest pause before a write is repeated for which the server had no room.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Serves the queue until it is empty.
pub(crate) async fn serve(input: Arc<Input>, links: Links) {
    let mut after = 0;
    let mut is_repeated = false;
    while !input.is_done() {
        let link = match links.after(after).await {
            Ok(link) => link,
            Err(error) => {
                input.settle(Err(error));
                continue;
            }
        };
        after = link.epoch;
        // After `Served::All`, the queue may already be served by another task. Calling `is_done` again could interfere with that task.
        if Serving::new(&input, &link, is_repeated).run().await == Served::All {
            return;
        }
        is_repeated = true;
    }
}

/// How far the queue was served on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    /// The queue is empty. The next caller starts another task.
    All,
    /// The link ended first.
    Part,
}

/// Serves the queue on one link.
struct Serving<'a> {
    input: &'a Input,
    link: &'a Link,
    /// The items in flight: the front of the queue, in order.
    under_way: VecDeque<Asked>,
    /// Whether the link is closed for sending.
    is_gone: bool,
    /// Whether the front of the queue may have been sent on an earlier link, too.
    is_repeated: bool,
    /// The error of a write that was refused for good, and how many of the items that were in flight behind it are unanswered. None of
    /// these may take effect.
    failed: Option<(Error, usize)>,
    backoff: Backoff,
}

struct Asked {
    bytes: usize,
    answer: BoxFuture<'static, Result<Box<RawValue>, CallError>>,
}

impl<'a> Serving<'a> {
    fn new(input: &'a Input, link: &'a Link, is_repeated: bool) -> Self {
        let (under_way, backoff) = (VecDeque::new(), Backoff::new(PAUSES.0, PAUSES.1));
        Self { input, link, under_way, is_gone: false, is_repeated, failed: None, backoff }
    }

    /// Serves until the queue is empty or the link is gone.
    async fn run(mut self) -> Served {
        let joined = &self.input.joined;
        loop {
            self.fill().await;
            if self.under_way.is_empty() {
                // Do not decide by looking at the queue: an item may be added at this moment. `is_done` decides under the lock.
                if self.is_gone {
                    return Served::Part;
                }
                if self.input.is_done() {
                    return Served::All;
                }
                continue;
            }
            let has_place = self.under_way.len() < UNDER_WAY;
            // Both arms are cancel safe.
            let answer = tokio::select! {
                biased;
                answer = self.answer() => answer,
                () = joined.notified(), if has_place => continue,
            };
            match answer {
                Err(Error::Disconnected { reason }) => {
                    self.handle_cut(reason);
                    return Served::Part;
                }
                Err(error) if error.server_kind() == Some(Kind::Overloaded) => self.send_again(error).await,
                other => self.handle_answer(other),
            }
        }
    }

    /// Sends as many items as may be in flight.
    async fn fill(&mut self) {
        while !self.is_gone
            && self.under_way.len() < UNDER_WAY
            && let Some(what) = self.input.peek(self.under_way.len())
        {
            let bytes = what.len();
            // If many bytes are in flight on this link, each queue sends only one item at a time. A refusal then cannot break the order,
            // and the item can be sent again.
            if !self.under_way.is_empty() && !self.link.has_room_for_write(bytes) {
                return;
            }
            match send(self.input, self.link, &what).await {
                Ok(sent) => {
                    self.link.begin_write(bytes);
                    self.under_way.push_back(Asked { bytes, answer: Box::pin(sent.answer()) });
                }
                Err(error) => return self.handle_unsent(error).await,
            }
        }
    }

    /// Handles an item that could not be sent. Earlier items may be in flight.
    async fn handle_unsent(&mut self, error: CallError) {
        let is_full = matches!(error, CallError::Pending(PendingError::Full { .. }));
        let error = self.link.error("process/write", error);
        self.is_gone = matches!(error, Error::Disconnected { .. });
        // The earlier items may still be answered.
        if self.is_gone || !self.under_way.is_empty() {
            return;
        }
        if is_full {
            time::sleep(self.backoff.pause()).await;
        } else {
            self.input.settle(Err(error));
        }
    }

    /// The answer to the first item in flight. Cancel safe: an answer that is not returned stays.
    async fn answer(&mut self) -> Result<Box<RawValue>, Error> {
        let Some(first) = self.under_way.front_mut() else { return Err(Error::Disconnected { reason: None }) };
        let answer = first.answer.as_mut().await;
        self.link.end_write(first.bytes);
        self.under_way.pop_front();
        answer.map_err(|error| self.link.error("process/write", error))
    }

    /// Settles the first item with its answer.
    fn handle_answer(&mut self, answer: Result<Box<RawValue>, Error>) {
        let outcome = answer.and_then(|answer| outcome(self.input, 0, &answer, self.is_repeated));
        let is_write = matches!(self.input.peek(0), Some(What::Write { .. }));
        match (&outcome, self.failed.take()) {
            (Ok(outcome), Some((error, _))) if outcome.is_taken() => return self.break_off(&error),
            (_, Some((error, left))) => self.failed = (left > 1).then(|| (error, left - 1)),
            (Err(error @ Error::Server { .. }), None) if is_write && !self.under_way.is_empty() => {
                self.failed = Some((error.clone(), self.under_way.len()));
            }
            (Ok(_) | Err(_), None) => {}
        }
        self.input.settle(outcome);
        self.is_repeated &= !self.under_way.is_empty();
        self.backoff = Backoff::new(PAUSES.0, PAUSES.1);
    }

    /// The link was cut before the first item was answered.
    fn handle_cut(&mut self, reason: Option<String>) {
        if self.input.keeps_write_ids {
            return;
        }
        // The server may have written the item. Sending it again could write it twice.
        for _ in 0..=self.under_way.len() {
            let reason = reason.clone();
            self.input.settle(Err(Error::UnknownOutcome { method: "process/write", reason }));
        }
    }

    /// The server had no room for the first item. All items in flight are sent again after a pause, unless the server accepted, or may have
    /// accepted, one of the later items: the order would then be broken.
    async fn send_again(&mut self, error: Error) {
        for at in 1..=self.under_way.len() {
            let is_refused = match self.answer().await {
                // An answer that cannot be decoded may mean that the item was accepted.
                Ok(answer) => outcome(self.input, at, &answer, false).is_ok_and(|outcome| !outcome.is_taken()),
                Err(error) => matches!(error, Error::Server { .. }),
            };
            if !is_refused {
                self.input.settle(Err(error.clone()));
                return self.break_off(&error);
            }
        }
        tracing::debug!(process = self.input.key.process_id.as_str(), %error, "no room for input, it is sent again");
        time::sleep(self.backoff.pause()).await;
    }

    /// Fails the queue, because the order is broken after a refused write.
    fn break_off(&mut self, refused: &Error) {
        self.input.break_off(refused);
        for asked in self.under_way.drain(..) {
            self.link.end_write(asked.bytes);
        }
    }
}

async fn send(input: &Input, link: &Link, what: &What) -> Result<Sent, CallError> {
    let key = &input.key;
    match what {
        What::Write { bytes, .. } if input.generation == Generation::V0 => {
            let chunk = base64::encode(bytes).into();
            let params = command::WriteParams { process_id: key.process_id.clone(), chunk };
            link.send(requests::CommandExecWrite::NAME, &params).await
        }
        What::Write { id, bytes } => {
            let write_id = format!("{}-{id}", input.nonce);
            if let Some(sent) = link.send_write(key, &write_id, bytes).await {
                return sent;
            }
            let params = wire::WriteParams {
                process_id: key.process_id.clone(),
                session_id: key.session_id.clone(),
                chunk: base64::encode(bytes).into(),
                write_id: Some(write_id),
            };
            link.send(requests::ProcessWrite::NAME, &params).await
        }
        What::Close => {
            let params = wire::ProcessParams { process_id: key.process_id.clone(), session_id: key.session_id.clone() };
            link.send(requests::ProcessCloseStdin::NAME, &params).await
        }
    }
}

/// Decodes the answer to the item at index `at`.
fn outcome(input: &Input, at: usize, answer: &RawValue, is_repeated: bool) -> Result<Outcome, Error> {
    let text = answer.get();
    let read = match input.peek(at) {
        Some(What::Write { .. }) if input.generation == Generation::V0 => {
            // V0 reports a problem as an error, so an answer means success.
            serde_json::from_str::<command::WriteResult>(text).map(|_| Outcome::Write(wire::WriteStatus::Accepted))
        }
        Some(What::Write { .. }) | None => {
            serde_json::from_str::<wire::WriteResult>(text).map(|result| Outcome::Write(result.status))
        }
        Some(What::Close) => serde_json::from_str::<wire::CloseStdinResult>(text).map(|result| {
            // This client closed stdin over the previous link, and the answer was lost.
            let is_ours = is_repeated && result.status == wire::CloseStdinStatus::StdinClosed;
            Outcome::Close(if is_ours { wire::CloseStdinStatus::Accepted } else { result.status })
        }),
    };
    read.map_err(|error| Error::Decode { method: "process/write".to_owned(), reason: error.to_string() })
}
