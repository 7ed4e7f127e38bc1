//! S11: a session id has 122 random bits and never appears whole in a log. Only the principal that created the session can resume it. A
//! client that guesses ids waits longer and longer, is recorded in the audit log, and delays no other client.

use crate::prelude::*;

fn resume(id: &str) -> Value {
    json!({"clientName": "test", "resumeSessionId": id})
}

/// Well-formed ids of sessions that do not exist.
fn guess(n: usize) -> String {
    format!("{n:08x}-0000-4000-8000-{:012x}", n * 7919)
}

#[test]
fn another_principal_with_the_right_id_is_refused() {
    let server = TestServer::builder().audit().args(["--log", "trace"]).start();
    let [a, b] = ["a", "b"].map(|name| token_helpers::create(&server, name, &[]));
    let mut first = token_helpers::connect(&server, &a);
    let session = first.initialize();
    first.ok("process/start", start_params("p", &["sleep", "1000"]));
    first.leave();
    for mut other in [token_helpers::connect(&server, &b), server.connect()] {
        for takeover in [false, true] {
            let error = other.fails("initialize", with(resume(&session), json!({"takeover": takeover})));
            assert_eq!(error.kind(), "unknownSession");
            // The error does not reveal whether the session exists.
            assert_eq!(error.message.replace(&session, "ID"), unknown(&mut other).replace(&guess(1), "ID"));
        }
    }
    let mut again = token_helpers::connect(&server, &a);
    again.initialize_with(resume(&session));
    assert_eq!(again.ok("process/list", json!({}))["processes"][0]["processId"], "p");
    let audit = server.dir().join("audit.log");
    wait_for("the refusals on record", || {
        let refused = |line: &Value| line["event"] == "session.refuse" && line["session"] == session[..8];
        token_helpers::lines(&audit).iter().filter(|line| refused(line)).count() == 4
    });
    // The logs contain the beginning of the id, but not the whole id.
    let said = server.stderr() + &fs::read_to_string(&audit).expect("read the audit log");
    assert!(said.contains(&session[..8]) && !said.contains(&session), "the id of a session is in a log");
}

fn unknown(client: &mut Client) -> String {
    client.fails("initialize", resume(&guess(1))).message
}

#[test]
fn ids_have_122_random_bits() {
    let server = TestServer::start();
    let ids: BTreeSet<String> = (0..200).map(|_| server.connect().initialize()).collect();
    assert_eq!(ids.len(), 200);
    let mut seen = [0_u128; 2];
    for id in &ids {
        assert!(id.len() == 36 && &id[14..15] == "4" && "89ab".contains(&id[19..20]), "{id}");
        let bits = u128::from_str_radix(&id.replace('-', ""), 16).expect("hexadecimal");
        seen = [seen[0] | bits, seen[1] | !bits];
    }
    // Every bit except the six fixed ones was seen as 0 and as 1. By chance a random bit would stay constant once in 2^200.
    assert_eq!((seen[0] & seen[1]).count_ones(), 122);
}

#[test]
fn a_connection_waits_longer_with_each_wrong_try() {
    let server = TestServer::start();
    let mut client = server.connect();
    let begun = Instant::now();
    for n in 0..8 {
        assert_eq!(client.fails("initialize", resume(&guess(n))).kind(), "unknownSession");
    }
    // Three attempts without delay, then 0.1, 0.2, 0.4, 0.8 and 1.6 s.
    assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
    // A correct request still succeeds.
    client.initialize();
}

#[test]
fn ten_thousand_guesses_are_slowed_and_logged_and_disturb_no_other_client() {
    const CONNECTIONS: usize = 20;
    const GUESSES: usize = 500;
    const WINDOW: Duration = Duration::from_secs(5);
    let server = TestServer::builder().audit().start();
    let token = token_helpers::create(&server, "guesser", &[]);
    let (mut mine, session) = server.session();
    mine.ok("process/start", start_params("p", &["sleep", "1000"]));
    let guessers: Vec<Client> = (0..CONNECTIONS).map(|_| token_helpers::connect(&server, &token)).collect();
    let begun = Instant::now();
    let (answered, slowest) = thread::scope(|scope| {
        let guessing: Vec<_> = guessers
            .into_iter()
            .enumerate()
            .map(|(at, mut client)| {
                scope.spawn(move || {
                    for n in 0..GUESSES {
                        client.send_request("initialize", resume(&guess(at * GUESSES + n)));
                    }
                    // Answers have no `method`, so waiting for a notification collects them without returning one.
                    assert!(client.next_notification_within(WINDOW.saturating_sub(begun.elapsed())).is_none());
                    client.answers_so_far()
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        while begun.elapsed() < WINDOW - Duration::from_secs(1) {
            let asked = Instant::now();
            mine.ok("environment/status", json!({}));
            slowest = slowest.max(asked.elapsed());
        }
        // A client with the right id is not delayed, even under the guesser's own principal.
        let asked = Instant::now();
        server.resume(&session, json!({"takeover": true}));
        slowest = slowest.max(asked.elapsed());
        (guessing.into_iter().map(|guesser| guesser.join().expect("a guesser")).sum::<usize>(), slowest)
    });
    // A burst of 64 and then 8 per second.
    assert!((CONNECTIONS..=64 + 8 * 8).contains(&answered), "{answered} of {} were answered", CONNECTIONS * GUESSES);
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let refused = |line: &Value| line["event"] == "session.refuse" && line["principal"] == "guesser";
    let logged = token_helpers::lines(&server.dir().join("audit.log")).iter().filter(|line| refused(line)).count();
    assert!(logged >= answered, "{logged} of {answered} are on record");
    let guesses = CONNECTIONS * GUESSES;
    println!("{answered} of {guesses} guesses answered in {WINDOW:?}; others waited {slowest:?} at most");
}
