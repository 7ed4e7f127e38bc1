//! A seeded proxy between client and server that cuts each connection after a number of bytes drawn beforehand.
//!
//! Owns the cuts: after which byte, in which direction and how (FIN, RST, FIN inside a frame). Knows no message.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use anyhow::Result;

use crate::random::Random;

/// How a link ends.
#[derive(Clone, Copy)]
enum Cut {
    /// Both sides see an orderly end after the buffer that was under way.
    Fin,
    /// Both sides see a reset.
    Rst,
    /// Both sides see an orderly end in the middle of that buffer, so inside a frame.
    Inside,
}

/// When and how one connection is cut.
#[derive(Clone, Copy)]
pub(super) struct Fuse {
    /// Bytes that still pass, counted in the direction that burns.
    bytes: u64,
    to_client: bool,
    cut: Cut,
}

impl Fuse {
    /// A cut of a random kind after this many bytes in one direction.
    pub(super) fn random(random: &mut Random, bytes: u64, to_client: bool) -> Self {
        let cut = match random.between(0, 3) {
            0 => Cut::Fin,
            1 => Cut::Rst,
            _ => Cut::Inside,
        };
        Self { bytes, to_client, cut }
    }
}

/// Shared by the acceptor and the run.
struct State {
    armed: AtomicBool,
    cuts: AtomicU64,
}

/// The proxy; its threads end with their sockets.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    pub(super) fn start(upstream: SocketAddr, random: Random) -> Result<Self> {
        Self::with_fuses(upstream, random, fuse)
    }

    /// Each connection gets the fuse that is drawn for it.
    pub(super) fn with_fuses(upstream: SocketAddr, mut random: Random, fuse: fn(&mut Random) -> Fuse) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State { armed: AtomicBool::new(true), cuts: AtomicU64::new(0) });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let fuse = fuse(&mut random);
                // A server that does not listen at this moment is a refused connection to the client too.
                if let Ok(server) = TcpStream::connect(upstream) {
                    link(client, server, fuse, &shared).ok(); // A socket that died already is a cut.
                }
            }
        });
        Ok(Self { address, state })
    }

    /// Cuts so far.
    pub(super) fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::Relaxed)
    }

    /// From now on nothing is cut.
    pub(super) fn disarm(&self) {
        self.state.armed.store(false, Ordering::Relaxed);
    }
}

fn fuse(random: &mut Random) -> Fuse {
    // One cut in eight hits what the client sends: acknowledgements, starts, now and then the handshake.
    if random.one_in(8) {
        let bytes = random.between(100, 4000);
        return Fuse::random(random, bytes, false);
    }
    let bytes = random.between(64 << 10, 8 << 20);
    Fuse::random(random, bytes, true)
}

fn link(client: TcpStream, server: TcpStream, fuse: Fuse, state: &Arc<State>) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client, server) = (Arc::new(client), Arc::new(server));
    let down = Pipe { from: Arc::clone(&server), to: Arc::clone(&client), fuse: fuse.to_client.then_some(fuse) };
    let up = Pipe { from: client, to: server, fuse: (!fuse.to_client).then_some(fuse) };
    for pipe in [down, up] {
        let state = Arc::clone(state);
        thread::spawn(move || pipe.run(&state));
    }
    Ok(())
}

/// One direction of a link. Both directions hold both sockets; the last one to end closes them.
struct Pipe {
    from: Arc<TcpStream>,
    to: Arc<TcpStream>,
    fuse: Option<Fuse>,
}

impl Pipe {
    fn run(self, state: &State) {
        let mut buffer = vec![0; 64 << 10];
        let mut passed = 0_u64;
        loop {
            let count = match (&*self.from).read(&mut buffer) {
                Ok(count) if count > 0 => count,
                _ => break,
            };
            let burnt = self.fuse.filter(|fuse| passed + count as u64 > fuse.bytes);
            if let Some(fuse) = burnt.filter(|_| state.armed.load(Ordering::Relaxed)) {
                // Counted before the peers can notice, so that a run never sees a cut that is not counted.
                state.cuts.fetch_add(1, Ordering::Relaxed);
                return self.cut(fuse, &buffer[..count], passed);
            }
            if (&*self.to).write_all(&buffer[..count]).is_err() {
                break;
            }
            passed += count as u64;
        }
        // The end of one direction is passed on; the other may still have something to say.
        self.to.shutdown(Shutdown::Write).ok();
    }

    fn cut(&self, fuse: Fuse, buffer: &[u8], passed: u64) {
        let rest = match fuse.cut {
            Cut::Fin => buffer,
            Cut::Rst => &buffer[..0],
            Cut::Inside => &buffer[..usize::try_from(fuse.bytes - passed).unwrap_or(0)],
        };
        (&*self.to).write_all(rest).ok(); // The peer may have gone by itself.
        let how = match fuse.cut {
            // With a linger of zero the close sends a reset; ending the reads wakes the other direction to let go.
            Cut::Rst => {
                for socket in [&self.from, &self.to] {
                    rustix::net::sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO)).ok();
                }
                Shutdown::Read
            }
            Cut::Fin | Cut::Inside => Shutdown::Both,
        };
        for socket in [&self.from, &self.to] {
            socket.shutdown(how).ok();
        }
    }
}
