//! `exec-server dial-stdio`: copies bytes between our standard streams and the server of a state directory.
//!
//! No message is parsed here. EOF on our stdin only detaches the session, because a broken ssh connection looks the same.

use std::{io, process::ExitCode};

use anyhow::Context as _;
use tokio::{
    io::{AsyncWriteExt as _, copy},
    net::UnixStream,
};

use crate::{args, dial, runtime, state_location};

/// Connects, starting the server if it does not run, and copies until either side ends.
pub(crate) fn run(args: &args::DialStdioArgs) -> anyhow::Result<ExitCode> {
    let dir = state_location::of_user(args.state_dir.as_deref())?;
    runtime::block_on(async { carry(dial::dial(&dir).await?).await })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends when the server has closed and all its bytes are written, or when our input has ended and the server has then closed its side.
async fn carry(socket: UnixStream) -> anyhow::Result<()> {
    let stdio = exec_server_rpc::stdio();
    let (mut stdin, mut stdout) = (stdio.reader, stdio.writer);
    let (mut from_server, mut to_server) = socket.into_split();
    let up = async {
        let copied = copy(&mut stdin, &mut to_server).await;
        // The server may have gone already, so ignore the error.
        to_server.shutdown().await.ok();
        copied
    };
    let down = async {
        let copied = copy(&mut from_server, &mut stdout).await;
        stdout.flush().await.and(copied)
    };
    tokio::pin!(up, down);
    // Cancel-safe: if `up` completes first, `down` is awaited to its end; if `down` completes first, `up` is no longer needed.
    tokio::select! {
        copied = &mut down => finish(copied, "carry from the server"),
        copied = &mut up => {
            finish(copied, "carry to the server")?;
            finish(down.await, "carry from the server")
        }
    }
}

/// A peer that disconnected is a normal end, not an error.
fn finish(copied: io::Result<u64>, what: &'static str) -> anyhow::Result<()> {
    match copied {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
        Err(error) => Err(error).context(what),
    }
}
