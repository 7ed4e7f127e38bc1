//! S13: nothing is compressed. An offer of `permessage-deflate` is not accepted, and a frame that is marked as compressed closes its
//! connection before anything is inflated.

use crate::{
    prelude::*,
    promises::hand_written_websocket::{Raw, Said},
};

/// The beginning of a deflate block in which each zero byte stands for 1032 bytes of output.
const BOMB: &[u8] = b"\xec\xc1\x01\x01\x00\x00\x00\x80\x90\xfe\xaf\xee\x08\x0a";

#[test]
fn an_offer_of_compression_is_not_accepted_and_a_bomb_is_not_inflated() {
    let server = TestServer::start();
    let before = server.memory();
    for offer in [
        "Sec-WebSocket-Extensions: permessage-deflate\r\n",
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits; server_no_context_takeover\r\n",
        "Sec-WebSocket-Extensions: x-webkit-deflate-frame, permessage-bzip2\r\n",
        "",
    ] {
        let mut raw = Raw::open(&server, offer);
        assert!(!raw.head.to_lowercase().contains("extensions"), "{}", raw.head);
        // 1 MiB that would inflate to more than 1 GiB.
        let bomb = [BOMB, &vec![0; 1 << 20]].concat();
        raw.frame(0xc1, &bomb);
        assert!(matches!(raw.next(), Said::Close(1002) | Said::Gone), "{offer}");
        let mut raw = Raw::open(&server, offer);
        // Short enough that no part of it is unread when the server closes the connection.
        raw.frame(0xc1, &BOMB[..8]);
        assert_eq!(raw.next(), Said::Close(1002), "{offer}");
    }
    assert!(server.memory() < before + (32 << 20), "from {before} to {}", server.memory());
    server.client();
}
