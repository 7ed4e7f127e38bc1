//! The file requests of a model client: it writes and reads a register file and uses every other file method too, in its own directory.
//!
//! The promise: a read returns a complete write that is not older than the last write answered before the read was sent, and not newer than
//! the last write sent.

use std::path::PathBuf;

use crate::{client::PendingCall, prelude::*};

/// How often the number is repeated in the register, so that a partial file is noticed.
const TIMES: usize = 700;

/// A client's knowledge of its register.
#[derive(Debug, Default)]
pub struct ClientFiles {
    dir: PathBuf,
    /// The last number sent.
    sent: u64,
    /// The highest number whose write was answered.
    settled: u64,
    /// How many drafts it has created.
    drafts: u64,
}

/// A file request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileCall {
    /// Writes this number.
    Write(u64),
    /// Reads the register. Holds the value of `settled` when the read was sent.
    Read(u64),
    /// Searches the register. Holds the value of `settled` when the search was sent.
    Search(u64),
    /// Gets the next part of a search or watch. The server allows one such request at a time.
    Next,
    /// Only the fact of an answer matters.
    Other,
}

impl ClientFiles {
    /// Uses this directory, which the client creates itself.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, ..Self::default() }
    }
}

fn bytes(number: u64) -> String {
    base64::encode(format!("{number:08}\n").repeat(TIMES).as_bytes())
}

/// The number in a register, if all lines are equal.
fn number(chunk: &str) -> Option<u64> {
    let text = String::from_utf8(base64::decode(chunk).ok()?).ok()?;
    let first = text.lines().next()?;
    let is_whole = text.lines().count() == TIMES && text.lines().all(|line| line == first);
    is_whole.then(|| first.parse().ok()).flatten()
}

impl ModelClient {
    /// Sends a random file request.
    pub fn use_files(&mut self, rng: &mut Rng) {
        let Some(attached) = self.attached else { return };
        let at = |name: &str| json!(self.files.dir.join(name));
        let (register, copy, link) = (at("register"), at("copy"), at("link"));
        let options = json!({"maxDepth": 2, "maxDirectories": 9, "maxEntries": 9, "followDirectorySymlinks": true});
        let (method, params) = match rng.within(0..26) {
            0..4 => return self.write_register(attached, register),
            4..7 => return self.read_register(attached, register),
            7 => return self.draft_register(attached, register),
            8 => ("fs/getMetadata", json!({"path": register})),
            9 => ("fs/setMetadata", json!({"path": copy, "mode": 0o600})),
            10 => ("fs/canonicalize", json!({"path": link})),
            11 => ("fs/readDirectory", json!({"path": self.files.dir, "details": true})),
            12 => ("fs/walk", json!({"path": self.files.dir, "options": options})),
            13 => ("fs/remove", json!({"path": copy})),
            14 => ("fs/copy", json!({"sourcePath": register, "destinationPath": copy, "recursive": false})),
            15 => ("fs/createSymlink", json!({"path": link, "target": "register", "replace": true})),
            16 => ("fs/open", json!({"handleId": "h", "path": register})),
            17 => ("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": 100})),
            18 => ("fs/close", json!({"handleId": "h"})),
            19 => return self.search_register(attached, register),
            20 => ("fs/search", json!({"path": self.files.dir, "pattern": "0", "handleId": "s", "pages": true})),
            21 => ("fs/searchNext", json!({"handleId": "s"})),
            22 => ("fs/glob", json!({"path": self.files.dir, "pattern": "**"})),
            23 => ("fs/watch", json!({"path": self.files.dir, "handleId": "w"})),
            // Which events the kernel has reported by now depends on real time, so only the fact of an answer matters. With zero waits it
            // comes at once.
            24 => ("fs/watchNext", json!({"handleId": "w", "waitMs": 0, "settleMs": 0})),
            _ => ("fs/createDirectory", json!({"path": self.files.dir.join("sub")})),
        };
        let file = if method.ends_with("Next") { FileCall::Next } else { FileCall::Other };
        self.trace(format_args!("{method}"));
        self.call(attached, PendingCall::File(file), method, params);
    }

    fn write_register(&mut self, attached: u32, path: Value) {
        let dir = json!({"path": self.files.dir});
        self.call(attached, PendingCall::File(FileCall::Other), "fs/createDirectory", dir);
        self.files.sent += 1;
        let number = self.files.sent;
        self.trace(format_args!("writes {number} into its register"));
        let params = json!({"path": path, "dataBase64": bytes(number)});
        self.call(attached, PendingCall::File(FileCall::Write(number)), "fs/writeFile", params);
    }

    fn read_register(&mut self, attached: u32, path: Value) {
        let settled = self.files.settled;
        self.trace(format_args!("reads its register"));
        self.call(attached, PendingCall::File(FileCall::Read(settled)), "fs/readFile", json!({"path": path}));
    }

    /// Searches for the first line of the register. A search must see the same content as a read.
    fn search_register(&mut self, attached: u32, path: Value) {
        let settled = self.files.settled;
        self.trace(format_args!("searches its register"));
        let params = json!({"path": path, "pattern": "^[0-9]{8}$", "maxMatches": 1});
        self.call(attached, PendingCall::File(FileCall::Search(settled)), "fs/search", params);
    }

    /// Writes the register in three steps. If one of them is lost, nothing changes.
    fn draft_register(&mut self, attached: u32, path: Value) {
        self.files.sent += 1;
        self.files.drafts += 1;
        let (number, id) = (self.files.sent, format!("d{}", self.files.drafts));
        self.trace(format_args!("drafts {number} for its register"));
        self.call(attached, PendingCall::File(FileCall::Other), "fs/create", json!({"handleId": id, "path": path}));
        let block = json!({"handleId": id, "offset": 0, "chunk": bytes(number)});
        self.call(attached, PendingCall::File(FileCall::Other), "fs/writeBlock", block);
        self.call(attached, PendingCall::File(FileCall::Write(number)), "fs/commit", json!({"handleId": id}));
    }

    pub(crate) fn handle_file(&mut self, file: &FileCall, result: &Value) {
        match file {
            FileCall::Write(number) => {
                self.trace(format_args!("{number} is in its register"));
                self.files.settled = self.files.settled.max(*number);
            }
            FileCall::Read(settled) => {
                let read = result["dataBase64"].as_str().and_then(number);
                self.check_register(*settled, read);
            }
            FileCall::Search(settled) => {
                let found = result["matches"][0]["text"].as_str().and_then(|text| text.parse().ok());
                self.check_register(*settled, found);
            }
            FileCall::Next | FileCall::Other => self.trace(format_args!("file work done")),
        }
    }

    fn check_register(&mut self, settled: u64, read: Option<u64>) {
        self.trace(format_args!("its register says {read:?}"));
        let sent = self.files.sent;
        if !read.is_some_and(|read| (settled..=sent).contains(&read)) {
            violation!(self, Files, "read {read:?}, settled {settled}, sent {sent}");
        }
    }

    /// Whether a file request may fail with this kind. A register that was written must exist.
    pub(crate) fn may_fail(&self, file: &FileCall, kind: &str) -> bool {
        match file {
            FileCall::Read(settled) | FileCall::Search(settled) => *settled == 0 && kind == "notFound",
            // A stalled link may deliver two of these requests at once.
            FileCall::Next if kind == "overloaded" => true,
            FileCall::Write(_) | FileCall::Next | FileCall::Other => {
                ["notFound", "unknownHandle", "duplicateHandle", "tooManyHandles", "alreadyExists"].contains(&kind)
            }
        }
    }
}
