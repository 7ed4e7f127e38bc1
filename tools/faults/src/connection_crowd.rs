//! F24: 500 sockets that trickle, send nothing, or use a wrong token, while a client works and others connect.
//!
//! The connected client must hardly notice, new clients with the right token must be accepted soon, and afterwards fds and memory must be
//! back at their old level.

use std::{
    io::Write as _,
    net::{SocketAddr, TcpStream},
};

use crate::prelude::*;

const SOCKETS: usize = 500;

/// Round trips of the connected client that are measured, before and in each round.
const CALLS: usize = 300;

/// New clients per round.
const NEWCOMERS: usize = 10;

/// Sockets that are reopened per tenth of a second. The run tests places and timeouts, not CPU load.
const AGAIN: usize = 10;

/// How long a new client may take. If silent peers could block every place, it would be ten seconds.
const SOON: Duration = Duration::from_secs(2);

/// The limit is twice the time before, plus this: two cores have to run the crowd as well.
const FLOOR_MS: f64 = 20.0;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let rounds = setting.pick(1, 3, 20);
    let (setup, server) = Setup::started(&setting.binary)?;
    let mut inside = Neighbour::new(&server.address)?;
    let before = measure(&mut inside)?;
    let level = ResourceLevel::of(server.pid());
    let (mut times, mut newcomers, mut worst, mut sockets) = (Vec::new(), Vec::new(), 0.0_f64, 0);
    for round in 0..rounds {
        let context = || format!("round {round}; the server says: {}", setup.log_tail());
        let crowd = ConnectionCrowd {
            address: server.address.socket,
            is_over: AtomicBool::new(false),
            sockets: AtomicU64::new(0),
        };
        let measured = thread::scope(|scope| -> Result<Vec<f64>> {
            let threads =
                [scope.spawn(|| crowd.trickle()), scope.spawn(|| crowd.idle()), scope.spawn(|| crowd.guess())];
            let measured = (|| {
                crowd.wait_gathered()?;
                for _ in 0..NEWCOMERS {
                    let begun = Instant::now();
                    let (mut wire, _) = WireClient::session(&server.address).context("a newcomer")?;
                    wire.end_session()?;
                    ensure!(begun.elapsed() <= SOON, "a newcomer waited {:?}", begun.elapsed());
                    newcomers.push(begun.elapsed().as_secs_f64() * 1e3);
                }
                measure(&mut inside)
            })();
            crowd.is_over.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().expect("a crowd does not panic"));
            measured
        });
        let measured = measured.with_context(context)?;
        let p99 = percentile(&measured, 99);
        let limit = 2.0 * percentile(&before, 99) + FLOOR_MS;
        ensure!(p99 <= limit, "p99 of the client inside is {p99:.1} ms, promised {limit:.1} ms");
        worst = worst.max(p99);
        times.extend(measured);
        sockets += crowd.sockets.load(Ordering::Relaxed);
        level.wait_back().with_context(context)?;
    }
    inside.end()?;
    setup.finish(server)?;
    Figures::survived(sockets)
        .times(&mut times)
        .set("before_p99_ms", format!("{:.1}", percentile(&before, 99)))
        .set("worst_round_p99_ms", format!("{worst:.1}"))
        .set("newcomer_worst_ms", format!("{:.1}", figures::worst(&newcomers)))
        .only_line()
}

/// Round trips of the connected client, sorted, in milliseconds.
fn measure(inside: &mut Neighbour) -> Result<Vec<f64>> {
    let mut times = (0..CALLS).map(|_| inside.round_trip()).collect::<Result<Vec<_>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The sockets outside: 500 at a time, with new ones for those that were closed.
struct ConnectionCrowd {
    address: SocketAddr,
    is_over: AtomicBool,
    sockets: AtomicU64,
}

impl ConnectionCrowd {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn connect(&self) -> Option<TcpStream> {
        let socket = TcpStream::connect_timeout(&self.address, Duration::from_secs(2)).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        self.sockets.fetch_add(1, Ordering::Relaxed);
        Some(socket)
    }

    /// Waits until all have connected at least once.
    fn wait_gathered(&self) -> Result<()> {
        let sockets = || self.sockets.load(Ordering::Relaxed);
        wait_until("all sockets have come together", Duration::from_secs(20), || sockets() >= SOCKETS as u64)
            .with_context(|| format!("there are {}", sockets()))
    }

    /// Request heads that never end, a few bytes at a time; a closed socket is replaced.
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

    /// Sockets that send nothing.
    fn idle(&self) {
        let sockets: Vec<_> = (0..SOCKETS * 3 / 10).map(|_| self.connect()).collect();
        while !self.is_over() {
            thread::sleep(Duration::from_millis(10));
        }
        drop(sockets);
    }

    /// Wrong tokens, one after the other, at most a hundred per second.
    fn guess(&self) {
        let request = format!(
            "GET /?token=wrong HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            self.address
        );
        while !self.is_over() {
            if let Some(mut socket) = self.connect() {
                socket.write_all(request.as_bytes()).ok(); // The server may have closed it already, which is also an answer.
                socket.read_exact(&mut [0; 12]).ok(); // The status, or EOF.
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}
