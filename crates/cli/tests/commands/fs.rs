//! `exec-server fs`: output, messages and exit code of each command, against a server with its own home and working directory, and on this
//! machine.

use crate::prelude::*;

/// A server with its own home and working directory, and a user in another directory.
pub(crate) struct World {
    pub(crate) tree: TempDir,
    pub(crate) server: TestServer,
    pub(crate) home: Home,
}

impl World {
    pub(crate) fn new() -> Self {
        let tree = tempfile::Builder::new().prefix("exec-server-fs-").tempdir().expect("make a tree");
        let server = TestServer::builder().after(&format!("cd '{}'", tree.path().display())).start();
        Self { tree, server, home: Home::new() }
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command(&[&["fs"], args].concat());
        command.env("EXEC_SERVER_URL", self.server.url()).current_dir(self.home.path());
        command
    }

    /// Returns stdout, stderr and the exit code.
    pub(crate) fn run(&self, args: &[&str]) -> (String, String, Option<i32>) {
        outcome(self.command(args))
    }

    /// Returns stdout; the command must succeed without messages.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let (out, said, code) = self.run(args);
        assert_eq!((said.as_str(), code), ("", Some(0)), "{args:?}: {out}");
        out
    }

    pub(crate) fn put(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.tree.path().join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("make a directory");
        fs::write(path, content).expect("write a file");
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

#[test]
fn directories_are_listed_and_files_are_described() {
    let world = World::new();
    world.put("b.txt", "hello");
    world.put("dir/inner", "");
    world.put(".hidden", "");
    symlink("b.txt", world.tree.path().join("link")).expect("make a link");
    symlink("nowhere", world.tree.path().join("dangling")).expect("make a link");
    assert_eq!(world.ok(&["ls"]), "b.txt\ndangling\ndir\nlink\n");
    assert_eq!(world.ok(&["ls", "-a", "."]), ".hidden\nb.txt\ndangling\ndir\nlink\n");
    assert_eq!(world.ok(&["ls", "dir", "b.txt"]), "dir:\ninner\n\nb.txt:\nb.txt\n");
    let long = world.ok(&["ls", "-l"]);
    assert!(long.contains(" 5 ") && long.contains("link -> b.txt") && long.contains("drwx"), "{long}");
    let all = lines(&world.ok(&["ls", "--json"]));
    let file = &all[0][0];
    assert_eq!((&file["name"], &file["kind"], &file["size"]), (&json!("b.txt"), &json!("file"), &json!(5)));
    assert_eq!(all[0][3]["target"], "b.txt");
    let told = world.ok(&["stat", "b.txt"]);
    assert!(told.starts_with("b.txt\n  kind     file\n  size     5\n  mode     -rw"), "{told}");
    let told = lines(&world.ok(&["stat", "--json", "link", "dangling"]));
    assert_eq!((&told[0]["kind"], &told[1]["target"]), (&json!("symlink"), &json!("nowhere")));
    assert_eq!(lines(&world.ok(&["stat", "-L", "--json", "link"]))[0]["kind"], "file");
    // A missing path is reported, and the others are listed.
    let (out, said, code) = world.run(&["ls", "none", "dir"]);
    assert_eq!((out.as_str(), code), ("dir:\ninner\n", Some(1)));
    assert!(said.contains("none") && said.contains("o such file"), "{said}");
}

#[test]
fn files_are_printed_byte_for_byte() {
    let world = World::new();
    let noise = pattern(0, 3_000_000);
    world.put("noise", &noise);
    world.put("text", "a\n");
    let output = finish(world.command(&["cat", "text", "noise"]));
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    assert!(output.stdout == [b"a\n".as_slice(), &noise].concat());
    let (out, said, code) = world.run(&["cat", "none", "text"]);
    assert_eq!((out.as_str(), code, said.is_empty()), ("a\n", Some(1), false));
    let (_, said, code) = world.run(&["cat", "."]);
    assert_eq!(code, Some(1), "{said}");
    // If the reader closes the pipe, the command ends without a message.
    assert_ends_with_its_reader(world.command(&["cat", "noise", "noise"]), "");
}

#[test]
fn directories_are_created_and_removed() {
    let world = World::new();
    world.ok(&["mkdir", "a"]);
    assert_eq!(world.run(&["mkdir", "a"]).2, Some(1));
    assert_eq!(world.run(&["mkdir", "x/y"]).2, Some(1));
    world.ok(&["mkdir", "-p", "x/y", "x/y"]);
    world.ok(&["mkdir", "-m", "700", "private"]);
    assert_eq!(mode_of(world.tree.path().join("private")), 0o700);
    world.put("x/y/file", "");
    assert_eq!(world.run(&["rm", "x"]).2, Some(1));
    assert!(world.tree.path().join("x/y/file").exists());
    world.ok(&["rm", "-r", "x", "a", "private"]);
    assert!(!world.tree.path().join("x").exists());
    assert_eq!(world.run(&["rm", "x"]).2, Some(1));
    world.ok(&["rm", "-f", "x"]);
    // `rm` removes a symlink but not its target.
    world.put("kept/file", "");
    symlink("kept", world.tree.path().join("link")).expect("make a link");
    world.ok(&["rm", "-r", "link"]);
    assert!(world.tree.path().join("kept/file").exists());
}

#[test]
fn a_tree_is_drawn() {
    let world = World::new();
    let files = [("a/b/x", "12"), ("a/c", ""), ("d", ""), (".git/x", ""), ("ignored", ""), (".gitignore", "ignored\n")];
    for (name, content) in files {
        world.put(name, content);
    }
    assert_eq!(world.ok(&["tree"]), ".\n├── a/\n│   ├── b/\n│   │   └── x\n│   └── c\n├── d\n└── ignored\n");
    assert_eq!(world.ok(&["tree", "--ignore-rules", "-L", "1"]), ".\n├── a/\n└── d\n");
    let all = lines(&world.ok(&["tree", "--json", "a"]));
    let paths: Vec<&str> = all.iter().filter_map(|entry| entry["path"].as_str()).collect();
    assert_eq!(paths, ["a/b", "a/b/x", "a/c"]);
    assert_eq!(all[1]["size"], 2);
    assert_eq!(world.run(&["tree", "none"]).2, Some(1));
}

#[test]
fn grep_finds_lines_and_its_exit_code_tells_whether() {
    let world = World::new();
    world.put("src/a.rs", "fn main() {\n    needle();\n}\n\n\nlast Needle\n");
    world.put("src/b.txt", "needle\n");
    world.put("skipped/x", "needle\n");
    world.put(".gitignore", "skipped\n");
    world.put("bin", b"needle\0");
    assert_eq!(world.ok(&["grep", "needle"]), "src/a.rs:    needle();\nsrc/b.txt:needle\n");
    let found = "src/a.rs:2:    needle();\nsrc/a.rs:6:last Needle\n";
    assert_eq!(world.ok(&["grep", "-n", "-i", "needle", "src/a.rs"]), found);
    assert_eq!(world.ok(&["grep", "-l", "needle", "src"]), "src/a.rs\nsrc/b.txt\n");
    assert_eq!(world.ok(&["grep", "-g", "*.rs", "needle"]), "src/a.rs:    needle();\n");
    assert_eq!(world.ok(&["grep", "-g", "!*.rs", "--no-ignore", "needle"]), "skipped/x:needle\nsrc/b.txt:needle\n");
    assert_eq!(world.ok(&["grep", "-F", "needle()", "src"]), "src/a.rs:    needle();\n");
    let around =
        "src/a.rs-1-fn main() {\nsrc/a.rs:2:    needle();\nsrc/a.rs-3-}\n--\nsrc/a.rs-5-\nsrc/a.rs:6:last Needle\n";
    assert_eq!(world.ok(&["grep", "-n", "-C", "1", "-i", "needle", "src/a.rs"]), around);
    let told = lines(&world.ok(&["grep", "--json", "needle"]));
    assert_eq!((&told[0]["path"], &told[0]["spans"]), (&json!("src/a.rs"), &json!([[4, 10]])));
    assert_eq!((&told[2]["summary"]["matches"], &told[2]["summary"]["binary"]), (&json!(2), &json!(1)));
    for (args, code) in [(&["grep", "nothing here"][..], 1), (&["grep", "("], 2), (&["grep", "x", "none"], 255)] {
        let (out, said, seen) = world.run(args);
        assert_eq!((out.as_str(), seen), ("", Some(code)), "{args:?}: {said}");
        assert_eq!(said.is_empty(), code == 1, "{args:?}: {said}");
    }
    let (out, said, code) = world.run(&["grep", "--max-matches", "1", "needle"]);
    assert_eq!((out.as_str(), code), ("src/a.rs:    needle();\n", Some(0)));
    assert!(said.contains("results are incomplete; reason: limit of results"), "{said}");
}

#[test]
fn names_of_any_bytes_are_printed_unchanged() {
    let world = World::new();
    let name = OsStr::from_bytes(b"new\nline\xff");
    world.put(name, "needle\n");
    let output = finish(world.command(&["ls", "-0"]));
    assert_eq!(output.stdout, b"new\nline\xff\0");
    let told = lines(&world.ok(&["ls", "--json"]));
    assert_eq!(told[0][0]["nameBase64"], "bmV3CmxpbmX/");
    let output = finish(world.command(&["grep", "needle"]));
    assert_eq!(output.stdout, b"new\nline\xff:needle\n");
    let mut command = world.command(&["cat"]);
    command.arg(name);
    assert_eq!(finish(command).stdout, b"needle\n");
    let mut command = world.command(&["rm"]);
    command.arg(name);
    assert_eq!(finish(command).status.code(), Some(0));
    assert_eq!(world.ok(&["ls"]), "");
}

#[test]
fn changes_are_printed_as_they_happen() {
    let world = World::new();
    world.put("sub/old", "");
    let mut child = spawn(&mut world.command(&["watch", "--settle", "10ms"]));
    let (mut out, mut said) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    read_until(&mut said, "watching; directories: 2");
    world.put("sub/new", "x");
    read_until(&mut out, "created  sub/new\n");
    fs::remove_file(world.tree.path().join("sub/old")).expect("remove a file");
    read_until(&mut out, "removed  sub/old\n");
    signal(child.id(), Signal::TERM);
    assert_eq!(end_of(&mut child).code(), None);
    // The watch ends when its root is removed.
    world.put("gone/x", "");
    let mut child = spawn(&mut world.command(&["watch", "--json", "gone"]));
    let mut said = child.stderr.take().expect("a pipe");
    read_until(&mut said, "watching");
    fs::remove_dir_all(world.tree.path().join("gone")).expect("remove the directory");
    let output = finish_child(child);
    assert_eq!(output.status.code(), Some(1));
    let removed = json!({"path": "gone/x", "change": "removed", "isDirectory": false});
    assert!(lines(&text(&output.stdout)).contains(&removed));
    let mut child = spawn(&mut world.command(&["watch", "--once", "--exclude", "sub"]));
    let mut said = child.stderr.take().expect("a pipe");
    read_until(&mut said, "directories: 1");
    world.put("sub/unseen", "");
    world.put("seen", "");
    let output = finish_child(child);
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("created  seen\n", Some(0)));
    assert_eq!(world.run(&["watch", "none"]).2, Some(1));
}

#[test]
fn without_a_server_paths_are_those_of_this_machine_and_directory() {
    let home = Home::new();
    let dir = home.path().join("work");
    fs::create_dir(&dir).expect("make a directory");
    fs::write(dir.join("file"), "needle\n").expect("write a file");
    let run = |args: &[&str]| {
        let mut command = home.command(args);
        command.current_dir(&dir);
        let (out, _, code) = outcome(command);
        (out, code)
    };
    assert_eq!(run(&["fs", "ls"]), ("file\n".to_owned(), Some(0)));
    assert_eq!(run(&["fs", "grep", "needle"]), ("file:needle\n".to_owned(), Some(0)));
    assert_eq!(run(&["fs", "rm", "file"]), (String::new(), Some(0)));
    assert!(!dir.join("file").exists());
}

#[test]
fn every_command_has_help_with_examples_and_codes() {
    let home = Home::new();
    for command in ["ls", "cat", "stat", "tree", "grep", "watch", "rm", "mkdir"] {
        let help = home.ok(&["fs", command, "--help"]);
        assert!(help.contains("Example") && help.contains("Exit codes"), "{command}");
        assert_eq!(home.run(&["fs", command, "--no-such-flag"]).status.code(), Some(2));
    }
    assert_eq!(home.run(&["fs"]).status.code(), Some(2));
    assert_eq!(home.run(&["fs", "cat", "--connect", "ws://127.0.0.1:9", "x"]).status.code(), Some(255));
}
