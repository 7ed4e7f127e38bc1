//! Failures of file methods: dangling and circular symlinks, files that change while they are read, huge or vanishing directories, a full
//! disk, clients that disconnect. Roots are tested in the promise S16.

use std::os::unix::fs::MetadataExt;

use crate::{
    prelude::*,
    wire::fs_helpers::{Files, data},
};

#[test]
fn links_that_lead_nowhere_or_in_a_circle_are_clear_errors() {
    let mut files = Files::start();
    let dangling = files.link("dangling", "nowhere/at/all");
    let (one, two) = (files.link("one", "two"), files.link("two", "one"));
    let own = files.link("own", "own/below");
    for (method, more) in [
        ("fs/readFile", json!({})),
        ("fs/getMetadata", json!({})),
        ("fs/canonicalize", json!({})),
        ("fs/readDirectory", json!({})),
        ("fs/open", json!({"handleId": "h"})),
        ("fs/writeFile", json!({"dataBase64": ""})),
    ] {
        let on = |path: &Path| testkit::with(json!({"path": path}), more.clone());
        files.refuses(method, on(&dangling), -32004, "notFound");
        for path in [&one, &two, &own] {
            let error = files.refuses(method, on(path), -32603, "ioFailed");
            assert!(error.message.contains("symbolic links"), "{}", error.message);
        }
    }
    // The links themselves can be inspected, copied and removed.
    assert_eq!(files.ok("fs/getMetadata", json!({"path": one, "ofLink": true}))["linkTarget"], "two");
    for path in [dangling, one, two, own] {
        files.copy(&path, &path.with_extension("copy"), false);
        files.ok("fs/remove", json!({"path": path, "force": false}));
    }
    assert_eq!(files.names(), ["dangling.copy", "one.copy", "own.copy", "two.copy"]);
}

#[test]
fn a_file_that_shrinks_while_it_is_read_gives_what_it_had() {
    let mut files = Files::start();
    let path = files.file("file", &vec![b'x'; 32 << 20]);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::OpenOptions::new().write(true).open(&path).expect("open");
            let mut size = 1;
            while !done.load(Ordering::Relaxed) {
                size = (size * 7 + 3) % (32 << 20);
                file.set_len(size).expect("cut");
                file.set_len(32 << 20).expect("grow");
            }
        });
        files.ok("fs/open", json!({"handleId": "h", "path": path}));
        for round in 0..10 {
            let bytes = files.read(&path);
            assert!(bytes.len() <= 32 << 20 && bytes.iter().all(|byte| matches!(byte, b'x' | 0)));
            let block = json!({"handleId": "h", "offset": round * (1 << 20), "len": 1 << 20});
            files.ok("fs/readBlock", block);
        }
        done.store(true, Ordering::Relaxed);
    });
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(3)).expect("cut");
    let end = files.ok("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": 10}));
    assert_eq!((end["eof"].clone(), crate::wire::fs_helpers::chunk(&end).len()), (json!(true), 3));
}

#[test]
fn a_directory_of_100_000_entries_is_listed_in_parts_walked_and_removed() {
    const MANY: usize = 100_000;
    let mut files = Files::start();
    let directory = files.directory("many");
    for n in 0..MANY {
        fs::File::create(directory.join(format!("{n:06}"))).expect("make a file");
    }
    let error = files.refuses("fs/readDirectory", json!({"path": directory}), -32603, "resourcesExhausted");
    assert!(error.message.contains("details"), "{}", error.message);
    let (mut found, mut after, mut parts) = (Vec::new(), Value::Null, 0);
    loop {
        let part = files.ok("fs/readDirectory", json!({"path": directory, "details": true, "afterBase64": after}));
        let entries = part["entries"].as_array().expect("entries");
        found.extend(entries.iter().filter_map(|entry| entry["fileName"].as_str().map(str::to_owned)));
        parts += 1;
        if part["truncated"] != true {
            break;
        }
        after = json!(encode_base64(found.last().expect("there are more").as_bytes()));
    }
    assert_eq!((found.len(), parts), (MANY, 7));
    assert!(found.iter().enumerate().all(|(n, name)| *name == format!("{n:06}")));
    let options = json!({"maxDepth": 1, "maxDirectories": 1, "maxEntries": 50_000, "followDirectorySymlinks": false});
    let walked = files.ok("fs/walk", json!({"path": directory, "options": options}));
    let entries = walked["entries"].as_array().expect("entries");
    assert!(walked["truncated"] == true && entries.len() > 10_000);
    let last = entries.last().and_then(|entry| entry["path"].as_str()).expect("a path").to_owned();
    assert_eq!(last, directory.join(format!("{:06}", entries.len() - 1)).display().to_string(), "the first by name");
    files.ok("fs/remove", json!({"path": directory}));
    assert!(files.names().is_empty());
}

#[test]
fn a_tree_that_is_removed_and_made_while_it_is_walked_harms_nobody() {
    let mut files = Files::start();
    let top = files.directory("top");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for n in 0..20 {
                    let deep = top.join(format!("{n}/a/b/c"));
                    fs::create_dir_all(&deep).ok();
                    fs::write(deep.join("file"), b"x").ok();
                }
                for n in 0..20 {
                    fs::remove_dir_all(top.join(format!("{n}"))).ok();
                }
            }
        });
        let options =
            json!({"maxDepth": 9, "maxDirectories": 9999, "maxEntries": 9999, "followDirectorySymlinks": true});
        let copy = files.path("copy");
        for _ in 0..100 {
            let walked = files.ok("fs/walk", json!({"path": top, "options": options}));
            assert_eq!(walked["truncated"], false);
            files.ok("fs/readDirectory", json!({"path": top, "details": true}));
            let copied =
                files.client.call("fs/copy", json!({"sourcePath": top, "destinationPath": copy, "recursive": true}));
            if let Err(error) = copied {
                assert!(["notFound", "notADirectory"].contains(&error.kind()), "{error:?}");
            }
            files.ok("fs/remove", json!({"path": copy}));
        }
        done.store(true, Ordering::Relaxed);
    });
    files.ok("fs/remove", json!({"path": top}));
    let error = files.fails("fs/walk", json!({"path": top, "options": {"maxDepth": 1, "maxDirectories": 1, "maxEntries": 1, "followDirectorySymlinks": false}}));
    assert_error(&error, -32004, "notFound");
}

#[test]
fn a_tree_of_any_depth_is_removed() {
    let mut files = Files::start();
    let mut dir =
        rustix::fs::open(files.dir(), rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).expect("open");
    // Deeper than any path can be long.
    for _ in 0..3000 {
        rustix::fs::mkdirat(&dir, "deep", rustix::fs::Mode::RWXU).expect("make a directory");
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        dir = rustix::fs::openat(&dir, "deep", flags, rustix::fs::Mode::empty()).expect("open it");
    }
    files.ok("fs/remove", json!({"path": files.path("deep")}));
    assert!(files.names().is_empty());
}

/// A server with a small tmpfs at `disk` in its directory. The tmpfs is visible only in the server's mount namespace.
fn with_small_disk(size: &str) -> (Files, std::path::PathBuf) {
    let script = format!(
        "if [ -z \"$SMALL_DISK\" ]; then SMALL_DISK=1; export SMALL_DISK; exec unshare --mount --propagation private sh -c \
         'mkdir -p \"$TMPDIR/disk\" && mount -t tmpfs -o size={size} none \"$TMPDIR/disk\" && exec \"$0\" \"$@\"' \"$0\" \"$@\"; fi"
    );
    let server = TestServer::builder().after(&script).start();
    let client = server.client();
    let disk = server.dir().canonicalize().expect("the directory is there").join("disk");
    (Files { client, server }, disk)
}

#[test]
fn a_full_disk_in_the_middle_of_a_write_leaves_the_old_file_whole() {
    let (mut files, disk) = with_small_disk("4m");
    let path = disk.join("file");
    let old = vec![b'o'; 1 << 20];
    files.write(&path, &old);
    let large = vec![b'n'; 8 << 20];
    files.refuses("fs/writeFile", json!({"path": path, "dataBase64": encode_base64(&large)}), -32603, "storageFull");
    assert!(files.read(&path) == old, "the old file is whole");
    // The same with blocks and with a copy.
    files.ok("fs/create", json!({"handleId": "d", "path": path}));
    let block = |n: u64| json!({"handleId": "d", "offset": n << 20, "chunk": encode_base64(&large[..1 << 20])});
    let full = (0..8).find_map(|n| files.client.call("fs/writeBlock", block(n)).err()).expect("the disk is full");
    assert_error(&full, -32603, "storageFull");
    assert!(files.read(&path) == old);
    files.ok("fs/close", json!({"handleId": "d"}));
    let outside = files.server.dir().join("large");
    fs::write(&outside, &large).expect("write a file elsewhere");
    let error = files.fails("fs/copy", json!({"sourcePath": outside, "destinationPath": path, "recursive": false}));
    assert_error(&error, -32603, "storageFull");
    assert!(files.read(&path) == old);
    // Nothing is left of the failed writes, and there is space again.
    let seen = Path::new("/proc")
        .join(files.server.pid().to_string())
        .join("root")
        .join(disk.strip_prefix("/").expect("absolute"));
    assert_eq!(crate::wire::fs_helpers::names(&seen), ["file"]);
    files.write(&disk.join("other"), &vec![b'x'; 2 << 20]);
    assert_eq!(fs::metadata(seen.join("other")).expect("written").size(), 2 << 20);
}

#[test]
fn a_full_disk_leaves_a_file_of_two_names_whole() {
    let (mut files, disk) = with_small_disk("1m");
    let (path, other) = (disk.join("file"), disk.join("other"));
    let old = vec![b'o'; 400 << 10];
    files.write(&path, &old);
    let seen = Path::new("/proc").join(files.server.pid().to_string()).join("root");
    let seen = |path: &Path| seen.join(path.strip_prefix("/").expect("absolute"));
    fs::hard_link(seen(&path), seen(&other)).expect("link");
    let large = vec![b'n'; 2 << 20];
    files.refuses("fs/writeFile", json!({"path": path, "dataBase64": encode_base64(&large)}), -32603, "storageFull");
    assert!(files.read(&other) == old, "the old file is whole");
    // The same with blocks: the draft fits on the disk, but its contents do not fit into the existing file.
    files.ok("fs/create", json!({"handleId": "d", "path": path}));
    let block = json!({"handleId": "d", "offset": 0, "chunk": encode_base64(&large[..560 << 10])});
    files.ok("fs/writeBlock", block);
    files.refuses("fs/commit", json!({"handleId": "d"}), -32603, "storageFull");
    assert!(files.read(&other) == old, "the old file is whole");
    // Data that fits is written, also into holes.
    fs::File::options().write(true).open(seen(&path)).and_then(|file| file.set_len(0)).expect("empty it");
    fs::File::options().write(true).open(seen(&path)).and_then(|file| file.set_len(8 << 20)).expect("a hole");
    files.refuses("fs/writeFile", json!({"path": path, "dataBase64": encode_base64(&large)}), -32603, "storageFull");
    assert!(files.read(&other) == vec![0; 8 << 20], "the hole is whole");
    let written = files.ok("fs/writeFile", json!({"path": path, "dataBase64": encode_base64(&large[..900 << 10])}));
    assert_eq!(written["atomic"], false, "{written}");
    assert!(files.read(&other) == large[..900 << 10]);
}

#[test]
fn a_file_of_somebody_else_takes_bytes_and_an_order_that_cannot_be_carried_out_changes_none() {
    let server = TestServer::builder().run_by_nobody().start();
    let mut files = Files { client: server.client(), server };
    fs::create_dir(files.dir()).expect("make the directory of the test");
    fs::set_permissions(files.dir(), fs::Permissions::from_mode(0o777)).expect("open it");
    // The file belongs to root, and every user may write it.
    let path = files.file("file", b"old");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("open it");
    let written = files.ok("fs/writeFile", json!({"path": path, "dataBase64": encode_base64(b"bytes alone")}));
    assert_eq!((written["atomic"].clone(), files.read(&path)), (json!(false), b"bytes alone".to_vec()));
    let time = json!({"seconds": 1_000_000_000, "nanos": 0});
    for (order, value) in [("mode", json!(0o600)), ("modifiedAt", time)] {
        for (more, name) in [(json!({}), "whole"), (json!({"append": true}), "end"), (json!({"offset": 0}), "offset")] {
            let mut params = testkit::with(json!({"path": path, "dataBase64": encode_base64(b"new")}), more);
            params[order] = value.clone();
            let error = files.fails("fs/writeFile", params);
            assert_eq!(error.kind(), "permissionDenied", "{order} {name}: {error:?}");
            assert_eq!(files.read(&path), b"bytes alone", "{order} {name}");
        }
        files.ok("fs/create", json!({"handleId": "d", "path": path}));
        files.ok("fs/writeBlock", json!({"handleId": "d", "offset": 0, "chunk": encode_base64(b"new")}));
        let mut params = json!({"handleId": "d"});
        params[order] = value;
        assert_eq!(files.fails("fs/commit", params).kind(), "permissionDenied", "{order}");
        assert_eq!(files.read(&path), b"bytes alone", "{order}");
    }
}

#[test]
fn work_for_a_client_that_left_is_called_off() {
    let files = Files::start();
    let path = files.file("endless", b"");
    // Searching a huge hole without any line takes a long time.
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(8 << 40)).expect("a large hole");
    let opened = || files.server.descriptors_of(&path);
    let mut client = files.server.connect();
    client.initialize_with(modern());
    for _ in 0..20 {
        client.send_request("fs/readFile", json!({"path": path, "lines": {"first": 2, "count": 1}}));
    }
    testkit::wait_for("the search to begin", || opened() > 0);
    // Other clients are served in the meantime.
    let mut other = files.server.client();
    let small = files.file("small", b"x");
    assert_eq!(data(&other.ok("fs/readFile", json!({"path": small}))), b"x");
    assert!(opened() <= 16, "a session has so many places and no more");
    drop(client);
    testkit::wait_for("the search to be called off", || opened() == 0);
}
