//! Bytes attached to messages: blocks of files in both directions, and attachments that are not allowed.

use crate::prelude::*;

/// A message with attached bytes, assembled by hand.
pub(crate) fn attached(json: &Value, bytes: &[u8]) -> Message {
    let json = json.to_string();
    let length = u32::try_from(json.len()).expect("a short text");
    let mut message = vec![0x80];
    message.extend(length.to_le_bytes());
    message.extend(json.as_bytes());
    message.extend(bytes);
    Message::Binary(message.into())
}

/// A client that announced the dialect, and one that did not.
fn clients(server: &TestServer) -> [Client; 2] {
    [json!(["attached", "later"]), json!([])].map(|dialects| {
        let mut client = server.connect();
        let capabilities = json!({"ack": true, "gap": true, "concurrent": true, "dialects": dialects});
        client.initialize_with(json!({"clientName": "test", "capabilities": capabilities}));
        client
    })
}

/// All byte values, in an order that is not valid UTF-8.
fn bytes() -> Vec<u8> {
    (0..=255).rev().cycle().take(5000).collect()
}

#[test]
fn a_block_is_written_and_read_with_its_bytes_attached() {
    let server = TestServer::start();
    let [mut client, mut plain] = clients(&server);
    let path = server.dir().join("file");
    client.ok("fs/create", json!({"handleId": "d", "path": path}));
    let write = json!({"id": 100, "method": "fs/writeBlock", "params": {"handleId": "d", "offset": 3, "chunk": ""}});
    client.send_message(attached(&write, &bytes())).expect("send");
    assert_eq!(client.answer(100).expect("written")["size"], 5003);
    client.ok("fs/commit", json!({"handleId": "d"}));
    let found = fs::read(&path).expect("it is there");
    assert_eq!((&found[..3], &found[3..]), (&[0; 3][..], &bytes()[..]));

    client.ok("fs/open", json!({"handleId": "r", "path": path}));
    let id = client.send_request("fs/readBlock", json!({"handleId": "r", "offset": 3, "len": 6000}));
    let (answer, beside) = client.next_attached();
    assert_eq!(answer, json!({"id": id, "result": {"chunk": "", "eof": true}}));
    assert_eq!(beside, bytes());
    // A client without the dialect gets base64.
    plain.ok("fs/open", json!({"handleId": "r", "path": path}));
    let block = plain.ok("fs/readBlock", json!({"handleId": "r", "offset": 3, "len": 6000}));
    assert_eq!(decode_base64(block["chunk"].as_str().expect("text")), bytes());
}

#[test]
fn what_is_attached_in_vain_is_refused_and_costs_nothing_else() {
    let server = TestServer::start();
    let [mut client, mut plain] = clients(&server);
    client.ok("fs/create", json!({"handleId": "d", "path": server.dir().join("file")}));
    let refused = |client: &mut Client, message: Message, id: i64| {
        client.send_message(message).expect("send");
        client.answer(id).expect_err("it is refused")
    };
    let list = json!({"id": 100, "method": "process/list", "params": {}});
    assert_error(&refused(&mut client, attached(&list, b"x"), 100), -32602, "invalidParams");
    let both = json!({"id": 101, "method": "fs/writeBlock", "params": {"handleId": "d", "offset": 0, "chunk": "eA=="}});
    assert_error(&refused(&mut client, attached(&both, b"x"), 101), -32600, "invalidInput");
    let large = json!({"id": 102, "method": "fs/writeBlock", "params": {"handleId": "d", "offset": 0, "chunk": ""}});
    assert_error(&refused(&mut client, attached(&large, &vec![0; (1 << 20) + 1]), 102), -32600, "invalidInput");
    // A head that announces more bytes than there are, a lone head byte, and an unexpected attachment.
    for head in [&[0x80_u8, 255, 255, 255, 255, b'{'][..], &[0x80], &[0x80, 2, 0, 0, 0, b'{', b'}', 7]] {
        let error = refused(&mut client, Message::Binary(head.to_vec().into()), -1);
        assert_error(&error, -32600, "malformed");
    }
    assert_error(&refused(&mut plain, attached(&list, b"x"), -1), -32600, "malformed");
    for client in [&mut client, &mut plain] {
        client.ok("process/list", json!({}));
    }
}
