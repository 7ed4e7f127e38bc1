//! Large data over every transport: the checksum of a large file on the other side, and random bytes there and back.

use std::{collections::HashMap, fs::File, time::Instant};

use crate::prelude::*;

/// Longer than a large file may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// One transport.
struct StreamTransport<'a> {
    name: &'static str,
    url: String,
    /// The size of the file for the checksum.
    bytes: u64,
    /// Provides `ssh` for the transport that needs it.
    host: &'a RemoteHost<'a>,
}

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let folder = world.folder("streams")?;
    let host = RemoteHost::start(world, "streams-far")?;
    host.install()?;
    let socket = folder.join("sock");
    let setup =
        Setup::new(&world.binary)?.arg("--kill-on-exit").arg("--listen").arg(&format!("unix://{}", socket.display()));
    let server = setup.start()?;
    // In CI one transport gets the large file, so that sizes beyond any buffer are tested there too.
    let (large, small) = (1 << 30, if world.ci { 128 << 20 } else { 1 << 30 });
    let transport = |name, url, bytes| StreamTransport { name, url, bytes, host: &host };
    let ways = [
        transport("ws", server.address.url.clone(), large),
        transport("unix", format!("unix://{}", socket.display()), small),
        transport("stdio", format!("stdio:{} serve --listen stdio", world.binary.display()), small),
        transport("ssh", "ssh://box".to_owned(), small),
        transport("ssh with a path", explicit(&host), 16 << 20),
    ];
    let mut lines = Vec::new();
    let mut plain = HashMap::new();
    for transport in &ways {
        let file = folder.join(format!("file-{}", transport.bytes));
        if !file.exists() {
            environment::random_file(&file, transport.bytes, transport.bytes)?;
            plain.insert(transport.bytes, plain_ssh(&host, &file)?);
        }
        let plain = *plain.get(&transport.bytes).context("measured with the file")?;
        lines.push(transport.sum(&file, plain).with_context(|| format!("sum through {}", transport.name))?);
        transport.both_ways(&folder).with_context(|| format!("`cat` through {}", transport.name))?;
        lines.push(format!("random bytes through `cat` over {} and back", transport.name));
    }
    setup.finish(server)?;
    host.stop()?;
    fs::remove_dir_all(&folder)?;
    Ok(lines)
}

/// The seconds that plain ssh takes for the checksum of a file on the other side.
fn plain_ssh(host: &RemoteHost<'_>, file: &Path) -> Result<f64> {
    let begun = Instant::now();
    sum_of(host.command("sh").args(["-c", "cat \"$0\" | ssh box sha256sum"]).arg(file))?;
    Ok(begun.elapsed().as_secs_f64())
}

/// The same host with everything in the URL.
fn explicit(host: &RemoteHost<'_>) -> String {
    format!("ssh://{}@127.0.0.1:{}{}", host.user, host.port, host.home().join(".local/bin/exec-server").display())
}

impl StreamTransport<'_> {
    fn run(&self, program: &[&str]) -> Command {
        let mut command = self.host.exec_server(&["run", "--connect", &self.url, "--"]);
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
            environment::random_file(&file, BYTES, 99)?;
        }
        let back = environment::success_of(self.run(&["cat"]).stdin(File::open(&file)?), PATIENCE)?;
        let sent = fs::read(&file)?;
        let same = sent.iter().zip(&back).take_while(|(sent, back)| sent == back).count();
        ensure!(back == sent, "{} of {} bytes came back, {same} of them as sent", back.len(), sent.len());
        Ok(())
    }
}

/// The first word of the output of `sha256sum`.
fn sum_of(command: &mut Command) -> Result<String> {
    let output_text = String::from_utf8(environment::success_of(command, PATIENCE)?)?;
    let sum = output_text.split_whitespace().next().unwrap_or_default();
    ensure!(sum.len() == 64, "`sha256sum` said `{output_text}`");
    Ok(sum.to_owned())
}
