//! S18: a process without network access cannot use the server to get it. In a sandbox with a restricted network `http/request` is refused,
//! no matter which side enforces the sandbox; the error says so, and nothing is sent.

use crate::prelude::*;

#[test]
fn http_requests_are_refused_while_the_network_is_restricted() {
    let target = Target::saying("hello");
    let (_server, mut client) = TestServer::with_client();
    let files = json!({"type": "unrestricted"});
    let mut ask = |permissions: Value| {
        let sandbox = json!({"permissions": permissions});
        let params = json!({"method": "GET", "url": target.url("/"), "requestId": "r", "sandbox": sandbox});
        client.call("http/request", params)
    };
    for restricted in [
        json!({"type": "managed", "file_system": files, "network": "restricted"}),
        json!({"type": "external", "network": "restricted"}),
        // The older format grants nothing that it does not mention.
        json!({"file_system": {"read": ["/"]}}),
        json!({"network": {"enabled": false}}),
        json!({"network": {}}),
    ] {
        let error = ask(restricted.clone()).expect_err("it is refused");
        assert_error(&error, -32600, "sandboxDenied");
        assert!(error.message.contains("no network"), "{}", error.message);
    }
    // A policy that cannot be parsed grants nothing.
    assert_eq!(ask(json!({"type": "open"})).expect_err("it is refused").kind(), "invalidParams");
    assert_eq!(target.asked(), [], "nothing was sent");
    for enabled in [
        json!({"type": "managed", "file_system": files, "network": "enabled"}),
        json!({"type": "external", "network": "enabled"}),
        json!({"type": "disabled"}),
        json!({"network": {"enabled": true}}),
    ] {
        assert_eq!(ask(enabled.clone()).expect("it is made")["status"], 200, "{enabled}");
    }
}
