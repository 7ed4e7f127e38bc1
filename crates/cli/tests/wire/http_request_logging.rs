//! Log and audit log contain only scheme, host and port of an HTTP request, at every level.

use crate::prelude::*;

/// Strings that must appear nowhere.
const SECRETS: [&str; 8] = [
    "sEcReT-path",
    "sEcReT-query",
    "sEcReT-user",
    "sEcReT-password",
    "sEcReT-header",
    "sEcReT-body",
    "sEcReT-answer",
    "sEcReT-reply",
];

fn server() -> TestServer {
    TestServer::builder().arg("--log").arg("trace").arg("--audit").arg("{dir}/audit.log").start()
}

/// Returns the audit log and the server's stderr so far, after checking that neither contains a secret.
fn said(server: &TestServer) -> (String, String) {
    let audit = fs::read_to_string(server.dir().join("audit.log")).expect("read the audit log");
    let log = server.stderr();
    for secret in SECRETS.iter().flat_map(|secret| [(*secret).to_owned(), encode_base64(secret.as_bytes())]) {
        assert!(!log.contains(&secret), "{secret} is in the log");
        assert!(!audit.contains(&secret), "{secret} is in the audit log");
    }
    (log, audit)
}

fn url(address: &str) -> String {
    format!("http://sEcReT-user:sEcReT-password@{address}/sEcReT-path?sEcReT-query")
}

#[test]
fn delegated_http_success_logs_do_not_expose_sensitive_request_or_response_data() {
    let target = Target::start(|_, stream| {
        target::respond(stream, "200 OK", &[("x-reply", "sEcReT-reply")], b"sEcReT-answer");
    });
    let server = server();
    let mut client = server.client();
    for is_stream in [false, true] {
        let params = json!({
            "method": "POST",
            "url": url(target.address()),
            "headers": [{"name": "x-api-key", "value": "sEcReT-header"}],
            "bodyBase64": encode_base64(b"sEcReT-body"),
            "requestId": "r",
            "streamResponse": is_stream,
        });
        assert_eq!(client.ok("http/request", params)["status"], 200);
    }
    client.next_notification();
    client.next_notification();
    assert_eq!(target.asked()[0].path, "/sEcReT-path?sEcReT-query", "it was asked for");
    let record = format!("\"target\":\"http://{}\"", target.address());
    wait_for("the log and the audit to say where to", || {
        let (log, audit) = said(&server);
        log.contains("HTTP answer") && log.contains(target.address()) && audit.contains(&record)
    });
    said(&server);
}

#[test]
fn delegated_http_failure_warning_redacts_request_url() {
    let address = {
        // Nothing listens at this address any longer.
        let target = Target::saying("");
        target.address().to_owned()
    };
    let server = server();
    let mut client = server.client();
    let params = json!({
        "method": "GET",
        "url": url(&address),
        "headers": [{"name": "cookie", "value": "sEcReT-header"}],
        "requestId": "r",
    });
    let error = client.refuses("http/request", params, -32603, "httpFailed");
    assert!(SECRETS.iter().all(|secret| !error.message.contains(secret)), "{}", error.message);
    wait_for("the warning", || server.stderr().contains("HTTP request failed"));
    let (log, _) = said(&server);
    let warning = log.lines().find(|line| line.contains("HTTP request failed")).expect("a warning");
    assert!(warning.contains("WARN") && warning.contains(&address), "{warning}");
}
