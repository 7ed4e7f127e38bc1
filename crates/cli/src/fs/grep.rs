//! `fs grep`: searches files on the server and prints matching lines in the format of grep.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use exec_server_client::{
    fs::{Cut, FileError, FileErrorKind, SearchLine, SearchParams, SearchSummary},
    protocol::path::PathArg,
};
use serde_json::{Value, json};

use super::{ServerFiles, as_typed, is_terminal, put_bytes, put_json, shown};
use crate::{
    args, codes,
    display::{self, Palette},
    ids,
    print::put,
    printable,
};

/// Exit code if nothing matched.
const NO_MATCH: u8 = 1;

/// Maximum bytes printed of one line.
const LINE_BYTES: u64 = 64 << 10;

pub(super) async fn run(remote: &ServerFiles, args: &args::GrepArgs) -> anyhow::Result<u8> {
    let here = [PathBuf::from(".")];
    let paths = if args.paths.is_empty() { &here[..] } else { &args.paths };
    let mut matches = 0;
    let mut has_failed = false;
    for path in paths {
        let typed = (!args.paths.is_empty()).then_some(path.as_path());
        let max_matches = args.max_matches.saturating_sub(matches);
        let error = match search_path(remote, args, path, typed, max_matches).await {
            Ok(found) => {
                matches += found;
                continue;
            }
            Err(error) => error.downcast::<FileError>()?,
        };
        if error.kind == FileErrorKind::Disconnected {
            return Err(error.into());
        }
        report!("{}", ids::clean(&error.to_string()));
        if error.kind == FileErrorKind::InvalidPattern {
            // The pattern is part of the command line, so this is a usage error.
            return Ok(codes::USAGE);
        }
        has_failed = true;
    }
    Ok(match (has_failed, matches) {
        (true, _) => codes::TROUBLE,
        (false, 0) => NO_MATCH,
        (false, _) => 0,
    })
}

/// Searches one path. Returns the number of matching lines.
async fn search_path(
    remote: &ServerFiles,
    args: &args::GrepArgs,
    path: &Path,
    typed: Option<&Path>,
    max_matches: u64,
) -> anyhow::Result<u64> {
    let full = remote.path(path);
    let mut search = remote.files.search(&full, params(args, max_matches)).await?;
    let mut printer = MatchPrinter { args, is_terminal: is_terminal(), palette: Palette::of_stdout(), last: None };
    while let Some(found) = search.next().await? {
        let mut text = Vec::new();
        for line in found {
            let shown_path = as_typed(&line.path, &full, typed);
            // Empty only if no path was given and the default `.` is itself a file. Then print `.`.
            let shown_path = if shown_path.as_os_str().is_empty() { path.to_owned() } else { shown_path };
            printer.print(&mut text, &shown_path, &line);
        }
        put(&text)?;
    }
    let Some(summary) = search.summary() else { return Ok(0) };
    report_missing(summary);
    if args.json {
        put_json(&json!({ "summary": summary }))?;
    }
    Ok(summary.matches)
}

fn params(args: &args::GrepArgs, max_matches: u64) -> SearchParams {
    // `RemoteFiles::search` replaces the path.
    let mut params = SearchParams::new(PathArg::new("/"), args.pattern.clone());
    params.literal = args.fixed_strings;
    params.ignore_case = args.ignore_case;
    params.word = args.word_regexp;
    params.before = args.before_context.or(args.context);
    params.after = args.after_context.or(args.context);
    params.max_matches = Some(max_matches);
    params.max_per_file = if args.files_with_matches { Some(1) } else { args.max_count };
    params.max_line_bytes = Some(LINE_BYTES);
    for glob in &args.glob {
        match glob.strip_prefix('!') {
            Some(excluded) => params.scan.exclude.push(excluded.to_owned()),
            None => params.include.push(glob.clone()),
        }
    }
    params.scan.hidden = args.hidden;
    params.scan.ignore_rules = Some(!args.no_ignore);
    let timeout = args.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    // Without `--timeout`, request more than the server allows: it uses its maximum then. The user can interrupt the command.
    params.scan.timeout_ms = Some(timeout.unwrap_or(u64::MAX));
    params
}

struct MatchPrinter<'a> {
    args: &'a args::GrepArgs,
    is_terminal: bool,
    palette: Palette,
    /// Path and line number of the previous line.
    last: Option<(PathBuf, u64)>,
}

impl MatchPrinter<'_> {
    fn print(&mut self, text: &mut Vec<u8>, path: &Path, line: &SearchLine) {
        let args = self.args;
        if args.json {
            text.extend_from_slice(printable::json_line(&line_json(path, line)).as_bytes());
            return;
        }
        if args.files_with_matches {
            if !line.is_context {
                text.extend_from_slice(&self.name(path));
                text.push(b'\n');
            }
            return;
        }
        let has_context = args.context.or(args.before_context).or(args.after_context).is_some_and(|lines| lines > 0);
        let is_adjacent = self.last.as_ref().is_none_or(|(last, number)| last == path && number + 1 == line.line);
        if has_context && !is_adjacent {
            text.extend_from_slice(&self.palette.paint_bytes(display::CYAN, b"--"));
            text.push(b'\n');
        }
        self.last = Some((path.to_owned(), line.line));
        let mark = self.palette.paint(display::CYAN, if line.is_context { "-" } else { ":" });
        text.extend_from_slice(&self.name(path));
        text.extend_from_slice(mark.as_bytes());
        if args.line_number {
            text.extend_from_slice(self.palette.paint(display::GREEN, &line.line.to_string()).as_bytes());
            text.extend_from_slice(mark.as_bytes());
        }
        if line.cut.is_some_and(|(before, _)| before > 0) {
            text.extend_from_slice(b"[...]");
        }
        text.extend_from_slice(&self.matched(line));
        if line.cut.is_some_and(|(before, all)| before + (line.text.len() as u64) < all) {
            text.extend_from_slice(b"[...]");
        }
        text.push(b'\n');
    }

    fn name(&self, path: &Path) -> Vec<u8> {
        self.palette.paint_bytes(display::MAGENTA, &shown(path.as_os_str().as_bytes(), self.is_terminal))
    }

    /// The line with the matches in colour. Spans from the server that are out of range or overlap are skipped.
    fn matched(&self, line: &SearchLine) -> Vec<u8> {
        let mut text = Vec::new();
        let mut done = 0;
        for &(from, to) in &line.spans {
            if let (Some(before), Some(hit)) = (line.text.get(done..from), line.text.get(from..to)) {
                text.extend_from_slice(&shown(before, self.is_terminal));
                text.extend_from_slice(&self.palette.paint_bytes(display::RED.bold(), &shown(hit, self.is_terminal)));
                done = to;
            }
        }
        text.extend_from_slice(&shown(&line.text[done..], self.is_terminal));
        text
    }
}

fn line_json(path: &Path, line: &SearchLine) -> Value {
    let mut object = json!({"line": line.line, "offset": line.offset, "spans": line.spans, "context": line.is_context});
    put_bytes(&mut object, "path", path.as_os_str().as_bytes());
    put_bytes(&mut object, "text", &line.text);
    if let Some((skipped, all)) = line.cut {
        object["skippedBytes"] = skipped.into();
        object["lineBytes"] = all.into();
    }
    object
}

/// Reports what was not searched and what was cut. Skipped binary files are not mentioned.
fn report_missing(summary: &SearchSummary) {
    for error in &summary.scan.errors {
        report!("search `{}`: {}", ids::clean(error.path.as_str()), ids::clean(&error.message));
    }
    let more = summary.scan.error_count.saturating_sub(summary.scan.errors.len() as u64);
    if more > 0 {
        report!("{more} more paths could not be searched");
    }
    for (count, what) in [(summary.large, "too large"), (summary.long_lines, "with lines that are too long")] {
        if count > 0 {
            report!("files {what}, not searched to their end: {count}");
        }
    }
    if summary.scan.truncated {
        let cuts: Vec<&str> = summary.scan.truncated_by.iter().map(|cut| cut_word(*cut)).collect();
        report!("results are incomplete; reason: {}", cuts.join(", "));
    }
}

pub(super) fn cut_word(cut: Cut) -> &'static str {
    match cut {
        Cut::Cancelled => "cancelled",
        Cut::Time => "time limit",
        Cut::Depth => "depth limit",
        Cut::Entries => "limit of entries",
        Cut::Results => "limit of results",
        Cut::Bytes => "limit of result bytes",
    }
}
