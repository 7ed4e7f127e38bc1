//! The load of the fault runs and its oracle: lanes of producers in one session that outlives its connections.
//!
//! Tracks what the client of a run knows: which producer runs in which lane, what it has sent, what was acknowledged. Checks each record,
//! each exit code and each pid. The server's sequence numbers are used only to drop what a resume repeats. The runs themselves connect, cut
//! and kill.

use anyhow::{Error, anyhow};

use crate::prelude::*;
use exec_server_harness::wire::OutputChunk;

/// A lane is acknowledged after this many bytes.
const ACK_EVERY: u64 = 256 << 10;

/// Bytes that a producer of a lane writes.
const LANE_BYTES: std::ops::Range<u64> = 4 << 20..48 << 20;

/// One producer and the data received from it.
struct LoadLane {
    id: u64,
    process: String,
    count: u64,
    records: Records,
    /// Highest number seen; events up to it are repetitions.
    seq: u64,
    /// Bytes received since the last acknowledgement.
    unacknowledged: u64,
    /// Set by the answer of `process/start` or, if a cut lost that answer, by the next list.
    pid: Option<i64>,
    /// Whether a start was answered, so that it must not be repeated.
    started: bool,
    exit: Option<i64>,
}

/// A producer that has ended, until the answer confirms that it is forgotten: a cut may lose the request, and it would not be repeated
/// otherwise.
struct EndedProducer {
    process: String,
    /// Its last number.
    seq: u64,
    /// The request on the current connection.
    request: Option<i64>,
}

/// The lanes, their session and its current connection.
pub(super) struct ProducerLoad {
    /// `None` until the load is attached.
    wire: Option<WireClient>,
    random: Random,
    program: String,
    session: Option<String>,
    lanes: Vec<LoadLane>,
    leaving: Vec<EndedProducer>,
    next_id: u64,
    /// Whether a lane whose producer ended gets another.
    refill: bool,
    /// Start requests in flight on the current connection, by request id.
    starting: HashMap<i64, u64>,
    /// Output bytes checked.
    pub(super) bytes: u64,
    /// Producers that ended correctly.
    pub(super) ended: u64,
}

impl ProducerLoad {
    pub(super) fn new(mut random: Random, lanes: usize) -> Result<Self> {
        let random = random.fork();
        let mut load = Self {
            wire: None,
            random,
            program: records::program()?,
            session: None,
            lanes: Vec::new(),
            leaving: Vec::new(),
            next_id: 1,
            refill: true,
            starting: HashMap::new(),
            bytes: 0,
            ended: 0,
        };
        load.lanes = (0..lanes).map(|_| load.new_lane()).collect();
        Ok(load)
    }

    fn new_lane(&mut self) -> LoadLane {
        let id = self.next_id;
        self.next_id += 1;
        LoadLane {
            id,
            process: format!("lane-{id}"),
            count: self.random.between(LANE_BYTES.start, LANE_BYTES.end) / RECORD,
            records: Records::new(id),
            seq: 0,
            unacknowledged: 0,
            pid: None,
            started: false,
            exit: None,
        }
    }

    /// Opens the session, or resumes it with takeover. Producers whose start was not answered are started again, and producers that are not
    /// confirmed as forgotten are forgotten again.
    pub(super) fn attach(&mut self, address: &ServerAddress) -> Result<()> {
        let (wire, answer) = WireClient::open(address, &hello(self.session.as_deref()))?;
        let id = answer["sessionId"].as_str().context("`initialize` gave no session id")?;
        let known = self.session.get_or_insert_with(|| id.to_owned());
        ensure!(known == id, "resumed session `{known}` and got `{id}`");
        self.starting.clear();
        self.leaving.iter_mut().for_each(|leaving| leaving.request = None);
        let wire = self.wire.insert(wire);
        for leaving in &mut self.leaving {
            leaving.forget(wire)?;
        }
        for lane in 0..self.lanes.len() {
            if !self.lanes[lane].started {
                self.start(lane)?;
            } else if self.lanes[lane].seq > 0 {
                // The cut may have lost acknowledgements; without this one the window could stay closed forever.
                self.lanes[lane].unacknowledged = 0;
                attached(&mut self.wire).acknowledge(&self.lanes[lane].process, self.lanes[lane].seq)?;
            }
        }
        Ok(())
    }

    /// Attaches until it succeeds, because the next cut may come before the handshake is complete. Returns the milliseconds since `since`.
    pub(super) fn resume(&mut self, address: &ServerAddress, since: Instant) -> Result<f64> {
        loop {
            match self.attach(address) {
                Ok(()) => return Ok(millis(since)),
                Err(error) if is_lost(&error) => {
                    ensure!(since.elapsed() < Duration::from_secs(20), "not resumed within 20 s: {error:#}");
                    // A server that is down refuses at once, so sleep instead of spinning.
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.context("resume")),
            }
        }
    }

    /// Resumes at a restarted server, on which every producer must have its pid. Returns the milliseconds since `since`.
    pub(super) fn resume_restarted(&mut self, server: &Server, since: Instant) -> Result<f64> {
        let millis = self.resume(&server.address, since)?;
        self.check_pids()?;
        Ok(millis)
    }

    fn start(&mut self, lane: usize) -> Result<()> {
        let lane = &self.lanes[lane];
        let argv = [&self.program, "producer", &lane.id.to_string(), &lane.count.to_string()];
        let id = attached(&mut self.wire).send("process/start", &wire::start(&lane.process, &argv))?;
        self.starting.insert(id, lane.id);
        Ok(())
    }

    /// Handles messages until `stop`. A lost link is an error here, because the server was not killed.
    pub(super) fn flow(&mut self, server: &Server, stop: impl Fn(&Self) -> bool) -> Result<()> {
        while !stop(self) {
            self.step().with_context(|| format!("while the server (pid {}) runs", server.pid()))?;
        }
        Ok(())
    }

    /// Lets all producers end after the last fault, and ends the session.
    pub(super) fn finish(&mut self, server: &Server) -> Result<()> {
        self.stop_refilling();
        self.flow(server, Self::is_done).context("after the last fault")?;
        self.end_session()
    }

    pub(super) fn end_session(&mut self) -> Result<()> {
        attached(&mut self.wire).end_session()
    }

    /// Handles one message.
    pub(super) fn step(&mut self) -> Result<()> {
        match attached(&mut self.wire).next_message().map_err(|fault| self.explain(fault))? {
            ServerMessage::Output(output) => self.output(&output),
            ServerMessage::Exited { process, seq, code } => self.exited(&process, seq, code),
            ServerMessage::Closed { process, seq, params } => self.closed(&process, seq, &params),
            ServerMessage::Answer { id, outcome } => self.answered(id, outcome),
            ServerMessage::Other { method, params } => bail!("unexpected `{method}`: {params}"),
        }
    }

    /// Silence is a failure; adds what was awaited to the error.
    fn explain(&self, fault: CallError) -> Error {
        if fault.is_lost() {
            return Error::new(fault);
        }
        let waiting: Vec<_> = self
            .lanes
            .iter()
            .map(|lane| format!("{} (seq {}, started {}, exit {:?})", lane.process, lane.seq, lane.started, lane.exit))
            .collect();
        Error::new(fault).context(format!("waiting for {}", waiting.join(", ")))
    }

    /// The lane of a process, unless the event was already seen; a jump in the numbers is a loss.
    fn lane(&mut self, process: &str, seq: u64) -> Result<Option<usize>> {
        let Some(at) = self.lanes.iter().position(|lane| lane.process == process) else {
            // An ended lane: a resume may repeat its last event.
            ensure!(process.starts_with("lane-"), "an event of the unknown process `{process}`");
            return Ok(None);
        };
        let lane = &mut self.lanes[at];
        if seq <= lane.seq {
            return Ok(None);
        }
        ensure!(seq == lane.seq + 1, "`{process}` jumped from number {} to {seq}", lane.seq);
        lane.seq = seq;
        Ok(Some(at))
    }

    fn output(&mut self, output: &OutputChunk) -> Result<()> {
        ensure!(output.gap.is_none(), "a gap at `{}`: {:?}", output.process, output.gap);
        let Some(at) = self.lane(&output.process, output.seq)? else { return Ok(()) };
        let lane = &mut self.lanes[at];
        lane.records.push(&output.bytes);
        lane.unacknowledged += output.bytes.len() as u64;
        self.bytes += output.bytes.len() as u64;
        if lane.unacknowledged >= ACK_EVERY {
            lane.unacknowledged = 0;
            attached(&mut self.wire).acknowledge(&lane.process, lane.seq)?;
        }
        Ok(())
    }

    fn exited(&mut self, process: &str, seq: u64, code: i64) -> Result<()> {
        let Some(at) = self.lane(process, seq)? else { return Ok(()) };
        let lane = &mut self.lanes[at];
        ensure!(lane.exit.is_none(), "`{process}` exited twice");
        let promised = records::exit_code(lane.id);
        ensure!(code == promised, "`{process}` exited with {code}, not {promised}");
        lane.exit = Some(code);
        Ok(())
    }

    fn closed(&mut self, process: &str, seq: u64, params: &Value) -> Result<()> {
        // If it ended before, the new link has already sent another forget.
        let Some(at) = self.lane(process, seq)? else { return Ok(()) };
        let lane = &self.lanes[at];
        ensure!(lane.exit.is_some(), "`{process}` closed before it exited");
        lane.records.finish(lane.count)?;
        let total = lane.count * RECORD;
        ensure!(
            params["outputBytes"] == total && params["droppedBytes"] == 0,
            "`{process}` wrote {total} bytes, `process/closed` says {params}"
        );
        self.ended += 1;
        // Replace the lane before anything is sent: if the link breaks here, the end must already be recorded.
        self.leaving.push(EndedProducer { process: process.to_owned(), seq, request: None });
        if self.refill {
            self.lanes[at] = self.new_lane();
        } else {
            self.lanes.remove(at);
        }
        self.leaving.last_mut().expect("just pushed").forget(attached(&mut self.wire))?;
        if self.refill { self.start(at) } else { Ok(()) }
    }

    fn answered(&mut self, id: i64, outcome: Result<Value, CallError>) -> Result<()> {
        if let Some(at) = self.leaving.iter().position(|leaving| leaving.request == Some(id)) {
            let EndedProducer { process, .. } = self.leaving.swap_remove(at);
            return match outcome {
                Ok(_) => Ok(()),
                // A cut lost the first answer.
                Err(CallError::Refused { kind, .. }) if kind == "unknownProcess" => Ok(()),
                Err(fault) => Err(anyhow!("forgetting `{process}`: {fault}")),
            };
        }
        let lane =
            self.starting.remove(&id).with_context(|| format!("an answer to request {id}, which was not made"))?;
        // A lane that is missing has already ended.
        let Some(lane) = self.lanes.iter_mut().find(|candidate| candidate.id == lane) else { return Ok(()) };
        match outcome {
            Ok(result) => lane.pid = result["pid"].as_i64(),
            // The start before the cut had arrived.
            Err(CallError::Refused { message, .. }) if message.contains("already exists") => {}
            Err(fault) => return Err(anyhow!("start of `{}`: {fault}", lane.process)),
        }
        lane.started = true;
        Ok(())
    }

    /// Checks the list: every running producer is there, with its original pid.
    fn check_pids(&mut self) -> Result<()> {
        let list = attached(&mut self.wire).call("process/list", &json!({}))?;
        let listed = list["processes"].as_array().context("`process/list` gave no `processes`")?;
        for lane in self.lanes.iter_mut().filter(|lane| lane.started && lane.exit.is_none()) {
            let entry = listed
                .iter()
                .find(|entry| entry["processId"] == lane.process)
                .with_context(|| format!("`{}` is not in the list any more", lane.process))?;
            let pid = entry["pid"].as_i64().context("an entry of the list has no pid")?;
            let known = *lane.pid.get_or_insert(pid);
            ensure!(pid == known, "`{}` was pid {known} and is {pid}", lane.process);
        }
        Ok(())
    }

    /// Starts no more producers.
    pub(super) fn stop_refilling(&mut self) {
        self.refill = false;
    }

    /// Lets all producers end, and checks that none is listed. A lost link is resumed.
    pub(super) fn drain(&mut self, address: &ServerAddress) -> Result<()> {
        self.stop_refilling();
        while !self.is_done() {
            self.step_or_resume(address)?;
        }
        let left = attached(&mut self.wire).call("process/list", &json!({})).context("list what is left")?;
        ensure!(left["processes"] == json!([]), "forgotten, and still there: {left}");
        Ok(())
    }

    /// Handles one message; a lost link is resumed.
    pub(super) fn step_or_resume(&mut self, address: &ServerAddress) -> Result<()> {
        let stepped = self.step();
        self.resume_if_lost(stepped, address)
    }

    /// Starts producers again, after all have ended; a lost link is resumed.
    pub(super) fn restart_lanes(&mut self, lanes: usize, address: &ServerAddress) -> Result<()> {
        self.refill = true;
        self.lanes = (0..lanes).map(|_| self.new_lane()).collect();
        let started = (0..lanes).try_for_each(|lane| self.start(lane));
        self.resume_if_lost(started, address)
    }

    fn resume_if_lost(&mut self, outcome: Result<()>, address: &ServerAddress) -> Result<()> {
        match outcome {
            Err(error) if is_lost(&error) => self.resume(address, Instant::now()).map(drop),
            other => other,
        }
    }

    /// Whether every producer has ended and is forgotten.
    pub(super) fn is_done(&self) -> bool {
        self.lanes.is_empty() && self.leaving.is_empty()
    }
}

impl EndedProducer {
    /// Acknowledges the last event of the process and forgets it.
    fn forget(&mut self, wire: &mut WireClient) -> Result<()> {
        wire.acknowledge(&self.process, self.seq)?;
        self.request = Some(wire.send("process/forget", &json!({ "processId": self.process }))?);
        Ok(())
    }
}

/// The current connection. A function of the field, so that the lanes can be borrowed at the same time.
fn attached(wire: &mut Option<WireClient>) -> &mut WireClient {
    wire.as_mut().expect("the load is attached")
}

pub(super) fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Whether a new connection may recover from the error.
pub(super) fn is_lost(error: &Error) -> bool {
    error.downcast_ref::<CallError>().is_some_and(CallError::is_lost)
}
