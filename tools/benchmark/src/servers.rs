//! A server to measure, and the ways to connect to it: WebSocket, Unix socket and standard streams, JSON and binary.
//!
//! Starts and stops the servers of a group. All their processes must have ended with their sessions.

use std::process::Child;

use crate::prelude::*;
use exec_server_harness::{environment::wait_child, server::Server};

/// The transport of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transport {
    Ws,
    Unix,
    Stdio,
}

/// A transport and a dialect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConnectionKind {
    pub(super) transport: Transport,
    pub(super) format: MessageFormat,
}

impl ConnectionKind {
    pub(super) fn new(transport: Transport, format: MessageFormat) -> Self {
        Self { transport, format }
    }

    /// The name in rows and lanes.
    pub(super) fn name(self) -> String {
        let transport = match self.transport {
            Transport::Ws => "ws",
            Transport::Unix => "unix",
            Transport::Stdio => "stdio",
        };
        format!("{}/{transport}", self.format.name())
    }
}

/// How long a server may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The servers of a group: one on ws and a Unix socket, and one more for each connection over standard streams.
pub(super) struct BenchServers {
    pub(super) setup: Setup,
    pub(super) server: Server,
    unix: String,
    piped: Vec<(Setup, Child)>,
}

impl BenchServers {
    pub(super) fn start(setting: &BenchSetting<'_>) -> Result<Self> {
        let setup = Setup::new(&setting.binary)?;
        let unix = format!("unix://{}", setup.scratch().join("socket").display());
        let setup = setup.arg("--listen").arg(&unix);
        let server = setup.start()?;
        Ok(Self { setup, server, unix, piped: Vec::new() })
    }

    /// Opens a session; `None` if the server does not offer the dialect on this transport.
    pub(super) fn open(&mut self, kind: ConnectionKind) -> Result<Option<BenchSession>> {
        let link = match kind.transport {
            Transport::Ws => BenchConnection::connect(&self.server.address.url)?,
            Transport::Unix => BenchConnection::connect(&self.unix)?,
            Transport::Stdio => {
                let setup = Setup::new(&self.setup.binary)?;
                let mut child = setup.piped()?;
                let stdin = child.stdin.take().context("standard input is a pipe")?;
                let stdout = child.stdout.take().context("standard output is a pipe")?;
                self.piped.push((setup, child));
                BenchConnection::piped(stdin, stdout)
            }
        };
        let session = BenchSession::open(link, kind.format).with_context(|| kind.name())?;
        // The older dialect for files is not enough for output.
        Ok(session.filter(|session| kind.format == MessageFormat::Json || session.speaks("binary")))
    }

    /// A session over ws in JSON.
    pub(super) fn json(&mut self) -> Result<BenchSession> {
        self.open(ConnectionKind::new(Transport::Ws, MessageFormat::Json))?.context("JSON is always offered")
    }

    /// Stops all servers; the sessions have already ended.
    pub(super) fn stop(self) -> Result<()> {
        for (setup, mut child) in self.piped {
            let ended = wait_child(&mut child, PATIENCE)?;
            ended.context("a server on standard streams did not end with its client")?;
            setup.wait_gone(PATIENCE)?;
        }
        self.setup.finish(self.server)
    }
}
