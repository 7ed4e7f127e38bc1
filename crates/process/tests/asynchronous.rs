//! Children on a Tokio runtime.

#![cfg(feature = "tokio")]

mod common;

use std::time::Duration;

use common::{DEADLINE, PIPE_OPEN, PTY, is_reaped, sh, spawn};
use exec_server_process::{AsyncChild, Child};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

#[tokio::test]
async fn streams_and_exit_are_awaited() {
    let child = sh(PIPE_OPEN, "cat; echo err >&2; exit 7").spawn().expect("sh starts");
    let mut child = AsyncChild::new(child).expect("the runtime takes the child");
    let mut stdin = child.take_stdin().expect("it registers").expect("stdin is open");
    let mut stdout = child.take_stdout().expect("it registers").expect("a pipe");
    let mut stderr = child.take_stderr().expect("it registers").expect("a pipe");
    // More than both pipes hold, so writing and reading must run concurrently.
    let input = "0123456789abcdef".repeat(40_000);
    let (mut out, mut err) = (String::new(), String::new());
    let write = async {
        stdin.write_all(input.as_bytes()).await?;
        drop(stdin);
        Ok(0)
    };
    let all = async { tokio::try_join!(write, stdout.read_to_string(&mut out), stderr.read_to_string(&mut err)) };
    timeout(DEADLINE, all).await.expect("in time").expect("the streams work");
    assert_eq!((out == input, err.as_str()), (true, "err\n"));
    let exited = timeout(DEADLINE, child.wait()).await.expect("in time").expect("the child can be waited for");
    assert_eq!(exited.code, 7);
}

#[tokio::test]
async fn terminal_ends_with_the_end_of_the_stream() {
    let mut child = AsyncChild::new(sh(PTY, "stty size; tty").spawn().expect("sh starts")).expect("it registers");
    let mut pty = child.pty().expect("it registers").expect("a terminal");
    let exited = timeout(DEADLINE, child.wait()).await.expect("in time").expect("the child can be waited for");
    child.child_mut().release_slave();
    let mut text = String::new();
    timeout(DEADLINE, pty.read_to_string(&mut text)).await.expect("in time").expect("EIO is the end");
    assert!(text.starts_with("24 80\r\n/dev/pts/"), "{text}");
    assert_eq!(exited.code, 0);
}

#[tokio::test]
async fn pty_terminate_reaps_child_when_waiter_is_queued() {
    let mut child = AsyncChild::new(spawn(PTY, &["sleep", "1000"]).spawn().expect("sleep starts")).expect("registers");
    // A cancelled wait does not lose the exit status.
    timeout(Duration::from_millis(1), child.wait()).await.expect_err("the child lives");
    child.child().signal_group(libc::SIGKILL).expect("the group is there");
    let exited = timeout(DEADLINE, child.wait()).await.expect("in time").expect("the child can be waited for");
    assert_eq!((exited.code, exited.signal), (137, Some(9)));
    assert!(is_reaped(child.child().pid()));
}

#[tokio::test]
async fn scripted_child_is_awaited_like_a_real_one() {
    let (child, driver) = Child::scripted(PIPE_OPEN).expect("a script opens");
    let mut child = AsyncChild::new(child).expect("it registers");
    let mut stdout = child.take_stdout().expect("it registers").expect("a pipe");
    driver.write_stdout(b"scripted").expect("there is room");
    driver.close_all();
    let mut text = String::new();
    timeout(DEADLINE, stdout.read_to_string(&mut text)).await.expect("in time").expect("the pipe works");
    timeout(Duration::from_millis(1), child.wait()).await.expect_err("the script goes on");
    driver.exit(1);
    let exited = timeout(DEADLINE, child.wait()).await.expect("in time").expect("the script has ended");
    assert_eq!((text.as_str(), exited.code), ("scripted", 1));
}
