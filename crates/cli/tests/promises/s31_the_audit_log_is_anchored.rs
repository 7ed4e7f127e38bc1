//! S31: the beginning and the end of the audit log are also recorded outside of the log. `audit verify` reports a removed head, a removed
//! tail and a replaced file, across rotations and restarts. The log is opened without following symlinks.

use std::{fmt::Write as _, os::unix::fs::chown};

use crate::prelude::*;

/// Runs `audit verify`; asserts its exit code and that its output, on both streams, has these words.
#[track_caller]
fn verify(files: &[&Path], flags: &[&str], code: i32, words: &str) {
    let mut command = Command::new(binary());
    let output = command.args(["audit", "verify"]).args(files).args(flags).output().expect("run exec-server");
    let said = text(&[output.stdout, output.stderr].concat());
    assert!(output.status.code() == Some(code) && said.contains(words), "{flags:?}: {:?} {said}", output.status);
}

fn audited() -> TestServer {
    TestServer::builder().audit().start()
}

fn stop(server: &mut TestServer) {
    server.signal(rustix::process::Signal::TERM);
    server.wait();
}

/// Runs a process and waits until its exit is in the log.
fn run_one(server: &TestServer, name: &str) {
    let audit = server.dir().join("audit.log");
    let is_its_end = |line: &serde_json::Value| line["event"] == "process.exit" && line["process"] == name;
    server.client().run(name, &["true"]);
    wait_for("its end on record", || token_helpers::lines(&audit).iter().any(is_its_end));
}

/// A log of two files whose server has ended.
struct Rotated {
    server: TestServer,
    old: PathBuf,
    new: PathBuf,
}

fn rotated() -> Rotated {
    let mut server = audited();
    let (old, new) = (server.dir().join("audit.log.1"), server.dir().join("audit.log"));
    run_one(&server, "first");
    run_one(&server, "second");
    fs::rename(&new, &old).expect("rotate the log");
    wait_for("the new file", || new.exists());
    run_one(&server, "third");
    stop(&mut server);
    Rotated { server, old, new }
}

type Lines = Vec<String>;

fn read(path: &Path) -> Lines {
    fs::read_to_string(path).expect("read a log").lines().map(str::to_owned).collect()
}

fn write(path: &Path, lines: &[String]) {
    fs::write(path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("write a log");
}

/// Makes the hash chain consistent again from a line on, like an attacker who has read the code: sequence numbers, previous hashes and
/// hashes.
fn forge(lines: &mut [String], from: usize, mut seq: u64, mut prev: String) {
    for line in &mut lines[from..] {
        let head = line.split(",\"prev\":\"").next().expect("a line has a hash before it");
        let rest = head.split_once(',').expect("a line has a number").1;
        let mut text = format!("{{\"seq\":{seq},{rest},\"prev\":\"{prev}\"");
        prev = Sha256::digest(&text).iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a string takes everything");
            hex
        });
        write!(text, ",\"hash\":\"{prev}\"}}").expect("a string takes everything");
        *line = text;
        seq += 1;
    }
}

fn hash_of(line: &str) -> String {
    line.rsplit_once(",\"hash\":\"").expect("a line has a hash").1.trim_end_matches("\"}").to_owned()
}

/// A manipulation of the two files, and the expected message.
type Tampering = (&'static str, fn(&mut Lines, &mut Lines), &'static str);

const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

const TAMPERINGS: [Tampering; 18] = [
    (
        "the first line removed",
        |old, _| drop(old.remove(0)),
        "audit.log.1`: line 1 has the number 2: the 1 before it were removed",
    ),
    (
        "three lines removed at the beginning",
        |old, _| drop(old.drain(..3)),
        "line 1 has the number 4: the 3 before it were removed",
    ),
    (
        "all but the last line of the old file removed",
        |old, _| drop(old.drain(..old.len() - 1)),
        "before it were removed",
    ),
    ("the last line removed", |_, new| drop(new.pop()), "the last 1 were removed"),
    ("three lines removed at the end", |_, new| new.truncate(new.len() - 3), "the last 3 were removed"),
    ("the last line cut in half", |_, new| new.last_mut().expect("a line").truncate(40), "line "),
    ("the new file emptied", |_, new| new.clear(), "were removed"),
    (
        "a line removed in the middle",
        |old, _| drop(old.remove(4)),
        "line 5 does not follow: 1 before it are missing (from number 5)",
    ),
    (
        "a line changed",
        |old, _| old[3] = old[3].replacen("\"event\":\"", "\"event\":\"x", 1),
        "line 4 is not what was written",
    ),
    (
        "a line changed with a new hash",
        |old, _| {
            let prev = hash_of(&old[2]);
            old[3] = old[3].replacen("\"event\":\"", "\"event\":\"x", 1);
            forge(&mut old[..4], 3, 4, prev);
        },
        "line 5 does not follow from the line before",
    ),
    ("two lines swapped", |old, _| old.swap(2, 3), "line 3 does not follow"),
    ("a line repeated at the end", |_, new| new.push(new[1].clone()), "is out of order"),
    (
        "a foreign line inserted",
        |old, _| old.insert(2, "{\"event\":\"process.start\"}".to_owned()),
        "line 3 is not what was written",
    ),
    (
        "the end of the old file removed",
        |old, _| drop(old.pop()),
        "audit.log`: line 1 does not follow: 1 before it are missing",
    ),
    (
        "the beginning removed and the rest numbered anew",
        |old, new| {
            old.drain(..3);
            forge(old, 0, 1, NOTHING.to_owned());
            let (seq, prev) = (old.len() as u64 + 1, hash_of(&old[old.len() - 1]));
            forge(new, 0, seq, prev);
        },
        "line 1 is not the line that was written with the number 1: the log was replaced",
    ),
    (
        "everything behind the first line forged",
        |old, new| {
            let prev = hash_of(&old[0]);
            old[1] = old[1].replacen("\"event\":\"", "\"event\":\"x", 1);
            forge(old, 1, 2, prev);
            let (seq, prev) = (old.len() as u64 + 1, hash_of(&old[old.len() - 1]));
            forge(new, 0, seq, prev);
        },
        "the log was replaced",
    ),
    (
        "the new file forged from its second line on",
        |_, new| {
            let (seq, prev) = (new[0].clone(), hash_of(&new[0]));
            let seq: u64 = seq["{\"seq\":".len()..].split(',').next().expect("a number").parse().expect("a number");
            new[1] = new[1].replacen("\"event\":\"", "\"event\":\"x", 1);
            forge(new, 1, seq + 1, prev);
        },
        "the log was replaced",
    ),
    ("the beginning of the new file removed", |_, new| drop(new.remove(0)), "does not follow: 1 before it are missing"),
];

#[test]
fn every_tampering_is_named() {
    let Rotated { server, old, new } = rotated();
    let state = server.state_dir().display().to_string();
    let (first, second) = (read(&old), read(&new));
    assert!(first.len() > 8 && second.len() > 4, "{} and {} lines", first.len(), second.len());
    verify(&[&old, &new], &["--state-dir", &state], 0, "checked against the anchor");
    for (name, tamper, expected) in TAMPERINGS {
        let (mut lines, mut more) = (first.clone(), second.clone());
        tamper(&mut lines, &mut more);
        write(&old, &lines);
        write(&new, &more);
        // The anchor is found with and without `--state-dir`.
        for flags in [&["--state-dir", &state][..], &[]] {
            println!("{name}");
            verify(&[&old, &new], flags, 1, expected);
        }
    }
    write(&old, &first);
    write(&new, &second);
    verify(&[&old, &new], &[], 0, "");
}

#[test]
fn a_log_replaced_by_another_or_by_its_own_past_is_named() {
    let mut server = audited();
    let log = server.dir().join("audit.log");
    run_one(&server, "first");
    let past = read(&log);
    run_one(&server, "second");
    stop(&mut server);
    let whole = read(&log);
    let mut other = audited();
    run_one(&other, "other");
    run_one(&other, "another");
    run_one(&other, "one more");
    stop(&mut other);
    let foreign = read(&other.dir().join("audit.log"));
    let flags = ["--state-dir", &server.state_dir().display().to_string()];
    write(&log, &past);
    verify(&[&log], &[], 1, "were removed");
    write(&log, &foreign);
    verify(&[&log], &flags, 1, "the log was replaced");
    write(&log, &[]);
    verify(&[&log], &flags, 1, "is empty, but number");
    write(&log, &whole);
    verify(&[&log], &flags, 0, "");
}

#[test]
fn parts_of_a_rotated_log_verify_alone_and_say_what_was_not_checked() {
    let Rotated { server, old, new } = rotated();
    let flags = ["--state-dir", &server.state_dir().display().to_string()];
    verify(&[&old], &flags, 0, "the log continues in a newer file");
    verify(&[&new], &flags, 0, "are in older files that were not given");
    // A part whose end was removed is not accepted as complete.
    let mut lines = read(&old);
    lines.pop();
    write(&old, &lines);
    verify(&[&old], &flags, 1, "were removed");
    let mut lines = read(&new);
    lines.remove(0);
    write(&new, &lines);
    verify(&[&new], &flags, 1, "before it were removed");
}

#[test]
fn a_server_that_starts_again_continues_from_the_anchor() {
    let mut server = audited();
    let log = server.dir().join("audit.log");
    run_one(&server, "first");
    stop(&mut server);
    let whole = read(&log);
    // Rotated while no server runs: the next server continues the chain.
    let part = server.dir().join("audit.log.1");
    fs::rename(&log, &part).expect("rotate the log");
    server.restart();
    run_one(&server, "second");
    stop(&mut server);
    verify(&[&part, &log], &[], 0, "checked against the anchor");
    // The server is killed and the log is cut: the lines of the next server do not hide that.
    server.restart();
    run_one(&server, "third");
    server.kill();
    let lines = read(&log);
    let anchored = whole.len() + 2;
    assert!(whole.len() + lines.len() > anchored);
    write(&log, &lines[..2]);
    server.restart();
    run_one(&server, "fourth");
    stop(&mut server);
    for flags in [&[][..], &["--after", &hash_of(&whole[whole.len() - 1])]] {
        verify(&[&log], flags, 1, "line 3 does not follow");
    }
    let damaged = token_helpers::lines(&log).into_iter().find(|line| line["event"] == "audit.damaged");
    let reason = damaged.expect("the damage is on record")["reason"].to_string();
    assert!(reason.contains("is not in the file"), "{reason}");
}

#[test]
fn a_killed_server_leaves_a_log_that_verifies() {
    let mut server = audited();
    let log = server.dir().join("audit.log");
    for round in 0..3 {
        run_one(&server, &format!("p{round}"));
        // The anchor is updated shortly after the log; wait until the first anchor exists.
        let is_anchor = |name: std::ffi::OsString| {
            let name = name.to_string_lossy();
            // Its replacement is written beside it with another extension.
            name.starts_with("audit-anchor-") && name.ends_with(".json")
        };
        wait_for("the anchor", || {
            let names = std::fs::read_dir(server.state_dir()).expect("the state directory").flatten();
            names.into_iter().any(|entry| is_anchor(entry.file_name()))
        });
        server.kill();
        verify(&[&log], &[], 0, "checked against the anchor");
        server.restart();
    }
    run_one(&server, "last");
    // Also while the server runs: the anchor is never ahead of the log.
    verify(&[&log], &[], 0, "");
}

#[test]
fn a_log_without_an_anchor_verifies_and_says_what_was_not_checked() {
    let mut server = audited();
    let log = server.dir().join("audit.log");
    run_one(&server, "first");
    stop(&mut server);
    let anchors = || {
        let entries = fs::read_dir(server.state_dir()).expect("list the state directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.display().to_string().contains("audit-anchor-")).collect::<Vec<_>>()
    };
    let [anchor] = &anchors()[..] else { panic!("{:?}", anchors()) };
    // Simulates a log of a release without anchors.
    fs::remove_file(anchor).expect("remove the anchor");
    let mut lines = read(&log);
    lines.remove(0);
    forge(&mut lines, 0, 1, NOTHING.to_owned());
    write(&log, &lines);
    verify(&[&log], &[], 0, "no anchor was found");
    server.restart();
    run_one(&server, "second");
    stop(&mut server);
    let since = format!("lines before number {} are older than the anchor", lines.len() + 1);
    verify(&[&log], &[], 0, &since);
    let mut lines = read(&log);
    lines.pop();
    write(&log, &lines);
    // From there on it is anchored.
    verify(&[&log], &[], 1, "");
}

#[test]
fn links_and_files_of_others_are_not_opened_as_the_log() {
    let dir = tempfile::tempdir().expect("make a directory");
    let builder = TestServer::builder().audit();
    let (log, victim) = (dir.path().join("audit.log"), dir.path().join("victim"));
    fs::write(&victim, "as it was").expect("write a file");
    let refused = |word: &str| {
        let (code, said) = builder.refusal_text(dir.path());
        assert!(code != Some(0) && said.contains(word), "{said}");
        assert_eq!(fs::read_to_string(&victim).expect("read the file"), "as it was");
        fs::remove_file(&log).expect("remove the name");
    };
    symlink(&victim, &log).expect("plant a link");
    refused("is a symbolic link");
    symlink(dir.path().join("nothing"), &log).expect("plant a dangling link");
    refused("is a symbolic link");
    assert!(!dir.path().join("nothing").exists());
    fs::hard_link(&victim, &log).expect("plant a hard link");
    refused("has 2 hard links");
    fs::write(&log, "").expect("write a file");
    chown(&log, Some(NOBODY), None).expect("hand it over; run this as root");
    refused("belongs to uid 65534");
    let made = Command::new("mkfifo").arg(&log).status().expect("run mkfifo");
    assert!(made.success());
    refused("is not a file");
}

#[test]
fn a_link_planted_at_the_name_of_a_running_log_is_not_followed() {
    let mut server = audited();
    let (log, moved) = (server.dir().join("audit.log"), server.dir().join("moved"));
    let victim = server.dir().join("victim");
    fs::write(&victim, "as it was").expect("write a file");
    run_one(&server, "first");
    fs::rename(&log, &moved).expect("rename the log");
    symlink(&victim, &log).expect("plant a link");
    server.client().run("second", &["true"]);
    let has_second = || token_helpers::lines(&moved).iter().any(|line| line["process"] == "second");
    wait_for("the line in the old file", has_second);
    wait_for("the warning", || server.stderr().contains("is a symbolic link"));
    stop(&mut server);
    assert_eq!(fs::read_to_string(&victim).expect("read the file"), "as it was");
    assert_eq!(server.stderr().matches("continuing with the old file").count(), 1, "{}", server.stderr());
    verify(&[&moved], &["--state-dir", &server.state_dir().display().to_string()], 0, "");
}
