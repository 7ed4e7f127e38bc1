//! Every fault against a real echo server: its effect on the bytes, and that the same seed repeats it at the same
//! bytes.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test of throttles measures the real time; helpers of tests may panic"
)]

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use exec_server_chaos::{Event, Injected, Plan, Proxy, Random, Shape, Way};

/// Longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts an echo server that runs until the test program ends.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                let mut writer = stream.try_clone().unwrap();
                std::io::copy(&mut stream, &mut writer).ok();
                writer.shutdown(Shutdown::Write).ok();
            });
        }
    });
    address
}

fn bytes(count: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    (0..count).map(|_| random.next() as u8).collect()
}

/// How the client's reading side ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Fin,
    Rst,
    Silence,
}

/// Sends all bytes, closes the sending side and reads until the end.
fn send(proxy: &Proxy, bytes: &[u8], silence: Duration) -> (Vec<u8>, End) {
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(silence)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let all = bytes.to_vec();
    let writing = thread::spawn(move || {
        // Errors are expected: after a cut, the rest cannot be sent.
        writer.write_all(&all).ok();
        writer.shutdown(Shutdown::Write).ok();
    });
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break End::Fin,
            Ok(count) => got.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break End::Silence,
            Err(_) => break End::Rst,
        }
    };
    drop(stream);
    writing.join().unwrap();
    (got, end)
}

fn through(plan: Plan, sent: &[u8]) -> (Vec<u8>, End, Vec<Injected>) {
    let proxy = Proxy::start(echo(), 1, move |_| plan.clone()).unwrap();
    let (got, end) = send(&proxy, sent, PATIENCE);
    (got, end, proxy.injected())
}

#[test]
fn a_connection_without_a_plan_is_unchanged() {
    let sent = bytes(300_000);
    assert_eq!(through(Plan::default(), &sent), (sent, End::Fin, vec![]));
}

#[test]
fn a_cut_happens_at_its_byte_in_either_direction() {
    let sent = bytes(200_000);
    for at in [0, 1, 77_777, 200_000] {
        for plan in [Plan::default().up(at, Event::Fin), Plan::default().down(at, Event::Fin)] {
            let (got, end, injected) = through(plan.clone(), &sent);
            assert_eq!((end, injected.len()), (End::Fin, 1), "{plan:?}");
            // The bytes that the client sent before the cut are echoed only if the echo was faster than the cut.
            assert!(got.len() as u64 <= at && sent.starts_with(&got), "{plan:?}: {} bytes", got.len());
            if injected[0].way == Way::Down {
                assert_eq!(got.len() as u64, at, "{plan:?}");
            }
        }
    }
}

#[test]
fn a_reset_is_a_reset() {
    let (got, end, _) = through(Plan::default().down(1000, Event::Rst), &bytes(100_000));
    assert!(got.len() <= 1000);
    assert_eq!(end, End::Rst);
}

#[test]
fn a_half_close_ends_one_direction_and_leaves_the_other() {
    let sent = bytes(50_000);
    let (got, end, _) = through(Plan::default().up(20_000, Event::HalfClose), &sent);
    assert_eq!((got, end), (sent[..20_000].to_vec(), End::Fin));
}

#[test]
fn a_blackhole_discards_bytes_and_closes_nothing() {
    let sent = bytes(50_000);
    for plan in [
        Plan::default().up(10_000, Event::Blackhole),
        Plan::default().down(10_000, Event::Blackhole),
        Plan::default().down(10_000, Event::BlackholeBoth),
    ] {
        let shown = format!("{plan:?}");
        let proxy = Proxy::start(echo(), 1, move |_| plan.clone()).unwrap();
        let (got, end) = send(&proxy, &sent, Duration::from_millis(300));
        assert_eq!((got, end), (sent[..10_000].to_vec(), End::Silence), "{shown}");
    }
}

#[test]
fn open_connections_can_be_blackholed_on_request() {
    let proxy = Proxy::start(echo(), 1, |_| Plan::default()).unwrap();
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    let mut answer = [0; 4];
    stream.write_all(b"ping").unwrap();
    stream.read_exact(&mut answer).unwrap();
    proxy.blackhole(&[Way::Up, Way::Down]);
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    stream.write_all(b"ping").unwrap();
    assert!(stream.read(&mut answer).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    // A later connection is not affected.
    assert_eq!(send(&proxy, b"later", PATIENCE), (b"later".to_vec(), End::Fin));
    proxy.cut(Event::Fin);
    assert_eq!(stream.read(&mut answer).unwrap(), 0);
}

#[test]
fn damage_hits_the_byte_it_names_and_no_other() {
    let sent = bytes(100_000);
    let plan = Plan::default()
        .up(70_000, Event::Flip { bit: 3 })
        .down(80_000, Event::Duplicate { bytes: 500 })
        .down(90_000, Event::Truncate { bytes: 700 });
    let mut expected = sent.clone();
    expected[70_000] ^= 8;
    expected.drain(90_000..90_700);
    let again = expected[79_500..80_000].to_vec();
    expected.splice(80_000..80_000, again);
    let (got, end, injected) = through(plan, &sent);
    assert!(got == expected, "{} bytes, expected {}", got.len(), expected.len());
    assert_eq!((end, injected.len()), (End::Fin, 3));
}

#[test]
fn shapes_cost_time_and_change_no_byte() {
    let sent = bytes(60_000);
    let shape = Shape { slice: 7, jitter: Duration::from_micros(300), ..Shape::default() };
    assert_eq!(through(Plan::shaped(shape), &sent), (sent.clone(), End::Fin, vec![]));
    let mut slow = Plan::default();
    slow.down_shape.throttle = 100_000;
    let begun = Instant::now();
    assert_eq!(through(slow, &sent).0, sent);
    assert!(begun.elapsed() >= Duration::from_millis(590), "60 kB at 100 kB/s took {:?}", begun.elapsed());
    let late = Plan::shaped(Shape { delay: Duration::from_millis(100), ..Shape::default() });
    let begun = Instant::now();
    assert_eq!(through(late, b"x").0, b"x");
    assert!(begun.elapsed() >= Duration::from_millis(200));
}

#[test]
fn a_latency_delays_every_byte_and_keeps_the_rate() {
    // 512 reads or more. If each waited for the one before it, they would take 51 s.
    let sent = vec![7; 512 * (64 << 10)];
    let far = Plan::shaped(Shape { latency: Duration::from_millis(100), ..Shape::default() });
    let begun = Instant::now();
    let (got, end, _) = through(far.clone(), &sent);
    let took = begun.elapsed();
    assert!(got == sent && end == End::Fin, "{} bytes, {end:?}", got.len());
    assert!(took >= Duration::from_millis(200), "{took:?}");
    assert!(took < 2 * PATIENCE, "each read has waited for the one before it: {took:?}");
    // Events stay at their bytes.
    let (got, end, injected) = through(far.down(5000, Event::Fin), &sent);
    assert_eq!((got.len(), end, injected.len()), (5000, End::Fin, 1));
}

#[test]
fn a_disarmed_proxy_does_nothing() {
    let sent = bytes(10_000);
    let proxy = Proxy::start(echo(), 1, |_| Plan::default().down(5000, Event::Fin)).unwrap();
    proxy.disarm();
    assert_eq!(send(&proxy, &sent, PATIENCE), (sent, End::Fin));
    assert_eq!(proxy.count(), 0);
}

/// Injects damage and a cut in the direction of the client, into each of twenty connections.
fn twenty(seed: u64) -> (Vec<Vec<Injected>>, Vec<Vec<u8>>) {
    let sent = bytes(40_000);
    let proxy = Proxy::start(echo(), seed, |random| {
        let mut plan = Plan::shaped(Shape { slice: 3000, ..Shape::default() });
        for _ in 0..5 {
            plan = plan.down(random.between(0, 30_000), Event::any_damage(random, 100));
        }
        plan.down(random.between(30_000, 39_000), Event::any_cut(random))
    })
    .unwrap();
    let got = (0..20).map(|_| send(&proxy, &sent, PATIENCE).0).collect();
    let all = proxy.injected();
    let of = |number: u64| all.iter().copied().filter(|fault| fault.connection == number).collect();
    ((0..20).map(of).collect(), got)
}

#[test]
fn the_same_seed_does_the_same_to_the_same_bytes() {
    let (first, one) = twenty(42);
    let (second, two) = twenty(42);
    assert_eq!(first, second);
    assert!(first.iter().all(|faults| faults.len() == 6), "{first:?}");
    for ((faults, one), two) in first.iter().zip(&one).zip(&two) {
        // The kernel decides how many bytes in transit an RST destroys. An orderly end loses nothing.
        let lossy = faults.iter().any(|fault| fault.event == Event::Rst);
        assert!(if lossy { one.starts_with(two) || two.starts_with(one) } else { one == two }, "{faults:?}");
    }
    assert_ne!(first, twenty(43).0);
}
