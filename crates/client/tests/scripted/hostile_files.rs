//! Copies from hostile servers: nothing is ever written outside of the target. Successful copies are tested with the binary.

#![cfg(feature = "local")]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::prelude::*;
use exec_server_client::{
    cp::{self, CopyEndpoint, CopyReport, NoObserver},
    fs::{BLOCK, FileSystem, LocalFiles, RemoteFiles},
};

/// A directory with a target for copies, and a file outside of the target.
struct Ground {
    dir: TempDir,
    client: Client,
    peer: Peer,
    _door: crate::Door,
}

impl Ground {
    async fn new() -> Self {
        let (client, peer, door) = connect(CURRENT).await;
        let dir = tempfile::Builder::new().prefix("exec-server-hostile-").tempdir().unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/file"), "untouched").unwrap();
        Self { dir, client, peer, _door: door }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Copies `/src` into `target`, with a server that answers arbitrarily.
    async fn copy(&mut self, mut server: impl FnMut(&str, &Value) -> Value) -> Result<CopyReport, cp::CopyError> {
        let source = CopyEndpoint { files: Arc::new(RemoteFiles::new(self.client.clone())), path: "/src".into() };
        let files: Arc<dyn FileSystem> = Arc::new(LocalFiles::new());
        let target = CopyEndpoint { files, path: self.path("target") };
        let playing = async {
            loop {
                let request = self.peer.any_request().await;
                let said = server(&request.method, &request.params);
                let result = match (request.method.as_str(), said) {
                    ("fs/getMetadata", Value::Null) => directory_metadata(),
                    ("fs/canonicalize", Value::Null) => json!({"path": "/src"}),
                    ("fs/readFile", Value::Null) => json!({"dataBase64": base64::encode(b"x")}),
                    ("fs/close", Value::Null) => json!({}),
                    (_, result) => result,
                };
                match result["refused"].as_str() {
                    Some(why) => self.peer.refuse(&request, -32603, None, why).await,
                    None => self.peer.answer(&request, result).await,
                }
            }
        };
        let copying = cp::copy(&source, &target, true, &NoObserver);
        let both = async {
            tokio::select! {
                done = copying => done,
                never = playing => never,
            }
        };
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("it ends")
    }

    /// Asserts that only the target was created, and that nothing outside of it was changed.
    fn is_untouched(&self) {
        let mut names: Vec<_> =
            fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.retain(|name| name != "target" && name != ".target.exec-server-cp");
        assert_eq!(names, ["outside"]);
        let outside: Vec<_> =
            fs::read_dir(self.path("outside")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(outside, ["file"]);
        assert_eq!(fs::read(self.path("outside/file")).unwrap(), b"untouched");
    }

    /// The entries below the target, without hidden ones.
    fn made(&self) -> BTreeMap<String, char> {
        fn look(dir: &Path, root: &Path, all: &mut BTreeMap<String, char>) {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let path = entry.unwrap().path();
                let found = fs::symlink_metadata(&path).unwrap();
                let letter = if found.is_dir() {
                    'd'
                } else if found.is_symlink() {
                    'l'
                } else {
                    'f'
                };
                all.insert(path.strip_prefix(root).unwrap().display().to_string(), letter);
                if found.is_dir() {
                    look(&path, root, all);
                }
            }
        }
        let mut all = BTreeMap::new();
        look(&self.path("target"), &self.path("target"), &mut all);
        all
    }
}

fn directory_metadata() -> Value {
    json!({"isDirectory": true, "isFile": false, "isSymlink": false, "size": 0, "createdAtMs": 0, "modifiedAtMs": 0,
           "mode": 0o755, "modifiedAt": {"seconds": 1, "nanos": 2}})
}

fn entry(name: &[u8], kind: &str) -> Value {
    let text = String::from_utf8_lossy(name);
    json!({"fileName": text, "fileNameBase64": base64::encode(name), "isDirectory": kind == "directory",
           "isFile": kind == "file", "kind": kind, "size": 1, "mode": 0o6777, "modifiedAt": {"seconds": 1, "nanos": 2},
           "linkTarget": if kind == "symlink" { json!("../outside") } else { Value::Null }})
}

fn listing(entries: &[Value], more: bool) -> Value {
    json!({"entries": entries, "truncated": more})
}

#[tokio::test]
async fn names_that_lead_elsewhere_end_the_copy_before_anything_is_made_of_them() {
    let long = [b'x'; 300];
    let bad: [&[u8]; 10] =
        [b"../outside/file", b"../x", b"..", b".", b"", b"/etc/x", b"a/b", b"a\0b", b"outside/../../x", &long];
    for name in bad {
        for kind in ["file", "directory", "symlink"] {
            let mut ground = Ground::new().await;
            let done = ground
                .copy(|method, _| match method {
                    "fs/readDirectory" => listing(&[entry(name, kind)], false),
                    _ => Value::Null,
                })
                .await;
            assert!(matches!(done, Err(cp::CopyError::Name { .. })), "{name:?} {kind}: {done:?}");
            ground.is_untouched();
            assert!(ground.made().is_empty(), "{:?}", ground.made());
        }
    }
}

#[tokio::test]
async fn a_link_that_becomes_a_directory_is_not_entered() {
    let mut ground = Ground::new().await;
    // A file that cannot be read leaves the mark, so that the next copy continues.
    let first = ground.copy(|method, _| match method {
        "fs/readDirectory" => listing(&[entry(b"d", "symlink"), entry(b"f", "symlink"), entry(b"x", "file")], false),
        "fs/readFile" => json!({"refused": "not now"}),
        _ => Value::Null,
    });
    let report = first.await.unwrap();
    assert_eq!((report.links, report.failed), (2, 1));
    assert_eq!(fs::read_link(ground.path("target/d")).unwrap(), Path::new("../outside"));
    let second = ground
        .copy(|method, params| match (method, params["path"].as_str()) {
            ("fs/readDirectory", Some("/src")) => listing(&[entry(b"d", "directory"), entry(b"f", "file")], false),
            ("fs/readDirectory", _) => listing(&[entry(b"file", "file"), entry(b"new", "file")], false),
            _ => Value::Null,
        })
        .await;
    ground.is_untouched();
    // Both are refused, and the links stay.
    let report = second.unwrap();
    assert!(report.failed >= 2, "{report:?}");
    assert_eq!(ground.made(), BTreeMap::from([("d".to_owned(), 'l'), ("f".to_owned(), 'l')]));
}

#[tokio::test]
async fn a_link_where_the_copy_goes_is_refused_whoever_put_it_there() {
    let mut ground = Ground::new().await;
    fs::create_dir_all(ground.path("target/src")).unwrap();
    std::os::unix::fs::symlink(ground.path("outside"), ground.path("target/src/d")).unwrap();
    std::os::unix::fs::symlink(ground.path("outside/file"), ground.path("target/src/file")).unwrap();
    let report = ground
        .copy(|method, params| match (method, params["path"].as_str()) {
            ("fs/readDirectory", Some("/src")) => listing(&[entry(b"d", "directory"), entry(b"file", "file")], false),
            ("fs/readDirectory", _) => listing(&[entry(b"file", "file"), entry(b"new", "file")], false),
            _ => Value::Null,
        })
        .await
        .unwrap();
    ground.is_untouched();
    assert!(report.failed >= 2, "{report:?}");
    assert_eq!((ground.made().get("src/d"), ground.made().get("src/file")), (Some(&'l'), Some(&'l')));
}

#[tokio::test]
async fn listings_without_an_end_are_known() {
    type Server = fn(&Value) -> Value;
    let servers: [(&str, Server); 4] = [
        ("the same page for ever", |_| listing(&[entry(b"a", "file")], true)),
        ("more, and nothing comes", |_| listing(&[], true)),
        ("names that go down", |_| listing(&[entry(b"b", "file"), entry(b"a", "file")], false)),
        ("directories in directories", |_| listing(&[entry(&[b'd'; 200], "directory")], false)),
    ];
    for (what, server) in servers {
        let mut ground = Ground::new().await;
        let done = ground
            .copy(|method, params| match method {
                "fs/readDirectory" => server(params),
                _ => Value::Null,
            })
            .await;
        assert!(matches!(done, Err(cp::CopyError::Listing { .. })), "{what}: {done:?}");
        ground.is_untouched();
    }
}

#[tokio::test]
async fn bytes_that_cannot_be_are_errors_and_no_file_is_seen() {
    let large = |method: &str, chunk: Value| match method {
        "fs/readDirectory" => {
            let mut file = entry(b"large", "file");
            file["size"] = json!(3 << 20);
            listing(&[file], false)
        }
        "fs/open" => json!({"handleId": "h", "size": 3 << 20, "etag": "e"}),
        "fs/readBlock" => chunk,
        _ => Value::Null,
    };
    for chunk in [
        json!({"chunk": base64::encode(&vec![0; (1 << 20) + 1]), "eof": false}),
        json!({"chunk": "", "eof": false}),
        json!({"chunk": "", "eof": true}),
        json!({"chunk": "", "eof": false, "hole": u64::MAX}),
        json!({"chunk": "?", "eof": false}),
    ] {
        let mut ground = Ground::new().await;
        let done = ground.copy(|method, _| large(method, chunk.clone())).await;
        assert!(done.as_ref().map_or(true, |report| report.failed == 1), "{done:?}");
        ground.is_untouched();
        assert!(!ground.path("target/large").exists());
    }
}

#[tokio::test]
async fn modes_from_elsewhere_lend_nobody_rights() {
    let mut ground = Ground::new().await;
    let report = ground.copy(|method, params| match (method, params["path"].as_str()) {
        ("fs/readDirectory", Some("/src")) => listing(&[entry(b"d", "directory"), entry(b"f", "file")], false),
        ("fs/readDirectory", _) => listing(&[], false),
        _ => Value::Null,
    });
    assert_eq!(report.await.unwrap().failed, 0);
    for name in ["target/f", "target/d"] {
        assert_eq!(fs::metadata(ground.path(name)).unwrap().mode() & 0o6000, 0, "{name}");
    }
    assert!(ground.path("target").as_os_str().as_bytes().starts_with(b"/"));
}

/// The mode and time, which a copy may change.
fn attributes(path: &Path) -> (u32, i64, i64) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.mode() & 0o7777, found.mtime(), found.mtime_nsec())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_file_where_a_directory_would_go_keeps_its_mode_and_time() {
    let mut ground = Ground::new().await;
    fs::create_dir_all(ground.path("target/src")).unwrap();
    let secret = ground.path("target/src/d");
    fs::write(&secret, "secret").unwrap();
    set_mode(&secret, 0o600);
    std::os::unix::fs::symlink(ground.path("outside"), ground.path("target/src/l")).unwrap();
    let all = [secret, ground.path("outside"), ground.path("target/src/l")];
    let before = all.each_ref().map(|path| attributes(path));
    let report = ground.copy(|method, params| match (method, params["path"].as_str()) {
        ("fs/readDirectory", Some("/src")) => listing(&[entry(b"d", "directory"), entry(b"l", "directory")], false),
        ("fs/readDirectory", _) => listing(&[entry(b"x", "file")], false),
        _ => Value::Null,
    });
    let report = report.await.unwrap();
    assert_eq!((report.directories, report.failed), (1, 2), "{report:?}");
    assert_eq!(all.each_ref().map(|path| attributes(path)), before);
    ground.is_untouched();
}

#[tokio::test]
async fn directories_that_are_there_keep_what_they_have_and_hand_their_group_down() {
    let mut ground = Ground::new().await;
    fs::create_dir_all(ground.path("target/src/there")).unwrap();
    set_mode(&ground.path("target/src"), 0o2751);
    set_mode(&ground.path("target/src/there"), 0o1710);
    let there = attributes(&ground.path("target/src/there"));
    let report = ground.copy(|method, params| match (method, params["path"].as_str()) {
        ("fs/readDirectory", Some("/src")) => {
            listing(&[entry(b"new", "directory"), entry(b"there", "directory")], false)
        }
        ("fs/readDirectory", Some("/src/new")) => listing(&[entry(b"newer", "directory")], false),
        ("fs/readDirectory", _) => listing(&[], false),
        _ => Value::Null,
    });
    let report = report.await.unwrap();
    assert_eq!((report.directories, report.failed), (4, 0));
    assert_eq!(attributes(&ground.path("target/src")).0, 0o2751);
    assert_eq!(attributes(&ground.path("target/src/there")), there);
    for made in ["target/src/new", "target/src/new/newer"] {
        assert_eq!(attributes(&ground.path(made)), (0o2777, 1, 2), "{made}");
    }
}

#[tokio::test]
async fn a_file_that_is_larger_than_it_was_said_to_be_goes_in_blocks() {
    let mut ground = Ground::new().await;
    let mut asked = Value::Null;
    let report = ground.copy(|method, params| match method {
        "fs/readDirectory" => listing(&[entry(b"log", "file")], false),
        // The server sends the whole file, although only a part was requested.
        "fs/readFile" => {
            asked = params["len"].clone();
            json!({"dataBase64": base64::encode(&[1; 3 << 20])})
        }
        "fs/open" => json!({"handleId": params["handleId"], "size": 2 << 20, "etag": "e"}),
        "fs/readBlock" => json!({"chunk": base64::encode(&[2; BLOCK]), "eof": false}),
        _ => Value::Null,
    });
    let report = report.await.unwrap();
    assert_eq!((report.files, report.failed), (1, 0));
    assert_eq!(asked, json!((32 << 10) + 1), "no more than that is wanted");
    assert_eq!(fs::read(ground.path("target/log")).unwrap(), [2; 2 << 20]);
}

#[tokio::test]
async fn sizes_that_cannot_be_overflow_nothing() {
    let endless = |name: &[u8]| {
        let mut file = entry(name, "file");
        file["size"] = json!(u64::MAX);
        file
    };
    let most = u64::MAX - 5;
    let mut ground = Ground::new().await;
    let report = ground.copy(|method, params| match method {
        "fs/readDirectory" => listing(&[endless(b"a"), endless(b"b"), endless(b"c")], false),
        "fs/open" if params["path"] == "/src/a" => json!({"handleId": "a", "size": u64::MAX, "etag": "e"}),
        "fs/open" => json!({"handleId": "b", "size": 1, "etag": "e"}),
        "fs/readBlock" if params["len"] == 1 => json!({"chunk": base64::encode(b"x"), "eof": false}),
        "fs/readBlock" => {
            let offset = params["offset"].as_u64().unwrap();
            let end = if offset < most { most } else { u64::MAX };
            json!({"chunk": "", "eof": false, "hole": end - offset})
        }
        _ => Value::Null,
    });
    let report = report.await.unwrap();
    assert_eq!((report.files, report.failed, report.bytes), (2, 1, u64::MAX));
    assert!(!ground.path("target/a").exists());
}

#[tokio::test]
async fn a_target_that_is_met_in_the_source_ends_the_copy() {
    let mut ground = Ground::new().await;
    let mark = ground.path(".target.exec-server-cp");
    let met = mark.clone();
    let source = [entry(b".target.exec-server-cp", "file"), entry(b"f", "file"), entry(b"target", "directory")];
    let done = ground.copy(|method, params| match (method, params["path"].as_str()) {
        ("fs/readDirectory", _) => listing(&source, false),
        // The server uses other paths for the same files.
        ("fs/readFile", Some("/src/.target.exec-server-cp")) => {
            json!({"dataBase64": base64::encode(&fs::read(&met).unwrap())})
        }
        _ => Value::Null,
    });
    let done = done.await;
    assert!(matches!(done, Err(cp::CopyError::IntoItself { .. })), "{done:?}");
    assert!(ground.made().is_empty() && !mark.exists());
}
