//! The client library with a link that breaks and a server that dies: which data survives, which calls wait, and which error is finally
//! reported.

use std::time::Instant;

use tokio::task::{JoinSet, block_in_place};

use crate::{prelude::*, stories};

/// A server that can be reached through a proxy.
fn reachable() -> testkit::Builder {
    TestServer::builder().behind_proxy()
}

async fn recovering(client: &Client) {
    let mut state = client.watch_state();
    let cut = state.wait_for(|state| matches!(state, ConnectionState::Recovering { .. }));
    soon("the cut is noticed", cut).await.expect("the client lives");
}

async fn connected(client: &Client) {
    let mut state = client.watch_state();
    let mended = state.wait_for(|state| matches!(state, ConnectionState::Connected));
    soon("the link is mended", mended).await.expect("the client lives");
}

/// Waits until the session is lost and returns the error.
async fn lost(client: &Client) -> Error {
    let mut state = client.watch_state();
    let lost = state.wait_for(|state| matches!(state, ConnectionState::Lost { .. }));
    match &*soon("the session is given up", lost).await.expect("the client lives") {
        ConnectionState::Lost { error } => error.clone(),
        state => panic!("{state:?}"),
    }
}

fn is_made(path: &Path) -> bool {
    path.exists()
}

#[test]
fn remote_exec_process_recovers_after_transport_disconnect() {
    bounded(async {
        let server = reachable().start();
        let proxy = Proxy::start(server.address());
        let client = client_of().connect(&proxy.through(server.url())).await.expect("connect");
        let (gate, made) = (server.dir().join("gate"), server.dir().join("made"));
        let script = format!(
            "echo $$; mkfifo {gate}; : >{gate}.made; read x <{gate}; echo during 1; echo during 2 >&2; : >{made}; \
             read line; echo \"got $line\"; read line; exit 7",
            gate = gate.display(),
            made = made.display()
        );
        let process = client.start(sh(&script)).await.expect("start");
        let pid = process.pid().expect("a pid");
        let mut events = process.events();
        assert_eq!(spell(&mut events).await, format!("1 stdout {pid}\n"));
        until("the gate", async || is_made(&server.dir().join("gate.made"))).await;

        // One read is waiting on the old link when it breaks.
        let reader = process.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { reader.read(1, None, Duration::from_secs(600)).await });
        proxy.shut();
        recovering(&client).await;
        fs::write(&gate, "\n").expect("open the gate");
        until("output during the outage", async || is_made(&made)).await;
        // A write and a list that begin without a link wait for the next one.
        let writer = process.clone();
        let written = async { soon("the write", writer.write("over\n")).await.expect("write") };
        let listed = async { soon("the list", client.list(Scope::Session)).await.expect("list") };
        let mended = async {
            tokio::task::yield_now().await;
            assert!(matches!(client.state(), ConnectionState::Recovering { .. }));
            proxy.open();
        };
        let (status, listed, ()) = tokio::join!(written, listed, mended);
        assert_eq!((status, listed[0].pid), (WriteStatus::Accepted, Some(pid)), "the same process");
        connected(&client).await;

        let read = soon("the read", tasks.join_next()).await.expect("one task").expect("no panic").expect("read");
        assert!(read.chunks.iter().any(|chunk| chunk.bytes == "during 1\n"), "{read:?}");
        assert_eq!(read.failure, None);
        let told = stories(&mut events, 3).await;
        assert_eq!(told, ["2 stdout during 1\n", "3 stderr during 2\n", "4 stdout got over\n"]);
        assert_eq!(process.write("\n").await.expect("write"), WriteStatus::Accepted);
        assert_eq!(stories(&mut events, 3).await, ["5 exited 7", "6 closed", "end"]);
        assert_eq!(process.pid(), Some(pid));
        assert_eq!(proxy.links(), 2);
    });
}

#[test]
fn calls_in_flight_end_in_an_answer_or_say_that_the_outcome_is_unknown() {
    bounded(async {
        let server = reachable().start();
        let proxy = Proxy::start(server.address());
        let client = client_of().connect(&proxy.through(server.url())).await.expect("connect");
        let process = client.start(sh("exec cat")).await.expect("start");
        let mut state = client.watch_state();
        for round in 0..10 {
            state.mark_unchanged();
            let process = process.clone();
            let calls = async {
                tokio::join!(
                    client.list(Scope::Session),
                    client.start(sh("exit 3").id(format!("p{round}"))),
                    process.write("x"),
                    process.signal("CONT"),
                )
            };
            let (answers, ()) = tokio::join!(soon("every call", calls), async { proxy.cut() });
            let (listed, started, written, signalled) = answers;
            listed.expect("asking twice is harmless");
            let exit = started.expect("a start happens once").wait().await.expect("it ends");
            assert_eq!(exit.code, 3);
            assert_eq!(written.expect("a write happens once"), WriteStatus::Accepted);
            if let Err(error) = signalled {
                assert_eq!(error.kind(), ErrorKind::UnknownOutcome, "{error}");
            }
            soon("the cut was noticed", state.changed()).await.expect("the client lives");
            connected(&client).await;
        }
        process.close_stdin().await.expect("close");
        assert_eq!(crate::tell(&process).await.stdout, b"x".repeat(10));
    });
}

#[test]
fn fail_fast_calls_do_not_wait_for_the_link() {
    bounded(async {
        let server = reachable().start();
        let proxy = Proxy::start(server.address());
        let builder = client_of().fail_fast(true);
        let client = builder.connect(&proxy.through(server.url())).await.expect("connect");
        let process = client.start(sh("read x; echo $x")).await.expect("start");
        proxy.shut();
        recovering(&client).await;
        for error in [
            soon("list", client.list(Scope::Session)).await.map(drop).expect_err("no link"),
            soon("start", client.start(sh("true"))).await.map(drop).expect_err("no link"),
            soon("terminate", process.terminate(None)).await.map(drop).expect_err("no link"),
            soon("write", process.write("lost\n")).await.map(drop).expect_err("no link"),
            soon("read", process.read(0, None, Duration::ZERO)).await.map(drop).expect_err("no link"),
        ] {
            assert_eq!(error.kind(), ErrorKind::Disconnected);
            assert!(error.to_string().starts_with("exec-server transport disconnected"), "{error}");
        }
        proxy.open();
        connected(&client).await;
        process.write("kept\n").await.expect("write");
        assert_eq!(crate::tell(&process).await.stdout, b"kept\n");
    });
}

/// Copies data through a process and counts the bytes that have come back.
async fn copy(process: exec_server_client::Process, data: Arc<Vec<u8>>, back: Arc<AtomicUsize>) -> Vec<u8> {
    let (mut stdin, mut stdout) = (process.stdin(), process.stdout());
    let there = async {
        tokio::io::copy(&mut &data[..], &mut stdin).await.expect("copy there");
        stdin.shutdown().await.expect("end of input");
    };
    let reading = async {
        let (mut all, mut piece) = (Vec::with_capacity(data.len()), vec![0; 64 << 10]);
        loop {
            match stdout.read(&mut piece).await.expect("copy back") {
                0 => return all,
                read => all.extend_from_slice(&piece[..read]),
            }
            back.store(all.len(), Ordering::Relaxed);
        }
    };
    tokio::join!(there, reading).1
}

#[test]
fn a_killed_server_that_is_started_again_loses_nothing_of_a_stream() {
    bounded(async {
        let mut server = TestServer::start();
        let client = client_of().connect(server.url()).await.expect("connect");
        let data = Arc::new(pattern(3, 24 << 20));
        let process = client.start(sh("cat; exit 3")).await.expect("start");
        let back = Arc::new(AtomicUsize::new(0));
        let mut copying = JoinSet::new();
        copying.spawn(copy(process.clone(), Arc::clone(&data), Arc::clone(&back)));
        for round in 1..=3 {
            until("bytes come back", async || back.load(Ordering::Relaxed) >= round * (5 << 20)).await;
            block_in_place(|| server.restart());
        }
        let copied = copying.join_next().await.expect("one task").expect("no panic");
        assert_same("what came back", &copied, &data);
        let exit = process.wait().await.expect("it ends");
        assert_eq!((exit.code, exit.cause), (3, Some(Cause::Exit)));
        client.end_session().await.expect("end the session");
    });
}

#[test]
fn a_process_that_ends_while_its_server_is_dead_is_told_in_full() {
    bounded(async {
        let mut server = TestServer::start();
        let client = client_of().connect(server.url()).await.expect("connect");
        let (gate, made) = (server.dir().join("gate"), server.dir().join("made"));
        let script = format!(
            "mkfifo {gate}; echo ready; read x <{gate}; seq 1 100000; : >{made}; exit 5",
            gate = gate.display(),
            made = made.display()
        );
        let process = client.start(sh(&script)).await.expect("start");
        let mut events = process.events();
        output_until(&mut events, "ready\n").await;
        block_in_place(|| server.kill());
        recovering(&client).await;
        fs::write(&gate, "\n").expect("open the gate");
        until("all of its output", async || is_made(&made)).await;
        block_in_place(|| server.restart());
        let told = follow(events).await;
        assert_eq!((told.stdout.len(), told.exit.code, told.exit.cause), (588_895, 5, Some(Cause::Exit)));
        client.end_session().await.expect("end the session");
    });
}

#[test]
fn a_server_that_is_gone_for_good_is_given_up_in_time() {
    bounded(async {
        let mut server = TestServer::start();
        let client = client_of().recover_for(Duration::from_secs(1)).connect(server.url()).await.expect("connect");
        let process = client.start(sh("echo said; exec cat")).await.expect("start");
        let mut events = process.events();
        output_until(&mut events, "said\n").await;
        let reader = process.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { reader.read(1, None, Duration::from_secs(600)).await });
        let begun = Instant::now();
        block_in_place(|| server.kill());
        // A write that begins now does not hang.
        let error = soon("the write", process.write("x")).await.expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
        let error = lost(&client).await;
        let after = begun.elapsed();
        assert!(after >= Duration::from_millis(500) && after < Duration::from_secs(5), "{after:?}");
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");

        // From now on all calls fail in the same way, with the message that older peers compare.
        match soon("the failure", events.next()).await {
            Some(Event::Failed(error)) => assert_eq!(error.kind(), ErrorKind::Disconnected),
            other => panic!("{other:?} where a failure is expected"),
        }
        assert!(events.next().await.is_none());
        let pending = tasks.join_next().await.expect("one task").expect("no panic").expect("an answer made here");
        let later = process.read(1, None, Duration::from_secs(600)).await.expect("an answer made here");
        for read in [pending, later] {
            assert!(read.closed && read.exited && read.exit_code.is_none() && read.chunks.is_empty());
            assert!(read.failure.is_some_and(|text| text.starts_with("exec-server transport disconnected")));
        }
        for error in [
            process.write("x").await.map(drop).expect_err("lost"),
            process.terminate(None).await.map(drop).expect_err("lost"),
            process.wait().await.map(drop).expect_err("lost"),
            client.list(Scope::Session).await.map(drop).expect_err("lost"),
        ] {
            assert!(error.to_string().starts_with("exec-server transport disconnected"), "{error}");
        }
    });
}

#[test]
fn a_session_that_a_new_server_does_not_know_is_lost() {
    bounded(async {
        let mut server = TestServer::builder().arg("--auth").arg("none").start();
        let client = client_of().connect(server.url()).await.expect("connect");
        let process = client.start(sh("exec cat")).await.expect("start");
        block_in_place(|| {
            server.kill();
            // Simulate a reboot: no process and no state survives.
            let left = server.processes();
            for pid in left.iter().filter_map(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok(); // It may have ended with a process killed before it.
            }
            testkit::wait_gone("holders and children", &left);
            fs::remove_dir_all(server.state_dir()).expect("lose the state");
            server.restart();
        });
        let error = lost(&client).await;
        assert_eq!(error.kind(), ErrorKind::SessionLost, "{error}");
        assert_eq!(process.wait().await.expect_err("lost").kind(), ErrorKind::SessionLost);
        assert_eq!(client.list(Scope::Session).await.expect_err("lost").kind(), ErrorKind::SessionLost);
    });
}

#[test]
fn a_wrong_token_is_refused_and_never_tried_again() {
    bounded(async {
        let server = reachable().start();
        let proxy = Proxy::start(server.address());
        let url = proxy.through(server.url());
        let (bare, _) = url.split_once("?token=").expect("the URL carries a token");
        let wrong = exec_server_client::Token::new("wrong").expect("a token");
        let builder = || client_of().connect_retry_for(Duration::from_secs(60));
        let refused = [
            soon("an answer", builder().connect(&format!("{bare}?token=wrong"))).await,
            soon("an answer", builder().token(wrong).connect(&url)).await,
            soon("an answer", builder().connect(bare)).await,
        ];
        for refused in refused {
            let error = refused.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
            assert!(!error.to_string().contains("wrong"), "{error}");
        }
        assert_eq!(proxy.links(), 3);
        client_of().connect(&url).await.expect("the right one").end_session().await.expect("end the session");
    });
}

#[test]
fn nobody_there_is_an_error_of_connecting() {
    bounded(async {
        let port = std::net::TcpListener::bind("127.0.0.1:0").expect("find a port").local_addr().expect("an address");
        let error = soon("an answer", client_of().connect(&format!("ws://{port}/"))).await.expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        assert!(error.to_string().contains(&port.to_string()), "{error}");
        let error = soon("an answer", client_of().connect("unix:///no/such/socket")).await.expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Connect, "{error}");
        let error = soon("an answer", client_of().connect("stdio:/no/such/program")).await.expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Spawn, "{error}");
        let error = soon("an answer", client_of().connect("stdio:false")).await.expect_err("nobody");
        assert_eq!(error.kind(), ErrorKind::Spawn, "{error}");
    });
}

#[test]
fn a_server_that_comes_late_is_waited_for_when_that_is_asked_for() {
    bounded(async {
        let mut server = TestServer::start();
        let url = server.url().to_owned();
        block_in_place(|| server.kill());
        let waiting = client_of().connect_retry_for(Duration::from_secs(60)).connect(&url);
        let (client, ()) = tokio::join!(waiting, async { block_in_place(|| server.restart()) });
        let client = client.expect("connect at last");
        let error = client.start(crate::sh("x").cwd("/no/such")).await.expect_err("refused");
        assert_eq!(error.server_kind(), Some(Kind::CwdNotFound));
    });
}
