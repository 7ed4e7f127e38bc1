//! Large data over every transport: the checksum of a large file on the other side, and random bytes there and back.

use std::{
    collections::HashMap,
    fs::{self, File},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{
    far::Far,
    world::{self, World},
};
use crate::server::Setup;

/// Longer than a large file may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// One transport.
struct Way<'a> {
    name: &'static str,
    url: String,
    /// The size of the file for the checksum.
    bytes: u64,
    /// Provides `ssh` for the transport that needs it.
    far: &'a Far<'a>,
}

pub(super) fn run(world: &World) -> Result<Vec<String>> {
    let folder = world.folder("streams")?;
    let far = Far::start(world, "streams-far")?;
    far.install()?;
    let socket = folder.join("sock");
    let setup =
        Setup::new(&world.binary)?.arg("--kill-on-exit").arg("--listen").arg(&format!("unix://{}", socket.display()));
    let server = setup.start()?;
    // In CI one transport gets the large file, so that sizes beyond any buffer are tested there too.
    let (large, small) = (1 << 30, if world.ci { 128 << 20 } else { 1 << 30 });
    let way = |name, url, bytes| Way { name, url, bytes, far: &far };
    let ways = [
        way("ws", server.address.url.clone(), large),
        way("unix", format!("unix://{}", socket.display()), small),
        way("stdio", format!("stdio:{} serve --listen stdio", world.binary.display()), small),
        way("ssh", "ssh://box".to_owned(), small),
        way("ssh with a path", explicit(&far), 16 << 20),
    ];
    let mut lines = Vec::new();
    let mut plain = HashMap::new();
    for way in &ways {
        let file = folder.join(format!("file-{}", way.bytes));
        if !file.exists() {
            world::random_file(&file, way.bytes, way.bytes)?;
            plain.insert(way.bytes, plain_ssh(&far, &file)?);
        }
        let plain = *plain.get(&way.bytes).context("measured with the file")?;
        lines.push(way.sum(&file, plain).with_context(|| format!("sum through {}", way.name))?);
        way.both_ways(&folder).with_context(|| format!("`cat` through {}", way.name))?;
        lines.push(format!("random bytes through `cat` over {} and back", way.name));
    }
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    far.stop()?;
    fs::remove_dir_all(&folder)?;
    Ok(lines)
}

/// The seconds that plain ssh takes for the checksum of a file on the other side.
fn plain_ssh(far: &Far<'_>, file: &Path) -> Result<f64> {
    let begun = Instant::now();
    sum_of(far.command("sh").args(["-c", "cat \"$0\" | ssh box sha256sum"]).arg(file))?;
    Ok(begun.elapsed().as_secs_f64())
}

/// The same host with everything in the URL.
fn explicit(far: &Far<'_>) -> String {
    format!("ssh://{}@127.0.0.1:{}{}", far.user, far.port, far.home().join(".local/bin/exec-server").display())
}

impl Way<'_> {
    fn run(&self, program: &[&str]) -> Command {
        let mut command = self.far.exec_server(&["run", "--connect", &self.url, "--"]);
        command.args(program);
        command
    }

    /// The checksum of a file that is sent through `run`, compared with the time that plain ssh takes.
    fn sum(&self, file: &Path, ssh: f64) -> Result<String> {
        let expected = sum_of(Command::new("sha256sum").stdin(File::open(file)?))?;
        let begun = Instant::now();
        let got = sum_of(self.run(&["sha256sum"]).stdin(File::open(file)?))?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(got == expected, "the sum is {got}, not {expected}");
        let mb = self.bytes as f64 / 1e6;
        Ok(format!(
            "`sha256sum` of {} MiB over {}: {seconds:.1} s, {:.0} MB/s, {:.2} times what ssh takes,",
            self.bytes >> 20,
            self.name,
            mb / seconds,
            seconds / ssh,
        ))
    }

    /// An odd number of bytes, so that the last block is never full.
    fn both_ways(&self, folder: &Path) -> Result<()> {
        const BYTES: u64 = (32 << 20) + 4321;
        let file = folder.join("both-ways");
        if !file.exists() {
            world::random_file(&file, BYTES, 99)?;
        }
        let back = world::success_of(self.run(&["cat"]).stdin(File::open(&file)?), PATIENCE)?;
        let sent = fs::read(&file)?;
        let same = sent.iter().zip(&back).take_while(|(sent, back)| sent == back).count();
        ensure!(back == sent, "{} of {} bytes came back, {same} of them as sent", back.len(), sent.len());
        Ok(())
    }
}

/// The first word of the output of `sha256sum`.
fn sum_of(command: &mut Command) -> Result<String> {
    let said = String::from_utf8(world::success_of(command, PATIENCE)?)?;
    let sum = said.split_whitespace().next().unwrap_or_default();
    ensure!(sum.len() == 64, "`sha256sum` said `{said}`");
    Ok(sum.to_owned())
}
