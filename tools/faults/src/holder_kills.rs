//! F4: the holder of a session is killed under load.
//!
//! All descendants of its processes, including daemons, are gone within a second, and the client is informed within a second. Output on
//! disk can be read, in order and without a hole. No orphan, fd or control group is left.

use crate::prelude::*;
use exec_server_harness::{server, wire::OutputChunk};

const SECOND: Duration = Duration::from_secs(1);

/// Daemons per session.
const DAEMONS: u64 = 5;

/// Every tenth kill hits a session whose client has disconnected and whose output goes to disk.
const SPILLED_EVERY: u64 = 10;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let wanted = setting.pick(12, 50, 500);
    let mut random = setting.random("F4");
    let (setup, server) = Setup::started(&setting.binary)?;
    // A first session opens what the server keeps for good.
    HolderRound { setup: &setup, server: &server, number: 0 }.killed(Duration::ZERO)?;
    let baseline = server::descriptors(server.pid());
    let (mut told, mut gone, mut bytes) = (Vec::new(), Vec::new(), 0);
    for number in 1..=wanted {
        let round = HolderRound { setup: &setup, server: &server, number };
        let context = || format!("kill {number}; the server says: {}", setup.log_tail());
        let after = Duration::from_millis(random.between(0, 60));
        let times = round.killed(after).with_context(context)?;
        told.push(times.0);
        gone.push(times.1);
        if number % SPILLED_EVERY == 1 {
            bytes += round.spilled().with_context(context)?;
        }
    }
    descendants::settle("descriptors of the server", baseline + 2, || server::descriptors(server.pid()))?;
    descendants::settle("dead and not reaped", 0, || descendants::zombies(&setup.family()))?;
    setup.finish(server)?;
    Figures::survived(wanted)
        .set("bytes", bytes)
        .times(&mut told)
        .set("gone_ms", format!("{:.1}", figures::worst(&gone)))
        .only_line()
}

/// One session whose holder is killed.
struct HolderRound<'a> {
    setup: &'a Setup,
    server: &'a Server,
    number: u64,
}

impl HolderRound<'_> {
    /// Kills the holder while producers write; returns the milliseconds until the client was informed and until everything was gone.
    fn killed(&self, after: Duration) -> Result<(f64, f64)> {
        let (mut wire, _) = WireClient::session(&self.server.address)?;
        let before = self.setup.holders();
        let mark = descendants::mark(self.number);
        let script = descendants::script(&mark, DAEMONS, "exec sleep 1000");
        wire.start("daemons", &["/bin/sh", "-c", &script])?;
        for id in 0..2 {
            wire.start_producer(&format!("producer-{id}"), id, 1 << 40)?;
        }
        descendants::wait_alive(&mark, DAEMONS)?;
        wire.attend(after)?;
        let holder = self.setup.new_holder(&before)?;
        let killed = Instant::now();
        processes::kill(holder, rustix::process::Signal::KILL);
        let told = wait_lost(&mut wire, 3, killed)?;
        let gone = descendants::until_gone(&mark, killed, SECOND)?;
        match wire.start("late", &["/bin/true"]) {
            Err(CallError::Refused { kind, .. }) if kind == "holderLost" => {}
            other => bail!("a start after it gave {other:?}"),
        }
        wire.end_session()?;
        Ok((told, gone))
    }

    /// Kills the holder while no client is attached and output is on disk; returns how many bytes were read back.
    fn spilled(&self) -> Result<u64> {
        let (mut wire, session) = WireClient::session(&self.server.address)?;
        let before = self.setup.holders();
        let id = 1000 + self.number;
        let process = format!("away-{id}");
        wire.start_producer(&process, id, (64 << 20) / RECORD)?;
        drop(wire);
        let dir = self.setup.state_dir().join("sessions").join(&session);
        wait_until("output is on disk", Duration::from_secs(20), || on_disk(&dir) >= 4)
            .with_context(|| format!("in `{}`", dir.display()))?;
        let segments = on_disk(&dir);
        processes::kill(self.setup.new_holder(&before)?, rustix::process::Signal::KILL);
        let (mut wire, _) = WireClient::open(&self.server.address, &hello(Some(&session)))?;
        let bytes = read_back(&mut wire, &process, id)?;
        // A segment contains a little less output than its size, because every record has a header.
        ensure!(bytes >= segments * 900_000, "{segments} segments were on disk, and {bytes} bytes came back");
        wire.end_session()?;
        Ok(bytes)
    }
}

/// Receives messages until all processes are reported as lost; returns the milliseconds since the kill.
fn wait_lost(wire: &mut WireClient, processes: usize, killed: Instant) -> Result<f64> {
    let mut lost = 0;
    while lost < processes {
        match wire.next_message()? {
            ServerMessage::Exited { process, code, .. } => {
                ensure!(code == -1, "`{process}` is said to have ended with {code}");
                lost += 1;
            }
            // The exit comes after the output, which is sent only as it is acknowledged.
            ServerMessage::Output(OutputChunk { process, seq, .. }) => {
                wire.acknowledge(&process, seq)?;
            }
            ServerMessage::Closed { .. } | ServerMessage::Answer { .. } | ServerMessage::Other { .. } => {}
        }
    }
    let took = killed.elapsed();
    ensure!(took < SECOND, "told after {took:?}");
    Ok(took.as_secs_f64() * 1e3)
}

/// Reads the rest of a log; it must be a prefix of what was written, without a hole.
fn read_back(wire: &mut WireClient, process: &str, id: u64) -> Result<u64> {
    let (mut records, mut bytes) = (Records::new(id), 0);
    loop {
        match wire.next_message()? {
            ServerMessage::Output(output) if output.process == process => {
                ensure!(output.gap.is_none(), "a gap: {:?}", output.gap);
                bytes += output.bytes.len() as u64;
                records.push(&output.bytes);
                wire.acknowledge(process, output.seq)?;
            }
            ServerMessage::Closed { process: closed, .. } if closed == process => break,
            ServerMessage::Other { method, params } if method == "process/gap" => bail!("a gap: {params}"),
            _ => {}
        }
    }
    records.finish_torn(bytes)?;
    Ok(bytes)
}

/// The number of segments of a session on disk.
fn on_disk(dir: &Path) -> u64 {
    let is_segment = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().ends_with(".seg");
    fs::read_dir(dir).into_iter().flatten().flatten().filter(is_segment).count() as u64
}
