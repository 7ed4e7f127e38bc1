//! `exec-server dial-stdio`: carries bytes between our standard streams and the server of a state directory.
//!
//! Nothing here reads a message. Our end of file only detaches the session: that is what a broken ssh looks like.
//! Must not know the wire, nor how a server is found.

use std::{io, process::ExitCode};

use anyhow::Context as _;
use tokio::{
    io::{AsyncWriteExt as _, copy},
    net::UnixStream,
};

use crate::{args, dial, place, runtime};

/// Connects, starts the server where none runs, and carries until either side ends.
pub(crate) fn run(args: &args::DialStdio) -> anyhow::Result<ExitCode> {
    let dir = place::of_user(args.state_dir.as_deref())?;
    runtime::block_on(async { carry(dial::dial(&dir).await?).await })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends when the server closed and everything of it is written, or when our input ended and the server closed its side.
async fn carry(socket: UnixStream) -> anyhow::Result<()> {
    let stdio = exec_server_rpc::stdio();
    let (mut stdin, mut stdout) = (stdio.reader, stdio.writer);
    let (mut from_server, mut to_server) = socket.into_split();
    let up = async {
        let copied = copy(&mut stdin, &mut to_server).await;
        // The server may be gone already.
        to_server.shutdown().await.ok();
        copied
    };
    let down = async {
        let copied = copy(&mut from_server, &mut stdout).await;
        stdout.flush().await.and(copied)
    };
    tokio::pin!(up, down);
    // `up` is polled again after it lost, `down` never loses: both are whole.
    tokio::select! {
        copied = &mut down => finish(copied, "carry from the server"),
        copied = &mut up => {
            finish(copied, "carry to the server")?;
            finish(down.await, "carry from the server")
        }
    }
}

/// A peer that left is an end, not an error.
fn finish(copied: io::Result<u64>, what: &'static str) -> anyhow::Result<()> {
    match copied {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
        Err(error) => Err(error).context(what),
    }
}
