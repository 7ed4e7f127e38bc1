//! S2: whoever does not prove who it is gets 401 before there is any state for it, on every route but the two that say
//! whether the server lives. That no route can skip the door is a matter of types; see the failing example in `server::door`.

use crate::{
    common::{TestServer, http},
    promises::upgrade,
};

#[test]
fn without_a_token_every_route_says_401_and_nothing_else() {
    let server = TestServer::start();
    let host = server.address();
    let mut answers = Vec::new();
    for target in ["/", "/?token=", "/?token=wrong", "/rpc", "/metrics", "/admin", "/favicon.ico", "/healthzz", "/.."] {
        for method in ["GET", "POST", "OPTIONS", "DELETE"] {
            let reply = http(host, &upgrade(target, host, "").replace("GET", method));
            answers.push(reply);
        }
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!((answers[0].status, answers[0].body.as_str()), (401, ""));
    for (target, body) in [("/healthz", "ok"), ("/readyz", "ok")] {
        let reply = http(host, &format!("GET {target} HTTP/1.1\r\nHost: anything\r\n\r\n"));
        assert_eq!((reply.status, reply.body.as_str()), (200, body));
    }
}
