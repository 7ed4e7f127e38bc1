//! An agent's loop on the server of `EXEC_SERVER_URL` that loses nothing: neither to a cut link, nor to its own death.
//!
//! It starts a job that stops after each of its steps until it is told to go on. At a third of the way the link is cut. At
//! two thirds the agent dies at the worst moment, when it has answered and not noted that; the next one goes on from three
//! words in a file. At the end every step was seen, in order.
//!
//! Two rules make it so. What was handled is noted before the next event is asked for, because then it counts as taken. And
//! an answer names what it answers, here the step: one life of an agent writes exactly once, two lives may write twice.

use std::{
    error::Error,
    fs, io, mem,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use exec_server_client::{
    Attach, Client, Event, Process, Start,
    protocol::SessionId,
    transport::{BoxFuture, Connect, Connection, Dialer},
};
use tokio::{io::copy_bidirectional, sync::watch, task::JoinSet};

const STEPS: u32 = 30;
const JOB: &str = "i=0; told=0
    while [ $i -lt 30 ]; do i=$((i+1)); echo step $i
        until [ \"$n\" = $i ]; do read n || exit 9; told=$((told+1)); done
    done; echo told $told times; exit 7";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url =
        std::env::var_os("EXEC_SERVER_URL").and_then(|url| url.into_string().ok()).ok_or("set EXEC_SERVER_URL")?;
    let path = std::env::temp_dir().join(format!("agent-{}.notes", std::process::id()));

    let cut = watch::Sender::new(0);
    let way = Cuttable { dialer: Dialer::new(url.parse()?), cut: cut.subscribe(), links: Mutex::default() };
    let client = Client::builder().name("agent").open(way).await?;
    let process = client.start(Start::new(["sh", "-c", JOB]).id("job").pipe_stdin(true)).await?;
    let session_id = client.session_id().ok_or("this server has no sessions")?;
    let mut agent = Agent { path: path.clone(), session_id, position: 0, seen: 0 };
    agent.note()?;
    let cut_at = |step| {
        if step == STEPS / 3 {
            cut.send_modify(|cuts| *cuts += 1)
        }
    };
    agent.work(&process, cut_at, Some(STEPS * 2 / 3)).await?;
    // No goodbye, and nothing in memory survives. The job does.
    drop((agent, process, client));

    let mut agent = Agent::recall(&path)?;
    // The server may not have missed the first connection yet; `takeover` does not wait for that.
    let again = Client::builder().name("agent").resume(agent.session_id.clone()).takeover(true).connect(&url).await?;
    let process = again.attach(&"job".into(), Attach { after: agent.position, ..Attach::default() }).await?;
    let last = agent.work(&process, |_| {}, None).await?;

    let exit = process.wait().await?;
    if (agent.seen, last.as_str(), exit.code) != (STEPS, "told 31 times\n", 7) {
        return Err(format!("{} steps were seen, and the job ended with {}: {last}", agent.seen, exit.code).into());
    }
    // Nobody comes back to this session any more.
    again.end_session().await?;
    fs::remove_file(&path)?;
    eprintln!("agent: {STEPS} steps in order through 1 cut and 1 death, 1 answer repeated and skipped, nothing lost");
    Ok(())
}

/// Everything that survives its death is in the file.
struct Agent {
    path: PathBuf,
    session_id: SessionId,
    /// The number of the last event that was handled.
    position: u64,
    seen: u32,
}

impl Agent {
    /// Answers every step until the job has ended, or until this life does; the job's last words.
    async fn work(
        &mut self,
        job: &Process,
        before: impl Fn(u32),
        dies_at: Option<u32>,
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
            // A piece of output need not be a line; only whole ones are noted.
            let Some(step) = line.strip_prefix("step ").and_then(|step| step.strip_suffix('\n')) else { continue };
            let expected = self.seen + 1;
            if step != expected.to_string() {
                return Err(format!("step {step} came in place of {expected}").into());
            }
            before(expected);
            // Waits for the link if that is cut, and reaches the job once whatever was cut.
            job.write(format!("{expected}\n")).await?;
            if dies_at == Some(expected) {
                break;
            }
            line.clear();
            (self.position, self.seen) = (events.position(), expected);
            self.note()?;
        }
        Ok(line)
    }

    fn note(&self) -> io::Result<()> {
        let aside = self.path.with_extension("new");
        fs::write(&aside, format!("{} {} {}", self.session_id, self.position, self.seen))?;
        fs::rename(aside, &self.path)
    }

    fn recall(path: &Path) -> Result<Self, Box<dyn Error>> {
        let text = fs::read_to_string(path)?;
        let [session_id, position, seen] = text.split(' ').collect::<Vec<_>>()[..] else {
            return Err("bad notes".into());
        };
        Ok(Self { path: path.into(), session_id: session_id.into(), position: position.parse()?, seen: seen.parse()? })
    }
}

/// The way to the server with a place to cut it: any way will do, a `Connect` of one's own as well as a URL.
struct Cuttable {
    dialer: Dialer,
    cut: watch::Receiver<u32>,
    links: Mutex<JoinSet<()>>,
}

impl Connect for Cuttable {
    fn connect(&self) -> BoxFuture<'_, Result<Connection, exec_server_client::Error>> {
        Box::pin(async {
            let mut connection = self.dialer.connect().await?;
            let (near, mut far) = tokio::io::duplex(1 << 16);
            let (reader, writer) = tokio::io::split(near);
            let reader = mem::replace(&mut connection.stream.reader, Box::new(reader));
            let writer = mem::replace(&mut connection.stream.writer, Box::new(writer));
            let mut cut = self.cut.clone();
            self.links.lock().unwrap_or_else(PoisonError::into_inner).spawn(async move {
                // Whichever comes first ends both directions, wherever in a message they are.
                tokio::select! {
                    _ = copy_bidirectional(&mut tokio::io::join(reader, writer), &mut far) => {}
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
