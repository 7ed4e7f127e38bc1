//! F18: bits of the client's data are flipped, and bytes left out or repeated, at any byte from the request line on.
//!
//! The link has no checksums, so a changed letter inside a value is just another value, which cannot be detected. The run checks what is
//! promised: no panic, only valid messages in the answers, an end for every damaged connection, a close code if frames or messages are
//! broken, and unaffected neighbours. Neither the server nor `exec-server run`, which gets damaged answers, may hang or panic.

use std::{
    io::Write as _,
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Mutex,
};

use crate::prelude::*;
use exec_server_harness::environment::wait_child;

/// Concurrent damaged connections.
const AT_ONCE: u64 = 8;

/// A damaged connection must have ended by then, because its input has ended.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let wanted = setting.pick(400, 10_000, 1_000_000);
    let setup = Setup::new(&setting.binary)?.arg("--allow-host=127.0.0.1");
    let server = setup.start()?;
    let mut random = setting.random("F18");
    let proxy = Proxy::start(server.address.socket, random.next(), |random| {
        // The request, then frames of about 150 bytes. Nearly all of the damage hits the data after the request: after a hundred wrong
        // tokens from one address the server answers it later and later, which F24 tests.
        let byte = if random.one_in(64) { random.between(0, 200) } else { random.between(200, 1700) };
        Plan::default().up(byte, Event::any_damage(random, 40))
    })?;
    let (done, ends) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()));
    let over = AtomicBool::new(false);
    let mut neighbour = Neighbour::new(&server.address)?;
    let mut trips = Vec::new();
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| {
                    while done.fetch_add(1, Ordering::Relaxed) < wanted && !over.load(Ordering::Relaxed) {
                        let end = one(proxy.address(), &server.address);
                        over.fetch_or(end.is_err(), Ordering::Relaxed);
                        *ends.lock().expect("no panic under the lock").entry(end?).or_insert(0_u64) += 1;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        while lanes.iter().any(|lane| !lane.is_finished()) {
            trips.push(neighbour.round_trip().context("a neighbour")?);
            thread::sleep(Duration::from_millis(5));
        }
        lanes.into_iter().try_for_each(|lane| lane.join().expect("a lane does not panic"))
    })
    .with_context(|| format!("the server says: {}", setup.log_tail()))?;
    neighbour.end()?;
    let damaged = proxy.count();
    ensure!(damaged * 10 >= wanted * 9, "only {damaged} of {wanted} connections were damaged");
    let (answers, cut) = clients(setting, &server.address, &mut random)?;
    drop(proxy);
    server.stop()?;
    // Damaged connections may have left sessions with a process. They end by their time-to-live, or now.
    setup.ensure_no_panic()?;
    let ends = ends.into_inner().expect("no panic under the lock");
    let closed = |code: &str| ends.get(code).copied().unwrap_or_default();
    ensure!(
        closed("1002") + closed("1007") + closed("1009") > 0,
        "no damage was answered with a protocol error: {ends:?}"
    );
    let ends: Vec<_> = ends.iter().map(|(end, count)| format!("{end}:{count}")).collect();
    Figures::survived(damaged + answers)
        .times(&mut trips)
        .set("ends", ends.join(","))
        .set("damaged_answers", answers)
        .set("cut_after_damage", cut)
        .only_line()
}

/// One connection whose bytes are damaged on their way; returns how it ended.
fn one(proxy: SocketAddr, address: &ServerAddress) -> Result<String> {
    let mut stream = TcpStream::connect(proxy)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let begun = Instant::now();
    // If the server refuses early, the rest cannot be sent.
    stream.write_all(&session(address)).ok();
    stream.shutdown(Shutdown::Write).ok();
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        ensure!(begun.elapsed() < PATIENCE, "a damaged connection does not end: {error}");
        return Ok("reset".to_owned());
    }
    read(&answer).with_context(|| format!("answered: {}", String::from_utf8_lossy(&answer[..answer.len().min(600)])))
}

/// The client's data: the upgrade, a handshake, a short program, a few requests, and the end.
fn session(address: &ServerAddress) -> Vec<u8> {
    let target = address.url.split_once("://").map_or("", |(_, rest)| rest);
    let (host, path) = target.split_at(target.find('/').unwrap_or(target.len()));
    let mut out = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .into_bytes();
    let hello = json!({ "clientName": "damaged", "capabilities": { "ack": true, "gap": true }, "ttlMs": 1000 });
    let mut say = |message: Value| frame(&mut out, message.to_string().as_bytes());
    say(json!({ "id": 1, "method": "initialize", "params": hello }));
    say(json!({ "method": "initialized", "params": {} }));
    say(json!({ "id": 2, "method": "process/start", "params": wire::start("p", &["/bin/echo", "hello"]) }));
    for id in 3..10 {
        let params = json!({ "processId": "p", "afterSeq": 0, "waitMs": 0, "maxBytes": 1000 });
        say(json!({ "id": id, "method": "process/read", "params": params }));
        say(json!({ "method": "process/ack", "params": { "processId": "p", "seq": 1 } }));
    }
    say(json!({ "id": 10, "method": "session/end", "params": {} }));
    out
}

/// One masked text frame.
fn frame(out: &mut Vec<u8>, payload: &[u8]) {
    const MASK: [u8; 4] = [0x11, 0x22, 0x33, 0x44];
    out.push(0x81);
    match u8::try_from(payload.len()) {
        Ok(length @ 0..126) => out.push(0x80 | length),
        _ => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        }
    }
    out.extend_from_slice(&MASK);
    out.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

/// Parses an answer to its end: an HTTP error status, or complete frames with valid messages and possibly a close.
fn read(answer: &[u8]) -> Result<String> {
    if answer.is_empty() {
        return Ok("nothing".to_owned());
    }
    let head = answer.windows(4).position(|part| part == b"\r\n\r\n").context("no HTTP answer")?;
    let status = std::str::from_utf8(answer.get(9..12).context("no status")?)?;
    if status != "101" {
        // 503: an address with a hundred failures has few places left, and its connections evict each other.
        ensure!(status.starts_with('4') || status == "503", "status {status}");
        return Ok(format!("http-{status}"));
    }
    let mut rest = &answer[head + 4..];
    while let [first, second, tail @ ..] = rest {
        ensure!(second & 0x80 == 0, "a masked frame from the server");
        let (length, tail) = match second & 0x7f {
            126 => (usize::from(u16::from_be_bytes(tail.get(..2).context("a length")?.try_into()?)), &tail[2..]),
            127 => bail!("a frame that is far too long"),
            length => (usize::from(length), tail),
        };
        let payload = tail.get(..length).context("a frame that is cut short")?;
        rest = &tail[length..];
        match first {
            0x81 => {
                let message: Value = serde_json::from_slice(payload).context("a message that is no JSON")?;
                let whole = message.get("id").is_some() || message.get("method").is_some();
                ensure!(whole, "neither answer nor notification: {message}");
            }
            0x88 => {
                ensure!(rest.is_empty(), "something after the close");
                let code = payload.get(..2).map_or(1005, |code| u16::from_be_bytes([code[0], code[1]]));
                ensure!([1000, 1001, 1002, 1003, 1005, 1007, 1009].contains(&code), "closed with {code}");
                return Ok(code.to_string());
            }
            0x89 | 0x8a => {}
            other => bail!("a frame that begins with {other:#x}"),
        }
    }
    Ok("end".to_owned())
}

/// `exec-server run` with damaged answers: it may end in any way except a panic. A damaged length or number may leave it waiting forever,
/// as with any protocol on a link without checksums. Then the link is cut, and the client must recover with the next one.
fn clients(setting: &FaultSetting, address: &ServerAddress, random: &mut Random) -> Result<(u64, u64)> {
    let (mut damaged, mut cut) = (0, 0);
    for number in 0..setting.pick(6, 100, 5000) {
        let proxy = Proxy::start(address.socket, random.next(), |random| {
            Plan::default().down(random.between(0, 1500), Event::any_damage(random, 40))
        })?;
        let url = address.url_through(proxy.address());
        let mut child = parallel_runs::run(&setting.binary, &url)
            .args(["--", "/bin/sh", "-c", "echo one; echo two; exit 3"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut status = wait_child(&mut child, Duration::from_secs(1))?;
        if status.is_none() {
            cut += 1;
            proxy.disarm();
            proxy.cut(Event::Rst);
            status = wait_child(&mut child, Duration::from_secs(20))?;
        }
        damaged += proxy.count();
        let Some(status) = status else {
            child.kill()?;
            child.wait()?;
            bail!("`exec-server run` number {number} did not end after its damaged link was cut");
        };
        let mut output_text = String::new();
        child.stderr.take().context("a pipe")?.read_to_string(&mut output_text)?;
        ensure!(
            status.code().is_some_and(|code| code != 101) && !output_text.contains("panicked"),
            "{status}: {output_text}"
        );
    }
    Ok((damaged, cut))
}
