//! Standard output and standard error as destinations of batches of bytes.
//!
//! A batch is written with as few system calls as possible, and its pieces are not copied. Which thread writes it depends on the file
//! behind the fd:
//!
//! | file | who writes |
//! |---|---|
//! | pipe, terminal, socket | the task, without blocking; it waits until the kernel has room |
//! | `/dev/null` and its relatives, a file on tmpfs | the task: such a write waits for nothing but memory |
//! | any other file or device | a thread of the runtime's blocking pool, one hand-over per batch |
//!
//! With one hand-over per piece, two threads wake each other for each piece, and a file was up to eight times slower than a pipe.
//!
//! Failure paths: a write that fails may have written a part of the batch. A regular file is never reopened, so that stdout and stderr
//! that share an open file also share its offset.

use std::{
    io::{self, IoSlice},
    os::fd::BorrowedFd,
};

use bytes::{Buf as _, Bytes};
use rustix::{fs::FileType, io::retry_on_intr};
use tokio::{io::Interest, task};

use crate::stdio::StdioDescriptor;

/// Maximum number of pieces in one system call.
const SLICES: usize = 64;

/// The capacity to which a pipe grows once it was full: 1 MiB, the kernel's default limit for an unprivileged process. With the default of
/// 64 KiB, both ends of the pipe sleep and wake for every 64 KiB.
const PIPE_BYTES: usize = 1 << 20;

/// File system type of tmpfs, see statfs(2).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Major number of `/dev/null` and its relatives, and the minor numbers of those that never block: `null`, `zero` and `full`.
const MEMORY_DEVICES: u32 = 1;
const INSTANT_DEVICES: [u32; 3] = [3, 5, 7];

/// Fd 1 or 2.
pub struct StandardOutput {
    fd: BorrowedFd<'static>,
    method: WriteMethod,
}

/// See the module documentation.
enum WriteMethod {
    Polled {
        descriptor: StdioDescriptor,
        /// A pipe that was not enlarged yet.
        is_small_pipe: bool,
    },
    Direct,
    OtherThread,
}

impl StandardOutput {
    /// Call it inside a Tokio runtime. The fd stays open and keeps its flags.
    #[must_use]
    pub fn stdout() -> Self {
        Self::new(rustix::stdio::stdout())
    }

    /// Like [`StandardOutput::stdout`].
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(rustix::stdio::stderr())
    }

    fn new(fd: BorrowedFd<'static>) -> Self {
        let method = match StdioDescriptor::open(fd, Interest::WRITABLE) {
            Ok(descriptor) => {
                let is_small_pipe = file_type(fd) == Some(FileType::Fifo);
                WriteMethod::Polled { descriptor, is_small_pipe }
            }
            Err(_) if is_instant(fd) => WriteMethod::Direct,
            Err(_) => WriteMethod::OtherThread,
        };
        Self { fd, method }
    }

    /// Writes the pieces in order. Returns when the kernel has all bytes, or with the first error.
    ///
    /// Not cancel safe: of a dropped batch, any part may have been written, or may still be written.
    pub async fn write_all(&mut self, pieces: Vec<Bytes>) -> io::Result<()> {
        let mut batch = UnwrittenBatch::new(pieces);
        let fd = self.fd;
        match &mut self.method {
            WriteMethod::Polled { descriptor, is_small_pipe } => {
                while !batch.is_empty() {
                    if !batch.write_ready(descriptor).await? && std::mem::take(is_small_pipe) {
                        rustix::pipe::fcntl_setpipe_size(fd, PIPE_BYTES).ok(); // A small pipe works, too.
                    }
                }
                Ok(())
            }
            WriteMethod::Direct => {
                // The write does not wait, so without this a fast source would starve other tasks.
                task::coop::consume_budget().await;
                batch.write_blocking(fd)
            }
            // Fails only if the runtime shuts down or the thread panics.
            WriteMethod::OtherThread => {
                task::spawn_blocking(move || batch.write_blocking(fd)).await.map_err(io::Error::other)?
            }
        }
    }
}

fn file_type(fd: BorrowedFd<'_>) -> Option<FileType> {
    rustix::fs::fstat(fd).ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
}

/// Whether a read or write of this file never waits for a disk, a network or another program.
pub(crate) fn is_instant(fd: BorrowedFd<'_>) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => rustix::fs::fstatfs(fd).is_ok_and(|found| found.f_type as u64 == TMPFS_MAGIC),
        FileType::CharacterDevice => {
            rustix::fs::major(stat.st_rdev) == MEMORY_DEVICES
                && INSTANT_DEVICES.contains(&rustix::fs::minor(stat.st_rdev))
        }
        _ => false,
    }
}

/// The part of a batch that is not written yet.
struct UnwrittenBatch {
    pieces: Vec<Bytes>,
    /// The number of pieces at the front that are written.
    written: usize,
}

impl UnwrittenBatch {
    fn new(mut pieces: Vec<Bytes>) -> Self {
        // So that a system call that writes nothing is an error.
        pieces.retain(|piece| !piece.is_empty());
        Self { pieces, written: 0 }
    }

    fn is_empty(&self) -> bool {
        self.written == self.pieces.len()
    }

    /// Writes once when the descriptor is ready. Returns whether the descriptor took everything that it was offered.
    async fn write_ready(&mut self, descriptor: &StdioDescriptor) -> io::Result<bool> {
        let mut ready = descriptor.writable().await?;
        let (written, offered) = self.offer(|slices| ready.try_io(|_| descriptor.try_write_vectored(slices)));
        match written {
            Ok(written) => {
                let count = written?;
                self.advance(count)?;
                Ok(count == offered)
            }
            Err(_would_block) => Ok(false),
        }
    }

    /// Writes everything. Blocks as long as the file does.
    fn write_blocking(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        while !self.is_empty() {
            let (written, _) = self.offer(|slices| retry_on_intr(|| rustix::io::writev(fd, slices)));
            self.advance(written?)?;
        }
        Ok(())
    }

    /// Passes the next pieces to `write`. Returns its result and the number of bytes that were offered.
    fn offer<T>(&self, write: impl FnOnce(&[IoSlice<'_>]) -> T) -> (T, usize) {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut offered = 0;
        let mut filled = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces[self.written..]) {
            *slice = IoSlice::new(piece);
            offered += piece.len();
            filled += 1;
        }
        (write(&slices[..filled]), offered)
    }

    /// Removes written bytes. Drops each piece as soon as it is written, so that its memory can be used again.
    fn advance(&mut self, mut count: usize) -> io::Result<()> {
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while count > 0 {
            let piece = &mut self.pieces[self.written];
            let step = piece.len().min(count);
            piece.advance(step);
            count -= step;
            if piece.is_empty() {
                *piece = Bytes::new();
                self.written += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, os::fd::OwnedFd};

    use rustix::{fs, net, pipe};

    use super::*;

    /// Standard output as if it were this file.
    fn output_to(fd: impl Into<OwnedFd>) -> StandardOutput {
        use std::os::fd::AsFd as _;
        let leaked: &'static OwnedFd = Box::leak(Box::new(fd.into()));
        StandardOutput::new(leaked.as_fd())
    }

    /// Pieces of many sizes, some of them empty, and all of their bytes.
    fn pieces() -> (Vec<Bytes>, Vec<u8>) {
        let all: Vec<u8> = (0..3_000_000).map(|at| (at / 7 % 251) as u8).collect();
        let mut pieces = vec![Bytes::new(); 2 * SLICES];
        let mut from = 0;
        for size in (0..).map(|at| at * 31 % 40_000) {
            let to = all.len().min(from + size);
            pieces.push(Bytes::copy_from_slice(&all[from..to]));
            from = to;
            if to == all.len() {
                break;
            }
        }
        (pieces, all)
    }

    /// Writes the pieces while another thread reads `far` to its end.
    async fn check(mut output: StandardOutput, near: OwnedFd, far: OwnedFd) {
        let (pieces, all) = pieces();
        let reading = task::spawn_blocking(move || {
            let mut received = vec![0; all.len()];
            std::fs::File::from(far).read_exact(&mut received).expect("read");
            assert!(received == all);
        });
        output.write_all(pieces).await.expect("write");
        drop(near);
        reading.await.expect("the bytes are the same");
    }

    #[tokio::test]
    async fn pieces_arrive_whole_and_in_order_through_pipes_and_sockets() {
        let (far, near) = pipe::pipe_with(pipe::PipeFlags::CLOEXEC).unwrap();
        let output = output_to(near.try_clone().unwrap());
        check(output, near.try_clone().unwrap(), far).await;
        assert_eq!(pipe::fcntl_getpipe_size(&near).unwrap(), PIPE_BYTES, "a pipe that was full is enlarged");
        let kind = net::SocketType::STREAM;
        let (near, far) = net::socketpair(net::AddressFamily::UNIX, kind, net::SocketFlags::CLOEXEC, None).unwrap();
        check(output_to(near.try_clone().unwrap()), near, far).await;
    }

    #[tokio::test]
    async fn pieces_arrive_whole_and_in_order_in_files() {
        let memory = fs::memfd_create("file", fs::MemfdFlags::CLOEXEC).unwrap();
        for is_other_thread in [false, true] {
            let mut output = output_to(memory.try_clone().unwrap());
            assert!(matches!(output.method, WriteMethod::Direct), "a memfd is on tmpfs");
            if is_other_thread {
                output.method = WriteMethod::OtherThread;
            }
            let (pieces, all) = pieces();
            fs::ftruncate(&memory, 0).unwrap();
            fs::seek(&memory, fs::SeekFrom::Start(0)).unwrap();
            output.write_all(pieces).await.unwrap();
            fs::seek(&memory, fs::SeekFrom::Start(0)).unwrap();
            let mut written = Vec::new();
            std::fs::File::from(memory.try_clone().unwrap()).read_to_end(&mut written).unwrap();
            assert!(written == all);
        }
    }

    #[tokio::test]
    async fn a_failed_write_is_reported() {
        let open = |path| fs::open(path, fs::OFlags::WRONLY | fs::OFlags::CLOEXEC, fs::Mode::empty()).unwrap();
        let mut output = output_to(open("/dev/full"));
        assert!(matches!(output.method, WriteMethod::Direct));
        let error = output.write_all(vec![Bytes::from_static(b"lost")]).await.expect_err("it is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        output.write_all(vec![Bytes::new()]).await.expect("nothing has to be written");
        let mut output = output_to(open("/dev/null"));
        assert!(matches!(output.method, WriteMethod::Direct));
        output.write_all(vec![Bytes::from_static(b"gone")]).await.expect("it takes everything");
        let (far, near) = pipe::pipe_with(pipe::PipeFlags::CLOEXEC).unwrap();
        let mut output = output_to(near);
        drop(far);
        let error = output.write_all(vec![Bytes::from_static(b"lost")]).await.expect_err("there is no reader");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
