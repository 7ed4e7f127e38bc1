//! F15: the server, a holder or the client is stopped for a while, as by a suspended machine, and goes on.
//!
//! Nothing may be lost, nobody may be taken for dead or expired because somebody else stood still, and no timer may be stuck
//! afterwards. (Clocks that jump are the business of unit tests and of the simulation, where time is an argument.)

use std::{
    io::Read as _,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::{Figures, Setting, floods::ARENAS_KIB, lanes, level::Level, slow::Neighbour};
use crate::{
    children::{self, RECORD, Records},
    server::{self, Setup},
    wire::{self, Fault, Incoming, Wire, hello},
};

/// What a session has left after a stop that it must outlast: more than a busy machine loses on the way.
const LASTING: Duration = Duration::from_secs(30);

/// What a producer writes: more than the windows on its way hold, so that it is under way when somebody stops.
const COUNT: u64 = (48 << 20) / RECORD;

pub(super) fn run(setting: &Setting) -> Result<Vec<Figures>> {
    // Each round stops all three kinds beside each other, on servers of their own.
    let rounds = setting.pick(1, 20_u64.div_ceil(3), 200_u64.div_ceil(3));
    let stop = Duration::from_secs(setting.pick(2, 10, 10));
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..rounds {
        let victims: [fn(&Setting, Duration) -> Result<f64>; 3] = [server_stops, holder_stops, client_stops];
        let outcomes = thread::scope(|scope| {
            victims.map(|victim| scope.spawn(move || victim(setting, stop))).map(|lane| lane.join().expect("no panic"))
        });
        for (outcome, name) in outcomes.into_iter().zip(["server", "holder", "client"]) {
            times.push(outcome.with_context(|| format!("the {name} was stopped for {stop:?}"))?);
            bytes += COUNT * RECORD;
        }
    }
    Ok(vec![
        Figures::default().survived(rounds * 3).set("bytes", bytes).times(&mut times).set("stopped_s", stop.as_secs()),
    ])
}

/// Stops a process for a while.
fn pause(pid: u32, long: Duration) {
    server::kill(pid, Signal::STOP);
    thread::sleep(long);
    server::kill(pid, Signal::CONT);
}

/// Deadlines that are far shorter than the stop: whoever measures by its own sleep would see everybody dead.
fn short_deadlines(setting: &Setting) -> Result<Setup> {
    Ok(Setup::new(&setting.binary)?.arg("--ping-every=300ms").arg("--dead-after=1s").arg("--log=info"))
}

/// The server: its clients are still there afterwards, a busy one and a quiet one, and its timers run.
fn server_stops(setting: &Setting, stop: Duration) -> Result<f64> {
    let setup = short_deadlines(setting)?;
    let server = setup.start()?;
    let level = Level::after_first_session(server.pid(), &server.address)?.keeping(ARENAS_KIB);
    let mut flow = Flow::start(&server.address)?;
    let mut quiet = Neighbour::new(&server.address)?;
    quiet.round_trip()?;
    while flow.seq < 8 {
        flow.take()?;
    }
    // Detached before, with a time to live that outlasts the stop; and one that does not.
    let (long, short) = (stop + LASTING, stop / 3);
    let lasting = detached(&server.address, long)?;
    let ending = detached(&server.address, short)?;
    // Heard from just before, so that no ping is under way.
    quiet.round_trip()?;
    server::kill(server.pid(), Signal::STOP);
    // A client that listens, as any does: pings that come are answered.
    let listened = flow.wire.attend(stop);
    server::kill(server.pid(), Signal::CONT);
    listened?;
    // Long enough for a server that believes its own sleep to be its clients' silence.
    flow.wire.attend(Duration::from_millis(400))?;
    let resumed = Instant::now();
    quiet.round_trip().context("a client that was quiet meanwhile was taken for dead")?;
    let took = resumed.elapsed().as_secs_f64() * 1e3;
    let mut wire = resume(&server.address, &lasting).context("a session that had time left")?;
    wire.call("session/end", &json!({}))?;
    flow.finish().context("the flow")?;
    expires(&server.address, &ending, Duration::ZERO)?;
    quiet.end()?;
    ensure!(!setup.log().contains("no sign of life"), "a live client was dropped: {}", setup.log_tail());
    end(&setup, server, &level)?;
    Ok(took)
}

/// A holder: other sessions go on meanwhile, its own goes on afterwards.
fn holder_stops(setting: &Setting, stop: Duration) -> Result<f64> {
    let setup = short_deadlines(setting)?;
    let server = setup.start()?;
    let level = Level::after_first_session(server.pid(), &server.address)?.keeping(ARENAS_KIB);
    let mut flow = Flow::start(&server.address)?;
    while flow.seq < 8 {
        flow.take()?;
    }
    let [holder] = setup.holders()[..] else { bail!("not one holder: {:?}", setup.holders()) };
    let mut other = Neighbour::new(&server.address)?;
    server::kill(holder, Signal::STOP);
    let begun = Instant::now();
    let mut outcome = Ok(());
    while begun.elapsed() < stop && outcome.is_ok() {
        outcome = other.round_trip().map(drop).context("another session, while a holder is stopped");
        // Pings must be answered, as any client does.
        outcome = outcome.and_then(|()| Ok(flow.wire.attend(Duration::from_millis(50))?));
    }
    server::kill(holder, Signal::CONT);
    outcome?;
    let resumed = Instant::now();
    let seq = flow.seq;
    while flow.seq == seq {
        flow.take()?;
    }
    let took = resumed.elapsed().as_secs_f64() * 1e3;
    flow.finish().context("the flow")?;
    other.end()?;
    // The clock of a session is its holder's: one that stood still is not late afterwards, and one whose time is over ends.
    let lasting = detached(&server.address, stop + LASTING)?;
    let ending = detached(&server.address, stop / 3)?;
    let stopped = setup.holders();
    thread::scope(|scope| {
        for holder in &stopped {
            scope.spawn(|| pause(*holder, stop));
        }
    });
    let mut wire = resume(&server.address, &lasting).context("a session that had time left")?;
    wire.call("session/end", &json!({}))?;
    // It may have been stopped before it heard that it is alone, and counts from then.
    expires(&server.address, &ending, stop / 3)?;
    end(&setup, server, &level)?;
    Ok(took)
}

/// The client: its kernel still answers for it, so it keeps its session and finds everything when it goes on.
fn client_stops(setting: &Setting, stop: Duration) -> Result<f64> {
    let setup = short_deadlines(setting)?;
    let server = setup.start()?;
    let level = Level::after_first_session(server.pid(), &server.address)?.keeping(ARENAS_KIB);
    let (program, id) = (children::program()?, 7_u64);
    let mut client = lanes::run(&setting.binary, &server.address.url)
        .args(["--", &program, "child", "producer", &id.to_string(), &COUNT.to_string()])
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
    let mut said = String::new();
    client.stderr.take().context("a pipe")?.read_to_string(&mut said)?;
    records.finish(COUNT).with_context(|| said.clone())?;
    ensure!(status.code().map(i64::from) == Some(children::exit_code(id)), "ended with {status}: {said}");
    end(&setup, server, &level)?;
    Ok(took.unwrap_or_default())
}

/// Everything in order at the end.
fn end(setup: &Setup, server: server::Server, level: &Level) -> Result<()> {
    level.wait_back().context("after all went on")?;
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    setup.ensure_no_panic()
}

/// A session with a process and nobody attached; its id.
fn detached(address: &wire::Address, ttl: Duration) -> Result<String> {
    let mut params = hello(None);
    params["ttlMs"] = json!(ttl.as_millis() as u64);
    let (mut wire, answer) = Wire::open(address, &params)?;
    wire.call("process/start", &wire::start("sleep", &["/bin/sleep", "600"]))?;
    Ok(answer["sessionId"].as_str().context("no session id")?.to_owned())
}

fn resume(address: &wire::Address, session: &str) -> Result<Wire> {
    Ok(Wire::open(address, &hello(Some(session)))?.0)
}

/// The process of a session whose time is over in `rest` ends then or within a second; the session cannot be resumed then.
fn expires(address: &wire::Address, session: &str, rest: Duration) -> Result<()> {
    let deadline = Instant::now() + rest + Duration::from_secs(1);
    let (mut observer, _) = Wire::session(address)?;
    loop {
        let list = observer.call("process/list", &json!({ "scope": "all" }))?;
        let entries = list["processes"].as_array().context("`process/list` gave no `processes`")?;
        if !entries.iter().any(|entry| entry["sessionId"] == *session && entry["exited"] == false) {
            break;
        }
        ensure!(Instant::now() < deadline, "a session lives on although its time is over");
        thread::sleep(Duration::from_millis(10));
    }
    observer.call("session/end", &json!({}))?;
    match resume(address, session).map(drop).map_err(|error| error.downcast::<Fault>()) {
        Err(Ok(Fault::Refused { .. })) => Ok(()),
        other => bail!("a session whose time is over was not refused: {other:?}"),
    }
}

/// A producer and its reader.
struct Flow {
    wire: Wire,
    records: Records,
    seq: u64,
}

impl Flow {
    fn start(address: &wire::Address) -> Result<Self> {
        let (mut wire, _) = Wire::session(address)?;
        let argv = [&children::program()?, "child", "producer", "1", &COUNT.to_string()];
        wire.call("process/start", &wire::start("p", &argv))?;
        Ok(Self { wire, records: Records::new(1), seq: 0 })
    }

    /// Takes one message; false at the end.
    fn take(&mut self) -> Result<bool> {
        match self.wire.next()? {
            Incoming::Output(output) => {
                ensure!(output.seq == self.seq + 1 && output.gap.is_none(), "number {} after {}", output.seq, self.seq);
                self.records.push(&output.bytes);
                self.seq = output.seq;
                if self.seq.is_multiple_of(4) {
                    self.wire.notify("process/ack", &json!({ "processId": "p", "seq": self.seq }))?;
                }
            }
            Incoming::Closed { .. } => return Ok(false),
            Incoming::Other { method, params } => bail!("unexpected `{method}`: {params}"),
            Incoming::Exited { code, .. } => ensure!(code == children::exit_code(1), "the producer exited with {code}"),
            Incoming::Answer { .. } => {}
        }
        Ok(true)
    }

    fn finish(mut self) -> Result<()> {
        while self.take()? {}
        self.records.finish(COUNT)?;
        self.wire.call("session/end", &json!({})).context("end the session")?;
        Ok(())
    }
}
