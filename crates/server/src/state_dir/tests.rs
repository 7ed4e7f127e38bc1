//! Tests of the state directory's guarantees, on real directories.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use super::{NotPrivate, OpenError, StateDir, Token, TokenError, slug};
use crate::listen::ListenUrl;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn only_the_owner_can_access_the_directory_and_its_files() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("a/b/state");
    let state = StateDir::open(&path).unwrap();
    state.token().unwrap();
    state.write_record("s-1", b"record").unwrap();
    let modes = [".", "sessions", "sessions/s-1"].map(|name| mode(&path.join(name)));
    assert_eq!(modes, [0o700; 3]);
    let modes = ["lock", "boot", "token", "sessions/s-1/record"].map(|name| mode(&path.join(name)));
    assert_eq!(modes, [0o600; 4]);
}

#[test]
fn a_second_server_is_refused_with_the_pid_of_the_first() {
    let base = tempfile::tempdir().unwrap();
    let first = StateDir::open(base.path()).unwrap();
    match StateDir::open(base.path()) {
        Err(OpenError::InUse { path, pid }) => {
            assert_eq!((path.as_path(), pid), (base.path(), Some(std::process::id())));
        }
        other => panic!("{other:?}"),
    }
    drop(first);
    StateDir::open(base.path()).unwrap();
}

#[test]
fn the_token_stays_the_same_and_has_256_bits() {
    let base = tempfile::tempdir().unwrap();
    let first = StateDir::open(base.path()).unwrap().token().unwrap();
    let second = StateDir::open(base.path()).unwrap().token().unwrap();
    assert_eq!(first.reveal(), second.reveal());
    assert_eq!(first.reveal().len(), 64);
    assert!(first.reveal().bytes().all(|byte| byte.is_ascii_hexdigit()));
}

#[test]
fn a_directory_open_to_others_is_refused_unless_it_is_empty() {
    let base = tempfile::tempdir().unwrap();
    for open in [0o755, 0o770, 0o701, 0o1777] {
        let path = base.path().join(format!("{open:o}"));
        fs::create_dir(&path).unwrap();
        set_mode(&path, open);
        StateDir::open(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        set_mode(&path, open);
        match StateDir::open(&path) {
            Err(OpenError::Mode { mode, .. }) => assert_eq!(mode, open),
            other => panic!("{open:o}: {other:?}"),
        }
    }
}

#[test]
fn a_directory_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // Only root can create a directory of another user. Other users test with `/`.
        assert!(matches!(StateDir::open(Path::new("/")), Err(OpenError::Owner { owner: 0, .. })));
        return;
    }
    let base = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(base.path(), Some(65534), Some(65534)).unwrap();
    assert!(matches!(StateDir::open(base.path()), Err(OpenError::Owner { owner: 65534, .. })));
}

#[test]
fn sessions_of_an_earlier_boot_are_removed_and_those_of_this_one_stay() {
    let base = tempfile::tempdir().unwrap();
    let state = StateDir::open(base.path()).unwrap();
    state.write_record("kept", b"1").unwrap();
    drop(state);
    let state = StateDir::open(base.path()).unwrap();
    assert_eq!(state.session_ids().unwrap(), ["kept"]);
    drop(state);
    fs::write(base.path().join("boot"), "another boot\n").unwrap();
    let state = StateDir::open(base.path()).unwrap();
    assert_eq!(state.session_ids().unwrap(), [""; 0]);
    drop(state);
    let state = StateDir::open(base.path()).unwrap();
    state.write_record("new", b"2").unwrap();
    assert_eq!(state.read_record("new").unwrap().unwrap(), b"2");
}

#[test]
fn session_ids_that_could_be_paths_are_refused() {
    let base = tempfile::tempdir().unwrap();
    let state = StateDir::open(base.path()).unwrap();
    for name in ["", ".", "..", "../x", "a/b", "a\0b", "ü", &"x".repeat(65)] {
        assert!(state.session_dir(name).is_err(), "{name:?}");
        assert!(state.remove_session(name).is_err(), "{name:?}");
    }
}

#[test]
fn removing_a_session_leaves_nothing_and_may_be_repeated() {
    let base = tempfile::tempdir().unwrap();
    let state = StateDir::open(base.path()).unwrap();
    state.write_record("s", b"x").unwrap();
    fs::write(base.path().join("sessions/s/0-1.seg"), b"x").unwrap();
    state.remove_session("s").unwrap();
    state.remove_session("s").unwrap();
    assert_eq!(state.session_ids().unwrap(), [""; 0]);
}

#[test]
fn a_token_file_that_others_own_or_can_access_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("token");
    fs::write(&path, "  secret-token-of-this-test\n").unwrap();
    for open in [0o644, 0o640, 0o620, 0o602, 0o777] {
        set_mode(&path, open);
        match Token::from_file(&path) {
            Err(TokenError::NotPrivate(NotPrivate::Mode { mode, .. })) => assert_eq!(mode, open),
            other => panic!("{open:o}: {other:?}"),
        }
    }
    set_mode(&path, 0o400);
    assert_eq!(Token::from_file(&path).unwrap().reveal(), "secret-token-of-this-test");
    assert!(matches!(Token::from_file(base.path()), Err(TokenError::NotAFile { .. })));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(matches!(Token::from_file(&path), Err(TokenError::NotPrivate(NotPrivate::Owner { owner: 65534, .. }))));
    }
}

#[test]
fn tokens_must_be_visible_ascii_and_debug_does_not_show_them() {
    for bad in ["", " \n", "a b", "a\u{7f}", "tökén", &"x".repeat(1025)] {
        let error = Token::parse(bad.as_bytes()).unwrap_err();
        assert!(bad.len() < 2 || !error.to_string().contains(bad));
    }
    let token = Token::parse(b"hunter2-hunter2-hunter2").unwrap();
    assert_eq!(format!("{token:?} {:?}", token.digest()), "Token(..) TokenDigest(..)");
    assert!(bool::from(token.digest().ct_matches(&Token::parse(b"hunter2-hunter2-hunter2").unwrap().digest())));
    assert!(!bool::from(token.digest().ct_matches(&Token::parse(b"hunter2-hunter2-hunter3").unwrap().digest())));
}

#[test]
fn a_token_has_at_least_128_bits() {
    for short in ["a", "secret", &"x".repeat(21), &"0".repeat(31), &"f".repeat(22), &"F".repeat(31)] {
        let error = Token::parse(short.as_bytes()).unwrap_err();
        assert!(matches!(error, TokenError::TooShort { characters } if characters == short.len()), "{short}: {error}");
    }
    for enough in ["x".repeat(22), "0".repeat(32), format!("{}-", "0".repeat(21))] {
        assert!(Token::parse(enough.as_bytes()).is_ok(), "{enough}");
    }
}

#[test]
fn each_fixed_address_has_its_own_directory_name() {
    let slug_of = |urls: &[&str]| {
        let urls: Vec<ListenUrl> = urls.iter().map(|url| url.parse().unwrap()).collect();
        slug(&urls)
    };
    assert_eq!(slug_of(&["ws://127.0.0.1:0"]), None);
    assert_eq!(slug_of(&["stdio"]), None);
    assert_eq!(slug_of(&["ws://127.0.0.1:0", "ws://127.0.0.1:4000"]), Some("ws-127.0.0.1-4000".into()));
    assert_eq!(slug_of(&["ws://[::1]:4000"]), Some("ws-__1-4000".into()));
    let a = slug_of(&["unix:///run/a/x.sock"]).unwrap();
    let b = slug_of(&["unix:///run/b/x.sock"]).unwrap();
    assert!(a.starts_with("unix-x.sock-") && b.starts_with("unix-x.sock-") && a != b);
}

#[test]
fn a_file_written_during_the_removal_does_not_keep_the_session_directory() {
    let base = tempfile::tempdir().unwrap();
    let state = StateDir::open(base.path()).unwrap();
    let (dir_tx, dir_rx) = std::sync::mpsc::channel::<std::os::fd::OwnedFd>();
    let (done_tx, done_rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for dir in dir_rx {
            // An error is fine: the directory was removed first.
            super::sessions::write_beside(std::os::fd::AsFd::as_fd(&dir), Path::new("expired"), b"now").ok();
            done_tx.send(()).unwrap();
        }
    });
    for _ in 0..2000 {
        state.write_record("s", b"record").unwrap();
        dir_tx.send(state.open_session_dir("s").unwrap()).unwrap();
        state.remove_session("s").unwrap();
        done_rx.recv().unwrap();
        assert_eq!(state.session_ids().unwrap(), Vec::<String>::new());
    }
}
