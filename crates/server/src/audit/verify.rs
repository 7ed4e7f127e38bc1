//! Reads audit logs from end to end and says whether they are what was written. Shares with the writer only what a line is.
//!
//! The chain alone shows every change but three: a log cut at its end, and one replaced as a whole, from its beginning or from some line on. Its
//! anchor shows these.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
};

use super::{
    Anchor,
    chain::{self, Line},
};

/// Longer than any line that is written.
const LINE_MAX_BYTES: u64 = 1 << 20;

/// What logs that hold together say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Lines read, over all files.
    pub lines: u64,
    /// The hash before the first line; all zeros where the log begins with it.
    pub after: String,
    /// The hash of the last line; the next file goes on from it.
    pub last: String,
    /// Pieces of lines that a crash left behind, each followed by a line that says so.
    pub torn: u64,
    /// Bytes of an unfinished line at the very end.
    pub unfinished_bytes: u64,
    /// Records that were lost while the log could not be written, as the log itself says.
    pub lost: u64,
    /// The number of the first line; above 1 where older files were not given.
    pub first_seq: u64,
    /// The number of the last line.
    pub last_seq: u64,
    /// Where the log's anchor is, as the log itself says.
    pub anchor: Option<PathBuf>,
    /// With an anchor: later files of the log were not given.
    pub is_older_part: bool,
}

/// Why logs do not hold together.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A file cannot be read.
    #[error("read `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not what was written.
    #[error("`{}`: line {line} {what}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The anchor knows a later line.
    #[error(
        "`{}` {}, but number {written} was written: the last {} were removed",
        path.display(),
        if *last == 0 { "is empty".to_owned() } else { format!("ends with number {last}") },
        written - last
    )]
    TailRemoved {
        /// The last file.
        path: PathBuf,
        /// The number of its last line.
        last: u64,
        /// The last number that the anchor knows.
        written: u64,
    },
    /// The line with a known hash is not there.
    #[error("no line has the hash `{hash}`: lines at the end were removed, or these are other files")]
    Missing {
        /// What was looked for.
        hash: String,
    },
}

/// What must be so beside the chain itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected<'a> {
    /// The hash that the first line goes on from, such as the last one of an older file.
    pub after: Option<&'a str>,
    /// A hash that must be there, noted earlier and elsewhere.
    pub has: Option<&'a str>,
    /// What is known of the log apart from it. Read it before the log: a running server moves both on.
    pub anchor: Option<&'a Anchor>,
}

impl Expected<'_> {
    /// The hash that the anchor knows for a number.
    fn anchored(&self, seq: u64) -> Option<&str> {
        let anchor = self.anchor?;
        let marks = [&anchor.first, &anchor.last].into_iter().chain(&anchor.parts);
        marks.into_iter().find(|mark| mark.seq == seq).map(|mark| mark.hash.as_str())
    }
}

#[derive(Default)]
struct Chain {
    report: Report,
    end: Option<(u64, String)>,
    /// Bytes that are no line, since the last that is one.
    torn: Vec<u8>,
    torn_line: u64,
    has_seen: bool,
    /// The first line tells of a crash, and the second must say that this is the beginning of a file.
    must_continue: bool,
    /// The file that was read last has lines.
    has_lines: bool,
}

/// How the first line is named that is not the first of its log or file.
fn without_head(seq: u64) -> String {
    format!("has the number {seq}: the {} before it were removed", seq.saturating_sub(1))
}

/// Verifies files as one log, the oldest first.
pub fn verify(paths: &[impl AsRef<Path>], expected: Expected<'_>) -> Result<Report, VerifyError> {
    let mut chain = Chain { end: expected.after.map(|hash| (0, hash.to_owned())), ..Chain::default() };
    for path in paths {
        chain.file(path.as_ref(), expected)?;
    }
    if let Some(hash) = expected.has.filter(|_| !chain.has_seen) {
        return Err(VerifyError::Missing { hash: hash.to_owned() });
    }
    if let Some(anchor) = expected.anchor.filter(|anchor| chain.report.last_seq < anchor.last.seq) {
        let last = chain.report.last_seq;
        // Its hash was compared when the line was read.
        chain.report.is_older_part = chain.has_lines && anchor.parts.iter().any(|part| part.seq == last);
        if !chain.report.is_older_part {
            let path = paths.last().map(|path| path.as_ref().to_owned()).unwrap_or_default();
            return Err(VerifyError::TailRemoved { path, last, written: anchor.last.seq });
        }
    }
    Ok(chain.report)
}

impl Chain {
    fn file(&mut self, path: &Path, expected: Expected<'_>) -> Result<(), VerifyError> {
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
                    self.line(&line).map_err(|(back, what)| broken(back.unwrap_or(number), what))?;
                    if expected.anchored(line.seq).is_some_and(|hash| hash != line.hash) {
                        let what = format!(
                            "is not the line that was written with the number {}: the log was replaced",
                            line.seq
                        );
                        return Err(broken(number, what));
                    }
                    self.has_seen |= expected.has.is_some_and(|hash| hash == line.hash);
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

    /// A line that is whole; does it follow from the one before?
    fn line(&mut self, line: &Line) -> Result<(), (Option<u64>, String)> {
        let is_behind_torn = !self.torn.is_empty();
        if is_behind_torn {
            self.excused(line).map_err(|what| (Some(self.torn_line), what))?;
        }
        match &self.end {
            Some((_, hash)) if *hash == line.prev => {}
            Some((seq, _)) if *seq > 0 && line.seq > seq + 1 => {
                let missing = line.seq - seq - 1;
                return Err((None, format!("does not follow: {missing} before it are missing (number {})", seq + 1)));
            }
            Some((seq, _)) if *seq > 0 && line.seq <= *seq => {
                return Err((None, format!("is out of order: number {} comes after number {seq}", line.seq)));
            }
            Some(_) => {
                return Err((None, "does not follow from the one before: that one or this one was changed".to_owned()));
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

    /// Bytes that are no line are fine where a crash left them and the next line names them: by length and hash, so that nothing can be
    /// put in their place.
    fn excused(&mut self, line: &Line) -> Result<(), String> {
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
