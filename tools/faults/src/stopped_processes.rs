//! F15: the server, a holder or the client is stopped for a while, like on a suspended machine, and continues.
//!
//! Nothing may be lost, no party may be taken for dead or expired because another one was stopped, and no timer may be stuck afterwards.
//! (Clock jumps are tested in unit tests and in the simulation, where time is an argument.)

use rustix::process::Signal;

use super::{drop_oldest::ARENAS_KIB, producer_reader::ProducerReader};
use crate::prelude::*;

/// The remaining time-to-live of a session that must survive the stop: more than a busy machine may lose.
const LASTING: Duration = Duration::from_secs(30);

/// Records of a producer: more than all windows hold, so that output is in flight when a process is stopped.
const COUNT: u64 = (48 << 20) / RECORD;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    // Each round stops all three kinds in parallel, on separate servers.
    let rounds = setting.pick(1, 20_u64.div_ceil(3), 200_u64.div_ceil(3));
    let stop = Duration::from_secs(setting.pick(2, 10, 10));
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..rounds {
        let victims: [fn(&FaultSetting, Duration) -> Result<f64>; 3] = [server_stops, holder_stops, client_stops];
        let outcomes = thread::scope(|scope| {
            victims.map(|victim| scope.spawn(move || victim(setting, stop))).map(|lane| lane.join().expect("no panic"))
        });
        for (outcome, name) in outcomes.into_iter().zip(["server", "holder", "client"]) {
            times.push(outcome.with_context(|| format!("the {name} was stopped for {stop:?}"))?);
            bytes += COUNT * RECORD;
        }
    }
    Figures::survived(rounds * 3).set("bytes", bytes).times(&mut times).set("stopped_s", stop.as_secs()).only_line()
}

/// Stops a process for a while.
fn pause(pid: u32, long: Duration) {
    processes::kill(pid, Signal::STOP);
    thread::sleep(long);
    processes::kill(pid, Signal::CONT);
}

/// A server that is to be stopped, and its resources before.
struct StoppedServer {
    setup: Setup,
    server: Server,
    level: ResourceLevel,
}

impl StoppedServer {
    /// Starts it with timeouts far shorter than the stop: a process that counts its own pause would take every peer for dead.
    fn start(setting: &FaultSetting) -> Result<Self> {
        let setup = Setup::new(&setting.binary)?.arg("--ping-every=300ms").arg("--dead-after=1s").arg("--log=info");
        let server = setup.start()?;
        let level = ResourceLevel::after_first_session(server.pid(), &server.address)?.keeping(ARENAS_KIB);
        Ok(Self { setup, server, level })
    }

    /// A reader of a producer, of which output has already come.
    fn flow(&self) -> Result<ProducerReader> {
        let mut flow = ProducerReader::start(WireClient::session(&self.server.address)?.0, 1, COUNT)?;
        while flow.seq < 8 {
            flow.take()?;
        }
        Ok(flow)
    }

    /// Checks that everything is in order at the end.
    fn end(self) -> Result<()> {
        self.level.wait_back().context("after all went on")?;
        self.setup.finish(self.server)
    }
}

/// Stops the server: afterwards its clients, a busy one and a quiet one, are still connected, and its timers run.
fn server_stops(setting: &FaultSetting, stop: Duration) -> Result<f64> {
    let stopped = StoppedServer::start(setting)?;
    let server = &stopped.server;
    let mut flow = stopped.flow()?;
    let mut quiet = Neighbour::new(&server.address)?;
    quiet.round_trip()?;
    // Detached sessions: one with a time-to-live that outlasts the stop, and one whose time-to-live ends during it.
    let (long, short) = (stop + LASTING, stop / 3);
    let lasting = detached(&server.address, long)?;
    let ending = detached(&server.address, short)?;
    // The server hears from this client just before, so that no ping is in flight.
    quiet.round_trip()?;
    processes::kill(server.pid(), Signal::STOP);
    // The client keeps reading, as any client does, and so answers pings.
    let listened = flow.wire.attend(stop);
    processes::kill(server.pid(), Signal::CONT);
    listened?;
    // Long enough for a server that takes its own pause for silence of its clients.
    flow.wire.attend(Duration::from_millis(400))?;
    let resumed = Instant::now();
    quiet.round_trip().context("a client that was quiet meanwhile was taken for dead")?;
    let took = resumed.elapsed().as_secs_f64() * 1e3;
    let mut wire = resume(&server.address, &lasting).context("a session that had time left")?;
    wire.end_session()?;
    flow.finish().context("the flow")?;
    expires(&server.address, &ending, Duration::ZERO)?;
    quiet.end()?;
    let setup = &stopped.setup;
    ensure!(!setup.log().contains("no sign of life"), "a live client was dropped: {}", setup.log_tail());
    stopped.end()?;
    Ok(took)
}

/// Stops a holder: other sessions continue in the meantime, and its own continues afterwards.
fn holder_stops(setting: &FaultSetting, stop: Duration) -> Result<f64> {
    let stopped = StoppedServer::start(setting)?;
    let StoppedServer { setup, server, .. } = &stopped;
    let mut flow = stopped.flow()?;
    let holder = setup.new_holder(&[])?;
    let mut other = Neighbour::new(&server.address)?;
    processes::kill(holder, Signal::STOP);
    let begun = Instant::now();
    let mut outcome = Ok(());
    while begun.elapsed() < stop && outcome.is_ok() {
        outcome = other.round_trip().map(drop).context("another session, while a holder is stopped");
        // The client must answer pings, as any client does.
        outcome = outcome.and_then(|()| Ok(flow.wire.attend(Duration::from_millis(50))?));
    }
    processes::kill(holder, Signal::CONT);
    outcome?;
    let resumed = Instant::now();
    let seq = flow.seq;
    while flow.seq == seq {
        flow.take()?;
    }
    let took = resumed.elapsed().as_secs_f64() * 1e3;
    flow.finish().context("the flow")?;
    other.end()?;
    // The holder runs the clock of its session. A session with time left survives a stopped holder, and one whose time is over ends.
    let lasting = detached(&server.address, stop + LASTING)?;
    let ending = detached(&server.address, stop / 3)?;
    let holders = setup.holders();
    thread::scope(|scope| {
        for holder in &holders {
            scope.spawn(|| pause(*holder, stop));
        }
    });
    let mut wire = resume(&server.address, &lasting).context("a session that had time left")?;
    wire.end_session()?;
    // The holder may have been stopped before it learned that the client has gone, and counts from then.
    expires(&server.address, &ending, stop / 3)?;
    stopped.end()?;
    Ok(took)
}

/// Stops the client: its kernel still acknowledges, so it keeps its session and finds everything when it continues.
fn client_stops(setting: &FaultSetting, stop: Duration) -> Result<f64> {
    let stopped = StoppedServer::start(setting)?;
    let (program, id) = (records::program()?, 7_u64);
    let mut client = parallel_runs::run(&setting.binary, &stopped.server.address.url)
        .args(["--", &program, "producer", &id.to_string(), &COUNT.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdout = client.stdout.take().context("a pipe")?;
    let mut records = Records::new(id);
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    while total < 1 << 20 {
        let count = stdout.read(&mut buffer)?;
        ensure!(count > 0, "`exec-server run` ended early");
        records.push(&buffer[..count]);
        total += count;
    }
    pause(client.id(), stop);
    let resumed = Instant::now();
    let mut took = None;
    loop {
        let count = stdout.read(&mut buffer)?;
        took.get_or_insert_with(|| resumed.elapsed().as_secs_f64() * 1e3);
        if count == 0 {
            break;
        }
        records.push(&buffer[..count]);
    }
    let status = client.wait()?;
    let mut output_text = String::new();
    client.stderr.take().context("a pipe")?.read_to_string(&mut output_text)?;
    records.finish(COUNT).with_context(|| output_text.clone())?;
    ensure!(status.code().map(i64::from) == Some(records::exit_code(id)), "ended with {status}: {output_text}");
    stopped.end()?;
    Ok(took.unwrap_or_default())
}

/// A detached session with a process; returns its id.
fn detached(address: &ServerAddress, ttl: Duration) -> Result<String> {
    let mut params = hello(None);
    params["ttlMs"] = json!(ttl.as_millis() as u64);
    let (mut wire, answer) = WireClient::open(address, &params)?;
    wire.start("sleep", &["/bin/sleep", "600"])?;
    Ok(answer["sessionId"].as_str().context("no session id")?.to_owned())
}

fn resume(address: &ServerAddress, session: &str) -> Result<WireClient> {
    Ok(WireClient::open(address, &hello(Some(session)))?.0)
}

/// Checks that the process of a session whose time is over in `rest` ends within a second after that, and that the session cannot be
/// resumed.
fn expires(address: &ServerAddress, session: &str, rest: Duration) -> Result<()> {
    let (mut observer, _) = WireClient::session(address)?;
    try_until("a session whose time is over has ended", rest + Duration::from_secs(1), || {
        let entries = observer.list_all()?;
        Ok(!entries.iter().any(|entry| entry["sessionId"] == *session && entry["exited"] == false))
    })?;
    observer.end_session()?;
    match resume(address, session).map(drop).map_err(|error| error.downcast::<CallError>()) {
        Err(Ok(CallError::Refused { .. })) => Ok(()),
        other => bail!("a session whose time is over was not refused: {other:?}"),
    }
}
