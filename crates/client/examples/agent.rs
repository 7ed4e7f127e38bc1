//! An agent's loop on the server of `EXEC_SERVER_URL` that loses nothing, neither when the connection is cut nor when the agent dies.
//!
//! The agent starts a job that stops after each step until the agent answers. After a third of the steps the connection is cut. After two
//! thirds the agent dies at the worst moment: it has answered a step and not stored that. The next agent continues from three words in a
//! file.
//!
//! Two rules preserve every step. First, the agent stores what it has handled before it asks for the next event, because asking marks the
//! event as consumed. Second, each answer names its step: one agent writes exactly once, but two agents may answer the same step.

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
    // The agent dies: it closes nothing, and nothing in its memory survives. The job does.
    drop((agent, job, client));

    let mut agent = Agent::recall(&notes)?;
    // The server may not have noticed yet that the first connection is gone. `takeover` does not wait for that.
    let again = Client::builder().name("agent").resume(agent.session_id.clone()).takeover(true).connect(&url).await?;
    let job = again.attach(&"job".into(), Attach { after: agent.position, ..Attach::default() }).await?;
    let last = agent.work(&job, &notes, None).await?;
    let exit = job.wait().await?;
    if (agent.seen, last.as_str(), exit.code) != (30, "told 31 times\n", 7) {
        return Err(format!("{} steps were seen, and the job ended with {}: {last}", agent.seen, exit.code).into());
    }
    again.end_session().await?; // No client will resume this session.
    fs::remove_file(&notes)?;
    eprintln!("agent: 30 steps in order through a cut and a death; 1 answer repeated and skipped, nothing lost");
    Ok(())
}

/// The state that survives the agent's death.
struct Agent {
    session_id: SessionId,
    /// The sequence number of the last event that was handled.
    position: u64,
    seen: u32,
}

impl Agent {
    /// Answers every step until the job ends, or, if `cut` is set, until this agent dies. Returns the job's last output.
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
            // A piece of output is not necessarily a line. Only complete lines are stored.
            let Some(step) = line.strip_prefix("step ").and_then(|step| step.strip_suffix('\n')) else { continue };
            if step != (self.seen + 1).to_string() {
                return Err(format!("step {step} came after step {}", self.seen).into());
            }
            if let Some(cut) = cut.filter(|_| self.seen + 1 == CUT_AT) {
                cut.send_replace(());
            }
            // Waits while the connection is cut, and reaches the job exactly once.
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

/// A transport that can be cut. Every transport is a `Connect`: the dialer of a URL, or a custom one like this.
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
                // The first of these ends both directions, even in the middle of a message.
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
