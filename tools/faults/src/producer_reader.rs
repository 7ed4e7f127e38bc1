//! A client that reads the pushed output of one producer to its end: checks every record, every number and the exit code.

use crate::prelude::*;

/// The producer's process id.
const PROCESS: &str = "p";

/// The reader acknowledges after this many bytes.
const ACK_EVERY: u64 = 256 << 10;

/// One producer and what was received from it.
pub(super) struct ProducerReader {
    pub(super) wire: WireClient,
    id: u64,
    /// The number of records that it writes.
    count: u64,
    records: Records,
    /// The number of the last event.
    pub(super) seq: u64,
    /// Events up to this number came before the last resume, which may repeat them.
    seq_before_resume: u64,
    pub(super) bytes: u64,
    unacknowledged: u64,
    pub(super) acknowledges: bool,
    exited: bool,
    closed: bool,
}

impl ProducerReader {
    /// A reader of a producer that was started in this session.
    pub(super) fn new(wire: WireClient, id: u64, count: u64) -> Self {
        Self {
            wire,
            id,
            count,
            records: Records::new(id),
            seq: 0,
            seq_before_resume: 0,
            bytes: 0,
            unacknowledged: 0,
            acknowledges: true,
            exited: false,
            closed: false,
        }
    }

    /// Starts the producer.
    pub(super) fn start(mut wire: WireClient, id: u64, count: u64) -> Result<Self> {
        wire.start_producer(PROCESS, id, count)?;
        Ok(Self::new(wire, id, count))
    }

    /// Continues on a connection that has resumed the session; returns the old connection.
    pub(super) fn resume(&mut self, wire: WireClient) -> WireClient {
        self.seq_before_resume = self.seq;
        std::mem::replace(&mut self.wire, wire)
    }

    /// Handles one message; returns false at the end.
    pub(super) fn take(&mut self) -> Result<bool> {
        let message = self.wire.next_message();
        let message = message.with_context(|| format!("after number {}, {} bytes", self.seq, self.bytes))?;
        let seq = match &message {
            ServerMessage::Output(output) => output.seq,
            ServerMessage::Exited { seq, .. } | ServerMessage::Closed { seq, .. } => *seq,
            ServerMessage::Other { method, params } => bail!("unexpected `{method}`: {params}"),
            ServerMessage::Answer { .. } => return Ok(true),
        };
        if seq <= self.seq_before_resume {
            return Ok(true);
        }
        ensure!(seq == self.seq + 1, "number {seq} after {}", self.seq);
        self.seq = seq;
        match message {
            ServerMessage::Output(output) => {
                ensure!(output.gap.is_none(), "a gap: {:?}", output.gap);
                self.records.push(&output.bytes);
                self.bytes += output.bytes.len() as u64;
                self.unacknowledged += output.bytes.len() as u64;
                if self.acknowledges && self.unacknowledged >= ACK_EVERY {
                    self.unacknowledged = 0;
                    self.wire.acknowledge(PROCESS, seq)?;
                }
            }
            ServerMessage::Exited { code, .. } => {
                ensure!(code == records::exit_code(self.id), "the producer exited with {code}");
                self.exited = true;
            }
            _ => {
                ensure!(self.exited, "closed before it exited");
                self.closed = true;
            }
        }
        Ok(!self.closed)
    }

    /// Reads the rest, checks all records, and ends the session.
    pub(super) fn finish(mut self) -> Result<()> {
        while !self.closed {
            self.take()?;
        }
        self.records.finish(self.count)?;
        self.wire.end_session()
    }
}
