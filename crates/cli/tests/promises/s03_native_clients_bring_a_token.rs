//! S3, authentication of native clients: a token is accepted in `Authorization: Bearer` or as `?token=` in the URL. No cookie, Basic auth,
//! subprotocol or first message is accepted. If a client sends several tokens, all of them must be right.

use crate::prelude::*;

#[test]
fn the_token_opens_by_url_and_by_header() {
    let server = TestServer::start();
    Client::connect(server.url()).expect("by URL").initialize();
    let bearer = format!("Bearer {}", server.token());
    let plain = format!("ws://{}/", server.address());
    Client::connect_with(&plain, &[("Authorization", &bearer)]).expect("by header").initialize();
    assert!(Client::connect(&plain).is_err());
}

#[test]
fn nothing_else_is_a_way_in() {
    let server = TestServer::start();
    let (host, token) = (server.address(), server.token());
    let base64 = testkit::encode_base64(format!("x:{token}").as_bytes());
    for more in [
        format!("Cookie: token={token}\r\n"),
        format!("Authorization: Basic {base64}\r\n"),
        format!("Authorization: {token}\r\n"),
        format!("Authorization: Bearer{token}\r\n"),
        format!("Proxy-Authorization: Bearer {token}\r\n"),
        format!("Sec-WebSocket-Protocol: {token}\r\n"),
        format!("X-Token: {token}\r\n"),
        format!("Authorization: Bearer {token}\r\nAuthorization: Bearer wrong\r\n"),
        "Authorization: Bearer \r\n".to_owned(),
    ] {
        assert_eq!(http(host, &upgrade("/", host, &more)).status, 401, "{more}");
    }
    for target in [
        format!("/?token={token}&token=wrong"),
        format!("/?Token={token}"),
        format!("/?token={token}x"),
        format!("/?token={}", &token[..token.len() - 1]),
        format!("/#token={token}"),
        format!("/{token}"),
        "/?token".to_owned(),
    ] {
        assert_eq!(http(host, &upgrade(&target, host, "")).status, 401, "{target}");
    }
    let good = format!("Authorization: bearer  {token}\r\n");
    assert_eq!(http(host, &upgrade(&format!("/?x=1&token={token}&y"), host, &good)).status, 101);
}
