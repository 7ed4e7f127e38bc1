//! `fs/search`, `fs/glob` and `fs/watch` on the wire: pages, limits, file names, cancellation, slow readers, and the end of the connection.

use crate::prelude::*;

fn tree() -> TempDir {
    tempfile::Builder::new().prefix("exec-server-seek-").tempdir().expect("make a tree")
}

fn put(dir: &Path, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().expect("it has one")).expect("make a directory");
    fs::write(path, content).expect("write a file");
}

/// Requests pages until the last one; returns all matches, the summary, and the number of pages.
fn pages(client: &mut Client, params: Value) -> (Vec<Value>, Value, usize) {
    let mut page = client.ok("fs/search", with(params, json!({"handleId": "s", "pages": true})));
    let (mut matches, mut count) = (Vec::new(), 1);
    loop {
        matches.extend(page["matches"].as_array().expect("an array").iter().cloned());
        if page["done"] == true {
            return (matches, page["summary"].clone(), count);
        }
        page = client.ok("fs/searchNext", json!({"handleId": "s"}));
        count += 1;
    }
}

/// The number of search and watch threads of the server.
fn seekers(server: &TestServer) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the server runs");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "exec-seek").count()
}

#[test]
fn a_tree_is_searched_in_one_answer_or_in_pages_with_the_same_matches() {
    let (server, dir) = (TestServer::start(), tree());
    for at in 0..300 {
        let lines = (0..10).map(|line| format!("needle {at} {line} {}\n", "x".repeat(200)));
        put(dir.path(), format!("d{}/{at:03}.txt", at % 7), lines.collect::<String>());
    }
    put(dir.path(), "binary", b"needle\0");
    put(dir.path(), ".hidden", "needle\n");
    put(dir.path(), ".gitignore", "d6\n");
    let mut client = server.client();
    let params = json!({"path": dir.path(), "pattern": "needle", "maxMatches": 100_000});
    let whole = client.ok("fs/search", params.clone());
    let (matches, summary, count) = pages(&mut client, params.clone());
    assert_members(&whole, json!({"matches": matches, "summary": summary}));
    assert!(count > 3, "{count} pages");
    assert_eq!((summary["matches"].as_u64(), summary["binary"].as_u64()), (Some(matches.len() as u64), Some(1)));
    assert_eq!(summary["truncated"], false);
    // 300 files in 7 directories, minus the 42 that are ignored.
    assert_eq!(matches.len(), 258 * 10);
    let first = &matches[0];
    assert_eq!(first["spans"], json!([[0, 6]]));
    assert_eq!((first["line"].as_u64(), first["offset"].as_u64()), (Some(1), Some(0)));
    // After its last page a search has released its handle.
    client.refuses("fs/searchNext", json!({"handleId": "s"}), -32004, "unknownHandle");
    // A search with larger limits is complete; one with few results is cut and says so.
    let cut = client.ok("fs/search", with(params, json!({"maxLineBytes": 65536, "before": 100, "ignoreRules": false})));
    assert_eq!(cut["summary"]["truncated"], false);
    let few = client.ok("fs/search", json!({"path": dir.path(), "pattern": "needle", "maxMatches": 5}));
    assert_eq!(few["summary"]["truncatedBy"], json!(["results"]));
    assert_eq!(few["matches"].as_array().map(Vec::len), Some(5));
}

#[test]
fn names_that_are_no_text_survive_in_both_forms() {
    let (server, dir) = (TestServer::start(), tree());
    let name = OsStr::from_bytes(b"new\nline\xff.txt");
    put(dir.path(), name, b"\xffneedle\xfe\n");
    let mut client = server.client();
    let uri = format!("file://{}", dir.path().display());
    for (path, is_uri) in [(dir.path().display().to_string(), false), (uri, true)] {
        let found = client.ok("fs/search", json!({"path": path, "pattern": "needle"}));
        let line = &found["matches"][0];
        assert_eq!(decode_base64(line["textBase64"].as_str().expect("a text")), b"\xffneedle\xfe");
        assert_eq!(line["uri"].is_null(), is_uri, "{line}");
        // A reported path can be used in requests.
        let told = line["path"].as_str().expect("a path").to_owned();
        assert!(told.ends_with("new%0Aline%FF.txt"), "{told}");
        assert_eq!(client.ok("fs/search", json!({"path": told, "pattern": "needle"}))["summary"]["matches"], 1);
        let globbed = client.ok("fs/glob", json!({"path": path, "pattern": "*.txt"}));
        assert_eq!(globbed["entries"][0]["path"], line["path"]);
        client.ok("fs/watch", json!({"handleId": "w", "path": path}));
        fs::write(dir.path().join(name), b"\xffneedle\xfe\n").expect("write the file");
        let changed = client.ok("fs/watchNext", json!({"handleId": "w", "waitMs": 20_000}));
        assert_eq!(changed["changes"][0]["path"], line["path"], "{changed}");
        client.ok("fs/close", json!({"handleId": "w"}));
    }
}

#[test]
fn what_cannot_be_searched_is_told_by_its_kind() {
    let (server, dir) = (TestServer::start(), tree());
    put(dir.path(), "file", "x\n");
    testkit::fifo(dir.path(), "fifo");
    symlink("loop", dir.path().join("loop")).expect("make a link");
    let mut client = server.client();
    let at = |name: &str| dir.path().join(name).display().to_string();
    for (method, params, code, kind) in [
        ("fs/search", json!({"path": at("none"), "pattern": "x"}), -32004, "notFound"),
        ("fs/search", json!({"path": at("fifo"), "pattern": "x"}), -32600, "notRegularFile"),
        ("fs/search", json!({"path": "/dev/zero", "pattern": "x"}), -32600, "notRegularFile"),
        ("fs/search", json!({"path": at(""), "pattern": "("}), -32602, "invalidPattern"),
        ("fs/search", json!({"path": at(""), "pattern": "x", "include": ["["]}), -32602, "invalidPattern"),
        ("fs/search", json!({"path": "relative", "pattern": "x"}), -32602, "relativePath"),
        ("fs/search", json!({"path": at("")}), -32602, "invalidParams"),
        ("fs/search", json!({"path": at(""), "pattern": "x", "pages": true}), -32602, "invalidParams"),
        ("fs/glob", json!({"path": at("file"), "pattern": "*"}), -32603, "notADirectory"),
        ("fs/glob", json!({"path": at(""), "pattern": "a["}), -32602, "invalidPattern"),
        ("fs/watch", json!({"path": at("none"), "handleId": "w"}), -32004, "notFound"),
        ("fs/watch", json!({"path": "/proc", "handleId": "w"}), -32603, "unsupported"),
        ("fs/watch", json!({"path": at(""), "handleId": ""}), -32600, "invalidInput"),
        ("fs/watchNext", json!({"handleId": "w"}), -32004, "unknownHandle"),
    ] {
        client.refuses(method, params, code, kind);
    }
    assert!(client.call("fs/search", json!({"path": at("loop"), "pattern": "x"})).is_err());
    let proc = client.ok("fs/search", json!({"path": "/proc/self", "pattern": "x"}));
    assert_eq!((&proc["matches"], &proc["summary"]["special"]), (&json!([]), &json!(1)));
    wait_for("the end of the threads", || seekers(&server) == 0);
}

#[test]
fn a_reader_that_asks_for_no_more_pages_holds_the_search_and_no_memory() {
    let (server, dir) = (TestServer::start(), tree());
    let line = format!("needle {}\n", "x".repeat(1000));
    put(dir.path(), "big", line.repeat(200_000));
    let mut client = server.client();
    let before = resident(server.pid(), "VmRSS");
    let params =
        json!({"path": dir.path(), "pattern": "needle", "maxMatches": 1_000_000, "handleId": "s", "pages": true});
    let first = client.ok("fs/search", params.clone());
    assert_eq!(first["done"], false);
    assert_eq!(seekers(&server), 1);
    // 200 MB match. The server keeps two pages, the buffer of one file and the memory of an answer.
    let grown = resident(server.pid(), "VmRSS").saturating_sub(before) >> 10;
    assert!(grown < 40 << 10, "{grown} KiB");
    client.refuses("fs/search", params, -32600, "duplicateHandle");
    // Other requests are served in the meantime, and the search continues where it stopped.
    client.assert_alive();
    let next = client.ok("fs/searchNext", json!({"handleId": "s"}));
    let last = first["matches"].as_array().and_then(|lines| lines.last()).expect("there are some");
    assert_eq!(next["matches"][0]["line"].as_u64(), last["line"].as_u64().map(|line| line + 1));
    client.ok("fs/close", json!({"handleId": "s"}));
    wait_for("the end of the search", || seekers(&server) == 0);
    client.refuses("fs/searchNext", json!({"handleId": "s"}), -32004, "unknownHandle");
}

#[test]
fn a_search_is_called_off_in_the_middle_and_by_its_time() {
    let (server, dir) = (TestServer::start(), tree());
    put(dir.path(), "big", "hay\n".repeat(50_000_000));
    let mut client = server.client();
    let id = client.send_request("fs/search", json!({"path": dir.path(), "pattern": "(n|m)eedle$", "handleId": "s"}));
    wait_for("its beginning", || seekers(&server) == 1);
    let began = Instant::now();
    client.ok("fs/close", json!({"handleId": "s"}));
    let ended = client.answer(id).expect("an answer");
    assert_eq!(ended["summary"]["truncatedBy"], json!(["cancelled"]), "{ended}");
    assert!(began.elapsed() < Duration::from_secs(5));
    let timed = client.ok("fs/search", json!({"path": dir.path(), "pattern": "(n|m)eedle$", "timeoutMs": 20}));
    assert_eq!(timed["summary"]["truncatedBy"], json!(["time"]));
    // A search ends when its client disconnects.
    client.send_request("fs/search", json!({"path": dir.path(), "pattern": "(n|m)eedle$"}));
    wait_for("its beginning", || seekers(&server) == 1);
    client.leave();
    wait_for("its end", || seekers(&server) == 0);
}

#[test]
fn searches_and_watches_of_a_connection_are_bounded_and_end_with_it() {
    let (server, dir) = (TestServer::start(), tree());
    put(dir.path(), "big", "needle\n".repeat(1_000_000));
    let mut client = server.client();
    for at in 0..8 {
        let params = json!({"path": dir.path(), "pattern": "needle", "maxMatches": 1_000_000, "handleId": format!("s{at}"), "pages": true});
        assert_eq!(client.ok("fs/search", params)["done"], false);
    }
    let search = json!({"path": dir.path(), "pattern": "x"});
    client.refuses("fs/search", search.clone(), -32600, "tooManyHandles");
    client.refuses("fs/glob", search.clone(), -32600, "tooManyHandles");
    for at in 0..16 {
        client.ok("fs/watch", json!({"path": dir.path(), "handleId": format!("w{at}")}));
    }
    let watch = json!({"path": dir.path(), "handleId": "w"});
    client.refuses("fs/watch", watch, -32600, "tooManyHandles");
    // Another connection has its own limit.
    let mut other = server.client();
    assert_eq!(other.ok("fs/search", search)["done"], true);
    other.refuses("fs/watchNext", json!({"handleId": "w0"}), -32004, "unknownHandle");
    wait_for("the other search to end", || seekers(&server) == 24);
    client.leave();
    wait_for("the end of all", || seekers(&server) == 0);
}

#[test]
fn changes_are_gathered_waited_for_and_told_once() {
    let (server, dir) = (TestServer::start(), tree());
    fs::create_dir(dir.path().join("sub")).expect("make a directory");
    let mut client = server.client();
    let begun = client.ok("fs/watch", json!({"handleId": "w", "path": dir.path()}));
    assert_eq!(begun, json!({"handleId": "w", "directories": 2, "unwatched": 0}));
    let nothing = client.ok("fs/watchNext", json!({"handleId": "w"}));
    assert_eq!(nothing, json!({"changes": [], "overflow": false, "more": false, "unwatched": 0, "ended": null}));
    // While this request waits, other requests are served, and a second one for the same watch is refused.
    let id = client.send_request("fs/watchNext", json!({"handleId": "w", "waitMs": 60_000, "settleMs": 200}));
    client.assert_alive();
    client.refuses("fs/watchNext", json!({"handleId": "w"}), -32600, "overloaded");
    for _ in 0..50 {
        put(dir.path(), "sub/file", "x");
    }
    let changed = client.answer(id).expect("an answer");
    let path = dir.path().join("sub/file");
    assert_eq!(changed["changes"], json!([{"path": path, "change": "created"}]));
    fs::remove_dir_all(dir.path()).expect("remove the tree");
    let mut told = Vec::new();
    let ended = loop {
        let next = client.ok("fs/watchNext", json!({"handleId": "w", "waitMs": 20_000}));
        told.extend(next["changes"].as_array().expect("an array").iter().cloned());
        if !next["ended"].is_null() {
            break next["ended"].clone();
        }
    };
    assert_eq!(ended, "rootRemoved");
    assert!(told.iter().any(|change| change["path"] == json!(path) && change["change"] == "removed"), "{told:?}");
    client.refuses("fs/watchNext", json!({"handleId": "w"}), -32004, "unknownHandle");
}

#[test]
fn a_client_that_does_not_ask_for_changes_is_told_of_an_overflow() {
    let (server, dir) = (TestServer::start(), tree());
    let mut client = server.client();
    client.ok("fs/watch", json!({"handleId": "w", "path": dir.path()}));
    // More changes than the server collects and the kernel queues.
    for at in 0..40_000 {
        fs::write(dir.path().join(at.to_string()), "").expect("write a file");
    }
    let mut overflow = false;
    wait_for("an overflow", || {
        let next = client.ok("fs/watchNext", json!({"handleId": "w", "settleMs": 0}));
        assert!(next["changes"].as_array().expect("an array").len() <= 4096);
        overflow |= next["overflow"] == true;
        overflow
    });
    // Behind the changes that are still queued, however slow the machine is.
    put(dir.path(), "later", "x");
    wait_for("a later change", || {
        let next = client.ok("fs/watchNext", json!({"handleId": "w", "waitMs": 20_000}));
        let changes = next["changes"].as_array().expect("an array");
        changes.iter().any(|change| change["path"] == json!(dir.path().join("later")))
    });
}

#[test]
fn a_directory_that_is_removed_while_it_is_searched_is_no_trouble() {
    let (server, dir) = (TestServer::start(), tree());
    let mut client = server.client();
    for round in 0..5 {
        for at in 0..200 {
            put(dir.path(), format!("{round}/{}/{at}", at % 10), "needle\n".repeat(100));
        }
        let params =
            json!({"path": dir.path(), "pattern": "needle", "maxMatches": 1_000_000, "handleId": "s", "pages": true});
        let first = client.ok("fs/search", params);
        fs::remove_dir_all(dir.path().join(round.to_string())).expect("remove the directory");
        let mut page = first;
        while page["done"] == false {
            page = client.ok("fs/searchNext", json!({"handleId": "s"}));
        }
        assert_eq!(page["summary"]["errorCount"], 0, "{}", page["summary"]);
    }
}

#[test]
fn roots_and_scopes_of_a_principal_hold_for_searching_too() {
    let (inside, outside) = (tree(), tree());
    put(inside.path(), "file", "needle\n");
    put(outside.path(), "file", "needle\n");
    symlink(outside.path(), inside.path().join("out")).expect("make a link");
    let server = TestServer::start();
    let root = inside.path().display().to_string();
    let url = server.url_of("rooted", &["--root", &root, "--scope", "fs-read"]);
    let mut client = Client::connect(&url).expect("the token counts");
    client.initialize();
    let found = client.ok("fs/search", json!({"path": root, "pattern": "needle"}));
    assert_eq!(found["summary"]["matches"], 1, "{found}");
    for path in [outside.path().to_owned(), inside.path().join("out"), Path::new("/").to_owned()] {
        for (method, params) in [
            ("fs/search", json!({"path": path, "pattern": "needle"})),
            ("fs/glob", json!({"path": path, "pattern": "*"})),
            ("fs/watch", json!({"path": path, "handleId": "w"})),
        ] {
            assert_eq!(client.fails(method, params).kind(), "forbidden", "{method} {}", path.display());
        }
    }
    // New directories below a watched root are watched too, within the roots of the principal.
    client.ok("fs/watch", json!({"path": root, "handleId": "w"}));
    put(inside.path(), "new/deep/file", "x");
    let mut told = Vec::new();
    wait_for("the file", || {
        let next = client.ok("fs/watchNext", json!({"handleId": "w", "waitMs": 1000}));
        told.extend(next["changes"].as_array().expect("an array").iter().cloned());
        told.iter().any(|change| change["path"] == json!(inside.path().join("new/deep/file")))
    });
}

#[test]
fn a_sandbox_hides_from_searching_and_watching_what_it_denies() {
    let (server, dir) = (TestServer::start(), tree());
    for name in ["inside/file", "inside/secret/file", "outside/file"] {
        put(dir.path(), name, "needle\n");
    }
    let at = |name: &str| json!(dir.path().join(name));
    let entry = |name: &str, access: &str| json!({"path": {"type": "path", "path": at(name)}, "access": access});
    let sandbox = json!({"permissions": {"type": "managed", "network": "restricted", "file_system":
        {"type": "restricted", "entries": [entry("inside", "read"), entry("inside/secret", "deny")]}}});
    let mut client = server.client();
    let confined = |params: Value| with(params, json!({"sandbox": sandbox}));
    let found = |client: &mut Client, params: Value| client.ok("fs/search", params)["matches"].as_array().map(Vec::len);
    let params = json!({"path": at("inside"), "pattern": "needle"});
    assert_eq!(found(&mut client, params.clone()), Some(2), "without the sandbox it is seen");
    assert_eq!(found(&mut client, confined(params.clone())), Some(1));
    let (matches, ..) = pages(&mut client, confined(params));
    assert_eq!(matches.iter().map(|line| line["path"].clone()).collect::<Vec<_>>(), [at("inside/file")]);
    let globbed = client.ok("fs/glob", confined(json!({"path": at("inside"), "pattern": "**"})));
    let paths: Vec<&Value> =
        globbed["entries"].as_array().expect("an array").iter().map(|entry| &entry["path"]).collect();
    assert_eq!(paths, [&at("inside/file")]);
    for name in ["outside", "inside/secret", "outside/file"] {
        for (method, params) in [
            ("fs/search", json!({"path": at(name), "pattern": "needle"})),
            ("fs/glob", json!({"path": at(name), "pattern": "*"})),
            ("fs/watch", json!({"path": at(name), "handleId": "w"})),
        ] {
            client.refuses(method, confined(params), -32600, "sandboxDenied");
        }
    }
    let begun = client.ok("fs/watch", confined(json!({"path": at("inside"), "handleId": "w"})));
    assert_eq!(begun["directories"], 1);
    put(dir.path(), "inside/secret/unseen", "x");
    put(dir.path(), "inside/new/seen", "x");
    let mut told = Vec::new();
    wait_for("what may be seen", || {
        let next = client.ok("fs/watchNext", json!({"handleId": "w", "waitMs": 1000}));
        told.extend(next["changes"].as_array().expect("an array").iter().map(|change| change["path"].clone()));
        told.contains(&at("inside/new/seen"))
    });
    assert!(!told.contains(&at("inside/secret/unseen")), "{told:?}");
}
