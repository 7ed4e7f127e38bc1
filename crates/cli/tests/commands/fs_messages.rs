//! Refusals and error messages of `fs` and `cp`, and their messages about a broken link. Successful commands are tested in `fs` and `cp`.

use crate::{
    commands::{fs::World, tree_helpers::hidden},
    prelude::*,
};

#[test]
fn a_directory_is_removed_only_by_its_name_and_with_the_flag() {
    let world = World::new();
    world.put("kept/file", "x");
    fs::create_dir(world.tree.path().join("empty")).expect("make a directory");
    for path in [".", "..", "kept/.", "kept/../", "/", "//", ""] {
        let (out, said, code) = world.run(&["rm", "-rf", "kept", path]);
        assert_eq!((out.as_str(), code), ("", Some(2)), "{path}: {said}");
    }
    assert!(world.tree.path().join("kept/file").exists(), "where one is refused none is removed");
    let (_, said, code) = world.run(&["rm", "-f", "empty"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("empty`: is a directory; use `-r`"), "{said}");
    assert!(world.tree.path().join("empty").exists());
    std::os::unix::fs::symlink("empty", world.tree.path().join("link")).expect("make a link");
    world.ok(&["rm", "link"]);
    world.ok(&["rm", "-r", "empty"]);
    assert!(!world.tree.path().join("empty").exists());
}

#[test]
fn each_error_names_its_path_once() {
    let world = World::new();
    let none = world.tree.path().canonicalize().expect("it exists").join("none");
    let none = none.display();
    for (args, action) in [
        (&["cat", "none"][..], "open"),
        (&["rm", "none"], "remove"),
        (&["stat", "none"], "look at"),
        (&["mkdir", "none/x"], "make directory"),
    ] {
        let (_, said, code) = world.run(args);
        assert_eq!(code, Some(1), "{args:?}: {said}");
        assert_eq!(said.matches("none").count(), 1, "{args:?}: {said}");
        assert!(said.starts_with(&format!("exec-server: {action} `{none}")), "{args:?}: {said}");
    }
    let (_, said, code) = world.run(&["grep", "a(b"]);
    assert_eq!(code, Some(2));
    assert!(said.ends_with(": invalid pattern `a(b`: unclosed group\n"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_file_is_printed_completely_through_a_restart_of_its_server() {
    let mut world = World::new();
    // More than the requests in flight and the pipe can hold, which is about 9 MiB.
    let noise = pattern(0, 12 << 20);
    world.put("noise", &noise);
    world.put("other", &noise);
    let begin = |world: &World, name: &str| {
        let mut child = spawn(&mut world.command(&["cat", name]));
        // Because the rest is not read yet, the command cannot finish.
        let mut first = vec![0; 64 << 10];
        child.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("read");
        (child, first)
    };
    let (kept, mut read) = begin(&world, "noise");
    let (changed, _) = begin(&world, "other");
    world.server.kill();
    world.put("other", "another one");
    world.server.restart();
    let output = finish_child(kept);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    read.extend_from_slice(&output.stdout);
    assert!(read == noise, "{} of {} bytes", read.len(), noise.len());
    let output = finish_child(changed);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("other`: changed while its server was unavailable"), "{said}");
}

#[test]
fn names_that_only_look_like_ours_are_listed_and_copied() {
    let world = World::new();
    let theirs = [".exec-server-notes.part", ".exec-server-notes.tmp", ".exec-server-0123456789abcdef-x.part"];
    let ours = [".exec-server-0123456789abcdef.tmp", ".exec-server-0123456789abcdef-0123456789abcdef.part"];
    for name in theirs.iter().chain(&ours) {
        world.put(format!("dir/{name}"), "x");
    }
    let listed = world.ok(&["ls", "-a", "dir"]);
    let mut expected = theirs;
    expected.sort_unstable();
    assert_eq!(listed.lines().collect::<Vec<_>>(), expected);
    let copy = world.home.path().join("copy");
    world.home.ok(&["cp", "-r", "--connect", world.server.url(), ":dir", &copy.display().to_string()]);
    let copied: Vec<_> = hidden(&copy).iter().filter_map(|path| path.file_name().map(ToOwned::to_owned)).collect();
    assert_eq!(copied, expected);
}

#[test]
fn a_copy_that_names_no_server_is_refused() {
    let home = Home::new();
    fs::write(home.path().join("a"), "x").expect("write");
    for (args, said) in [
        (&["--connect", "ws://127.0.0.1:1", "a", "b"][..], "write `:` before the one that is, such as `:b`"),
        (&["--from", "ws://127.0.0.1:1", "a", ":b"], "write `:a`"),
        (&["--connect", "ws://127.0.0.1:1", "-r", "", ":b"], "it is empty"),
        (&["a", ":b"], "pass `--connect URL` or `--to URL`"),
        (&["--connect", "local", ":a", "b"], "pass `--connect URL` or `--from URL`"),
    ] {
        let mut command = home.command(&[&["cp"], args].concat());
        command.current_dir(home.path());
        let (_, stderr, code) = outcome(command);
        assert_eq!(code, Some(2), "{args:?}");
        assert!(stderr.contains(said), "{args:?}: {stderr}");
    }
    assert!(!home.path().join("b").exists());
}

#[test]
fn the_token_of_one_server_is_not_shown_to_the_other() {
    let (from, to, home) = (TestServer::start(), TestServer::start(), Home::new());
    fs::write(from.dir().join("a"), "x").expect("write");
    let [source, target] = [&from, &to].map(|server| format!(":{}/a", server.dir().display()));
    let address = format!("ws://{}", from.address());
    let copy = |flags: &[&str]| {
        let mut command = home.command(&[&["cp"], flags, &[&source, &target]].concat());
        command.env("EXEC_SERVER_TOKEN", from.token());
        outcome(command)
    };
    let (_, said, code) = copy(&["--connect", &address, "--to", to.url()]);
    assert_eq!((said.as_str(), code), ("", Some(0)));
    assert!(to.dir().join("a").exists());
    let (_, said, code) = copy(&["--from", &address, "--to", to.url()]);
    assert_eq!(code, Some(255), "it is for a server that --connect names");
    assert!(said.contains("token missing or rejected (401)"), "{said}");
}

#[test]
fn a_broken_link_is_reported_and_so_is_its_recovery() {
    let server = TestServer::builder().behind_proxy().start();
    let home = Home::new();
    let source = server.dir().join("large");
    fs::write(&source, pattern(0, 10 << 20)).expect("write");
    let proxy = Proxy::start(server.address());
    let url = proxy.through(server.url());
    let args = ["cp", "--connect", &url, &format!(":{}", source.display()), "copy"];
    let mut command = home.command(&args);
    let mut child = spawn(command.current_dir(home.path()));
    wait_for("the first bytes", || !hidden(home.path()).is_empty());
    proxy.shut();
    let stderr = child.stderr.as_mut().expect("a pipe");
    let said = read_until(stderr, "; reconnecting\n");
    assert!(said.starts_with("exec-server: connection to ws://127.0.0.1:"), "{said}");
    proxy.open();
    let said = read_until(stderr, " again\n");
    assert!(said.starts_with("exec-server: connected to ws://127.0.0.1:"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let output = finish_child(child);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(fs::read(home.path().join("copy")).expect("it is there") == pattern(0, 10 << 20));
}
