//! The spawner and real holder processes. This test program has no test harness, because fork needs a single thread.
//! All tests share one spawner, so they are in one long file.

#![allow(clippy::disallowed_methods, reason = "the test waits with a deadline of its own")]
#![allow(clippy::print_stdout, reason = "a test without a harness reports by itself")]

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use exec_server_holder::{
    HolderConfig, HolderLimits, TerminalSize,
    control::{self, CommandStatus, FromHolder, StartSpec, ToHolder},
    spawner::{self, ExecError, SpawnerHandle, exec_spawner, fork_spawner},
};
use exec_server_log::{BlockReason, ControlBlock};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{Mode, OFlags},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

const SECRET: [u8; 32] = [3; 32];

/// A typical size of a session's record.
const INFO_BYTES: usize = 500;

/// Holders of a failed test expire after this time.
const TTL_MS: u64 = 10_000;

type Test = fn(&SpawnerHandle);

fn main() {
    // Both steps must come before anything else, as in the real program.
    if std::env::args_os().nth(1).is_some_and(|first| first == spawner::ARGUMENT) {
        return spawner::serve_stdin().expect("standard input is the socket");
    }
    let spawner = fork_spawner().expect("fork");
    let tests: [(&str, Test); 11] = [
        ("holder_is_a_separate_process", holder_is_a_separate_process),
        ("children_see_three_descriptors_and_the_original_limit", children_see_three_descriptors),
        ("end_leaves_no_descendant_and_no_directory", end_leaves_no_descendant),
        ("idle_processes_cost_little_memory", idle_processes_cost_little_memory),
        ("expired_session_ends_its_holder", expired_session_ends_its_holder),
        ("killed_holder_takes_its_leaders_with_it", killed_holder_takes_its_leaders),
        ("terminate_reaches_daemons_that_hold_the_streams", terminate_reaches_daemons),
        ("one_terminate_is_enough_for_leader_and_daemon", one_terminate_is_enough_for_leader_and_daemon),
        ("idle_holder_uses_no_processor_time", idle_holder_uses_no_processor_time),
        ("holder_without_descriptors_receives_later", holder_without_descriptors_receives_later),
        ("flood_leaves_descriptors_for_the_next_server_and_the_disk", flood_leaves_descriptors),
    ];
    for (name, test) in tests {
        test(&spawner);
        println!("test {name} ... ok");
    }
    holder_outlives_spawner(spawner);
    println!("test holder_outlives_spawner_and_controller_and_is_adopted ... ok");
    let last: [(&str, fn()); 3] = [
        ("spawner_is_started_by_path_from_a_threaded_program", spawner_is_started_by_path_from_a_threaded_program),
        ("other_programs_are_no_spawners", other_programs_are_no_spawners),
        ("starts_are_refused_without_descriptors", starts_are_refused_without_descriptors),
    ];
    for (name, test) in last {
        test();
        println!("test {name} ... ok");
    }
}

/// A connection to a holder.
struct TestLink {
    socket: OwnedFd,
    next_req: u32,
    control: Option<ControlBlock>,
}

impl TestLink {
    /// A connection to the holder of a new session in a new directory.
    fn in_new_dir(handle: &SpawnerHandle) -> (tempfile::TempDir, Self) {
        let dir = tempfile::tempdir().expect("a directory");
        let link = Self::create(handle, dir.path());
        (dir, link)
    }

    fn create(handle: &SpawnerHandle, dir: &Path) -> Self {
        std::fs::write(dir.join(spawner::SECRET_NAME), SECRET).expect("the secret, as a server writes it");
        let limit = getrlimit(Resource::Nofile);
        let at_most = |most: u64, limit: Option<u64>| limit.map_or(most, |limit| limit.min(most));
        let config = HolderConfig {
            dir: open(dir),
            secret: SECRET,
            info: vec![5; INFO_BYTES],
            limits: HolderLimits { ttl_ms: TTL_MS, free_floor_bytes: 0, ..HolderLimits::default() },
            nofile: Some((at_most(99, limit.current), at_most(199, limit.maximum))),
            confine: exec_server_holder::ChildRestrictions::default(),
            exclusive: true,
        };
        let mut link = Self::new(handle.create(&config).expect("create"));
        link.hello(1);
        link
    }

    fn new(socket: OwnedFd) -> Self {
        Self { socket, next_req: 0, control: None }
    }

    fn hello(&mut self, epoch: u64) {
        self.send(&ToHolder::Hello { version: control::VERSION, secret: SECRET, epoch });
        match self.recv() {
            Some((FromHolder::Welcome { info, .. }, mut fds)) => {
                assert_eq!((info.len(), fds.len()), (INFO_BYTES, 2));
                self.control = Some(ControlBlock::open(fds.remove(0)).expect("its layout"));
            }
            other => panic!("no welcome: {other:?}"),
        }
        self.until(|message| matches!(message, FromHolder::Ready).then_some(()));
        self.send(&ToHolder::Attach);
    }

    fn send(&self, message: &ToHolder<'_>) {
        control::send(&self.socket, message, &[]).expect("the holder reads");
    }

    /// Receives the next message. Returns `None` at EOF.
    fn recv(&mut self) -> Option<(FromHolder, Vec<OwnedFd>)> {
        let start = Instant::now();
        loop {
            match control::recv(&self.socket) {
                Ok(message) => return message,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
            assert!(start.elapsed() < Duration::from_secs(20), "waited too long");
            let wait = Timespec { tv_sec: 1, tv_nsec: 0 };
            rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&wait)).expect("poll");
        }
    }

    fn until<T>(&mut self, mut pick: impl FnMut(FromHolder) -> Option<T>) -> T {
        loop {
            let (message, _) = self.recv().expect("the holder lives");
            if let Some(found) = pick(message) {
                return found;
            }
        }
    }

    /// Starts a shell and returns its pid.
    fn start(&mut self, script: &str) -> Result<u32, i32> {
        self.start_on(script, false)
    }

    fn start_on(&mut self, script: &str, is_tty: bool) -> Result<u32, i32> {
        self.send_start(StartSpec { tty: is_tty.then(TerminalSize::default), ..shell(script) });
        self.started()
    }

    fn send_start(&mut self, spec: StartSpec) {
        self.next_req += 1;
        self.send(&ToHolder::Start { req: self.next_req, spec });
    }

    fn started(&mut self) -> Result<u32, i32> {
        self.until(|message| match message {
            FromHolder::Started { pid, .. } => Some(Ok(pid)),
            FromHolder::StartFailed { errno, .. } => Some(Err(errno)),
            _ => None,
        })
    }

    /// Sends a command with this request number and returns the status of the answer.
    fn request(&mut self, asked: u32, command: &ToHolder<'_>) -> CommandStatus {
        self.send(command);
        self.until(|message| match message {
            FromHolder::Done { req, status } if req == asked => Some(status),
            _ => None,
        })
    }

    /// Ends the session and waits for EOF.
    fn end(&mut self) {
        assert_eq!(self.request(77, &ToHolder::End { req: 77 }), CommandStatus::Ok);
        while self.recv().is_some() {}
    }
}

fn shell(script: &str) -> StartSpec {
    StartSpec {
        argv: ["sh", "-c", script].map(|arg| arg.as_bytes().to_vec()).to_vec(),
        env: vec![b"PATH=/usr/bin:/bin".to_vec()],
        cwd: b"/".to_vec(),
        cap_bytes: 1 << 20,
        ..StartSpec::default()
    }
}

fn open(dir: &Path) -> OwnedFd {
    rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("the directory")
}

#[track_caller]
fn wait_for(mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited too long");
        std::thread::yield_now();
    }
}

/// Waits until a file in the session's directory is complete, and returns its text.
fn text(dir: &Path, name: &str) -> String {
    let mut text = String::new();
    wait_for(|| {
        text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        text.ends_with("end\n")
    });
    text
}

fn field(pid: i32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find(|line| line.starts_with(name)).expect("the field");
    line.split_ascii_whitespace().nth(1).expect("a value").to_owned()
}

/// Pid of the holder, found as the parent of one of its children.
fn holder_of(child: u32) -> i32 {
    field(child.cast_signed(), "PPid:").parse().expect("a pid")
}

/// Changes the soft `RLIMIT_NOFILE` of a process.
fn limit_descriptors(pid: i32, current: Option<u64>) {
    let pid = rustix::process::Pid::from_raw(pid);
    let limit = Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
    rustix::process::prlimit(pid, Resource::Nofile, limit).expect("a process of our own user");
}

/// Number of context switches of a process, voluntary or not.
fn switches(pid: i32) -> u64 {
    let count = |name: &str| field(pid, name).parse::<u64>().expect("a number");
    count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:")
}

/// Waits until the file has the pid of a daemon for which `is_ready` holds, and returns the pid.
fn daemon_in(pids: &Path, is_ready: impl Fn(i32) -> bool) -> i32 {
    let mut daemon = None;
    wait_for(|| {
        daemon = std::fs::read_to_string(pids).ok().and_then(|text| text.trim().parse::<i32>().ok());
        daemon.is_some_and(&is_ready)
    });
    daemon.expect("waited for")
}

fn is_gone(pid: i32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

fn holder_is_a_separate_process(spawner: &SpawnerHandle) {
    let (dir, mut link) = TestLink::in_new_dir(spawner);
    let holder = holder_of(link.start("sleep 1000").expect("started"));
    assert_eq!(field(holder, "Name:"), "exec-holder");
    assert_eq!(field(spawner.pid(), "Name:"), "exec-spawner");
    let title = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("readable");
    assert!(title(spawner.pid()).starts_with("exec-server spawner:"), "{}", title(spawner.pid()));
    let session = dir.path().file_name().and_then(|name| name.to_str()).expect("a name");
    let shown = session.get(..8).unwrap_or_default();
    assert!(title(holder).starts_with(&format!("exec-server holder {shown}:")), "{}", title(holder));
    assert!(!title(holder).contains(session), "an id opens its session");
    let variables = std::fs::read(format!("/proc/{holder}/environ")).expect("readable for the same user");
    assert!(!variables.windows(5).any(|part| part == b"PATH="), "no variable is shown");
    assert_eq!(field(holder, "Threads:"), "1");
    let stat = std::fs::read_to_string(format!("/proc/{holder}/stat")).expect("the process lives");
    let session = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(3)).expect("a session");
    assert_eq!(session, holder.to_string());
    for fd in 0..3 {
        let target = std::fs::read_link(format!("/proc/{holder}/fd/{fd}")).expect("readable for the same user");
        assert_eq!(target, Path::new("/dev/null"));
    }
    let socket = std::fs::metadata(dir.path().join(spawner::SOCKET_NAME)).expect("the socket");
    let mode = std::os::unix::fs::PermissionsExt::mode(&socket.permissions());
    assert_eq!(mode & 0o777, 0o600);
    link.end();
    wait_for(|| is_gone(holder));
}

fn children_see_three_descriptors(spawner: &SpawnerHandle) {
    let (dir, mut link) = TestLink::in_new_dir(spawner);
    let path = dir.path().join("seen");
    let script = format!(
        "{{ ulimit -Sn; ulimit -Hn; grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/$$/fd; \
         echo end; }} >{0}.new; mv {0}.new {0}",
        path.display()
    );
    link.start(&script).expect("started");
    let seen = text(dir.path(), "seen");
    let mut lines = seen.lines();
    assert_eq!((lines.next(), lines.next()), (Some("99"), Some("199")));
    for _ in 0..2 {
        let line = lines.next().expect("a line of signals");
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    // The shell keeps one fd above 2 for the saved stdout while its output goes to the file.
    let fds: Vec<&str> = lines.filter(|line| line.parse().is_ok_and(|fd: u32| fd < 10)).collect();
    assert_eq!(fds, ["0", "1", "2"]);
    link.end();
}

fn end_leaves_no_descendant(spawner: &SpawnerHandle) {
    let parent = tempfile::tempdir().expect("a directory");
    let dir = parent.path().join("session");
    std::fs::create_dir(&dir).expect("a directory");
    let mut link = TestLink::create(spawner, &dir);
    // A daemon that has left its group, session and streams, and ignores the signals that can be ignored.
    let pids = parent.path().join("pids");
    let script = format!(
        "trap '' TERM HUP INT; for n in 1 2 3; do setsid sh -c 'trap \"\" TERM HUP; (sleep 1000 & echo $! >>{0}) & echo $$ \
         >>{0}; exec sleep 1000' </dev/null >/dev/null 2>&1 & done; wait",
        pids.display()
    );
    let leader = link.start(&script).expect("started");
    let holder = holder_of(leader);
    let mut members = Vec::new();
    wait_for(|| {
        let text = std::fs::read_to_string(&pids).unwrap_or_default();
        members = text.lines().filter_map(|line| line.parse::<i32>().ok()).collect();
        members.len() == 6
    });
    // Strays are reaped when they die, not only at the end.
    let stray = link.start("(setsid sh -c 'exit 3' &) ; exit 0").expect("started");
    wait_for(|| is_gone(stray.cast_signed()));
    link.end();
    members.extend([holder, leader.cast_signed()]);
    for pid in members {
        wait_for(|| is_gone(pid));
    }
    assert!(!dir.exists());
}

fn idle_processes_cost_little_memory(spawner: &SpawnerHandle) {
    let private_kib = |pid: i32| -> u64 {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("readable");
        let sum = |name: &str| -> u64 {
            let lines = rollup.lines().filter(|line| line.starts_with(name));
            lines.filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()).sum()
        };
        sum("Private_Clean:") + sum("Private_Dirty:")
    };
    let (_dir, mut link) = TestLink::in_new_dir(spawner);
    let holder = holder_of(link.start("sleep 1000").expect("started"));
    let before = private_kib(holder);
    for _ in 0..200 {
        link.start("sleep 1000").expect("started");
    }
    let after = private_kib(holder);
    println!("holder private memory: {before} KiB with 1 process, {after} KiB with 201");
    assert!(after - before < 200 * 20, "{before} to {after} KiB");
    link.end();
    wait_for(|| is_gone(holder));
}

fn expired_session_ends_its_holder(spawner: &SpawnerHandle) {
    let (dir, mut link) = TestLink::in_new_dir(spawner);
    let leader = link.start("sleep 1000").expect("started");
    let holder = holder_of(leader);
    link.send(&ToHolder::Detach { ttl_ms: 50 });
    link.until(|message| matches!(message, FromHolder::Expired).then_some(()));
    while link.recv().is_some() {}
    wait_for(|| is_gone(holder) && is_gone(leader.cast_signed()));
    let stone = exec_server_holder::tombstone::Tombstone::read(open(dir.path())).expect("readable").expect("there");
    assert_eq!((stone.processes.len(), stone.processes[0].pid), (1, leader));
}

fn killed_holder_takes_its_leaders(spawner: &SpawnerHandle) {
    let (_dir, mut link) = TestLink::in_new_dir(spawner);
    let leader = link.start("exec sleep 1000").expect("started");
    let holder = rustix::process::Pid::from_raw(holder_of(leader)).expect("a pid");
    rustix::process::kill_process(holder, rustix::process::Signal::KILL).expect("it is ours");
    while link.recv().is_some() {}
    wait_for(|| is_gone(leader.cast_signed()));
}

fn terminate_reaches_daemons(spawner: &SpawnerHandle) {
    let dir = tempfile::tempdir().expect("a directory");
    for is_tty in [false, true] {
        let mut link = TestLink::create(spawner, dir.path());
        let pids = dir.path().join(format!("pids-{is_tty}"));
        // The daemon has left the session and its parents are gone, so only the stream shows where it belongs.
        let script = format!("(setsid sh -c 'echo $$ >{0}; exec sleep 1000' &); sleep 0.01; exit 0", pids.display());
        let leader = link.start_on(&script, is_tty).expect("started");
        let daemon = daemon_in(&pids, |_| is_gone(leader.cast_signed()));
        assert!(!is_gone(daemon));
        let terminate = ToHolder::Terminate { req: 5, slot: 0, grace_ms: None };
        assert_eq!(link.request(5, &terminate), CommandStatus::StreamsHeld);
        wait_for(|| is_gone(daemon));
        // `Forget` succeeds only when the process has closed.
        wait_for(|| link.request(6, &ToHolder::Forget { req: 6, slot: 0 }) == CommandStatus::Ok);
        link.send(&ToHolder::Detach { ttl_ms: 0 });
        while link.recv().is_some() {}
    }
}

fn one_terminate_is_enough_for_leader_and_daemon(spawner: &SpawnerHandle) {
    let (dir, mut link) = TestLink::in_new_dir(spawner);
    let pids = dir.path().join("pids");
    let script = format!("(setsid sh -c 'echo $$ >{0}; exec sleep 1000' &); exec sleep 1000", pids.display());
    let leader = link.start(&script).expect("started");
    let daemon = daemon_in(&pids, |daemon| field(daemon, "PPid:") == holder_of(leader).to_string());
    link.send(&ToHolder::Terminate { req: 5, slot: 0, grace_ms: None });
    wait_for(|| is_gone(leader.cast_signed()) && is_gone(daemon));
    link.end();
}

fn idle_holder_uses_no_processor_time(spawner: &SpawnerHandle) {
    let (_dir, mut link) = TestLink::in_new_dir(spawner);
    // Three cases: a dead leader whose streams are held, a process that has written output, and a silent process.
    let held = link.start("sleep 1000 & exit 0").expect("started");
    wait_for(|| is_gone(held.cast_signed()));
    link.start("echo x; exec sleep 1000").expect("started");
    let holder = holder_of(link.start("exec sleep 1000").expect("started"));
    // An idle holder stays idle: its counters do not change over time.
    let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let rest = || rustix::event::poll(&mut [], Some(&wait)).expect("a pause");
    rest();
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{holder}/stat")).expect("the process lives");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_ascii_whitespace().collect();
        (fields[11].to_owned(), fields[12].to_owned())
    };
    let before = (switches(holder), ticks());
    for _ in 0..4 {
        rest();
    }
    assert_eq!((switches(holder), ticks()), before);
    link.end();
    wait_for(|| is_gone(holder));
}

fn holder_without_descriptors_receives_later(spawner: &SpawnerHandle) {
    let (dir, mut link) = TestLink::in_new_dir(spawner);
    let holder = holder_of(link.start("exec sleep 1000").expect("started"));
    let before =
        rustix::process::prlimit(rustix::process::Pid::from_raw(holder), Resource::Nofile, getrlimit(Resource::Nofile));
    let before = before.expect("a process of our own user").current;
    let is_open = |fd: &u64| Path::new(&format!("/proc/{holder}/fd/{fd}")).exists();
    // Limit the holder to the fds that it has open.
    limit_descriptors(holder, (0..).find(|fd| !is_open(fd)));
    // The message is too large for a datagram, so it comes with an fd, for which the holder has no room.
    let long = "x".repeat(100_000);
    let seen = dir.path().join("seen");
    let script = format!("{{ printf %s \"$LONG\" | wc -c; echo end; }} >{0}.new; mv {0}.new {0}", seen.display());
    let mut spec = shell(&script);
    spec.env.push(format!("LONG={long}").into_bytes());
    let slept = switches(holder);
    link.send_start(spec);
    // The holder has tried, and retries after a delay.
    wait_for(|| switches(holder) > slept + 3);
    limit_descriptors(holder, before);
    link.started().expect("started, once there was room");
    assert_eq!(text(dir.path(), "seen").split_whitespace().next(), Some("100000"));
    link.end();
    wait_for(|| is_gone(holder));
}

fn flood_leaves_descriptors(spawner: &SpawnerHandle) {
    let (dir, mut link) = TestLink::in_new_dir(spawner);
    // The output is never released, and the cap allows more segments than there are fds.
    let spec = StartSpec { cap_bytes: 1 << 40, ..shell("read go; head -c 80000000 /dev/zero; exec sleep 1000") };
    link.send_start(StartSpec { pipe_stdin: true, ..spec });
    let holder = holder_of(link.started().expect("started"));
    limit_descriptors(holder, Some(64));
    link.send(&ToHolder::Write { req: 7, slot: 0, key: None, digest: None, total: 3, offset: 0, data: b"go\n" });
    let blocked = |link: &TestLink| link.control.as_ref().expect("mapped").status(0).blocked;
    wait_for(|| blocked(&link) == BlockReason::MemoryCap);
    // Another server takes over.
    let mut next = TestLink::new(spawner::connect(open(dir.path()).as_fd()).expect("the path socket"));
    next.hello(2);
    drop(link);
    // Detached, the oldest segments spill to disk, which frees fds.
    next.send(&ToHolder::Detach { ttl_ms: TTL_MS });
    let written = |link: &TestLink| link.control.as_ref().expect("mapped").status(0).written;
    wait_for(|| written(&next) == 80_000_000);
    next.end();
    wait_for(|| is_gone(holder));
}

fn holder_outlives_spawner(spawner: SpawnerHandle) {
    let (dir, mut link) = TestLink::in_new_dir(&spawner);
    let leader = link.start("sleep 1000").expect("started");
    let holder = holder_of(leader);
    let pid = spawner.pid();
    drop(spawner);
    // The spawner exits at EOF. It is our child, so we must reap it.
    wait_for(|| field(pid, "State:") == "Z");
    let pid = rustix::process::Pid::from_raw(pid);
    rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).expect("reaped");
    drop(link);
    let directory = open(dir.path());
    let socket = spawner::connect(directory.as_fd()).expect("the path socket");
    let mut link = TestLink::new(socket);
    link.hello(2);
    assert!(!is_gone(leader.cast_signed()));
    link.end();
    wait_for(|| is_gone(holder) && is_gone(leader.cast_signed()));
}

fn spawner_is_started_by_path_from_a_threaded_program() {
    let us = std::env::current_exe().expect("our own path");
    let (stop_tx, stop_rx) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || stop_rx.recv().is_err());
    let spawner = exec_spawner(&us).expect("a spawner");
    let pid = spawner.pid();
    // The spawner is not our child, so we need not reap it, and it has none of our environment.
    assert_ne!(field(pid, "PPid:"), std::process::id().to_string());
    assert_eq!(field(pid, "Threads:"), "1");
    // The end of the title may extend into the memory of the environment.
    let shown = |file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).expect("readable for the same user");
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
    };
    wait_for(|| shown("cmdline").starts_with("exec-server spawner:"));
    let (title, environ) = (shown("cmdline"), shown("environ"));
    assert!(title.ends_with(&environ), "{title:?} {environ:?}");
    wait_for(|| field(pid, "Name:") == "exec-spawner");
    holder_is_a_separate_process(&spawner);
    drop(spawner);
    // Read the file once: the parent may reap the process between two reads.
    wait_for(|| {
        std::fs::read_to_string(format!("/proc/{pid}/status")).map_or(true, |status| status.contains("State:\tZ"))
    });
    drop(stop_tx);
    assert!(thread.join().expect("the thread ends"));
}

fn other_programs_are_no_spawners() {
    let error = exec_spawner(Path::new("/no/such/program")).expect_err("there is none");
    assert!(matches!(error, ExecError::Start { .. }), "{error}");
    let error = exec_spawner(Path::new("/bin/false")).expect_err("it just ends");
    assert!(matches!(error, ExecError::NotOurs { status: Some(status), .. } if !status.success()), "{error}");
    let error = exec_spawner(Path::new("/bin/cat")).expect_err("it does not know the argument");
    assert!(matches!(&error, ExecError::NotOurs { stderr_text, .. } if stderr_text.contains("cat")), "{error}");
    // A person who types the argument gets an error.
    assert!(matches!(spawner::serve_stdin(), Err(ExecError::NotASocket)));
}

/// Must run last, because it permanently lowers the limit of this process.
fn starts_are_refused_without_descriptors() {
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(64) }).expect("lower is allowed");
    let spawner = fork_spawner().expect("fork");
    let (_dir, mut link) = TestLink::in_new_dir(&spawner);
    let mut started = 0;
    let errno = loop {
        match link.start("sleep 1000") {
            Ok(_) => started += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!(errno, libc::EMFILE);
    assert!(started >= 5, "{started}");
    link.end();
}
