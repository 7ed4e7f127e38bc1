//! Verifies audit logs from beginning to end. Shares only the format of a line with the writer.
//!
//! The chain alone reveals every change but three: the end was cut off, the whole log was replaced, or it was replaced
//! from some line on. The anchor reveals these.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
};

use super::{
    Anchor,
    chain::{self, ChainLine},
};

/// Longer than any line that the server writes.
const LINE_MAX_BYTES: u64 = 1 << 20;

/// The result for logs that verify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of lines, over all files.
    pub lines: u64,
    /// The hash before the first line. All zeros if the log begins there.
    pub after: String,
    /// The hash of the last line. The next file continues from it.
    pub last: String,
    /// Number of partial lines that a crash left behind. Each is followed by a line that declares it.
    pub torn: u64,
    /// Size of an unfinished line at the end of the log.
    pub unfinished_bytes: u64,
    /// Number of records that were lost while the log could not be written, as declared in the log.
    pub lost: u64,
    /// The number of the first line. Above 1 if older files were not given.
    pub first_seq: u64,
    pub last_seq: u64,
    /// The path of the log's anchor, as declared in the log.
    pub anchor: Option<PathBuf>,
    /// With an anchor: whether later files of the log were not given.
    pub is_older_part: bool,
}

/// Why logs do not verify.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("read `{}`", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// A line was changed, removed or moved.
    #[error("`{}`: line {line} {what}", path.display())]
    Broken {
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        what: String,
    },
    /// The anchor knows a later line than the last one in the files.
    #[error(
        "`{}` {}, but number {written} was written: the last {} were removed",
        path.display(),
        if *last == 0 { "is empty".to_owned() } else { format!("ends with number {last}") },
        written - last
    )]
    TailRemoved {
        path: PathBuf,
        /// The number of the last line in the files.
        last: u64,
        /// The last number in the anchor.
        written: u64,
    },
    /// No line has the hash that the caller expects.
    #[error("no line has the hash `{hash}`: lines at the end were removed, or these are other files")]
    Missing { hash: String },
}

/// The caller's knowledge about the log, in addition to the chain itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpectedLog<'a> {
    /// The hash that the first line continues from, such as the last one of an older file.
    pub after: Option<&'a str>,
    /// A hash that must occur, which the caller noted earlier.
    pub has: Option<&'a str>,
    /// The anchor of the log. Read it before the log: a running server advances both.
    pub anchor: Option<&'a Anchor>,
}

impl ExpectedLog<'_> {
    /// The hash that the anchor has for this number.
    fn anchored(&self, seq: u64) -> Option<&str> {
        let anchor = self.anchor?;
        let marks = [&anchor.first, &anchor.last].into_iter().chain(&anchor.parts);
        marks.into_iter().find(|mark| mark.seq == seq).map(|mark| mark.hash.as_str())
    }
}

#[derive(Default)]
struct ChainVerifier {
    report: VerifyReport,
    /// Number and hash of the last line. Number 0: only the hash is known, from `ExpectedLog::after`.
    end: Option<(u64, String)>,
    /// Bytes since the last valid line that are not a valid line themselves.
    torn: Vec<u8>,
    /// The number of the line in its file at which `torn` begins.
    torn_line: u64,
    /// A line had the hash `ExpectedLog::has`.
    has_expected: bool,
    /// The first line declares a partial line from a crash and is not line 1 of the log. Then the first file must
    /// continue another one, so its second line must be `CONTINUE`.
    must_continue: bool,
    /// Whether the file that was read last has valid lines.
    has_lines: bool,
}

/// The error text for a first line that is not the first of its log or file.
fn without_head(seq: u64) -> String {
    format!("has the number {seq}: the {} before it were removed", seq.saturating_sub(1))
}

/// Verifies files as one log, oldest first.
pub fn verify(paths: &[impl AsRef<Path>], expected: ExpectedLog<'_>) -> Result<VerifyReport, VerifyError> {
    let mut chain = ChainVerifier { end: expected.after.map(|hash| (0, hash.to_owned())), ..ChainVerifier::default() };
    for path in paths {
        chain.file(path.as_ref(), expected)?;
    }
    if let Some(hash) = expected.has.filter(|_| !chain.has_expected) {
        return Err(VerifyError::Missing { hash: hash.to_owned() });
    }
    if let Some(anchor) = expected.anchor.filter(|anchor| chain.report.last_seq < anchor.last.seq) {
        let last = chain.report.last_seq;
        // The number is enough here: `file` has compared the line's hash with the anchor's.
        chain.report.is_older_part = chain.has_lines && anchor.parts.iter().any(|part| part.seq == last);
        if !chain.report.is_older_part {
            let path = paths.last().map(|path| path.as_ref().to_owned()).unwrap_or_default();
            return Err(VerifyError::TailRemoved { path, last, written: anchor.last.seq });
        }
    }
    Ok(chain.report)
}

impl ChainVerifier {
    fn file(&mut self, path: &Path, expected: ExpectedLog<'_>) -> Result<(), VerifyError> {
        let failed = |source| VerifyError::Io { path: path.to_owned(), source };
        let broken = |line, what| VerifyError::Broken { path: path.to_owned(), line, what };
        let mut reader = BufReader::new(File::open(path).map_err(failed)?);
        let mut bytes = Vec::new();
        self.has_lines = false;
        for number in 1.. {
            bytes.clear();
            let read = (&mut reader).take(LINE_MAX_BYTES).read_until(b'\n', &mut bytes).map_err(failed)?;
            if read == 0 {
                break;
            }
            match chain::read(bytes.strip_suffix(b"\n").unwrap_or(&bytes)) {
                Some(line) => {
                    self.line(&line).map_err(|(earlier, what)| broken(earlier.unwrap_or(number), what))?;
                    if expected.anchored(line.seq).is_some_and(|hash| hash != line.hash) {
                        let what = format!(
                            "is not the line that was written with the number {}: the log was replaced",
                            line.seq
                        );
                        return Err(broken(number, what));
                    }
                    self.has_expected |= expected.has.is_some_and(|hash| hash == line.hash);
                }
                None => {
                    if self.torn.is_empty() {
                        self.torn_line = number;
                    }
                    self.torn.extend_from_slice(&bytes);
                    if self.torn.len() as u64 > LINE_MAX_BYTES {
                        return Err(broken(self.torn_line, "is not what was written".to_owned()));
                    }
                }
            }
        }
        if self.torn.contains(&b'\n') {
            return Err(broken(self.torn_line, "is not what was written".to_owned()));
        }
        self.report.unfinished_bytes = self.torn.len() as u64;
        Ok(())
    }

    /// Checks that a valid line follows from the previous one. If the error is about an earlier line, it has the number
    /// of that line.
    fn line(&mut self, line: &ChainLine) -> Result<(), (Option<u64>, String)> {
        let is_behind_torn = !self.torn.is_empty();
        if is_behind_torn {
            self.accept_torn(line).map_err(|what| (Some(self.torn_line), what))?;
        }
        match &self.end {
            Some((_, hash)) if *hash == line.prev => {}
            Some((seq, _)) if *seq > 0 && line.seq > seq + 1 => {
                let missing = line.seq - seq - 1;
                return Err((
                    None,
                    format!("does not follow: {missing} before it are missing (from number {})", seq + 1),
                ));
            }
            Some((seq, _)) if *seq > 0 && line.seq <= *seq => {
                return Err((None, format!("is out of order: number {} comes after number {seq}", line.seq)));
            }
            Some(_) => {
                return Err((None, "does not follow from the line before: one of the two was changed".to_owned()));
            }
            None => {
                let is_begin = line.seq == 1 && line.prev == chain::NOTHING;
                let is_torn = is_behind_torn && line.event == super::TORN;
                if !is_begin && !is_torn && line.event != super::CONTINUE {
                    return Err((None, without_head(line.seq)));
                }
                self.must_continue = is_torn && !is_begin;
            }
        }
        if self.must_continue && self.report.lines == 1 && line.event != super::CONTINUE {
            return Err((None, without_head(line.seq)));
        }
        if self.report.lines == 0 {
            self.report.after.clone_from(&line.prev);
            self.report.first_seq = line.seq;
        }
        self.report.last_seq = line.seq;
        self.has_lines = true;
        if let Some(anchor) = &line.anchor {
            self.report.anchor = Some(PathBuf::from(anchor));
        }
        self.report.lines += 1;
        self.report.lost += line.count.filter(|_| line.event == super::LOST).unwrap_or(0);
        self.report.last.clone_from(&line.hash);
        self.end = Some((line.seq, line.hash.clone()));
        Ok(())
    }

    /// Accepts bytes that are not a valid line if a crash left them and the next line declares them. It declares their
    /// length and hash, so that other bytes cannot be put in their place.
    fn accept_torn(&mut self, line: &ChainLine) -> Result<(), String> {
        let torn = std::mem::take(&mut self.torn);
        let piece = torn.strip_suffix(b"\n").unwrap_or(&torn);
        let is_named = line.event == super::TORN
            && line.bytes == Some(piece.len() as u64)
            && line.sha256.as_deref() == Some(&chain::digest(piece));
        if !is_named || piece.contains(&b'\n') {
            return Err("is not what was written".to_owned());
        }
        self.report.torn += 1;
        Ok(())
    }
}
