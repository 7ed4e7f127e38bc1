//! Control of a holder: adoption, epochs, secrets, invalid messages, and a controller that does not read.

use std::mem::MaybeUninit;

use rustix::fs::inotify;

use crate::{
    prelude::*,
    support::{SECRET, TestServer, TestSpawner, config, pair},
};
use exec_server_holder::{
    Holder,
    control::{self, ProcessInfo},
    spawner,
};

#[test]
fn new_controller_learns_everything_and_the_old_one_is_closed() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(StartSpec { meta: b"meta".to_vec(), pipe_stdin: true, ..spec() });
    let driver = rig.driver();
    driver.write_stdout(b"before").expect("room");
    rig.until(|rig| rig.server.log(slot).bytes == b"before");
    let mut old = rig.adopt(5);
    let welcome = rig.until_message(|message| matches!(message, FromHolder::Welcome { .. }));
    let FromHolder::Welcome { epoch, ttl_ms, info, .. } = welcome else { unreachable!("only `Welcome` fits") };
    assert_eq!((epoch, ttl_ms, info.as_slice()), (5, 1000, &b"record"[..]));
    let pid = driver.pid().as_raw_nonzero().get().unsigned_abs();
    let expected = ProcessInfo {
        slot,
        pid,
        stdin_open: true,
        running: true,
        cap_bytes: 16 * MIB,
        meta: b"meta".to_vec(),
        ..ProcessInfo::default()
    };
    assert_eq!(rig.server.inbox.pop_front(), Some(FromHolder::Process(Box::new(expected))));
    assert_eq!(rig.server.inbox.pop_front(), Some(FromHolder::Ready));
    // A child of another test may hold a copy of the holder's socket until its exec.
    rig.until(|_| {
        old.absorb();
        old.is_lost
    });
    driver.write_stdout(b" and after").expect("room");
    rig.until(|rig| rig.server.log(slot).bytes == b"before and after");
}

#[test]
fn stale_epoch_is_refused_with_the_current_one_and_a_wrong_secret_without_an_answer() {
    let mut rig = HolderRig::scripted();
    let connect = |secret, version, epoch| {
        let socket = spawner::connect(open_dir(&rig.dir).as_fd()).expect("the path socket");
        let mut server = TestServer::new(socket, open_dir(&rig.dir));
        server.send(&ToHolder::Hello { version, secret, epoch });
        server
    };
    let mut stale = connect(SECRET, control::VERSION, 1);
    let mut wrong = connect([8; 32], control::VERSION, 9);
    let mut newer = connect(SECRET, control::VERSION + 1, 9);
    rig.until(|_| {
        for server in [&mut stale, &mut wrong, &mut newer] {
            server.absorb();
        }
        stale.is_lost && wrong.is_lost && newer.is_lost
    });
    let refused = FromHolder::Refused { version: control::VERSION, epoch: 1 };
    for server in [&stale, &newer] {
        assert_eq!(server.inbox, std::slice::from_ref(&refused));
    }
    assert!(wrong.inbox.is_empty());
    assert_eq!(rig.request(|req| ToHolder::Forget { req, slot: 0 }), CommandStatus::UnknownProcess);
}

#[test]
fn holder_with_the_wrong_secret_does_not_take_the_socket() {
    let mut rig = HolderRig::scripted();
    let late = HolderConfig { secret: [8; 32], ..config(open_dir(&rig.dir)) };
    assert!(Holder::new(late, pair().1, TestSpawner::default(), 0).is_err(), "the session has another");
    assert_eq!(rig.files(), ["sock"]);
    rig.adopt_until_ready(2);
}

#[test]
fn socket_listens_before_it_has_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join(spawner::SECRET_NAME), SECRET).expect("the secret, as a server writes it");
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).expect("inotify");
    let kinds = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&watch, dir.path(), kinds).expect("a watch");
    let holder = Holder::new(config(open_dir(&dir)), pair().1, TestSpawner::default(), 0).expect("a holder");
    let mut space = [MaybeUninit::uninit(); 4096];
    let (mut events, mut seen) = (inotify::Reader::new(&watch, &mut space), Vec::new());
    while let Ok(event) = events.next() {
        if event.file_name().is_some_and(|name| name.to_bytes() == spawner::SOCKET_NAME.as_bytes()) {
            seen.push(event.events());
        }
    }
    assert_eq!(seen, [inotify::ReadFlags::MOVED_TO]);
    drop(holder);
}

#[test]
fn silent_connections_are_dropped_and_do_not_lock_others_out() {
    let mut rig = HolderRig::scripted();
    rig.server.send(&ToHolder::Detach { ttl_ms: control::TTL_NONE });
    let dir = open_dir(&rig.dir);
    let mut silent: Vec<TestServer> = (0..20)
        .map(|_| {
            rig.turn();
            TestServer::new(spawner::connect(dir.as_fd()).expect("the path socket"), open_dir(&rig.dir))
        })
        .collect();
    rig.adopt_until_ready(2);
    rig.now += 31_000_000_000;
    rig.until(|_| {
        silent.iter_mut().for_each(TestServer::absorb);
        silent.iter().all(|server| server.is_lost)
    });
}

#[test]
fn malformed_messages_end_only_their_connection() {
    let corpus: [&[u8]; 8] = [
        &[0],
        &[1],
        &[1, 0],
        &[1, 200, 1, 2, 3],
        &[9, 2],
        &[1, 2, 0],
        &[1, 255, 0, 0, 0, 0, 0, 0, 0, 0],
        &[1, 5, 0, 0, 0, 0, 255, 255, 255, 255],
    ];
    let mut rig = HolderRig::scripted();
    let slot = rig.start(spec());
    for (epoch, message) in (2..).zip(corpus) {
        control::send_raw(&rig.server.socket, message, &[]).expect("room");
        rig.until(|rig| rig.server.is_lost);
        rig.adopt_until_ready(epoch);
    }
    // A second `Hello` is not allowed on the controller's connection.
    rig.server.hello(99);
    rig.until(|rig| rig.server.is_lost);
    rig.adopt_until_ready(100);
    rig.driver().write_stdout(b"alive").expect("room");
    rig.until(|rig| rig.server.logs.get(&slot).is_some_and(|log| log.bytes == b"alive"));
}

#[test]
fn controller_that_does_not_read_stops_the_children_and_loses_nothing() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(StartSpec { cap_bytes: 1 << 40, ..spec() });
    let driver = rig.driver();
    // Requests whose answers are not read fill the socket and then the queue.
    rig.flood_with_requests();
    for _ in 0..1000 {
        rig.holder.turn(0);
    }
    let data = pattern(1000);
    driver.write_stdout(&data).expect("room");
    rig.holder.turn(0);
    assert_eq!(rig.status(slot).written, 0);
    // An idle holder must not spin: its epoll fd may report only events that the holder would handle.
    assert!(rig.is_idle());
    rig.until(|rig| rig.server.log(slot).bytes == data);
}

#[test]
fn adoption_of_more_than_the_socket_holds_is_complete() {
    let mut rig = HolderRig::scripted();
    for n in 0..300_u32 {
        assert_eq!(rig.start(StartSpec { meta: n.to_le_bytes().to_vec(), ..spec() }), n);
        rig.driver().write_stdout(&n.to_le_bytes()).expect("room");
    }
    rig.until(|rig| rig.server.logs.values().all(|log| log.bytes.len() == 4));
    drop(rig.adopt(2));
    let mut processes = 0;
    rig.until_message(|message| {
        processes += u32::from(matches!(message, FromHolder::Process(_)));
        matches!(message, FromHolder::Ready)
    });
    rig.server.absorb();
    assert_eq!(processes, 300);
    for (slot, log) in &rig.server.logs {
        assert_eq!(log.bytes, slot.to_le_bytes());
    }
    assert_eq!(rig.server.logs.len(), 300);
}

#[test]
fn fifty_controllers_in_the_middle_of_a_stream_lose_and_repeat_nothing() {
    let mut rig = HolderRig::scripted();
    let slot = rig.start(StartSpec { cap_bytes: 2 * MIB, ..spec() });
    let (driver, data, mut at) = (rig.driver(), pattern(40 << 20), 0);
    let mut epoch = 1;
    while at < data.len() {
        epoch += 1;
        let until = (at + (data.len() / 50)).min(data.len());
        rig.until(|rig| {
            while let Ok(n) = driver.write_stdout(&data[at..until.min(at + 50_000)])
                && n > 0
            {
                at += n;
            }
            // Every second controller releases what it reads. The others disappear with all segments lent to them.
            if epoch % 2 == 0 {
                rig.server.release(slot);
            }
            at == until
        });
        let old = rig.adopt(epoch);
        rig.server.resume(old);
        rig.until_message(|message| matches!(message, FromHolder::Ready));
        if epoch % 3 == 0 {
            rig.server.send(&ToHolder::Attach);
            rig.server.release(slot);
        }
    }
    driver.exit(0);
    driver.close_all();
    rig.until(|rig| {
        rig.server.release(slot);
        rig.server.log(slot).closed.is_some()
    });
    let log = rig.server.log(slot);
    assert!(epoch > 50);
    assert_eq!((log.closed, log.gap_bytes), (Some((data.len() as u64, 0)), 0));
    assert!(log.bytes == data);
}

#[test]
fn controller_that_stops_reading_during_its_adoption_is_given_up() {
    let mut rig = HolderRig::scripted();
    rig.server.send(&ToHolder::SetTtl { ttl_ms: control::TTL_NONE });
    for _ in 0..400 {
        rig.start(StartSpec { meta: vec![0; 1000], ..spec() });
    }
    drop(rig.adopt(2));
    for _ in 0..10 {
        rig.holder.turn(rig.now);
    }
    rig.now += 10_000_000_000;
    rig.holder.turn(rig.now);
    rig.until(|rig| rig.server.is_lost);
    assert!(!rig.server.inbox.contains(&FromHolder::Ready));
    rig.adopt_until_ready(3);
}
