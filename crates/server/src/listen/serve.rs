//! The running server: all listeners, the tasks of their connections, and the orderly shutdown.
//!
//! ```text
//! serving ──stop──▶ draining (not ready, no upgrade; clients notified and flushed) ──▶ ended
//!    └─ EOF on standard input, if it is the only listener ─▶ draining
//! ```
//!
//! Prints nothing: the binary prints the listen addresses.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use exec_server_protocol::limits;
use exec_server_rpc::{ByteStream, Framing};
use tokio::{
    net::{TcpListener, TcpSocket},
    task::{JoinError, JoinSet},
};

use super::{
    BindError, ListenUrl,
    accept::{Acceptor, Listener},
    unix::{UnixError, UnixSocket},
};
use crate::{
    access::Grant,
    admission::{Admission, TcpEndpoint},
    core::{Authenticated, Core},
    tls::Tls,
};

/// How long clients may take to receive pending output when the server drains: one second less than the 5 s in
/// `docs/deploy.md`.
const FLUSH: Duration = Duration::from_secs(4);

/// Backlog of TCP connections in the kernel. A burst of clients after a restart must not be refused.
const BACKLOG: u32 = 1024;

/// Settings of [`Server`].
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// The path of the socket for `dial-stdio`. `None` if other programs cannot find the state directory.
    pub dial_socket: Option<PathBuf>,
    /// EOF on standard input ends the session. For a server without a lasting state directory.
    pub stdio_ends_session: bool,
    /// Needed for `wss://` listeners.
    pub tls: Option<Arc<Tls>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEnd {
    /// The `stop` future completed.
    Stopped,
    /// EOF on standard input, which was the only listener.
    StdioClosed,
}

/// The bound listeners, not yet accepting.
pub struct Server {
    core: Arc<Core>,
    admission: Arc<Admission>,
    config: ServerConfig,
    tcp: Vec<(TcpListener, TcpEndpoint)>,
    unix: Vec<UnixSocket>,
    dial: Option<UnixSocket>,
    stdio: bool,
    bound: Vec<ListenUrl>,
}

impl Server {
    /// Binds all listeners or none: if one fails, those bound before it are closed.
    pub fn bind(
        core: Arc<Core>,
        admission: Arc<Admission>,
        listeners: &[ListenUrl],
        config: ServerConfig,
    ) -> Result<Self, BindError> {
        let mut server = Self {
            core,
            admission,
            config,
            tcp: Vec::new(),
            unix: Vec::new(),
            dial: None,
            stdio: false,
            bound: Vec::new(),
        };
        for url in listeners {
            let url = server.add(url)?;
            server.bound.push(url);
        }
        if let Some(path) = &server.config.dial_socket {
            server.dial = bind_dial(path)?;
        }
        let ports = server.tcp.iter().map(|(_, endpoint)| endpoint.local.port()).collect();
        server.core.fetcher.set_own_ports(ports);
        Ok(server)
    }

    /// The listeners in the order in which they were requested. With the real port, also if port 0 was requested.
    pub fn bound(&self) -> &[ListenUrl] {
        &self.bound
    }

    /// Serves until `stop` completes, or until EOF on standard input if there is no other listener. Then drains.
    pub async fn run(self, stop: impl Future<Output = ()>) -> ServerEnd {
        let Self { core, admission, config, tcp, unix, dial, stdio, bound } = self;
        let mut tasks = JoinSet::new();
        for (listener, endpoint) in tcp {
            tasks.spawn(serve_tcp(Arc::clone(&core), Arc::clone(&admission), listener, endpoint));
        }
        if let Some(tls) = config.tls {
            tasks.spawn(async move { tls.watch().await });
        }
        for socket in unix {
            tasks.spawn(serve_unix(Arc::clone(&core), Arc::clone(&admission), socket));
        }
        if let Some(socket) = dial {
            tasks.spawn(serve_dial(Arc::clone(&core), Arc::clone(&admission), socket));
        }
        let mut stdio_task = JoinSet::new();
        if stdio {
            stdio_task.spawn(serve_stdio(Arc::clone(&core), config.stdio_ends_session));
        }
        let only_stdio = stdio && bound.len() == 1;
        // Both branches are cancel safe: a task that ended stays in its `JoinSet`.
        let ended = tokio::select! {
            () = stop => ServerEnd::Stopped,
            ended = stdio_task.join_next(), if only_stdio => {
                log_panic(ended);
                ServerEnd::StdioClosed
            }
        };
        // From here on `/readyz` fails and upgrades are refused. `core.drain` closes the connections.
        admission.drain();
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

    fn add_tcp(
        &mut self,
        url: &ListenUrl,
        address: SocketAddr,
        tls: Option<Arc<Tls>>,
    ) -> Result<SocketAddr, BindError> {
        let failed = |source| BindError::Tcp { url: url.clone(), source };
        let listener = bind_tcp(address).map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        self.tcp.push((listener, TcpEndpoint { local, tls }));
        Ok(local)
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of the previous server may be in TIME_WAIT. Without SO_REUSEADDR they would block the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn bind_unix(path: &Path) -> Result<UnixSocket, BindError> {
    UnixSocket::bind(path).map_err(|source| BindError::Unix { path: path.to_owned(), source })
}

/// The socket for `dial-stdio`. If the disk is full, over quota or read-only, the server runs without it: keeping its
/// processes reachable matters more than `dial-stdio`.
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

async fn serve_tcp(core: Arc<Core>, admission: Arc<Admission>, listener: TcpListener, endpoint: TcpEndpoint) {
    let endpoint = Arc::new(endpoint);
    accept_all(listener, &admission, |(socket, peer)| {
        let (core, admission, endpoint) = (Arc::clone(&core), Arc::clone(&admission), Arc::clone(&endpoint));
        let slot = admission.reserve_slot(Some(peer));
        async move {
            if let Some(connection) = admission.admit_tcp(socket, &endpoint, peer, slot).await {
                core.serve(connection).await;
            }
        }
    })
    .await;
}

async fn serve_unix(core: Arc<Core>, admission: Arc<Admission>, listener: UnixSocket) {
    accept_all(listener, &admission, |socket| {
        let (core, admission) = (Arc::clone(&core), Arc::clone(&admission));
        let slot = admission.reserve_slot(None);
        async move {
            if let Some(connection) = admission.admit_unix(socket, slot).await {
                core.serve(connection).await;
            }
        }
    })
    .await;
}

async fn serve_dial(core: Arc<Core>, admission: Arc<Admission>, listener: UnixSocket) {
    accept_all(listener, &admission, |socket| {
        let core = Arc::clone(&core);
        let connection = admission.admit_dial(socket);
        async move {
            // The visit keeps an idle server from retiring before `serve` counts the connection.
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
    let stream: ByteStream = exec_server_rpc::stdio();
    let framing = Framing::Lines { max: limits::MESSAGE_BYTES };
    // Only the process that started us has our standard streams, so the peer is the owner.
    let mut connection = Authenticated::vouch(stream, framing, Grant::owner(), "stdio");
    if ends_session {
        connection = connection.ending_its_session();
    }
    core.serve(connection).await;
}

/// Accepts connections forever. Owns the connections' tasks: they are aborted when this future is dropped.
async fn accept_all<L, F>(listener: L, admission: &Admission, mut serve: impl FnMut(L::Connection) -> F + Send)
where
    L: Listener + Send + Sync,
    L::Connection: Send,
    F: Future<Output = ()> + Send + 'static,
{
    let mut acceptor = Acceptor::new(listener);
    let mut connections = JoinSet::new();
    loop {
        if admission.is_crowded() {
            // Let the connections of a burst run before later ones evict them.
            tokio::task::yield_now().await;
        }
        // Both branches are cancel safe.
        tokio::select! {
            connection = acceptor.next() => {
                connections.spawn(serve(connection));
            }
            ended = connections.join_next(), if !connections.is_empty() => log_panic(ended),
        }
    }
}

/// Logs a panic of a connection's task. Other connections are not affected.
fn log_panic(ended: Option<Result<(), JoinError>>) {
    if let Some(Err(error)) = ended
        && error.is_panic()
    {
        tracing::error!("the task of a connection panicked");
    }
}
