//! The command line as a user runs it: `exec-server` with a private home, and the places where its output goes.
//!
//! A file or `/dev/null` cannot be read while the command runs, so their bytes are counted afterwards, where there are any.

use std::path::PathBuf;

use super::baselines;
use crate::prelude::*;
use exec_server_harness::environment::Environment;

/// `exec-server` for one server.
pub(super) struct UserCommands<'a> {
    environment: &'a Environment,
    connect: Vec<String>,
}

impl<'a> UserCommands<'a> {
    /// `connect` is the options that choose the server; without them, commands run on this machine.
    pub(super) fn new(environment: &'a Environment, connect: &[&str]) -> Self {
        Self { environment, connect: connect.iter().map(|&word| word.to_owned()).collect() }
    }

    /// `exec-server NAME`, the options for the server, and these arguments.
    pub(super) fn command(&self, name: &[&str], args: &[&str]) -> Command {
        let mut command = self.environment.exec_server(name);
        command.args(&self.connect).args(args);
        command
    }

    /// `run` of a program that writes this many zeros.
    pub(super) fn run_zeros(&self, bytes: u64) -> Command {
        self.command(&["run"], &["--", baselines::HEAD, "-c", &bytes.to_string(), "/dev/zero"])
    }
}

/// Where the output of a command goes.
pub(super) enum OutputSink {
    /// A pipe that we read.
    Pipe,
    Null,
    /// A new file, which is removed afterwards.
    File(PathBuf),
}

impl OutputSink {
    /// MB/s of a command that writes this many zeros.
    pub(super) fn rate(&self, mut command: Command, bytes: u64, is_first: bool) -> Result<f64> {
        let out = match self {
            Self::Pipe => return baselines::output_of(command, bytes, is_first),
            Self::Null => fs::File::options().write(true).open("/dev/null")?,
            Self::File(path) => fs::File::create_new(path).with_context(|| format!("create `{}`", path.display()))?,
        };
        let begun = Instant::now();
        let status = command.stdin(Stdio::null()).stdout(out).status();
        let took = begun.elapsed().as_secs_f64();
        if let Self::File(path) = self {
            let written = baselines::drain(fs::File::open(path)?, is_first)?;
            fs::remove_file(path)?;
            ensure!(written == bytes, "{written} of {bytes} bytes in a file");
        }
        let status = status.with_context(|| format!("start `{command:?}`"))?;
        ensure!(status.success(), "`{command:?}` {status}");
        Ok(bytes as f64 / 1e6 / took)
    }
}
