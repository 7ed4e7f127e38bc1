//! The task that serves a stdin queue: it keeps several items from the front in flight, and completes the first one when its answer
//! arrives.
//!
//! After a cut, every item that was not completed is sent again, in the same order and under the same ids. The server recognizes the writes
//! that it already has. If the server has no room, the refused items are also sent again in order, after a pause.
//!
//! Failure paths: a server that ignores write ids cannot recognize a repeated write. A write that a cut interrupts there fails with an
//! unknown outcome. If the server refuses a write, but accepts one that was in flight behind it, the order is broken and the whole queue
//! fails.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use exec_server_protocol::{base64, failure::Kind, process as wire};
use exec_server_rpc::{
    calls::PendingError,
    client::{CallError, SentRequest},
};
use serde_json::value::RawValue;
use tokio::time;

use super::{ItemOutcome, StdinItem, StdinQueue};
use crate::{
    Request, backoff::Backoff, compat::command, error::Error, link_state::LinkWaiter, requests,
    server_link::ServerLink, session::ProcessKey, transport::BoxFuture,
};

/// Limit for items in flight. The server holds writes that the process does not read, so this bounds the memory of both sides.
const IN_FLIGHT_MAX: usize = 16;

/// Bounds of the first and of the longest pause before a write is sent again because the server, or the table of calls, had no room.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Serves the queue until it is empty.
pub(crate) async fn run_sender(input: Arc<StdinQueue>, links: LinkWaiter) {
    let mut after = 0;
    let mut is_repeated = false;
    while !input.finish_if_empty() {
        let link = match links.after(after).await {
            Ok(link) => link,
            Err(error) => {
                input.complete_first(Err(error));
                continue;
            }
        };
        after = link.epoch;
        // After `SendEnd::QueueEmpty`, another task may already serve the queue. Calling `finish_if_empty` here could unregister that task.
        if StdinSender::new(&input, &link, is_repeated).run().await == SendEnd::QueueEmpty {
            return;
        }
        is_repeated = true;
    }
}

/// How far the queue was served on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendEnd {
    /// The queue is empty. The next caller starts another task.
    QueueEmpty,
    /// The link ended first.
    LinkEnded,
}

/// Serves the queue on one link.
struct StdinSender<'a> {
    input: &'a StdinQueue,
    link: &'a ServerLink,
    /// The items in flight: the front of the queue, in order.
    in_flight: VecDeque<InFlightItem>,
    /// Whether the link is closed for sending.
    is_gone: bool,
    /// Whether the front of the queue may have been sent on an earlier link, too.
    is_repeated: bool,
    /// The error of a write that was refused for good, and how many of the items that were in flight behind it are unanswered. None of
    /// these may take effect.
    failed: Option<(Error, usize)>,
    backoff: Backoff,
}

struct InFlightItem {
    bytes: usize,
    answer: BoxFuture<'static, Result<Box<RawValue>, CallError>>,
}

impl<'a> StdinSender<'a> {
    fn new(input: &'a StdinQueue, link: &'a ServerLink, is_repeated: bool) -> Self {
        let backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        Self { input, link, in_flight: VecDeque::new(), is_gone: false, is_repeated, failed: None, backoff }
    }

    /// Serves until the queue is empty or the link is gone.
    async fn run(mut self) -> SendEnd {
        let item_added = &self.input.item_added;
        loop {
            self.fill().await;
            if self.in_flight.is_empty() {
                // An item may be added at this moment, so `finish_if_empty` decides under the lock whether the queue is empty.
                if self.is_gone {
                    return SendEnd::LinkEnded;
                }
                if self.input.finish_if_empty() {
                    return SendEnd::QueueEmpty;
                }
                continue;
            }
            let has_room = self.in_flight.len() < IN_FLIGHT_MAX;
            // Both arms are cancel safe.
            let answer = tokio::select! {
                biased;
                answer = self.answer() => answer,
                () = item_added.notified(), if has_room => continue,
            };
            match answer {
                Err(Error::Disconnected { reason }) => {
                    self.handle_cut(reason);
                    return SendEnd::LinkEnded;
                }
                Err(error) if error.server_kind() == Some(Kind::Overloaded) => self.send_again(error).await,
                other => self.handle_answer(other),
            }
        }
    }

    /// Sends as many items as may be in flight.
    async fn fill(&mut self) {
        while !self.is_gone
            && self.in_flight.len() < IN_FLIGHT_MAX
            && let Some(item) = self.input.peek(self.in_flight.len())
        {
            let bytes = item.len();
            // If many bytes are in flight on this link, keep only one item of each queue in flight. The server may refuse it, but then no
            // later item is accepted before it, and it can be sent again.
            if !self.in_flight.is_empty() && !self.link.has_room_for_write(bytes) {
                return;
            }
            match send(self.input, self.link, &item).await {
                Ok(sent) => {
                    self.link.begin_write(bytes);
                    self.in_flight.push_back(InFlightItem { bytes, answer: Box::pin(sent.answer()) });
                }
                Err(error) => return self.handle_unsent(error).await,
            }
        }
    }

    /// Handles an item that could not be sent. Earlier items may be in flight.
    async fn handle_unsent(&mut self, error: CallError) {
        let is_full = matches!(error, CallError::Pending(PendingError::Full { .. }));
        let error = self.link.error(requests::ProcessWrite::NAME, error);
        self.is_gone = matches!(error, Error::Disconnected { .. });
        // The earlier items may still be answered.
        if self.is_gone || !self.in_flight.is_empty() {
            return;
        }
        if is_full {
            time::sleep(self.backoff.pause()).await;
        } else {
            self.input.complete_first(Err(error));
        }
    }

    /// The answer to the first item in flight. Cancel safe: an answer that is not returned stays.
    async fn answer(&mut self) -> Result<Box<RawValue>, Error> {
        // Cannot be empty: the callers wait only for items in flight.
        let Some(first) = self.in_flight.front_mut() else { return Err(Error::Disconnected { reason: None }) };
        let answer = first.answer.as_mut().await;
        self.link.end_write(first.bytes);
        self.in_flight.pop_front();
        answer.map_err(|error| self.link.error(requests::ProcessWrite::NAME, error))
    }

    /// Completes the first item with its answer.
    fn handle_answer(&mut self, answer: Result<Box<RawValue>, Error>) {
        let outcome = answer.and_then(|answer| outcome(self.input, 0, &answer, self.is_repeated));
        let is_write = matches!(self.input.peek(0), Some(StdinItem::Write { .. }));
        match (&outcome, self.failed.take()) {
            (Ok(outcome), Some((error, _))) if outcome.is_taken() => return self.fail_all(&error),
            (_, Some((error, left))) => self.failed = (left > 1).then(|| (error, left - 1)),
            (Err(error @ Error::Server { .. }), None) if is_write && !self.in_flight.is_empty() => {
                self.failed = Some((error.clone(), self.in_flight.len()));
            }
            (Ok(_) | Err(_), None) => {}
        }
        self.input.complete_first(outcome);
        // Once nothing is in flight, the items of the earlier link have normally been sent again and answered. The flag affects only the
        // reported status of a close.
        self.is_repeated &= !self.in_flight.is_empty();
        self.backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
    }

    /// The link was cut before the first item was answered. Fails the items that cannot be sent again.
    fn handle_cut(&mut self, reason: Option<String>) {
        if self.input.keeps_write_ids {
            return;
        }
        // The server may have written these items, and sending them again could write them twice. The first item is no longer in
        // `in_flight`, but still in the queue.
        for _ in 0..=self.in_flight.len() {
            let reason = reason.clone();
            self.input.complete_first(Err(Error::UnknownOutcome { method: requests::ProcessWrite::NAME, reason }));
        }
    }

    /// The server had no room for the first item. All items in flight are sent again after a pause, unless the server accepted, or may have
    /// accepted, one of the later items: the order would then be broken.
    async fn send_again(&mut self, error: Error) {
        // Index 0 of the queue is the refused item, which is no longer in `in_flight`.
        for at in 1..=self.in_flight.len() {
            let is_refused = match self.answer().await {
                // An answer that cannot be decoded may mean that the item was accepted.
                Ok(answer) => outcome(self.input, at, &answer, false).is_ok_and(|outcome| !outcome.is_taken()),
                Err(error) => matches!(error, Error::Server { .. }),
            };
            if !is_refused {
                self.input.complete_first(Err(error.clone()));
                return self.fail_all(&error);
            }
        }
        tracing::debug!(process = self.input.key.process_id.as_str(), %error, "the server has no room for stdin; sending it again");
        time::sleep(self.backoff.pause()).await;
    }

    /// Fails the queue, because the order is broken after a refused write.
    fn fail_all(&mut self, refused: &Error) {
        self.input.fail_all(refused);
        for item in self.in_flight.drain(..) {
            self.link.end_write(item.bytes);
        }
    }
}

async fn send(input: &StdinQueue, link: &ServerLink, item: &StdinItem) -> Result<SentRequest, CallError> {
    let key = &input.key;
    match item {
        StdinItem::Write { bytes, .. } if !input.has_process_methods => {
            command::send_write(link, key.process_id.clone(), bytes).await
        }
        StdinItem::Write { id, bytes } => {
            let write_id = format!("{}-{id}", input.nonce);
            if let Some(sent) = link.send_write(key, &write_id, bytes).await {
                return sent;
            }
            let ProcessKey { process_id, session_id } = key.clone();
            let chunk = base64::encode(bytes).into();
            let params = wire::WriteParams { process_id, session_id, chunk, write_id: Some(write_id) };
            link.send(requests::ProcessWrite::METHOD, &params).await
        }
        StdinItem::Close => link.send(requests::ProcessCloseStdin::METHOD, &key.params()).await,
    }
}

/// Decodes the answer to the item at index `at`.
fn outcome(input: &StdinQueue, at: usize, answer: &RawValue, is_repeated: bool) -> Result<ItemOutcome, Error> {
    let text = answer.get();
    let read = match input.peek(at) {
        Some(StdinItem::Write { .. }) if !input.has_process_methods => {
            command::write_status(answer).map(ItemOutcome::Write)
        }
        // `None` cannot occur: an item stays queued until its answer is handled.
        Some(StdinItem::Write { .. }) | None => {
            serde_json::from_str::<wire::WriteResult>(text).map(|result| ItemOutcome::Write(result.status))
        }
        Some(StdinItem::Close) => serde_json::from_str::<wire::CloseStdinResult>(text).map(|result| {
            // This client closed stdin over an earlier link, and the answer was lost.
            let is_ours = is_repeated && result.status == wire::CloseStdinStatus::StdinClosed;
            ItemOutcome::Close(if is_ours { wire::CloseStdinStatus::Accepted } else { result.status })
        }),
    };
    read.map_err(|error| Error::Decode { method: requests::ProcessWrite::NAME.to_owned(), reason: error.to_string() })
}
