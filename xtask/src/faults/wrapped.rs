//! F14: process ids wrap around, and numbers of ended processes come back in other hands.
//!
//! The server runs in a process-id namespace with few numbers. One session starts and ends processes; another then gets their
//! numbers for its own. Signals and terminations sent to the ended ones must reach nobody: a bystander dies of any of them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Figures, Setting};
use crate::{
    server::Setup,
    wire::{self, Incoming, Wire},
};

/// Numbers in the namespace. The kernel wants more than 300, and after the first round gives out only those above.
const NUMBERS: usize = 420;

/// Numbers that go round.
const ROUND: usize = NUMBERS - 300;

/// Processes that end before their numbers are given out again.
const ENDED: usize = 40;

/// Processes that live on the same numbers later.
const BYSTANDERS: usize = 40;

pub(super) fn run(setting: &Setting) -> Result<Vec<Figures>> {
    let rounds = setting.pick(1, 2, 5);
    let (mut reused, mut sent) = (0, 0);
    for round in 0..rounds {
        // The shell is the first process of the namespace, and reaps what comes to it.
        let script = format!("echo {NUMBERS} > /proc/sys/kernel/pid_max || exit 9; \"$0\" \"$@\" & wait");
        let setup = Setup::new(&setting.binary)?.through(&[
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "/bin/sh",
            "-c",
            &script,
        ]);
        let server = setup.start().context("a namespace with few numbers needs root and Linux 6.14")?;
        let said = || format!("round {round}; the server says: {}", setup.log_tail());
        let outcome = exchange(&server.address).with_context(said)?;
        ensure!(outcome.0 > 0, "no number came back: nothing was tried");
        reused += outcome.0;
        sent += outcome.1;
        server.kill()?;
        setup.wait_gone(std::time::Duration::from_secs(5))?;
        setup.ensure_no_panic()?;
    }
    Ok(vec![Figures::default().survived(sent).set("numbers_reused", reused)])
}

/// How many bystanders had a number of an ended process, and how many signals went to the ended ones.
fn exchange(address: &wire::Address) -> Result<(usize, u64)> {
    let (mut past, _) = Wire::session(address)?;
    let (mut present, _) = Wire::session(address)?;
    // Once through all numbers, so that those that follow will come back.
    burn(&mut past, "all", NUMBERS)?;
    for number in 0..ENDED {
        past.call("process/start", &wire::start(&format!("ended-{number}"), &["/bin/true"]))?;
    }
    wait_closed(&mut past, ENDED)?;
    let old = pids(&past.call("process/list", &json!({}))?);
    // The rest of the round; the bystanders get the numbers of the ended.
    burn(&mut past, "rest", ROUND - ENDED - 10)?;
    for number in 0..BYSTANDERS {
        present.call("process/start", &wire::start(&format!("bystander-{number}"), &["/bin/sleep", "1000"]))?;
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
    past.call("session/end", &json!({}))?;
    let list = present.call("process/list", &json!({}))?;
    let entries = list["processes"].as_array().context("a list")?;
    let dead: Vec<&Value> = entries.iter().filter(|entry| entry["exited"] != false).collect();
    ensure!(entries.len() == BYSTANDERS && dead.is_empty(), "hit: {dead:?}");
    present.call("session/end", &json!({}))?;
    Ok((shared, sent))
}

/// Takes this many numbers, one after the other.
fn burn(wire: &mut Wire, id: &str, count: usize) -> Result<()> {
    let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done");
    wire.call("process/start", &wire::start(id, &["/bin/sh", "-c", &script]))?;
    wait_closed(wire, 1)?;
    wire.call("process/forget", &json!({ "processId": id }))?;
    Ok(())
}

fn wait_closed(wire: &mut Wire, count: usize) -> Result<()> {
    let mut closed = 0;
    while closed < count {
        closed += usize::from(matches!(wire.next()?, Incoming::Closed { .. }));
    }
    Ok(())
}

fn pids(list: &Value) -> BTreeSet<u64> {
    list["processes"].as_array().into_iter().flatten().filter_map(|entry| entry["pid"].as_u64()).collect()
}
