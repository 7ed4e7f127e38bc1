//! The listeners of a real server: start, many connections, running out of fds, shutdown. Authentication is tested in `promises`.

use crate::prelude::*;

#[test]
fn a_lack_of_descriptors_does_not_end_the_server() {
    let server = TestServer::builder().start();
    let mut client = server.client();
    // Lower the limit below the number of open fds, so that the next accept fails.
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit { current: Some(12), maximum: hard };
    let pid = rustix::process::Pid::from_raw(server.pid().cast_signed());
    let before = rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).expect("lower the limit");
    let starved: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(server.address()).expect("connect")).collect();
    assert_eq!(client.ok("environment/status", json!({}))["status"], "ready");
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, before).expect("raise the limit");
    drop(starved);
    wait_for("health again", || http(server.address(), "GET /healthz HTTP/1.0\r\n\r\n").status == 200);
    assert_eq!(client.run("p", &["echo", "hi"]).stdout, b"hi\n");
}

#[test]
fn a_drained_server_says_goodbye_and_ends_with_0() {
    let mut server = TestServer::start();
    let mut client = server.client();
    server.signal(rustix::process::Signal::TERM);
    let (code, _reason) = client.wait_closed().expect("a close frame");
    assert_eq!(code, 1001);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn both_old_ways_to_start_a_server_work() {
    let dir = tempfile::tempdir().expect("make a directory");
    for (n, words) in [&["--listen"][..], &["exec-server", "--listen"]].iter().enumerate() {
        let mut child = Command::new(testkit::binary())
            .args(*words)
            .args(["ws://127.0.0.1:0", "--kill-on-exit", "--state-dir"])
            .arg(dir.path().join(n.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start exec-server");
        let mut stdout = std::io::BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let mut url = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut url).expect("read the URL");
        Client::connect(url.trim_end()).expect("connect").initialize();
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a process id is not zero");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal the server");
        assert_eq!(child.wait().expect("wait for the server").code(), Some(0));
    }
}

#[test]
fn d11_2_10_running_out_of_descriptors_does_not_end_the_server() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let (server, mut client) = TestServer::with_process(cat("p"));
    let pid = Pid::from_raw(server.pid().cast_signed());
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("list descriptors").count() as u64;
    let tight = Rlimit { current: Some(open + 4), maximum: getrlimit(Resource::Nofile).maximum };
    let before = prlimit(pid, Resource::Nofile, tight).expect("lower the limit");
    let crowd: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(server.address()).expect("the kernel queues it")).collect();
    client.assert_alive();
    // The first output needs an fd that is not available: it waits, and nothing is lost.
    client.write("p", b"alive\n");
    client.assert_alive();
    drop(crowd);
    prlimit(pid, Resource::Nofile, before).expect("restore the limit");
    client.wait_output("p", "alive\n");
    wait_for("a new connection", || Client::connect(server.url()).is_ok());
    assert_eq!(server.client().run("q", &["true"]).code(), 0);
}
