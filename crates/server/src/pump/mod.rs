//! The pump: the only sender of a connection. It owns the write half, the cursors of all pushed processes, and the
//! waiting reads.
//!
//! Order of sending: pings, pongs and answers first, then reads that can be answered, then feeds in round robin with
//! `QUANTUM_BYTES` per turn, alternating with pieces of HTTP bodies, while the batch has room. The pump flushes a batch
//! once and fills the next one after the socket has accepted it. So output waits in the log and never in a queue here,
//! and neither an answer nor a quiet process waits behind a noisy one for more than one batch.

mod channels;
mod convert;
mod feed;
mod outgoing;
mod read;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    io,
    sync::Arc,
    time::Duration,
};

use exec_server_protocol::{ProcessId, limits};
use exec_server_rpc::{Framing, Outbox};
use futures_util::future::OptionFuture;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::OwnedSemaphorePermit,
    task::JoinSet,
    time::Instant,
};

pub(crate) use self::{
    convert::{limits_hit, wire_blocked, wire_cause},
    feed::{FollowCommand, FollowRole, FollowStart},
    outgoing::{FeedWaker, OutgoingQueue, PumpCommand, Reply, encode_failure},
    read::ReadCommand,
};
use self::{
    feed::{Feed, TurnOutcome},
    read::{ReadJob, ReadOutcome},
};
use crate::{compat::Dialect, error::Failure, process::Process};

/// Size at which a batch is flushed: large enough to keep a fast socket busy, small enough that an answer waits only
/// briefly behind it.
const BATCH_BYTES: usize = 256 << 10;

/// Bytes that one process may send per turn, exceeded by at most one record.
const QUANTUM_BYTES: usize = 64 << 10;

/// How long a closing connection may take to accept the remaining data.
const CLOSE_FLUSH: Duration = Duration::from_secs(5);

/// The capabilities that the peer announced, and the bounds in force for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerCapabilities {
    pub(crate) ack: bool,
    pub(crate) gap: bool,
    /// The peer's requests may take effect in any order.
    pub(crate) concurrent: bool,
    /// The peer understands messages with attached bytes.
    pub(crate) attached: bool,
    /// The peer understands binary output frames, and attached bytes on more methods than `attached` covers.
    pub(crate) binary: bool,
    pub(crate) ack_window_bytes: u64,
}

pub(crate) struct Pump {
    outgoing: Arc<OutgoingQueue>,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    outbox: Outbox,
    feeds: BTreeMap<u64, Feed>,
    /// Feeds by the address of their process. The address stays valid because the feed keeps the process alive.
    by_process: HashMap<usize, u64>,
    /// Feeds by session and process id. If an id was used again, this is the newer feed.
    by_name: HashMap<(Arc<str>, ProcessId), u64>,
    /// At least the feeds that have a timer: their clients cannot acknowledge, and pushing waits for a read.
    timed: BTreeSet<u64>,
    /// Feeds with something to send, in round-robin order.
    turns: VecDeque<u64>,
    reads: BTreeMap<u64, ReadJob>,
    /// Reads that may be answerable now, in the order in which they became so.
    ready_reads: VecDeque<u64>,
    /// The last key given to a feed or a read. Feeds and reads share one sequence, so a key names only one of them.
    last_key: u64,
    /// Pieces of HTTP bodies that did not fit into earlier batches.
    deltas: VecDeque<(Vec<u8>, OwnedSemaphorePermit)>,
    /// Loads of disk segments that are under way.
    loads: JoinSet<()>,
    close: Option<(u16, &'static str)>,
}

impl Pump {
    pub(crate) fn new(
        framing: Framing,
        writer: Box<dyn AsyncWrite + Send + Unpin>,
        outgoing: Arc<OutgoingQueue>,
    ) -> Self {
        Self {
            outgoing,
            writer,
            outbox: Outbox::new(framing),
            feeds: BTreeMap::new(),
            by_process: HashMap::new(),
            by_name: HashMap::new(),
            timed: BTreeSet::new(),
            turns: VecDeque::new(),
            reads: BTreeMap::new(),
            ready_reads: VecDeque::new(),
            last_key: 0,
            deltas: VecDeque::new(),
            loads: JoinSet::new(),
            close: None,
        }
    }

    /// Sends until the socket fails or a close is requested.
    pub(crate) async fn run(mut self) -> io::Result<()> {
        loop {
            self.fill(Instant::now());
            if !self.outbox.is_empty() {
                self.outgoing.set_flushing(true);
                // Count once per batch. If the peer disconnects in the middle, the count is too high by less than a
                // batch.
                self.outgoing.metrics.sent_bytes.add(self.outbox.len() as u64);
                let flush = self.outbox.flush_to(&mut self.writer);
                let flushed = match self.close {
                    None => flush.await,
                    // A peer that does not read cannot keep a closing connection open.
                    Some(_) => tokio::time::timeout(CLOSE_FLUSH, flush).await.map_err(io::Error::from).flatten(),
                };
                self.outgoing.set_flushing(false);
                flushed?;
                if self.close.is_none() {
                    continue;
                }
            }
            if self.close.is_some() {
                return self.writer.shutdown().await;
            }
            if self.ready_reads.is_empty() && self.turns.is_empty() && self.deltas.is_empty() {
                self.wait().await;
            }
        }
    }

    /// Waits for queued items, a timer or a finished load. All three branches are cancel safe.
    async fn wait(&mut self) {
        let feeds = self.timed.iter().filter_map(|key| self.feeds.get(key)?.timer());
        let next_timer = feeds.chain(self.reads.values().filter_map(ReadJob::timer)).min();
        tokio::select! {
            biased;
            () = self.outgoing.changed.notified() => {}
            Some(()) = OptionFuture::from(next_timer.map(tokio::time::sleep_until)) => {}
            Some(_) = self.loads.join_next() => {}
        }
    }

    /// Takes the queued items and fills the batch.
    fn fill(&mut self, now: Instant) {
        let items = self.outgoing.take();
        if items.ping {
            self.outbox.ping(&[]);
        }
        for payload in items.pongs {
            self.outbox.pong(&payload);
        }
        for answer in items.answers {
            self.outbox.encoded(answer);
        }
        for command in items.commands {
            self.execute(command, now);
        }
        for key in items.ready {
            self.handle_ready(key);
        }
        self.run_timers(now);
        // Reads go before feeds, because a client waits for each. The limit per batch keeps many large answers from
        // piling up in the outbox.
        let batch = self.batch_limit();
        while self.outbox.len() < batch
            && let Some(key) = self.ready_reads.pop_front()
        {
            if let Some(job) = self.reads.remove(&key) {
                self.try_read(job, key, now);
            }
        }
        self.deltas.extend(items.deltas);
        // Computed again, so that feeds and HTTP pieces get room even if answers and reads have filled the batch.
        let batch = self.batch_limit();
        while self.outbox.len() < batch && !(self.turns.is_empty() && self.deltas.is_empty()) {
            if let Some(key) = self.turns.pop_front() {
                self.take_turn(key, now);
            }
            if let Some((message, _permit)) = self.deltas.pop_front() {
                self.outbox.message(message.len(), |buf| buf.extend_from_slice(&message));
            }
        }
        if let Some((code, reason)) = items.close
            && self.close.is_none()
        {
            self.close = Some((code, reason));
            self.outbox.close(code, reason);
        }
    }

    /// The outbox size up to which the next kind of data is added. Always leaves room for one quantum, so that a client
    /// that downloads without pause still gets the output of its processes.
    fn batch_limit(&self) -> usize {
        BATCH_BYTES.max(self.outbox.len() + QUANTUM_BYTES)
    }

    fn execute(&mut self, command: PumpCommand, now: Instant) {
        match command {
            PumpCommand::Follow(follow) => self.follow(follow),
            PumpCommand::Unfollow(process) => {
                if let Some(key) = self.feed_of(&process) {
                    self.drop_feed(key);
                }
            }
            PumpCommand::Ack { session, process, seq } => {
                // Look up by what is pushed here, not in the session's table: observers still acknowledge a process
                // that the client of its session has forgotten.
                if let Some(key) = self.by_name.get(&(session, process)).copied()
                    && let Some(feed) = self.feeds.get_mut(&key)
                    && feed.handle_ack(seq)
                {
                    self.queue_turn(key);
                    self.drop_if_settled(key);
                }
            }
            PumpCommand::Read(command) => self.read(command, now),
            PumpCommand::Superseded { session } => self.handle_superseded(&session),
        }
    }

    fn follow(&mut self, follow: FollowCommand) {
        if let Some(old) = self.feed_of(&follow.process) {
            // A process that started while its session was being resumed is followed twice. The running feed has the
            // more accurate position.
            if matches!(follow.role, FollowRole::Owner) {
                return;
            }
            // A second subscription replaces the first: the client names where to continue.
            self.drop_feed(old);
        }
        let key = self.allocate_key();
        let waker = FeedWaker::new(key, self.outgoing.clone());
        follow.process.log().add_waker(waker.clone());
        self.by_process.insert(Arc::as_ptr(&follow.process).addr(), key);
        self.by_name.insert((follow.process.session.clone(), follow.process.process_id()), key);
        // Only binary frames name a process by its channel, and `command/**` has no binary frames.
        let has_channel = follow.capabilities.binary && follow.process.meta.dialect == Dialect::Process;
        let channel = has_channel.then(|| self.outgoing.channels.open(follow.process.clone()));
        self.feeds.insert(key, Feed::new(follow, waker, channel));
        self.queue_turn(key);
    }

    fn allocate_key(&mut self) -> u64 {
        self.last_key += 1;
        self.last_key
    }

    fn feed_of(&self, process: &Arc<Process>) -> Option<u64> {
        self.by_process.get(&Arc::as_ptr(process).addr()).copied()
    }

    fn queue_turn(&mut self, key: u64) {
        if let Some(feed) = self.feeds.get_mut(&key)
            && !feed.has_turn
        {
            feed.has_turn = true;
            self.turns.push_back(key);
        }
    }

    /// Updates `timed`. Called after every change that may start a feed's timer.
    fn update_timer(&mut self, key: u64) {
        if self.feeds.get(&key).is_some_and(|feed| feed.timer().is_some()) {
            self.timed.insert(key);
        } else {
            self.timed.remove(&key);
        }
    }

    fn handle_ready(&mut self, key: u64) {
        if let Some(feed) = self.feeds.get(&key) {
            // Reset the flag before reading the log, so that a later event wakes it again.
            feed.waker.reset();
            self.queue_turn(key);
        } else if let Some(job) = self.reads.get(&key) {
            job.waker.reset();
            self.queue_read(key);
        }
    }

    /// Queues a read that may be answerable now, at most once.
    fn queue_read(&mut self, key: u64) {
        if let Some(job) = self.reads.get_mut(&key)
            && !std::mem::replace(&mut job.is_queued, true)
        {
            self.ready_reads.push_back(key);
        }
    }

    fn take_turn(&mut self, key: u64, now: Instant) {
        let Some(feed) = self.feeds.get_mut(&key) else { return };
        feed.has_turn = false;
        match feed.advance(&mut self.outbox, QUANTUM_BYTES, now) {
            TurnOutcome::More => self.queue_turn(key),
            TurnOutcome::Idle => {}
            TurnOutcome::Load(segment) => {
                let process = feed.process.clone();
                self.load(&process, segment);
            }
        }
        self.update_timer(key);
        self.drop_if_settled(key);
    }

    /// Drops a feed that has sent everything and waits for no acknowledgement and no poll.
    fn drop_if_settled(&mut self, key: u64) {
        if self.feeds.get(&key).is_some_and(Feed::is_settled) {
            self.drop_feed(key);
        }
    }

    fn load(&mut self, process: &Arc<Process>, segment: u64) {
        if let Some(load) = process.begin_load(segment) {
            self.loads.spawn_blocking(move || load.run());
        }
    }

    fn drop_feed(&mut self, key: u64) {
        self.timed.remove(&key);
        if let Some(feed) = self.feeds.remove(&key) {
            self.by_process.remove(&Arc::as_ptr(&feed.process).addr());
            let name = (feed.process.session.clone(), feed.process.process_id());
            if self.by_name.get(&name) == Some(&key) {
                self.by_name.remove(&name);
            }
            if let Some(channel) = feed.channel() {
                self.outgoing.channels.close(channel);
            }
            feed.end();
        }
    }

    fn run_timers(&mut self, now: Instant) {
        let timed: Vec<u64> = self.timed.iter().copied().collect();
        for key in timed {
            if self.feeds.get_mut(&key).is_some_and(|feed| feed.handle_timer(now)) {
                self.queue_turn(key);
                self.update_timer(key);
            }
        }
        let due: Vec<u64> =
            self.reads.iter().filter(|(_, job)| job.timer().is_some_and(|at| at <= now)).map(|(key, _)| *key).collect();
        due.into_iter().for_each(|key| self.queue_read(key));
    }

    fn read(&mut self, command: ReadCommand, now: Instant) {
        if self.reads.len() >= limits::READS_WAITING {
            return command.reply.fail(&Failure::Overloaded { what: "reads that wait for output on this connection" });
        }
        // The reads of a client without `ack` show whether it polls, and what it has taken.
        if command.is_own
            && let Some(feed_key) = self.feed_of(&command.process)
            && let Some(feed) = self.feeds.get_mut(&feed_key)
        {
            feed.handle_read_begun(!command.wait.is_zero());
        }
        let key = self.allocate_key();
        let waker = FeedWaker::new(key, self.outgoing.clone());
        command.process.log().add_waker(waker.clone());
        self.reads.insert(key, ReadJob::new(command, waker, now));
        self.queue_read(key);
    }

    /// Answers a read if possible, otherwise keeps it.
    fn try_read(&mut self, mut job: ReadJob, key: u64, now: Instant) {
        job.is_queued = false;
        job.is_loading = false;
        match job.attempt(&mut self.outbox, now) {
            ReadOutcome::Answered(last) => {
                let command = &job.command;
                command.process.log().remove_waker(&job.waker);
                if command.is_own
                    && let Some(feed_key) = self.feed_of(&command.process)
                    && let Some(feed) = self.feeds.get_mut(&feed_key)
                {
                    feed.handle_read_answered(command.after_seq, job.after_offset, last);
                    self.update_timer(feed_key);
                    self.queue_turn(feed_key);
                }
            }
            ReadOutcome::Wait => {
                self.reads.insert(key, job);
            }
            ReadOutcome::Load(segment) => {
                self.load(&job.command.process, segment);
                // The load wakes this read when it has finished or failed.
                job.is_loading = true;
                self.reads.insert(key, job);
            }
        }
    }

    fn handle_superseded(&mut self, session: &str) {
        let own = self.feeds.iter().filter(|(_, feed)| feed.is_owner() && &*feed.process.session == session);
        let own: Vec<u64> = own.map(|(key, _)| *key).collect();
        own.into_iter().for_each(|key| self.drop_feed(key));
        let is_own = |_: &u64, job: &mut ReadJob| job.command.is_own && &*job.command.process.session == session;
        for (_, job) in self.reads.extract_if(.., is_own) {
            job.command.process.log().remove_waker(&job.waker);
            // Not `Reply::fail`: a queued answer could come after the close frame that follows this command.
            self.outbox.message(128, |buf| encode_failure(buf, &job.command.reply.id, &Failure::Superseded));
        }
    }
}

impl Drop for Pump {
    /// Runs also when the task is aborted: saves positions for the next connection and removes all wakers from
    /// processes.
    fn drop(&mut self) {
        for feed in std::mem::take(&mut self.feeds).into_values() {
            feed.end();
        }
        for job in std::mem::take(&mut self.reads).into_values() {
            job.command.process.log().remove_waker(&job.waker);
        }
        self.outgoing.shut_down();
    }
}

#[cfg(test)]
mod tests {
    use exec_server_rpc::EncodedMessage;

    use super::*;

    // Regression: while answers filled every batch, `fill` added neither process output nor HTTP bodies. One loop adds
    // both, so the test checks only the bodies.
    #[tokio::test]
    async fn answers_that_fill_every_batch_do_not_starve_http_bodies() {
        let outgoing = OutgoingQueue::new(Arc::default(), Arc::default(), 1);
        let writer = Box::new(tokio::io::sink());
        let mut pump = Pump::new(Framing::Lines { max: 1 << 20 }, writer, outgoing.clone());
        for _ in 0..3 {
            outgoing.enqueue_delta(vec![b'd'; QUANTUM_BYTES], outgoing.reserve_delta().await);
        }
        for left in [2, 1, 0] {
            outgoing.enqueue_answer(EncodedMessage::text(vec![b'a'; 2 * BATCH_BYTES]));
            pump.fill(Instant::now());
            assert_eq!(pump.deltas.len(), left);
            pump.outbox.flush_to(&mut pump.writer).await.unwrap();
        }
    }
}
