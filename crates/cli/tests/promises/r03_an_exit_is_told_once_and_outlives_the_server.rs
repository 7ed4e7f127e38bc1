//! R3: the exit status of a process is reported exactly once to its client, and survives a restart of the server.

use crate::prelude::*;

#[test]
fn an_exit_between_two_servers_is_reported_once_and_stays_listed() {
    let mut server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.modern_client();
    let gate = server.dir().join("gate");
    let script = format!("while ! [ -e {} ]; do sleep 0.01; done; exit 7", gate.display());
    client.ok("process/start", sh("p", &script));
    let pid = client.pid_of("p");
    server.kill();
    std::fs::write(&gate, "").expect("open the gate");
    wait_for("the end of the process", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    for round in 0..2 {
        server.restart();
        let mut client = server.resume(&session, modern());
        if round == 0 {
            let ended = client.collect("p");
            assert_eq!((ended.code(), &ended.exited["cause"]), (7, &json!("exit")));
            client.notify("process/ack", json!({"processId": "p", "seq": ended.closed["seq"]}));
        }
        let list = client.ok("process/list", json!({}));
        assert_eq!(list["processes"][0]["exit"]["exitCode"], 7, "{list}");
        // The exit was acknowledged before the list was requested, so a second report would have arrived by now.
        let again = client.next_notification_within(Duration::from_millis(if round == 0 { 1 } else { 300 }));
        assert_eq!(again, None, "round {round}");
    }
}
