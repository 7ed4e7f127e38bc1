//! Runs a command where `EXEC_SERVER_URL` says, or inside this program where nothing is said:
//! `run_command PROGRAM [ARGUMENT]...`
//!
//! Both output streams stay apart and byte exact, our standard input goes in to its end, and our exit code is the command's.
//! That the link may be cut and mended meanwhile does not show in this code: there is nothing to do about it.

use std::{error::Error, process::ExitCode};

use exec_server_client::{Event, Start, environment::Environment, local, protocol::process::Stream};
use tokio::{
    io::{AsyncWriteExt as _, stderr, stdin, stdout},
    runtime::Runtime,
    task::JoinSet,
};

fn main() -> ExitCode {
    // First of all: it forks, and a fork takes no threads along. Without it a server is needed.
    let runtime = match local::embed().and_then(|()| Runtime::new()) {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let code = runtime.block_on(run(std::env::args().skip(1).collect()));
    // Whoever reads a keyboard cannot be called back; we do not wait for the next key.
    runtime.shutdown_background();
    code.unwrap_or_else(|error| failed(&*error))
}

async fn run(argv: Vec<String>) -> Result<ExitCode, Box<dyn Error>> {
    let Some(environment) = Environment::from_env()? else { return Err("EXEC_SERVER_URL says `none`".into()) };
    let place = environment.backend().await?;
    let ended = follow(place.start(Start::new(argv).pipe_stdin(true)).await?.process()).await;
    // Nobody will come back to this session; left alone, the server would keep it for a day.
    place.client().end_session().await?;
    ended
}

async fn follow(process: &exec_server_client::Process) -> Result<ExitCode, Box<dyn Error>> {
    let mut input = process.stdin();
    let mut typing = JoinSet::new();
    typing.spawn(async move {
        // A command that does not read its input is no failure of ours.
        tokio::io::copy(&mut stdin(), &mut input).await.ok();
        input.shutdown().await.ok();
    });
    let (mut stdout, mut stderr) = (stdout(), stderr());
    let mut events = process.events();
    while let Some(event) = events.next().await {
        match event {
            // Written before the next event is asked for: a slow reader of ours holds the command back, and memory stays small.
            Event::Output { stream: Stream::Stderr, bytes, .. } => stderr.write_all(&bytes).await?,
            Event::Output { bytes, .. } => stdout.write_all(&bytes).await?,
            Event::Gap { bytes, .. } => return Err(format!("{bytes:?} bytes of output are gone").into()),
            Event::Exited { .. } => {} // What it left behind may still write.
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
