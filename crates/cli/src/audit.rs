//! `exec-server audit`: says whether an audit log is what was written.
//! Must not know how it is written.

use std::process::ExitCode;

use exec_server_server::audit::{self, Expected, VerifyError};

use crate::{
    args::{Audit, AuditCommand},
    say,
};

/// The log is not what was written.
const BROKEN: u8 = 1;

/// Does what was asked.
pub(crate) fn run(args: &Audit) -> anyhow::Result<ExitCode> {
    let AuditCommand::Verify { files, after, has } = &args.command;
    match audit::verify(files, Expected { after: after.as_deref(), has: has.as_deref() }) {
        Ok(report) => {
            say::line(&format!("ok: {} lines, the last has the hash {}", report.lines, report.last));
            if report.after.bytes().any(|byte| byte != b'0') && after.is_none() {
                say::talk(format_args!("it goes on from a log whose last hash is {}", report.after));
            }
            if report.torn > 0 || report.unfinished_bytes > 0 {
                let last = if report.unfinished_bytes > 0 { "; the last line is unfinished" } else { "" };
                say::talk(format_args!("{} lines were cut short by a crash{last}", report.torn));
            }
            if report.lost > 0 {
                say::talk(format_args!("{} records were lost while it could not be written", report.lost));
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ (VerifyError::Broken { .. } | VerifyError::Missing { .. })) => {
            say::error(&error.into());
            Ok(ExitCode::from(BROKEN))
        }
        Err(error @ VerifyError::Io { .. }) => Err(error.into()),
    }
}
