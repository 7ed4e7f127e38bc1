//! The dialect `binary`: frames by channel number, numbers that change or are unknown, and invalid frames.

use crate::{peer::Peer, prelude::*};
use exec_server_client::protocol::{
    frame::{OutputFrame, WriteFrame},
    process::Stream,
};

async fn channel(peer: &mut Peer, process: &str, channel: u32) {
    peer.notify("process/channel", json!({"processId": process, "channel": channel})).await;
}

async fn output(peer: &mut Peer, channel: u32, seq: u64, stream: Stream, text: &str) {
    let frame = OutputFrame { channel, stream, seq, offset: 0 };
    peer.frame(&[&frame.encode()[..], text.as_bytes()].concat()).await;
}

#[tokio::test(start_paused = true)]
async fn frames_reach_the_process_of_their_number() {
    let (_client, mut peer, _door, [p, q]) = running_two(CURRENT).await;
    let (mut p, mut q) = (p.events(), q.events());
    // Channel 7 is not assigned yet, and the client has no process `nobody`.
    output(&mut peer, 7, 1, Stream::Stdout, "early").await;
    channel(&mut peer, "nobody", 9).await;
    output(&mut peer, 9, 1, Stream::Stdout, "lost").await;
    channel(&mut peer, "p", 7).await;
    channel(&mut peer, "q", 8).await;
    output(&mut peer, 7, 1, Stream::Stdout, "one").await;
    output(&mut peer, 8, 1, Stream::Stderr, "other").await;
    // Output as text goes to the same log.
    peer.output_on("p", 2, "stdout", "two").await;
    // Reassign a number: the last assignment counts, for both processes.
    channel(&mut peer, "p", 8).await;
    output(&mut peer, 8, 3, Stream::Pty, "three").await;
    output(&mut peer, 7, 4, Stream::Stdout, "late").await;
    peer.ends("p", 4, 0).await;
    assert_eq!(collect(&mut p).await, ["out 1 one", "out 2 two", "tty 3 three", "exit 4=0", "close 5"]);
    assert_eq!(next(&mut q).await, "err 1 other");
}

#[tokio::test(start_paused = true)]
async fn writes_go_as_frames_once_there_is_a_number_and_only_then() {
    let (client, mut peer, _door) = connect(CURRENT).await;
    let process = start(&client, &mut peer, named("p").pipe_stdin(true)).await;
    let first = process.write("in text");
    let served = async {
        let request = peer.request("process/write").await;
        assert_eq!(request.params["chunk"], "aW4gdGV4dA==");
        peer.answer(&request, json!({"status": "accepted"})).await;
        channel(&mut peer, "p", 7).await;
    };
    let (written, ()) = tokio::join!(first, served);
    written.unwrap();
    // When the client has received the output, it has also received the channel number before it.
    peer.output_on("p", 1, "stdout", "x").await;
    assert_eq!(next(&mut process.events()).await, "out 1 x");
    let served = async {
        let message = peer.recv_bytes().await;
        let (frame, bytes) = WriteFrame::decode(&message).unwrap();
        assert_eq!((frame.channel, bytes), (7, &b"as bytes"[..]));
        assert!(frame.write_id.ends_with("-1"), "{}", frame.write_id);
        peer.send(&json!({"id": frame.id, "result": {"status": "accepted"}})).await;
    };
    let (written, ()) = tokio::join!(process.write("as bytes"), served);
    written.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_none_is_a_cut_and_the_process_goes_on() {
    let good = OutputFrame { channel: 7, stream: Stream::Stdout, seq: 1, offset: 0 }.encode();
    let mut bad_stream = good;
    bad_stream[1] = 9;
    let mut write = Vec::new();
    assert!(WriteFrame { channel: 7, id: 1, write_id: "w" }.encode(&mut write));
    for bad in [&good[..20], &bad_stream, &write] {
        let (client, mut peer, mut door, process) = running(CURRENT).await;
        let mut events = process.events();
        channel(&mut peer, "p", 7).await;
        peer.frame(bad).await;
        let (mut peer, _) = door.welcome(CURRENT).await;
        is_connected(&client).await;
        // Channel numbers belong to a link: the old one means nothing on the next link.
        output(&mut peer, 7, 1, Stream::Stdout, "lost").await;
        channel(&mut peer, "p", 3).await;
        output(&mut peer, 3, 1, Stream::Stdout, "one").await;
        assert_eq!(next(&mut events).await, "out 1 one");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reference_server_is_written_to_in_text() {
    let (client, mut peer, _door) = connect(Kind::H).await;
    let process = start(&client, &mut peer, named("p").pipe_stdin(true)).await;
    let served = async {
        let request = peer.request("process/write").await;
        assert_eq!(request.params["chunk"], "eA==");
        peer.answer(&request, json!({"status": "accepted"})).await;
    };
    let (written, ()) = tokio::join!(process.write("x"), served);
    written.unwrap();
}
