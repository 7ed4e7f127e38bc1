//! An agent's loop on the server of `EXEC_SERVER_URL` that loses nothing: neither to a cut link, nor to its own death.
//!
//! It starts a job that stops after each step until it is told to go on. At a third of the way the link is cut. At two thirds
//! the agent dies at the worst moment, when it has answered and not noted it; the next one goes on from three words in a file.
//!
//! Two rules keep every step. What was handled is noted before the next event is asked for, because then it counts as taken.
//! And an answer names what it answers, here the step: one life of an agent writes exactly once, two lives may write twice.

use std::{
    error::Error,
    fs, mem,
    path::Path,
    sync::{Mutex, PoisonError},
};

use exec_server_client::{
    Attach, Client, Event, Process, Start,
    protocol::SessionId,
    transport::{BoxFuture, Connect, Connection, Dialer},
};
use tokio::{io, sync::watch, task::JoinSet};

const JOB: &str = "i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo step $i
    until [ \"$n\" = $i ]; do read n || exit 9; told=$((told+1)); done; done; echo told $told times; exit 7";
const CUT_AT: u32 = 10;
const DIES_AT: u32 = 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var_os("EXEC_SERVER_URL").and_then(|url| url.into_string().ok());
    let url = url.ok_or("set EXEC_SERVER_URL")?;
    let notes = std::env::temp_dir().join(format!("agent-{}.notes", std::process::id()));

    let cut = watch::Sender::new(());
    let way = Cuttable { dialer: Dialer::new(url.parse()?), cut: cut.clone(), links: Mutex::default() };
    let client = Client::builder().name("agent").open(way).await?;
    let state = client.watch_state();
    let job = client.start(Start::new(["sh", "-c", JOB]).id("job").pipe_stdin(true)).await?;
    let mut agent = Agent { session_id: client.session_id().ok_or("no sessions here")?, position: 0, seen: 0 };
    agent.work(&job, &notes, Some(&cut)).await?;
    if !state.has_changed()? {
        return Err("the link was not cut".into());
    }
    // No goodbye, and nothing in memory survives. The job does.
    drop((agent, job, client));

    let mut agent = Agent::recall(&notes)?;
    // The server may not have missed the first connection yet; `takeover` does not wait for that.
    let again = Client::builder().name("agent").resume(agent.session_id.clone()).takeover(true).connect(&url).await?;
    let job = again.attach(&"job".into(), Attach { after: agent.position, ..Attach::default() }).await?;
    let last = agent.work(&job, &notes, None).await?;
    let exit = job.wait().await?;
    if (agent.seen, last.as_str(), exit.code) != (30, "told 31 times\n", 7) {
        return Err(format!("{} steps were seen, and the job ended with {}: {last}", agent.seen, exit.code).into());
    }
    again.end_session().await?; // Nobody comes back to it any more.
    fs::remove_file(&notes)?;
    eprintln!("agent: 30 steps in order through a cut and a death; 1 answer repeated and skipped, nothing lost");
    Ok(())
}

/// Everything that survives its death.
struct Agent {
    session_id: SessionId,
    /// The number of the last event that was handled.
    position: u64,
    seen: u32,
}

impl Agent {
    /// Answers every step until the job has ended, or, with a link to cut, until this life does; the job's last words.
    async fn work(
        &mut self,
        job: &Process,
        notes: &Path,
        cut: Option<&watch::Sender<()>>,
    ) -> Result<String, Box<dyn Error>> {
        let mut events = job.events_after(self.position);
        let mut line = String::new();
        while let Some(event) = events.next().await {
            match event {
                Event::Output { bytes, .. } => line.push_str(str::from_utf8(&bytes)?),
                Event::Exited { .. } | Event::Closed { .. } => continue,
                Event::Gap { .. } => return Err("output is gone".into()),
                Event::Failed(error) => return Err(error.into()),
            }
            // A piece of output need not be a line, and only whole ones are noted.
            let Some(step) = line.strip_prefix("step ").and_then(|step| step.strip_suffix('\n')) else { continue };
            if step != (self.seen + 1).to_string() {
                return Err(format!("step {step} came after step {}", self.seen).into());
            }
            if let Some(cut) = cut.filter(|_| self.seen + 1 == CUT_AT) {
                cut.send_replace(());
            }
            // Waits while the link is cut, and reaches the job once, whatever was under way.
            job.write(format!("{step}\n")).await?;
            if cut.is_some() && self.seen + 1 == DIES_AT {
                break;
            }
            (self.position, self.seen) = (events.position(), self.seen + 1);
            line.clear();
            fs::write(notes.with_extension("new"), format!("{} {} {}", self.session_id, self.position, self.seen))?;
            fs::rename(notes.with_extension("new"), notes)?;
        }
        Ok(line)
    }

    fn recall(notes: &Path) -> Result<Self, Box<dyn Error>> {
        let text = fs::read_to_string(notes)?;
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or("the notes are not whole");
        Ok(Self { session_id: word()?.into(), position: word()?.parse()?, seen: word()?.parse()? })
    }
}

/// The way to the server with a place to cut it. Every way is a `Connect`: a URL's dialer, or one's own.
struct Cuttable {
    dialer: Dialer,
    cut: watch::Sender<()>,
    links: Mutex<JoinSet<()>>,
}

impl Connect for Cuttable {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, exec_server_client::Error>> {
        Box::pin(async {
            let mut connection = self.dialer.connect().await?;
            let (near, mut far) = io::duplex(1 << 16);
            let (reader, writer) = io::split(near);
            let reader = mem::replace(&mut connection.stream.reader, Box::new(reader));
            let mut server = io::join(reader, mem::replace(&mut connection.stream.writer, Box::new(writer)));
            let mut cut = self.cut.subscribe();
            self.links.lock().unwrap_or_else(PoisonError::into_inner).spawn(async move {
                // Whichever comes first ends both directions, wherever in a message they are.
                tokio::select! {
                    _ = io::copy_bidirectional(&mut server, &mut far) => {}
                    _ = cut.changed() => {}
                }
            });
            Ok(connection)
        })
    }

    fn address(&self) -> String {
        self.dialer.address()
    }
}
