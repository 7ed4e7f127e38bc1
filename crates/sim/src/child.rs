//! Scripted children. The script of a child is in its argv, and every byte that it writes encodes its position.
//!
//! Keeps records of what the children really wrote, read and died of. Clients are checked against these records. Shares no code with the
//! log or the server: the oracle counts independently.

use std::{fmt, io::ErrorKind};

use exec_server_holder::ChildSpawner;
use exec_server_process::{Child, ScriptDriver, Spawn, SpawnError};
use rustix::process::Signal;

use crate::prelude::*;

/// One step of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptStep {
    /// Writes `bytes` to a stream, `chunk` bytes at a time, with a pause after each.
    Write {
        /// 0 = stdout or the terminal, 1 = stderr.
        stream: usize,
        /// Total number of bytes.
        bytes: u64,
        /// Bytes per write.
        chunk: u64,
        pause_ms: u64,
    },
    /// Waits this many milliseconds.
    Wait(u64),
    /// From here on SIGTERM is recorded but ignored.
    IgnoreTerm,
    /// From here on stdin is read into the record, `chunk` bytes at a time. Reading begins after a delay, during which stdin fills up.
    Stdin {
        /// The delay before the first read.
        delay_ms: u64,
        /// Bytes per read.
        chunk: u64,
    },
    /// Waits for EOF on stdin.
    Eof,
    /// The main process exits. Its streams stay open.
    Exit(i32),
    /// Closes a stream: 0 = stdout, 1 = stderr.
    Close(usize),
}

/// The argv of a child with this name and script.
pub fn argv(name: &str, steps: &[ScriptStep]) -> Vec<String> {
    ["sim-child", name].into_iter().map(str::to_owned).chain(steps.iter().map(ScriptStep::to_string)).collect()
}

impl fmt::Display for ScriptStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { stream, bytes, chunk, pause_ms } => write!(f, "write:{stream}:{bytes}:{chunk}:{pause_ms}"),
            Self::Wait(ms) => write!(f, "wait:{ms}"),
            Self::IgnoreTerm => write!(f, "ignore-term"),
            Self::Stdin { delay_ms, chunk } => write!(f, "stdin:{delay_ms}:{chunk}"),
            Self::Eof => write!(f, "eof"),
            Self::Exit(code) => write!(f, "exit:{code}"),
            Self::Close(stream) => write!(f, "close:{stream}"),
        }
    }
}

impl ScriptStep {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(':');
        let kind = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(match kind {
            "write" => Self::Write {
                stream: usize::try_from(number()?).ok()?,
                bytes: number()?,
                chunk: number()?,
                pause_ms: number()?,
            },
            "wait" => Self::Wait(number()?),
            "ignore-term" => Self::IgnoreTerm,
            "stdin" => Self::Stdin { delay_ms: number()?, chunk: number()? },
            "eof" => Self::Eof,
            "exit" => Self::Exit(i32::try_from(number()?).ok()?),
            "close" => Self::Close(usize::try_from(number()?).ok()?),
            _ => return None,
        })
    }
}

/// The real behaviour of a child.
#[derive(Clone, Debug, Default)]
pub struct ChildRecord {
    /// How often it was spawned. More than one means that a start was executed twice.
    pub spawns: u32,
    /// Bytes written to each output stream.
    pub written: [u64; 2],
    /// Everything that it read from stdin.
    pub stdin: Vec<u8>,
    /// It saw EOF on stdin before it exited.
    pub saw_eof: bool,
    /// The exit code.
    pub exit: Option<i32>,
    /// Signals that it received.
    pub signals: Vec<i32>,
    /// It died with its holder. Its last output may be lost.
    pub lost: bool,
    /// How many readers of other sessions held its output. Output that all of them have received may be freed while the owner is away.
    pub followers: u32,
    ignores_term: bool,
}

/// The records of all children of a world, by name.
#[derive(Clone, Debug, Default)]
pub struct ChildRecords(Arc<Mutex<BTreeMap<String, ChildRecord>>>);

impl ChildRecords {
    /// A copy of a child's record. Empty for a child that never started.
    pub fn get(&self, name: &str) -> ChildRecord {
        self.0.lock().get(name).cloned().unwrap_or_default()
    }

    /// Whether a child was started and has not exited.
    pub fn lives(&self, name: &str) -> bool {
        self.with(name, |record| record.spawns > 0 && record.exit.is_none())
    }

    /// Accesses a record without a copy.
    pub fn with<T>(&self, name: &str, access: impl FnOnce(&mut ChildRecord) -> T) -> T {
        access(self.0.lock().entry(name.to_owned()).or_default())
    }
}

/// The block size of the text. A block is a counter and a pattern that does not repeat within the block and depends on name and stream.
const BLOCK: usize = 256;

/// `len` bytes at `offset` of the endless text of a name and stream. The pattern within a block and the counter between blocks reveal
/// moved, lost and repeated bytes.
pub fn text(name: &str, stream: usize, offset: u64, len: usize) -> Vec<u8> {
    let key = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64 ^ stream as u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    });
    let mut block = Vec::with_capacity(BLOCK);
    while block.len() < BLOCK {
        let word = (block.len() as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ key;
        block.extend_from_slice(&word.to_le_bytes());
    }
    let skip = usize::try_from(offset % BLOCK as u64).expect("below a block");
    let mut out = Vec::with_capacity(len + 2 * BLOCK);
    let mut number = offset / BLOCK as u64;
    while out.len() < len + skip {
        block[..8].copy_from_slice(&(number ^ key).to_le_bytes());
        out.extend_from_slice(&block);
        number += 1;
    }
    out.truncate(len + skip);
    out.drain(..skip);
    out
}

/// The stream number of the text for a child's stdin.
pub const STDIN_TEXT: usize = 7;

/// Creates scripted children for a holder.
pub struct ScriptSpawner {
    context: WorldContext,
    children: Children,
}

/// The children of a holder.
#[derive(Clone, Default)]
pub struct Children(Rc<RefCell<Vec<(String, ScriptDriver)>>>);

impl Children {
    /// Called when the holder has died: all live children died with it, and what was not reported about them is lost.
    pub fn mark_lost(&self, records: &ChildRecords) {
        for (name, driver) in self.0.borrow().iter() {
            records.with(name, |record| {
                record.lost = true;
                record.exit.get_or_insert(128 + Signal::KILL.as_raw());
            });
            driver.die(9);
            driver.close_all();
        }
    }
}

impl ScriptSpawner {
    /// A spawner for the children of this world.
    pub fn new(context: WorldContext) -> Self {
        Self { context, children: Children::default() }
    }

    /// All children that this spawner has created and will create.
    pub fn children(&self) -> Children {
        self.children.clone()
    }
}

impl ChildSpawner for ScriptSpawner {
    fn spawn(&mut self, spawn: Spawn) -> Result<Child, SpawnError> {
        let words: Vec<String> = spawn.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let Some((name, steps)) = words.get(1).zip(words.get(2..)) else {
            return Err(SpawnError::EmptyArgv);
        };
        let (child, driver) = Child::scripted(spawn.stdio)
            .map_err(|source| SpawnError::Resources { what: "scripted streams", source })?;
        let steps: Vec<ScriptStep> =
            steps.iter().map(|text| ScriptStep::parse(text).expect("the world writes what it can read")).collect();
        let runner = ScriptRunner { name: name.clone(), context: self.context.clone(), driver };
        self.context.records.with(name, |record| record.spawns += 1);
        self.children.0.borrow_mut().push((name.clone(), runner.driver.clone()));
        runner.handle_signals();
        self.context.spawn(async move { runner.run_script(steps).await });
        Ok(child)
    }
}

#[derive(Clone)]
struct ScriptRunner {
    name: String,
    context: WorldContext,
    driver: ScriptDriver,
}

impl ScriptRunner {
    /// Fatal signals end the child and its streams, as in a process without handlers. SIGTERM does so only if it is not ignored.
    fn handle_signals(&self) {
        let (records, name) = (self.context.records.clone(), self.name.clone());
        self.driver.on_signal(move |driver, signal| {
            let fatal = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
            let is_fatal = records.with(&name, |record| {
                record.signals.push(signal);
                let ignored = record.ignores_term && signal == Signal::TERM.as_raw();
                let is_fatal = fatal.iter().any(|fatal| fatal.as_raw() == signal) && !ignored;
                if is_fatal {
                    record.exit.get_or_insert(128 + signal);
                }
                is_fatal
            });
            if let (true, Ok(signal)) = (is_fatal, u8::try_from(signal)) {
                driver.die(signal);
                driver.close_all();
            }
        });
    }

    async fn run_script(self, steps: Vec<ScriptStep>) {
        for step in steps {
            if self.is_killed() {
                break;
            }
            match step {
                ScriptStep::Write { stream, bytes, chunk, pause_ms } => {
                    self.write(stream, bytes, chunk, pause_ms).await
                }
                ScriptStep::Wait(ms) => self.context.pause(ms).await,
                ScriptStep::IgnoreTerm => self.with(|record| record.ignores_term = true),
                ScriptStep::Stdin { delay_ms, chunk } => {
                    let runner = self.clone();
                    self.context.spawn(async move { runner.read(delay_ms, chunk).await });
                }
                ScriptStep::Eof => {
                    while !self.is_killed() && !self.with(|record| record.saw_eof) {
                        self.context.pause(20).await;
                    }
                }
                ScriptStep::Exit(code) => self.exit(code),
                ScriptStep::Close(0) => self.driver.close_stdout(),
                ScriptStep::Close(_) => self.driver.close_stderr(),
            }
        }
        self.exit(0);
        self.driver.close_all();
    }

    fn exit(&self, code: i32) {
        if !self.driver.has_exited() {
            self.with(|record| record.exit.get_or_insert(code).to_owned());
            self.driver.exit(code);
        }
    }

    fn with<T>(&self, access: impl FnOnce(&mut ChildRecord) -> T) -> T {
        self.context.records.with(&self.name, access)
    }

    fn is_killed(&self) -> bool {
        let killed = Signal::KILL.as_raw();
        self.driver.has_exited() && self.driver.signals().contains(&killed)
            || self.with(|record| record.exit.is_some_and(|code| code > 128))
    }

    async fn write(&self, stream: usize, bytes: u64, chunk: u64, pause_ms: u64) {
        let mut left = bytes;
        while left > 0 {
            let at = self.with(|record| record.written[stream]);
            let part = text(&self.name, stream, at, usize::try_from(left.min(chunk)).expect("chunks are small"));
            match self.write_stream(stream, &part) {
                Ok(count) => {
                    left -= count;
                    self.with(|record| record.written[stream] += count);
                    self.context.pause(pause_ms).await;
                }
                Err(ErrorKind::WouldBlock) => self.context.pause(1).await,
                // The child was killed and its streams are closed.
                Err(_) => return,
            }
        }
    }

    fn write_stream(&self, stream: usize, part: &[u8]) -> Result<u64, ErrorKind> {
        let written = match stream {
            0 => match self.driver.write_stdout(part) {
                // A child on a terminal has no separate stdout.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => self.driver.write_pty(part),
                other => other,
            },
            _ => self.driver.write_stderr(part),
        };
        written.map(|count| count as u64).map_err(|error| error.kind())
    }

    async fn read(self, delay_ms: u64, chunk: u64) {
        self.context.pause(delay_ms).await;
        let mut buf = vec![0; usize::try_from(chunk).expect("chunks are small")];
        while !self.driver.has_exited() {
            match self.driver.read_stdin(&mut buf) {
                Ok(0) => return self.with(|record| record.saw_eof = true),
                Ok(count) => self.with(|record| record.stdin.extend(&buf[..count])),
                Err(_) => self.context.pause(2).await,
            }
            self.context.pause(0).await;
        }
    }
}
