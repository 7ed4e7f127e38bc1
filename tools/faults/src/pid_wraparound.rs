//! F14: pids wrap around, and pids of ended processes are reused by others.
//!
//! The server runs in a pid namespace with few pids. One session starts and ends processes; another one then gets their pids for its own.
//! Signals and terminations for the ended processes must reach no process: a bystander would die from any of them.

use std::collections::BTreeSet;

use crate::prelude::*;

/// Number of pids in the namespace. The kernel requires more than 300, and after the first round hands out only those above.
const NUMBERS: usize = 420;

/// Number of pids that are reused.
const ROUND: usize = NUMBERS - 300;

/// Processes that end before their pids are reused.
const ENDED: usize = 40;

/// Processes that run later with the same pids.
const BYSTANDERS: usize = 40;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let rounds = setting.pick(1, 2, 5);
    let (mut reused, mut sent) = (0, 0);
    for round in 0..rounds {
        // The shell is pid 1 of the namespace, and reaps orphans.
        let script = format!("echo {NUMBERS} > /proc/sys/kernel/pid_max || exit 9; \"$0\" \"$@\" & wait");
        let unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "/bin/sh", "-c", &script];
        let setup = Setup::new(&setting.binary)?.through(&unshare);
        let server = setup.start().context("a namespace with few numbers needs root and Linux 6.14")?;
        let context = || format!("round {round}; the server says: {}", setup.log_tail());
        let outcome = exchange(&server.address).with_context(context)?;
        ensure!(outcome.0 > 0, "no number came back: nothing was tried");
        reused += outcome.0;
        sent += outcome.1;
        server.kill()?;
        setup.wait_gone(std::time::Duration::from_secs(5))?;
        setup.ensure_no_panic()?;
    }
    Figures::survived(sent).set("numbers_reused", reused).only_line()
}

/// Returns how many bystanders had the pid of an ended process, and how many signals were sent to the ended ones.
fn exchange(address: &wire::ServerAddress) -> Result<(usize, u64)> {
    let (mut past, _) = WireClient::session(address)?;
    let (mut present, _) = WireClient::session(address)?;
    // Use all pids once, so that the following ones will be reused.
    burn(&mut past, "all", NUMBERS)?;
    for number in 0..ENDED {
        past.start(&format!("ended-{number}"), &["/bin/true"])?;
    }
    past.wait_closed(ENDED)?;
    let old = pids(&past.call("process/list", &json!({}))?);
    // Use the rest of the round, so that the bystanders get the pids of the ended processes.
    burn(&mut past, "rest", ROUND - ENDED - 10)?;
    for number in 0..BYSTANDERS {
        present.start(&format!("bystander-{number}"), &["/bin/sleep", "1000"])?;
    }
    let shared = pids(&present.call("process/list", &json!({}))?).intersection(&old).count();
    let mut sent = 0;
    for number in 0..ENDED {
        let id = format!("ended-{number}");
        past.call("process/signal", &json!({ "processId": id, "signal": "SIGTERM" }))?;
        past.call("process/terminate", &json!({ "processId": id }))?;
        past.call("process/terminate", &json!({ "processId": id, "graceMs": 10 }))?;
        sent += 3;
    }
    past.end_session()?;
    let list = present.call("process/list", &json!({}))?;
    let entries = list["processes"].as_array().context("a list")?;
    let dead: Vec<&Value> = entries.iter().filter(|entry| entry["exited"] != false).collect();
    ensure!(entries.len() == BYSTANDERS && dead.is_empty(), "hit: {dead:?}");
    present.end_session()?;
    Ok((shared, sent))
}

/// Uses up this many pids, one after the other.
fn burn(wire: &mut WireClient, id: &str, count: usize) -> Result<()> {
    let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done");
    wire.start(id, &["/bin/sh", "-c", &script])?;
    wire.wait_closed(1)?;
    wire.call("process/forget", &json!({ "processId": id }))?;
    Ok(())
}

fn pids(list: &Value) -> BTreeSet<u64> {
    list["processes"].as_array().into_iter().flatten().filter_map(|entry| entry["pid"].as_u64()).collect()
}
