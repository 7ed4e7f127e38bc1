//! F24: 500 sockets that trickle, say nothing, or bring the wrong token, while a client works and others come.
//!
//! Who is inside must hardly notice, who comes with the right token must be let in soon, and afterwards descriptors and memory
//! are back where they were.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{Figures, Setting, figures::percentile, level::Level, slow::Neighbour};
use crate::{server::Setup, wire::Wire};

const SOCKETS: usize = 500;

/// Round trips of the client inside that are measured, before and in each round.
const CALLS: usize = 300;

/// Newcomers in a round.
const NEWCOMERS: usize = 10;

/// Sockets that are opened again in a tenth of a second. This is about places and patience; what the processor can bear is not.
const AGAIN: usize = 10;

/// What a newcomer may take; with every place taken by somebody silent it was ten seconds.
const SOON: Duration = Duration::from_secs(2);

/// Twice the time before, and this: two cores have the crowd to run as well.
const FLOOR_MS: f64 = 20.0;

pub(super) fn run(setting: &Setting) -> Result<Vec<Figures>> {
    let rounds = setting.pick(1, 3, 20);
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let mut inside = Neighbour::new(&server.address)?;
    let before = measure(&mut inside)?;
    let level = Level::of(server.pid());
    let (mut times, mut newcomers, mut worst, mut sockets) = (Vec::new(), Vec::new(), 0.0_f64, 0);
    for round in 0..rounds {
        let said = || format!("round {round}; the server says: {}", setup.log_tail());
        let crowd =
            Crowd { address: server.address.socket, is_over: AtomicBool::new(false), sockets: AtomicU64::new(0) };
        let measured = thread::scope(|scope| -> Result<Vec<f64>> {
            let threads =
                [scope.spawn(|| crowd.trickle()), scope.spawn(|| crowd.idle()), scope.spawn(|| crowd.guess())];
            let measured = (|| {
                crowd.wait_gathered()?;
                for _ in 0..NEWCOMERS {
                    let begun = Instant::now();
                    let (mut wire, _) = Wire::session(&server.address).context("a newcomer")?;
                    wire.call("session/end", &serde_json::json!({}))?;
                    ensure!(begun.elapsed() <= SOON, "a newcomer waited {:?}", begun.elapsed());
                    newcomers.push(begun.elapsed().as_secs_f64() * 1e3);
                }
                measure(&mut inside)
            })();
            crowd.is_over.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().expect("a crowd does not panic"));
            measured
        });
        let measured = measured.with_context(said)?;
        let p99 = percentile(&measured, 99);
        let limit = 2.0 * percentile(&before, 99) + FLOOR_MS;
        ensure!(p99 <= limit, "p99 of the client inside is {p99:.1} ms, promised {limit:.1} ms");
        worst = worst.max(p99);
        times.extend(measured);
        sockets += crowd.sockets.load(Ordering::Relaxed);
        level.wait_back().with_context(said)?;
    }
    inside.end()?;
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    setup.ensure_no_panic()?;
    newcomers.sort_by(f64::total_cmp);
    Ok(vec![
        Figures::default()
            .survived(sockets)
            .times(&mut times)
            .set("before_p99_ms", format!("{:.1}", percentile(&before, 99)))
            .set("worst_round_p99_ms", format!("{worst:.1}"))
            .set("newcomer_worst_ms", format!("{:.1}", newcomers.last().copied().unwrap_or_default())),
    ])
}

/// Round trips of the client inside, sorted, in milliseconds.
fn measure(inside: &mut Neighbour) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begun = Instant::now();
        inside.round_trip()?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Those outside: 500 sockets at a time, new ones for those that were closed.
struct Crowd {
    address: SocketAddr,
    is_over: AtomicBool,
    sockets: AtomicU64,
}

impl Crowd {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn connect(&self) -> Option<TcpStream> {
        let socket = TcpStream::connect_timeout(&self.address, Duration::from_secs(2)).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        self.sockets.fetch_add(1, Ordering::Relaxed);
        Some(socket)
    }

    /// All have come at least once.
    fn wait_gathered(&self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(20);
        while self.sockets.load(Ordering::Relaxed) < SOCKETS as u64 {
            ensure!(Instant::now() < until, "only {} sockets came together", self.sockets.load(Ordering::Relaxed));
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Heads that never end, a few bytes at a time; a socket that was closed is replaced.
    fn trickle(&self) {
        let mut sockets: Vec<Option<TcpStream>> = (0..SOCKETS * 6 / 10).map(|_| self.connect()).collect();
        while !self.is_over() {
            let mut again = AGAIN;
            for socket in &mut sockets {
                let is_open = socket.as_mut().is_some_and(|socket| socket.write_all(b"X-A: b\r\n").is_ok());
                if !is_open && again > 0 {
                    again -= 1;
                    *socket = self.connect();
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Nothing at all.
    fn idle(&self) {
        let sockets: Vec<_> = (0..SOCKETS * 3 / 10).map(|_| self.connect()).collect();
        while !self.is_over() {
            thread::sleep(Duration::from_millis(10));
        }
        drop(sockets);
    }

    /// Wrong tokens, one after the other, a hundred a second at most.
    fn guess(&self) {
        let request = format!(
            "GET /?token=wrong HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            self.address
        );
        while !self.is_over() {
            if let Some(mut socket) = self.connect() {
                socket.write_all(request.as_bytes()).ok(); // It may be closed already, which is an answer.
                socket.read_exact(&mut [0; 12]).ok(); // The status, or the end.
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
