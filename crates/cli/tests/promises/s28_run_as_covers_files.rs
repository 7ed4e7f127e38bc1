//! S28: with `--run-as` everything that the server does for a principal is done as that user, including file methods. Each method refuses
//! what only root may access, and created files belong to the user. This holds for the owner too, inside and outside of a sandbox.

use std::os::unix::fs::chown;

use super::{
    host_helpers::NOBODY,
    on as file_params,
    sandbox_helpers::{confined, path, sandbox, special},
};
use crate::prelude::*;

/// A directory of `nobody`, and a file and directories that only root can access.
struct Places {
    open: PathBuf,
    secret: PathBuf,
    closed: PathBuf,
    server: TestServer,
}

fn places() -> Places {
    assert!(rustix::process::geteuid().is_root(), "this test needs a server that can change its user: run it as root");
    let server = TestServer::builder().args(["--run-as", "nobody"]).start();
    server.open_dir();
    let dir = server.dir().canonicalize().expect("the directory is there");
    let (open, secret, closed) = (dir.join("open"), dir.join("open/secret"), dir.join("open/closed"));
    fs::create_dir_all(&closed).expect("make directories");
    fs::write(&secret, "the secret of root").expect("write");
    fs::write(closed.join("inner"), "the secret of root").expect("write");
    set_mode(&secret, 0o600);
    set_mode(&closed, 0o700);
    chown(&open, Some(NOBODY), Some(NOBODY)).expect("hand it over");
    Places { open, secret, closed, server }
}

/// Every method that takes one path.
fn methods() -> Vec<(&'static str, Value)> {
    vec![
        ("fs/readFile", json!({})),
        ("fs/readFile", json!({"lines": {"first": 1, "count": 1}})),
        ("fs/open", json!({"handleId": "h"})),
        ("fs/writeFile", json!({"dataBase64": "eA=="})),
        ("fs/writeFile", json!({"dataBase64": "eA==", "append": true})),
        ("fs/create", json!({"handleId": "d"})),
        ("fs/create", json!({"handleId": "k", "keep": "word"})),
        ("fs/setMetadata", json!({"mode": 0o777})),
        ("fs/search", json!({"pattern": "secret"})),
    ]
}

#[track_caller]
fn denied(client: &mut Client, method: &str, params: &Value) {
    let error = client.call(method, params.clone()).expect_err(&format!("{method} {params}"));
    assert_eq!(error.kind(), "permissionDenied", "{method} {params}: {}", error.message);
}

fn on(path: &std::path::Path, more: &Value, sandbox: Option<&Value>) -> Value {
    confined(file_params(path, more), sandbox)
}

#[test]
fn objects_that_only_root_may_use_are_refused_by_each_method() {
    let Places { open, secret, closed, server } = places();
    let policy = sandbox(vec![special("root", "read"), path(&open, "write")], "restricted");
    let mut client = server.client();
    for sandbox in [None, Some(&policy)] {
        for (method, more) in methods() {
            denied(&mut client, method, &on(&secret, &more, sandbox));
            denied(&mut client, method, &on(&closed.join("inner"), &more, sandbox));
        }
        for (method, more) in [
            ("fs/readDirectory", json!({})),
            ("fs/readDirectory", json!({"details": true})),
            ("fs/glob", json!({"pattern": "*"})),
            ("fs/search", json!({"pattern": "secret"})),
            ("fs/watch", json!({"handleId": "w"})),
            ("fs/remove", json!({"recursive": true})),
        ] {
            denied(&mut client, method, &on(&closed, &more, sandbox));
        }
        for (method, more) in [
            ("fs/getMetadata", json!({})),
            ("fs/canonicalize", json!({})),
            ("fs/createDirectory", json!({"recursive": false})),
            ("fs/createSymlink", json!({"target": "x"})),
            ("fs/remove", json!({"force": false})),
        ] {
            denied(&mut client, method, &on(&closed.join("new"), &more, sandbox));
        }
        for (from, to) in
            [(&secret, open.join("copy")), (&closed, open.join("copy")), (&open.join("own"), closed.join("copy"))]
        {
            fs::write(open.join("own"), "own").expect("write");
            let copy = json!({"sourcePath": from, "destinationPath": to, "recursive": true});
            denied(&mut client, "fs/copy", &confined(copy, sandbox));
            fs::remove_dir_all(open.join("copy")).ok(); // Remove a directory that could not be filled.
        }
        // A search or walk from a readable parent reports the files as unreadable.
        let found = client.ok("fs/search", on(&open, &json!({"pattern": "secret of root"}), sandbox));
        assert_eq!((&found["matches"], &found["summary"]["errorCount"]), (&json!([]), &json!(2)), "{found}");
        let options = json!({"maxDepth": 9, "maxDirectories": 99, "maxEntries": 99, "followDirectorySymlinks": false});
        let walked = client.ok("fs/walk", on(&open, &json!({"options": options}), sandbox));
        assert!(!walked["entries"].to_string().contains("inner"), "{walked}");
        assert_eq!(walked["errors"].as_array().map(Vec::len), Some(1), "{walked}");
    }
    assert_eq!(fs::read_to_string(&secret).expect("it is there"), "the secret of root");
    assert_eq!(mode_of(&secret), 0o600);
    assert_eq!(fs::read_dir(&closed).expect("it is there").count(), 1);
}

#[test]
fn created_files_belong_to_the_user() {
    let Places { open, server, .. } = places();
    let policy = sandbox(vec![special("root", "read"), path(&open, "write")], "restricted");
    let mut client = server.client();
    for (name, sandbox) in [("free", None), ("confined", Some(&policy))] {
        let at = |file: &str| open.join(format!("{name}-{file}"));
        client.ok("fs/createDirectory", on(&at("dir"), &json!({}), sandbox));
        client.ok("fs/writeFile", on(&at("dir/file"), &json!({"dataBase64": "eA=="}), sandbox));
        client.ok("fs/writeFile", on(&at("appended"), &json!({"dataBase64": "eA==", "append": true}), sandbox));
        client.ok("fs/createSymlink", on(&at("link"), &json!({"target": "x"}), sandbox));
        client.ok("fs/createSymlink", on(&at("link"), &json!({"target": "y", "replace": true}), sandbox));
        let copy = json!({"sourcePath": at("dir"), "destinationPath": at("copy"), "recursive": true});
        client.ok("fs/copy", confined(copy, sandbox));
        for (handle, more) in [("plain", json!({})), ("kept", json!({"keep": "word"}))] {
            let params = with(on(&at(handle), &json!({"handleId": handle}), sandbox), more);
            client.ok("fs/create", params.clone());
            client.ok("fs/writeBlock", json!({"handleId": handle, "offset": 0, "chunk": "eHl6"}));
            if handle == "kept" {
                // The same user finds a kept draft again.
                client.ok("fs/close", json!({"handleId": handle}));
                assert_eq!(client.ok("fs/create", params)["size"], 3, "{name}");
            }
            client.ok("fs/commit", json!({"handleId": handle}));
        }
        for file in ["dir", "dir/file", "appended", "link", "copy", "copy/file", "plain", "kept"] {
            let made = fs::symlink_metadata(at(file)).unwrap_or_else(|error| panic!("{name} {file}: {error}"));
            assert_eq!((made.uid(), made.gid()), (NOBODY, NOBODY), "{name} {file}");
        }
        client.ok("fs/writeFile", on(&at("appended"), &json!({"dataBase64": "eXo="}), sandbox));
        let read = client.ok("fs/readFile", on(&at("appended"), &json!({}), sandbox));
        assert_eq!(decode_base64(read["dataBase64"].as_str().expect("bytes")), b"yz");
        // An abandoned draft is removed as the user, also if it has a name.
        client.ok("fs/create", on(&at("gone"), &json!({"handleId": "gone", "keep": "other"}), sandbox));
        client.ok("fs/close", json!({"handleId": "gone", "discard": true}));
        client.ok("fs/remove", on(&at("copy"), &json!({}), sandbox));
        assert!(!at("copy").exists());
    }
    let names = fs::read_dir(&open).expect("list it").map(|entry| entry.expect("an entry").file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(".exec-server-")).collect();
    assert!(left.is_empty(), "{left:?}");
    // The server itself still acts as root: it starts processes and keeps its state.
    assert_eq!(client.script("id", "id -u"), NOBODY.to_string());
    assert_eq!(fs::metadata(server.state_dir().join("token")).expect("it is there").uid(), 0);
}

#[test]
fn a_watch_sees_what_the_user_sees() {
    let Places { open, closed, server, .. } = places();
    let mut client = server.client();
    let watch = client.ok("fs/watch", json!({"handleId": "w", "path": open}));
    assert_eq!((&watch["directories"], &watch["unwatched"]), (&json!(1), &json!(1)), "{watch}");
    fs::write(closed.join("later"), "x").expect("write");
    fs::write(open.join("seen"), "x").expect("write");
    let changes = client.ok("fs/watchNext", json!({"handleId": "w", "waitMs": 10_000}));
    let text = changes["changes"].to_string();
    assert!(text.contains("seen") && !text.contains("later"), "{changes}");
}
