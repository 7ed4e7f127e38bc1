//! The two sets of messages of a process: `process/*`, and V0's `command/exec*`.

use exec_server_protocol::{command, method::Method, process as wire};
use serde::{Deserialize, Serialize};

use crate::{
    error::Failure,
    process::{Process, ProcessMeta},
    pump::Reply,
};

/// Which messages a process uses. Stored in its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Dialect {
    /// `process/*`.
    Process,
    /// V0's `command/exec*`: no sequence numbers, no `closed`, terminal output labelled `stdout`.
    Command,
}

impl Dialect {
    pub(crate) fn start_method(self) -> &'static str {
        match self {
            Self::Process => Method::ProcessStart.name(),
            Self::Command => Method::CommandExec.name(),
        }
    }

    /// Whether a write in this dialect reaches the process. V0 writes only to terminals; otherwise stdin is /dev/null.
    pub(crate) fn takes_stdin(self, meta: &ProcessMeta) -> bool {
        meta.stdin && (self == Self::Process || meta.tty)
    }
}

/// The answers that differ between the dialects.
impl Reply {
    /// Answers a start.
    pub(crate) fn started(self, process: &Process) {
        match self.dialect {
            Dialect::Process => {
                self.result(&wire::StartResult::started(process.process_id(), process.pid, process.meta.sandbox))
            }
            Dialect::Command => self.result(&command::ExecResult::started(process.process_id(), Some(process.pid))),
        }
    }

    /// Answers a write. V0 reports a refusal as an error. `line_cut`: the terminal cut a line that was too long.
    pub(crate) fn write(self, process_id: &str, status: wire::WriteStatus, line_cut: bool) {
        match (self.dialect, status) {
            (Dialect::Process, status) => self.result(&wire::WriteResult { status, line_cut }),
            (Dialect::Command, wire::WriteStatus::Accepted) => self.result(&command::WriteResult { accepted: true }),
            (Dialect::Command, wire::WriteStatus::StdinClosed) => {
                self.fail(&Failure::NoStdin { id: process_id.to_owned() });
            }
            (Dialect::Command, wire::WriteStatus::UnknownProcess | wire::WriteStatus::Starting) => {
                self.fail(&Failure::UnknownProcess { id: process_id.to_owned() });
            }
        }
    }
}
