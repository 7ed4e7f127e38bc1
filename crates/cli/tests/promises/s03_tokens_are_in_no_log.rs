//! S3: a token arrives in a header or in the URL. It never appears in a log line of any level, an answer or an audit record.

use crate::prelude::*;

#[test]
fn a_token_is_in_no_log_line_and_no_answer_whichever_way_it_came() {
    let server = TestServer::builder().args(["--log", "trace"]).audit().start();
    let named = token_helpers::create(&server, "named", &["--scope", "exec"]);
    let mut answers = Vec::new();
    for token in [server.token(), named.as_str()] {
        let mut by_url = token_helpers::client(&server, token);
        by_url.run("p", &["true"]);
        answers.push(format!("{:?}", by_url.call("process/start", start_params("q", &["/no/such"]))));
        let signal = serde_json::json!({"processId": token, "signal": "x"});
        answers.push(format!("{:?}", by_url.call("process/signal", signal)));
        let bearer = format!("Bearer {token}");
        let plain = format!("ws://{}/", server.address());
        Client::connect_with(&plain, &[("Authorization", &bearer)]).expect("by header").initialize();
        let (host, header) = (server.address(), format!("Authorization: {bearer}\r\n"));
        for (target, host, more) in [
            (format!("/other?token={token}"), host, ""),
            (format!("/?token={token}x"), host, ""),
            (format!("/?token={}", token.to_uppercase()), host, ""),
            (format!("/?token={token}"), "evil.example", ""),
            ("/".to_owned(), host, "Origin: null\r\n"),
            ("/".to_owned(), host, header.as_str()),
            ("/metrics".to_owned(), host, header.as_str()),
        ] {
            answers.push(format!("{:?}", http(server.address(), &upgrade(&target, host, more))));
        }
    }
    token_helpers::revoke(&server, "named");
    let listed = token_helpers::token(&server, &["list", "--json"]);
    let audit = fs::read_to_string(server.dir().join("audit.log")).expect("read the audit log");
    assert!(server.stderr().len() > 1000 && audit.contains("door.refuse"), "the logs say something at all");
    let file = fs::read_to_string(server.state_dir().join("tokens.toml")).expect("read the token file");
    let said = [server.stderr(), audit, file, answers.join("\n"), format!("{listed:?}")].concat().to_lowercase();
    for token in [server.token(), named.as_str()] {
        // A process id that a client chose itself is repeated to that client, even if it contains the token.
        let said = said.replace(&format!("unknown process id {token}"), "").replace(&format!("{token} has"), "");
        assert_eq!(said.matches(&token.to_lowercase()).count(), 0);
    }
    let refused = Command::new(binary()).args(["serve", "--token", server.token()]).output().expect("run exec-server");
    assert_eq!(refused.status.code(), Some(2), "no flag takes a token itself");
}
