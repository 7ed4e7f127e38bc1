//! `run` against a server that it knows from an earlier run: the start is sent together with the handshake, and again after a cut.

use crate::prelude::*;

/// The server's answers to `initialize` that the proxy still has to lose, and the attempts that it saw.
#[derive(Default)]
struct Seen {
    to_cut: usize,
    attempts: Vec<u64>,
    methods: Vec<String>,
}

fn proxy(server: &TestServer, seen: &Arc<Mutex<Seen>>) -> MessageProxy {
    let seen = Arc::clone(seen);
    MessageProxy::start(server.url(), move |side, message| {
        let mut seen = seen.lock().expect("no test has failed");
        match (side, message["method"].as_str()) {
            (Side::Client, Some(method)) => {
                seen.methods.push(method.to_owned());
                if let Some(attempt) = message["params"]["attempt"].as_u64() {
                    seen.attempts.push(attempt);
                }
            }
            (Side::Server, None) if message["result"]["sessionId"].is_string() && seen.to_cut > 0 => {
                seen.to_cut -= 1;
                return Verdict::Cut;
            }
            _ => {}
        }
        Verdict::Pass
    })
}

fn run(home: &Home, url: &str, script: &str) -> (String, String, Option<i32>) {
    let mut command = home.command(&["run", "--", "sh", "-c", script]);
    command.env("EXEC_SERVER_URL", url);
    outcome(command)
}

#[test]
fn a_known_server_gets_the_start_with_the_handshake_and_no_other_request() {
    let (server, home, seen) = (TestServer::start(), Home::new(), Arc::default());
    let proxy = proxy(&server, &seen);
    let (out, errors, code) = run(&home, &proxy.url(), "echo one; exit 3");
    assert_eq!((out.as_str(), errors.as_str(), code), ("one\n", "", Some(3)));
    assert_eq!(seen.lock().unwrap().attempts, [0; 0], "the first run does not know the server");
    std::mem::take(&mut seen.lock().unwrap().methods);
    let (out, errors, code) = run(&home, &proxy.url(), "echo two; exit 4");
    assert_eq!((out.as_str(), errors.as_str(), code), ("two\n", "", Some(4)));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.attempts, [1]);
    assert_eq!(seen.methods[..3], ["initialize", "initialized", "process/start"]);
    let others = ["process/ack", "process/closeStdin", "session/end"];
    assert!(seen.methods[3..].iter().all(|method| others.contains(&method.as_str())), "{:?}", seen.methods);
}

#[test]
fn a_start_whose_answer_is_lost_runs_once() {
    let (server, home, seen) = (TestServer::start(), Home::new(), Arc::default());
    let proxy = proxy(&server, &seen);
    assert_eq!(run(&home, &proxy.url(), "exit 0").2, Some(0));
    seen.lock().unwrap().to_cut = 3;
    let file = server.dir().join("starts");
    let (out, _, code) = run(&home, &proxy.url(), &format!("echo x >>{}; echo done; exit 5", file.display()));
    assert_eq!((out.as_str(), code), ("done\n", Some(5)));
    assert_eq!(seen.lock().unwrap().attempts, [1, 2, 3, 4]);
    assert_eq!(fs::read_to_string(file).expect("it ran"), "x\n");
    let mut client = server.client();
    wait_for("the end of the sessions", || client.list_all().is_empty());
}
