//! The script of F20 and the transcript of its client, as lines that do not depend on time, pids or chunk boundaries.
//!
//! One server creates the holder and is killed, and another one adopts it; processes of every kind survive that.

use crate::prelude::*;
use exec_server_harness::wire::start;

/// Longer than the whole script may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// More than the memory of a log, so that output goes to disk while no client is attached.
const FLOOD_BYTES: u64 = 40_000_000;

/// Which capabilities a client announces, and how it receives output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientShape {
    /// No capabilities; output by `process/read`.
    Reference,
    /// All capabilities; output by notifications, which are acknowledged.
    Ours,
}

/// The client of one execution.
struct ScriptClient {
    shape: ClientShape,
    session: String,
    wire: WireClient,
    received: BTreeMap<String, ReceivedOutput>,
    lines: Vec<String>,
}

/// The data received from one process.
#[derive(Default)]
struct ReceivedOutput {
    seq: u64,
    bytes: u64,
    sum: u64,
    /// The first bytes, readable in the transcript.
    head: Vec<u8>,
    exit: Option<i64>,
    is_closed: bool,
}

/// Runs the script: `first` creates the holder, `second` adopts it.
pub(super) fn run_script(shape: ClientShape, first: &Path, second: &Path) -> Result<Vec<String>> {
    let mut setup = Setup::new(first)?;
    let server = setup.start()?;
    let mut client = ScriptClient::open(shape, &server.address)?;
    client.before().context("before the change of servers")?;
    server.kill()?;
    setup.binary = second.to_owned();
    let server = setup.start()?;
    client.resume(&server.address).context("resume at the second server")?;
    client.after().with_context(|| format!("after the change; the server says: {}", setup.log_tail()))?;
    let lines = client.finish()?;
    setup.finish(server)?;
    Ok(lines)
}

impl ScriptClient {
    fn open(shape: ClientShape, address: &ServerAddress) -> Result<Self> {
        let (wire, answer) = WireClient::open(address, &initialize(shape, None))?;
        let session = answer["sessionId"].as_str().context("`initialize` gave no session id")?.to_owned();
        Ok(Self { shape, session, wire, received: BTreeMap::new(), lines: Vec::new() })
    }

    fn resume(&mut self, address: &ServerAddress) -> Result<()> {
        let answer;
        (self.wire, answer) = WireClient::open(address, &initialize(self.shape, Some(&self.session)))?;
        self.lines.push(format!("resumed {}", answer["sessionId"] == json!(self.session)));
        Ok(())
    }

    fn before(&mut self) -> Result<()> {
        self.start("cat", &["cat"], &json!({ "pipeStdin": true }))?;
        let terminal = json!({ "tty": true, "size": { "rows": 24, "cols": 80 } });
        self.start("tty", &["sh", "-c", "stty -echo; stty size; read line; stty size; echo got $line"], &terminal)?;
        let trap = "trap 'echo hup; exit 7' HUP; echo ready; while :; do :; done";
        self.start("signal", &["sh", "-c", trap], &json!({}))?;
        self.start("stubborn", &["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"], &json!({}))?;
        self.start("ended", &["sh", "-c", "echo whole; exit 3"], &json!({}))?;
        self.start("late", &["sleep", "60"], &json!({ "timeoutMs": 1200 }))?;
        self.start("killed", &["sh", "-c", "kill -9 $$"], &json!({}))?;
        self.start("missing", &["/no/such/program"], &json!({}))?;
        self.start("cat", &["cat"], &json!({}))?;
        self.write("cat", "w1", b"one\n")?;
        self.write("tty", "t0", b"")?;
        for process in ["signal", "stubborn"] {
            self.until(process, |received| received.bytes > 0)?;
        }
        self.until("tty", |received| received.head.contains(&b'\n'))?;
        self.until("killed", |received| received.is_closed)?;
        let flood = format!("yes exec-server | head -c {FLOOD_BYTES}");
        self.start("flood", &["sh", "-c", &flood], &json!({}))
    }

    fn after(&mut self) -> Result<()> {
        self.until("flood", |received| received.is_closed)?;
        // Whether these writes were accepted before the change or not, they must not be written twice.
        self.write("cat", "w1", b"one\n")?;
        self.write("cat", "w2", b"two\n")?;
        self.call("process/closeStdin", &json!({ "processId": "cat" }))?;
        self.call("process/resize", &json!({ "processId": "tty", "rows": 50, "cols": 132 }))?;
        self.write("tty", "t1", b"line\n")?;
        self.call("process/signal", &json!({ "processId": "signal", "signal": "SIGHUP" }))?;
        self.call("process/terminate", &json!({ "processId": "stubborn", "graceMs": 100 }))?;
        self.start("new", &["sh", "-c", "echo new; exit 9"], &json!({}))?;
        self.start("ended", &["true"], &json!({}))?;
        self.call("process/signal", &json!({ "processId": "nobody", "signal": "SIGHUP" }))?;
        for process in ["cat", "tty", "signal", "stubborn", "ended", "late", "killed", "new"] {
            self.until(process, |received| received.is_closed)?;
        }
        Ok(())
    }

    /// Adds the data of the processes, the list, and the end of the session to the transcript.
    fn finish(mut self) -> Result<Vec<String>> {
        for (process, received) in &self.received {
            let head = String::from_utf8_lossy(&received.head[..received.head.len().min(60)]).into_owned();
            let ReceivedOutput { bytes, sum, exit, .. } = received;
            self.lines.push(format!("{process}: {bytes} bytes, sum {sum}, exit {exit:?}, begins {head:?}"));
        }
        let list = self.wire.call("process/list", &json!({}))?;
        let mut listed = list["processes"].as_array().context("`process/list` gave no `processes`")?.clone();
        // The list is oldest first, but several processes began in the same millisecond.
        listed.sort_by_key(|entry| entry["processId"].to_string());
        for entry in listed {
            let part = |key: &str| entry[key].to_string();
            let exit = &entry["exit"];
            let exit = format!("{} {} {}", exit["exitCode"], exit["signal"], exit["cause"]);
            let whole =
                ["processId", "argv", "cwd", "tty", "exited", "closed", "outputBytes", "droppedBytes"].map(part);
            self.lines.push(format!("list: {}, exit {exit}", whole.join(" ")));
        }
        self.call("session/end", &json!({}))?;
        Ok(self.lines)
    }

    fn start(&mut self, process: &str, argv: &[&str], more: &Value) -> Result<()> {
        let mut params = start(process, argv);
        for (key, value) in more.as_object().context("more params are an object")? {
            params[key] = value.clone();
        }
        self.call("process/start", &params)
    }

    fn write(&mut self, process: &str, id: &str, bytes: &[u8]) -> Result<()> {
        self.call("process/write", &json!({ "processId": process, "writeId": id, "chunk": STANDARD.encode(bytes) }))
    }

    /// Calls a method and records the parts of the answer that are the same in every execution. Keys that a version adds are ignored.
    fn call(&mut self, method: &str, params: &Value) -> Result<()> {
        let line = match self.wire.call(method, params) {
            Ok(answer) => {
                let kept = ["processId", "sandboxType", "status", "running", "streamsHeld"]
                    .map(|key| (key, &answer[key]))
                    .into_iter()
                    .filter(|(_, value)| !value.is_null());
                kept.map(|(key, value)| format!(" {key}={value}")).collect()
            }
            Err(CallError::Refused { code, kind, message }) => format!(" refused {code} {kind}: {message}"),
            Err(fault) => return Err(fault).with_context(|| format!("call `{method}`")),
        };
        self.lines.push(format!("{method} {}:{line}", params["processId"]));
        Ok(())
    }

    /// Receives output until the condition holds for a process.
    fn until(&mut self, process: &str, level: impl Fn(&ReceivedOutput) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !level(self.received.entry(process.to_owned()).or_default()) {
            ensure!(Instant::now() < deadline, "`{process}` did not come so far within {} s", PATIENCE.as_secs());
            match self.shape {
                ClientShape::Reference => self.read(process)?,
                ClientShape::Ours => self.listen()?,
            }
        }
        Ok(())
    }

    /// One long poll. Output that is not read for a second is pushed, and a slow disk can delay a reader for longer than that.
    fn read(&mut self, process: &str) -> Result<()> {
        let after = self.received.entry(process.to_owned()).or_default().seq;
        let params = json!({ "processId": process, "afterSeq": after, "waitMs": 1000 });
        let answer = self.wire.call("process/read", &params)?;
        for pushed in self.wire.take_early() {
            self.receive(pushed)?;
        }
        let received = self.received.entry(process.to_owned()).or_default();
        let mut last = after;
        for chunk in answer["chunks"].as_array().context("`process/read` gave no `chunks`")? {
            let seq = chunk["seq"].as_u64().context("a chunk without number")?;
            ensure!(seq > last, "number {seq} came after {last}");
            last = seq;
            // Output that was pushed before the answer may be in it again.
            if seq > received.seq {
                received.take(seq, &STANDARD.decode(chunk["chunk"].as_str().context("a chunk without bytes")?)?)?;
            }
        }
        received.seq = received.seq.max(answer["nextSeq"].as_u64().context("no `nextSeq`")?.saturating_sub(1));
        received.exit = answer["exitCode"].as_i64().or(received.exit);
        received.is_closed |= answer["closed"] == true;
        Ok(())
    }

    /// Handles and acknowledges one message.
    fn listen(&mut self) -> Result<()> {
        let message = self.wire.next_message()?;
        let Some((process, seq)) = self.receive(message)? else { return Ok(()) };
        Ok(self.wire.acknowledge(&process, seq)?)
    }

    /// Handles a pushed event; returns its process and number. Events from before the change of servers may be repeated.
    fn receive(&mut self, message: ServerMessage) -> Result<Option<(String, u64)>> {
        Ok(match message {
            ServerMessage::Output(output) => {
                ensure!(output.gap.is_none(), "`{}` has a gap: {:?}", output.process, output.gap);
                let received = self.received.entry(output.process.clone()).or_default();
                if output.seq > received.seq {
                    received.take(output.seq, &output.bytes)?;
                }
                Some((output.process, output.seq))
            }
            ServerMessage::Exited { process, seq, code } => {
                let received = self.received.entry(process.clone()).or_default();
                received.exit = Some(code);
                received.seq = received.seq.max(seq);
                Some((process, seq))
            }
            ServerMessage::Closed { process, seq, .. } => {
                let received = self.received.entry(process.clone()).or_default();
                received.is_closed = true;
                received.seq = received.seq.max(seq);
                Some((process, seq))
            }
            ServerMessage::Answer { .. } | ServerMessage::Other { .. } => None,
        })
    }
}

impl ReceivedOutput {
    fn take(&mut self, seq: u64, bytes: &[u8]) -> Result<()> {
        ensure!(seq > self.seq, "number {seq} came after {}", self.seq);
        self.seq = seq;
        self.bytes += bytes.len() as u64;
        for byte in bytes {
            self.sum = self.sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
        }
        let room = 4096_usize.saturating_sub(self.head.len());
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(())
    }
}

fn initialize(shape: ClientShape, resume: Option<&str>) -> Value {
    match shape {
        ClientShape::Ours => hello(resume),
        ClientShape::Reference => json!({ "clientName": "xtask", "resumeSessionId": resume }),
    }
}
