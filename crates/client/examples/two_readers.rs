//! Readers that do not know of each other, on the server of `EXEC_SERVER_URL`: each sees every event, in order, once.
//!
//! Two are cursors of the program that started the process; a third belongs to another session, as `exec-server logs -f` or
//! a dashboard would; a fourth comes when all is over. The slowest of those that hold decides how far the process may run
//! ahead. One that only looks on (`hold: false`) never slows it down, and would be told of what it missed as a gap.

use std::error::Error;

use exec_server_client::{
    Attach, Client, Event, Events, Process, Start,
    protocol::process::{Scope, Stream},
};
use tokio::io::AsyncReadExt as _;

/// Below the 1 MiB that is kept for readers who come late, so that even the last one finds all of it.
const LINES: u32 = 100_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url =
        std::env::var_os("EXEC_SERVER_URL").and_then(|url| url.into_string().ok()).ok_or("set EXEC_SERVER_URL")?;
    let expected: String = (1..=LINES).map(|line| format!("{line}\n")).collect();

    let owner = Client::connect(&url).await?;
    // It waits for a word, so that nobody is late who does not want to be.
    let script = format!("read go; seq 1 {LINES}; echo counted >&2");
    let process = owner.start(Start::new(["sh", "-c", &script]).pipe_stdin(true)).await?;

    let looker = Client::connect(&url).await?;
    let all = looker.list(Scope::All).await?;
    let found = all.iter().find(|found| found.process_id == *process.id()).ok_or("the process is not listed")?;
    let watched = Attach { session_id: Some(found.session_id.clone()), after: 0, hold: false };
    let watched = looker.attach(&found.process_id, watched).await?;

    // Each cursor begins here, whenever it is read: what one has not passed is kept for it.
    let (mut stdout, mut stderr, events, seen) =
        (process.stdout(), process.stderr(), process.events(), watched.events());
    process.write("go\n").await?;
    let (mut bytes, mut words) = (Vec::new(), String::new());
    let (whole, observed, out, err) = tokio::join!(
        collect(events),
        collect(seen),
        stdout.read_to_end(&mut bytes),
        // Beside the other and not after it: a cursor that stands still holds the process back.
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
    // A handle's end is not the process's, and a looker's end is nobody's business; the sessions go because we say so.
    looker.end_session().await?;
    owner.end_session().await?;
    eprintln!("two_readers: every reader has the same {LINES} lines");
    Ok(())
}

/// What an event reader finds on standard output, to the end.
async fn collect(mut events: Events) -> Result<Vec<u8>, Box<dyn Error>> {
    let (mut all, mut last) = (Vec::new(), 0);
    while let Some(event) = events.next().await {
        match event {
            Event::Output { stream: Stream::Stdout, ref bytes, .. } => all.extend_from_slice(bytes),
            Event::Output { .. } | Event::Exited { .. } | Event::Closed { .. } => {}
            Event::Gap { from_seq, to_seq, .. } => return Err(format!("{from_seq} to {to_seq} are gone").into()),
            Event::Failed(error) => return Err(error.into()),
        }
        // Numbers are without holes, so a reader can always say where it is and go on from there.
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
