//! Writes the initial files of every corpus, from the golden messages and with our own encoders. Run it with
//! `cargo run -p exec-server-fuzzed --example seeds`. Files that libFuzzer has added to the corpus stay.

#![expect(clippy::unwrap_used, reason = "a tool for developers")]

use std::{fs, path::PathBuf};

use exec_server_fuzzed::TARGETS;
use exec_server_holder::{
    TerminalSize,
    control::{
        AnnouncedSegment, CommandStatus, FromHolder, OverflowPolicy, ProcessInfo, StartSpec, StartStage, ToHolder,
        WriteStatus,
    },
};
use exec_server_log::{ControlBlock, Exit, LogWriter, OutputStream, SegmentPool};
use exec_server_rpc::{Framing, Outbox, WebSocketRole};
use futures_util::FutureExt as _;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn main() {
    let golden = golden();
    for (name, _) in TARGETS {
        let seeds: Vec<Vec<u8>> = match *name {
            "message" => golden.iter().cloned().chain(bad_messages()).collect(),
            "lines" => lines(&golden),
            "websocket" => frames(&golden),
            "base64" => texts(&["", "AA==", "AAA=", "AAAA", "AB==", "////", "a-_b", "AA=", "A A=", "Zm9vYmFy"]),
            "path" => texts(PATHS),
            "holder_wire" => packets(),
            "disk_log" => logs(),
            "memory_log" => segments(),
            other => panic!("no seeds for `{other}`"),
        };
        let dir = root().join("fuzz/corpus").join(name);
        fs::create_dir_all(&dir).unwrap();
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(dir.join(format!("seed-{number:03}")), seed).unwrap();
        }
    }
}

const PATHS: &[&str] = &[
    "/a/b",
    "relative",
    "file:///a/b%20c",
    "file://localhost/x",
    "file:/one",
    "FILE:///a/../b/./c/..",
    "file:///C:/x",
    "file:///%2e%2E/x",
    "file:///a%2Fb/../c",
    "file:///a?b",
    "file://host/a",
    "file:///%00",
    "file:///%zz",
    "",
];

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn golden() -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(root().join("crates/protocol/fixtures")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let files = paths.iter().map(|path| fs::read(path).unwrap()).filter(|bytes| bytes.len() < 4096);
    files.map(|bytes| bytes.trim_ascii_end().to_vec()).collect()
}

fn bad_messages() -> Vec<Vec<u8>> {
    texts(&[
        "{\"id\":1,\"id\":2}",
        "{\"id\":1,\"\\u0069d\":2,\"method\":\"m\"}",
        "{\"id\":-0,\"method\":\"m\"}",
        "{\"method\":\"\\ud83d\\ude00\"}",
        "{\"method\":\"\\ud83d\"}",
        "[1,2]",
        "{\"id\":1,\"error\":{\"code\":1,\"message\":\"x\",\"data\":{\"kind\":\"malformed\"}}}",
        "{\"a\":[[[[[[[[{\"b\":1e999}]]]]]]]],\"method\":\"x\"}",
        " { } ",
        "{\"id\":\"x\",\"result\":null}x",
    ])
}

fn lines(golden: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> =
        golden.chunks(9).map(|some| [b"\xff\x07", &some.join(&b'\n')[..], b"\n"].concat()).collect();
    seeds.extend(texts(&["\x03\x00abc\r\nabcd\n", "\x03\x01\n\r\n \t\nab", "\x02\x04abc\r", "\x08\x02caf\u{e9}\n"]));
    seeds.push(b"\x08\x02\xff\xfe\n".to_vec());
    seeds.iter().map(|seed| seed[..seed.len().min(2048)].to_vec()).collect()
}

fn frames(golden: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (role, choice) in [(WebSocketRole::Client, 0x20_u8), (WebSocketRole::Server, 0x21)] {
        for some in golden.chunks(20) {
            let mut outbox = Outbox::new(Framing::WebSocket { role, max: 1 << 20 });
            for message in some.iter().filter(|message| message.len() < 400) {
                outbox.message(message.len(), |buf| buf.extend_from_slice(message));
            }
            outbox.ping(b"ping");
            outbox.pong(b"");
            outbox.close(1001, "bye");
            let mut sent = vec![choice, 0xff];
            outbox.flush_to(&mut sent).now_or_never().unwrap().unwrap();
            sent.truncate(3000);
            seeds.push(sent);
        }
    }
    seeds.push(b"\x21\xff\x01\x03abc\x89\x01p\x00\x01d\x80\x01e\x88\x02\x03\xe8".to_vec());
    seeds.push(b"\x21\xff\x81\x7e\x00\x03abc\x82\x7f\0\0\0\0\0\0\0\x02hi".to_vec());
    seeds
}

fn packets() -> Vec<Vec<u8>> {
    let spec = StartSpec {
        argv: vec![b"sh".to_vec(), b"-c".to_vec(), b"true".to_vec()],
        arg0: Some(b"-sh".to_vec()),
        env: vec![b"PATH=/bin".to_vec()],
        cwd: b"/".to_vec(),
        tty: Some(TerminalSize { rows: 24, cols: 80 }),
        timeout_ms: Some(5),
        overflow: OverflowPolicy::DropOldest,
        cap_bytes: 1 << 24,
        meta: b"{}".to_vec(),
        ..StartSpec::default()
    };
    let to = [
        ToHolder::Hello { version: 1, secret: [7; 32], epoch: 9 },
        ToHolder::Attach,
        ToHolder::Detach { ttl_ms: 1000 },
        ToHolder::SetTtl { ttl_ms: u64::MAX },
        ToHolder::Start { req: 1, spec },
        ToHolder::Write { req: 2, slot: 0, key: Some([1; 16]), digest: None, total: 5, offset: 0, data: b"hello" },
        ToHolder::CloseStdin { req: 3, slot: 0 },
        ToHolder::Signal { req: 4, slot: 0, signal: 15 },
        ToHolder::Resize { req: 5, slot: 0, rows: 1, cols: 2 },
        ToHolder::Terminate { req: 6, slot: 0, grace_ms: Some(10) },
        ToHolder::Cap { slot: 0, bytes: 1 },
        ToHolder::Release { slot: 0, segment: 1 },
        ToHolder::Return { segment: 1 },
        ToHolder::Forget { req: 7, slot: 0 },
        ToHolder::End { req: 8 },
    ];
    let from = [
        FromHolder::Welcome { version: 1, epoch: 9, ttl_ms: 1, detached_ms: 2, info: b"{}".to_vec() },
        FromHolder::Refused { version: 1, epoch: 9 },
        FromHolder::Process(Box::new(ProcessInfo { meta: b"{}".to_vec(), ..ProcessInfo::default() })),
        FromHolder::Segment(AnnouncedSegment {
            slot: 0,
            id: 1 << 32 | 1,
            base_seq: 1,
            base_offset: 0,
            on_disk: true,
            sealed: true,
        }),
        FromHolder::Ready,
        FromHolder::Started { req: 1, slot: 0, pid: 2 },
        FromHolder::StartFailed { req: 1, stage: StartStage::Exec, errno: 2, detail: b"sh".to_vec() },
        FromHolder::Written { req: 2, status: WriteStatus::Accepted, done: 5 },
        FromHolder::Done { req: 3, status: CommandStatus::Failed(5) },
        FromHolder::Spilled { slot: 0, segment: 1 },
        FromHolder::Dropped { slot: 0, segment: 1 },
        FromHolder::Retired { segment: 1 },
        FromHolder::Expired,
    ];
    let mut seeds = Vec::new();
    to.iter().for_each(|message| seeds.push(encoded(|out| message.encode(out))));
    from.iter().for_each(|message| seeds.push(encoded(|out| message.encode(out))));
    seeds.push(b"1700000000\n7 running 00ff\n8 closed \n".to_vec());
    seeds.push(b"0 4711 9 3 2 100 500 0 0 0: :7b7d\n1 4712 9 1 0 0 50 0 9 8::00\n".to_vec());
    seeds.push(b"\x01\xff\x08\0\0\0\0\0\0\0".to_vec());
    seeds
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn logs() -> Vec<Vec<u8>> {
    let control = ControlBlock::create().unwrap();
    control.reset_slot(3);
    let (mut pool, mut writer) = (SegmentPool::new(), LogWriter::new(3));
    for len in [5, 100, 600] {
        writer.room(&mut pool).unwrap().buf[..len].fill(7);
        writer.commit(&control, OutputStream::Stdout, len);
    }
    writer.append_exited(&control, &mut pool, Exit::default()).unwrap();
    writer.append_closed(&control, &mut pool).unwrap();
    let file = encoded(|out| writer.oldest_sealed_in_memory().unwrap().encode_for_disk(out));
    let mut seeds = vec![[&[0], &file[..]].concat(), [&[0], &file[..200]].concat(), [&[0], &file[..63]].concat()];
    // Record lengths, then damages: cut, bit flip, zeros, removal.
    let long = [0xff_u8; 80];
    for damage in [&[][..], &[0, 0, 0, 128], &[1, 1, 0, 64], &[0, 2, 0, 200], &[1, 3, 0, 0], &[0, 1, 1, 0]] {
        seeds.push([&[1, 40][..], &long, damage].concat());
        seeds.push([&[1, 3, 5, 0, 0, 1, 9, 0][..], damage].concat());
    }
    seeds
}

fn segments() -> Vec<Vec<u8>> {
    let numbers =
        |cursor: u64, seq: u64, offset: u64| [cursor.to_le_bytes(), seq.to_le_bytes(), offset.to_le_bytes()].concat();
    let whole = numbers(0, 10, 6183);
    vec![
        whole.clone(),
        [&whole[..], &[24, 0, 0xff, 0xff, 0xff, 0xff]].concat(),
        [&whole[..], &[48, 0, 0, 0, 1, 0]].concat(),
        [&whole[..], &[64, 0, 9, 9, 9, 9, 80, 0, 1, 0, 0, 0]].concat(),
        numbers(u64::MAX, u64::MAX, u64::MAX),
        numbers(5, 3, 0),
        [&numbers(0, u64::MAX - 3, u64::MAX - 9)[..], &[24, 0, 0, 1, 0, 0]].concat(),
    ]
}
