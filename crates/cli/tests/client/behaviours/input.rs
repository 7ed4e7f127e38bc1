//! Input of a process: stdin through a pipe and a terminal, EOF, and the terminal size.

use crate::prelude::*;
use exec_server_client::protocol::process::{CloseStdinStatus, Size};

pub(crate) async fn exec_process_write_then_read(place: &Place) {
    let script = "stty -echo; echo ready; read line; echo \"echo:$line\"";
    let process = place.start(Start::new(["sh", "-c", script]).tty(None)).await;
    assert!(process.is_tty());
    let mut events = process.events();
    output_until(&mut events, "ready\r\n").await;
    assert_eq!(process.write("hello\n").await.expect("write"), WriteStatus::Accepted);
    output_until(&mut events, "echo:hello\r\n").await;
    assert_eq!(tell(&process).await.exit.code, 0);
}

pub(crate) async fn exec_process_write_then_read_without_tty(place: &Place) {
    let process = place.start(sh("read line; printf 'from stdin: %s' \"$line\"")).await;
    assert!(!process.is_tty());
    assert_eq!(process.write("hello\n").await.expect("write"), WriteStatus::Accepted);
    let told = tell(&process).await;
    assert_eq!((told.stdout, told.stderr, told.exit.code), (b"from stdin: hello".to_vec(), Vec::new(), 0));
    assert_eq!(process.write("more").await.expect("an answer"), WriteStatus::StdinClosed);
}

pub(crate) async fn exec_process_rejects_write_without_pipe_stdin(place: &Place) {
    let process = place.start(Start::new(["sh", "-c", "cat; echo end; exec sleep 1000"])).await;
    assert_eq!(process.write("never").await.expect("an answer"), WriteStatus::StdinClosed);
    // The process saw EOF on its stdin from the beginning.
    assert_eq!(output_until(&mut process.events(), "end\n").await, "end\n");
    let refused = process.stdin().write_all(b"never").await;
    let flushed = process.stdin().flush().await;
    assert!(refused.is_ok() && flushed.is_ok(), "a writer learns of it when it flushes what it wrote");
    let mut stdin = process.stdin();
    stdin.write_all(b"never").await.expect("on its way");
    assert_eq!(stdin.flush().await.expect_err("refused").kind(), std::io::ErrorKind::BrokenPipe);
    assert!(process.terminate(None).await.expect("terminate"));
}

pub(crate) async fn close_stdin_is_the_end_of_input(place: &Place) {
    let process = place.start(sh("cat; echo end")).await;
    process.write("text;").await.expect("write");
    assert_eq!(process.close_stdin().await.expect("close"), CloseStdinStatus::Accepted);
    assert_eq!(tell(&process).await.stdout, b"text;end\n");
    assert_eq!(process.close_stdin().await.expect("an answer"), CloseStdinStatus::StdinClosed);
    assert_eq!(process.write("late").await.expect("an answer"), WriteStatus::StdinClosed);

    // On a terminal EOF is a control character; in raw mode it would be ordinary data.
    let process = place.start(Start::new(["sh", "-c", "cat; echo end; stty raw; echo raw; exec cat"]).tty(None)).await;
    let mut events = process.events();
    process.write("line\n").await.expect("write");
    output_until(&mut events, "line\r\nline\r\n").await;
    assert_eq!(process.close_stdin().await.expect("close"), CloseStdinStatus::Accepted);
    output_until(&mut events, "raw\n").await;
    assert_eq!(process.close_stdin().await.expect("an answer"), CloseStdinStatus::RawMode);
    assert!(process.terminate(None).await.expect("terminate"));
}

pub(crate) async fn shutting_stdin_down_closes_it(place: &Place) {
    let process = place.start(sh("exec cat")).await;
    let mut stdin = process.stdin();
    stdin.write_all(b"all of it").await.expect("write");
    stdin.shutdown().await.expect("shut down");
    assert_eq!(tell(&process).await.stdout, b"all of it");
    assert!(stdin.write_all(b"more").await.is_err());
}

pub(crate) async fn writes_of_many_tasks_arrive_whole_and_once(place: &Place) {
    let process = place.start(sh("exec sort")).await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let process = process.clone();
        writers.spawn(async move {
            for number in 0..100 {
                let status = process.write(format!("{writer} {number:03}\n")).await.expect("write");
                assert_eq!(status, WriteStatus::Accepted);
            }
        });
    }
    writers.join_all().await;
    process.close_stdin().await.expect("close");
    let expected: String = (0..8).flat_map(|writer| (0..100).map(move |n| format!("{writer} {n:03}\n"))).collect();
    assert_eq!(String::from_utf8(tell(&process).await.stdout).expect("text"), expected);
}

pub(crate) async fn a_terminal_has_the_size_it_is_given(place: &Place) {
    let script = "stty -echo; trap 'stty size' WINCH; stty size; while :; do read x; stty size; done";
    let start = Start::new(["sh", "-c", script]).tty(Some(Size { rows: 30, cols: 100 })).term("dumb");
    let process = place.start(start).await;
    let mut events = process.events();
    output_until(&mut events, "30 100\r\n").await;
    process.resize(Size { rows: 41, cols: 132 }).await.expect("resize");
    process.write("\n").await.expect("write");
    output_until(&mut events, "41 132\r\n").await;
    assert!(process.terminate(None).await.expect("terminate"));

    let process = place.start(sh("exec cat")).await;
    let error = process.resize(Size { rows: 1, cols: 1 }).await.expect_err("a pipe has no size");
    assert_eq!(error.server_kind(), Some(exec_server_client::protocol::failure::Kind::NotATerminal));
    process.close_stdin().await.expect("close");
    process.wait().await.expect("it ends");
}
