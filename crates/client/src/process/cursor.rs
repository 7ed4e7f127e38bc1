//! A cursor over the events of one process: every event in order, once, from any sequence number on.
//!
//! Events come from the log if it still has them. Older ones are read back from the server, and those that the server no longer has appear
//! as a gap. An event counts as consumed when the reader asks for the next one. Until then the client or the server keeps it, unless the
//! process drops its oldest output or was attached without `hold`.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::Stream;

use super::{ProcessShared, event::Event, log::CursorRead, recovery};
use crate::{error::Error, transport::BoxFuture};

/// A cursor over the events of a process. Cancel safe: an event that was not returned is not lost.
///
/// Output that a cursor does not consume eventually blocks the process, so drop a cursor that you no longer read.
pub struct Events {
    shared: Arc<ProcessShared>,
    id: u64,
    /// The last sequence number that was returned; at first, the number after which the cursor begins.
    position: u64,
    /// Events that the log no longer has in memory, read back from the server.
    older: VecDeque<Event>,
    /// The read that fetches `older`.
    reading: Option<BoxFuture<'static, Result<VecDeque<Event>, Error>>>,
    is_over: bool,
}

impl Events {
    pub(super) fn new(shared: Arc<ProcessShared>, after: u64) -> Self {
        let id = shared.log.add_cursor(after);
        Self { shared, id, position: after, older: VecDeque::new(), reading: None, is_over: false }
    }

    /// Returns the next event, or `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_next_event(cx)).await
    }

    /// Waits for the next event, and returns it together with those that follow it and are in memory: about `max_bytes` of output, and at
    /// least one event. Returns nothing after the last event.
    ///
    /// All of them count as consumed when the reader asks for the next event or batch.
    pub async fn next_batch(&mut self, max_bytes: u64) -> Vec<Event> {
        let Some(first) = self.next().await else { return Vec::new() };
        let mut bytes = first.weight();
        let mut batch = vec![first];
        while bytes < max_bytes
            && let Some(event) = self.older.pop_front()
        {
            bytes += event.weight();
            batch.push(self.advance(event));
        }
        if self.older.is_empty() && !self.is_over {
            self.shared.log.append_following(self.position, max_bytes, &mut batch);
        }
        if let Some((_, to)) = batch.last().and_then(Event::span) {
            self.position = to;
        }
        batch
    }

    /// The last sequence number that was returned; at first, the number after which the cursor begins. Another cursor continues from here
    /// with `Process::events_after`.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn poll_next_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            if let Some(event) = self.older.pop_front() {
                return Poll::Ready(Some(self.advance(event)));
            }
            if let Some(reading) = &mut self.reading {
                let read = ready!(reading.as_mut().poll(cx));
                self.reading = None;
                match read {
                    Ok(events) => self.older = events,
                    Err(error) => return Poll::Ready(Some(self.fail(error))),
                }
                continue;
            }
            let found = self.shared.log.poll(self.id, self.position, cx);
            if self.shared.log.is_ack_due() {
                self.shared.session().acks.notify_one();
            }
            match ready!(found) {
                CursorRead::Event(event) => return Poll::Ready(Some(self.advance(event))),
                // Read the events between the cursor and the first one in memory.
                CursorRead::Before(first) => {
                    let shared = Arc::clone(&self.shared);
                    let position = self.position;
                    self.reading = Some(Box::pin(async move { recovery::read_back(&shared, position, first).await }));
                }
                CursorRead::End => self.is_over = true,
                CursorRead::Failed(error) => return Poll::Ready(Some(self.fail(error))),
            }
        }
    }

    fn advance(&mut self, event: Event) -> Event {
        if let Some((_, to)) = event.span() {
            self.position = to;
        }
        event
    }

    fn fail(&mut self, error: Error) -> Event {
        self.is_over = true;
        Event::Failed(error)
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll_next_event(cx)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.log.remove_cursor(self.id, self.position);
        if self.shared.log.is_ack_due() {
            self.shared.session().acks.notify_one();
        }
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("position", &self.position).finish_non_exhaustive()
    }
}
