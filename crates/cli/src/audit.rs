//! `exec-server audit`: verifies an audit log against its hash chain and its anchor.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use exec_server_server::audit::{self, Anchor, ExpectedLog, VerifyError, VerifyReport};

use crate::{args::AuditCommand, print, state_location};

/// Exit code for a log that was changed, cut or replaced, or that does not have the hash of `--after` or `--has`.
const BROKEN: u8 = 1;

struct FoundAnchor {
    path: PathBuf,
    anchor: Anchor,
}

pub(crate) fn run(command: &AuditCommand) -> anyhow::Result<ExitCode> {
    let Err(error) = verify(command) else { return Ok(ExitCode::SUCCESS) };
    match error.downcast_ref() {
        None | Some(VerifyError::Io { .. }) => Err(error),
        Some(VerifyError::Broken { .. } | VerifyError::TailRemoved { .. } | VerifyError::Missing { .. }) => {
            print::error(&error);
            Ok(ExitCode::from(BROKEN))
        }
    }
}

fn verify(command: &AuditCommand) -> anyhow::Result<()> {
    let AuditCommand::Verify { files, after, has, state_dir, anchor } = command;
    let chain_alone = ExpectedLog { after: after.as_deref(), has: has.as_deref(), anchor: None };
    // The first pass checks without an anchor and reads which anchor the log names. The second pass checks against the anchor.
    let mut report = audit::verify(files, chain_alone)?;
    let found = match anchor {
        Some(path) => Some(read_anchor(path)?.with_context(|| format!("no anchor at `{}`", path.display()))?),
        None => find_anchor(files, state_dir.as_deref(), &report)?,
    };
    if let Some(found) = &found {
        report = audit::verify(files, ExpectedLog { anchor: Some(&found.anchor), ..chain_alone })?;
    }
    print::line(&format!("ok: {} lines, the last has the hash {}", report.lines, report.last))?;
    report_checked(&report, found.as_ref(), after.is_some());
    if report.torn > 0 || report.unfinished_bytes > 0 {
        let last = if report.unfinished_bytes > 0 { "; the last line is unfinished" } else { "" };
        message!("{} lines were truncated by a crash{last}", report.torn);
    }
    if report.lost > 0 {
        message!("{} records were lost while the log could not be written", report.lost);
    }
    Ok(())
}

/// Prints which parts of the beginning and the end could be checked.
fn report_checked(report: &VerifyReport, found: Option<&FoundAnchor>, is_after_given: bool) {
    if report.first_seq > 1 && !is_after_given {
        let first = report.first_seq;
        let before = report.first_seq - 1;
        message!("the log begins with number {first}; numbers 1 to {before} are in older files that were not given");
        message!("the log continues from the hash {}", report.after);
    }
    match found {
        Some(FoundAnchor { path, anchor }) => {
            let first = anchor.first.seq;
            if first > 1 {
                message!("lines before number {first} are older than the anchor and cannot be checked");
            }
            if report.is_older_part {
                let last = report.last_seq;
                message!("this part ends with number {last}; the log continues in a newer file that was not given");
            }
            message!("checked against the anchor `{}`", path.display());
        }
        None => {
            let named = report.anchor.as_ref().map(|path| format!(" (the log names `{}`)", path.display()));
            message!(
                "no anchor was found{}: cannot check whether the end was truncated or the whole log replaced; pass --state-dir or --anchor",
                named.unwrap_or_default()
            );
        }
    }
}

/// Searches the state directories for the anchor of one of the files, newest file first; then tries the anchor that the log itself names.
fn find_anchor(
    files: &[PathBuf],
    state_dir: Option<&Path>,
    report: &VerifyReport,
) -> anyhow::Result<Option<FoundAnchor>> {
    let named = report.anchor.as_deref();
    let dirs = match state_dir {
        Some(dir) => vec![dir.to_owned()],
        None => {
            state_location::all_of_user().into_iter().chain(named.and_then(Path::parent).map(Path::to_owned)).collect()
        }
    };
    let by_path = dirs.iter().flat_map(|dir| files.iter().rev().map(|file| Anchor::path_in(dir, file)));
    // The name of an anchor depends on the path of the log, so a copy of a log needs the anchor that the log names. If the user gave a
    // state directory, use only the file name of that anchor and look in the given directory.
    let by_name = named.and_then(|named| match state_dir {
        Some(dir) => Some(dir.join(named.file_name()?)),
        None => Some(named.to_owned()),
    });
    for path in by_path.chain(by_name) {
        match read_anchor(&path) {
            Ok(None) => {}
            Ok(found) => return Ok(found),
            Err(error) if state_dir.is_some() => return Err(error),
            Err(error) => message!("{error:#}"),
        }
    }
    match state_dir {
        Some(dir) if named.is_some() => anyhow::bail!("no anchor of this log in `{}`", dir.display()),
        _ => Ok(None),
    }
}

fn read_anchor(path: &Path) -> anyhow::Result<Option<FoundAnchor>> {
    let anchor = Anchor::read(path).with_context(|| format!("read the anchor `{}`", path.display()))?;
    Ok(anchor.map(|anchor| FoundAnchor { path: path.to_owned(), anchor }))
}
