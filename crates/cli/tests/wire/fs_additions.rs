//! Our additions to file methods: atomic writes, preconditions (`ifMatch`), ranges and lines, drafts, modes and times. Failures are tested
//! in `fs_failures.rs`.

use std::os::unix::{
    ffi::OsStrExt,
    fs::{MetadataExt, PermissionsExt},
};

use crate::{
    prelude::*,
    wire::fs_helpers::{Files, chunk, data, names},
};

fn write(path: &Path, bytes: &[u8], more: Value) -> Value {
    with(json!({"path": path, "dataBase64": encode_base64(bytes)}), more)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

#[test]
fn nobody_ever_sees_half_of_a_file() {
    let mut files = Files::start();
    let path = files.file("file", &vec![b'a'; 3 << 20]);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Ordering::Relaxed) {
                let bytes = fs::read(&path).expect("the file is there at every moment");
                assert_eq!(bytes.len(), 3 << 20);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "all of it is of one write");
                seen += 1;
            }
            seen
        });
        for letter in b'b'..=b'k' {
            let answer = files.write(&path, &vec![letter; 3 << 20]);
            assert_eq!((&answer["atomic"], &answer["size"]), (&json!(true), &json!(3 << 20)));
        }
        done.store(true, Ordering::Relaxed);
        assert!(watcher.join().expect("the watcher saw whole files") > 0);
    });
    assert_eq!(files.names(), ["file"], "nothing is left beside it");
}

#[test]
fn a_replaced_file_keeps_its_mode_and_a_link_its_place() {
    let mut files = Files::start();
    let path = files.file("file", b"old");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set the mode");
    let link = files.link("link", "file");
    let before = fs::metadata(&path).expect("the file").ino();
    assert_eq!(files.write(&link, b"new")["atomic"], true);
    assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
    assert_eq!((fs::read(&path).expect("the file"), mode(&path)), (b"new".to_vec(), 0o640));
    assert_ne!(fs::metadata(&path).expect("the file").ino(), before, "it is another file by the same name");
    // Through a chain of symlinks, and to a name that does not exist yet.
    files.directory("deep");
    files.link("deep/chain", "../link");
    assert_eq!(files.write(&files.path("deep/chain"), b"chained")["atomic"], true);
    assert_eq!(fs::read(&path).expect("the file"), b"chained");
    let dangling = files.link("dangling", "deep/fresh");
    assert_eq!(files.write(&dangling, b"fresh")["atomic"], true);
    assert_eq!(fs::read(files.path("deep/fresh")).expect("made by the link"), b"fresh");
    // A new file gets the default mode with the umask applied, or the requested mode.
    files.ok("fs/writeFile", write(&files.path("exact"), b"", json!({"mode": 0o751})));
    assert_eq!(mode(&files.path("exact")), 0o751);
    files.refuses("fs/writeFile", write(&path, b"", json!({"mode": 0o10000})), -32600, "invalidInput");
}

#[test]
fn attributes_of_a_replaced_file_stay_with_its_name() {
    let mut files = Files::start();
    let path = files.file("file", b"old");
    rustix::fs::setxattr(&path, "user.note", b"kept", rustix::fs::XattrFlags::empty())
        .expect("this disk has attributes");
    assert_eq!(files.write(&path, b"new")["atomic"], true);
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(&path, "user.note", &mut value).expect("it is still there");
    assert_eq!(&value[..len], b"kept");
}

#[test]
fn what_cannot_be_replaced_is_written_in_place_and_says_so() {
    let server = testkit::TestServer::builder().run_by_nobody().start();
    let mut client = server.client();
    let dir = tempfile::Builder::new().prefix("exec-server-test-").tempdir().expect("a directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("others may look");
    let path = dir.path().join("file");
    fs::write(&path, b"longer than before").expect("write a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("others may write the file");
    let inode = fs::metadata(&path).expect("the file").ino();
    assert_eq!(client.ok("fs/writeFile", write(&path, b"new", json!({})))["atomic"], false);
    assert_eq!(fs::read(&path).expect("the file"), b"new");
    assert_eq!(fs::metadata(&path).expect("the file").ino(), inode);
    // A file without write permission is not replaced, although its directory would allow it.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("others may make files");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("others may not write the file");
    client.refuses("fs/writeFile", write(&path, b"no", json!({})), -32600, "permissionDenied");
    assert_eq!(fs::read(&path).expect("the file"), b"new");
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn two_writers_that_insist_on_a_state_lose_no_edit() {
    const WRITERS: usize = 4;
    const EDITS: usize = 50;
    let files = Files::start();
    let path = files.file("counter", b"000000");
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let mut client = files.server.client();
                let mut edits = 0;
                while edits < EDITS {
                    let read = client.ok("fs/readFile", json!({"path": path}));
                    let text = String::from_utf8(data(&read)).expect("a number");
                    let next = format!("{:06}", text.parse::<u64>().expect("a number") + 1);
                    let params = write(&path, next.as_bytes(), json!({"ifMatch": read["etag"]}));
                    match client.call("fs/writeFile", params) {
                        Ok(_) => edits += 1,
                        Err(error) => assert_error(&error, -32600, "etagMismatch"),
                    }
                }
            });
        }
    });
    assert_eq!(fs::read(&path).expect("the file"), format!("{:06}", WRITERS * EDITS).as_bytes());
}

#[test]
fn a_state_changes_with_the_bytes_and_only_then() {
    let mut files = Files::start();
    let path = files.path("file");
    let made = files.ok("fs/writeFile", write(&path, b"one", json!({"ifMatch": "absent"})));
    files.refuses("fs/writeFile", write(&path, b"two", json!({"ifMatch": "absent"})), -32600, "etagMismatch");
    assert_eq!(
        files.ok("fs/getMetadata", json!({"path": path}))["etag"].as_str().map(|etag| etag.split('-').next()),
        made["etag"].as_str().map(|etag| etag.split('-').next())
    );
    for more in [json!({"ifMatch": "nonsense"}), json!({"ifMatch": ""}), json!({"ifMatch": "nonsense", "append": true})]
    {
        files.refuses("fs/writeFile", write(&path, b"two", more), -32600, "etagMismatch");
    }
    // The etag in the answer to a write is valid for the next write; the earlier etag is not.
    let next = files.ok("fs/writeFile", write(&path, b"two", json!({"ifMatch": made["etag"]})));
    files.refuses("fs/writeFile", write(&path, b"six", json!({"ifMatch": made["etag"]})), -32600, "etagMismatch");
    let last = files.ok("fs/writeFile", write(&path, b"!", json!({"ifMatch": next["etag"], "append": true})));
    assert_eq!(fs::read(&path).expect("the file"), b"two!");
    // Another program changes the file without changing its length.
    fs::write(&path, b"tow!").expect("write");
    files.refuses("fs/writeFile", write(&path, b"x", json!({"ifMatch": last["etag"]})), -32600, "etagMismatch");
    fs::remove_file(&path).expect("remove");
    files.refuses("fs/writeFile", write(&path, b"x", json!({"ifMatch": last["etag"]})), -32600, "etagMismatch");
    assert!(files.names().is_empty());
}

#[test]
fn bytes_go_to_the_end_or_to_a_place() {
    let mut files = Files::start();
    let path = files.path("file");
    for (bytes, more, expected) in [
        (&b"ab"[..], json!({"append": true}), &b"ab"[..]),
        (b"cd", json!({"append": true, "fsync": true}), b"abcd"),
        (b"XY", json!({"offset": 1}), b"aXYd"),
        (b"!", json!({"offset": 6}), b"aXYd\0\0!"),
        (b"", json!({"offset": 0}), b"aXYd\0\0!"),
    ] {
        let answer = files.ok("fs/writeFile", write(&path, bytes, more));
        assert_eq!((&answer["atomic"], &answer["size"]), (&json!(false), &json!(expected.len())));
        assert_eq!(fs::read(&path).expect("the file"), expected);
    }
    files.refuses("fs/writeFile", write(&path, b"", json!({"append": true, "offset": 1})), -32600, "invalidInput");
    files.refuses("fs/writeFile", write(&path, b"x", json!({"offset": u64::MAX})), -32600, "invalidInput");
    files.ok("fs/writeFile", write(&path, b"on the disk", json!({"fsync": true})));
    assert_eq!(fs::read(&path).expect("the file"), b"on the disk");
}

#[test]
fn ranges_and_lines_of_a_file_are_read_alone() {
    let mut files = Files::start();
    let path = files.file("file", b"one\ntwo\nthree\nlast");
    for (more, bytes, eof) in [
        (json!({}), &b"one\ntwo\nthree\nlast"[..], true),
        (json!({"offset": 4, "len": 3}), b"two", false),
        (json!({"offset": 14}), b"last", true),
        (json!({"offset": 14, "len": 100}), b"last", true),
        (json!({"offset": 14, "len": 4}), b"last", true),
        (json!({"offset": 100}), b"", true),
        (json!({"offset": u64::MAX, "len": 1}), b"", true),
        (json!({"len": 0}), b"", false),
        (json!({"lines": {"first": 1, "count": 1}}), b"one\n", false),
        (json!({"lines": {"first": 2, "count": 2}}), b"two\nthree\n", false),
        (json!({"lines": {"first": 4, "count": 9}}), b"last", true),
        (json!({"lines": {"first": 9, "count": 9}}), b"", true),
        (json!({"lines": {"first": 1, "count": u64::MAX}}), b"one\ntwo\nthree\nlast", true),
    ] {
        let answer = files.ok("fs/readFile", with(json!({"path": path}), more.clone()));
        assert_eq!((data(&answer).as_slice(), &answer["eof"]), (bytes, &json!(eof)), "{more}");
        assert_eq!(answer["size"], 18);
    }
    for more in [json!({"lines": {"first": 0, "count": 1}}), json!({"lines": {"first": 1, "count": 1}, "offset": 0})] {
        files.refuses("fs/readFile", with(json!({"path": path}), more), -32600, "invalidInput");
    }
    // Lines that do not end at the boundary of a read.
    let long: Vec<u8> = (0..5).flat_map(|n| [vec![b'0' + n; 700_000], b"\n".to_vec()].concat()).collect();
    let path = files.file("long", &long);
    let answer = files.ok("fs/readFile", json!({"path": path, "lines": {"first": 3, "count": 2}}));
    assert_eq!(data(&answer), &long[2 * 700_001..4 * 700_001]);
}

#[test]
fn a_file_of_64_mib_passes_in_one_message_and_a_larger_one_is_told_how() {
    let mut files = Files::start();
    let bytes: Vec<u8> = (0..64_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = files.path("large");
    assert_eq!(files.write(&path, &bytes)["atomic"], true);
    assert!(fs::read(&path).expect("the file") == bytes);
    assert!(files.read(&path) == bytes);
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|file| file.set_len((64 << 20) + 1))
        .expect("one more byte");
    let error = files.refuses("fs/readFile", json!({"path": path}), -32600, "fileTooLarge");
    assert!(error.message.contains("fs/open"), "{}", error.message);
    let answer = files.ok("fs/readFile", json!({"path": path, "offset": 64 << 20}));
    assert_eq!(data(&answer), [0]);
    let bytes = vec![0; (64 << 20) + 1];
    let error = files.refuses("fs/writeFile", write(&path, &bytes, json!({})), -32600, "fileTooLarge");
    assert!(error.message.contains("fs/create"), "{}", error.message);
}

fn put(id: &str, offset: u64, bytes: &[u8]) -> Value {
    json!({"handleId": id, "offset": offset, "chunk": encode_base64(bytes)})
}

#[test]
fn a_draft_is_seen_by_nobody_before_its_commit() {
    let mut files = Files::start();
    let path = files.file("file", b"old");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).expect("set the mode");
    assert_eq!(files.ok("fs/create", json!({"handleId": "d", "path": path})), json!({"handleId": "d", "size": 0}));
    assert_eq!(files.ok("fs/writeBlock", put("d", 4, b"tail")), json!({"size": 8}));
    assert_eq!(files.ok("fs/writeBlock", put("d", 0, b"head")), json!({"size": 8}));
    assert_eq!((fs::read(&path).expect("the file"), files.names()), (b"old".to_vec(), vec!["file".to_owned()]));
    let answer = files.ok("fs/commit", json!({"handleId": "d"}));
    assert_eq!((&answer["atomic"], &answer["size"]), (&json!(true), &json!(8)));
    assert_eq!((fs::read(&path).expect("the file"), mode(&path)), (b"headtail".to_vec(), 0o604));
    files.refuses("fs/commit", json!({"handleId": "d"}), -32004, "unknownHandle");
    // A new file with all attributes that a commit can set.
    let fresh = files.path("fresh");
    files.ok("fs/create", json!({"handleId": "d", "path": fresh}));
    files.ok("fs/writeBlock", put("d", 0, b"0123456789"));
    let modified = json!({"seconds": 1_000_000_000, "nanos": 123_456_789});
    let attributes = json!({"mode": 0o711, "modifiedAt": modified, "size": 4, "ifMatch": "absent", "fsync": true});
    files.ok("fs/commit", with(json!({"handleId": "d"}), attributes));
    let found = files.ok("fs/getMetadata", json!({"path": fresh}));
    assert_eq!((&found["modifiedAt"], &found["mode"], &found["size"]), (&modified, &json!(0o711), &json!(4)));
    assert_eq!(files.names(), ["file", "fresh"]);
}

#[test]
fn a_draft_that_is_given_up_leaves_nothing() {
    let mut files = Files::start();
    let path = files.path("file");
    let mut client = files.server.connect();
    client.initialize();
    for id in ["closed", "left"] {
        client.ok("fs/create", json!({"handleId": id, "path": path}));
        client.ok("fs/writeBlock", put(id, 0, b"bytes"));
    }
    client.ok("fs/close", json!({"handleId": "closed"}));
    client.refuses("fs/writeBlock", put("closed", 0, b"x"), -32004, "unknownHandle");
    client.ok("session/end", json!({}));
    assert!(files.names().is_empty());
    // The data is freed too, not only the name.
    let held = || files.server.descriptors_of(&files.dir());
    testkit::wait_for("the drafts to be closed", || held() == 0);
    files.ok("fs/create", json!({"handleId": "read", "path": path}));
    files.refuses("fs/readBlock", json!({"handleId": "read", "offset": 0, "len": 1}), -32600, "invalidInput");
    let file = files.file("other", b"x");
    files.ok("fs/open", json!({"handleId": "write", "path": file}));
    files.refuses("fs/writeBlock", put("write", 0, b"x"), -32600, "invalidInput");
    files.refuses("fs/commit", json!({"handleId": "write"}), -32600, "invalidInput");
}

#[test]
fn a_draft_for_another_state_waits_for_a_second_try() {
    let mut files = Files::start();
    let path = files.file("file", b"one");
    let seen = files.ok("fs/getMetadata", json!({"path": path}))["etag"].clone();
    files.ok("fs/create", json!({"handleId": "d", "path": path}));
    files.ok("fs/writeBlock", put("d", 0, b"three"));
    let now = files.write(&path, b"two")["etag"].clone();
    files.refuses("fs/commit", json!({"handleId": "d", "ifMatch": seen}), -32600, "etagMismatch");
    assert_eq!(fs::read(&path).expect("the file"), b"two");
    files.ok("fs/commit", json!({"handleId": "d", "ifMatch": now}));
    assert_eq!(fs::read(&path).expect("the file"), b"three");
}

#[test]
fn a_draft_over_a_file_with_two_names_goes_into_it() {
    let mut files = Files::start();
    let (one, two) = (files.file("one", b"old and long"), files.path("two"));
    fs::hard_link(&one, &two).expect("a second name");
    files.ok("fs/create", json!({"handleId": "d", "path": one}));
    files.ok("fs/writeBlock", put("d", 0, b"new"));
    assert_eq!(files.ok("fs/commit", json!({"handleId": "d"}))["atomic"], false);
    assert_eq!(fs::read(&two).expect("the other name"), b"new");
    assert_eq!(files.names(), ["one", "two"]);
}

#[test]
fn a_kept_draft_goes_on_where_it_was_left() {
    let mut files = Files::start();
    let path = files.path("file");
    let create = json!({"handleId": "d", "path": path, "keep": "job-1"});
    let mut client = files.server.connect();
    client.initialize();
    assert_eq!(client.ok("fs/create", create.clone())["size"], 0);
    client.ok("fs/writeBlock", put("d", 0, b"first "));
    // Only one session can have the draft open.
    files.refuses("fs/create", create.clone(), -32600, "draftBusy");
    client.ok("session/end", json!({}));
    assert!(!path.exists());
    let mut size = json!(null);
    testkit::wait_for("the draft to be free", || match files.client.call("fs/create", create.clone()) {
        Ok(made) => {
            size = made["size"].clone();
            true
        }
        Err(_) => false,
    });
    assert_eq!(size, 6);
    // A listing with details omits the draft.
    assert_eq!(files.ok("fs/readDirectory", json!({"path": files.dir(), "details": true}))["entries"], json!([]));
    files.ok("fs/writeBlock", put("d", 6, b"second"));
    files.ok("fs/commit", json!({"handleId": "d"}));
    assert_eq!(fs::read(&path).expect("the file"), b"first second");
    assert_eq!(files.names(), ["file"]);
    files.ok("fs/create", create);
    files.ok("fs/close", json!({"handleId": "d", "discard": true}));
    assert_eq!(files.names(), ["file"]);
    files.refuses("fs/create", json!({"handleId": "d", "path": path, "keep": "../x"}), -32600, "invalidInput");
}

#[test]
fn holes_stay_holes() {
    let mut files = Files::start();
    let path = files.path("sparse");
    files.ok("fs/create", json!({"handleId": "d", "path": path}));
    files.ok("fs/writeBlock", put("d", 0, b"head"));
    files.ok("fs/writeBlock", put("d", 8 << 20, b"tail"));
    files.ok("fs/commit", json!({"handleId": "d", "size": 16 << 20}));
    let is_sparse = |path: &Path| {
        let found = fs::metadata(path).expect("the file");
        assert_eq!(found.len(), 16 << 20);
        found.blocks() * 512 < 1 << 20
    };
    assert!(is_sparse(&path));
    files.ok("fs/open", json!({"handleId": "h", "path": path}));
    let block = |offset: u64| json!({"handleId": "h", "offset": offset, "len": 1 << 20, "holes": true});
    let first = files.ok("fs/readBlock", block(0));
    assert_eq!((chunk(&first)[..4].to_vec(), &first["eof"]), (b"head".to_vec(), &json!(false)));
    let hole = files.ok("fs/readBlock", block(1 << 20));
    assert_eq!((&hole["chunk"], &hole["hole"], &hole["eof"]), (&json!(""), &json!(7 << 20), &json!(false)));
    let end = files.ok("fs/readBlock", block(16 << 20));
    assert_eq!((&end["chunk"], &end["eof"]), (&json!(""), &json!(true)));
    let copy = files.path("copy");
    files.copy(&path, &copy, false);
    // A file without holes ends with its last byte.
    let dense = files.file("dense", b"bytes");
    files.ok("fs/open", json!({"handleId": "e", "path": dense}));
    for (len, eof) in [(5, false), (6, true)] {
        let read = files.ok("fs/readBlock", json!({"handleId": "e", "offset": 0, "len": len, "holes": true}));
        assert_eq!((chunk(&read).as_slice(), &read["eof"]), (&b"bytes"[..], &json!(eof)), "{len}");
    }
    assert!(is_sparse(&copy) && fs::read(&copy).expect("the copy") == fs::read(&path).expect("the file"));
}

#[test]
fn names_that_are_no_text_survive() {
    let mut files = Files::start();
    let odd: PathBuf = files.path("x").with_file_name(OsStr::from_bytes(b"odd-\xff\n-name"));
    let odd_uri = format!("file://{}/odd-%FF%0A-name", files.dir().display());
    files.ok("fs/writeFile", json!({"path": odd_uri, "dataBase64": "aGk="}));
    assert_eq!(fs::read(&odd).expect("the file"), b"hi");
    assert_eq!(data(&files.ok("fs/readFile", json!({"path": odd_uri}))), b"hi");
    let listed = files.ok("fs/readDirectory", json!({"path": files.dir()}));
    let name = encode_base64(b"odd-\xff\n-name");
    let kind = json!({"isDirectory": false, "isFile": true, "isSymlink": false});
    let entry = with(json!({"fileName": "odd-\u{fffd}\n-name", "fileNameBase64": name}), kind);
    assert_eq!(listed["entries"], json!([entry]));
    assert_eq!(files.ok("fs/canonicalize", json!({"path": odd_uri})), json!({"path": odd_uri}));
    let link = files.link("link", &odd);
    let answered = files.ok("fs/canonicalize", json!({"path": link}));
    assert_eq!(answered, json!({"path": odd_uri}), "a native path cannot say it, so it is a URI");
    let found = files.ok("fs/getMetadata", json!({"path": link, "ofLink": true}));
    assert_eq!(found["linkTargetBase64"], encode_base64(odd.as_os_str().as_bytes()));
    files.ok("fs/createSymlink", json!({"path": files.path("again"), "targetBase64": name}));
    assert_eq!(fs::read_link(files.path("again")).expect("a link").as_os_str().as_bytes(), b"odd-\xff\n-name");
    files.ok("fs/remove", json!({"path": odd_uri}));
    assert!(!odd.exists());
}

#[test]
fn a_listing_with_details_shows_everything_in_parts() {
    let mut files = Files::start();
    files.file("file", b"12345");
    files.directory("directory");
    files.link("broken", "no where");
    files.link("to-file", "file");
    testkit::fifo(&files.dir(), "pipe");
    let listed = files.ok("fs/readDirectory", json!({"path": files.dir(), "details": true}));
    let entries = listed["entries"].as_array().expect("entries").clone();
    let short: Vec<Value> = entries
        .iter()
        .map(|entry| json!([entry["fileName"], entry["kind"], entry["linkTarget"], entry["isFile"]]))
        .collect();
    let expected = json!([
        ["broken", "symlink", "no where", false],
        ["directory", "directory", null, false],
        ["file", "file", null, true],
        ["pipe", "other", null, false],
        ["to-file", "symlink", "file", true],
    ]);
    assert_eq!(json!(short), expected);
    assert_eq!((&entries[2]["size"], &entries[2]["mode"]), (&json!(5), &json!(mode(&files.path("file")))));
    let after = json!({"path": files.dir(), "details": true, "afterBase64": encode_base64(b"file")});
    let rest = files.ok("fs/readDirectory", after);
    assert_eq!(rest["entries"].as_array().map(Vec::len), Some(2));
}

#[test]
fn links_modes_and_times_can_be_set() {
    let mut files = Files::start();
    let file = files.file("file", b"");
    let link = files.path("link");
    files.ok("fs/createSymlink", json!({"path": link, "target": "file"}));
    files.refuses("fs/createSymlink", json!({"path": link, "target": "x"}), -32603, "alreadyExists");
    files.ok("fs/createSymlink", json!({"path": link, "target": "./file", "replace": true}));
    assert_eq!(fs::read_link(&link).expect("a link"), Path::new("./file"));
    files.directory("directory");
    let error =
        files.fails("fs/createSymlink", json!({"path": files.path("directory"), "target": "x", "replace": true}));
    assert_error(&error, -32603, "isADirectory");
    files.refuses("fs/createSymlink", json!({"path": files.path("empty"), "target": ""}), -32600, "invalidInput");
    let then = |seconds: i64| json!({"seconds": seconds, "nanos": 5});
    files.ok("fs/setMetadata", json!({"path": link, "mode": 0o600, "modifiedAt": then(77)}));
    files.ok("fs/setMetadata", json!({"path": link, "ofLink": true, "modifiedAt": then(-88)}));
    let found = fs::metadata(&file).expect("the file");
    assert_eq!((found.mode() & 0o7777, found.mtime(), found.mtime_nsec()), (0o600, 77, 5));
    assert_eq!(fs::symlink_metadata(&link).expect("the link").mtime(), -88);
    files.refuses("fs/setMetadata", json!({"path": link, "ofLink": true, "mode": 0o600}), -32600, "invalidInput");
    files.ok("fs/createDirectory", json!({"path": files.path("a/b"), "mode": 0o700}));
    assert_eq!(mode(&files.path("a/b")), 0o700);
    assert_eq!(files.names(), ["a", "directory", "file", "link"]);
}

#[test]
fn requests_of_a_client_that_announced_nothing_have_their_effect_in_order() {
    let mut files = Files::start();
    let path = files.path("file");
    let mut last = 0;
    for n in 0..200 {
        let bytes = format!("{n}");
        files.client.send_request("fs/writeFile", write(&path, bytes.as_bytes(), json!({})));
        last = files.client.send_request("fs/readFile", json!({"path": path}));
    }
    assert_eq!(data(&files.client.answer(last).expect("the file")), b"199");
    // A client with `concurrent` has no ordering, and every request is answered.
    let mut client = files.server.connect();
    client.initialize_with(modern());
    let asked: Vec<i64> = (0..200).map(|_| client.send_request("fs/getMetadata", json!({"path": path}))).collect();
    assert!(client.answers(asked).iter().all(|answer| answer["size"] == 3));
}
