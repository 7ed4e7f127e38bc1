//! Runs a command on the server of `EXEC_SERVER_URL`, or inside this program if the variable is not set: `run_command PROGRAM
//! [ARGUMENT]...`
//!
//! Stdout and stderr stay separate and unchanged, stdin is forwarded up to EOF, and the exit code is that of the command. This code does
//! not handle cut connections: the client reconnects by itself.

use std::{error::Error, process::ExitCode};

use exec_server_client::{Event, Start, environment::Environment, local, protocol::process::Stream};
use tokio::{
    io::{AsyncWriteExt as _, stderr, stdin, stdout},
    runtime::Runtime,
    task::JoinSet,
};

fn main() -> ExitCode {
    // This must come first: it forks, and a fork does not copy threads. Without it, the command needs a server.
    let runtime = match local::embed().and_then(|()| Runtime::new()) {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let code = runtime.block_on(run(std::env::args().skip(1).collect()));
    // A blocking read of the terminal cannot be cancelled. Do not wait for the next key.
    runtime.shutdown_background();
    code.unwrap_or_else(|error| failed(&*error))
}

async fn run(argv: Vec<String>) -> Result<ExitCode, Box<dyn Error>> {
    let Some(environment) = Environment::from_env()? else { return Err("EXEC_SERVER_URL says `none`".into()) };
    let place = environment.backend().await?;
    let ended = follow(&place.client().start(Start::new(argv).pipe_stdin(true)).await?).await;
    // No client will resume this session. Otherwise the server would keep it for a day.
    place.client().end_session().await?;
    ended
}

async fn follow(process: &exec_server_client::Process) -> Result<ExitCode, Box<dyn Error>> {
    let mut input = process.stdin();
    let mut typing = JoinSet::new();
    typing.spawn(async move {
        // Errors are ignored: a command may exit without reading its stdin.
        tokio::io::copy(&mut stdin(), &mut input).await.ok();
        input.shutdown().await.ok();
    });
    let (mut stdout, mut stderr) = (stdout(), stderr());
    let mut events = process.events();
    while let Some(event) = events.next().await {
        match event {
            // Write before asking for the next event, so that a slow reader of this program's output blocks the command and memory stays
            // small.
            Event::Output { stream: Stream::Stderr, bytes, .. } => stderr.write_all(&bytes).await?,
            Event::Output { bytes, .. } => stdout.write_all(&bytes).await?,
            Event::Gap { bytes, .. } => return Err(format!("{bytes:?} bytes of output are gone").into()),
            Event::Exited { .. } => {} // Children that the command left behind may still write.
            Event::Closed { .. } => break,
            Event::Failed(error) => return Err(error.into()),
        }
    }
    stdout.flush().await?;
    stderr.flush().await?;
    let exit = process.exit().ok_or("closed without an exit")?;
    Ok(ExitCode::from(u8::try_from(exit.code).unwrap_or(u8::MAX)))
}

fn failed(error: &dyn Error) -> ExitCode {
    eprintln!("run_command: {error}");
    ExitCode::from(255)
}
