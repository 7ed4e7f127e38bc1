//! Finds the paths below a directory that match a pattern. It opens no files except ignore files.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, statat},
    io::Errno,
};

use crate::{
    ErrorKind, FileKind, Moment, Result, View,
    error::ErrorContext as _,
    patterns::PathPattern,
    scan::{self, Scan, ScanAction, ScanCut, ScanEntry, ScanFilter, ScanSummary},
    stop::Stop,
};

/// Bytes that a result counts in addition to its path, towards `max_result_bytes`.
const RESULT_OVERHEAD: usize = 64;

/// A path that matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobMatch {
    pub path: PathBuf,
    pub kind: FileKind,
    pub size: u64,
    /// Modification time, in milliseconds since the Unix epoch.
    pub modified_ms: i64,
}

/// Limits of the result.
#[derive(Debug, Clone, Copy)]
pub struct GlobLimits {
    pub max_results: usize,
    pub max_result_bytes: usize,
}

/// The parameters of a glob.
#[derive(Debug, Clone, Copy)]
pub struct GlobRequest<'a> {
    pub path: &'a Path,
    pub pattern: &'a PathPattern,
    /// Which part of the tree to scan.
    pub filter: &'a ScanFilter,
    pub limits: GlobLimits,
}

/// Scans a directory and returns the matching paths in the order of names.
pub fn glob(view: &View, request: GlobRequest<'_>, stop: &Stop) -> Result<(Vec<GlobMatch>, ScanSummary)> {
    let GlobRequest { path, pattern, filter, limits } = request;
    let (root, kind) = scan::open_root(view, path).context("look into", path)?;
    if kind != FileKind::Directory {
        return Err(ErrorKind::from(Errno::NOTDIR)).context("look into", path);
    }
    let mut found = Vec::new();
    let mut result_bytes = 0;
    let filter = ScanFilter {
        hidden: filter.hidden || pattern.names_hidden(),
        rules_above: filter.rules_above && view.is_everything(),
        ..filter.clone()
    };
    let summary = Scan::new(view, root, path, &filter, stop).context("look into", path)?.run(|entry, summary| {
        if pattern.is_match(entry.relative)
            && let Some(matched) = describe(view, entry, path)
        {
            result_bytes += matched.path.as_os_str().len() + RESULT_OVERHEAD;
            if found.len() >= limits.max_results || result_bytes > limits.max_result_bytes {
                summary.record_cut(if found.len() >= limits.max_results { ScanCut::Results } else { ScanCut::Bytes });
                return ControlFlow::Break(());
            }
            found.push(matched);
        }
        let is_worth_entering = entry.kind == FileKind::Directory && pattern.may_match_below(entry.relative);
        ControlFlow::Continue(if is_worth_entering { ScanAction::Enter } else { ScanAction::Pass })
    });
    Ok((found, summary))
}

/// `None` if the entry no longer exists, or if it is only a cover over a hidden file.
fn describe(view: &View, entry: &ScanEntry<'_>, root: &Path) -> Option<GlobMatch> {
    let stat =
        statat(entry.parent, entry.name, AtFlags::SYMLINK_NOFOLLOW).ok().filter(|stat| !view.is_cover(stat.st_dev))?;
    Some(GlobMatch {
        path: root.join(entry.relative),
        kind: entry.kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified_ms: Moment { seconds: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }.millis(),
    })
}
