//! S4: a token has 256 random bits from the system and is stored as a digest. It has a name, an expiry date and can be revoked. A client
//! whose token is revoked or expires is disconnected within a second, and no other client is. (`server::access::table` tests that comparing
//! takes constant time.)

use crate::prelude::*;

/// The close code of a connection whose access has ended.
const ACCESS_ENDED: u16 = 4001;

#[test]
fn a_token_is_kept_as_its_digest_in_a_file_that_only_we_can_read() {
    let server = TestServer::start();
    let made: Vec<String> = (0..4).map(|n| token_helpers::create(&server, &format!("n{n}"), &[])).collect();
    let path = server.state_dir().join("tokens.toml");
    let file = fs::read_to_string(&path).expect("read the file");
    for (n, token) in made.iter().enumerate() {
        assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "256 bits");
        assert!(!file.contains(token) && made[..n].iter().all(|other| other != token));
        let digest: String = <sha2::Sha256 as sha2::Digest>::digest(token).iter().map(|b| format!("{b:02x}")).collect();
        assert!(file.contains(&digest));
    }
    assert_eq!(mode_of(&path), 0o600);
    for (words, code) in [
        (&["create", "n1"][..], 1),
        (&["create", "owner"], 255),
        (&["create", "a b"], 255),
        (&["create", "x", "--scope", "root"], 2),
        (&["create", "x", "--expires", "soon"], 2),
        (&["revoke", "nobody"], 1),
    ] {
        assert_eq!(token_helpers::token(&server, words).status.code(), Some(code), "{words:?}");
    }
}

/// In random tokens, a digit that is equal in all forty occurs by chance only once in 16^39.
#[test]
fn every_digit_of_a_token_is_random() {
    let server = TestServer::start();
    let made: Vec<Vec<u8>> =
        (0..40).map(|n| token_helpers::create(&server, &format!("n{n}"), &[]).into_bytes()).collect();
    let fixed: Vec<usize> = (0..64).filter(|&at| made.iter().all(|token| token[at] == made[0][at])).collect();
    assert!(fixed.is_empty(), "the same in all: {fixed:?}");
}

#[test]
fn revocation_cuts_a_live_connection_within_a_second_and_no_other_connection() {
    let server = TestServer::start();
    let (token, other) = (token_helpers::create(&server, "a", &[]), token_helpers::create(&server, "b", &[]));
    let mut revoked = token_helpers::connect(&server, &token);
    let session = revoked.initialize();
    let pid = revoked.ok("process/start", start_params("p", &["sleep", "1000"]))["pid"].as_u64().expect("a pid");
    let (mut neighbour, mut owner) = (token_helpers::client(&server, &other), server.client());
    token_helpers::revoke(&server, "a");
    let begun = Instant::now();
    let closed = revoked.wait_closed();
    let took = begun.elapsed();
    assert_eq!(closed, Some((ACCESS_ENDED, "access was revoked".to_owned())));
    assert!(took <= Duration::from_secs(1), "{took:?}");
    assert!(Client::connect(&token_helpers::url(&server, &token)).is_err(), "and not let in again");
    for client in [&mut neighbour, &mut owner] {
        assert_eq!(client.ok("environment/status", json!({}))["status"], "ready");
    }
    // Its process keeps running. Only the next principal with that name can use it.
    assert!(fs::exists(format!("/proc/{pid}")).expect("look for the process"));
    let mut again = token_helpers::connect(&server, &token_helpers::create(&server, "a", &[]));
    again.initialize_with(json!({"clientName": "test", "resumeSessionId": session}));
    assert_eq!(again.ok("process/list", json!({}))["processes"][0]["pid"], pid);
    let refused = neighbour.fails("process/read", json!({"processId": "p", "sessionId": session}));
    assert_eq!(refused.kind(), "unknownSession", "another principal");
}

#[test]
fn a_connection_that_reads_nothing_is_cut_as_fast() {
    let server = TestServer::builder().audit().start();
    let mut client = token_helpers::client(&server, &token_helpers::create(&server, "a", &[]));
    client.ok("process/start", start_params("p", &["yes"]));
    let audit = server.dir().join("audit.log");
    token_helpers::revoke(&server, "a");
    let time = |event: &str| {
        let is_it = |line: &serde_json::Value| line["event"] == event && line["principal"] == "a";
        let line = token_helpers::lines(&audit).into_iter().find(is_it)?;
        let time = line["time"].as_str().expect("a time");
        let parts: Vec<f64> = time[11..23].split(':').map(|part| part.parse().expect("a number")).collect();
        Some(parts[0] * 3600.0 + parts[1] * 60.0 + parts[2])
    };
    wait_for("the end of the connection", || time("connection.close").is_some());
    let cut = time("connection.cut").expect("it was cut");
    let closed = time("connection.close").expect("it was closed");
    assert!((0.0..=0.75).contains(&(closed - cut)), "{cut} {closed}");
}

#[test]
fn an_expired_token_is_cut_and_refused_on_its_date() {
    let server = TestServer::start();
    let begun = Instant::now();
    let token = token_helpers::create(&server, "brief", &["--expires", "3s"]);
    let mut client = token_helpers::client(&server, &token);
    let closed = client.wait_closed();
    let took = begun.elapsed();
    assert_eq!(closed, Some((ACCESS_ENDED, "access has expired".to_owned())));
    // Expiry dates have a resolution of one second.
    assert!((Duration::from_secs(2)..Duration::from_secs(5)).contains(&took), "{took:?}");
    assert!(Client::connect(&token_helpers::url(&server, &token)).is_err());
    let listed = token_helpers::token(&server, &["list"]);
    assert!(text(&listed.stdout).contains("expired"), "{listed:?}");
}

#[test]
fn a_broken_token_file_changes_nothing_and_is_reported() {
    let server = TestServer::start();
    let token = token_helpers::create(&server, "a", &[]);
    let mut client = token_helpers::client(&server, &token);
    let path = server.state_dir().join("tokens.toml");
    let good = fs::read_to_string(&path).expect("read the file");
    let complaints = || server.stderr().matches("token file reload failed").count();
    for (n, broken) in [
        "[[tokens]".to_owned(),
        good.replace("scopes", "scope"),
        good.replace("\"exec\"", "\"everything\""),
        format!("{good}\nsandbox_floor = \"strict\"\n"),
        good.replace("\"a\"", "\"owner\""),
    ]
    .iter()
    .enumerate()
    {
        replace(&path, broken);
        wait_for("the complaint", || complaints() == n + 1);
        Client::connect(&token_helpers::url(&server, &token)).expect("what was in force stays so");
    }
    replace(&path, &good);
    set_mode(&path, 0o644);
    wait_for("the complaint about the mode", || server.stderr().contains("0644"));
    assert_eq!(client.ok("environment/status", json!({}))["status"], "ready");
    // A server does not start with such a file.
    let dir = tempfile::tempdir().expect("make a directory");
    let started = TestServer::builder().path_arg("--tokens", &path).refusal_text(dir.path());
    assert!(started.0 == Some(255) && started.1.contains("0644"), "{started:?}");
    set_mode(&path, 0o600);
    // The scopes have changed: the connection is closed, and the next one has the new scopes.
    replace(&path, &good.replace("\"exec\", ", ""));
    assert_eq!(client.wait_closed().expect("a close frame").1, "access was changed; connect again");
    let refused = token_helpers::client(&server, &token).fails("process/list", json!({}));
    assert_eq!(refused.kind(), "forbidden", "it lacks exec");
    fs::remove_file(&path).expect("remove the file");
    wait_for("no file to be an empty one", || Client::connect(&token_helpers::url(&server, &token)).is_err());
}

/// Replaces a file atomically: a reader in the middle of a write would see an empty file, which is valid.
fn replace(path: &std::path::Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("write");
    set_mode(&beside, 0o600);
    fs::rename(&beside, path).expect("rename");
}

#[test]
fn concurrent_edits_of_the_token_file_all_count() {
    let dir = tempfile::tempdir().expect("make a directory");
    let file = dir.path().join("tokens.toml");
    thread::scope(|scope| {
        for n in 0..16 {
            let file = &file;
            scope.spawn(move || {
                let mut command = Command::new(binary());
                let command = command.args(["token", "create", &format!("n{n}"), "--tokens"]).arg(file);
                let made = command.output().expect("run exec-server token");
                assert!(made.status.success(), "{made:?}");
            });
        }
    });
    let text = fs::read_to_string(&file).expect("read the file");
    assert_eq!(text.matches("[[tokens]]").count(), 16);
}
