//! Fault test F19: kills a holder at every failpoint of its logs, and checks the files that are left. They must be a
//! prefix of the log without a torn record or a hole, and contain every segment that was reported as spilled. Usage:
//! `crash --seeds N --from S`. Run by `cargo xtask faults --only F19`.
//!
//! Each run is a separate process: this program with the argument `live`. It runs a real holder with scripted children
//! and a real directory, and kills itself with SIGKILL at the given step. The step number increases until a run
//! finishes before it is reached.

#![expect(clippy::print_stdout, reason = "a program whose result is its output")]
#![expect(clippy::disallowed_methods, reason = "it starts itself and reads its arguments")]
#![expect(clippy::unwrap_used, reason = "a check fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Arguments,
    fs::File,
    io::{ErrorKind, Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::process::ExitStatusExt as _,
    },
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use exec_server_holder::{
    ChildRestrictions, ChildSpawner, Holder, HolderConfig, HolderLimits,
    control::{self, FromHolder, StartSpec, ToHolder},
    manifest, spawner,
};
use exec_server_log::{Cursor, LogEvent, ReadStep, RecoveredLog, SegmentChain, failpoint, load, recover, survey};
use exec_server_process::{Child, ScriptDriver, Spawn, SpawnError};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};

/// Output of each of the two processes in a run: a little more than three segments, of which all but the last go to
/// disk.
const BYTES: u64 = 3_300_000;

/// All failpoints. The sweep must hit each of them; otherwise it would prove less than it claims.
const STEPS: &[&str] = &[
    "append",
    "commit",
    "rotate",
    "sealed",
    "replace create",
    "replace write",
    "replace rename",
    "create",
    "write",
    "written",
    "unlink",
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["live", seed, step, dir] => live(seed.parse().unwrap(), step.parse().unwrap(), Path::new(dir)),
        ["--seeds", seeds, "--from", from] => sweep(seeds.parse().unwrap(), from.parse().unwrap()),
        _ => panic!("usage: crash --seeds N --from S"),
    }
}

/// Does all runs for a range of seeds. The last line of output says how many there were and where they ended.
fn sweep(seeds: u64, from: u64) {
    let (mut lives, mut bytes, mut died_at) = (0_u64, 0, BTreeMap::new());
    for seed in from..from + seeds {
        for step in 1_u64.. {
            let dir = tempfile::tempdir().unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["live", &seed.to_string(), &step.to_string()])
                .arg(dir.path())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = String::new();
            child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            let status = child.wait().unwrap();
            bytes += check(dir.path(), seed, &said);
            lives += 1;
            match (status.signal(), status.code()) {
                (Some(9), _) => *died_at.entry(last_step(&said)).or_insert(0_u64) += 1,
                (None, Some(0)) => break,
                _ => panic!("seed {seed}, step {step}: the life ended with {status}"),
            }
        }
    }
    for name in STEPS {
        assert!(died_at.contains_key(*name), "nobody died at `{name}`; those who did: {died_at:?}");
    }
    println!("lives {lives} bytes {bytes} died at {died_at:?}");
}

fn last_step(said: &str) -> String {
    said.lines().rev().find_map(|line| line.strip_prefix("dies at ")).unwrap_or("no step").to_owned()
}

/// Checks the files that a run left. Returns the number of bytes that could be read.
fn check(dir: &Path, seed: u64, said: &str) -> u64 {
    let fd: OwnedFd = File::open(dir).unwrap().into();
    let files = segment_files(dir);
    if !files.is_empty() {
        let text =
            std::fs::read_to_string(dir.join(manifest::MANIFEST_NAME)).expect("a segment, and no roll that names it");
        let entries = manifest::decode(&text).expect("a whole roll");
        for slot in files {
            assert!(entries.iter().any(|process| process.slot == slot), "slot {slot} is not on the roll");
        }
    }
    let mut bytes = 0;
    for slot in 0..2_u32 {
        let recovered = recover(fd.as_fd(), slot).unwrap();
        // A file with an incomplete header is unusable. There is one at most, because one file is written at a time.
        assert!(recovered.lost_files <= 1, "{recovered:?}");
        assert_eq!(survey(fd.as_fd(), slot).unwrap(), recovered, "headers and records tell the same after a kill");
        let known = |word: &str| -> BTreeSet<u64> {
            let word = format!("{word} {slot} ");
            said.lines().filter_map(|line| line.strip_prefix(&word)?.parse().ok()).collect()
        };
        let readable: BTreeSet<u64> = recovered.segments.iter().map(|info| info.id).collect();
        for id in known("spilled").difference(&known("released")) {
            assert!(readable.contains(id), "slot {slot}: segment {id} was said to be on disk: {recovered:?}");
        }
        bytes += read(&fd, seed, slot, &recovered);
    }
    bytes
}

/// Reads what was recovered and compares every byte. Returns the number of bytes.
fn read(fd: &OwnedFd, seed: u64, slot: u32, recovered: &RecoveredLog) -> u64 {
    let Some(first) = recovered.segments.first() else { return 0 };
    let mut chain = SegmentChain::new();
    recovered.segments.iter().for_each(|info| chain.push_disk(*info));
    let mut cursor = Cursor::after_with_offset(first.base_seq - 1, first.base_offset);
    loop {
        match chain.read(&mut cursor) {
            ReadStep::Record(record) => {
                if let LogEvent::Output { bytes, .. } = record.event {
                    let is_right = (record.offset..).zip(bytes).all(|(at, byte)| *byte == byte_at(seed, slot, at));
                    assert!(is_right, "slot {slot}, record {}", record.seq);
                }
            }
            ReadStep::NeedsLoad(id) => assert!(chain.set_loaded(id, load(fd.as_fd(), slot, id).unwrap())),
            ReadStep::End => break,
            other => panic!("a prefix has no {other:?}"),
        }
    }
    assert_eq!((cursor.next_seq(), cursor.offset()), (recovered.next_seq, Some(recovered.end_offset)));
    recovered.end_offset - first.base_offset
}

/// The slots that have segment files.
fn segment_files(dir: &Path) -> BTreeSet<u32> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(".seg")?.split_once('-')?.0.parse().ok()).collect()
}

/// The byte that a process writes at an offset. Depends on the seed, the process and the offset.
fn byte_at(seed: u64, slot: u32, at: u64) -> u8 {
    let mixed = (at ^ seed << 32 ^ u64::from(slot) << 60).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

static TAKEN: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);

fn die_when_due(name: &'static str) {
    if TAKEN.fetch_add(1, Ordering::SeqCst) + 1 == LAST.load(Ordering::SeqCst) {
        print_line(format_args!("dies at {name}"));
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
}

/// Prints a line with one write call, so that lines printed before the kill are complete.
fn print_line(line: Arguments<'_>) {
    std::io::stdout().lock().write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[derive(Clone, Default)]
struct ScriptSpawner(Arc<Mutex<Vec<ScriptDriver>>>);

impl ChildSpawner for ScriptSpawner {
    fn spawn(&mut self, spawn: Spawn) -> Result<Child, SpawnError> {
        let (child, driver) =
            Child::scripted(spawn.stdio).map_err(|source| SpawnError::Resources { what: "script", source })?;
        self.0.lock().unwrap().push(driver);
        Ok(child)
    }
}

/// One run: a holder and the state of its controller.
struct CrashRun {
    holder: Holder<ScriptSpawner>,
    socket: OwnedFd,
    /// Segments on disk by slot, oldest first.
    on_disk: [Vec<u64>; 2],
    now: u64,
}

impl CrashRun {
    fn send(&self, message: &ToHolder<'_>) {
        control::send(&self.socket, message, &[]).unwrap();
    }

    /// Releases the oldest segment on disk.
    fn release(&mut self, slot: u32) {
        let segment = self.on_disk[slot as usize].remove(0);
        print_line(format_args!("released {slot} {segment}"));
        self.send(&ToHolder::Release { slot, segment });
    }

    /// Runs one turn of the holder and receives its messages.
    fn turn(&mut self) {
        self.now += 1_000_000;
        self.holder.turn(self.now);
        loop {
            match control::recv(&self.socket) {
                Ok(Some((FromHolder::Spilled { slot, segment }, _))) => {
                    print_line(format_args!("spilled {slot} {segment}"));
                    self.on_disk[slot as usize].push(segment);
                    self.send(&ToHolder::Return { segment });
                }
                Ok(Some(_)) => {}
                Ok(None) => panic!("the holder hung up"),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let wait = Timespec { tv_sec: 0, tv_nsec: 200_000 };
        rustix::event::poll(&mut [PollFd::new(&self.holder.as_fd(), PollFlags::IN)], Some(&wait)).unwrap();
    }
}

fn live(seed: u64, step: u64, dir: &Path) {
    LAST.store(step, Ordering::SeqCst);
    failpoint::install(die_when_due);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let secret = [7; 32];
    std::fs::write(dir.join(spawner::SECRET_NAME), secret).unwrap();
    let config = HolderConfig {
        dir: File::open(dir).unwrap().into(),
        secret,
        info: Vec::new(),
        limits: HolderLimits { ttl_ms: control::TTL_NONE, free_floor_bytes: 0, ..HolderLimits::default() },
        nofile: None,
        exclusive: false,
        confine: ChildRestrictions::default(),
    };
    let scripts = ScriptSpawner::default();
    let holder = Holder::new(config, theirs, scripts.clone(), 0).unwrap();
    let mut life = CrashRun { holder, socket, on_disk: [Vec::new(), Vec::new()], now: 0 };
    life.send(&ToHolder::Hello { version: control::VERSION, secret, epoch: 1 });
    // Detach, so that the output spills to disk.
    life.send(&ToHolder::Detach { ttl_ms: control::TTL_NONE });
    for req in 1..=2 {
        let argv = vec![b"script".to_vec()];
        life.send(&ToHolder::Start {
            req,
            spec: StartSpec { argv, cwd: b"/".to_vec(), cap_bytes: 1, ..StartSpec::default() },
        });
    }
    while scripts.0.lock().unwrap().len() < 2 {
        life.turn();
    }
    write_and_release(&mut life, &scripts, seed);
}

/// Both processes write chunks of random length, alternating at random. From time to time a segment on disk is
/// released, so that files are removed too.
fn write_and_release(life: &mut CrashRun, scripts: &ScriptSpawner, seed: u64) {
    let mut random = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let (mut written, mut turns) = ([0_u64; 2], 0);
    while written.iter().any(|written| *written < BYTES) {
        let slot = u32::from(next(2) == 1);
        let at = slot as usize;
        let len = (1 + next(120_000)).min(BYTES - written[at]);
        let chunk: Vec<u8> = (written[at]..written[at] + len).map(|offset| byte_at(seed, slot, offset)).collect();
        match scripts.0.lock().unwrap()[at].write_stdout(&chunk) {
            Ok(count) => written[at] += count as u64,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        life.turn();
        if next(12) == 0 && life.on_disk[at].len() > 1 {
            life.release(slot);
        }
        turns += 1;
        assert!(turns < 100_000, "nothing moves: {written:?}, {:?}", life.on_disk);
    }
    // Regardless of the disk's speed, at least one file of each process is written and removed.
    for slot in 0..2_u32 {
        while life.on_disk[slot as usize].is_empty() {
            life.turn();
            turns += 1;
            assert!(turns < 100_000, "nothing of slot {slot} goes to disk");
        }
        life.release(slot);
    }
    for driver in scripts.0.lock().unwrap().iter() {
        driver.close_all();
        driver.exit(0);
    }
    for _ in 0..20 {
        life.turn();
    }
}
