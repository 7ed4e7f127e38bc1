//! Where the commands write to and read from: pipes, files in memory and on a disk, devices. A full disk is an error, a reader that stops
//! is waited for with bounded memory, and stdout and stderr keep their order.

use crate::prelude::*;

const NO_SPACE: &str = "write standard output: No space left on device";

/// A directory on tmpfs, where the task itself writes, and one on another file system if there is one, where another thread writes.
fn directories() -> Vec<TempDir> {
    ["/dev/shm", "/tmp", "/var/tmp"].iter().filter_map(|parent| TempDir::new_in(parent).ok()).collect()
}

/// Runs a shell line in a mount namespace in which the directory `disk` is a tmpfs of one megabyte. The line has it as `$0` and the
/// program with its arguments as `$@`. The size of `disk/out` follows the program's stderr.
fn on_small_disk(program: &Command, disk: &Path) -> Output {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = "mount -t tmpfs -o size=1m none \"$0\" || exit 99; \"$@\" >\"$0/out\"; code=$?; wc -c <\"$0/out\" >&2; exit $code";
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.args(["--mount", "sh", "-c", script]).arg(disk).arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    finish(command)
}

#[test]
fn a_full_disk_is_an_error() {
    let server = TestServer::start();
    let home = Home::new();
    let file = server.dir().join("large");
    fs::write(&file, pattern(1, 3_000_000)).expect("write a file");
    let file = file.to_str().expect("it is UTF-8");
    home.ok(&["run", "--connect", server.url(), "-d", "--name", "job", "--", "cat", file]);
    assert_eq!(home.run(&["wait", "--connect", server.url(), "job"]).status.code(), Some(0));
    let disk = home.path().join("disk");
    fs::create_dir(&disk).expect("make the place of the disk");
    let of_logs = "No space left on device";
    for (command, rest, expected) in [
        ("run", &["--", "cat", file][..], NO_SPACE),
        ("logs", &["job"], of_logs),
        ("logs", &["-f", "job"], NO_SPACE),
        ("logs", &["--json", "job"], of_logs),
    ] {
        let args = [&[command, "--connect", server.url()], rest].concat();
        let mut to_device = home.command(&args);
        to_device.stdout(File::options().write(true).open("/dev/full").expect("open"));
        for output in [finish(to_device), on_small_disk(&home.command(&args), &disk)] {
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(255), "{args:?}: {said}");
            assert!(said.contains(expected), "{args:?}: {said}");
        }
    }
    let cat = ["fs", "cat", "--connect", server.url(), file];
    let output = on_small_disk(&home.command(&cat), &disk);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(said.contains(NO_SPACE) && said.contains("1048576"), "the disk is filled to its end: {said}");
}

#[test]
fn every_kind_of_file_gets_every_byte() {
    let server = TestServer::start();
    let home = Home::new();
    // Long enough for `logs` to have it pushed.
    let expected = pattern(2, 9_000_000);
    let file = server.dir().join("large");
    fs::write(&file, &expected).expect("write a file");
    let file = file.to_str().expect("it is UTF-8");
    home.ok(&["run", "--connect", server.url(), "-d", "--name", "job", "--", "cat", file]);
    assert_eq!(home.run(&["wait", "--connect", server.url(), "job"]).status.code(), Some(0));
    for args in [&["run", "--", "cat", file][..], &["logs", "job"], &["logs", "-f", "job"], &["fs", "cat", file]] {
        let mut args = args.to_vec();
        args.splice(if args[0] == "fs" { 2..2 } else { 1..1 }, ["--connect", server.url()]);
        for dir in directories() {
            let path = dir.path().join("out");
            // The file keeps what it has, and its offset is shared: a shell's `(a; b) >file`.
            let mut out = File::create(&path).expect("create a file");
            out.write_all(b"before").expect("write");
            let mut command = home.command(&args);
            command.stdout(out.try_clone().expect("duplicate"));
            let output = finish(command);
            assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{args:?}");
            out.write_all(b"behind").expect("write");
            let written = fs::read(&path).expect("read it");
            assert_same(
                &format!("{args:?} {}", path.display()),
                &written,
                &[b"before", &expected[..], b"behind"].concat(),
            );
        }
        let (near, far) = std::os::unix::net::UnixStream::pair().expect("make sockets");
        let mut command = home.command(&args);
        command.stdout(std::os::fd::OwnedFd::from(near));
        let mut child = spawn(&mut command);
        drop(command);
        let mut received = Vec::new();
        (&far).read_to_end(&mut received).expect("read the socket");
        assert_eq!(end_of(&mut child).code(), Some(0));
        assert_same(&format!("{args:?} to a socket"), &received, &expected);
        let (_, said, code) = outcome({
            let mut command = home.command(&args);
            command.stdout(File::options().write(true).open("/dev/null").expect("open"));
            command
        });
        assert_eq!((code, said.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn a_file_on_stdin_is_forwarded_from_its_offset_to_its_end() {
    use std::io::Seek as _;
    let server = TestServer::start();
    let home = Home::new();
    let input = pattern(3, 3_000_000);
    for dir in directories() {
        let path = dir.path().join("in");
        fs::write(&path, &input).expect("write a file");
        for args in [&["run", "--connect", server.url(), "--", "cat"][..], &["run", "--", "cat"]] {
            let mut file = File::open(&path).expect("open it");
            file.seek(std::io::SeekFrom::Start(7)).expect("seek");
            let mut command = home.command(args);
            command.stdin(file);
            let output = finish(command);
            assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{args:?}");
            assert_same(&format!("{args:?} {}", path.display()), &output.stdout, &input[7..]);
        }
    }
}

#[test]
fn stdout_and_stderr_keep_the_order_of_their_events_in_one_file() {
    let home = Home::new();
    let program = "for n in $(seq 1 300); do echo out $n; echo err $n >&2; done";
    home.ok(&["run", "-d", "--name", "job", "--", "sh", "-c", program]);
    assert_eq!(home.run(&["wait", "job"]).status.code(), Some(0));
    let events = home.ok(&["logs", "--json", "job"]);
    let chunks = events.lines().map(|line| serde_json::from_str::<Value>(line).expect("it is JSON"));
    let expected: Vec<u8> = chunks.flat_map(|event| decoded(&event["chunk"])).collect();
    assert_eq!(expected.split(|byte| *byte == b'\n').count(), 601);
    for args in [&["logs", "job"][..], &["logs", "-f", "job"], &["attach", "job"]] {
        for dir in directories() {
            let path = dir.path().join("out");
            let out = File::create(&path).expect("create a file");
            let mut command = home.command(args);
            command.stderr(out.try_clone().expect("duplicate")).stdout(out);
            assert_eq!(finish(command).status.code(), Some(0));
            assert_same(&format!("{args:?}"), &fs::read(&path).expect("read it"), &expected);
        }
        // The same through one pipe.
        let (reader, writer) = std::io::pipe().expect("make a pipe");
        let mut command = home.command(args);
        command.stderr(writer.try_clone().expect("duplicate")).stdout(writer);
        let mut child = spawn(&mut command);
        drop(command);
        let mut received = Vec::new();
        (&reader).read_to_end(&mut received).expect("read the pipe");
        assert_eq!(end_of(&mut child).code(), Some(0));
        assert_same(&format!("{args:?} through a pipe"), &received, &expected);
    }
}

/// Starts a program that prints without end, and waits until it is blocked because nothing reads our stdout.
fn blocked_run(home: &Home, server: &TestServer) -> Running {
    let child = spawn(&mut home.command(&["run", "--connect", server.url(), "--name", "job", "--", "yes"]));
    let mut client = server.client();
    wait_for("the program to be blocked", || client.listed("job")["blocked"] == "memoryCap");
    child
}

#[test]
fn a_reader_that_stops_holds_the_program_with_bounded_memory() {
    let server = TestServer::start();
    let home = Home::new();
    let mut child = blocked_run(&home, &server);
    let held = resident(child.id(), "RssAnon");
    assert!(held < 64 << 20, "the client holds {held} bytes");
    // The reader continues: the program does, too.
    let seen = server.client().listed("job")["outputBytes"].as_u64().expect("a number");
    let mut stdout = child.stdout.take().expect("stdout is a pipe");
    let mut piece = vec![0; 1 << 20];
    let mut client = server.client();
    wait_for("more output", || {
        stdout.read_exact(&mut piece).expect("read the output");
        assert!(piece.chunks_exact(2).all(|line| line == b"y\n"));
        client.listed("job")["outputBytes"].as_u64().is_some_and(|bytes| bytes > seen)
    });
    // The reader goes away: the program ends as in a pipe.
    drop(stdout);
    assert_eq!(end_of(&mut child).code(), Some(141));
}

#[test]
fn an_interrupt_during_a_blocked_write_ends_the_program() {
    let server = TestServer::start();
    let home = Home::new();
    let mut child = blocked_run(&home, &server);
    send_signal(child.id(), Signal::INT);
    // The client still has to write what the program has printed.
    let mut stdout = child.stdout.take().expect("stdout is a pipe");
    let (mut count, mut piece) = (0, vec![0; 1 << 20]);
    loop {
        let read = stdout.read(&mut piece).expect("read the output");
        if read == 0 {
            break;
        }
        count += read;
    }
    assert!(count > 16 << 20, "{count} bytes");
    assert_eq!(end_of(&mut child).code(), Some(130));
}
