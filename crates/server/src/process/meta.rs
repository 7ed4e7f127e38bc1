//! The metadata of a process that a restarted server needs. Its size is bounded, no matter what was started.

use exec_server_protocol::sandbox::AppliedSandbox;
use serde::{Deserialize, Serialize};

use crate::compat::Dialect;

/// The facts that a restarted server needs about a process. The holder stores them as opaque bytes and returns them at
/// adoption.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessMeta {
    pub(crate) process_id: String,
    /// Possibly truncated, see [`truncate_argv`].
    pub(crate) argv: Vec<String>,
    /// Total bytes of the arguments, if `argv` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) argv_bytes: Option<u64>,
    pub(crate) cwd: String,
    pub(crate) tty: bool,
    pub(crate) stdin: bool,
    pub(crate) dialect: Dialect,
    /// Wall-clock time. It is shown to users, orders lists, and tells which of two adopted processes with one id is
    /// newer.
    pub(crate) started_ms: u64,
    /// The sandbox in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<AppliedSandbox>,
    /// Forget the process once it has closed and no reader needs it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) auto_forget: bool,
}

impl ProcessMeta {
    pub(crate) fn program(&self) -> String {
        self.argv.first().cloned().unwrap_or_default()
    }
}

/// Truncates `argv` to `most` bytes. Also returns the total bytes of all arguments if anything was cut. Each argument
/// counts 4 bytes extra against `most`, so that the number of empty arguments is bounded, too.
pub(crate) fn truncate_argv(argv: &[String], most: usize) -> (Vec<String>, Option<u64>) {
    let mut kept = Vec::new();
    let mut left = most;
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
