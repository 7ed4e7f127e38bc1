//! Replays recorded sessions of a reference server (generation H) against ours.
//!
//! These must agree: shapes, codes, statuses, sequence numbers, and the order of each process's events. These may differ: error texts
//! except the literals of spec 0.1, session ids, ports, additional keys, and how the output of a child is cut into chunks. Where ours
//! differs by decision, the test says so and gives the reason.

use std::os::unix::fs::PermissionsExt;

use crate::{
    prelude::*,
    wire::transcript_replay::{Difference, Replay},
};

fn same(_: &Value) -> Option<Value> {
    None
}

fn replay(name: &str, sent: Difference, expected: Difference) {
    let server = TestServer::start();
    Replay::run(&server, name, sent, expected).assert_alive();
}

#[test]
fn every_transcript_is_replayed_or_left_to_another_issue() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let found: BTreeSet<String> = fs::read_dir(dir)
        .expect("the folder is there")
        .map(|entry| entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    let replayed = "env-policy files handshake late-output malformed pipe resume signals start-errors \
                    stdin tty unknown-notification";
    assert_eq!(found, replayed.split(' ').map(str::to_owned).collect());
}

/// Tests of transcripts in which our messages equal the recorded ones.
macro_rules! replayed {
    ($($test:ident $name:literal)*) => {
        $(#[test]
        fn $test() {
            replay($name, same, same);
        })*
    };
}

replayed! { env_policy "env-policy" late_output "late-output" malformed "malformed" pipe "pipe" stdin "stdin" tty "tty" }

#[test]
fn handshake() {
    // The recorded `environment/info` describes the reference's host and product. Ours describes this host, and claims none of the
    // capabilities of that product except reading blocks inside a sandbox (design section 4, last row).
    replay("handshake", same, |message| {
        (message["id"] == 6).then(|| {
            let capabilities = json!({
                "capabilityDiscoverySandbox": false, "environmentConfigRead": false, "httpHeaderEnvVars": true,
                "networkProxyLaunch": false, "sandboxedFileStreaming": true, "shellSnapshotV2": false,
            });
            json!({"id": 6, "result": {"capabilities": capabilities, "temporaryDirectories": [], "shell": {}}})
        })
    });
}

#[test]
fn signals() {
    // The reference knows only `interrupt`; ours accepts every POSIX name (design section 4: every signal). The process has exited, so the
    // signal has no effect, as for `interrupt`.
    replay("signals", same, |message| (message["id"] == 5).then(|| json!({"id": 5, "result": {}})));
}

#[test]
fn resume() {
    // The recording waited before it read; we wait in the read.
    replay(
        "resume",
        |message| {
            let mut message = message.clone();
            (message["method"] == "process/read").then(|| {
                message["params"]["waitMs"] = json!(20_000);
                message
            })
        },
        same,
    );
}

#[test]
fn unknown_notification() {
    // The reference closes the connection without an answer, and the recording ends there. Ours answers with an error with id -1, and the
    // connection stays open (design section 4).
    let server = TestServer::start();
    let mut client = Replay::run(&server, "unknown-notification", same, same);
    client.expect_orphan_error("unknownNotification");
    client.assert_alive();
}

/// The directory of the files in the transcript `files`.
fn scratch() -> String {
    format!("/tmp/exec-server-scratch-{}", std::process::id())
}

/// The message with paths in our scratch directory.
fn elsewhere(message: &Value) -> Value {
    let text = message.to_string().replace("/scratch/", &format!("{}/", scratch()));
    serde_json::from_str(&text).expect("only a name was changed")
}

#[test]
fn files() {
    // The recorder created a FIFO and two links by hand; here they exist from the beginning. Times depend on this host, and so does the
    // order of a listing, which `fs_reference` compares.
    let server = TestServer::start();
    let name = scratch();
    let name = name.strip_prefix("/tmp/").expect("it is there");
    let scratch = tempfile::Builder::new().prefix(name).rand_bytes(0).tempdir_in("/tmp").expect("make a directory");
    let dir = scratch.path().join("d");
    fs::create_dir(&dir).expect("make a directory");
    testkit::fifo(&dir, "fifo");
    std::os::unix::fs::symlink("f", dir.join("l")).expect("make a link");
    std::os::unix::fs::symlink("nowhere", dir.join("broken")).expect("make a link");
    Replay::run(
        &server,
        "files",
        |message| Some(elsewhere(message)),
        |message| {
            let mut message = elsewhere(message);
            match message["id"].as_i64() {
                Some(11 | 12 | 14) => {
                    let result = message["result"].as_object_mut().expect("metadata");
                    result.retain(|key, _| key.starts_with("is"));
                }
                Some(15) => message["result"] = json!({}),
                _ => {}
            }
            Some(message)
        },
    )
    .assert_alive();
}

/// The path of the script in the transcript `start-errors`.
fn script_path() -> PathBuf {
    PathBuf::from(format!("/tmp/exec-server-transcript-{}", std::process::id()))
}

#[test]
fn start_errors() {
    // The file that the recording executes is at another path here, and prints something else. The reference reported the exit before the
    // output. Ours always appends what the pipe holds before the exit (spec 11.1.1, design section 5).
    let server = TestServer::start();
    let name = script_path();
    let name = name.file_name().and_then(|name| name.to_str()).expect("a plain name");
    let file = tempfile::Builder::new().prefix(name).rand_bytes(0).tempfile_in("/tmp").expect("make a script");
    // Closed before it is executed, and removed at the end of the test.
    let script = file.into_temp_path();
    fs::write(&script, "echo by the shell >&2; exit 127\n").expect("write a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("make it executable");
    Replay::run(
        &server,
        "start-errors",
        |message| {
            let mut message = message.clone();
            (message["params"]["argv"][0] == "/etc/hostname").then(|| {
                message["params"]["argv"] = json!([script_path()]);
                message
            })
        },
        |message| {
            let params = &message["params"];
            let chunk = testkit::encode_base64(b"by the shell\n");
            let output = json!({"processId": "e", "seq": 1, "stream": "stderr", "chunk": chunk});
            let exited = json!({"processId": "e", "seq": 2, "exitCode": 127, "sandboxDenied": false});
            match (params["processId"].as_str(), message["method"].as_str()) {
                (Some("e"), Some("process/exited")) => Some(json!({"method": "process/output", "params": output})),
                (Some("e"), Some("process/output")) => Some(json!({"method": "process/exited", "params": exited})),
                _ => None,
            }
        },
    )
    .assert_alive();
}
