//! The load of the fault runs and its oracle: lanes of producers in one session that outlives its connections.
//!
//! Tracks what the client of a run knows: which producer runs in which lane, what it has sent, what was acknowledged. Checks each record,
//! each exit code and each pid. The server's sequence numbers are used only to drop what a resume repeats. The runs themselves connect, cut
//! and kill.

use std::collections::HashMap;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use exec_server_harness::{
    Random,
    records::{self, RECORD, Records},
    wire::{self, CallError, OutputChunk, ServerAddress, ServerMessage, WireClient, hello},
};
use serde_json::{Value, json};

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

/// The lanes and their session.
pub(super) struct ProducerLoad {
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
    pub(super) fn attach(&mut self, address: &ServerAddress) -> Result<WireClient> {
        let (mut wire, answer) = WireClient::open(address, &hello(self.session.as_deref()))?;
        let id = answer["sessionId"].as_str().context("`initialize` gave no session id")?;
        let known = self.session.get_or_insert_with(|| id.to_owned());
        ensure!(known == id, "resumed session `{known}` and got `{id}`");
        self.starting.clear();
        self.leaving.iter_mut().for_each(|leaving| leaving.request = None);
        for leaving in &mut self.leaving {
            leaving.forget(&mut wire)?;
        }
        for lane in 0..self.lanes.len() {
            if !self.lanes[lane].started {
                self.start(lane, &mut wire)?;
            } else if self.lanes[lane].seq > 0 {
                // The cut may have lost acknowledgements; without this one the window could stay closed forever.
                self.lanes[lane].unacknowledged = 0;
                acknowledge(&mut wire, &self.lanes[lane].process, self.lanes[lane].seq)?;
            }
        }
        Ok(wire)
    }

    fn start(&mut self, lane: usize, wire: &mut WireClient) -> Result<()> {
        let lane = &self.lanes[lane];
        let argv = [&self.program, "child", "producer", &lane.id.to_string(), &lane.count.to_string()];
        let id = wire.send("process/start", &wire::start(&lane.process, &argv))?;
        self.starting.insert(id, lane.id);
        Ok(())
    }

    /// Handles one message.
    pub(super) fn step(&mut self, wire: &mut WireClient) -> Result<()> {
        match wire.next_message().map_err(|fault| self.explain(fault))? {
            ServerMessage::Output(output) => self.output(&output, wire),
            ServerMessage::Exited { process, seq, code } => self.exited(&process, seq, code),
            ServerMessage::Closed { process, seq, params } => self.closed(&process, seq, &params, wire),
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

    fn output(&mut self, output: &OutputChunk, wire: &mut WireClient) -> Result<()> {
        ensure!(output.gap.is_none(), "a gap at `{}`: {:?}", output.process, output.gap);
        let Some(at) = self.lane(&output.process, output.seq)? else {
            return Ok(());
        };
        let lane = &mut self.lanes[at];
        lane.records.push(&output.bytes);
        lane.unacknowledged += output.bytes.len() as u64;
        self.bytes += output.bytes.len() as u64;
        if lane.unacknowledged >= ACK_EVERY {
            lane.unacknowledged = 0;
            acknowledge(wire, &lane.process, lane.seq)?;
        }
        Ok(())
    }

    fn exited(&mut self, process: &str, seq: u64, code: i64) -> Result<()> {
        let Some(at) = self.lane(process, seq)? else {
            return Ok(());
        };
        let lane = &mut self.lanes[at];
        ensure!(lane.exit.is_none(), "`{process}` exited twice");
        let promised = records::exit_code(lane.id);
        ensure!(code == promised, "`{process}` exited with {code}, not {promised}");
        lane.exit = Some(code);
        Ok(())
    }

    fn closed(&mut self, process: &str, seq: u64, params: &Value, wire: &mut WireClient) -> Result<()> {
        let Some(at) = self.lane(process, seq)? else {
            return Ok(()); // It ended before; the new link has already sent another forget.
        };
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
        self.leaving.last_mut().expect("just pushed").forget(wire)?;
        if self.refill { self.start(at, wire) } else { Ok(()) }
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
        let Some(lane) = self.starting.remove(&id) else {
            bail!("an answer to request {id}, which was not made");
        };
        let Some(lane) = self.lanes.iter_mut().find(|candidate| candidate.id == lane) else {
            return Ok(()); // Already ended.
        };
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
    pub(super) fn check_pids(&mut self, wire: &mut WireClient) -> Result<()> {
        let list = wire.call("process/list", &json!({}))?;
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

    /// Starts producers again, after all have ended.
    pub(super) fn restart_lanes(&mut self, lanes: usize, wire: &mut WireClient) -> Result<()> {
        self.refill = true;
        self.lanes = (0..lanes).map(|_| self.new_lane()).collect();
        (0..lanes).try_for_each(|lane| self.start(lane, wire))
    }

    /// Whether every producer has ended and is forgotten.
    pub(super) fn is_done(&self) -> bool {
        self.lanes.is_empty() && self.leaving.is_empty()
    }
}

impl EndedProducer {
    /// Acknowledges the last event of the process and forgets it.
    fn forget(&mut self, wire: &mut WireClient) -> Result<()> {
        acknowledge(wire, &self.process, self.seq)?;
        self.request = Some(wire.send("process/forget", &json!({ "processId": self.process }))?);
        Ok(())
    }
}

fn acknowledge(wire: &mut WireClient, process: &str, seq: u64) -> Result<()> {
    Ok(wire.notify("process/ack", &json!({ "processId": process, "seq": seq }))?)
}

/// Whether a new connection may recover from the error.
pub(super) fn is_lost(error: &Error) -> bool {
    error.downcast_ref::<CallError>().is_some_and(CallError::is_lost)
}
