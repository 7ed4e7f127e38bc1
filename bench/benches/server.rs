//! Cost of one request in the server: frame, budget, envelope, method table, checks, handler, queue and pump, and the answer back.
//!
//! The real core in one thread, over a pair in memory, with a clock that stands still: nothing here depends on when it happens. A
//! client's end of the framing is counted too. Holders are never asked for, because nothing is started.

use std::{fs::File, io, os::fd::OwnedFd, sync::Arc};

use bytes::Bytes;
use exec_server_rpc::{ByteStream, Framing, InboundFrame, Outbox, Receiver, WebSocketRole, memory};
use exec_server_server::{
    access::Grant,
    core::{Authenticated, Config, Core, FoundSession, Holders},
};
use gungraun::prelude::*;
use tokio::{
    io::AsyncWrite,
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// Requests in one measurement. Work that happens now and then, such as the runtime reading its clock, is spread over them.
const REQUESTS: usize = 100;

const MAX: usize = 64 << 20;

/// A cheap request, so that the handler adds little.
const STATUS: &[u8] = br#"{"id":1,"method":"environment/status","params":{}}"#;

/// A client of the smallest kind.
struct Client {
    outbox: Outbox,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
    receiver: Receiver,
}

impl Client {
    fn new(stream: ByteStream) -> Self {
        let framing = Framing::WebSocket { role: WebSocketRole::Client, max: MAX };
        let ByteStream { reader, writer, leftover, .. } = stream;
        Self { outbox: Outbox::new(framing), writer, receiver: Receiver::new(framing, reader, leftover) }
    }

    async fn send(&mut self, message: &[u8]) {
        self.outbox.message(message.len(), |out| out.extend_from_slice(message));
        self.outbox.flush_to(&mut self.writer).await.expect("the server is there");
    }

    async fn ask(&mut self, request: &[u8]) -> Bytes {
        self.send(request).await;
        loop {
            match self.receiver.recv().await.expect("the server answers") {
                InboundFrame::Message(answer) => return answer,
                InboundFrame::Ping(payload) => self.outbox.pong(&payload),
                InboundFrame::Pong(_) => {}
            }
        }
    }

    async fn ask_often(&mut self, request: &[u8]) -> Bytes {
        let mut last = Bytes::new();
        for _ in 0..REQUESTS {
            last = self.ask(request).await;
        }
        last
    }
}

/// A server with one client, which has a session. Fields are dropped in order: the runtime ends last.
struct World {
    client: Client,
    _connections: JoinSet<()>,
    runtime: Runtime,
}

fn world() -> World {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let (near, far) = memory(1 << 20);
    let framing = Framing::WebSocket { role: WebSocketRole::Server, max: MAX };
    let connection = Authenticated::vouch(far, framing, Grant::owner(), "bench");
    let core = Core::new(Config::default(), Arc::new(NoHolders));
    let (mut connections, mut client) = (JoinSet::new(), Client::new(near));
    connections.spawn_on(async move { core.serve(connection).await }, runtime.handle());
    runtime.block_on(async {
        let initialize =
            br#"{"id":0,"method":"initialize","params":{"clientName":"bench","capabilities":{"ack":true,"gap":true}}}"#;
        let welcome = client.ask(initialize).await;
        assert!(welcome.starts_with(br#"{"id":0,"result":{"#), "{welcome:?}");
        client.send(br#"{"method":"initialized","params":{}}"#).await;
        // Buffers, keys and tables are as large afterwards as they will be.
        let ready = client.ask_often(STATUS).await;
        assert_eq!(ready, br#"{"id":1,"result":{"status":"ready"}}"#[..]);
    });
    World { client, _connections: connections, runtime }
}

#[library_benchmark]
#[bench::status_times_100(args = (STATUS), setup = with_world)]
fn dispatch((mut world, request): (World, &'static [u8])) -> (Bytes, World) {
    let World { client, runtime, .. } = &mut world;
    (runtime.block_on(client.ask_often(request)), world)
}

fn with_world(request: &'static [u8]) -> (World, &'static [u8]) {
    (world(), request)
}

/// No holder is ever needed.
struct NoHolders;

impl Holders for NoHolders {
    fn create(&self, _session: &str, _info: &[u8]) -> io::Result<(OwnedFd, [u8; 32])> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn scan(&self) -> io::Result<Vec<(String, FoundSession)>> {
        Ok(Vec::new())
    }

    fn inspect(&self, _session: &str) -> io::Result<Option<FoundSession>> {
        Ok(None)
    }

    fn write_record(&self, _session: &str, _record: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn open_segment(&self, _session: &str, _name: &str) -> io::Result<File> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn remove_segment(&self, _session: &str, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _session: &str) -> io::Result<()> {
        Ok(())
    }
}

library_benchmark_group!(name = core, benchmarks = [dispatch]);
main!(library_benchmark_groups = [core]);
