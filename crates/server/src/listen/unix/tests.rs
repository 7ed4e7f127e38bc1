//! Tests of the Unix socket's permission checks, on real directories.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt, chown, symlink},
        net::{UnixListener as StdListener, UnixStream as StdStream},
    },
    path::Path,
};

use super::{UnixError, UnixSocket};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn the_socket_and_its_new_directory_are_private_and_the_socket_is_removed_on_drop() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("made/here/x.sock");
    let socket = UnixSocket::bind(&path).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    drop(socket);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_directory_that_others_can_change_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("dir");
    fs::create_dir(&dir).unwrap();
    for (mode, is_accepted) in [
        (0o700, true),
        (0o750, true),
        (0o755, true),
        (0o1777, true),
        (0o770, false),
        (0o720, false),
        (0o702, false),
        (0o777, false),
    ] {
        set_mode(&dir, mode);
        match UnixSocket::bind(&dir.join("x.sock")) {
            Ok(_) => assert!(is_accepted, "{mode:o}"),
            Err(UnixError::DirMode { mode: reported, .. }) => assert!(!is_accepted && reported == mode, "{mode:o}"),
            Err(error) => panic!("{mode:o}: {error}"),
        }
    }
    if rustix::process::geteuid().is_root() {
        set_mode(&dir, 0o700);
        chown(&dir, Some(65534), None).unwrap();
        let error = UnixSocket::bind(&dir.join("x.sock")).err().unwrap();
        assert!(matches!(error, UnixError::DirOwner { owner: 65534, .. }), "{error}");
    }
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("x.sock");
    drop(StdListener::bind(&path).unwrap());
    let socket = UnixSocket::bind(&path).unwrap();
    let error = UnixSocket::bind(&path).err().unwrap();
    assert!(matches!(error, UnixError::InUse { .. }), "{error}");
    StdStream::connect(&path).unwrap();
    drop(socket);
}

#[tokio::test]
async fn only_a_stale_socket_of_ours_is_replaced() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("x.sock");
    fs::write(&path, "precious").unwrap();
    assert!(matches!(UnixSocket::bind(&path), Err(UnixError::Occupied { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    symlink(base.path().join("elsewhere"), &path).unwrap();
    assert!(matches!(UnixSocket::bind(&path), Err(UnixError::Occupied { .. })));
    fs::remove_file(&path).unwrap();
    if rustix::process::geteuid().is_root() {
        drop(StdListener::bind(&path).unwrap());
        chown(&path, Some(65534), None).unwrap();
        assert!(matches!(UnixSocket::bind(&path), Err(UnixError::Occupied { .. })));
    }
}

#[tokio::test]
async fn a_path_longer_than_a_socket_address_works() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("d".repeat(150)).join("e".repeat(150));
    let name = "n".repeat(200);
    let path = dir.join(&name);
    let socket = UnixSocket::bind(&path).unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    drop(socket);
    assert!(!path.exists());
}

#[tokio::test]
async fn the_socket_of_a_successor_is_not_removed() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("x.sock");
    let old = UnixSocket::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let new = UnixSocket::bind(&path).unwrap();
    drop(old);
    StdStream::connect(&path).unwrap();
    drop(new);
}
