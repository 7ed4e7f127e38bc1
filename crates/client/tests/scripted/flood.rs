//! A flood of output for processes without a log takes no memory. The test runs in its own program, because memory is measured per program.

use std::{env, process::Command};

use crate::prelude::*;

/// Set in the program that runs only this test.
const ALONE: &str = "EXEC_SERVER_TEST_ALONE";

#[test]
#[allow(clippy::disallowed_methods, reason = "the test starts itself again")]
fn a_flood_for_unknown_processes_takes_no_memory() {
    if env::var_os(ALONE).is_some() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        return runtime.enable_all().start_paused(true).build().unwrap().block_on(flood());
    }
    let name = "flood::a_flood_for_unknown_processes_takes_no_memory";
    let alone = Command::new(env::current_exe().unwrap()).args(["--exact", name]).env(ALONE, "yes").output().unwrap();
    let said = String::from_utf8_lossy(&alone.stdout);
    assert!(alone.status.success() && said.contains("1 passed"), "{said}");
}

async fn flood() {
    let (_client, mut peer, _door, process) = running(CURRENT).await;
    // Every message names another process. The same buffer is sent again and again.
    let chunk = base64::encode(&vec![b'x'; 1 << 20]);
    let mut flood = Vec::new();
    for n in 0..8 {
        let head =
            json!({"processId": n.to_string(), "sessionId": n.to_string(), "seq": n, "stream": "pty"}).to_string();
        let head = head.trim_end_matches('}');
        flood.extend_from_slice(
            format!("{{\"method\":\"process/output\",\"params\":{head},\"chunk\":\"{chunk}\"}}}}\n").as_bytes(),
        );
    }
    for n in 0..4000 {
        let params = json!({"processId": n.to_string(), "seq": 1, "exitCode": 0});
        flood.extend_from_slice(json!({"method": "process/exited", "params": params}).to_string().as_bytes());
        flood.push(b'\n');
    }
    // The first flood allocates the buffers that a connection keeps anyway.
    peer.raw(&flood).await;
    settle().await;
    let memory = || testkit::resident(std::process::id(), "VmRSS") as usize;
    let before = memory();
    let sent = 3 * flood.len();
    for _ in 0..3 {
        peer.raw(&flood).await;
    }
    peer.output("p", 1, "one").await;
    assert_eq!(next(&mut process.events()).await, "out 1 one");
    let grown = memory().saturating_sub(before);
    assert!(grown < sent / 8, "{grown} bytes of {sent} stayed");
}
