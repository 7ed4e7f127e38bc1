//! R5: a server on port 0 keeps its sessions in a directory that no other server will find. When the server is killed, its holders end some
//! time later unless their client asked for more time. The directory is removed when the last holder has ended.

use crate::prelude::*;

/// The default is one minute; a shorter time keeps the test short and does not change the rules.
const ORPHAN_TTL: Duration = Duration::from_secs(2);

fn private_server() -> TestServer {
    let seconds = format!("--orphan-ttl={}s", ORPHAN_TTL.as_secs());
    TestServer::builder().default_state_dir().keep_holders().arg(&seconds).start()
}

/// The remaining private state directories of a test's servers.
fn private_dirs(server: &TestServer) -> Vec<PathBuf> {
    let entries = fs::read_dir(server.dir()).expect("list the runtime directory").flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join("sessions").is_dir()).collect()
}

/// Checks a condition for this long; fails as soon as the condition is false.
fn holds_for(time: Duration, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        assert!(condition(), "after {:?}", begun.elapsed());
        thread::park_timeout(Duration::from_millis(20));
    }
}

/// Waits until the state directory is removed and the spawner has ended.
fn wait_nothing_left(server: &TestServer) {
    wait_for("the end of the directory", || private_dirs(server).is_empty());
    wait_for("the end of the spawner", || server.processes().is_empty());
}

fn start_sleeper(client: &mut Client, id: &str) -> u32 {
    client.ok("process/start", sh(id, "exec sleep 1000"));
    client.pid_of(id)
}

#[test]
fn holders_end_unless_their_client_asked_for_longer_and_the_directory_follows_the_last() {
    let mut server = private_server();
    let (mut silent, _) = server.modern_client();
    let of_silent = start_sleeper(&mut silent, "silent");
    let mut asking = server.connect();
    asking
        .initialize_with(json!({"clientName": "test", "ttlMs": 3_600_000, "capabilities": {"ack": true, "gap": true}}));
    let of_asking = start_sleeper(&mut asking, "asking");
    assert_eq!((private_dirs(&server).len(), server.named("exec-holder").len()), (1, 2));
    server.kill();
    assert!(is_alive(of_silent) && is_alive(of_asking), "not at once");
    wait_for("the end of the process whose client asked for no more time", || !is_alive(of_silent));
    // Both holders lost the server at the same time, so the limit would have ended this one by now too.
    holds_for(ORPHAN_TTL, || is_alive(of_asking));
    assert_eq!(private_dirs(&server).len(), 1, "a holder lives in it");
    let holders = server.named("exec-holder");
    assert_eq!(holders.len(), 1);
    holders.into_iter().for_each(kill);
    wait_nothing_left(&server);
}

#[test]
fn a_server_that_started_nothing_leaves_nothing() {
    let mut server = private_server();
    let (mut client, _) = server.modern_client();
    client.ok("process/list", json!({}));
    assert_eq!(private_dirs(&server).len(), 1);
    server.kill();
    wait_nothing_left(&server);
}

#[test]
fn a_server_that_ends_in_order_leaves_nothing_at_once() {
    let mut server = TestServer::builder().default_state_dir().keep_holders().arg("--orphan-ttl=1h").start();
    let (mut client, _) = server.modern_client();
    let sleeper = start_sleeper(&mut client, "sleeper");
    server.signal(rustix::process::Signal::TERM);
    server.wait();
    assert!(private_dirs(&server).is_empty() && !is_alive(sleeper));
    wait_for("the end of the spawner", || server.processes().is_empty());
}

#[test]
fn another_server_on_the_directory_keeps_it_and_its_processes() {
    let mut first = private_server();
    let (mut client, session) = first.modern_client();
    let sleeper = start_sleeper(&mut client, "sleeper");
    first.kill();
    let dir = private_dirs(&first).pop().expect("a private directory");
    let second = TestServer::builder().arg(&format!("--state-dir={}", dir.display())).default_state_dir().start();
    holds_for(ORPHAN_TTL * 2, || is_alive(sleeper) && dir.exists());
    let mut client = second.take_over(&session);
    client.ok("process/terminate", json!({"processId": "sleeper"}));
    wait_for("its end", || !is_alive(sleeper));
}
