//! The yardstick for a distant server: a tiny program that sends zeros or echoes bytes over plain TCP.
//!
//! The first nine bytes of a connection are an order: a letter and a number of bytes. Ends with [`PlainServer::stop`].

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use super::baselines;
use crate::prelude::*;

/// The size of one write.
const BLOCK: usize = 64 << 10;

/// Longer than any wait for a byte.
const PATIENCE: Duration = Duration::from_secs(30);

/// Orders of a client.
const ZEROS: u8 = b'z';
const ECHO: u8 = b'e';

/// A server that listens. Each connection has a thread, which ends with it.
pub(super) struct PlainServer {
    pub(super) address: SocketAddr,
    is_over: Arc<AtomicBool>,
    acceptor: JoinHandle<()>,
}

impl PlainServer {
    /// Takes a listener that its caller has bound in the network namespace of the server.
    pub(super) fn start(listener: TcpListener) -> Result<Self> {
        let address = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let for_acceptor = Arc::clone(&is_over);
        let acceptor = thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if for_acceptor.load(Ordering::Acquire) {
                    return;
                }
                // An error is the end of the client, which reports what it misses.
                thread::spawn(move || serve(stream).ok());
            }
        });
        Ok(Self { address, is_over, acceptor })
    }

    /// Stops listening. Must be called where the address can be reached.
    pub(super) fn stop(self) -> Result<()> {
        self.is_over.store(true, Ordering::Release);
        TcpStream::connect(self.address).context("wake the plain server")?;
        ensure!(self.acceptor.join().is_ok(), "the plain server panicked");
        Ok(())
    }

    fn order(&self, letter: u8, bytes: u64) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address).context("connect to the plain server")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[&[letter][..], &bytes.to_le_bytes()].concat())?;
        Ok(stream)
    }

    /// MB/s of this many zeros over a new connection, with the time to connect.
    pub(super) fn zeros(&self, bytes: u64, is_first: bool) -> Result<f64> {
        let begun = Instant::now();
        let seen = baselines::drain(self.order(ZEROS, bytes)?, is_first)?;
        ensure!(seen == bytes, "{seen} of {bytes} bytes over plain TCP");
        Ok(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64())
    }

    /// Microseconds of each of `count` echoes of a byte, while another connection is read as fast as it can send. It begins `ramp` earlier.
    pub(super) fn echoes_beside_flood(&self, ramp: Duration, count: u32) -> Result<Vec<f64>> {
        let flood = self.order(ZEROS, u64::MAX)?;
        let mut echo = self.order(ECHO, 0)?;
        thread::scope(|scope| {
            let reader = flood.try_clone()?;
            // Ends with the shutdown below.
            scope.spawn(move || io::copy(&mut &reader, &mut io::sink()).ok());
            thread::sleep(ramp);
            let times = micros(count, || {
                echo.write_all(b"x")?;
                Ok(echo.read_exact(&mut [0])?)
            });
            flood.shutdown(std::net::Shutdown::Both)?;
            times
        })
    }
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut letter, mut number) = ([0], [0; 8]);
    stream.read_exact(&mut letter)?;
    stream.read_exact(&mut number)?;
    if letter == [ECHO] {
        let mut reader = stream.try_clone()?;
        return io::copy(&mut reader, &mut stream).map(drop);
    }
    let zeros = vec![0; BLOCK];
    let mut left = u64::from_le_bytes(number);
    while left > 0 {
        let now = left.min(BLOCK as u64);
        stream.write_all(&zeros[..now as usize])?;
        left -= now;
    }
    Ok(())
}
