//! Files block by block: the reference's tests of streams (specification 10.4, `file_stream.rs`) and of walks, over the wire. Drafts are
//! tested in `fs_additions.rs`.

use std::os::unix::ffi::OsStrExt;

use crate::{
    prelude::*,
    wire::fs_helpers::{Files, chunk, data, uri},
};

fn block(id: &str, offset: u64, len: u64) -> Value {
    json!({"handleId": id, "offset": offset, "len": len})
}

/// Reads an open file to its end in blocks of 1 MiB, as the reference does.
fn stream(files: &mut Files, path: &Path, id: &str) -> Vec<Vec<u8>> {
    assert_eq!(files.ok("fs/open", json!({"handleId": id, "path": uri(path)}))["handleId"], id);
    let (mut chunks, mut offset) = (Vec::new(), 0);
    loop {
        let answer = files.ok("fs/readBlock", block(id, offset, 1 << 20));
        let bytes = chunk(&answer);
        offset += bytes.len() as u64;
        if !bytes.is_empty() {
            chunks.push(bytes);
        }
        if answer["eof"] == true {
            break;
        }
    }
    assert_eq!(files.ok("fs/close", json!({"handleId": id})), json!({}));
    chunks
}

#[test]
fn file_system_read_file_stream_returns_bounded_chunks() {
    let mut files = Files::start();
    let bytes: Vec<u8> = (0..2_500_000_u32).map(|n| (n % 251) as u8).collect();
    let path = files.file("file", &bytes);
    let chunks = stream(&mut files, &path, "h");
    assert_eq!(chunks.iter().map(Vec::len).collect::<Vec<_>>(), [1 << 20, 1 << 20, 2_500_000 - (2 << 20)]);
    assert_eq!(chunks.concat(), bytes);
}

#[test]
fn stream_stops_after_an_exact_block_boundary() {
    let mut files = Files::start();
    let path = files.file("file", &vec![7; 1 << 20]);
    assert_eq!(stream(&mut files, &path, "h").len(), 1, "no chunk without bytes");
    files.ok("fs/open", json!({"handleId": "h", "path": path}));
    assert_eq!(files.ok("fs/readBlock", block("h", 0, 1 << 20))["eof"], false, "as many as asked for");
    assert_eq!(files.ok("fs/readBlock", block("h", 1 << 20, 1 << 20)), json!({"chunk": "", "eof": true}));
}

#[test]
fn completed_streams_release_handle_capacity() {
    let mut files = Files::start();
    let path = files.file("file", b"x");
    for n in 0..129 {
        assert_eq!(stream(&mut files, &path, &format!("h{n}")).concat(), b"x");
    }
}

#[test]
fn file_reads_reject_fifo_without_waiting_for_a_writer() {
    let mut files = Files::start();
    let pipe = fifo(&files.dir(), "pipe");
    let begun = Instant::now();
    files.refuses("fs/readFile", json!({"path": pipe}), -32600, "notRegularFile");
    files.refuses("fs/open", json!({"handleId": "h", "path": pipe}), -32600, "notRegularFile");
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[test]
fn stream_keeps_reading_the_open_file_after_path_replacement() {
    let mut files = Files::start();
    let path = files.file("file", b"old");
    files.ok("fs/open", json!({"handleId": "h", "path": path}));
    files.write(&path, b"another");
    assert_eq!(files.read(&path), b"another");
    assert_eq!(chunk(&files.ok("fs/readBlock", block("h", 0, 10))), b"old");
    fs::remove_file(&path).expect("remove it");
    assert_eq!(chunk(&files.ok("fs/readBlock", block("h", 1, 10))), b"ld");
}

#[test]
fn read_block_supports_non_sequential_offsets_and_lengths() {
    let mut files = Files::start();
    let path = files.file("file", b"0123456789");
    files.ok("fs/open", json!({"handleId": "h", "path": path}));
    for (offset, len, bytes, eof) in
        [(8, 2, &b"89"[..], false), (0, 3, b"012", false), (8, 3, b"89", true), (10, 1, b"", true), (99, 5, b"", true)]
    {
        let answer = files.ok("fs/readBlock", block("h", offset, len));
        assert_eq!((chunk(&answer).as_slice(), &answer["eof"]), (bytes, &json!(eof)), "{offset} {len}");
    }
    for len in [0, (1 << 20) + 1] {
        files.refuses("fs/readBlock", block("h", 0, len), -32600, "invalidInput");
    }
    assert_eq!(chunk(&files.ok("fs/readBlock", block("h", 0, 1))), b"0", "a bad request closes nothing");
    assert_eq!(chunk(&files.ok("fs/readBlock", block("h", u64::MAX, 1))), b"");
}

#[test]
fn open_enforces_the_per_connection_limit_and_close_releases_capacity() {
    let mut files = Files::start();
    let path = files.file("file", b"x");
    for n in 0..128 {
        files.ok("fs/open", json!({"handleId": format!("h{n}"), "path": path}));
    }
    let error = files.refuses("fs/open", json!({"handleId": "one-more", "path": path}), -32600, "tooManyHandles");
    assert_eq!(error.message, "at most 128 file reads may be open per connection");
    assert_eq!(files.ok("fs/close", json!({"handleId": "h7"})), json!({}));
    files.ok("fs/open", json!({"handleId": "one-more", "path": path}));
    files.refuses("fs/open", json!({"handleId": "h8", "path": path}), -32600, "duplicateHandle");
    assert_eq!(files.ok("fs/close", json!({"handleId": "never-open"})), json!({}));
    files.refuses("fs/readBlock", block("h7", 0, 1), -32004, "unknownHandle");
}

#[test]
fn open_rejects_handle_ids_longer_than_32_bytes() {
    let mut files = Files::start();
    let path = files.file("file", b"x");
    files.refuses("fs/open", json!({"handleId": "x".repeat(33), "path": path}), -32600, "invalidInput");
    files.ok("fs/open", json!({"handleId": "x".repeat(32), "path": path}));
    files.refuses("fs/open", json!({"handleId": "gone", "path": files.path("gone")}), -32004, "notFound");
    files.ok("fs/open", json!({"handleId": "gone", "path": path}));
}

#[test]
fn open_files_outlive_a_cut_link_and_end_with_their_session() {
    let files = Files::start();
    let path = files.file("file", b"bytes");
    let mut first = files.server.connect();
    let id = first.initialize();
    first.ok("fs/open", json!({"handleId": "h", "path": path}));
    drop(first);
    let mut second = files.server.connect();
    second.initialize_with(json!({"clientName": "again", "resumeSessionId": id, "takeover": true}));
    assert_eq!(chunk(&second.ok("fs/readBlock", block("h", 0, 9))), b"bytes");
    let opened = || files.server.descriptors_of(&path);
    assert_eq!(opened(), 1);
    second.ok("session/end", json!({}));
    testkit::wait_for("the file to be closed", || opened() == 0);
}

fn options(more: Value) -> Value {
    let all = json!({"maxDepth": 8, "maxDirectories": 100, "maxEntries": 100, "followDirectorySymlinks": false});
    testkit::with(all, more)
}

fn walk(files: &mut Files, path: &Path, more: Value) -> Value {
    files.ok("fs/walk", json!({"path": path, "options": options(more)}))
}

/// The results of a walk as paths below a directory; directories end with a slash.
fn found(walked: &Value, below: &Path) -> Vec<String> {
    let entries = walked["entries"].as_array().expect("entries");
    let name = |entry: &Value| {
        let path = entry["path"].as_str().expect("a path").strip_prefix(&format!("{}/", below.display()));
        let slash = if entry["kind"] == "directory" { "/" } else { "" };
        format!("{}{slash}", path.expect("below the beginning"))
    };
    entries.iter().map(name).collect()
}

#[test]
fn file_system_walk_returns_a_bounded_tree() {
    let mut files = Files::start();
    let source = files.directory("source/nested");
    let source = source.parent().expect("it has a parent").to_owned();
    files.file("source/root.txt", b"");
    files.file("source/nested/note.txt", b"");
    let all = walk(&mut files, &source, json!({}));
    assert_eq!(found(&all, &source), ["nested/", "root.txt", "nested/note.txt"]);
    assert_eq!((&all["errors"], &all["truncated"]), (&json!([]), &json!(false)));
    for (more, expected, truncated) in [
        (json!({"maxDepth": 0}), &["nested/", "root.txt"][..], false),
        (json!({"maxDirectories": 1}), &["nested/", "root.txt"], true),
        (json!({"maxEntries": 1}), &["nested/"], true),
        (json!({"maxEntries": 3}), &["nested/", "root.txt", "nested/note.txt"], false),
    ] {
        let walked = walk(&mut files, &source, more.clone());
        assert_eq!(found(&walked, &source), expected, "{more}");
        assert_eq!(walked["truncated"], truncated, "{more}");
    }
    let by_uri = files.ok("fs/walk", json!({"path": uri(&source), "options": options(json!({}))}));
    assert_eq!(by_uri["entries"][0], json!({"path": uri(&source.join("nested")), "kind": "directory"}));
}

#[test]
fn file_system_walk_handles_invalid_roots_and_limits() {
    let mut files = Files::start();
    let (file, missing) = (files.file("file", b""), files.path("missing"));
    let nothing = json!({"entries": [], "errors": [], "truncated": false});
    assert_eq!(walk(&mut files, &file, json!({})), nothing);
    files.refuses("fs/walk", json!({"path": missing, "options": options(json!({}))}), -32004, "notFound");
    let zero = "filesystem walk limits must be greater than zero";
    let large = "filesystem walk limits exceed maximums: depth=64, directories=10000, entries=50000";
    for (more, text) in [
        (json!({"maxDirectories": 0}), zero),
        (json!({"maxEntries": 0}), zero),
        (json!({"maxDepth": 65}), large),
        (json!({"maxDirectories": 10_001}), large),
        (json!({"maxEntries": 50_001}), large),
    ] {
        let params = json!({"path": missing, "options": options(more)});
        assert_eq!(files.refuses("fs/walk", params, -32600, "invalidInput").message, text);
    }
}

#[test]
fn file_system_walk_handles_directory_symlinks() {
    let mut files = Files::start();
    let top = files.directory("top/real/inner");
    let top = top.ancestors().nth(2).expect("two above").to_owned();
    files.file("top/real/file", b"");
    files.link("top/alias", "real");
    files.link("top/real/up", "..");
    files.link("top/to-file", "real/file");
    files.link("top/broken", "nowhere");
    let plain = walk(&mut files, &top, json!({}));
    assert_eq!(found(&plain, &top), ["real/", "real/file", "real/inner/"]);
    let following = walk(&mut files, &top, json!({"followDirectorySymlinks": true}));
    // The walk descends into the name that comes first. The other name and the link back are listed but not followed.
    assert_eq!(found(&following, &top), ["alias/", "real/", "alias/file", "alias/inner/", "alias/up/"]);
    assert_eq!(following["errors"], json!([]));
    let link = files.link("link", &top);
    assert_eq!(walk(&mut files, &link, json!({}))["entries"], json!([]));
    let through = walk(&mut files, &link, json!({"followDirectorySymlinks": true}));
    assert_eq!(found(&through, &link).len(), 5);
}

#[test]
fn file_system_walk_prunes_hidden_directories_without_claiming_visible_aliases() {
    let mut files = Files::start();
    files.directory("top/.hidden");
    files.file("top/.hidden/file", b"");
    files.link("top/visible", ".hidden");
    let top = files.path("top");
    let walked = walk(&mut files, &top, json!({"pruneHiddenDirectories": true, "followDirectorySymlinks": true}));
    assert_eq!(found(&walked, &top), [".hidden/", "visible/", "visible/file"]);
}

#[test]
fn file_system_walk_reports_non_utf8_names() {
    let mut files = Files::start();
    let top = files.directory("top");
    fs::write(top.join(OsStr::from_bytes(b"bad-\xff")), b"odd").expect("write a file");
    files.file("top/good", b"");
    let walked = walk(&mut files, &top, json!({}));
    assert_eq!(found(&walked, &top), ["good"]);
    let error = &walked["errors"][0];
    assert_eq!(error["path"], top.join("bad-\u{fffd}").display().to_string());
    // The error also contains a URI by which the file can be read.
    let answer = files.ok("fs/readFile", json!({"path": error["uri"]}));
    assert_eq!(data(&answer), b"odd");
}

#[test]
fn file_system_walk_reports_errors_in_the_form_of_the_request_with_the_text_of_the_system() {
    let mut files = Files::start();
    let top = files.directory("top");
    fs::write(top.join(OsStr::from_bytes(b"invalid-\xff")), b"contents").expect("write a file");
    let lossy = top.join("invalid-\u{fffd}");
    let text = fs::symlink_metadata(&lossy).expect_err("nothing has this name").to_string();
    let options = options(json!({"maxDepth": 0, "maxDirectories": 1, "maxEntries": 1}));
    let as_uri = format!("{}/invalid-%EF%BF%BD", uri(&top));
    for (path, told) in [(uri(&top), as_uri), (top.display().to_string(), lossy.display().to_string())] {
        let walked = files.ok("fs/walk", json!({"path": path, "options": options}));
        let error = json!({"path": told, "message": text, "uri": format!("{}/invalid-%FF", uri(&top))});
        assert_eq!(walked, json!({"entries": [], "errors": [error], "truncated": false}));
    }
}

#[test]
fn file_system_walk_reports_what_its_sandbox_hides_with_the_text_of_the_system() {
    let mut files = Files::start();
    let top = files.directory("top");
    let secret = files.directory("top/secret");
    files.file("top/secret/file", b"");
    files.file("top/plain", b"");
    let entry = |path: &Path, access: &str| json!({"path": {"type": "path", "path": uri(path)}, "access": access});
    let sandbox = json!({"permissions": {"type": "managed", "network": "restricted", "file_system": {
        "type": "restricted", "entries": [entry(&top, "read"), entry(&secret, "deny")],
    }}});
    let walked = files.ok("fs/walk", json!({"path": uri(&top), "options": options(json!({})), "sandbox": sandbox}));
    let plain = json!({"path": uri(&top.join("plain")), "kind": "file"});
    assert!(walked["entries"].as_array().expect("entries").contains(&plain), "{walked}");
    assert!(!walked.to_string().contains("secret/file"), "{walked}");
    let errors = walked["errors"].as_array().expect("errors");
    for error in errors {
        assert_eq!(error["path"], uri(&secret), "{walked}");
        let message = error["message"].as_str().expect("a text");
        assert!(message.ends_with("(os error 1)") || message.ends_with("(os error 13)"), "{walked}");
    }
    assert_eq!(errors.len(), 1, "{walked}");
}
