//! Searches the files of a tree for a regular expression, line by line. Matches are passed to a callback as they are found; a slow callback
//! slows the search down.
//!
//! Memory is bounded for any content: a line that does not fit into the buffer ends the search of its file, and such files are counted.
//! Files are read, never mapped: truncating a mapped file would kill the process with SIGBUS.

use std::{
    fs::File,
    io::{self, Read},
    ops::ControlFlow,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, MmapChoice, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkFinish, SinkMatch,
};
use rustix::fs::{FileType, OFlags, fstat};

use crate::{
    FileKind, Result, View,
    error::ErrorContext as _,
    patterns::{PATTERN_BYTES, PatternError},
    read::refuse_proc,
    scan::{self, Scan, ScanAction, ScanCut, ScanFilter, ScanSummary},
    stop::{Stop, StopReason},
};

/// Longest line that can be searched, in bytes. It limits the memory of a search.
const LINE_BUFFER_BYTES: usize = 8 << 20;

/// Maximum size of a compiled expression.
const EXPRESSION_BYTES: usize = 8 << 20;

/// Maximum number of match positions reported per line.
const SPANS: usize = 64;

/// Bytes that a result counts in addition to its path and text, towards `max_result_bytes`.
const RESULT_OVERHEAD: usize = 64;

/// Maximum number of context lines on each side.
pub const MAX_CONTEXT: usize = 100;

/// A compiled search pattern.
#[derive(Debug, Clone)]
pub struct SearchPattern {
    matcher: RegexMatcher,
}

/// How to interpret an expression.
#[derive(Debug, Clone, Copy, Default)]
pub struct PatternOptions {
    /// Treat the expression as plain text.
    pub literal: bool,
    pub ignore_case: bool,
    /// Match whole words only.
    pub word: bool,
}

impl SearchPattern {
    pub fn new(pattern: &str, options: PatternOptions) -> Result<Self, PatternError> {
        if pattern.len() > PATTERN_BYTES {
            return Err(PatternError::TooLong { bytes: pattern.len() });
        }
        let matcher = RegexMatcherBuilder::new()
            .fixed_strings(options.literal)
            .case_insensitive(options.ignore_case)
            .word(options.word)
            .line_terminator(Some(b'\n'))
            .size_limit(EXPRESSION_BYTES)
            .dfa_size_limit(EXPRESSION_BYTES)
            .build(pattern)
            .map_err(|error| PatternError::malformed(pattern, error))?;
        Ok(Self { matcher })
    }
}

/// Limits and options of the result.
#[derive(Debug, Clone)]
pub struct SearchLimits {
    /// Number of context lines before and after a match.
    pub context: (usize, usize),
    /// Maximum number of matching lines in total.
    pub max_matches: u64,
    /// Maximum number of matching lines per file. Lines left out for this reason do not count as truncation.
    pub max_per_file: Option<u64>,
    /// Maximum number of bytes of a line to return.
    pub max_line_bytes: usize,
    /// Larger files are skipped and counted.
    pub max_file_bytes: u64,
    /// Maximum total size of the results.
    pub max_result_bytes: usize,
}

/// A matching line, or a context line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchLine {
    pub path: PathBuf,
    /// Line number, starting at 1.
    pub number: u64,
    /// Number of bytes in the file before the line.
    pub offset: u64,
    /// The returned part of the line, without its line ending.
    pub text: Vec<u8>,
    /// Number of bytes of the line before `text`.
    pub skipped: usize,
    /// Length of the whole line in bytes, without its line ending.
    pub bytes: usize,
    /// Ranges of the matches in `text`. Empty for a context line.
    pub spans: Vec<(usize, usize)>,
    pub is_context: bool,
}

impl SearchLine {
    /// Bytes that this line counts towards `max_result_bytes`.
    #[must_use]
    pub fn cost(&self) -> usize {
        // A span has 16 bytes.
        self.path.as_os_str().len() + self.text.len() + 16 * self.spans.len() + RESULT_OVERHEAD
    }
}

/// Summary of a search.
#[derive(Debug, Default)]
pub struct SearchSummary {
    /// Summary of the scan of the tree.
    pub scan: ScanSummary,
    /// Number of matching lines returned.
    pub matches: u64,
    /// Number of files with matching lines.
    pub matched_files: u64,
    /// Number of files read.
    pub files: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Number of binary files.
    pub binary: u64,
    /// Number of files larger than `max_file_bytes`.
    pub large: u64,
    /// Number of files with a line that is too long to be searched.
    pub long_lines: u64,
}

/// The parameters of a search.
#[derive(Debug, Clone, Copy)]
pub struct SearchRequest<'a> {
    pub path: &'a Path,
    pub pattern: &'a SearchPattern,
    /// Which part of the tree to scan.
    pub filter: &'a ScanFilter,
    pub limits: &'a SearchLimits,
}

/// Searches a directory, or a single file. The callback `on_line` can end the search by returning `Break`.
pub fn search(
    view: &View,
    request: SearchRequest<'_>,
    stop: &Stop,
    on_line: &mut dyn FnMut(SearchLine) -> ControlFlow<()>,
) -> Result<SearchSummary> {
    let SearchRequest { path, pattern, filter, limits } = request;
    let (before, after) = limits.context;
    let searcher = SearcherBuilder::new()
        .line_number(true)
        .before_context(before.min(MAX_CONTEXT))
        .after_context(after.min(MAX_CONTEXT))
        .binary_detection(BinaryDetection::quit(0))
        .memory_map(MmapChoice::never())
        .heap_limit(Some(LINE_BUFFER_BYTES))
        .build();
    let mut search = Search {
        view,
        pattern,
        limits,
        stop,
        on_line,
        searcher,
        outcome: SearchSummary::default(),
        reported_bytes: 0,
        is_over: false,
    };
    let (root, kind) = scan::open_root(view, path).context("search", path)?;
    let summary = if kind == FileKind::Directory {
        // A restricted view may not read the ignore files above the root.
        let filter = ScanFilter { rules_above: filter.rules_above && view.is_everything(), ..filter.clone() };
        let scan = Scan::new(view, root, path, &filter, stop).context("search", path)?;
        scan.run(|entry, summary| search.visit(entry, path, summary))
    } else {
        refuse_proc(root.as_fd()).context("search", path)?;
        let mut summary = ScanSummary::default();
        search.file(root, path, &mut summary);
        summary
    };
    Ok(SearchSummary { scan: summary, ..search.outcome })
}

struct Search<'a> {
    view: &'a View,
    pattern: &'a SearchPattern,
    limits: &'a SearchLimits,
    stop: &'a Stop,
    on_line: &'a mut dyn FnMut(SearchLine) -> ControlFlow<()>,
    searcher: Searcher,
    outcome: SearchSummary,
    /// Size of the results so far.
    reported_bytes: usize,
    /// The search must end.
    is_over: bool,
}

impl Search<'_> {
    fn visit(
        &mut self,
        entry: &scan::ScanEntry<'_>,
        root: &Path,
        summary: &mut ScanSummary,
    ) -> ControlFlow<(), ScanAction> {
        match entry.kind {
            FileKind::Directory => return ControlFlow::Continue(ScanAction::Enter),
            FileKind::Symlink => return ControlFlow::Continue(ScanAction::Pass),
            FileKind::Fifo | FileKind::Socket | FileKind::Device => summary.special += 1,
            FileKind::File => match scan::open_below(entry.parent, entry.name, OFlags::empty()) {
                Ok(file) => self.file(file, &root.join(entry.relative), summary),
                // The entry has become a link since it was listed.
                Err(rustix::io::Errno::LOOP) => {}
                Err(error) => summary.record_error(&root.join(entry.relative), error),
            },
        }
        if self.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(ScanAction::Pass) }
    }

    fn file(&mut self, file: OwnedFd, path: &Path, summary: &mut ScanSummary) {
        // Check after opening: the entry may have been replaced since it was listed.
        let stat = match fstat(&file) {
            Ok(stat) => stat,
            Err(error) => return summary.record_error(path, error),
        };
        if let Err(reason) = self.view.check_guard(file.as_fd()) {
            return summary.record_error(path, scan::refusal_error(reason));
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            summary.special += 1;
            return;
        }
        if u64::try_from(stat.st_size).unwrap_or(0) > self.limits.max_file_bytes {
            self.outcome.large += 1;
            return;
        }
        self.outcome.files += 1;
        let mut searcher = self.searcher.clone();
        // Allow one byte more than the limit, to distinguish a file that grew during the search from one that just fits.
        let mut reader = SearchReader {
            file: File::from(file),
            stop: self.stop,
            left: self.limits.max_file_bytes.saturating_add(1),
            bytes: 0,
            end: None,
        };
        let pattern = self.pattern;
        let mut hits = MatchSink { search: self, path, matches: 0, is_binary: false, cut: None };
        let searched = searcher.search_reader(&pattern.matcher, &mut reader, &mut hits);
        let MatchSink { matches, is_binary, cut, .. } = hits;
        self.outcome.bytes += reader.bytes;
        self.outcome.matched_files += u64::from(matches > 0);
        self.outcome.binary += u64::from(is_binary);
        if let Some(cut) = cut {
            summary.record_cut(cut);
            self.is_over = true;
        }
        match (searched, reader.end) {
            (_, Some(FileReadEnd::Stopped(stopped))) => {
                summary.record_cut(stopped.into());
                self.is_over = true;
            }
            (_, Some(FileReadEnd::Grew)) => self.outcome.large += 1,
            (_, Some(FileReadEnd::Failed(error))) => summary.record_error(path, error),
            // The reader had no error. Either the callback ended the search, or a line did not fit into the buffer.
            (Err(_), None) if !self.is_over => self.outcome.long_lines += 1,
            (Err(_) | Ok(()), None) => {}
        }
    }

    /// Whether `max_matches` lines have been returned.
    fn has_all(&self) -> bool {
        self.outcome.matches >= self.limits.max_matches
    }

    /// Passes a line to the callback, unless the results would exceed their maximum size.
    fn report(&mut self, line: SearchLine) -> Result<(), ScanCut> {
        self.reported_bytes += line.cost();
        if self.reported_bytes > self.limits.max_result_bytes {
            return Err(ScanCut::Bytes);
        }
        match (self.on_line)(line) {
            ControlFlow::Continue(()) => Ok(()),
            // The callback ended the search: its receiver is gone, or it waited for room until the deadline passed.
            ControlFlow::Break(()) => Err(self.stop.check().map_or(ScanCut::Cancelled, ScanCut::from)),
        }
    }
}

/// Why a file was not read to its end.
enum FileReadEnd {
    Stopped(StopReason),
    Grew,
    Failed(io::Error),
}

/// Reads a file until the search is stopped.
struct SearchReader<'a> {
    file: File,
    stop: &'a Stop,
    left: u64,
    bytes: u64,
    end: Option<FileReadEnd>,
}

impl Read for SearchReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(stopped) = self.stop.check() {
            self.end = Some(FileReadEnd::Stopped(stopped));
            return Err(io::ErrorKind::Other.into());
        }
        if self.left == 0 {
            self.end = Some(FileReadEnd::Grew);
            return Ok(0);
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        let read = self.file.read(&mut buf[..most]).map_err(|error| {
            if error.kind() == io::ErrorKind::Interrupted {
                return error;
            }
            self.end = Some(FileReadEnd::Failed(error));
            io::ErrorKind::Other.into()
        })?;
        self.left -= read as u64;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// Receives the matches of one file from the searcher.
struct MatchSink<'a, 'b> {
    search: &'a mut Search<'b>,
    path: &'a Path,
    matches: u64,
    is_binary: bool,
    cut: Option<ScanCut>,
}

impl MatchSink<'_, '_> {
    /// Whether `max_per_file` lines of this file have been returned.
    fn has_all_of_file(&self) -> bool {
        self.search.limits.max_per_file.is_some_and(|most| self.matches >= most)
    }

    /// Returns whether to continue with this file.
    fn report_line(&mut self, number: Option<u64>, offset: u64, bytes: &[u8], is_context: bool) -> bool {
        let line = trimmed(bytes);
        let spans = if is_context { Vec::new() } else { spans(&self.search.pattern.matcher, line) };
        let (skipped, text, spans) = window(line, spans, self.search.limits.max_line_bytes);
        let reported = self.search.report(SearchLine {
            path: self.path.to_owned(),
            // Always set, because the searcher counts lines.
            number: number.unwrap_or(0),
            offset,
            text: text.to_vec(),
            skipped,
            bytes: line.len(),
            spans,
            is_context,
        });
        self.cut = reported.err();
        self.cut.is_none()
    }
}

impl Sink for MatchSink<'_, '_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        if self.has_all_of_file() {
            return Ok(false);
        }
        // Check at the first match beyond the limit, so that a search with exactly `max_matches` matches does not count as truncated.
        if self.search.has_all() {
            self.cut = Some(ScanCut::Results);
            return Ok(false);
        }
        let continues = self.report_line(found.line_number(), found.absolute_byte_offset(), found.bytes(), false);
        if continues {
            self.matches += 1;
            self.search.outcome.matches += 1;
        }
        Ok(continues)
    }

    fn context(&mut self, _: &Searcher, near: &SinkContext<'_>) -> io::Result<bool> {
        // Skip the context lines before a match that will not be reported.
        if *near.kind() == SinkContextKind::Before && (self.has_all_of_file() || self.search.has_all()) {
            return Ok(true);
        }
        Ok(self.report_line(near.line_number(), near.absolute_byte_offset(), near.bytes(), true))
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> io::Result<bool> {
        self.is_binary = true;
        Ok(false)
    }

    fn finish(&mut self, _: &Searcher, end: &SinkFinish) -> io::Result<()> {
        self.is_binary |= end.binary_byte_offset().is_some();
        Ok(())
    }
}

/// The line without its line ending.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn spans(matcher: &RegexMatcher, line: &[u8]) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    // This matcher never returns an error.
    let found = matcher.find_iter(line, |found| {
        spans.push((found.start(), found.end()));
        spans.len() < SPANS
    });
    debug_assert!(found.is_ok(), "a regular expression finds without errors");
    spans
}

/// The part of a line to return: at most `most` bytes. It starts at the beginning of the line, or shortly before the first match if the
/// match begins after `most` bytes. Returns its offset, its bytes, and the matches in it.
fn window(line: &[u8], spans: Vec<(usize, usize)>, most: usize) -> (usize, &[u8], Vec<(usize, usize)>) {
    if line.len() <= most {
        return (0, line, spans);
    }
    let first = spans.first().map_or(0, |span| span.0);
    let begin = if first < most { 0 } else { boundary(line, first - most / 4) };
    let end = boundary(line, (begin + most).min(line.len()));
    let inside =
        |(from, to): (usize, usize)| (from < end).then(|| (from.max(begin) - begin, to.clamp(begin, end) - begin));
    // With a tiny `most`, the boundary of a character can put `end` before `begin`.
    (begin, &line[begin..end.max(begin)], spans.into_iter().filter_map(inside).collect())
}

/// The nearest position at or before `at` that is not inside a UTF-8 character.
fn boundary(line: &[u8], at: usize) -> usize {
    let is_inside = |at: usize| line.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|at| !is_inside(*at)).unwrap_or(at)
}
