//! The reference's tests of files (specification 10.2 and 10.4), over the wire: whole files, directories, links, copies, removal. Our
//! additions are tested in `fs_additions.rs`; sandboxes have their own tests.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use crate::{
    prelude::*,
    wire::fs_helpers::{Files, data, names, uri},
};

#[test]
fn file_system_get_metadata_returns_expected_fields() {
    let mut files = Files::start();
    let file = files.file("file", b"hello");
    let directory = files.directory("directory");
    let (to_file, to_directory) = (files.link("to-file", &file), files.link("to-directory", &directory));
    for (path, is_directory, is_file, is_symlink) in [
        (&file, false, true, false),
        (&directory, true, false, false),
        (&to_file, false, true, true),
        (&to_directory, true, false, true),
    ] {
        for path in [path.display().to_string(), uri(path)] {
            let found = files.ok("fs/getMetadata", json!({"path": path}));
            let flags = json!([found["isDirectory"], found["isFile"], found["isSymlink"]]);
            assert_eq!(flags, json!([is_directory, is_file, is_symlink]), "{path}");
            assert!(found["modifiedAtMs"].as_i64().is_some_and(|ms| ms > 0), "{found}");
            if is_file {
                assert_eq!(found["size"], 5, "{path}");
            }
        }
    }
    let dangling = files.link("dangling", "nowhere");
    files.refuses("fs/getMetadata", json!({"path": dangling}), -32004, "notFound");
}

#[test]
fn file_system_get_metadata_reports_files_and_directories() {
    let mut files = Files::start();
    let file = files.file("file", &[0; 1234]);
    let found = files.ok("fs/getMetadata", json!({"path": uri(&file)}));
    assert_eq!((&found["isFile"], &found["size"]), (&json!(true), &json!(1234)));
    let on_disk = fs::metadata(&file).expect("the file is there");
    assert_eq!(found["modifiedAtMs"], on_disk.mtime() * 1000 + on_disk.mtime_nsec() / 1_000_000);
}

#[test]
fn file_system_no_follow_metadata_preserves_linux_birthtime() {
    let mut files = Files::start();
    let file = files.file("file", b"");
    let born =
        fs::metadata(&file).and_then(|found| found.created()).expect("this file system knows when a file was made");
    let born = born.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
    for follow in [true, false] {
        let found = files.ok("fs/getMetadata", json!({"path": file, "followSymlinks": follow}));
        assert_eq!(u128::from(found["createdAtMs"].as_u64().expect("a time")), born);
    }
}

#[test]
fn file_system_methods_cover_surface_area() {
    let mut files = Files::start();
    let nested = files.path("source/nested");
    assert_eq!(files.ok("fs/createDirectory", json!({"path": nested})), json!({}));
    files.write(&nested.join("note.txt"), b"nested");
    files.write(&files.path("source/root.txt"), b"root");
    assert_eq!(files.read(&nested.join("note.txt")), b"nested");
    let (copy, tree) = (files.path("copy.txt"), files.path("copied"));
    let source = files.path("source");
    let params = json!({"sourcePath": source.join("root.txt"), "destinationPath": copy, "recursive": false});
    assert_eq!(files.ok("fs/copy", params), json!({}));
    assert_eq!(fs::read(&copy).expect("the copy"), b"root");
    files.copy(&source, &tree, true);
    assert_eq!(fs::read(tree.join("nested/note.txt")).expect("the copy"), b"nested");
    std::os::unix::fs::symlink("nowhere", source.join("broken")).expect("make a link");
    let mut entries = files.ok("fs/readDirectory", json!({"path": source}))["entries"].clone();
    let listed = entries.as_array_mut().expect("entries");
    listed.sort_by_key(|entry| entry["fileName"].to_string());
    let expected = json!([
        {"fileName": "nested", "isDirectory": true, "isFile": false, "isSymlink": false},
        {"fileName": "root.txt", "isDirectory": false, "isFile": true, "isSymlink": false},
    ]);
    assert_eq!(entries, expected, "a link that leads nowhere is left out");
    assert_eq!(files.ok("fs/remove", json!({"path": source})), json!({}));
    assert!(!source.exists());
}

#[test]
fn file_system_write_file_writes_bytes_and_read_file_returns_them() {
    let mut files = Files::start();
    for bytes in [&b""[..], b"\0\xff\n", &[7; 300_000]] {
        let path = files.path("file");
        files.ok("fs/writeFile", json!({"path": uri(&path), "dataBase64": encode_base64(bytes)}));
        assert_eq!(fs::read(&path).expect("the file"), bytes);
        assert_eq!(data(&files.ok("fs/readFile", json!({"path": uri(&path)}))), bytes);
    }
}

#[test]
fn file_system_write_file_reports_missing_parent() {
    let mut files = Files::start();
    let path = files.path("missing/note.txt");
    files.refuses("fs/writeFile", json!({"path": path, "dataBase64": "aGk="}), -32004, "notFound");
    assert!(files.names().is_empty());
}

#[test]
fn file_system_write_file_refuses_bad_base64_and_missing_files_are_not_found() {
    let mut files = Files::start();
    let path = files.path("file");
    files.refuses("fs/writeFile", json!({"path": path, "dataBase64": "*"}), -32600, "invalidInput");
    for method in ["fs/readFile", "fs/readDirectory", "fs/canonicalize", "fs/getMetadata"] {
        files.refuses(method, json!({"path": path}), -32004, "notFound");
    }
    files.refuses("fs/readFile", json!({"path": files.dir()}), -32600, "notRegularFile");
    files.file("file", b"");
    files.refuses("fs/readDirectory", json!({"path": path}), -32603, "notADirectory");
}

#[test]
fn paths_are_absolute_and_of_this_host() {
    let mut files = Files::start();
    files.refuses("fs/readFile", json!({"path": "relative"}), -32602, "relativePath");
    files.refuses("fs/readFile", json!({"path": "file:///a?b"}), -32602, "invalidUri");
    files.refuses("fs/readFile", json!({"path": "file:///C:/x"}), -32600, "invalidInput");
    files.refuses("fs/readFile", json!({"path": "file://host/x"}), -32600, "invalidInput");
    files.refuses("fs/readFile", json!({}), -32602, "invalidParams");
    // Dot segments are resolved lexically, so a symlink before them has no effect.
    let file = files.file("file", b"here");
    let elsewhere = files.directory("elsewhere/deep");
    let link = files.link("link", &elsewhere);
    assert_eq!(files.read(&link.join("../file")), b"here");
    assert_eq!(files.read(&file.join("../x/./../file")), b"here");
}

#[test]
fn file_system_create_directory_creates_nested_directories() {
    let mut files = Files::start();
    let nested = files.path("a/b/c");
    assert_eq!(files.ok("fs/createDirectory", json!({"path": nested})), json!({}));
    assert!(nested.is_dir());
    assert_eq!(files.ok("fs/createDirectory", json!({"path": nested, "recursive": true})), json!({}));
    files.refuses("fs/createDirectory", json!({"path": nested, "recursive": false}), -32603, "alreadyExists");
    let deep = files.path("x/y");
    files.refuses("fs/createDirectory", json!({"path": deep, "recursive": false}), -32004, "notFound");
    let file = files.file("file", b"");
    files.refuses("fs/createDirectory", json!({"path": file.join("below")}), -32603, "notADirectory");
    let dangling = files.link("dangling", "nowhere");
    files.refuses("fs/createDirectory", json!({"path": dangling}), -32603, "alreadyExists");
}

#[test]
fn file_system_no_follow_non_recursive_root_creation_fails() {
    let mut files = Files::start();
    let params = json!({"path": "/", "recursive": false, "followSymlinks": false});
    files.refuses("fs/createDirectory", params, -32603, "alreadyExists");
    assert_eq!(files.ok("fs/createDirectory", json!({"path": "/", "followSymlinks": false})), json!({}));
}

#[test]
fn file_system_no_follow_recursive_mkdir_handles_concurrent_creators() {
    let files = Files::start();
    let deep = files.path("a/b/c/d/e/f");
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = files.server.client();
                let params = json!({"path": deep, "recursive": true, "followSymlinks": false});
                assert_eq!(client.ok("fs/createDirectory", params), json!({}));
            });
        }
    });
    assert!(deep.is_dir());
}

#[test]
fn file_system_copy_rejects_directory_without_recursive() {
    let mut files = Files::start();
    let source = files.directory("source");
    let params = json!({"sourcePath": source, "destinationPath": files.path("dest"), "recursive": false});
    let error = files.refuses("fs/copy", params, -32600, "invalidInput");
    assert_eq!(error.message, "fs/copy requires recursive: true when sourcePath is a directory");
    assert!(!files.path("dest").exists());
    let error = files.fails("fs/copy", json!({"sourcePath": source, "destinationPath": files.path("dest")}));
    assert_error(&error, -32602, "invalidParams");
}

#[test]
fn file_system_copy_rejects_copying_directory_into_descendant() {
    let mut files = Files::start();
    let source = files.directory("source/nested");
    let source = source.parent().expect("it has a parent").to_owned();
    let alias = files.link("alias", &source);
    for destination in [source.join("nested/copy"), source.join("a/b/c"), source.clone(), alias.join("copy")] {
        let params = json!({"sourcePath": source, "destinationPath": destination, "recursive": true});
        files.refuses("fs/copy", params, -32600, "invalidInput");
    }
    assert_eq!(names(&source), ["nested"]);
    assert!(names(&source.join("nested")).is_empty());
    // A neighbour whose name has the same prefix is not a descendant.
    let neighbour = files.path("source-2");
    files.copy(&source, &neighbour, true);
    assert_eq!(names(&neighbour), ["nested"]);
}

#[test]
fn file_system_copy_copies_file_with_its_mode() {
    let mut files = Files::start();
    let source = files.file("source", b"bytes");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o750)).expect("set the mode");
    let destination = files.path("destination");
    let params = json!({"sourcePath": source, "destinationPath": destination, "recursive": false});
    files.ok("fs/copy", params.clone());
    assert_eq!(fs::read(&destination).expect("the copy"), b"bytes");
    assert_eq!(fs::metadata(&destination).expect("the copy").mode() & 0o7777, 0o750);
    // A copy onto the file itself loses nothing.
    let hard = files.path("hard");
    fs::hard_link(&source, &hard).expect("a second name");
    for destination in [&source, &hard] {
        files.copy(&source, destination, false);
        assert_eq!(fs::read(&source).expect("the file"), b"bytes");
    }
    // A copy onto a symlink writes to its target.
    let link = files.link("link", &destination);
    fs::write(&source, b"more").expect("write");
    files.copy(&source, &link, true);
    assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
    assert_eq!(fs::read(&destination).expect("the copy"), b"more");
}

#[test]
fn file_system_copy_preserves_symlink_source() {
    let mut files = Files::start();
    let link = files.link("link", "any/where");
    let copy = files.path("copy");
    let params = json!({"sourcePath": link, "destinationPath": copy, "recursive": false});
    files.ok("fs/copy", params.clone());
    assert_eq!(fs::read_link(&copy).expect("a link").to_str(), Some("any/where"));
    files.refuses("fs/copy", params, -32603, "alreadyExists");
}

#[test]
fn file_system_copy_preserves_symlinks_in_recursive_copy() {
    let mut files = Files::start();
    let source = files.directory("source/sub");
    let source = source.parent().expect("it has a parent").to_owned();
    files.file("source/file", b"x");
    files.link("source/to-file", "file");
    files.link("source/sub/up", "..");
    files.link("source/broken", "nowhere");
    let copy = files.directory("copy");
    files.file("copy/already", b"there");
    files.copy(&source, &copy, true);
    for (name, target) in [("to-file", "file"), ("sub/up", ".."), ("broken", "nowhere")] {
        assert_eq!(fs::read_link(copy.join(name)).expect("a link").to_str(), Some(target));
    }
    assert_eq!(fs::read(copy.join("already")).expect("merged"), b"there");
}

#[test]
fn file_system_copy_ignores_unknown_special_files_in_recursive_copy() {
    let mut files = Files::start();
    let source = files.directory("source");
    fifo(&source, "pipe");
    files.file("source/file", b"x");
    let copy = files.path("copy");
    files.copy(&source, &copy, true);
    assert_eq!(names(&copy), ["file"]);
}

#[test]
fn file_system_copy_rejects_standalone_fifo_source() {
    let mut files = Files::start();
    let pipe = fifo(&files.dir(), "pipe");
    let params = json!({"sourcePath": pipe, "destinationPath": files.path("copy"), "recursive": true});
    files.refuses("fs/copy", params, -32600, "notRegularFile");
    assert_eq!(files.names(), ["pipe"]);
}

#[test]
fn file_system_remove_removes_symlink_not_target() {
    let mut files = Files::start();
    let (file, directory) = (files.file("file", b"x"), files.directory("directory/sub"));
    for (name, target) in [("to-file", &file), ("to-directory", &directory)] {
        let link = files.link(name, target);
        assert_eq!(files.ok("fs/remove", json!({"path": link})), json!({}));
        assert!(fs::symlink_metadata(&link).is_err() && target.exists());
    }
}

#[test]
fn file_system_remove_removes_directory() {
    let mut files = Files::start();
    let directory = files.directory("a/b/c");
    files.file("a/b/file", b"x");
    fifo(&directory, "pipe");
    let top = files.path("a");
    files.refuses("fs/remove", json!({"path": top, "recursive": false}), -32603, "directoryNotEmpty");
    files.ok("fs/remove", json!({"path": top}));
    assert!(files.names().is_empty());
    assert_eq!(files.ok("fs/remove", json!({"path": top})), json!({}), "force is the default");
    files.refuses("fs/remove", json!({"path": top, "force": false}), -32004, "notFound");
}

#[test]
fn file_system_remove_no_follow_removes_file_and_empty_directory() {
    let mut files = Files::start();
    let (file, directory) = (files.file("file", b""), files.directory("directory"));
    files.refuses("fs/remove", json!({"path": file, "followSymlinks": false}), -32603, "unsupported");
    for path in [file, directory] {
        let params = json!({"path": path, "recursive": false, "force": false, "followSymlinks": false});
        assert_eq!(files.ok("fs/remove", params), json!({}));
    }
    assert!(files.names().is_empty());
}

#[test]
fn file_system_read_directory_lists_entries() {
    let mut files = Files::start();
    files.file("file", b"");
    files.directory("directory");
    fifo(&files.dir(), "pipe");
    files.link("to-directory", "directory");
    files.link("to-file", "file");
    let (dir, plain) = (files.dir(), json!({"isDirectory": false, "isFile": false, "isSymlink": false}));
    let listed = files.ok("fs/readDirectory", json!({"path": uri(&dir)}));
    let mut entries: Vec<Value> = listed["entries"].as_array().expect("entries").clone();
    entries.sort_by_key(|entry| entry["fileName"].to_string());
    let expected = [
        json!({"fileName": "directory", "isDirectory": true, "isFile": false, "isSymlink": false}),
        json!({"fileName": "file", "isDirectory": false, "isFile": true, "isSymlink": false}),
        testkit::with(json!({"fileName": "pipe"}), plain),
        json!({"fileName": "to-directory", "isDirectory": true, "isFile": false, "isSymlink": true}),
        json!({"fileName": "to-file", "isDirectory": false, "isFile": true, "isSymlink": true}),
    ];
    assert_eq!(entries, expected);
}

#[test]
fn file_system_metadata_and_directory_listing_follow_symlinks() {
    let mut files = Files::start();
    let target = files.directory("target");
    files.file("target/file", b"x");
    files.link("target/to-file", "file");
    files.link("target/up", "..");
    let alias = files.link("alias", &target);
    let listed = files.ok("fs/readDirectory", json!({"path": alias}));
    let mut entries: Vec<Value> = listed["entries"].as_array().expect("entries").clone();
    entries.sort_by_key(|entry| entry["fileName"].to_string());
    let expected = [
        json!({"fileName": "file", "isDirectory": false, "isFile": true, "isSymlink": false}),
        json!({"fileName": "to-file", "isDirectory": false, "isFile": true, "isSymlink": true}),
        json!({"fileName": "up", "isDirectory": true, "isFile": false, "isSymlink": true}),
    ];
    assert_eq!(entries, expected);
    assert_eq!(files.ok("fs/getMetadata", json!({"path": alias.join("up")}))["isSymlink"], true);
}

#[test]
fn file_system_canonicalize_resolves_directory_symlink() {
    let mut files = Files::start();
    let target = files.directory("target");
    let file = files.file("target/a b", b"");
    let alias = files.link("alias", &target);
    assert_eq!(files.ok("fs/canonicalize", json!({"path": alias.join("a b")})), json!({"path": file}));
    let answered = files.ok("fs/canonicalize", json!({"path": format!("{}/a%20b", uri(&alias))}));
    assert_eq!(answered, json!({"path": uri(&file).replace(' ', "%20")}));
}

#[test]
fn file_system_operations_can_reject_symlinks_in_any_path_component() {
    let mut files = Files::start();
    let target = files.directory("target");
    let file = files.file("target/file", b"old");
    files.link("alias", &target);
    files.link("leaf", &file);
    for path in [files.path("leaf"), files.path("alias/file")] {
        for (method, more) in [
            ("fs/readFile", json!({})),
            ("fs/writeFile", json!({"dataBase64": "bmV3"})),
            ("fs/getMetadata", json!({})),
            ("fs/remove", json!({"recursive": false})),
            ("fs/open", json!({"handleId": "h"})),
            ("fs/create", json!({"handleId": "h"})),
        ] {
            let params = testkit::with(json!({"path": path, "followSymlinks": false}), more);
            files.refuses(method, params, -32603, "symlinkRefused");
        }
    }
    let below = json!({"path": files.path("alias/new"), "followSymlinks": false});
    files.refuses("fs/createDirectory", below.clone(), -32603, "symlinkRefused");
    files.refuses("fs/writeFile", testkit::with(below, json!({"dataBase64": ""})), -32603, "symlinkRefused");
    assert_eq!(names(&target), ["file"]);
    assert_eq!(fs::read(&file).expect("the file"), b"old");
    // Without symlinks all methods work.
    let plain = json!({"path": file, "followSymlinks": false});
    assert_eq!(data(&files.ok("fs/readFile", plain.clone())), b"old");
    files.ok("fs/writeFile", testkit::with(plain.clone(), json!({"dataBase64": "bmV3"})));
    assert_eq!(files.ok("fs/getMetadata", plain.clone())["isSymlink"], false);
    files.ok("fs/remove", testkit::with(plain, json!({"recursive": false})));
}

#[test]
fn file_system_no_follow_operations_support_search_only_ancestors() {
    let server = TestServer::builder().run_by_nobody().start();
    let mut client = server.client();
    let top = tempfile::Builder::new().prefix("exec-server-test-").tempdir().expect("a directory");
    let inner = top.path().join("searched/inner");
    fs::create_dir_all(&inner).expect("make directories");
    fs::write(inner.join("file"), b"hi").expect("write a file");
    for (path, mode) in [(inner.as_path(), 0o777), (&top.path().join("searched"), 0o711), (top.path(), 0o711)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set a mode");
    }
    let path = |name: &str| json!({"path": inner.join(name), "followSymlinks": false});
    assert_eq!(data(&client.ok("fs/readFile", path("file"))), b"hi");
    client.ok("fs/writeFile", testkit::with(path("new"), json!({"dataBase64": "aGk="})));
    client.ok("fs/createDirectory", path("a/b"));
    assert_eq!(client.ok("fs/getMetadata", path("a/b"))["isDirectory"], true);
    client.ok("fs/remove", testkit::with(path("new"), json!({"recursive": false})));
    // A directory that may not be listed is refused, and the kind says why; the reference has the same code for both errors.
    client.refuses("fs/readDirectory", json!({"path": top.path()}), -32600, "permissionDenied");
}

#[test]
fn file_system_no_follow_write_rejects_fifo_without_blocking() {
    let mut files = Files::start();
    let pipe = fifo(&files.dir(), "pipe");
    for follow in [false, true] {
        let params = json!({"path": pipe, "dataBase64": "aGk=", "followSymlinks": follow});
        files.refuses("fs/writeFile", params, -32600, "notRegularFile");
    }
    assert!(fs::symlink_metadata(&pipe).expect("it is still there").file_type().is_fifo());
}

#[test]
fn file_system_write_preserves_existing_hard_link() {
    let mut files = Files::start();
    let (one, two) = (files.file("one", b"old bytes"), files.path("two"));
    fs::hard_link(&one, &two).expect("a second name");
    let inode = fs::metadata(&one).expect("the file").ino();
    assert_eq!(files.write(&one, b"new")["atomic"], false);
    assert_eq!(fs::read(&two).expect("the other name"), b"new");
    assert_eq!(fs::metadata(&one).expect("the file").ino(), inode);
}

#[test]
fn files_are_gated_like_every_family() {
    let (_server, mut client) = TestServer::with_connection();
    let error = client.refuses("fs/readFile", json!({"path": "/"}), -32600, "notInitialized");
    assert_eq!(error.message, "client must call initialize before using filesystem methods");
}

#[test]
fn a_sandbox_that_confines_is_not_passed_over_in_silence() {
    let mut files = Files::start();
    let file = files.file("file", b"x");
    let sandbox = |permissions: Value| json!({"permissions": permissions, "windowsSandboxLevel": "disabled"});
    let open = sandbox(json!({"type": "disabled"}));
    assert_eq!(data(&files.ok("fs/readFile", json!({"path": file, "sandbox": open}))), b"x");
    assert_eq!(data(&files.ok("fs/readFile", json!({"path": file, "sandbox": null}))), b"x");
}

#[test]
fn file_system_sandboxed_refusals_end_with_the_text_of_the_system() {
    let mut files = Files::start();
    let allowed = files.directory("allowed");
    let inside = files.file("allowed/inside", b"inside");
    let outside = files.file("outside", b"outside");
    let escape = files.link("allowed/escape", &outside);
    let entry = json!({"path": {"type": "path", "path": uri(&allowed)}, "access": "read"});
    let sandbox = json!({"permissions": {
        "type": "managed", "network": "restricted", "file_system": {"type": "restricted", "entries": [entry]},
    }});
    let read = files.ok("fs/readFile", json!({"path": uri(&inside), "sandbox": sandbox}));
    assert_eq!(data(&read), b"inside");
    for (method, params) in [
        ("fs/readFile", json!({"path": uri(&outside)})),
        ("fs/readFile", json!({"path": uri(&escape)})),
        ("fs/open", json!({"handleId": "h", "path": uri(&outside)})),
        ("fs/readDirectory", json!({"path": uri(&files.dir())})),
        ("fs/writeFile", json!({"path": uri(&inside), "dataBase64": ""})),
        ("fs/createDirectory", json!({"path": uri(&files.path("new"))})),
        ("fs/remove", json!({"path": uri(&inside)})),
    ] {
        let error = files.fails(method, testkit::with(params.clone(), json!({"sandbox": sandbox})));
        assert_error(&error, -32600, "sandboxDenied");
        assert!(error.message.ends_with(": Operation not permitted"), "{method} {params}: {}", error.message);
    }
    assert_eq!(fs::read(&inside).expect("it is still there"), b"inside");
}
