//! C4: `exec-server cp -r` is killed at any moment and run again, in both directions.
//!
//! After every kill, each file under its final name is complete. When a run completes, the copy equals the original in everything that `cp`
//! keeps, and nothing else is left beside it.

use crate::prelude::*;
use exec_server_harness::{environment::success_of, file_tree};

/// Longer than any copy may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Minimum of the time window in which a copy is killed.
const SHORTEST: Duration = Duration::from_millis(50);

/// Contents are compared after every tenth kill, sizes after each.
const BYTES_EVERY: u64 = 10;

/// Kills copies in both directions.
pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let mut random = setting.random("C4");
    let (files, large_bytes) = (setting.pick(500, 10_000, 10_000), setting.pick(64 << 20, 2 << 30, 2 << 30));
    let wanted = setting.pick(8, 50, 1000);
    let (setup, server) = Setup::started(&setting.binary)?;
    let source = setup.scratch().join("source");
    file_tree::make(&source, files, large_bytes, &mut random)?;
    let mut lines = Vec::new();
    for name in ["up", "down"] {
        let copy = CopyRun {
            binary: &setting.binary,
            url: &server.address.url,
            source: &source,
            beside: &setup.scratch().join(name),
            is_upload: name == "up",
        };
        let line = copy.execute(wanted, &mut random);
        let line = line.with_context(|| format!("{name}; the server says: {}", setup.log_tail()))?;
        lines.push(line.set("way", name).set("files", files));
    }
    parallel_runs::finish(&setup, server)?;
    Ok(lines)
}

/// One direction.
struct CopyRun<'a> {
    binary: &'a Path,
    url: &'a str,
    source: &'a Path,
    /// The directory in which the copy is created, and nothing else.
    beside: &'a Path,
    is_upload: bool,
}

impl CopyRun<'_> {
    fn execute(&self, wanted: u64, random: &mut Random) -> Result<Figures> {
        fs::create_dir(self.beside)?;
        let (mut killed, mut rounds, mut bytes) = (0, 0, 0);
        let mut took = self.undisturbed()?;
        while killed < wanted {
            rounds += 1;
            // Each round starts from nothing, and is killed several times before it may complete.
            let kills = random.between(1, 8).min(wanted - killed);
            let mut is_over = false;
            for nth in 0..kills {
                let longest = u64::try_from(took.as_millis())? + 20;
                let is_cut = self.killed_after(Duration::from_millis(random.between(0, longest)))?;
                // The copy was complete, and `cp` was killed while exiting: its mark, which is created before the directory, is gone.
                is_over = !is_cut || (self.target().exists() && !self.beside.join(".copy.exec-server-cp").exists());
                if is_over {
                    // The very first run of this round was not killed in time, so the undisturbed copy was slower than usual. Shrink the
                    // window, because a kill that comes too late costs a whole round.
                    if nth == 0 {
                        took = (took * 7 / 8).max(SHORTEST);
                    }
                    break;
                }
                killed += 1;
                file_tree::whole_so_far(self.source, &self.target(), killed % BYTES_EVERY == 0)
                    .with_context(|| format!("after {killed} kills"))?;
            }
            if !is_over {
                self.finish().with_context(|| format!("after {killed} kills"))?;
            }
            bytes += self.ensure_same().with_context(|| format!("round {rounds}, after {killed} kills"))?;
            fs::remove_dir_all(self.target())?;
        }
        Ok(Figures::survived(killed).set("bytes", bytes).set("rounds", rounds))
    }

    /// How long an undisturbed copy takes.
    fn undisturbed(&self) -> Result<Duration> {
        let begun = Instant::now();
        self.finish()?;
        let took = begun.elapsed();
        self.ensure_same().context("undisturbed")?;
        fs::remove_dir_all(self.target())?;
        Ok(took)
    }

    fn target(&self) -> std::path::PathBuf {
        self.beside.join("copy")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.binary);
        let [here, there] = if self.is_upload { ["", ":"] } else { [":", ""] };
        let path = |mark: &str, path: &Path| format!("{mark}{}", path.display());
        command
            .args(["cp", "-r", "--connect", self.url])
            .args([path(here, self.source), path(there, &self.target())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// Whether the copy was still running when it was killed.
    fn killed_after(&self, after: Duration) -> Result<bool> {
        let mut child = self.command().spawn()?;
        thread::sleep(after);
        child.kill()?;
        let ended = child.wait_with_output()?;
        match ended.status.code() {
            None => Ok(true),
            Some(0) => Ok(false),
            Some(code) => bail!("it ended with {code}: {}", String::from_utf8_lossy(&ended.stderr)),
        }
    }

    fn finish(&self) -> Result<()> {
        success_of(&mut self.command(), PATIENCE).map(drop)
    }

    /// Checks that the copy equals the original, and that nothing is beside it.
    fn ensure_same(&self) -> Result<u64> {
        let names: Vec<_> = fs::read_dir(self.beside)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
        ensure!(names == ["copy"], "beside the copy there is {names:?}");
        file_tree::compare(self.source, &self.target())
    }
}
