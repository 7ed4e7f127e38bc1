//! Tests of the log's chain: the changes that a verifier detects, and how the chain continues after a crash and a rotation.

use std::{fs, path::Path};

use super::*;

fn write(path: &Path, names: &[&str]) {
    let audit = Audit::open(path, AuditPolicy::BestEffort, None).unwrap();
    for name in names {
        audit.record(AuditRecord { process: Some((*name).to_owned()), ..AuditRecord::of("test") });
    }
    audit.close();
}

fn check(path: &Path) -> Result<VerifyReport, VerifyError> {
    verify(&[path], ExpectedLog::default())
}

/// The verifier's verdict on the log after `change` was applied to its lines.
fn changed(path: &Path, change: impl FnOnce(&mut Vec<String>)) -> String {
    let mut lines: Vec<String> = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    change(&mut lines);
    let other = path.with_extension("changed");
    fs::write(&other, lines.join("\n") + "\n").unwrap();
    verify(&[&other], ExpectedLog::default()).map_or_else(|error| error.to_string(), |report| format!("{report:?}"))
}

/// A log that was written before lines were serialized as one struct.
const OLD_LOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/audit.log");

#[test]
fn a_log_of_an_older_server_verifies_and_can_be_continued() {
    let report = verify(&[OLD_LOG], ExpectedLog::default()).unwrap();
    assert_eq!((report.lines, report.first_seq, report.last_seq, report.torn), (10, 1, 10, 0));
    assert_eq!(report.after, chain::NOTHING);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    fs::copy(OLD_LOG, &path).unwrap();
    write(&path, &["behind it"]);
    let report = check(&path).unwrap();
    assert_eq!((report.lines, report.last_seq), (11, 11));
}

#[test]
fn a_line_is_byte_identical_to_that_of_an_older_server() {
    let old = fs::read_to_string(OLD_LOG).unwrap();
    let lines: Vec<&str> = old.lines().collect();
    let record = AuditRecord {
        principal: Some("owner".to_owned()),
        peer: Some("exec-server websocket unix".to_owned()),
        session: Some("82248931".to_owned()),
        process: Some("printf-cc7x".to_owned()),
        method: Some("process/start"),
        cwd: Some("/tmp/example".to_owned()),
        tty: Some(false),
        sandbox: Some("none"),
        ..AuditRecord::of("process.start").argv(&["printf".to_owned(), "a\"b\\\\ü".to_owned()])
    };
    let before = chain::read(lines[3].as_bytes()).unwrap();
    let mut end = AnchorMark { seq: before.seq, hash: before.hash };
    let mut out = Vec::new();
    // 2026-11-18T16:33:08.056Z
    chain::write(&mut out, &mut end, 1_795_019_588_056, &record);
    assert_eq!(String::from_utf8(out).unwrap(), format!("{}\n", lines[4]));
}

// Reasons of refusals were once written in full. A name of two megabytes made a line that no verifier accepts, and a
// longer one hid the end of the chain.
#[test]
fn long_texts_are_truncated_so_that_the_log_still_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let long = "\u{1}".repeat(7 << 20);
    let audit = Audit::open(&path, AuditPolicy::BestEffort, None).unwrap();
    let [principal, peer, session, process, cwd, target, signal, cause, reason] = [(); 9].map(|()| Some(long.clone()));
    let record = AuditRecord {
        principal,
        peer,
        session,
        process,
        cwd,
        target,
        signal,
        cause,
        reason,
        ..AuditRecord::of("test")
    };
    audit.record(record);
    audit.close();
    write(&path, &["behind it"]);
    assert_eq!(check(&path).unwrap().lines, 2);
    let kept = fs::read_to_string(&path).unwrap();
    assert_eq!(kept.matches(&"\\u0001".repeat(TEXT_MAX_BYTES)).count(), 9);
}

#[test]
fn removed_changed_and_moved_lines_are_reported_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    write(&path, &["a", "b", "c", "d", "e"]);
    assert_eq!(check(&path).unwrap().lines, 5);
    let said = changed(&path, |lines| drop(lines.remove(2)));
    assert!(said.contains("line 3 does not follow: 1 before it are missing (from number 3)"), "{said}");
    let said = changed(&path, |lines| lines[2] = lines[2].replace("\"c\"", "\"x\""));
    assert!(said.contains("line 3 is not what was written"), "{said}");
    let said = changed(&path, |lines| lines.swap(1, 2));
    assert!(said.contains("line 2 does not follow"), "{said}");
    let said = changed(&path, |lines| lines.push(lines[1].clone()));
    assert!(said.contains("line 6 is out of order"), "{said}");
    // With a recomputed hash, the changed line is valid, but the next line does not follow from it.
    let said = changed(&path, |lines| {
        let head = lines[2].split(",\"hash\"").next().unwrap().replace("\"c\"", "\"x\"");
        lines[2] = format!("{head},\"hash\":\"{}\"}}", chain::digest(head.as_bytes()));
    });
    assert!(said.contains("line 4 does not follow from the line before"), "{said}");
    let said = changed(&path, |lines| lines.push("{}".to_owned()));
    assert!(said.contains("line 6 is not what was written"), "{said}");
    // Without an anchor, a cut at the end goes unnoticed, unless a hash was noted before.
    let last = check(&path).unwrap().last;
    let said = changed(&path, |lines| drop(lines.pop()));
    assert!(said.contains("lines: 4"), "{said}");
    let cut = path.with_extension("changed");
    let has = ExpectedLog { has: Some(&last), ..ExpectedLog::default() };
    assert!(matches!(verify(&[&cut], has), Err(VerifyError::Missing { .. })));
    assert!(verify(&[&path], has).is_ok());
}

#[test]
fn the_chain_continues_after_a_restart_and_after_a_torn_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    write(&path, &["a"]);
    let first = fs::metadata(&path).unwrap().len();
    write(&path, &["b", "c"]);
    assert_eq!(check(&path).unwrap().lines, 3);
    let whole = fs::read(&path).unwrap();
    for cut in first + 1..whole.len() as u64 {
        fs::write(&path, &whole[..usize::try_from(cut).unwrap()]).unwrap();
        assert!(check(&path).is_ok(), "{cut}: a log with a torn end must verify");
        let at = usize::try_from(cut).unwrap();
        let is_whole = whole[at - 1] == b'\n' || whole[at] == b'\n';
        write(&path, &["d"]);
        let report = check(&path).unwrap_or_else(|error| panic!("{cut}: {error}"));
        assert_eq!((report.torn, report.unfinished_bytes), (u64::from(!is_whole), 0), "{cut}");
    }
    // Other bytes in place of the torn ones are not accepted.
    fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    write(&path, &["d"]);
    assert_eq!(check(&path).unwrap().torn, 1);
    let text = fs::read_to_string(&path).unwrap();
    let torn = text.lines().position(|line| chain::read(line.as_bytes()).is_none()).unwrap();
    let said = changed(&path, |lines| lines[torn] = "y".repeat(lines[torn].len()));
    assert!(said.contains("is not what was written"), "{said}");
}

#[test]
fn a_changed_last_line_is_not_mistaken_for_a_torn_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    write(&path, &["a", "b"]);
    let text = fs::read_to_string(&path).unwrap().replace("\"b\"", "\"x\"");
    fs::write(&path, text).unwrap();
    write(&path, &["c"]);
    let said = check(&path).unwrap_err().to_string();
    assert!(said.contains("line 2 is not what was written"), "{said}");
}

#[test]
fn after_a_rotation_the_new_file_continues_the_chain() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
    let audit = Audit::open(&path, AuditPolicy::BestEffort, None).unwrap();
    audit.record(AuditRecord::of("before"));
    while !fs::read_to_string(&path).unwrap().contains("before") {
        thread::yield_now();
    }
    fs::rename(&path, &old).unwrap();
    audit.record(AuditRecord::of("after"));
    audit.close();
    let report = verify(&[&old, &path], ExpectedLog::default()).unwrap();
    assert_eq!((report.lines, report.after.as_str()), (3, chain::NOTHING));
    let last = verify(&[&old], ExpectedLog::default()).unwrap().last;
    assert!(verify(&[&path], ExpectedLog { after: Some(&last), has: None, anchor: None }).is_ok());
    assert!(verify(&[&path], ExpectedLog { after: Some(chain::NOTHING), has: None, anchor: None }).is_err());
    assert!(verify(&[&path, &old], ExpectedLog::default()).is_err());
}

#[test]
fn a_log_that_is_in_use_or_writable_by_others_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let audit = Audit::open(&path, AuditPolicy::Strict, None).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(matches!(Audit::open(&path, AuditPolicy::Strict, None), Err(AuditError::InUse { .. })));
    audit.close();
    drop(audit);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    assert!(matches!(Audit::open(&path, AuditPolicy::Strict, None), Err(AuditError::Mode { mode: 0o620, .. })));
    assert!(matches!(Audit::open(Path::new("/dev/null"), AuditPolicy::Strict, None), Err(AuditError::NotAFile { .. })));
}

#[test]
fn long_arguments_are_truncated_and_their_full_size_is_recorded() {
    let long = AuditRecord::of("x").argv(&["a".to_owned(), "ü".repeat(40_000), "b".to_owned()]);
    let kept: usize = long.argv.iter().flatten().map(String::len).sum();
    assert!(kept <= ARGV_MAX_BYTES && kept > ARGV_MAX_BYTES - 8, "{kept}");
    assert_eq!(long.argv_bytes, Some(80_002));
    let many = AuditRecord::of("x").argv(&vec![String::new(); 100_000]);
    assert!(many.argv.unwrap().len() <= ARGV_MAX_BYTES / 4 + 1 && many.argv_bytes == Some(0));
    assert_eq!(AuditRecord::of("x").argv(&["a".to_owned()]).argv_bytes, None);
}

#[tokio::test]
async fn refusals_are_written_at_a_bounded_rate() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let audit = Audit::open(&path, AuditPolicy::BestEffort, None).unwrap();
    for _ in 0..10_000 {
        audit.refused(&"stranger", 401);
    }
    audit.close();
    let lines = check(&path).unwrap().lines;
    assert!((REFUSALS_MAX..5 * REFUSALS_MAX).contains(&lines), "{lines}");
}
