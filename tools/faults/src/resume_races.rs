//! F17: two clients resume the same session at the same moment.
//!
//! Whether they use `takeover`, do not, or one of each, exactly one has the session afterwards. The other was refused or disconnected, and
//! nothing it sends from then on has an effect. The sink, `cat` into a file, shows whose writes arrived.

use std::sync::Barrier;

use super::stdin_writes;
use crate::prelude::*;

/// The error code for a session that another client has.
const ATTACHED: i64 = -32010;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let rounds = setting.pick(40, 500, 20_000);
    let mut random = setting.random("F17");
    let (setup, server) = Setup::started(&setting.binary)?;
    let file = setup.scratch().join("sink");
    let (wire, session) = stdin_writes::sink(&server.address, &file)?;
    drop(wire);
    let mut race = TakeoverRace { address: &server.address, session: &session, ended: Vec::new(), written: Vec::new() };
    let (mut refused, mut times) = (0, Vec::new());
    for round in 0..rounds {
        let takeovers = [random.one_in(2), random.one_in(2)];
        let begun = Instant::now();
        refused += race
            .run(round, takeovers)
            .with_context(|| format!("round {round}, takeover {takeovers:?}; the server says: {}", setup.log_tail()))?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let written = race.written.concat();
    let (mut wire, _) = WireClient::open(&server.address, &hello(Some(&session)))?;
    let bytes = stdin_writes::finish(&mut wire, &file)?;
    ensure!(bytes == written.as_bytes(), "the file is not what the owners wrote");
    setup.finish(server)?;
    Figures::survived(rounds).set("bytes", written.len()).times(&mut times).set("stale_refused", refused).only_line()
}

struct TakeoverRace<'a> {
    address: &'a ServerAddress,
    session: &'a str,
    /// The winner of the last round, from which the next round takes the session.
    ended: Vec<WireClient>,
    /// The owners' writes, in order.
    written: Vec<String>,
}

impl TakeoverRace<'_> {
    /// Returns how many stale connections were refused a write.
    fn run(&mut self, round: u64, takeovers: [bool; 2]) -> Result<u64> {
        // In half of the rounds the session is free, in the other half its owner disconnects at this moment.
        let last = self.ended.pop().filter(|_| round.is_multiple_of(2));
        let (start, settled) = (Barrier::new(2), Barrier::new(2));
        let texts = [0, 1].map(|side| format!("round {round} side {side}\n"));
        let outcomes = thread::scope(|scope| {
            let sides = [0, 1].map(|side| {
                let (start, settled, text) = (&start, &settled, &texts[side]);
                let (address, session) = (self.address, self.session);
                scope.spawn(move || one(address, session, takeovers[side], text, (start, settled)))
            });
            drop(last);
            sides.map(|side| side.join().expect("a side does not panic"))
        });
        let mut owners = 0;
        let mut stale = 0;
        for (outcome, text) in outcomes.into_iter().zip(texts) {
            match outcome? {
                ClientOutcome::Owner(wire) => {
                    owners += 1;
                    self.written.push(text);
                    self.ended.push(*wire);
                }
                ClientOutcome::Stale => stale += 1,
                ClientOutcome::Refused => {}
            }
        }
        ensure!(owners == 1, "{owners} owners");
        Ok(stale)
    }
}

/// The outcome of one of the two clients.
enum ClientOutcome {
    /// Its write arrived.
    Owner(Box<WireClient>),
    /// It had the session and lost it; its write was refused.
    Stale,
    /// It never got the session.
    Refused,
}

fn one(
    address: &ServerAddress,
    session: &str,
    takeover: bool,
    text: &str,
    (start, settled): (&Barrier, &Barrier),
) -> Result<ClientOutcome> {
    let mut params = hello(Some(session));
    params["takeover"] = json!(takeover);
    let mut connected = WireClient::connect(address);
    start.wait();
    let asked = Instant::now();
    let answer = match &mut connected {
        Ok(wire) => wire.call("initialize", &params).and_then(|_| wire.notify("initialized", &json!({}))),
        Err(fault) => Err(CallError::Lost(fault.to_string())),
    };
    // The client with the session must answer pings while the other one tries to resume, which may take up to three seconds.
    let listened = match (&answer, &mut connected) {
        (Ok(()), Ok(wire)) => wire.attend(Duration::from_millis(150)),
        _ => Ok(()),
    };
    settled.wait();
    match answer {
        Ok(()) => {}
        Err(CallError::Refused { code: ATTACHED, .. }) if !takeover => {
            ensure!(asked.elapsed() < Duration::from_secs(3), "refused only after {:?}", asked.elapsed());
            return Ok(ClientOutcome::Refused);
        }
        // The other client took the session before our answer was read.
        Err(CallError::Lost(_)) => return Ok(ClientOutcome::Stale),
        Err(fault) => return Err(fault.into()),
    }
    let mut wire = connected.context("connect")?;
    if listened.is_err() {
        return Ok(ClientOutcome::Stale);
    }
    let params = json!({ "processId": "sink", "writeId": text, "chunk": STANDARD.encode(text) });
    match wire.call("process/write", &params) {
        Ok(answer) if answer["status"] == "accepted" => Ok(ClientOutcome::Owner(Box::new(wire))),
        Ok(answer) => bail!("a write was answered {answer}"),
        Err(CallError::Lost(_) | CallError::Refused { .. }) => Ok(ClientOutcome::Stale),
        Err(fault) => Err(fault.into()),
    }
}
