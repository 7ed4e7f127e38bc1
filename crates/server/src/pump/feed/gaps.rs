//! Reports gaps in a feed: as one `process/gap` to a peer that understands it, otherwise one message per missing
//! number.

use exec_server_protocol::{message, method::Notification, output, output::Output, process as wire};
use exec_server_rpc::Outbox;

use super::{Feed, FeedMode};
use crate::compat::Dialect;

/// Missing event numbers that are sent one by one.
pub(super) struct GapFill {
    next: u64,
    /// The last missing number.
    last: u64,
    /// Sent with the first missing number.
    gap: Option<wire::Gap>,
}

impl Feed {
    pub(super) fn report_gap(&mut self, gap: wire::Gap, out: &mut Outbox) {
        self.sent.seq = gap.to_seq;
        self.sent.offset += gap.bytes;
        if matches!(self.mode, FeedMode::Acked { .. }) {
            self.gaps.push_back((gap.to_seq, gap.bytes));
        }
        // During a takeover, output that the old connection acknowledged last may be released while the new connection
        // already reads. The owner has that output, so do not report a gap.
        if self.is_owner() && gap.to_seq <= self.process.retention().owner_taken() {
            return;
        }
        if self.process.meta.dialect == Dialect::Command {
            return; // This dialect has no event numbers and no gap message.
        }
        self.process.count_gap(gap.bytes);
        if self.capabilities.gap {
            self.send_gap(gap, out);
        } else {
            let gap_to_report = Some(self.with_counted_start(gap));
            self.filling = Some(GapFill { next: gap.from_seq, last: gap.to_seq, gap: gap_to_report });
        }
    }

    /// Sends a gap as one message, except for the exit and the close inside it. They are known even if their records
    /// are gone (dropped with older output, or forgotten by the owner), and a client waits for them.
    fn send_gap(&mut self, gap: wire::Gap, out: &mut Outbox) {
        let status = self.process.status();
        let is_inside = |seq: &u64| (gap.from_seq..=gap.to_seq).contains(seq);
        let mut rest = gap;
        if let Some((seq, exit)) = status.exited.filter(|(seq, _)| is_inside(seq)) {
            self.send_missing(wire::Gap { to_seq: seq - 1, ..rest }, out);
            // The part before the exit, if there is one, has reported the bytes of the whole gap.
            rest = wire::Gap { from_seq: seq + 1, bytes: if seq > gap.from_seq { 0 } else { gap.bytes }, ..rest };
            self.send_exited(seq, Some(exit), out);
        }
        let closed = status.closed_seq.filter(is_inside);
        self.send_missing(wire::Gap { to_seq: closed.map_or(rest.to_seq, |seq| seq - 1), ..rest }, out);
        if let Some(seq) = closed {
            self.send_closed(seq, status.written, status.dropped, out);
            self.finished = true;
        }
    }

    fn send_missing(&self, gap: wire::Gap, out: &mut Outbox) {
        if gap.from_seq <= gap.to_seq {
            let process_id = self.process.process_id();
            let session_id = self.session_key();
            let params = wire::GapParams { process_id, session_id, gap: self.with_counted_start(gap) };
            out.message(192, |buf| message::encode_notification(buf, Notification::ProcessGap.name(), &params));
        }
    }

    /// Moves the start of a gap to a number from which its bytes can be counted. If the reader continues after an event
    /// that is itself gone, the offset there is unknown. Then the gap is reported from event 1 on, with all bytes from
    /// the beginning. The reader knows which part it has.
    fn with_counted_start(&self, gap: wire::Gap) -> wire::Gap {
        let is_exact = self.offset_known || gap.bytes == 0;
        wire::Gap { from_seq: if is_exact { gap.from_seq } else { 1 }, ..gap }
    }

    /// Sends one missing number, to a peer that would stall at a jump in the numbers. Returns false if none is left.
    pub(super) fn fill_gap(&mut self, out: &mut Outbox) -> bool {
        let Some(filling) = &mut self.filling else { return false };
        let seq = filling.next;
        let gap = filling.gap.take();
        filling.next += 1;
        if filling.next > filling.last {
            self.filling = None;
        }
        // The exit and the close are known, as in `send_gap`.
        let status = self.process.status();
        match status.exited {
            Some((exited_seq, exit)) if exited_seq == seq => self.send_exited(seq, Some(exit), out),
            _ if status.closed_seq == Some(seq) => {
                self.send_closed(seq, status.written, status.dropped, out);
                self.finished = true;
            }
            _ => {
                let stream = if self.process.meta.tty { wire::Stream::Pty } else { wire::Stream::Stdout };
                let missing = Output { seq, stream, offset: None, gap, bytes: &[] };
                out.message(192, |buf| output::encode_output(buf, &self.addressee, &missing));
            }
        }
        true
    }
}
