//! Reports why a process makes no progress: while a command waits for a process, this module polls whether the process is blocked on its
//! output, and prints the reason once.

use std::time::Duration;

use exec_server_client::{Process, protocol::process::Blocked};
use tokio::time;

use crate::ids;

/// How often the process is polled. If it is blocked at two polls in a row with no event in between, that is reported.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A sequence number beyond every event: a read after it returns no output, only the state of the process.
const BEYOND: u64 = u64::MAX / 2;

/// Polls the process until the future is dropped; never returns. Cancel-safe.
pub(crate) async fn watch(process: &Process) {
    let mut seen = None;
    let mut is_reported = false;
    loop {
        time::sleep(LOOK_EVERY).await;
        // A broken link is reported elsewhere, and the end of the process ends the command.
        let Ok(read) = process.read(BEYOND, None, Duration::ZERO).await else { continue };
        let now = read.blocked.map(|blocked| (blocked, read.next_seq));
        match now.filter(|_| now == seen) {
            Some((blocked, _)) if !is_reported => {
                is_reported = true;
                report!("{}", explain(process, blocked));
            }
            Some(_) => {}
            None => is_reported = false,
        }
        seen = now;
    }
}

fn explain(process: &Process, blocked: Blocked) -> String {
    let name = ids::clean(process.id().as_str());
    let why = match blocked {
        Blocked::Quota => "its output has reached the disk quota",
        Blocked::DiskFull => "the disk of the server is full",
        Blocked::MemoryCap => {
            return format!("`{name}` is blocked: the client of its session does not read the output");
        }
    };
    format!(
        "`{name}` is blocked: {why}; `exec-server logs -f {name}` prints and frees the output, \
         `exec-server kill {name}` ends the process"
    )
}
