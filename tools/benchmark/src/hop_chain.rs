//! The lower bound for an echo: the same hops as ours, without any work in between.
//!
//! ```text
//! this process ◀─ TCP ─▶ relay ◀─ socket pair ─▶ relay ◀─ pipes or a terminal ─▶ cat
//! ```
//! A server and a holder that only forward bytes could not be faster. Each relay is a process that waits, reads and writes. The last relay
//! also reports that it has written a byte, as a holder does.

use std::{
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    process::Child,
};

use rustix::{
    event::epoll,
    net::{AddressFamily, SocketFlags, SocketType},
};

use super::baselines::{self, TerminalProgram};
use crate::prelude::*;
use exec_server_harness::records;

/// Comes back before the echo: the byte was written to `cat`.
const ACCEPTED: u8 = 0x06;

/// The connection between the last relay and `cat`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ChainEnd {
    Pipe,
    Terminal,
}

/// A running chain, and our end of it.
pub(super) struct RelayChain {
    first: Child,
    socket: TcpStream,
}

impl RelayChain {
    pub(super) fn start(end: ChainEnd) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let (theirs, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        theirs.set_nodelay(true)?;
        let first = relay(OwnedFd::from(theirs), 1, end)?;
        let chain = Self { first, socket };
        // The whole chain is up once a byte has come back.
        chain.echo(0)?;
        Ok(chain)
    }

    pub(super) fn echo(&self, byte: u8) -> Result<f64> {
        baselines::exchange(&self.socket, &self.socket, byte, &[ACCEPTED, byte])
    }
}

impl Drop for RelayChain {
    fn drop(&mut self) {
        self.socket.shutdown(std::net::Shutdown::Both).ok(); // Each relay ends when the one before it does.
        self.first.wait().ok();
    }
}

fn relay(input: OwnedFd, more: u32, end: ChainEnd) -> Result<Child> {
    let end = if end == ChainEnd::Pipe { "pipe" } else { "terminal" };
    let mut command = Command::new(records::program()?);
    command.args(["hop", &more.to_string(), end]);
    command.stdin(input).stdout(Stdio::null()).spawn().context("start a relay")
}

/// Runs a relay between its stdin, which is a socket, and `more` further relays or the end.
pub(super) fn hop(more: u32, end: ChainEnd) -> Result<()> {
    let before = std::io::stdin().as_fd().try_clone_to_owned()?;
    if more > 0 {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut next = relay(theirs, more - 1, end)?;
        hand_on(&before, &ours, &ours, &[])?;
        drop(ours);
        next.wait()?;
        return Ok(());
    }
    let mut cat = Command::new("/bin/cat");
    match end {
        ChainEnd::Terminal => {
            let terminal = TerminalProgram::start(cat)?;
            hand_on(&before, &terminal.master, &terminal.master, &[ACCEPTED])
        }
        ChainEnd::Pipe => {
            let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let (stdin, stdout) = (cat.stdin.take().context("a pipe")?, cat.stdout.take().context("a pipe")?);
            hand_on(&before, &stdin, &stdout, &[ACCEPTED])?;
            drop(stdin);
            cat.wait()?;
            Ok(())
        }
    }
}

/// Forwards bytes in both directions until the side before has ended. Sends `accepted` back for the bytes it has forwarded.
fn hand_on(before: impl AsFd, to: impl AsFd, from: impl AsFd, accepted: &[u8]) -> Result<()> {
    const BEFORE: u64 = 0;
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&watch, &before, epoll::EventData::new_u64(BEFORE), epoll::EventFlags::IN)?;
    epoll::add(&watch, &from, epoll::EventData::new_u64(BEFORE + 1), epoll::EventFlags::IN)?;
    let mut buffer = [0; 4096];
    loop {
        let mut space = [std::mem::MaybeUninit::uninit(); 2];
        let (ready, _) = epoll::wait(&watch, &mut space, None)?;
        for event in ready {
            if event.data.u64() == BEFORE {
                match rustix::io::read(&before, &mut buffer)? {
                    0 => return Ok(()),
                    count => rustix::io::write(&to, &buffer[..count])?,
                };
                if !accepted.is_empty() {
                    rustix::io::write(&before, accepted)?;
                }
            } else {
                let count = rustix::io::read(&from, &mut buffer)?;
                rustix::io::write(&before, &buffer[..count])?;
            }
        }
    }
}
