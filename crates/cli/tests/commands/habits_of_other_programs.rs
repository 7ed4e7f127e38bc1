//! Habits from other programs: flags and forms of docker, ssh, scp, kill and ls that mean the same here, and hints where a word means
//! something else.

use crate::prelude::*;

/// A server with the working directory `there`, and a user who has named it `box`.
struct World {
    home: Home,
    server: TestServer,
}

impl World {
    fn new() -> Self {
        let home = Home::new();
        let there = home.path().join("there");
        fs::create_dir_all(there.join("sub")).expect("make a directory");
        let server = TestServer::builder().after(&format!("cd '{}'", there.display())).start();
        fs::create_dir_all(server.dir().join("home/docs")).expect("make a directory");
        home.write_environments(&format!("[[environments]]\nid = \"box\"\nurl = \"{}\"\n", server.url()));
        Self { home, server }
    }

    fn there(&self, path: &str) -> std::path::PathBuf {
        self.home.path().join("there").join(path)
    }

    /// Runs a command in the user's directory; returns stdout, stderr and the exit code.
    fn run(&self, args: &[&str]) -> (String, String, Option<i32>) {
        let mut command = self.home.command(args);
        command.current_dir(self.home.path());
        outcome(command)
    }

    /// Runs a command that must succeed.
    fn ok(&self, args: &[&str]) -> String {
        let (out, said, code) = self.run(args);
        assert_eq!(code, Some(0), "{args:?}: {said}");
        out
    }

    fn fails(&self, args: &[&str], expected: i32) -> String {
        let (_, said, code) = self.run(args);
        assert_eq!(code, Some(expected), "{args:?}: {said}");
        said
    }
}

#[test]
fn run_takes_the_flags_of_docker() {
    let home = Home::new();
    let mut command = home.command(&["run", "-i", "-e", "A=1", "-e", "OURS", "-w", "/tmp", "--", "sh", "-c"]);
    command.arg("pwd; echo $A $OURS; cat").env("OURS", "2");
    let output = finish_with_input(command, b"typed\n");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("/tmp\n1 2\ntyped\n", Some(0)));
    assert_eq!(home.run(&["run", "-e", "NOT_SET_HERE", "--", "true"]).status.code(), Some(2));
    assert_eq!(home.run(&["run", "-in", "--", "true"]).status.code(), Some(2), "both cannot be");
    assert_eq!(home.run(&["run", "--timeout", "1", "--", "sleep", "1000"]).status.code(), Some(124), "one second");
    let script = "test -t 0 && read x; echo \"<$x>\"";
    let (mut terminal, mut child) = Terminal::with(24, 80, home.command(&["run", "-it", "--", "sh", "-c", script]));
    terminal.exchange(b"hello\r", "<hello>\r\n");
    assert_eq!(end_of(&mut child).code(), Some(0));
}

#[test]
fn run_is_quiet_or_verbose_as_the_flags_say() {
    let home = Home::new();
    let url = "stdio:sh -c 'exit 0'";
    let (quiet, loud) = (home.run(&["run", "-q", "--", "true"]), home.run(&["run", "-v", "--", "true"]));
    assert!(quiet.status.success() && quiet.stderr.is_empty() && loud.status.success());
    let failed = home.run(&["run", "-q", "--connect", url, "--", "true"]);
    assert!(!failed.stderr.is_empty(), "errors are printed nevertheless");
    let world = World::new();
    let script = "echo ready; exec sleep 1000";
    let args = ["run", "-q", "-t", "--name", "work", "--connect", "box", "--", "sh", "-c", script];
    let (mut terminal, mut child) = Terminal::with(24, 80, world.home.command(&args));
    terminal.see("ready\r\n");
    terminal.keys(b"\x1d\x1d");
    assert_eq!(end_of(&mut child).code(), Some(0));
    let mut command = world.home.command(&["kill", "--connect", "box", "work"]);
    command.env("NO_COLOR", "1");
    let mut killed = terminal.start(command);
    assert_eq!(end_of(&mut killed).code(), Some(0));
    terminal.keys(b"mark\r");
    assert!(!terminal.see("mark").contains("left `work` running"));
}

#[test]
fn directories_of_a_server_are_relative_to_its_own_and_to_its_home() {
    let world = World::new();
    let there = world.there("").canonicalize().expect("it exists");
    let home = world.server.dir().join("home").canonicalize().expect("it exists");
    let cases = [("sub", there.join("sub")), ("~", home.clone()), ("~/docs", home.join("docs")), ("/", "/".into())];
    for (cwd, expected) in cases {
        let shown = world.ok(&["run", "--connect", "box", "--cwd", cwd, "--", "pwd", "-P"]);
        assert_eq!(Path::new(shown.trim_end()), expected, "{cwd}");
    }
    fs::write(home.join("docs/note"), "kept").expect("write");
    assert_eq!(world.ok(&["fs", "cat", "--connect", "box", "~/docs/note"]), "kept");
    assert_eq!(world.ok(&["fs", "ls", "--connect", "box", "~/docs"]), "note\n");
    world.ok(&["cp", "--connect", "box", ":~/docs/note", "copied"]);
    assert_eq!(fs::read(world.home.path().join("copied")).expect("read"), b"kept");
}

#[test]
fn cp_takes_several_sources_and_the_forms_of_scp() {
    let world = World::new();
    for name in ["a", "b"] {
        fs::write(world.home.path().join(name), name).expect("write");
    }
    let read = |path: &str| text(&fs::read(world.there(path)).expect("read"));
    world.ok(&["cp", "--connect", "box", "a", "b", ":sub/"]);
    assert_eq!((read("sub/a"), read("sub/b")), ("a".to_owned(), "b".to_owned()));
    let said = world.fails(&["cp", "--connect", "box", "a", "b", ":none"], 1);
    assert!(said.contains("none` is not a directory"), "{said}");
    world.ok(&["cp", "a", "box:sub/c"]);
    assert_eq!(read("sub/c"), "a");
    world.ok(&["cp", "box:sub/a", "box:sub/b", "."]);
    // A source that fails does not stop the others.
    fs::remove_file(world.home.path().join("b")).expect("remove");
    let said = world.fails(&["cp", "none", "box:sub/b", "."], 1);
    assert!(said.contains("none") && world.home.path().join("b").exists(), "{said}");
}

#[test]
fn cp_reaches_a_host_of_ssh_by_its_name() {
    let home = Home::new();
    let bin = home.path().join("bin");
    fs::create_dir_all(&bin).expect("make a directory");
    // A fake ssh: it runs its last argument as a command, as the remote login shell does.
    let script = format!(
        "#!/bin/sh\necho \"$@\" >>'{0}/asked'\nfor last; do :; done\ncd '{0}'\nexec sh -c \"$last\"\n",
        home.path().display()
    );
    fs::write(bin.join("ssh"), script).expect("write");
    set_mode(bin.join("ssh"), 0o755);
    std::os::unix::fs::symlink(testkit::binary(), bin.join("exec-server")).expect("link");
    fs::create_dir(home.path().join("dir")).expect("make a directory");
    fs::write(home.path().join("f"), "over ssh").expect("write");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("there is one"));
    for target in ["me@build-host:dir/", &format!("ssh://build-host{}/dir/g", home.path().display()), "build-host:~/h"]
    {
        let mut command = home.command(&["cp", "f", target]);
        command.current_dir(home.path()).env("PATH", &path);
        let (_, said, code) = outcome(command);
        assert_eq!(code, Some(0), "{target}: {said}");
    }
    for copied in ["dir/f", "dir/g", "h"] {
        assert_eq!(fs::read(home.path().join(copied)).expect("read"), b"over ssh", "{copied}");
    }
    let asked = fs::read_to_string(home.path().join("asked")).expect("ssh was asked");
    assert!(asked.contains("me@build-host") || asked.contains("-l me"), "{asked}");
}

#[test]
fn a_host_without_a_scheme_is_answered_with_its_url() {
    let world = World::new();
    for (asked, url) in [
        ("build-host", "`--connect ssh://build-host`"),
        ("me@build-host", "`--connect ssh://me@build-host`"),
        ("host:4000", "`--connect ws://host:4000`"),
    ] {
        let said = world.fails(&["run", "--connect", asked, "--", "true"], 255);
        assert!(said.contains(url), "{said}");
    }
    // No hint if none fits, and a URL with a token is not repeated in the message.
    let said = world.fails(&["run", "--connect", "http://host/?token=s3cret", "--", "true"], 255);
    assert!(!said.contains("--connect") && !said.contains("s3cret"), "{said}");
}

#[test]
fn subcommands_of_other_programs_are_answered_with_ours() {
    let world = World::new();
    for (word, meant) in [("ls", "'ps'"), ("list", "'ps'"), ("stop", "'kill'"), ("rm", "'forget'"), ("exec", "'run'")] {
        let said = world.fails(&[word], 2);
        assert!(said.contains("unrecognized subcommand") && said.contains(meant), "{word}: {said}");
    }
    for args in [&["run", "--", "echo hi; ls"][..], &["run", "-d", "--", "echo hi; ls"]] {
        let said = world.fails(args, 127);
        assert!(said.contains("`exec-server run -- sh -c 'echo hi; ls'`"), "{said}");
    }
    assert!(!world.fails(&["run", "--", "no-such-program"], 127).contains("sh -c"));
}

#[test]
fn serve_takes_a_port_and_the_name_of_this_machine() {
    let home = Home::new();
    for args in [&["serve", "--port", "0", "--print-config"][..], &["serve", "-p", "0", "--print-config"]] {
        assert!(home.run(args).status.success(), "{args:?}");
    }
    for (flag, value) in [("--port", "0"), ("--listen", "ws://localhost:0")] {
        let mut command = home.command(&["serve", flag, value]);
        let mut serving = testkit::spawn(command.arg("--state-dir").arg(home.path().join(flag)));
        let mut stdout = serving.stdout.take().expect("stdout is a pipe");
        let line = testkit::read_until(&mut stdout, "\n");
        assert!(line.starts_with("ws://127.0.0.1:"), "{flag}: {line}");
        testkit::signal(serving.id(), rustix::process::Signal::TERM);
        assert_eq!(end_of(&mut serving).code(), Some(0));
    }
}

#[test]
fn ls_shows_owner_local_time_and_sizes_for_people() {
    let world = World::new();
    fs::write(world.there("big"), vec![0; 3 << 20]).expect("write");
    let user = std::process::Command::new("id").arg("-un").output();
    let user = user.map(|output| text(&output.stdout)).unwrap_or_default();
    let mut command = world.home.command(&["fs", "ls", "-lh", "--connect", "box"]);
    command.env("TZ", "Asia/Kolkata");
    let (long, _, _) = outcome(command);
    let line = long.lines().find(|line| line.ends_with(" big")).expect("it is listed");
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells.len(), 7, "{line}");
    assert_eq!((cells[0].get(..3), cells[3]), (Some("-rw"), "3.0M"), "{line}");
    let mut date = std::process::Command::new("date");
    date.args(["-r", &world.there("big").display().to_string(), "+%Y-%m-%d %H:%M"]).env("TZ", "Asia/Kolkata");
    date.stdout(std::process::Stdio::piped());
    assert_eq!(format!("{} {}\n", cells[4], cells[5]), outcome(date).0);
    let listed = world.ok(&["fs", "ls", "--json", "--connect", "box"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("it is JSON");
    assert_eq!(listed[0]["owner"]["uid"], rustix::process::getuid().as_raw());
    if !user.trim_end().is_empty() {
        assert_eq!(cells[1], user.trim_end());
    }
    let help = world.ok(&["fs", "ls", "--help"]);
    assert!(help.contains("-h, --human-readable"), "{help}");
}

#[test]
fn files_and_matches_have_colour_on_a_terminal() {
    let world = World::new();
    fs::write(world.there("text"), "one needle two\n").expect("write");
    let shown = |args: &[&str], last: &str| {
        let mut command = world.home.command(args);
        command.env("TERM", "xterm").env_remove("NO_COLOR");
        let (mut terminal, mut child) = Terminal::with(24, 100, command);
        let seen = terminal.see(last);
        end_of(&mut child);
        seen
    };
    let listed = shown(&["fs", "ls", "--connect", "box"], "text\r\n");
    assert!(listed.contains("\x1b[1m\x1b[34msub\x1b[0m\r\n"), "{listed:?}");
    let found = shown(&["fs", "grep", "-n", "needle", "--connect", "box"], "two\r\n");
    assert!(found.contains("\x1b[35mtext\x1b[0m") && found.contains("\x1b[1m\x1b[31mneedle\x1b[0m two"), "{found:?}");
    let checked = shown(&["doctor"], "\x1b[32mfine");
    assert!(checked.contains("\x1b["), "{checked:?}");
    assert_eq!(world.ok(&["fs", "grep", "needle", "--connect", "box"]), "text:one needle two\n");
}
