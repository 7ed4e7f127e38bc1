//! S11: a session's id has 122 random bits and stands whole in no log; with it only the principal that made the session resumes it. Who asks
//! for sessions that are not there waits longer and longer, is on record, and disturbs nobody.

use std::{
    collections::BTreeSet,
    fs, thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    common::{Client, TestServer, start_params, wait_for},
    promises::tokens,
};

fn resume(id: &str) -> Value {
    json!({"clientName": "test", "resumeSessionId": id})
}

/// Ids that look right and are nobody's.
fn guess(n: usize) -> String {
    format!("{n:08x}-0000-4000-8000-{:012x}", n * 7919)
}

#[test]
fn another_principal_with_the_right_id_is_refused() {
    let server = TestServer::builder().arg("--audit").arg("{dir}/audit.log").arg("--log").arg("trace").start();
    let [a, b] = ["a", "b"].map(|name| tokens::create(&server, name, &[]));
    let mut first = tokens::connect(&server, &a);
    let session = first.initialize();
    first.ok("process/start", start_params("p", &["sleep", "1000"]));
    first.leave();
    for mut other in [tokens::connect(&server, &b), server.connect()] {
        for takeover in [false, true] {
            let mut params = resume(&session);
            params["takeover"] = json!(takeover);
            let error = other.call("initialize", params).expect_err("not its session");
            assert_eq!(error.kind(), "unknownSession");
            // Not even whether there is such a session.
            assert_eq!(error.message.replace(&session, "ID"), unknown(&mut other).replace(&guess(1), "ID"));
        }
    }
    let mut again = tokens::connect(&server, &a);
    again.initialize_with(resume(&session));
    assert_eq!(again.ok("process/list", json!({}))["processes"][0]["processId"], "p");
    let audit = server.dir().join("audit.log");
    wait_for("the refusals on record", || {
        let refused = |line: &Value| line["event"] == "session.refuse" && line["session"] == session[..8];
        tokens::lines(&audit).iter().filter(|line| refused(line)).count() == 4
    });
    // Its beginning is in the logs, the whole of it is not.
    let said = server.stderr() + &fs::read_to_string(&audit).expect("read the audit log");
    assert!(said.contains(&session[..8]) && !said.contains(&session), "the id of a session is in a log");
}

fn unknown(client: &mut Client) -> String {
    client.call("initialize", resume(&guess(1))).expect_err("nobody's session").message
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
    // Each bit but the six that say what kind of id it is was seen both ways: by chance one stays still in 2^200.
    assert_eq!((seen[0] & seen[1]).count_ones(), 122);
}

#[test]
fn a_connection_waits_longer_with_each_wrong_try() {
    let server = TestServer::start();
    let mut client = server.connect();
    let begun = Instant::now();
    for n in 0..8 {
        assert_eq!(client.call("initialize", resume(&guess(n))).expect_err("a guess").kind(), "unknownSession");
    }
    // Three for nothing, then 0.1, 0.2, 0.4, 0.8 and 1.6 s.
    assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
    // And it still gets what is right.
    client.initialize();
}

#[test]
fn ten_thousand_guesses_are_slowed_and_logged_and_disturb_nobody() {
    const CONNECTIONS: usize = 20;
    const GUESSES: usize = 500;
    const WINDOW: Duration = Duration::from_secs(5);
    let server = TestServer::builder().arg("--audit").arg("{dir}/audit.log").start();
    let token = tokens::create(&server, "guesser", &[]);
    let mut mine = server.connect();
    let session = mine.initialize();
    mine.ok("process/start", start_params("p", &["sleep", "1000"]));
    let guessers: Vec<Client> = (0..CONNECTIONS).map(|_| tokens::connect(&server, &token)).collect();
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
                    // Answers come without a `method`, so that waiting for a notification counts none of them.
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
        // Whoever has the right id waits for nobody, also under the guesser's own name.
        let asked = Instant::now();
        let mut again = server.connect();
        again.initialize_with(json!({"clientName": "test", "resumeSessionId": session, "takeover": true}));
        slowest = slowest.max(asked.elapsed());
        (guessing.into_iter().map(|guesser| guesser.join().expect("a guesser")).sum::<usize>(), slowest)
    });
    // 64 at once and 8 a second.
    assert!((CONNECTIONS..=64 + 8 * 8).contains(&answered), "{answered} of {} were answered", CONNECTIONS * GUESSES);
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let refused = |line: &Value| line["event"] == "session.refuse" && line["principal"] == "guesser";
    let logged = tokens::lines(&server.dir().join("audit.log")).iter().filter(|line| refused(line)).count();
    assert!(logged >= answered, "{logged} of {answered} are on record");
    println!(
        "{answered} of {} guesses answered in {WINDOW:?}; others waited {slowest:?} at most",
        CONNECTIONS * GUESSES
    );
}
