//! A far link with the kernel's TCP at both ends: its delay, rate and queue, changes while it runs, and what is left of it.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test of delays measures the real time; helpers of tests may panic, and one prints for its parent"
)]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use exec_server_chaos::{FarLink, LinkShape, Namespace, Random};

/// Longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(20);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn link(shape: LinkShape) -> FarLink {
    assert!(rustix::process::geteuid().is_root(), "this test creates network namespaces: run it as root");
    FarLink::start(shape).unwrap()
}

/// A connection from the near end to a thread at the far end, which echoes it until its EOF.
struct EchoConnection {
    stream: TcpStream,
    far_end: thread::JoinHandle<()>,
}

impl EchoConnection {
    fn open(link: &FarLink) -> Self {
        let listener = link.far().run(|| TcpListener::bind((link.far().address(), 0))).unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let far_end = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            let mut writer = stream.try_clone().unwrap();
            std::io::copy(&mut stream, &mut writer).unwrap();
        });
        let stream = link.near().run(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, far_end }
    }

    /// The time until a byte is back.
    fn round_trip(&mut self) -> Duration {
        let begun = Instant::now();
        self.stream.write_all(b"x").unwrap();
        self.stream.read_exact(&mut [0]).unwrap();
        begun.elapsed()
    }

    /// Sends all bytes and returns what came back, and the time that it took.
    fn echo(&self, bytes: &[u8]) -> (Vec<u8>, Duration) {
        let begun = Instant::now();
        let mut back = vec![0; bytes.len()];
        thread::scope(|scope| {
            scope.spawn(|| (&self.stream).write_all(bytes).unwrap());
            (&self.stream).read_exact(&mut back).unwrap();
        });
        (back, begun.elapsed())
    }

    fn end(self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
        self.far_end.join().unwrap();
    }
}

#[test]
fn a_round_trip_takes_the_delay_and_follows_its_changes() {
    let link = link(LinkShape::with_one_bdp(ms(60), 100_000_000));
    let mut echo = EchoConnection::open(&link);
    assert!(echo.round_trip() >= ms(60));
    link.set_round_trip(ms(300));
    assert!(echo.round_trip() >= ms(300));
    link.set_round_trip(ms(1));
    wait_until("the delay is short again", || echo.round_trip() < ms(300));
    let begun = Instant::now();
    link.stall(ms(400));
    echo.round_trip();
    assert!(begun.elapsed() >= ms(400));
    echo.end();
}

#[test]
fn bytes_pass_at_the_rate_and_survive_a_queue_that_drops() {
    // 8 packets of 1500 bytes: far less than TCP sends at once, so the queue drops.
    let shape = LinkShape { round_trip: ms(10), bits_per_second: 40_000_000, queue_bytes: 8 * 1500 };
    let link = link(shape);
    let mut random = Random::new(1);
    let sent: Vec<u8> = (0..1_000_000).map(|_| random.next() as u8).collect();
    let echo = EchoConnection::open(&link);
    let (back, took) = echo.echo(&sent);
    assert!(back == sent, "other bytes came back");
    assert!(took >= ms(200), "1 MB at 40 Mbit/s took {took:?}");
    echo.end();
    let [up, down] = link.counters();
    assert!(up.dropped > 0, "{up:?}");
    assert!(up.bytes >= 1_000_000 && down.bytes >= 1_000_000, "{up:?}, {down:?}");
}

#[test]
fn a_full_queue_drops_and_the_rest_arrives() {
    // Stalled, so that the queue cannot drain while the packets come: it holds 20 of them and drops 80.
    let packet = [7; 1000 - 28];
    let shape = LinkShape { round_trip: ms(2), bits_per_second: 10_000_000, queue_bytes: 20_000 };
    let link = link(shape);
    let bind = |namespace: &Namespace| namespace.run(|| UdpSocket::bind((namespace.address(), 0))).unwrap().unwrap();
    let (sender, receiver) = (bind(link.near()), bind(link.far()));
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    link.stall(ms(2000));
    for _ in 0..100 {
        sender.send_to(&packet, receiver.local_addr().unwrap()).unwrap();
    }
    let mut buffer = [0; 2000];
    for _ in 0..20 {
        assert_eq!(receiver.recv(&mut buffer).unwrap(), packet.len());
    }
    let [up, _] = link.counters();
    assert_eq!((up.packets, up.bytes, up.dropped), (20, 20_000, 80));
}

#[test]
fn nothing_of_a_dropped_link_is_left() {
    let link = link(LinkShape::with_one_bdp(ms(2), 100_000_000));
    let mut echo = EchoConnection::open(&link);
    echo.round_trip();
    echo.end();
    let inodes = [link.near(), link.far()].map(|namespace| namespace.inode().unwrap());
    let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    assert!(link.near().run(devices).unwrap().contains("far0:"));
    assert!(inodes.iter().all(|inode| is_held(*inode)));
    drop(link);
    wait_until("the namespaces are gone", || !inodes.iter().any(|inode| is_held(*inode)));
    assert!(!devices().contains("far0:"));
}

/// Set for the program that the next test starts and kills: this test program itself.
const HOLDS_LINK: &str = "FAR_LINK_TEST_HOLDS_LINK";

#[test]
fn nothing_of_a_killed_program_s_link_is_left() {
    if std::env::var_os(HOLDS_LINK).is_some() {
        return hold_link_until_eof();
    }
    let mut program = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nothing_of_a_killed_program_s_link_is_left", "--nocapture"])
        .env(HOLDS_LINK, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The test runner may print the name of the test before, on the same line.
    let inodes = lines.find_map(|line| Some(line.split_once("inodes: ")?.1.to_owned())).unwrap();
    let inodes: Vec<u64> = inodes.split(' ').map(|inode| inode.parse().unwrap()).collect();
    assert!(inodes.len() == 2 && inodes.iter().all(|inode| is_held(*inode)));
    program.kill().unwrap();
    program.wait().unwrap();
    wait_until("the namespaces are gone", || !inodes.iter().any(|inode| is_held(*inode)));
}

fn hold_link_until_eof() {
    let link = link(LinkShape::with_one_bdp(ms(2), 100_000_000));
    let inodes = [link.near(), link.far()].map(|namespace| namespace.inode().unwrap());
    println!("inodes: {} {}", inodes[0], inodes[1]);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Waits for a level. A namespace may live a little longer: another test may start a program, whose child has our fds until its exec.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::park_timeout(ms(10));
    }
}

/// Whether a process is in this network namespace or has it open. Without either, a namespace without a name is gone.
fn is_held(inode: u64) -> bool {
    let name = format!("net:[{inode}]");
    let is_name = |path: &Path| fs::read_link(path).is_ok_and(|target| target.to_string_lossy() == name);
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(Path::new("/proc")).any(|process| {
        entries(&process.join("task")).any(|task| is_name(&task.join("ns/net")))
            || entries(&process.join("fd")).any(|fd| is_name(&fd))
    })
}
