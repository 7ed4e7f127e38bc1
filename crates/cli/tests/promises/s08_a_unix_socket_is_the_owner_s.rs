//! S8: a Unix socket has mode 0600 in a directory whose entries no other user can change. It gets its name only when it already listens.
//! Abstract names are not supported. The server checks the peer's uid (from the kernel) for every mode of the socket.
//!
//! Missing directories are created with mode 0700, so that `unix:///run/user/1000/x/y.sock` works if `x` is new. An existing directory is
//! left as it is, and refused if it is unsafe.

use std::{io::ErrorKind, os::unix::net::UnixStream};

use crate::prelude::*;

#[test]
fn a_unix_socket_is_closed_to_others_and_needs_no_token() {
    let server = TestServer::builder().listen("unix://{dir}/new/run/x.sock").start();
    let path = server.dir().join("new/run/x.sock");
    let modes = ["new/run/x.sock", "new/run", "new"].map(|name| mode_of(server.dir().join(name)));
    assert_eq!(modes, [0o600, 0o700, 0o700]);
    assert_eq!(server.url(), format!("unix://{}", path.display()));
    server.client();
    assert_eq!(http_unix(&path, &upgrade("/", "anything", "")).status, 101);
    assert_eq!(http_unix(&path, &upgrade("/", "anything", "Origin: null\r\n")).status, 403);
    assert_eq!(http_unix(&path, "GET /healthz HTTP/1.0\r\n\r\n").body, "ok");
    let left: Vec<_> = fs::read_dir(server.dir().join("new/run")).expect("list").collect();
    assert_eq!(left.len(), 1, "the name it was bound under first is gone");
}

#[test]
fn the_mode_of_the_directory_decides_and_the_umask_does_not() {
    let dir = tempfile::tempdir().expect("make a directory");
    let place = dir.path().join("place");
    fs::create_dir(&place).expect("make a directory");
    let start = |umask: &str| {
        let builder = TestServer::builder().listen(&format!("unix://{}/x.sock", place.display()));
        let mut command = builder.after(&format!("umask {umask}")).command(dir.path(), "x.test");
        command.stdout(Stdio::null()).spawn().expect("start exec-server")
    };
    for (bits, fits) in [
        (0o700, true),
        (0o750, true),
        (0o755, true),
        (0o1777, true),
        (0o770, false),
        (0o707, false),
        (0o777, false),
        (0o720, false),
    ] {
        set_mode(&place, bits);
        let (mut child, socket) = (start("000"), place.join("x.sock"));
        if !fits {
            let output = refused(child);
            let said = text(&output.stderr);
            assert!(output.status.code() == Some(255) && said.contains(&format!("{bits:04o}")), "{bits:o}: {said}");
            assert!(!socket.exists());
            continue;
        }
        wait_for("the socket", || socket.exists());
        assert_eq!(mode_of(&socket), 0o600, "in a directory of {bits:o}");
        send_signal(child.id(), rustix::process::Signal::TERM);
        assert_eq!(child.wait().expect("wait").code(), Some(0));
        assert!(!socket.exists(), "it goes with its server");
    }
    set_mode(&place, 0o700);
    // The owner of a directory can change its entries with any mode. Only root can change the owner, so this test needs root.
    std::os::unix::fs::chown(&place, Some(65534), Some(65534)).expect("give the directory to nobody (needs root)");
    let output = refused(start("077"));
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(255) && said.contains("65534"), "{said}");
    assert!(!place.join("x.sock").exists());
}

/// Connects to everything in a directory until `x.sock` answers. Any socket that answers must be 0600, and `x.sock` must answer from the
/// moment it exists.
fn knock(dir: &Path) {
    let name = dir.join("x.sock");
    let is_closed_to_others = |path: &Path| {
        // It may have its final name by now.
        let found = [path, &name].iter().find_map(|path| fs::metadata(path).ok()).expect("what answers has a name");
        assert_eq!(found.permissions().mode() & 0o7777, 0o600, "of a socket that answers");
    };
    let end = Instant::now() + DEADLINE;
    while Instant::now() < end {
        // Try mostly the final name, because the window for a failure there is short.
        for _ in 0..64 {
            match UnixStream::connect(&name) {
                Ok(_) => return is_closed_to_others(&name),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "the name is there and does not answer"),
            }
        }
        for entry in fs::read_dir(dir).expect("list").filter_map(Result::ok) {
            if UnixStream::connect(entry.path()).is_ok() {
                is_closed_to_others(&entry.path());
            }
        }
    }
    panic!("no socket");
}

#[test]
fn a_socket_has_its_name_when_it_listens_and_listens_only_when_it_is_closed_to_others() {
    for _ in 0..30 {
        let dir = tempfile::tempdir().expect("make a directory");
        let watched = dir.path().to_owned();
        let watcher = std::thread::spawn(move || knock(&watched));
        let listen = format!("unix://{}/x.sock", dir.path().display());
        let server = TestServer::builder().listen(&listen).after("umask 000").start();
        watcher.join().expect("what was seen is above");
        drop(server);
    }
}

#[test]
fn an_object_that_is_not_our_socket_is_not_replaced_and_abstract_names_are_refused() {
    let dir = tempfile::tempdir().expect("make a directory");
    let refused = |listen: &str| {
        let (code, said) = TestServer::builder().listen(listen).refusal_text(dir.path());
        assert_ne!(code, Some(0), "{listen}");
        (code, said)
    };
    for name in ["unix://@abstract", "unix://\\0abstract", "unix:@abstract", "unix://relative", "unix:///dir/"] {
        let (code, said) = refused(name);
        assert!(code == Some(2) && said.contains("unix:///path"), "{name}: {said}");
    }
    let path = dir.path().join("x.sock");
    let listen = format!("unix://{}", path.display());
    fs::write(&path, "a file").expect("write");
    assert!(refused(&listen).1.contains("not a socket of ours"));
    assert_eq!(fs::read(&path).expect("still there"), b"a file");
    fs::remove_file(&path).expect("remove");
    let target = dir.path().join("elsewhere");
    symlink(&target, &path).expect("link");
    assert!(refused(&listen).1.contains("not a socket of ours"), "a link is not followed");
    assert!(!target.exists());
    fs::remove_file(&path).expect("remove");
    let server = TestServer::builder().listen("unix://{dir}/y.sock").start();
    let taken = format!("unix://{}", server.dir().join("y.sock").display());
    assert!(refused(&taken).1.contains("in use"), "a living server keeps its name");
    server.client();
}

/// The first line that `nobody` (uid 65534) receives, or `denied` if it cannot connect. This needs root to change the user; without root it
/// fails, because then the rule is not proven.
fn as_nobody(path: &Path) -> String {
    let script = "use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0); \
        connect($s, sockaddr_un($ARGV[0])) or do { print 'denied'; exit }; \
        syswrite($s, \"GET /healthz HTTP/1.0\\r\\n\\r\\n\"); my $line = <$s>; print $line";
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "perl", "-e", script]).arg(path);
    let output = command.output().expect("run setpriv");
    assert!(output.status.success(), "become another user (needs root, setpriv and perl): {output:?}");
    text(&output.stdout).trim().to_owned()
}

#[test]
fn another_user_is_refused_even_where_the_mode_would_let_it() {
    let server = TestServer::builder().listen("unix://{dir}/x.sock").start();
    let path = server.dir().join("x.sock");
    assert_eq!(as_nobody(&path), "denied");
    set_mode(server.dir(), 0o755);
    assert_eq!(as_nobody(&path), "denied");
    set_mode(&path, 0o666);
    assert_eq!(as_nobody(&path), "HTTP/1.1 403 Forbidden");
    server.client();
}
