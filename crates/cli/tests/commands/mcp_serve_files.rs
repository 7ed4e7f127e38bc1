//! The file tools of `mcp serve`, and its restrictions `--read-only` and `--root`.

use crate::{commands::mcp_serve::Mcp, prelude::*};

/// The text of a result.
fn text_of(result: &Value) -> &str {
    result["content"][0]["text"].as_str().expect("a text")
}

fn texts(listed: &Value, member: &str, of: &str) -> Vec<String> {
    let all = listed[member].as_array().expect("an array").iter();
    all.map(|entry| entry[of].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn a_file_is_read_by_lines() {
    let home = Home::new();
    let file = home.path().join("file");
    fs::write(&file, (1..=5000).map(|n| format!("line {n}\n")).collect::<String>()).expect("write a file");
    let mut mcp = Mcp::start(&home, &[]);
    let result = mcp.call("read_file", json!({"path": "file", "offset": 4999}));
    assert_eq!(text_of(&result), "  4999\tline 4999\n  5000\tline 5000\n");
    let read = &result["structuredContent"];
    assert_eq!((&read["content"], &read["lines"]), (&json!("line 4999\nline 5000\n"), &json!(2)));
    assert_eq!(read["more"], false);
    let result = mcp.call("read_file", json!({"path": file, "limit": 2}));
    let expected = "     1\tline 1\n     2\tline 2\n[more lines follow: continue with offset 3]\n";
    assert_eq!(text_of(&result), expected);
    let read = mcp.ok("read_file", json!({"path": "file"}));
    assert_eq!((&read["lines"], &read["more"], &read["size_bytes"]), (&json!(2000), &json!(true), &json!(48_893)));
    assert!(mcp.failure("read_file", json!({"path": "file", "offset": 5001})).contains("has fewer than 5001 lines"));
    assert!(mcp.failure("read_file", json!({"path": "none"})).contains("list_directory"));
    assert!(mcp.failure("read_file", json!({"path": "."})).contains("list_directory"));
    fs::write(home.path().join("long"), format!("{}\nshort\r\n", "x".repeat(3_000_000))).expect("write a file");
    let result = mcp.call("read_file", json!({"path": "long"}));
    let shown = text_of(&result);
    let end = &shown[shown.len() - 300..];
    assert!(shown.contains("[… 2998000 bytes of this line left out …]") && shown.contains("\tshort"), "{end}");
    assert!(shown.contains("1 lines are longer than 2000 bytes") && shown.contains("CR LF"));
    fs::write(home.path().join("binary"), b"\x7fELF\0\0").expect("write a file");
    assert!(mcp.failure("read_file", json!({"path": "binary"})).contains("is a binary file, 6 bytes"));
    fs::write(home.path().join("empty"), "").expect("write a file");
    assert_eq!(mcp.ok("read_file", json!({"path": "empty"}))["lines"], 0);
}

#[test]
fn files_are_written_as_a_whole_and_edited_only_where_the_place_is_unambiguous() {
    let home = Home::new();
    let file = home.path().join("a/b/file.rs");
    let on_disk = || fs::read_to_string(&file).expect("the file");
    let mut mcp = Mcp::start(&home, &[]);
    let content = "fn one() {}\n\tfn two() {}\nfn one() {}\n";
    let written = mcp.ok("write_file", json!({"path": "a/b/file.rs", "content": content}));
    assert_eq!((&written["created"], &written["bytes"], &written["atomic"]), (&json!(true), &json!(37), &json!(true)));
    let edit = |old: &str, new: &str| json!({"path": "a/b/file.rs", "old": old, "new": new});
    for (old, new, told) in [
        ("fn one", "fn 1", "2 times, at lines 1, 3"),
        ("fn three", "x", "is not in"),
        ("  fn two() {}", "x", "differs only in whitespace begins at line 2"),
        ("", "x", "`old` is empty"),
        ("fn two", "fn two", "the same"),
    ] {
        let text = mcp.failure("edit_file", edit(old, new));
        assert!(text.contains(told), "{text}");
    }
    assert_eq!(on_disk(), content);
    let edited = mcp.ok("edit_file", edit("\tfn two() {}\n", "fn 2() {}\n"));
    assert_eq!((&edited["replacements"], &edited["first_line"]), (&json!(1), &json!(2)));
    let all = with(edit("fn one", "fn 1"), json!({"replace_all": true}));
    assert_eq!(mcp.ok("edit_file", all)["replacements"], 2);
    assert_eq!(on_disk(), "fn 1() {}\nfn 2() {}\nfn 1() {}\n");
    assert_eq!(mcp.ok("write_file", json!({"path": file, "content": ""}))["created"], false);
    assert_eq!(on_disk(), "");
    assert!(mcp.failure("write_file", json!({"path": "a/b", "content": ""})).contains("a/b"));
}

#[test]
fn concurrent_edits_of_several_sessions_are_all_in_the_file() {
    let (home, server) = (Home::new(), TestServer::start());
    let file = home.path().join("file");
    let ids = || (0..4).flat_map(|who| (0..15).map(move |n| format!("{who}.{n}")));
    let slots = |word: &str| ids().map(|id| format!("{word} {id};\n")).collect::<String>();
    fs::write(&file, slots("slot")).expect("write a file");
    thread::scope(|scope| {
        for who in 0..4 {
            let (home, file, url) = (&home, &file, server.url());
            scope.spawn(move || {
                let mut mcp = Mcp::start(home, &["--connect", url]);
                for n in 0..15 {
                    let (old, new) = (format!("slot {who}.{n};"), format!("done {who}.{n};"));
                    let edit = json!({"path": file, "old": old, "new": new});
                    // Concurrent edits may win so often that the tool gives up; then it has changed nothing.
                    let mut result = mcp.call("edit_file", edit.clone());
                    while result["isError"] == true {
                        assert!(text_of(&result).contains("another writer keeps changing"), "{result}");
                        result = mcp.call("edit_file", edit.clone());
                    }
                }
            });
        }
    });
    assert_eq!(fs::read_to_string(&file).expect("the file"), slots("done"));
}

#[test]
fn directories_are_listed_in_order_and_in_parts() {
    let home = Home::new();
    let dir = home.path().join("dir");
    fs::create_dir_all(dir.join("sub")).expect("make a directory");
    for name in ["b.txt", "a.txt", ".hidden"] {
        fs::write(dir.join(name), "12345").expect("write a file");
    }
    symlink("a.txt", dir.join("link")).expect("make a link");
    let mut mcp = Mcp::start(&home, &[]);
    let result = mcp.call("list_directory", json!({"path": "dir"}));
    assert_eq!(text_of(&result), ".hidden\t5 bytes\na.txt\t5 bytes\nb.txt\t5 bytes\nlink -> a.txt\nsub/\n");
    let listed = mcp.ok("list_directory", json!({"path": "dir", "limit": 2}));
    assert_eq!(texts(&listed, "entries", "name"), [".hidden", "a.txt"]);
    assert_eq!(listed["more"], true);
    let listed = mcp.ok("list_directory", json!({"path": "dir", "after": "a.txt"}));
    assert_eq!(texts(&listed, "entries", "kind"), ["file", "symlink", "directory"]);
    assert_eq!(listed["more"], false);
    assert!(mcp.failure("list_directory", json!({"path": "dir/a.txt"})).contains("read_file"));
    assert!(mcp.failure("list_directory", json!({"path": "nowhere"})).contains("nowhere"));
}

#[test]
fn trees_are_searched_for_lines_and_for_paths() {
    let home = Home::new();
    let tree = home.path().join("tree");
    fs::create_dir_all(tree.join("src/deep")).expect("make a directory");
    for (name, text) in [
        ("src/a.rs", "fn main() {\n    needle(1);\n}\n"),
        ("src/deep/b.rs", "// Needle\nneedle(22);\n"),
        ("src/c.txt", "needle\n"),
        (".secret", "needle\n"),
    ] {
        fs::write(tree.join(name), text).expect("write a file");
    }
    let mut mcp = Mcp::start(&home, &[]);
    let mut search = |more: Value| mcp.ok("search_files", with(json!({"path": "tree"}), more));
    let found = search(json!({"pattern": r"needle\(\d+\)"}));
    assert_eq!(texts(&found, "lines", "path"), ["tree/src/a.rs", "tree/src/deep/b.rs"]);
    assert_eq!((&found["lines"][0]["line"], &found["lines"][0]["text"]), (&json!(2), &json!("    needle(1);")));
    let found = search(json!({"pattern": "needle", "glob": "**/*.rs", "ignore_case": true}));
    assert_eq!(found["lines"].as_array().map(Vec::len), Some(3));
    let found = search(json!({"pattern": "needle(", "literal": true, "max_results": 1}));
    assert_eq!((found["lines"].as_array().map(Vec::len), &found["truncated"]), (Some(1), &json!(true)));
    let found = search(json!({"pattern": "needle", "all": true}));
    assert!(texts(&found, "lines", "path").contains(&"tree/.secret".to_owned()), "{found}");
    let found = search(json!({"glob": "**/*.rs"}));
    assert_eq!(texts(&found, "paths", "path"), ["tree/src/a.rs", "tree/src/deep/b.rs"]);
    let result = mcp.call("search_files", json!({"pattern": "nowhere at all", "path": "tree"}));
    assert_eq!(text_of(&result), "no line matches\n");
    assert!(mcp.failure("search_files", json!({"pattern": "(", "path": "tree"})).contains('('));
}

#[test]
fn a_read_only_server_offers_no_way_to_change_anything() {
    let home = Home::new();
    fs::write(home.path().join("file"), "text\n").expect("write a file");
    let mut mcp = Mcp::start(&home, &["--read-only"]);
    let names: Vec<Value> = mcp.tools().iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(names, ["read_file", "list_directory", "search_files"]);
    assert_eq!(mcp.ok("read_file", json!({"path": "file"}))["content"], "text\n");
    let processes = ["run_command", "start_process", "read_output", "write_stdin", "signal_process", "list_processes"];
    for tool in processes.into_iter().chain(["write_file", "edit_file"]) {
        let arguments = json!({"path": "file", "content": "", "command": "rm file"});
        let answer = mcp.request("tools/call", json!({"name": tool, "arguments": arguments}));
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(answer.to_string().contains("read-only"), "{answer}");
    }
    assert_eq!(fs::read_to_string(home.path().join("file")).expect("the file"), "text\n");
}

/// A root with a symlink that leads out of it, and a file outside.
fn rooted() -> Home {
    let home = Home::new();
    fs::create_dir_all(home.path().join("root/sub")).expect("make a directory");
    fs::create_dir(home.path().join("outside")).expect("make a directory");
    fs::write(home.path().join("outside/secret"), "secret\n").expect("write a file");
    fs::write(home.path().join("root/file"), "inner\n").expect("write a file");
    symlink("../outside", home.path().join("root/way-out")).expect("make a link");
    symlink(home.path().join("outside/secret"), home.path().join("root/secret")).expect("make a link");
    home
}

fn nothing_leads_out(home: &Home, mcp: &mut Mcp) {
    let outside = home.path().join("outside/secret");
    let paths = [json!("secret"), json!("way-out/secret"), json!("../outside/secret"), json!(outside)];
    for path in &paths {
        let text = mcp.failure("read_file", json!({"path": path}));
        assert!(text.contains("below the root") || text.contains("no such file"), "{text}");
        mcp.failure("list_directory", json!({"path": path}));
    }
    mcp.failure("list_directory", json!({"path": "way-out"}));
    mcp.failure("list_directory", json!({"path": ".."}));
    let found = mcp.ok("search_files", json!({"pattern": "secret", "all": true}));
    assert_eq!(found["lines"], json!([]), "{found}");
    assert_eq!(mcp.ok("read_file", json!({"path": "file"}))["content"], "inner\n");
}

#[test]
fn nothing_leads_out_of_a_root() {
    let home = rooted();
    let mut mcp = Mcp::start(&home, &["--root", "root"]);
    nothing_leads_out(&home, &mut mcp);
    for path in ["secret", "way-out/new", "../outside/new"] {
        mcp.failure("write_file", json!({"path": path, "content": "changed"}));
        mcp.failure("edit_file", json!({"path": path, "old": "secret", "new": "changed"}));
    }
    mcp.ok("write_file", json!({"path": "sub/new/file", "content": "fine"}));
    mcp.ok("edit_file", json!({"path": "sub/new/file", "old": "fine", "new": "better"}));
    let outside = home.path().join("outside").display().to_string();
    let command = format!(
        "pwd; cat file; echo made >made; cat way-out/secret || echo unseen; echo x >{outside}/new || echo unwritten"
    );
    let ran = mcp.ok("run_command", json!({"command": command}));
    let root = home.path().join("root");
    assert_eq!(ran["stdout"], format!("{}\ninner\nunseen\nunwritten\n", root.display()), "{ran}");
    mcp.ok("start_process", json!({"command": format!("echo x >{outside}/new || echo unwritten >late")}));
    testkit::wait_for("the process has tried", || root.join("late").exists());
    let text = mcp.failure("run_command", json!({"command": "pwd", "cwd": outside}));
    assert!(text.contains("outside"), "{text}");
    drop(mcp);
    assert_eq!(fs::read_to_string(root.join("made")).expect("the file"), "made\n");
    assert_eq!(fs::read_to_string(root.join("sub/new/file")).expect("the file"), "better");
    assert_eq!(fs::read_to_string(home.path().join("outside/secret")).expect("the file"), "secret\n");
    assert_eq!(fs::read_dir(home.path().join("outside")).expect("the directory").count(), 1);
}

/// A root that contains a repository.
fn with_repository() -> Home {
    let home = Home::new();
    fs::create_dir_all(home.path().join("root/.git/hooks")).expect("make a directory");
    fs::write(home.path().join("root/.git/config"), "[core]\n").expect("write a file");
    home
}

#[test]
fn the_repository_of_a_root_cannot_be_changed() {
    let home = with_repository();
    let mut mcp = Mcp::start(&home, &["--root", "root"]);
    for path in [".git/config", ".git/hooks/post-checkout", ".git/new/file"] {
        mcp.failure("write_file", json!({"path": path, "content": "changed"}));
    }
    mcp.failure("edit_file", json!({"path": ".git/config", "old": "core", "new": "changed"}));
    let commands = [
        "echo x >.git/config",
        "echo x >.git/hooks/post-checkout",
        "mv .git moved",
        "rm -rf .git",
        "mkdir other && mv other .git",
        "ln -sfn /tmp .git && test -L .git",
        "chmod 000 .git/config",
        "ln .git/config link",
    ];
    for command in commands {
        let command = format!("{command} 2>/dev/null && echo changed; rm -rf other");
        let ran = mcp.ok("run_command", json!({"command": command}));
        assert_eq!(ran["stdout"], "", "{command}: {ran}");
    }
    assert_eq!(mcp.ok("read_file", json!({"path": ".git/config"}))["content"], "[core]\n");
    let command = "echo fine >.gitignore && mkdir -p sub/.git && echo fine >sub/.git/config";
    mcp.ok("run_command", json!({"command": command}));
    drop(mcp);
    let root = home.path().join("root");
    assert_eq!(fs::read_to_string(root.join(".git/config")).expect("the file"), "[core]\n");
    assert_eq!(fs::read_dir(root.join(".git/hooks")).expect("the directory").count(), 0);
    assert!(!root.join("moved").exists());
}

#[test]
fn a_repository_that_does_not_exist_cannot_be_created_in_a_root() {
    let home = rooted();
    let mut mcp = Mcp::start(&home, &["--root", "root"]);
    mcp.failure("write_file", json!({"path": ".git/hooks/post-checkout", "content": "x"}));
    let made = "mkdir -p .git/hooks 2>/dev/null && echo x >.git/hooks/post-checkout 2>/dev/null && echo made";
    let ran = mcp.ok("run_command", json!({"command": made}));
    assert_eq!(ran["stdout"], "", "{ran}");
    drop(mcp);
    assert!(!home.path().join("root/.git/hooks").exists());
}

#[test]
fn a_flag_opens_the_repository_of_a_root() {
    let home = with_repository();
    let mut mcp = Mcp::start(&home, &["--root", "root", "--writable-git"]);
    mcp.ok("write_file", json!({"path": ".git/config", "content": "changed\n"}));
    let command = "echo x >.git/hooks/h && mv .git/hooks .git/moved && echo fine";
    let ran = mcp.ok("run_command", json!({"command": command}));
    assert_eq!(ran["stdout"], "fine\n", "{ran}");
    drop(mcp);
    assert_eq!(fs::read_to_string(home.path().join("root/.git/config")).expect("the file"), "changed\n");
    for words in [&["--writable-git"][..], &["--root", "root", "--read-only", "--writable-git"]] {
        let mut command = home.command(&[&["mcp", "serve"], words].concat());
        command.current_dir(home.path());
        assert_eq!(testkit::finish(command).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn read_only_serving_without_a_root_shows_none_of_the_servers_own_files() {
    let (home, server) = (Home::new(), TestServer::start());
    fs::write(home.path().join("file"), "text\n").expect("write a file");
    let state = server.state_dir();
    let token = fs::read_to_string(state.join("token")).expect("the token");
    // With a remote server.
    let mut mcp = Mcp::start(&home, &["--connect", server.url(), "--read-only"]);
    let file = home.path().join("file");
    assert_eq!(mcp.ok("read_file", json!({"path": file}))["content"], "text\n");
    for path in [state.join("token"), state.join("../state/token")] {
        let text = mcp.failure("read_file", json!({"path": path}));
        assert!(!text.contains(token.trim()), "{text}");
    }
    let found = mcp.call("search_files", json!({"path": server.dir(), "pattern": token.trim(), "all": true}));
    assert_eq!(found["structuredContent"]["lines"].as_array().map_or(0, Vec::len), 0, "{found}");
    drop(mcp);
    // On this machine: the state directories of this user's servers.
    let mut command = home.command(&["token", "create", "ci"]);
    command.current_dir(home.path());
    assert!(testkit::finish(command).status.success());
    let own: Vec<_> = files_below(home.path()).into_iter().filter(|path| path.ends_with("tokens.toml")).collect();
    let [own] = &own[..] else { panic!("{own:?}") };
    let mut mcp = Mcp::start(&home, &["--read-only"]);
    assert_eq!(mcp.ok("read_file", json!({"path": "file"}))["content"], "text\n");
    let text = mcp.failure("read_file", json!({"path": own}));
    assert!(text.contains("server's own files") || text.contains("no such file"), "{text}");
}

fn files_below(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(dir).expect("list a directory").map(|entry| entry.expect("an entry").path());
    let below = |path: std::path::PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    entries.flat_map(below).collect()
}

#[test]
fn a_root_at_a_server_holds_and_may_be_read_only_and_others_may_be_read_by_name() {
    let (home, server) = (rooted(), TestServer::start());
    let root = home.path().join("root").display().to_string();
    let mut mcp = Mcp::start(&home, &["--connect", server.url(), "--root", &root, "--read-only"]);
    nothing_leads_out(&home, &mut mcp);
    drop(mcp);
    let outside = home.path().join("outside").display().to_string();
    let mut mcp = Mcp::start(&home, &["--connect", server.url(), "--root", &root, "--readable", &outside]);
    let ran = mcp.ok("run_command", json!({"command": "cat way-out/secret; echo x >way-out/new || echo unwritten"}));
    assert_eq!(ran["stdout"], "secret\nunwritten\n", "{ran}");
    // A process may read this file, but the file tools may not.
    mcp.failure("read_file", json!({"path": "secret"}));
}

#[test]
fn an_unusable_root_is_refused_before_anything_is_served() {
    let home = Home::new();
    fs::write(home.path().join("file"), "").expect("write a file");
    // A symlink that decides which files are writable could be changed to point elsewhere.
    fs::create_dir(home.path().join("linked")).expect("make a directory");
    symlink("..", home.path().join("linked/.git")).expect("make a link");
    for (root, reason) in [("missing", "missing"), ("file", "is not a directory"), ("linked", "cannot be enforced at")]
    {
        let mut command = home.command(&["mcp", "serve", "--root", root]);
        command.current_dir(home.path());
        let (out, said, code) = outcome(command);
        assert_eq!((code, out.as_str()), (Some(255), ""), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn the_server_s_own_files_are_not_served() {
    let (home, server) = (Home::new(), TestServer::start());
    let state = server.state_dir();
    fs::write(home.path().join("file"), "text\n").expect("write a file");
    symlink(state.join("token"), home.path().join("link")).expect("make a link");
    let mut mcp = Mcp::start(&home, &["--connect", server.url()]);
    for path in [state.join("token"), state.join("lock"), home.path().join("link")] {
        mcp.failure("read_file", json!({"path": path}));
        mcp.failure("edit_file", json!({"path": path, "old": "a", "new": "b"}));
        mcp.failure("write_file", json!({"path": path, "content": "changed"}));
    }
    mcp.failure("write_file", json!({"path": state.join("tokens.toml"), "content": ""}));
    mcp.failure("list_directory", json!({"path": state}));
    let found = mcp.ok("search_files", json!({"pattern": server.token(), "path": server.dir(), "all": true}));
    assert_eq!(found["lines"], json!([]), "{found}");
    assert_eq!(mcp.ok("read_file", json!({"path": home.path().join("file")}))["content"], "text\n");
    drop(mcp);
    assert!(!state.join("tokens.toml").exists());
}
