//! OpenSSH on loopback for comparison: commands over separate connections and over a shared one.
//!
//! Keeps the shared connection. The output of `ssh` is read like all other output, from a pipe into one buffer.

use std::path::PathBuf;

use crate::prelude::*;
use exec_server_harness::{
    environment::{OwnedChild, try_until},
    remote_host::RemoteHost,
};

/// How long the shared connection may take to come up.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection that commands share (`ControlMaster`).
pub(super) struct Ssh<'a> {
    sshd: &'a RemoteHost<'a>,
    master: OwnedChild,
    folder: tempfile::TempDir,
}

impl<'a> Ssh<'a> {
    pub(super) fn start(sshd: &'a RemoteHost<'a>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("xtask-ssh-").tempdir()?;
        let socket = folder.path().join("socket");
        let option = format!("ControlPath={}", socket.display());
        let master = OwnedChild(sshd.plain(&["-M", "-N", "-o", &option])?.stdin(Stdio::null()).spawn()?);
        let mut ssh = Self { sshd, master, folder };
        try_until("the shared connection of ssh is there", PATIENCE, || {
            ensure!(ssh.master.try_wait()?.is_none(), "the shared connection of ssh has ended");
            Ok(socket.exists())
        })?;
        Ok(ssh)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// A command over the shared connection.
    pub(super) fn shared(&self, command: &str) -> Result<Command> {
        let path = format!("ControlPath={}", self.socket().display());
        let mut ssh = self.sshd.plain(&["-o", &path, "-o", "ControlMaster=no"])?;
        ssh.arg(command);
        Ok(ssh)
    }

    /// A command over a separate connection, with these ssh options.
    pub(super) fn alone(&self, options: &[&str], command: &str) -> Result<Command> {
        let mut ssh = self.sshd.plain(&[&["-o", "ControlPath=none"], options].concat())?;
        ssh.arg(command);
        Ok(ssh)
    }

    /// Ends the shared connection.
    pub(super) fn end(mut self) -> Result<()> {
        self.master.kill()?;
        self.master.wait()?;
        Ok(())
    }
}
