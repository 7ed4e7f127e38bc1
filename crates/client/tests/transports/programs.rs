//! Programs that carry a connection: how they are started, explained and ended, and that nothing is left behind.

use std::{
    os::fd::OwnedFd,
    path::Path,
    time::{Duration, Instant},
};

use exec_server_client::{
    Error, ErrorKind,
    transport::{Connect as _, Connection, Dialer, Launch},
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Interest, Lines};

use crate::within;

/// A shell that runs this command line.
pub(crate) fn shell(line: &str) -> Launch {
    Launch::new("sh").args(["-c", line])
}

/// Reads to EOF, and asks the carrier for the reason.
pub(crate) async fn explained(connection: Connection) -> Error {
    let Connection { mut stream, carrier, .. } = connection;
    stream.reader.read_to_end(&mut Vec::new()).await.unwrap();
    drop(stream);
    carrier.expect("a program").explain().await.expect("it has ended")
}

/// A process with a pidfd, which cannot refer to a later process with the same pid.
struct Watched {
    pid: Pid,
    fd: tokio::io::unix::AsyncFd<OwnedFd>,
}

impl Watched {
    fn new(pid: &str) -> Self {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        let fd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        Self { pid, fd: exec_server_rpc::register(fd, Interest::READABLE).unwrap() }
    }

    async fn ended(&self) {
        within(self.fd.readable()).await.unwrap().retain_ready();
    }

    /// Whether the process has ended and was reaped.
    fn is_reaped(&self) -> bool {
        !Path::new(&format!("/proc/{}", self.pid.as_raw_nonzero())).exists()
    }
}

type Reader = Lines<BufReader<Box<dyn tokio::io::AsyncRead + Send + Unpin>>>;

/// The words of the first line.
async fn first_line(reader: &mut Reader) -> Vec<String> {
    let line = within(reader.next_line()).await.unwrap().expect("a line");
    line.split(' ').map(str::to_owned).collect()
}

#[expect(clippy::disallowed_methods, reason = "what is measured is the time of real processes")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn bytes_go_both_ways_and_the_end_of_input_ends_it() {
    let dialer = Dialer::new("stdio:sh -c 'echo $$; exec cat'".parse().unwrap());
    let Connection { stream, carrier, .. } = dialer.connect().await.unwrap();
    let (mut reader, mut writer) = (BufReader::new(stream.reader).lines(), stream.writer);
    let program = Watched::new(&first_line(&mut reader).await[0]);
    writer.write_all(b"{\"id\":1}\n").await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(within(reader.next_line()).await.unwrap().as_deref(), Some("{\"id\":1}"));
    drop((reader, writer));
    let mut carrier = carrier.unwrap();
    within(carrier.end()).await;
    assert!(program.is_reaped());
    within(carrier.end()).await;
}

#[tokio::test]
async fn a_program_that_ends_first_is_explained_by_its_last_words() {
    let line = "for i in 1 2 3 4 5 6 7 8 9; do echo \"line $i\" >&2; done; printf '\\033[2Jno room' >&2; exit 3";
    let error = within(explained(shell(line).connect().await.unwrap())).await;
    assert_eq!(error.kind(), ErrorKind::Spawn);
    let text = error.to_string();
    assert!(text.contains("`sh`") && text.contains("exit status 3"), "{text}");
    assert!(text.ends_with("line 8; line 9; ?[2Jno room") && !text.contains("line 1;"), "{text}");

    let error = within(explained(shell("kill -9 $$").connect().await.unwrap())).await;
    assert!(error.to_string().ends_with("(signal 9)"), "{error}");
    let error = within(explained(shell("exit 0").connect().await.unwrap())).await;
    assert!(error.to_string().ends_with("(exit status 0)"), "{error}");
}

#[tokio::test]
async fn a_flood_on_standard_error_neither_blocks_it_nor_grows_the_error() {
    let line = "head -c 20000000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2; exit 1";
    let error = within(explained(shell(line).connect().await.unwrap())).await;
    let text = error.to_string();
    assert!(text.ends_with("; last") && text.len() < 2000, "{}", text.len());
}

#[tokio::test]
async fn standard_error_held_by_another_delays_no_explanation() {
    let line = "sleep 1000 >/dev/null </dev/null & echo why >&2; exit 5";
    let error = within(explained(shell(line).connect().await.unwrap())).await;
    assert!(error.to_string().ends_with("(exit status 5): why"), "{error}");
}

#[tokio::test]
async fn a_program_that_still_runs_explains_nothing() {
    let connection = shell("exec >&-; read line").connect().await.unwrap();
    assert!(within(connection.carrier.as_ref().unwrap().explain()).await.is_none());
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let error = Launch::new("no-such-program-here").connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Spawn);
    assert!(error.to_string().contains("`no-such-program-here`: no such program"), "{error}");
    let error = shell("true").cwd("/no/such/dir").connect().await.unwrap_err();
    assert!(error.to_string().contains("`/no/such/dir`"), "{error}");
    let error = Launch::new("/dev/null").connect().await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("permission denied"), "{error}");
}

#[tokio::test]
async fn arguments_variables_and_directory_arrive_and_secrets_are_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let launch = shell("pwd; echo \"$A|$EXEC_SERVER_TOKEN|$1\"")
        .args(["sh", "x y"])
        .env("A", "s3cret")
        .env("EXEC_SERVER_TOKEN", "s3cret")
        .cwd(dir.path());
    assert!(!format!("{launch:?} {launch}").contains("s3cret"));
    let connection = launch.connect().await.unwrap();
    let mut text = String::new();
    let mut reader = connection.stream.reader;
    within(reader.read_to_string(&mut text)).await.unwrap();
    let cwd = dir.path().canonicalize().unwrap();
    assert_eq!(text, format!("{}\ns3cret|s3cret|x y\n", cwd.display()));
}

/// A program and its child that end only by SIGKILL. Prints both pids.
const STUBBORN: &str = "trap '' TERM; (while :; do sleep 1000; done) & echo $$ $!; while :; do sleep 1000; done";

#[tokio::test]
async fn whoever_ignores_all_requests_is_killed_with_its_group() {
    let Connection { stream, carrier, .. } = shell(STUBBORN).connect().await.unwrap();
    let mut reader = BufReader::new(stream.reader).lines();
    let pids = first_line(&mut reader).await;
    let (leader, child) = (Watched::new(&pids[0]), Watched::new(&pids[1]));
    let start = now();
    drop((reader, stream.writer, carrier));
    assert!(start.elapsed() < Duration::from_secs(1), "who drops does not wait");
    leader.ended().await;
    let elapsed = start.elapsed();
    child.ended().await;
    assert!(elapsed > Duration::from_millis(2900) && elapsed < Duration::from_secs(20), "{elapsed:?}");
}

#[tokio::test]
async fn a_request_to_end_is_enough_for_most() {
    let dir = tempfile::tempdir().unwrap();
    let proof = dir.path().join("proof");
    let line = "trap 'touch \"$1\"; exit 0' TERM; sleep 1000 & echo $$ $!; wait";
    let launch = shell(line).args(["sh".as_ref(), proof.as_os_str()]);
    let Connection { stream, carrier, .. } = launch.connect().await.unwrap();
    let mut reader = BufReader::new(stream.reader).lines();
    let pids = first_line(&mut reader).await;
    let (leader, child) = (Watched::new(&pids[0]), Watched::new(&pids[1]));
    drop((reader, stream.writer));
    within(carrier.unwrap().end()).await;
    assert!(leader.is_reaped() && proof.exists());
    child.ended().await;
}

#[tokio::test]
async fn what_an_ended_program_left_in_its_group_ends_too() {
    let Connection { stream, carrier, .. } = shell("sleep 1000 >/dev/null & echo $$ $!; exit").connect().await.unwrap();
    let mut reader = BufReader::new(stream.reader).lines();
    let pids = first_line(&mut reader).await;
    let child = Watched::new(&pids[1]);
    assert!(within(reader.next_line()).await.unwrap().is_none());
    drop(carrier);
    child.ended().await;
}

#[tokio::test]
async fn last_words_are_taken_while_it_ends() {
    // Without a reader, the first write to stderr would end the program by SIGPIPE. If stderr were open but not read, a write of more than
    // a pipe holds would block forever.
    let line = "echo $$; cat; head -c 300000 /dev/zero >&2 || exit 1; touch \"$1\"";
    let dir = tempfile::tempdir().unwrap();
    let proof = dir.path().join("proof");
    let launch = shell(line).args(["sh".as_ref(), proof.as_os_str()]);
    let Connection { stream, carrier, .. } = launch.connect().await.unwrap();
    let mut reader = BufReader::new(stream.reader).lines();
    first_line(&mut reader).await;
    drop((reader, stream.writer));
    within(carrier.unwrap().end()).await;
    assert!(proof.exists());
}

#[test]
fn a_program_ends_although_its_runtime_is_gone() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (connection, pid) = runtime.block_on(async {
        let Connection { stream, framing, carrier } = shell(STUBBORN).connect().await.unwrap();
        let mut reader = BufReader::new(stream.reader).lines();
        let pid = first_line(&mut reader).await.remove(0);
        (((reader, stream.writer), framing, carrier), pid)
    });
    drop(runtime);
    drop(connection);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { Watched::new(&pid).ended().await });
}
