//! Standard input and output as a stream, without a blocking thread if the kernel can report readiness.
//!
//! `O_NONBLOCK` belongs to the open file description, which the parent and other programs may share, so it is never set
//! there. Pipes and terminals are reopened through `/proc/self/fd`, which creates a separate open file description.
//! Sockets are used with `MSG_DONTWAIT`. All other files are left to Tokio's blocking thread.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll, ready},
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::retry_on_intr,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags},
};
use tokio::{
    io::{
        AsyncRead, AsyncWrite, Interest, ReadBuf,
        unix::{AsyncFd, AsyncFdReadyGuard},
    },
    task::coop,
};

use crate::{ByteStream, sys};

/// Room for one read: 64 KiB, the capacity of a pipe. It is zeroed each time, so a larger one would only cost more.
const READ_BYTES: usize = 64 * 1024;

/// Creates a stream from standard input and output.
///
/// Call it inside a Tokio runtime. Fds 0 and 1 stay open and keep their flags.
pub fn stdio() -> ByteStream {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let mut stream = ByteStream::new(tokio::io::stdin(), tokio::io::stdout());
    // An fd that cannot be polled, such as a regular file or a device, stays with Tokio's blocking thread.
    if let Ok(input) = StdioDescriptor::open(stdin.as_fd(), Interest::READABLE) {
        stream.reader = Box::new(input);
    }
    if let Ok(output) = StdioDescriptor::open(stdout.as_fd(), Interest::WRITABLE) {
        stream.writer = Box::new(output);
    }
    stream
}

/// An fd that belongs to us and on which no call blocks.
pub(crate) struct StdioDescriptor {
    fd: AsyncFd<OwnedFd>,
    /// A socket, whose open file description may be blocking. Other fds were reopened as nonblocking.
    is_socket: bool,
    /// A read has returned `WouldBlock`. Until then, reads do not wait for readiness: for a FIFO whose writers all left
    /// before we opened it, the kernel never reports the end.
    has_blocked: bool,
}

impl StdioDescriptor {
    /// `interest`: the only direction in which the descriptor will be used.
    pub(crate) fn open(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
        let is_socket = kind == FileType::Socket;
        let fd = match kind {
            FileType::Socket => fd.try_clone_to_owned()?,
            FileType::Fifo => reopen(fd, interest)?,
            FileType::CharacterDevice if rustix::termios::isatty(fd) => reopen(fd, interest)?,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self { fd: sys::register(fd, interest)?, is_socket, has_blocked: false })
    }

    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let read = retry_on_intr(|| {
            if self.is_socket {
                rustix::net::recv(&self.fd, &mut *buf, RecvFlags::DONTWAIT).map(|(count, _)| count)
            } else {
                rustix::io::read(&self.fd, &mut *buf)
            }
        });
        Ok(read?)
    }

    fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(buf)])
    }

    /// Waits until a write may succeed.
    pub(crate) async fn writable(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.fd.writable().await
    }

    pub(crate) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = retry_on_intr(|| {
            if self.is_socket {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                rustix::net::sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), flags)
            } else {
                rustix::io::writev(&self.fd, slices)
            }
        });
        Ok(written?)
    }
}

fn reopen(fd: BorrowedFd<'_>, interest: Interest) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    let access = if interest.is_readable() { OFlags::RDONLY } else { OFlags::WRONLY };
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

impl AsyncRead for StdioDescriptor {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.has_blocked {
            // Use the task's coop budget, as `poll_read_ready` does. Otherwise a fast writer could starve other tasks.
            let coop = ready!(coop::poll_proceed(cx));
            match this.try_read(room(buf)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => this.has_blocked = true,
                result => {
                    coop.made_progress();
                    return Poll::Ready(result.map(|count| buf.advance(count)));
                }
            }
        }
        loop {
            let mut ready = ready!(this.fd.poll_read_ready(cx))?;
            let unfilled = room(buf);
            if let Ok(result) = ready.try_io(|_| this.try_read(unfilled)) {
                return Poll::Ready(result.map(|count| buf.advance(count)));
            }
        }
    }
}

impl AsyncWrite for StdioDescriptor {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.fd.poll_write_ready(cx))?;
            if let Ok(result) = ready.try_io(|_| self.try_write(buf)) {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Does nothing: fd 1 stays open, and its open file may be shared.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The unfilled part of the buffer, at most [`READ_BYTES`] of it.
fn room<'a>(buf: &'a mut ReadBuf<'_>) -> &'a mut [u8] {
    buf.initialize_unfilled_to(buf.remaining().min(READ_BYTES))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::{net, pipe};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn is_nonblocking(fd: impl AsFd) -> bool {
        rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK)
    }

    /// Sends 3 MB from `near` to `far`.
    async fn check_transfer(near: OwnedFd, far: OwnedFd) {
        let mut output = StdioDescriptor::open(near.as_fd(), Interest::WRITABLE).unwrap();
        let mut input = StdioDescriptor::open(far.as_fd(), Interest::READABLE).unwrap();
        assert!(!is_nonblocking(&near) && !is_nonblocking(&far), "the shared open files keep their flags");
        let sent: Vec<u8> = (0..3_000_000).map(|i| (i % 251) as u8).collect();
        let expected = sent.clone();
        // Run both ends concurrently: neither a pipe nor a socket can hold all bytes.
        let (output, received) = tokio::join!(
            async move {
                output.write_all(&sent).await.unwrap();
                output
            },
            async {
                let mut received = vec![0; expected.len()];
                input.read_exact(&mut received).await.unwrap();
                received
            }
        );
        assert!(received == expected);
        drop((output, near));
        assert_eq!(input.read(&mut [0; 8]).await.unwrap(), 0, "EOF comes when every writer has closed");
    }

    #[tokio::test]
    async fn pipes_are_read_and_written_without_touching_their_flags() {
        let (far, near) = pipe::pipe_with(pipe::PipeFlags::CLOEXEC).unwrap();
        check_transfer(near, far).await;
    }

    #[tokio::test]
    async fn sockets_are_read_and_written_without_touching_their_flags() {
        let kind = net::SocketType::STREAM;
        let (near, far) = net::socketpair(net::AddressFamily::UNIX, kind, net::SocketFlags::CLOEXEC, None).unwrap();
        check_transfer(near, far).await;
    }

    #[tokio::test]
    async fn a_pipe_whose_writer_closed_before_the_open_yields_its_bytes_and_then_eof() {
        let (far, near) = pipe::pipe_with(pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::write(&near, b"last").unwrap();
        drop(near);
        let mut received = Vec::new();
        StdioDescriptor::open(far.as_fd(), Interest::READABLE).unwrap().read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"last");
    }

    #[tokio::test]
    async fn a_named_fifo_whose_writer_closed_before_the_open_yields_its_bytes_and_then_eof() {
        let path = std::env::temp_dir().join(format!("exec-server-rpc-stdin-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        // `far` keeps the bytes alive. `StdioDescriptor::open` opens the FIFO again.
        let far = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        let near = rustix::fs::open(&path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        std::fs::remove_file(&path).unwrap();
        let (far, near) = (far.unwrap(), near.unwrap());
        rustix::io::write(&near, b"last").unwrap();
        drop(near);
        let mut input = StdioDescriptor::open(far.as_fd(), Interest::READABLE).unwrap();
        let mut received = Vec::new();
        let reading = input.read_to_end(&mut received);
        tokio::time::timeout(Duration::from_secs(10), reading).await.expect("EOF is reported").unwrap();
        assert_eq!(received, b"last");
    }

    #[tokio::test]
    async fn a_terminal_is_read_and_written_without_touching_its_flags() {
        use rustix::pty;
        let flags = pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY | pty::OpenptFlags::CLOEXEC;
        let master = pty::openpt(flags).unwrap();
        pty::unlockpt(&master).unwrap();
        let slave = pty::ioctl_tiocgptpeer(&master, flags).unwrap();
        let mut input = StdioDescriptor::open(slave.as_fd(), Interest::READABLE).unwrap();
        let mut output = StdioDescriptor::open(slave.as_fd(), Interest::WRITABLE).unwrap();
        assert!(!is_nonblocking(&slave));
        rustix::io::write(&master, b"typed\n").unwrap();
        let mut line = [0; 6];
        input.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"typed\n");
        output.write_all(b"shown").await.unwrap();
        let mut screen = [0; 64];
        let mut seen = Vec::new();
        while !seen.ends_with(b"shown") {
            let count = rustix::io::read(&master, &mut screen).unwrap();
            seen.extend_from_slice(&screen[..count]);
        }
    }

    #[tokio::test]
    async fn files_and_devices_are_left_to_the_blocking_thread() {
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(StdioDescriptor::open(file.as_fd(), Interest::READABLE).is_err());
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(StdioDescriptor::open(null.as_fd(), Interest::WRITABLE).is_err());
    }
}
