//! C3: `exec-server run` is killed; its program continues, and the other commands find it, read all of its output and end it.
//!
//! The program writes half of its records, waits for a file, and writes the rest, so that it still runs when the commands look for it.

use std::process::{Child, Output};

use crate::prelude::*;
use exec_server_harness::environment::{describe, finish};

/// Longer than any of the commands may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time-to-live of an empty session after `forget`, plus a margin.
const EMPTY_FOR: Duration = Duration::from_secs(45);

/// The child mode: waits for the file `gate` in the middle.
pub(super) fn child(id: u64, count: u64, gate: &str) -> Result<()> {
    records::write_records(id, 0..count / 2)?;
    wait_until("the gate is opened", 4 * PATIENCE, || Path::new(gate).exists())?;
    records::write_records(id, count / 2..count)?;
    std::process::exit(i32::try_from(records::exit_code(id))?)
}

/// Kills clients and checks what became of their programs.
pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let wanted = setting.pick(5, 50, 1000);
    let mut random = setting.random("C3");
    let (setup, server) = Setup::started(&setting.binary)?;
    let (mut bytes, mut ended) = (0, 0);
    for id in 1..=wanted {
        let gate = setup.scratch().join(format!("gate-{id}"));
        let gate = gate.to_str().context("the temporary folder is UTF-8")?.to_owned();
        let count = random.between(16 << 10, 4 << 20) / RECORD;
        let left = LeftProgram {
            binary: &setting.binary,
            url: &server.address.url,
            name: format!("left-{id}"),
            id,
            count,
            gate,
        };
        // The first two are one of each kind, even in a short run.
        let kills = if id <= 2 { id == 2 } else { random.one_in(3) };
        let outcome = left.execute(&mut random, kills);
        bytes += outcome.with_context(|| format!("client {id}; the server says: {}", setup.log_tail()))?;
        ended += u64::from(kills);
    }
    // An empty session stays for half a minute, in case its client is only disconnected; then its holder exits.
    wait_until("no holder is left", EMPTY_FOR, || setup.holders().is_empty())?;
    parallel_runs::finish(&setup, server)?;
    Figures::survived(wanted)
        .set("read_whole", wanted - ended)
        .set("ended_by_kill", ended)
        .set("bytes", bytes)
        .only_line()
}

/// A program whose client is killed.
struct LeftProgram<'a> {
    binary: &'a Path,
    url: &'a str,
    name: String,
    id: u64,
    count: u64,
    gate: String,
}

impl LeftProgram<'_> {
    /// Runs from the start until the process is forgotten; returns the number of bytes read from its log.
    fn execute(&self, random: &mut Random, kills: bool) -> Result<u64> {
        self.start_and_kill(random)?;
        let listed = self.listed()?.with_context(|| format!("`ps` does not show `{}`", self.name))?;
        ensure!(listed["exited"] == false, "it did not go on: {listed}");
        let pid = listed["pid"].as_u64().with_context(|| format!("no pid in {listed}"))?;
        ensure!(Path::new(&format!("/proc/{pid}")).exists(), "pid {pid} is not there, but listed: {listed}");
        let bytes = if kills { self.end(pid) } else { self.read_whole(random.one_in(2)) }?;
        self.succeed(&["forget", &self.name])?;
        ensure!(self.listed()?.is_none(), "`{}` is still listed after it was forgotten", self.name);
        Ok(bytes)
    }

    fn start_and_kill(&self, random: &mut Random) -> Result<()> {
        let (program, id, count) = (records::program()?, self.id.to_string(), self.count.to_string());
        let mut client = parallel_runs::run(self.binary, self.url)
            .args(["--name", &self.name, "--", &program, "gated", &id, &count, &self.gate])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdout = client.stdout.take().context("standard output is a pipe")?;
        // After the first byte the program is known to run; the kill comes at any moment after that.
        let begun = stdout.read_exact(&mut [0]);
        let reading = thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
        thread::sleep(Duration::from_millis(random.between(0, 60)));
        client.kill()?;
        let output = client.wait_with_output()?;
        reading.join().expect("the reader does not panic")?;
        let output_text = String::from_utf8_lossy(&output.stderr);
        begun.with_context(|| format!("`run` ended with {} and said: {output_text}", output.status))?;
        ensure!(
            output.status.code().is_none() && output_text.is_empty(),
            "`run` ended with {}: {output_text}",
            output.status
        );
        Ok(())
    }

    /// Reads all of its output and its exit code, with commands that are started before or after the gate opens.
    fn read_whole(&self, comes_before: bool) -> Result<u64> {
        let spawn = || anyhow::Ok((self.spawn(&["logs", "-f", &self.name])?, self.spawn(&["wait", &self.name])?));
        let early = if comes_before { Some(spawn()?) } else { None };
        fs::write(&self.gate, "")?;
        let (logs, wait) = early.map_or_else(spawn, Ok)?;
        let logs = finish(logs, PATIENCE).context("`logs -f`")?;
        ensure!(logs.status.success() && logs.stderr.is_empty(), "`logs -f` {}", describe(&logs));
        let mut records = Records::new(self.id);
        records.push(&logs.stdout);
        records.finish(self.count).context("`logs -f`")?;
        let waited = finish(wait, PATIENCE).context("`wait`")?;
        let code = waited.status.code().map(i64::from);
        ensure!(code == Some(records::exit_code(self.id)), "`wait` {}", describe(&waited));
        Ok(logs.stdout.len() as u64)
    }

    /// `kill` ends it, `wait` returns the right code, and the output until then is there without a hole.
    fn end(&self, pid: u64) -> Result<u64> {
        self.succeed(&["kill", &self.name])?;
        let waited = finish(self.spawn(&["wait", &self.name])?, PATIENCE)?;
        ensure!(waited.status.code() == Some(128 + 15), "`wait` after `kill` {}", describe(&waited));
        ensure!(!Path::new(&format!("/proc/{pid}")).exists(), "pid {pid} is still there");
        let logs = self.succeed(&["logs", &self.name])?;
        let mut records = Records::new(self.id);
        records.push(&logs.stdout);
        records.finish_torn(logs.stdout.len() as u64).context("`logs` after `kill`")?;
        Ok(logs.stdout.len() as u64)
    }

    /// Its entry in `ps --json`.
    fn listed(&self) -> Result<Option<Value>> {
        let output = self.succeed(&["ps", "--json"])?;
        let list: Vec<Value> = serde_json::from_slice(&output.stdout).context("`ps --json` is not an array")?;
        Ok(list.into_iter().find(|entry| entry["processId"] == *self.name))
    }

    fn spawn(&self, args: &[&str]) -> Result<Child> {
        let mut command = Command::new(self.binary);
        command.args(args).env("EXEC_SERVER_URL", self.url);
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        pipes.spawn().with_context(|| format!("start `exec-server {}`", args.join(" ")))
    }

    fn succeed(&self, args: &[&str]) -> Result<Output> {
        let output = finish(self.spawn(args)?, PATIENCE).with_context(|| format!("`{}`", args.join(" ")))?;
        let good = output.status.success() && output.stderr.is_empty();
        ensure!(good, "`{}` {}", args.join(" "), describe(&output));
        Ok(output)
    }
}
