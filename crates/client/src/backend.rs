//! Traits for code that runs processes without depending on where they run.
//!
//! [`Backend`] starts processes; [`RunningProcess`] is a started process. They offer the methods of [`Client`] and [`Process`] as trait
//! objects, without generics. A local and a remote back end use the same implementation, so they behave alike.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use exec_server_protocol::{ProcessId, process as wire};
use tokio::sync::watch;

use crate::{Client, Error, Events, Exit, Process, ReadResult, Start, Totals, transport::BoxFuture};

/// A place where processes run: a server, or this program.
///
/// ```
/// use std::sync::Arc;
/// use exec_server_client::{Error, Start, backend::{Backend, RunningProcess}};
///
/// async fn version(backend: &dyn Backend) -> Result<i32, Error> {
///     let process: Arc<dyn RunningProcess> = backend.start(Start::new(["uname", "-r"])).await?;
///     Ok(process.wait().await?.code)
/// }
/// ```
pub trait Backend: Send + Sync {
    /// Starts a process; see [`Client::start`].
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Arc<dyn RunningProcess>, Error>>;

    /// Whether this back end connects to a server, on this machine or another. False if the server runs inside this program.
    fn is_remote(&self) -> bool;

    /// The client of this back end, for everything else that a server offers.
    fn client(&self) -> &Client;
}

/// A process that a [`Backend`] started. Dropping it does not end the process.
pub trait RunningProcess: Send + Sync {
    /// See [`Process::id`].
    fn id(&self) -> &ProcessId;

    /// See [`Process::pid`].
    fn pid(&self) -> Option<u32>;

    /// See [`Process::wake`].
    fn wake(&self) -> watch::Receiver<u64>;

    /// See [`Process::events_after`]; 0 begins at the first event.
    fn events_after(&self, seq: u64) -> Events;

    /// See [`Process::read`].
    fn read(&self, after: u64, max: Option<u64>, wait: Duration) -> BoxFuture<'_, Result<ReadResult, Error>>;

    /// See [`Process::write`].
    fn write(&self, bytes: Bytes) -> BoxFuture<'_, Result<wire::WriteStatus, Error>>;

    /// See [`Process::close_stdin`].
    fn close_stdin(&self) -> BoxFuture<'_, Result<wire::CloseStdinStatus, Error>>;

    /// See [`Process::signal`].
    fn signal<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Error>>;

    /// See [`Process::resize`].
    fn resize(&self, size: wire::Size) -> BoxFuture<'_, Result<(), Error>>;

    /// See [`Process::terminate`].
    fn terminate(&self, grace: Option<Duration>) -> BoxFuture<'_, Result<bool, Error>>;

    /// See [`Process::wait`].
    fn wait(&self) -> BoxFuture<'_, Result<Exit, Error>>;

    /// See [`Process::exit`].
    fn exit(&self) -> Option<Exit>;

    /// See [`Process::closed`].
    fn closed(&self) -> Option<Totals>;

    /// The underlying handle, for its streams and all other methods.
    fn process(&self) -> &Process;
}

/// A back end that runs processes on a server.
#[derive(Debug, Clone)]
pub struct RemoteBackend(pub Client);

impl Backend for RemoteBackend {
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Arc<dyn RunningProcess>, Error>> {
        start_on(&self.0, start)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn client(&self) -> &Client {
        &self.0
    }
}

#[cfg(feature = "local")]
impl Backend for crate::local::Local {
    fn start(&self, start: Start) -> BoxFuture<'_, Result<Arc<dyn RunningProcess>, Error>> {
        start_on(self.client(), start)
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn client(&self) -> &Client {
        crate::local::Local::client(self)
    }
}

fn start_on(client: &Client, start: Start) -> BoxFuture<'_, Result<Arc<dyn RunningProcess>, Error>> {
    Box::pin(async move { Ok(Arc::new(client.start(start).await?) as Arc<dyn RunningProcess>) })
}

impl RunningProcess for Process {
    fn id(&self) -> &ProcessId {
        self.id()
    }

    fn pid(&self) -> Option<u32> {
        self.pid()
    }

    fn wake(&self) -> watch::Receiver<u64> {
        self.wake()
    }

    fn events_after(&self, seq: u64) -> Events {
        self.events_after(seq)
    }

    fn read(&self, after: u64, max: Option<u64>, wait: Duration) -> BoxFuture<'_, Result<ReadResult, Error>> {
        Box::pin(self.read(after, max, wait))
    }

    fn write(&self, bytes: Bytes) -> BoxFuture<'_, Result<wire::WriteStatus, Error>> {
        Box::pin(self.write(bytes))
    }

    fn close_stdin(&self) -> BoxFuture<'_, Result<wire::CloseStdinStatus, Error>> {
        Box::pin(self.close_stdin())
    }

    fn signal<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.signal(name))
    }

    fn resize(&self, size: wire::Size) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.resize(size))
    }

    fn terminate(&self, grace: Option<Duration>) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(self.terminate(grace))
    }

    fn wait(&self) -> BoxFuture<'_, Result<Exit, Error>> {
        Box::pin(self.wait())
    }

    fn exit(&self) -> Option<Exit> {
        self.exit()
    }

    fn closed(&self) -> Option<Totals> {
        self.closed()
    }

    fn process(&self) -> &Process {
        self
    }
}
