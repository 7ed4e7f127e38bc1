//! Carries bytes and signals between our standard streams and the program until it has ended and closed.
//!
//! Input: read, sent, and read again only after the answer, so that a program that does not read is not run over.
//! Output: written in the order of its numbers, then acknowledged, so that a reader that does not read holds the program back.
//! Must not know how the program was started.

use std::{future, io, sync::Arc};

use anyhow::{Context as _, anyhow};
use exec_server_protocol::{base64, process};
use exec_server_rpc::client::{Notification, RawClient};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
};

use super::{PROCESS, terminal};
use crate::say;

/// One write: as much as a pipe gives at once.
const INPUT_BYTES: usize = 64 << 10;

/// How long a program may go on after its output has nowhere to go, if SIGPIPE alone does not end it.
const CLOSED_GRACE_MS: u32 = 1000;

/// How the program ended.
pub(super) struct Ended {
    /// Its exit code, 128+n for a signal.
    pub(super) code: i32,
    /// A signal ended it.
    pub(super) by_signal: bool,
    /// Nobody reads our standard output any more.
    pub(super) stdout_closed: bool,
}

/// The signals that are passed on.
pub(super) struct Signals {
    passed: [(Signal, &'static str); 4],
    /// Only with a terminal.
    resized: Option<Signal>,
}

impl Signals {
    /// From now on they no longer end this program.
    pub(super) fn new(tty: bool) -> io::Result<Self> {
        Ok(Self {
            passed: [
                (signal(SignalKind::interrupt())?, "SIGINT"),
                (signal(SignalKind::terminate())?, "SIGTERM"),
                (signal(SignalKind::hangup())?, "SIGHUP"),
                (signal(SignalKind::quit())?, "SIGQUIT"),
            ],
            resized: if tty { Some(signal(SignalKind::window_change())?) } else { None },
        })
    }

    /// The next thing to pass on: a call and its params. Cancel safe.
    async fn next(&mut self) -> (&'static str, serde_json::Value) {
        let [interrupt, terminate, hangup, quit] = &mut self.passed;
        let resized = async {
            match &mut self.resized {
                Some(signal) => signal.recv().await,
                None => future::pending().await,
            }
        };
        let name = tokio::select! {
            _ = interrupt.0.recv() => interrupt.1,
            _ = terminate.0.recv() => terminate.1,
            _ = hangup.0.recv() => hangup.1,
            _ = quit.0.recv() => quit.1,
            _ = resized => {
                let (rows, cols) = terminal::size().unwrap_or((24, 80));
                return ("process/resize", json!({"processId": PROCESS, "rows": rows, "cols": cols}));
            }
        };
        ("process/signal", json!({"processId": PROCESS, "signal": name}))
    }
}

/// Carries everything; returns when the program has ended and all its output is written.
pub(super) async fn carry(
    client: &Arc<RawClient>,
    mut notifications: mpsc::Receiver<Notification>,
    mut signals: Signals,
    window: u64,
) -> anyhow::Result<Ended> {
    let stdio = exec_server_rpc::stdio();
    let mut calls = JoinSet::new();
    calls.spawn(forward_input(Arc::clone(client), stdio.reader));
    let mut output = Output::new(Arc::clone(client), stdio.writer, window);
    loop {
        // All are cancel safe; output itself is written outside of the choice.
        let notification = tokio::select! {
            notification = notifications.recv() => notification,
            (method, params) = signals.next() => {
                match output.exit {
                    // Only others hold its streams any more, and a signal to the program would reach nobody.
                    Some(_) if method == "process/signal" => {
                        pass(&mut calls, client, "process/terminate", json!({"processId": PROCESS}));
                    }
                    Some(_) | None => pass(&mut calls, client, method, params),
                }
                continue;
            }
        };
        let Some(notification) = notification else {
            return Err(anyhow!("the embedded server ended: {}", client.closed().await));
        };
        // A reader that takes nothing must not keep Ctrl-C from the program.
        let is_closed = {
            let handled = output.handle(&notification);
            tokio::pin!(handled);
            loop {
                tokio::select! {
                    handled = &mut handled => break handled?,
                    (method, params) = signals.next() => pass(&mut calls, client, method, params),
                }
            }
        };
        if is_closed {
            return output.ended();
        }
    }
}

/// Sends a call whose answer nobody needs: a signal to a program that has ended is none.
fn pass(calls: &mut JoinSet<()>, client: &Arc<RawClient>, method: &'static str, params: serde_json::Value) {
    let client = Arc::clone(client);
    calls.spawn(async move {
        client.call(method, &params).await.ok();
    });
}

/// Standard input to its end, then the program's is closed. A program that closed its own stops the reading.
async fn forward_input(client: Arc<RawClient>, mut stdin: impl AsyncRead + Unpin) {
    #[derive(Deserialize)]
    struct Answer {
        status: process::WriteStatus,
    }
    let mut buf = vec![0; INPUT_BYTES];
    loop {
        // An input that cannot be read has ended.
        let read = stdin.read(&mut buf).await.unwrap_or(0);
        if read == 0 {
            client.call("process/closeStdin", &json!({"processId": PROCESS})).await.ok(); // It may have ended.
            return;
        }
        let params = json!({"processId": PROCESS, "chunk": base64::encode(&buf[..read])});
        let Ok(answer) = client.call("process/write", &params).await else { return };
        let is_accepted = serde_json::from_str::<Answer>(answer.get())
            .is_ok_and(|answer| answer.status == process::WriteStatus::Accepted);
        if !is_accepted {
            return;
        }
    }
}

/// The way out: what was written, what was acknowledged, and how the program ended.
struct Output<W> {
    client: Arc<RawClient>,
    stdout: W,
    stderr: tokio::io::Stderr,
    /// Acknowledged every quarter of the window: often enough that the program never waits for us.
    ack_every: u64,
    unacknowledged: u64,
    stdout_closed: bool,
    /// Why standard output took no more, where that is worth a word.
    failed: Option<io::Error>,
    exit: Option<(i32, bool)>,
    /// At most one task, which ends a program that nobody listens to.
    ending: JoinSet<()>,
}

impl<W: AsyncWrite + Unpin> Output<W> {
    fn new(client: Arc<RawClient>, stdout: W, window: u64) -> Self {
        Self {
            client,
            stdout,
            stderr: tokio::io::stderr(),
            ack_every: window / 4,
            unacknowledged: 0,
            stdout_closed: false,
            failed: None,
            exit: None,
            ending: JoinSet::new(),
        }
    }

    /// Acts on a notification; true when it was the last.
    async fn handle(&mut self, notification: &Notification) -> anyhow::Result<bool> {
        let params = notification.params.as_deref();
        match notification.method.as_str() {
            "process/output" => self.write(read(params)?).await?,
            "process/exited" => {
                let exited: process::ExitedParams = read(params)?;
                if exited.cause == Some(process::Cause::Lost) {
                    say::error(&anyhow!(
                        "the program was lost with the process that held it; how it would have ended nobody knows"
                    ));
                }
                self.exit = Some((exited.exit_code, exited.signal.is_some()));
            }
            "process/closed" => return Ok(true),
            "process/gap" => {
                let missing: process::GapParams = read(params)?;
                say::error(&anyhow!("{} bytes of output are missing here", missing.gap.bytes));
            }
            // A later server may say more than we know.
            _ => {}
        }
        Ok(false)
    }

    async fn write(&mut self, output: process::OutputParams) -> anyhow::Result<()> {
        let bytes = base64::decode(&output.chunk).context("read output")?;
        match output.stream {
            process::Stream::Stdout | process::Stream::Pty if !self.stdout_closed => {
                if let Err(error) = write_all(&mut self.stdout, &bytes).await {
                    // A reader that has gone is no news; a full disk is.
                    if error.kind() != io::ErrorKind::BrokenPipe {
                        self.failed.get_or_insert(error);
                    }
                    self.close_stdout();
                }
            }
            // Nobody reads it any more; the program is on its way out.
            process::Stream::Stdout | process::Stream::Pty => {}
            // A program goes on without its stderr, and so do we.
            process::Stream::Stderr => write_all(&mut self.stderr, &bytes).await.unwrap_or(()),
        }
        self.unacknowledged += bytes.len() as u64;
        if self.unacknowledged >= self.ack_every {
            self.unacknowledged = 0;
            self.client.notify("process/ack", &json!({"processId": PROCESS, "seq": output.seq})).await?;
        }
        Ok(())
    }

    /// Does to the program what the kernel would have done: SIGPIPE; and to one that will not hear it, an end. The
    /// answers come behind output that only we can take, so they are not waited for here.
    fn close_stdout(&mut self) {
        self.stdout_closed = true;
        let client = Arc::clone(&self.client);
        self.ending.spawn(async move {
            let signal = json!({"processId": PROCESS, "signal": "SIGPIPE"});
            client.call("process/signal", &signal).await.ok(); // It may have ended.
            let grace = json!({"processId": PROCESS, "graceMs": CLOSED_GRACE_MS});
            client.call("process/terminate", &grace).await.ok(); // As above.
        });
    }

    fn ended(self) -> anyhow::Result<Ended> {
        if let Some(error) = self.failed {
            return Err(error).context("write standard output");
        }
        let (code, by_signal) = self.exit.context("the program closed without an exit code")?;
        Ok(Ended { code, by_signal, stdout_closed: self.stdout_closed })
    }
}

async fn write_all(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

fn read<'de, T: Deserialize<'de>>(params: Option<&'de RawValue>) -> anyhow::Result<T> {
    let params = params.context("a notification has no params")?;
    serde_json::from_str(params.get()).context("read a notification")
}
