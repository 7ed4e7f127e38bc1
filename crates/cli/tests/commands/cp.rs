//! `exec-server cp`: which attributes are kept, where files go, messages and exit codes; `cp` killed and run again. Hostile servers are
//! tested in the client's `hostile_files`.

use std::os::unix::fs::FileExt as _;

use crate::{
    commands::tree_helpers::{hidden, make_tree, same, same_inside, whole_so_far},
    prelude::*,
};

/// A server with its own home and working directory, and a user in another directory.
pub(crate) struct World {
    pub(crate) server: TestServer,
    pub(crate) home: Home,
    /// In front of the server, if the copies are to be slow.
    proxy: Option<Proxy>,
}

impl World {
    pub(crate) fn new() -> Self {
        let server = TestServer::builder().after("mkdir -p \"$HOME/own\" && cd \"$HOME/own\"").start();
        Self { server, home: Home::new(), proxy: None }
    }

    /// A world in which a copy of a large file takes so long that the test sees its part.
    fn slow() -> Self {
        let world = Self::new();
        Self { proxy: Some(Proxy::throttled(world.server.address(), 40 << 20)), ..world }
    }

    /// A path in the user's directory.
    pub(crate) fn here(&self, name: &str) -> PathBuf {
        self.home.path().canonicalize().expect("it exists").join(name)
    }

    /// A path below the server's working directory.
    pub(crate) fn there(&self, name: &str) -> PathBuf {
        self.server.dir().canonicalize().expect("it exists").join("home/own").join(name)
    }

    pub(crate) fn cp(&self, args: &[&str]) -> Command {
        let url = self.server.url();
        let url = self.proxy.as_ref().map_or_else(|| url.to_owned(), |proxy| proxy.through(url));
        let mut all = vec!["cp", "--connect", &url];
        all.extend_from_slice(args);
        let mut command = self.home.command(&all);
        command.current_dir(self.home.path());
        command
    }

    /// Returns stderr and the exit code; stdout must be empty.
    pub(crate) fn run(&self, args: &[&str]) -> (String, Option<i32>) {
        let (stdout, stderr, code) = outcome(self.cp(args));
        assert_eq!(stdout, "");
        (stderr, code)
    }

    pub(crate) fn ok(&self, args: &[&str]) {
        assert_eq!(self.run(args), (String::new(), Some(0)), "{args:?}");
    }
}

pub(crate) fn remote(path: &Path) -> String {
    format!(":{}", path.display())
}

#[test]
fn a_tree_round_trips_with_everything_that_is_kept() {
    let world = World::new();
    make_tree(&world.here("tree"), 120);
    world.ok(&["-r", "tree", ":copy"]);
    same(&world.here("tree"), &world.there("copy"));
    world.ok(&["-r", ":copy", "back"]);
    same(&world.here("tree"), &world.here("back"));
    world.ok(&["-r", ":copy", ":third"]);
    same(&world.here("tree"), &world.there("third"));
    for dir in [world.here(""), world.there("")] {
        assert_eq!(hidden(&dir), Vec::<PathBuf>::new(), "nothing is left behind");
    }
}

#[test]
fn a_copy_goes_where_cp_would_put_it() {
    let world = World::new();
    fs::write(world.here("f"), "1").expect("write");
    fs::create_dir_all(world.here("d/e")).expect("make a directory");
    fs::write(world.here("d/e/g"), "2").expect("write");
    fs::create_dir(world.there("box")).expect("make a directory");
    world.ok(&["f", ":new"]);
    world.ok(&["f", ":box"]);
    world.ok(&["f", &format!("{}/", remote(&world.there("box")))]);
    world.ok(&["-r", "d", ":box"]);
    world.ok(&["-r", "d", ":tree"]);
    world.ok(&["-r", "d/.", ":box"]);
    world.ok(&["-r", "d/", ":tree"]);
    for made in ["new", "box/f", "box/d/e/g", "tree/e/g", "box/e/g", "tree/d/e/g"] {
        assert!(world.there(made).is_file(), "{made}");
    }
    // A path that the user names is followed even if it is a symlink. The link itself stays.
    symlink("new", world.there("link")).expect("make a link");
    fs::write(world.here("f"), "3").expect("write");
    world.ok(&["f", ":link"]);
    assert!(world.there("link").is_symlink());
    assert_eq!(fs::read(world.there("new")).expect("read"), b"3");
    world.ok(&["-r", &remote(&world.there("box")), "."]);
    assert_eq!(fs::read(world.here("box/f")).expect("read"), b"1");
}

#[test]
fn each_mistake_has_a_message_and_an_exit_code() {
    let world = World::new();
    fs::create_dir(world.here("d")).expect("make a directory");
    fs::write(world.here("f"), "1").expect("write");
    for (args, said) in [
        (&["none", ":x"][..], "No such file"),
        (&[":none", "x"], "no such file"),
        (&["d", ":x"], "is a directory: use `-r`"),
        (&["f", ":none/x"], "no such file"),
        (&["f", ":x/"], "is not a directory"),
        (&["-r", ":.", "f"], "is not a directory"),
        (&["-r", ":.", ":e"], "itself"),
    ] {
        let (stderr, code) = world.run(args);
        assert_eq!(code, Some(1), "{args:?}: {stderr}");
        let is_said = stderr.to_lowercase().contains(&said.to_lowercase());
        assert!(stderr.starts_with("exec-server: ") && is_said && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
    assert!(!world.there("x").exists() && !world.here("x").exists());
    assert_eq!(world.run(&["f"]).1, Some(2));
    let unreachable = finish(world.home.command(&["cp", "--connect", "ws://127.0.0.1:1", "/etc/hostname", ":/x"]));
    assert_eq!(unreachable.status.code(), Some(255));
    let (_, stderr, code) = outcome(world.home.command(&["cp", "/etc/hostname", ":/x"]));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("pass `--connect URL` or `--to URL`"), "{stderr}");
}

#[test]
fn unreadable_files_are_reported_and_the_rest_is_copied() {
    let server = TestServer::builder().run_by_nobody().start();
    let home = Home::new();
    let tree = server.dir().join("tree");
    fs::create_dir(&tree).expect("make a directory");
    for name in ["a", "b", "secret", "z"] {
        fs::write(tree.join(name), name).expect("write");
    }
    set_mode(tree.join("secret"), 0o600);
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    let target = home.path().join("copy");
    let args = ["cp", "-r", "--connect", server.url(), &remote(&tree), &target.display().to_string()];
    let (_, stderr, code) = outcome(home.command(&args));
    assert_eq!(code, Some(1));
    assert!(stderr.contains("secret`: ") && stderr.contains("pipe` skipped: neither a file"), "{stderr}");
    assert_eq!(stderr.lines().count(), 3, "{stderr}");
    assert!(stderr.ends_with("copy` is incomplete; repeat the command to copy the rest\n"), "{stderr}");
    for name in ["a", "b", "z"] {
        assert_eq!(fs::read(target.join(name)).expect("it was copied"), name.as_bytes());
    }
    assert!(!target.join("secret").exists() && !target.join("pipe").exists());
    // Once the file is readable, the same command copies it, and leaves no hidden files behind.
    set_mode(tree.join("secret"), 0o644);
    fs::remove_file(tree.join("pipe")).expect("remove");
    home.ok(&args);
    same(&tree, &target);
    assert_eq!(hidden(home.path()), Vec::<PathBuf>::new());
}

#[test]
fn files_go_from_one_server_to_another() {
    let (from, to) = (World::new(), TestServer::start());
    make_tree(&from.there("tree"), 30);
    let target = to.dir().canonicalize().expect("it exists").join("tree");
    let args = ["cp", "-r", "--from", from.server.url(), "--to", to.url(), ":tree", &remote(&target)];
    from.home.ok(&args);
    same(&from.there("tree"), &target);
}

#[test]
fn progress_is_drawn_on_a_terminal_and_nowhere_else() {
    let world = World::new();
    fs::write(world.here("f"), pattern(0, 3 << 20)).expect("write");
    world.ok(&["--progress", "f", ":a"]);
    let (mut terminal, child) = Terminal::with(24, 100, world.cp(&["--progress", "f", ":b"]));
    let seen = terminal.see("100%  3.0 MiB of 3.0 MiB");
    assert!(seen.contains("[####################]"), "{seen}");
    assert!(finish_child(child).status.success());
}

#[test]
fn a_copy_that_was_killed_at_any_moment_continues_when_it_is_repeated() {
    let world = World::new();
    make_tree(&world.here("tree"), 300);
    fs::write(world.here("tree/large"), pattern(0, 24 << 20)).expect("write");
    let mut random = 88_172_645_463_325_252_u64;
    for (source, target, args) in [
        (world.here("tree"), world.there("copy"), ["-r", "tree", ":copy"]),
        (world.there("copy"), world.here("back"), ["-r", ":copy", "back"]),
    ] {
        let mut killed = 0;
        let name = target.file_name().and_then(|name| name.to_str()).expect("it has a name");
        let mark = target.with_file_name(format!(".{name}.exec-server-cp"));
        while killed < 8 {
            let mut child = spawn(&mut world.cp(&args));
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            thread::park_timeout(Duration::from_millis(random % 600));
            child.kill().expect("kill it");
            let is_over = child.wait().expect("it ends").success();
            // The copy was complete, and `cp` was killed while exiting: the mark, which is created before the directory, is gone.
            if is_over || (target.exists() && !mark.exists()) {
                // `cp` was faster than the kill. Run again, it would copy into the directory.
                same(&source, &target);
                fs::remove_dir_all(&target).expect("remove");
                continue;
            }
            killed += 1;
            whole_so_far(&source, &target);
        }
        world.ok(&args);
        same(&source, &target);
        for dir in [source.parent(), target.parent()].into_iter().flatten() {
            assert_eq!(hidden(dir), Vec::<PathBuf>::new(), "nothing is left behind");
        }
    }
}

/// Whether `path` has these first bytes, and `bytes` behind them.
fn begins_and_continues(path: &Path, begin: &[u8], bytes: &[u8]) -> bool {
    let copy = fs::read(path).expect("it is there");
    copy.starts_with(begin) && copy[begin.len()..] == bytes[begin.len()..]
}

/// Kills a copy of a large file once a part of it exists, and returns the path of that part.
fn interrupted(world: &World, args: &[&str], dir: &Path) -> PathBuf {
    let mut child = spawn(&mut world.cp(args));
    // Other files of a tree may be in progress at the same time.
    let part = || {
        let is_large = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.len() > 20 << 20);
        hidden(dir).into_iter().find(|path| path.extension().is_some_and(|end| end == "part") && is_large(path))
    };
    wait_for("a part of more blocks than are under way", || part().is_some());
    child.kill().expect("kill it");
    child.wait().expect("it ends");
    part().expect("it stays")
}

#[test]
fn a_large_file_continues_where_it_was_and_begins_again_when_the_source_has_changed() {
    let world = World::slow();
    let bytes = pattern(0, 32 << 20);
    fs::write(world.here("large"), &bytes).expect("write");
    fs::write(world.there("large"), &bytes).expect("write");
    for (args, source, target) in [
        (["large", ":copy"], world.here("large"), world.there("copy")),
        ([":large", "copy"], world.there("large"), world.here("copy")),
    ] {
        let dir = target.parent().expect("it has one");
        let part = interrupted(&world, &args, dir);
        assert!(!target.exists());
        // Write a marker into the part. It can only get into the copy if the copy continues with that part.
        fs::File::options().write(true).open(&part).expect("open").write_all_at(b"mark", 0).expect("write");
        world.ok(&args);
        assert!(begins_and_continues(&target, b"mark", &bytes), "it continued");
        fs::remove_file(&target).expect("remove");
        // The source has changed, so the part must not be used.
        interrupted(&world, &args, dir);
        let changed = fs::File::options().write(true).open(&source).expect("open");
        changed.write_all_at(b"new", 0).expect("write");
        world.ok(&args);
        assert!(begins_and_continues(&target, b"new", &bytes), "it began again");
        assert_eq!(hidden(dir), Vec::<PathBuf>::new(), "and the old part is gone");
    }
}

#[test]
fn remains_of_a_killed_copy_are_removed_when_it_continues_and_files_of_the_user_stay() {
    let world = World::slow();
    make_tree(&world.there("tree"), 40);
    fs::write(world.there("tree/large"), pattern(0, 32 << 20)).expect("write");
    let copy = world.here("copy");
    fs::create_dir(&copy).expect("make a directory");
    interrupted(&world, &["-r", ":tree/.", "copy"], &copy);
    // The files that a kill between two steps of a replacement leaves: for a file that the source may no longer have, and for a link.
    fs::create_dir_all(copy.join("d0/e")).expect("make the directories, unless they are there");
    fs::write(copy.join(".exec-server-0123456789abcdef.tmp"), "half").expect("write");
    symlink("half", copy.join("d0/.exec-server-0123456789abcdef-link.tmp")).expect("make a link");
    // A temporary file that another program still writes, and a file of the user.
    let held = fs::File::create(copy.join("d0/e/.exec-server-fedcba9876543210.tmp")).expect("create");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).expect("lock");
    fs::write(copy.join("d0/.exec-server-notes.tmp"), "notes").expect("write");
    world.ok(&["-r", ":tree/.", "copy"]);
    let left = ["d0/.exec-server-notes.tmp", "d0/e/.exec-server-fedcba9876543210.tmp"].map(|name| copy.join(name));
    assert_eq!(hidden(&world.here("")), left);
    for path in left {
        fs::remove_file(path).expect("remove");
    }
    for dir in ["d0/e", "d0"] {
        let then = fs::metadata(world.there("tree").join(dir)).and_then(|found| found.modified()).expect("a time");
        fs::File::open(copy.join(dir)).expect("open").set_modified(then).expect("set the time");
    }
    same_inside(&world.there("tree"), &copy);
}
