//! The task that serves a line of input: sends its front, several at a time, and settles the first as its answer comes.
//!
//! When the link is cut, everything that was not settled is sent again in the same order under the same ids: the server
//! knows what it had. So is what a server has no room for, after a pause: it is not settled, and nothing passes it.
//!
//! Failure paths: a server that ignores ids cannot be asked twice, so what a cut interrupted there ends with an unknown
//! outcome. What was on its way behind a write that was refused may have gone in before it; then order cannot be had any
//! more, and the line is broken off.

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

/// Writes on their way at once. The server holds what a process does not read, so this bounds both.
const UNDER_WAY: usize = 16;

/// Pauses before what a server had no room for is sent again: 50 ms at first, 2 s at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Serves the line until it is empty.
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
        // Once the line was left empty it is another task's: to ask again could find what that one serves.
        if Serving::new(&input, &link, is_repeated).run().await == Served::All {
            return;
        }
        is_repeated = true;
    }
}

/// How far the line was served on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    /// To its end; whoever joins next starts another task.
    All,
    /// As far as the link lasted.
    Part,
}

/// The line on one link.
struct Serving<'a> {
    input: &'a Input,
    link: &'a Link,
    /// What was sent: the front of the line, in its order.
    under_way: VecDeque<Asked>,
    /// The link takes nothing more.
    is_gone: bool,
    /// The front may have been sent on an earlier link, too.
    is_repeated: bool,
    /// A write was refused for good; how many that were on their way behind it are left. None of them may go in.
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

    /// Serves until the line is empty or the link is gone.
    async fn run(mut self) -> Served {
        let joined = &self.input.joined;
        loop {
            self.fill().await;
            if self.under_way.is_empty() {
                // Not by a look at the line: somebody may have joined it this moment.
                if self.is_gone {
                    return Served::Part;
                }
                if self.input.is_done() {
                    return Served::All;
                }
                continue;
            }
            let has_place = self.under_way.len() < UNDER_WAY;
            // Both are cancel safe.
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

    /// Sends as much of the line as may be on its way.
    async fn fill(&mut self) {
        while !self.is_gone
            && self.under_way.len() < UNDER_WAY
            && let Some(what) = self.input.peek(self.under_way.len())
        {
            let bytes = what.len();
            // Where much is on its way already, one of each line: what is refused by itself can be sent again.
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

    /// What is behind the last that is on its way could not be sent.
    async fn handle_unsent(&mut self, error: CallError) {
        let is_full = matches!(error, CallError::Pending(PendingError::Full { .. }));
        let error = self.link.error("process/write", error);
        self.is_gone = matches!(error, Error::Disconnected { .. });
        // Those before it may be answered yet.
        if self.is_gone || !self.under_way.is_empty() {
            return;
        }
        if is_full {
            time::sleep(self.backoff.pause()).await;
        } else {
            self.input.settle(Err(error));
        }
    }

    /// The answer to the first that is on its way. Cancel safe: an answer that is not returned stays.
    async fn answer(&mut self) -> Result<Box<RawValue>, Error> {
        let Some(first) = self.under_way.front_mut() else { return Err(Error::Disconnected { reason: None }) };
        let answer = first.answer.as_mut().await;
        self.link.end_write(first.bytes);
        self.under_way.pop_front();
        answer.map_err(|error| self.link.error("process/write", error))
    }

    /// Settles the front of the line by its answer.
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

    /// The link was cut before the front of the line was answered.
    fn handle_cut(&mut self, reason: Option<String>) {
        if self.input.keeps_write_ids {
            return;
        }
        // It may have been written: to send it again could write it twice.
        for _ in 0..=self.under_way.len() {
            let reason = reason.clone();
            self.input.settle(Err(Error::UnknownOutcome { method: "process/write", reason }));
        }
    }

    /// The server had no room for the front of the line. All that was on its way is sent again after a pause, unless something
    /// behind the front found room, or may have: then it would come before what it stands behind.
    async fn send_again(&mut self, error: Error) {
        for at in 1..=self.under_way.len() {
            let is_refused = match self.answer().await {
                // What cannot be read may mean anything.
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

    /// Order cannot be had any more, because of what was refused.
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

/// What the answer to the item at `at` says.
fn outcome(input: &Input, at: usize, answer: &RawValue, is_repeated: bool) -> Result<Outcome, Error> {
    let text = answer.get();
    let read = match input.peek(at) {
        Some(What::Write { .. }) if input.generation == Generation::V0 => {
            // Trouble is an error there, so an answer means yes.
            serde_json::from_str::<command::WriteResult>(text).map(|_| Outcome::Write(wire::WriteStatus::Accepted))
        }
        Some(What::Write { .. }) | None => {
            serde_json::from_str::<wire::WriteResult>(text).map(|result| Outcome::Write(result.status))
        }
        Some(What::Close) => serde_json::from_str::<wire::CloseStdinResult>(text).map(|result| {
            // Closed by ourselves, on the link before.
            let is_ours = is_repeated && result.status == wire::CloseStdinStatus::StdinClosed;
            Outcome::Close(if is_ours { wire::CloseStdinStatus::Accepted } else { result.status })
        }),
    };
    read.map_err(|error| Error::Decode { method: "process/write".to_owned(), reason: error.to_string() })
}
