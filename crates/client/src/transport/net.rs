//! Opens sockets: TCP to the first address of a name that answers, and Unix sockets with paths of any length.

use std::{fs::File, io, net::SocketAddr, os::fd::AsRawFd as _, path::Path, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    net::{TcpStream, UnixStream},
    time,
};

/// How long an address may be silent before the next one is tried concurrently, as RFC 8305 recommends. A longer delay makes a host with
/// broken IPv6 feel slow. A shorter one connects twice to a distant host.
const HEAD_START: Duration = Duration::from_millis(250);

/// Longest path in a Unix socket address: 108 bytes minus the NUL.
const UNIX_PATH_MAX: usize = 107;

/// Connects to the first of these addresses that answers.
pub(super) async fn tcp(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    first_of(alternating(addresses), HEAD_START, TcpStream::connect).await
}

/// Connects to a Unix socket. Its path may be longer than a socket address allows.
pub(super) async fn unix(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().len() <= UNIX_PATH_MAX {
        return UnixStream::connect(path).await;
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // The path is too long for an address: refer to its directory by an open fd.
    let dir = File::open(dir)?;
    UnixStream::connect(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)).await
}

/// Alternates between the address families, beginning with the one that the resolver prefers.
fn alternating(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_first_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| address.is_ipv6() == is_first_v6);
    let mut second = second.into_iter();
    let mut mixed: Vec<_> = first.into_iter().flat_map(|address| [Some(address), second.next()]).flatten().collect();
    mixed.extend(second);
    mixed
}

/// Returns the first success. The next candidate is tried when one fails, or after `head_start` without a result; earlier attempts
/// continue. If all fail, returns the last failure.
async fn first_of<A, T, F: Future<Output = io::Result<T>>>(
    candidates: Vec<A>,
    head_start: Duration,
    connect: impl Fn(A) -> F,
) -> io::Result<T> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut untried = candidates.into_iter();
    let mut trying = FuturesUnordered::new();
    loop {
        trying.extend(untried.next().map(&connect));
        if trying.is_empty() {
            return Err(failure);
        }
        let has_more = untried.len() > 0;
        // Both arms are cancel safe: the attempts stay in the set.
        tokio::select! {
            Some(result) = trying.next() => match result {
                Ok(connected) => return Ok(connected),
                Err(error) => failure = error,
            },
            () = time::sleep(head_start), if has_more => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The behaviour of a candidate: its delay in milliseconds, and whether it succeeds.
    type Script = (u64, bool);

    /// Returns the index of the winner, and its time in milliseconds.
    async fn check(scripts: &[Script]) -> (io::Result<usize>, u128) {
        let start = time::Instant::now();
        let candidates: Vec<(usize, Script)> = scripts.iter().copied().enumerate().collect();
        let connect = |(index, (after, is_there)): (usize, Script)| async move {
            time::sleep(Duration::from_millis(after)).await;
            if is_there { Ok(index) } else { Err(io::Error::other(index.to_string())) }
        };
        (first_of(candidates, HEAD_START, connect).await, start.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_does_not_delay_the_others() {
        const NEVER: u64 = 1_000_000;
        for (scripts, winner, at) in [
            (&[(10, true), (0, true)][..], 0, 10),
            (&[(NEVER, true), (10, true)], 1, 260),
            (&[(300, true), (NEVER, true)], 0, 300),
            (&[(5, false), (10, true)], 1, 15),
            (&[(NEVER, true), (5, false), (7, true)], 2, 262),
        ] {
            let (result, elapsed) = check(scripts).await;
            assert_eq!((result.unwrap(), elapsed), (winner, at), "{scripts:?}");
        }
        let (result, elapsed) = check(&[(5, false), (6, false)]).await;
        assert_eq!((result.unwrap_err().to_string().as_str(), elapsed), ("1", 11));
        assert_eq!(check(&[]).await.0.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn address_families_alternate() {
        let parse = |texts: &[&str]| -> Vec<SocketAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let mixed = alternating(parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"]));
        assert_eq!(mixed, parse(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"]));
    }

    #[tokio::test]
    async fn a_socket_is_reached_however_long_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let open = File::open(&deep).unwrap();
        let short = format!("/proc/self/fd/{}/s", open.as_raw_fd());
        let _listener = tokio::net::UnixListener::bind(short).unwrap();
        unix(&deep.join("s")).await.unwrap();
        assert_eq!(unix(&deep.join("none")).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
