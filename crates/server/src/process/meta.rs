//! What is kept of a process beside its log: the record that a restarted server needs. It has a bound, whatever was started.

use exec_server_protocol::sandbox::AppliedSandbox;
use serde::{Deserialize, Serialize};

/// Which generation's messages a process speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Dialect {
    /// `process/*`.
    Process,
    /// V0's `command/exec*`: no numbers, no `closed`, terminal output labelled `stdout`.
    Command,
}

impl Dialect {
    /// The method that starts such a process.
    pub(crate) fn start_method(self) -> &'static str {
        match self {
            Self::Process => "process/start",
            Self::Command => "command/exec",
        }
    }
}

/// What a restarted server must know about a process. The holder keeps it unread and gives it back at adoption.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Meta {
    pub(crate) process_id: String,
    /// As far as it is kept, see [`kept_argv`].
    pub(crate) argv: Vec<String>,
    /// Bytes of the whole, where only its beginning is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) argv_bytes: Option<u64>,
    pub(crate) cwd: String,
    pub(crate) tty: bool,
    pub(crate) stdin: bool,
    pub(crate) dialect: Dialect,
    /// Wall clock, for people only.
    pub(crate) started_ms: u64,
    /// What it is confined by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<AppliedSandbox>,
    /// It is forgotten once it has closed and no reader needs it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) auto_forget: bool,
}

impl Meta {
    /// What was to be run.
    pub(crate) fn program(&self) -> String {
        self.argv.first().cloned().unwrap_or_default()
    }
}

/// Program and arguments as far as `most` bytes go, and the bytes of the whole where that is not all. An argument counts with 4 bytes
/// more, so that empty ones have a bound as well.
pub(crate) fn kept_argv(argv: &[String], most: usize) -> (Vec<String>, Option<u64>) {
    let (mut kept, mut left) = (Vec::new(), most);
    for arg in argv {
        if left == 0 {
            break;
        }
        let cut = arg.floor_char_boundary(left.min(arg.len()));
        kept.push(arg[..cut].to_owned());
        left = left.saturating_sub(cut + 4);
    }
    let bytes = |argv: &[String]| argv.iter().map(String::len).sum::<usize>();
    let is_cut = bytes(&kept) < bytes(argv) || kept.len() < argv.len();
    (kept, is_cut.then(|| bytes(argv) as u64))
}
