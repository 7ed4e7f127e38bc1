//! The running server: all listeners, the door in front of each, the tasks of their connections, and the end in order.
//!
//! ```text
//! serving ──stop──▶ draining (not ready, no upgrade; clients told and flushed) ──▶ ended
//!    └─ standard input at its end, where it is the only listener ─▶ draining
//! ```
//!
//! Must not know HTTP nor the wire, and prints nothing: the program says where it listens.

use std::{
    future::{self, Future},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use exec_server_protocol::limits;
use exec_server_rpc::{Framing, Stream};
use tokio::{
    net::TcpListener,
    task::{JoinError, JoinSet},
};

use super::{
    BindError, ListenUrl,
    accept::{Acceptor, Listener},
    tcp,
    unix::{UnixError, UnixSocket},
};
use crate::{
    access::Grant,
    core::{Authenticated, Core},
    door::{Door, Entrance},
    tls::Tls,
};

/// How long clients get to take what is on its way when the server drains. A second less than the end in order may take in all.
const FLUSH: Duration = Duration::from_secs(4);

/// Settings of [`Server`].
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// Where the socket for `dial-stdio` goes; none without a state directory that others can find.
    pub dial_socket: Option<PathBuf>,
    /// The end of standard input ends its session: the reference's rule, for a server without a lasting state directory.
    pub stdio_ends_session: bool,
    /// What secures `wss://` listeners; they cannot be made without.
    pub tls: Option<Arc<Tls>>,
}

/// A listener that exists: what to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Where, with the real port.
    pub url: ListenUrl,
}

/// Why the server stopped serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// Standard input, the only listener, came to its end.
    StdioClosed,
}

/// Bound listeners and what they lead to.
pub struct Server {
    core: Arc<Core>,
    door: Arc<Door>,
    config: ServerConfig,
    tcp: Vec<(TcpListener, Entrance)>,
    unix: Vec<UnixSocket>,
    dial: Option<UnixSocket>,
    stdio: bool,
    bound: Vec<Bound>,
}

impl Server {
    /// Makes all listeners, or none: the first that fails undoes those before it.
    pub fn bind(
        core: Arc<Core>,
        door: Arc<Door>,
        listeners: &[ListenUrl],
        config: ServerConfig,
    ) -> Result<Self, BindError> {
        let mut server =
            Self { core, door, config, tcp: Vec::new(), unix: Vec::new(), dial: None, stdio: false, bound: Vec::new() };
        for url in listeners {
            let url = server.add(url)?;
            server.bound.push(Bound { url });
        }
        if let Some(path) = &server.config.dial_socket {
            server.dial = bind_dial(path)?;
        }
        let ports = server.tcp.iter().map(|(_, entrance)| entrance.local.port()).collect();
        server.core.fetcher.set_own_ports(ports);
        Ok(server)
    }

    /// The listeners in the order they were asked for.
    pub fn bound(&self) -> &[Bound] {
        &self.bound
    }

    /// Serves until `stop` is done, or standard input ends where nothing else is listened on; then drains.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Ended {
        let Self { core, door, config, tcp, unix, dial, stdio, bound } = self;
        let mut tasks = JoinSet::new();
        for (listener, entrance) in tcp {
            tasks.spawn(serve_tcp(Arc::clone(&core), Arc::clone(&door), listener, entrance));
        }
        if let Some(tls) = config.tls {
            tasks.spawn(async move { tls.watch().await });
        }
        for socket in unix {
            tasks.spawn(serve_unix(Arc::clone(&core), Arc::clone(&door), socket));
        }
        if let Some(socket) = dial {
            tasks.spawn(serve_dial(Arc::clone(&core), Arc::clone(&door), socket));
        }
        let mut stdio_task = JoinSet::new();
        if stdio {
            stdio_task.spawn(serve_stdio(Arc::clone(&core), config.stdio_ends_session));
        }
        let only_stdio = stdio && bound.len() == 1;
        // Both are cancel safe: a task that ended stays in its set.
        let ended = tokio::select! {
            () = stop => Ended::Stopped,
            () = ended_of(&mut stdio_task, only_stdio) => Ended::StdioClosed,
        };
        // From here on `readyz` says no and upgrades are refused; connections end by the core's close.
        door.drain();
        core.drain(FLUSH).await;
        tasks.shutdown().await;
        stdio_task.shutdown().await;
        ended
    }

    fn add(&mut self, url: &ListenUrl) -> Result<ListenUrl, BindError> {
        match url {
            ListenUrl::Ws(address) => self.add_tcp(url, *address, None).map(ListenUrl::Ws),
            ListenUrl::Wss(address) => {
                let Some(tls) = self.config.tls.clone() else {
                    return Err(BindError::NoCertificate { address: *address });
                };
                self.add_tcp(url, *address, Some(tls)).map(ListenUrl::Wss)
            }
            ListenUrl::Unix(path) => {
                self.unix.push(bind_unix(path)?);
                Ok(url.clone())
            }
            ListenUrl::Stdio => {
                self.stdio = true;
                Ok(ListenUrl::Stdio)
            }
        }
    }
}

impl Server {
    /// Returns the address with its real port.
    fn add_tcp(
        &mut self,
        url: &ListenUrl,
        address: SocketAddr,
        tls: Option<Arc<Tls>>,
    ) -> Result<SocketAddr, BindError> {
        let failed = |source| BindError::Tcp { url: url.clone(), source };
        let listener = tcp::bind(address).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        self.tcp.push((listener, Entrance { local, tls }));
        Ok(local)
    }
}

fn bind_unix(path: &Path) -> Result<UnixSocket, BindError> {
    UnixSocket::bind(path).map_err(|source| BindError::Unix { path: path.to_owned(), source })
}

/// The socket for `dial-stdio`. Where the disk has no inode or room left for its name the server serves without: its processes need it
/// more than `dial-stdio` does.
fn bind_dial(path: &Path) -> Result<Option<UnixSocket>, BindError> {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match UnixSocket::bind(path) {
        Ok(socket) => Ok(Some(socket)),
        Err(UnixError::Io { source, .. })
            if matches!(source.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem) =>
        {
            tracing::error!(
                path = %path.display(), %source,
                "serving without this socket: `dial-stdio` and `ssh://` cannot reach this server until it is restarted"
            );
            Ok(None)
        }
        Err(source) => Err(BindError::Unix { path: path.to_owned(), source }),
    }
}

/// Waits for the end of standard input where that ends the server, else for ever.
async fn ended_of(stdio: &mut JoinSet<()>, ends_server: bool) {
    if ends_server {
        report(stdio.join_next().await);
    } else {
        future::pending().await
    }
}

async fn serve_tcp(core: Arc<Core>, door: Arc<Door>, listener: TcpListener, entrance: Entrance) {
    let entrance = Arc::new(entrance);
    accept_all(listener, &door, |(socket, peer)| {
        let (core, door, entrance) = (Arc::clone(&core), Arc::clone(&door), Arc::clone(&entrance));
        let slot = door.slot(Some(peer));
        async move {
            if let Some(connection) = door.admit_tcp(socket, &entrance, peer, slot).await {
                core.serve(connection).await;
            }
        }
    })
    .await;
}

async fn serve_unix(core: Arc<Core>, door: Arc<Door>, socket: UnixSocket) {
    accept_all(socket, &door, |socket| {
        let (core, door) = (Arc::clone(&core), Arc::clone(&door));
        let slot = door.slot(None);
        async move {
            if let Some(connection) = door.admit_unix(socket, slot).await {
                core.serve(connection).await;
            }
        }
    })
    .await;
}

async fn serve_dial(core: Arc<Core>, door: Arc<Door>, socket: UnixSocket) {
    accept_all(socket, &door, |socket| {
        let core = Arc::clone(&core);
        let connection = door.admit_dial(socket);
        async move {
            if let Some(mut connection) = connection
                && let Some(_visit) = core.enter()
                && connection.greet().await.is_ok()
            {
                core.serve(connection).await;
            }
        }
    })
    .await;
}

async fn serve_stdio(core: Arc<Core>, ends_session: bool) {
    let stream: Stream = exec_server_rpc::stdio();
    let framing = Framing::Lines { max: limits::MESSAGE_BYTES };
    // Whoever holds our standard streams started us: the owner.
    let mut connection = Authenticated::vouch(stream, framing, Grant::owner(), "stdio");
    if ends_session {
        connection = connection.ending_its_session();
    }
    core.serve(connection).await;
}

/// Accepts for ever and owns the tasks of the connections; they end with it.
async fn accept_all<L, F>(listener: L, door: &Door, mut serve: impl FnMut(L::Connection) -> F + Send)
where
    L: Listener + Send + Sync,
    L::Connection: Send,
    F: Future<Output = ()> + Send + 'static,
{
    let mut acceptor = Acceptor::new(listener);
    let mut connections = JoinSet::new();
    loop {
        if door.is_crowded() {
            // Those who came in one burst get their turn before others push them out.
            tokio::task::yield_now().await;
        }
        // Both are cancel safe.
        tokio::select! {
            connection = acceptor.next() => {
                connections.spawn(serve(connection));
            }
            ended = connections.join_next(), if !connections.is_empty() => report(ended),
        }
    }
}

/// A connection whose task panicked is told to people; the others go on.
fn report(ended: Option<Result<(), JoinError>>) {
    if let Some(Err(error)) = ended
        && error.is_panic()
    {
        tracing::error!("the task of a connection panicked");
    }
}
