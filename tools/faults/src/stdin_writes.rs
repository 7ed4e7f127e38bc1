//! F3 and F16: stdin is written exactly once, whichever process dies and however often a write is repeated.
//!
//! The sink is `cat` into a file. Blocks contain their number, so the file shows what was written and how often.

use std::collections::HashSet;

use super::children;
use crate::prelude::*;

/// Concurrent writers, each with its own session and sink.
const WRITERS: u64 = 4;

/// F3: clients are killed while they write. Accepted writes are in the file once, all others at most once.
pub(super) fn killed_writer(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let kills = setting.pick(40, 300, 5000).div_ceil(WRITERS);
    let mut random = setting.random("F3");
    let (setup, server) = Setup::started(&setting.binary)?;
    let tallies = thread::scope(|scope| {
        let lanes: Vec<_> = (0..WRITERS)
            .map(|lane| {
                let (random, address) = (random.fork(), server.address.clone());
                let file = setup.scratch().join(format!("sink-{lane}"));
                scope.spawn(move || write_and_kill(random, &address, &file, kills))
            })
            .collect();
        lanes.into_iter().map(|lane| lane.join().expect("a lane does not panic")).collect::<Result<Vec<_>>>()
    })?;
    setup.finish(server)?;
    let sum = |figure: fn(&StdinTally) -> u64| tallies.iter().map(figure).sum::<u64>();
    Figures::survived(kills * WRITERS)
        .set("sent", sum(|tally| tally.sent))
        .set("accepted", sum(|tally| tally.accepted))
        .set("written", sum(|tally| tally.written))
        .set("bytes", sum(|tally| tally.bytes))
        .only_line()
}

/// Counts of one lane.
pub(super) struct StdinTally {
    sent: u64,
    accepted: u64,
    written: u64,
    bytes: u64,
}

/// One writer that is killed `kills` times, and the check of what it wrote.
pub(super) fn write_and_kill(
    mut random: Random,
    address: &ServerAddress,
    file: &Path,
    kills: u64,
) -> Result<StdinTally> {
    let (wire, session) = sink(address, file)?;
    drop(wire);
    let program = records::program()?;
    let (mut sent, mut accepted) = (HashSet::new(), HashSet::new());
    let mut again: Vec<u64> = Vec::new();
    for _ in 0..kills {
        let from = sent.iter().max().map_or(0, |number| number + 1);
        let mut child = Command::new(&program)
            .args(["writer", &address.url, &session, "sink", &from.to_string()])
            .args(again.iter().map(u64::to_string))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("standard output is a pipe")?;
        let reader = thread::spawn(move || children::read_writer(output));
        thread::sleep(Duration::from_millis(random.between(5, 60)));
        child.kill()?;
        let status = child.wait()?;
        ensure!(status.code().is_none(), "the writer ended by itself: {status}");
        let (new, known) = reader.join().expect("the reader does not panic")?;
        sent.extend(new);
        accepted.extend(known);
        // Half of the unanswered writes are repeated under their old id, half are given up.
        again = sent.difference(&accepted).copied().filter(|_| random.one_in(2)).collect();
        again.sort_unstable();
    }
    let (mut wire, _) = WireClient::open(address, &hello(Some(&session)))?;
    let bytes = finish(&mut wire, file)?;
    check_blocks(&children::read_blocks(&bytes)?, &sent, &accepted).map(|written| StdinTally {
        sent: sent.len() as u64,
        accepted: accepted.len() as u64,
        written,
        bytes: bytes.len() as u64,
    })
}

fn check_blocks(seen: &HashMap<u64, u64>, sent: &HashSet<u64>, accepted: &HashSet<u64>) -> Result<u64> {
    for (number, times) in seen {
        ensure!(*times == 1, "block {number} was written {times} times");
        ensure!(sent.contains(number), "block {number} was never sent");
    }
    for number in accepted {
        ensure!(seen.contains_key(number), "block {number} was accepted and is not there");
    }
    Ok(seen.len() as u64)
}

/// F16: two connections send each write at the same time under the same id. It is written once, and both are answered accordingly.
pub(super) fn twice(setting: &FaultSetting) -> Result<Vec<Figures>> {
    const BATCH: u64 = 50;
    let writes = setting.pick(2000, 10_000, 1_000_000);
    let (setup, server) = Setup::started(&setting.binary)?;
    let file = setup.scratch().join("sink");
    let (mut owner, session) = sink(&server.address, &file)?;
    let (mut other, other_session) = WireClient::session(&server.address)?;
    ensure!(!other_session.is_empty(), "the second session has no id");
    for batch in 0..writes / BATCH {
        let mut asked = Vec::new();
        for number in batch * BATCH..(batch + 1) * BATCH {
            let chunk = STANDARD.encode(children::block(number | 4));
            let params =
                json!({ "processId": "sink", "sessionId": session, "writeId": format!("w{number}"), "chunk": chunk });
            asked.push((owner.send("process/write", &params)?, other.send("process/write", &params)?));
        }
        for (one, two) in asked {
            for answer in [owner.answer(one)?, other.answer(two)?] {
                ensure!(answer["status"] == "accepted", "a repeated write was answered {answer}");
            }
        }
    }
    let bytes = finish(&mut owner, &file)?;
    other.end_session()?;
    let expected: usize = (0..writes).map(|number| children::block(number | 4).len()).sum();
    children::read_blocks(&bytes)?;
    ensure!(bytes.len() == expected, "{} bytes went in, not {expected}", bytes.len());
    setup.finish(server)?;
    Figures::survived(writes).set("bytes", bytes.len()).only_line()
}

/// A session with one process, `cat` into the file.
pub(super) fn sink(address: &ServerAddress, file: &Path) -> Result<(WireClient, String)> {
    let (mut wire, session) = WireClient::session(address)?;
    let file = file.to_str().context("the temporary folder is UTF-8")?;
    let mut params = wire::start("sink", &["/bin/sh", "-c", "exec cat >\"$0\"", file]);
    params["pipeStdin"] = json!(true);
    wire.call("process/start", &params)?;
    Ok((wire, session))
}

/// Closes stdin, waits for the end of `cat`, ends the session, and returns the contents of the file.
pub(super) fn finish(wire: &mut WireClient, file: &Path) -> Result<Vec<u8>> {
    wire.call("process/closeStdin", &json!({ "processId": "sink" }))?;
    loop {
        match wire.next_message()? {
            ServerMessage::Closed { .. } => break,
            ServerMessage::Exited { code, .. } => ensure!(code == 0, "`cat` ended with {code}"),
            _ => {}
        }
    }
    let bytes = fs::read(file)?;
    wire.end_session()?;
    Ok(bytes)
}
