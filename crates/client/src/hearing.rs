//! Hears a server's notifications and takes each to the log of its process, or to the body that it is a piece of, in the
//! reader's own turn.
//!
//! A notification that cannot be read ends the link, as a cut would: whatever it said, a resume says it again. An event that
//! breaks the rules fails its process alone. Nothing queues here.

use std::sync::Arc;

use exec_server_protocol::{base64, command, method, process as wire};
use exec_server_rpc::{Closed, client::Listener};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;

use crate::{
    error::Error,
    http::Streams,
    process::{
        event::{Event, Exit, Totals},
        log::{Heard, Log},
    },
    routes::Routes,
};

/// What is said of a notification that cannot be read.
const UNREADABLE: Closed = Closed::Protocol("a notification cannot be read");

/// The listener of one link.
pub(crate) struct Ear {
    routes: Arc<Routes>,
    streams: Arc<Streams>,
    acks: Arc<Notify>,
}

impl Ear {
    pub(crate) fn new(routes: Arc<Routes>, streams: Arc<Streams>, acks: Arc<Notify>) -> Self {
        Self { routes, streams, acks }
    }

    /// Gives an event to its log, and waits where a reference server is too far ahead of a reader.
    async fn tell(&self, log: &Log, event: Event) {
        match log.hear(event) {
            Ok(Heard::Fine) => {}
            Ok(Heard::Full) => log.room().await,
            Err(breach) => log.fail(Error::Protocol(breach.0.to_owned())),
        }
        if log.is_ack_due() {
            self.acks.notify_one();
        }
    }
}

impl Listener for Ear {
    async fn notification(&mut self, method: &str, params: Option<&RawValue>) -> Result<(), Closed> {
        match method {
            method::PROCESS_OUTPUT => {
                let output: wire::OutputParams = read(params)?;
                let Some(log) = self.routes.pushed(output.session_id, output.process_id) else { return Ok(()) };
                let event = match output.gap {
                    Some(gap) if output.chunk.is_empty() => gap_event(gap),
                    _ => {
                        let bytes = base64::decode(&output.chunk).map_err(|_| UNREADABLE)?.into();
                        Event::Output { seq: output.seq, stream: output.stream, bytes, offset: output.offset }
                    }
                };
                self.tell(&log, event).await;
            }
            method::PROCESS_EXITED => {
                let exited: wire::ExitedParams = read(params)?;
                let log = self.routes.pushed(exited.session_id.clone(), exited.process_id.clone());
                if let Some(log) = log {
                    self.tell(&log, Event::Exited { seq: exited.seq, exit: exited.into() }).await;
                }
            }
            method::PROCESS_CLOSED => {
                let closed: wire::ClosedParams = read(params)?;
                if let Some(log) = self.routes.pushed(closed.session_id, closed.process_id) {
                    let totals = Totals { output_bytes: closed.output_bytes, dropped_bytes: closed.dropped_bytes };
                    self.tell(&log, Event::Closed { seq: closed.seq, totals }).await;
                }
            }
            method::PROCESS_GAP => {
                let missing: wire::GapParams = read(params)?;
                if let Some(log) = self.routes.pushed(missing.session_id, missing.process_id) {
                    self.tell(&log, gap_event(missing.gap)).await;
                }
            }
            method::HTTP_BODY_DELTA => self.streams.hear(read(params)?)?,
            // V0 counts nothing: the order of arrival is the order.
            method::COMMAND_OUTPUT_DELTA => {
                let output: command::OutputDeltaParams = read(params)?;
                if let Some(log) = self.routes.pushed(None, output.process_id) {
                    let bytes = base64::decode(&output.chunk).map_err(|_| UNREADABLE)?.into();
                    let stream = match output.stream {
                        command::Stream::Stdout => wire::Stream::Stdout,
                        command::Stream::Stderr => wire::Stream::Stderr,
                    };
                    self.tell(&log, Event::Output { seq: log.next(), stream, bytes, offset: None }).await;
                }
            }
            method::COMMAND_EXITED => {
                let exited: command::ExitedParams = read(params)?;
                if let Some(log) = self.routes.pushed(None, exited.process_id) {
                    let exit = Exit::of_code(exited.exit_code);
                    self.tell(&log, Event::Exited { seq: log.next(), exit }).await;
                    self.tell(&log, Event::Closed { seq: log.next(), totals: Totals::default() }).await;
                }
            }
            // A later server may say more than we know.
            _ => {}
        }
        Ok(())
    }
}

fn gap_event(gap: wire::Gap) -> Event {
    Event::Gap { from_seq: gap.from_seq, to_seq: gap.to_seq, bytes: Some(gap.bytes) }
}

fn read<'de, T: Deserialize<'de>>(params: Option<&'de RawValue>) -> Result<T, Closed> {
    let params = params.ok_or(UNREADABLE)?;
    serde_json::from_str(params.get()).map_err(|_| UNREADABLE)
}
