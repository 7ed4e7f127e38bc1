//! Independent readers of one process on the server of `EXEC_SERVER_URL`: each one sees every event, in order, once.
//!
//! Two readers are cursors of the program that started the process. The third belongs to another session, like `exec-server logs -f` or a
//! dashboard. The fourth begins after the process has ended. The slowest reader with `hold` limits how far the process may run ahead. A
//! reader with `hold: false` never slows the process down, and sees a gap for events that it missed.

use std::error::Error;

use exec_server_client::{
    Attach, Client, Event, Events, Process, Start,
    protocol::process::{Scope, Stream},
};
use tokio::io::AsyncReadExt as _;

/// Less than the 1 MiB of output that is kept for late readers, so that the last reader finds all of it.
const LINES: u32 = 100_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url =
        std::env::var_os("EXEC_SERVER_URL").and_then(|url| url.into_string().ok()).ok_or("set EXEC_SERVER_URL")?;
    let expected: String = (1..=LINES).map(|line| format!("{line}\n")).collect();

    let owner = Client::connect(&url).await?;
    // The process waits for a line of input, so that all readers can begin before its output does.
    let script = format!("read go; seq 1 {LINES}; echo counted >&2");
    let process = owner.start(Start::new(["sh", "-c", &script]).pipe_stdin(true)).await?;

    let looker = Client::connect(&url).await?;
    let all = looker.list(Scope::All).await?;
    let found = all.iter().find(|found| found.process_id == *process.id()).ok_or("the process is not listed")?;
    let watched = Attach { session_id: Some(found.session_id.clone()), after: 0, hold: false };
    let watched = looker.attach(&found.process_id, watched).await?;

    // Each cursor begins here, even if it is read later: output that it has not consumed is kept.
    let (mut stdout, mut stderr, events, seen) =
        (process.stdout(), process.stderr(), process.events(), watched.events());
    process.write("go\n").await?;
    let (mut bytes, mut words) = (Vec::new(), String::new());
    let (whole, observed, out, err) = tokio::join!(
        collect(events),
        collect(seen),
        stdout.read_to_end(&mut bytes),
        // Read concurrently with stdout, not after it: a cursor that is not read blocks the process.
        stderr.read_to_string(&mut words),
    );
    out.and(err)?;
    let late = collect(process.events()).await?;

    let readers = [
        ("stdout as bytes", bytes),
        ("events", whole?),
        ("events, another session", observed?),
        ("events, late", late),
    ];
    for (name, bytes) in &readers {
        if *bytes != expected.as_bytes() {
            return Err(format!("{name}: {} of {} bytes, or others", bytes.len(), expected.len()).into());
        }
        eprintln!("{:>8} bytes  {name}", bytes.len());
    }
    check_end(&process, &words)?;
    // Dropping a handle does not end its process, and an observer does not affect it. The sessions end because of these calls.
    looker.end_session().await?;
    owner.end_session().await?;
    eprintln!("two_readers: every reader has the same {LINES} lines");
    Ok(())
}

/// Reads all of stdout as events.
async fn collect(mut events: Events) -> Result<Vec<u8>, Box<dyn Error>> {
    let (mut all, mut last) = (Vec::new(), 0);
    while let Some(event) = events.next().await {
        match event {
            Event::Output { stream: Stream::Stdout, ref bytes, .. } => all.extend_from_slice(bytes),
            Event::Output { .. } | Event::Exited { .. } | Event::Closed { .. } => {}
            Event::Gap { from_seq, to_seq, .. } => return Err(format!("{from_seq} to {to_seq} are gone").into()),
            Event::Failed(error) => return Err(error.into()),
        }
        // Sequence numbers have no holes, so a reader can always continue from its position.
        if events.position() != last + 1 {
            return Err(format!("{} came after {last}", events.position()).into());
        }
        last = events.position();
    }
    Ok(all)
}

fn check_end(process: &Process, words: &str) -> Result<(), Box<dyn Error>> {
    let totals = process.closed().ok_or("not closed")?;
    if (words, totals.dropped_bytes) != ("counted\n", Some(0)) {
        return Err(format!("{words:?}, {totals:?}").into());
    }
    Ok(())
}
