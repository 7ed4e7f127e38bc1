//! Why nothing moves: a process that waits for its output to be taken is looked at while a command waits for the process, and the
//! reason is said once. Must not know the command.

use std::time::Duration;

use exec_server_client::{Process, protocol::process::Blocked};
use tokio::time;

use crate::{ids, say};

/// How often the process is looked at. What stands still between two looks is worth a word.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A number beyond every event: a read behind it has no output and says how the process stands.
const BEYOND: u64 = u64::MAX / 2;

/// Looks at the process until it is dropped; never returns. Cancel safe.
pub(crate) async fn watch(process: &Process) {
    let mut seen = None;
    let mut is_told = false;
    loop {
        time::sleep(LOOK_EVERY).await;
        // A link that is down is another's to report, and a process that is gone ends the command.
        let Ok(read) = process.read(BEYOND, None, Duration::ZERO).await else { continue };
        let now = read.blocked.map(|blocked| (blocked, read.next_seq));
        match now.filter(|_| now == seen) {
            Some((blocked, _)) if !is_told => {
                is_told = true;
                say::talk(explain(process, blocked));
            }
            Some(_) => {}
            None => is_told = false,
        }
        seen = now;
    }
}

fn explain(process: &Process, blocked: Blocked) -> String {
    let name = ids::clean(process.id().as_str());
    let why = match blocked {
        Blocked::Quota => "its output has reached the disk quota",
        Blocked::DiskFull => "the disk of the server is full",
        Blocked::MemoryCap => return format!("exec-server: `{name}` waits: its client does not read its output"),
    };
    format!(
        "exec-server: `{name}` waits: {why}; `exec-server logs -f {name}` prints and frees it, \
         `exec-server kill {name}` ends the process"
    )
}
