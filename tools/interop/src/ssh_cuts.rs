//! ssh is killed on either side repeatedly while `run` transfers records over `ssh://`: nothing is lost.

use std::{sync::atomic::Ordering, thread};

use crate::prelude::*;
use exec_server_harness::{
    Random,
    relay::{self, RelayJob, RelayTally, RelayWatch},
};

/// Kills during one run; the next run begins with a new start.
const KILLS_A_RUN: u64 = 5;

/// A new ssh must be running within this time: the client's pauses grow to 5 s if several attempts fail.
const NEXT_SSH: Duration = Duration::from_secs(30);

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let wanted = if world.ci { 10 } else { 50 };
    let host = RemoteHost::start(world, "ssh-far")?;
    host.install()?;
    let mut random = Random::new(3);
    let (mut killed, mut tally) = ([0, 0], RelayTally::default());
    while killed.iter().sum::<u64>() < wanted {
        let id = tally.runs + 1;
        let watch = RelayWatch::default();
        // Slow enough that the run lasts until it is ended, fast enough that each kill hits data in flight.
        let job = RelayJob { id, count: u64::MAX, random: random.fork(), pause: Duration::from_millis(2) };
        let (moved, nemesis) = thread::scope(|scope| {
            let watch = &watch;
            let mut run = host.exec_server(&["run", "--connect", "ssh://box"]);
            let moving = scope.spawn(move || {
                let moved = relay::execute(&mut run, job, watch);
                watch.over.store(true, Ordering::Relaxed);
                moved
            });
            let nemesis = kill_often(&host, watch, &mut random, &mut killed);
            watch.over.store(true, Ordering::Relaxed);
            (moving.join().expect("the run does not panic"), nemesis)
        });
        let context = || format!("run {id}, killed {killed:?} so far; sshd says: {}", host.log_tail());
        tally += moved.with_context(context)?;
        nemesis.with_context(context)?;
    }
    host.stop()?;
    Ok(vec![format!(
        "ssh killed {} times here and {} times there during {} runs of {} bytes, {} quiet lines, nothing lost,",
        killed[0], killed[1], tally.runs, tally.bytes, tally.quiet,
    )])
}

/// Kills ssh and its server alternately, each time a process that was started after the last kill.
fn kill_often(host: &RemoteHost<'_>, watch: &RelayWatch, random: &mut Random, killed: &mut [u64; 2]) -> Result<()> {
    let mut last = None;
    for kills in 0..KILLS_A_RUN {
        // One kill in four hits a connection that is being established; but not the first one, because its failure would be reported at
        // once.
        let in_flow = kills == 0 || !random.one_in(4);
        let ssh = next_ssh(watch, last, in_flow)?;
        thread::sleep(Duration::from_millis(random.between(0, 400)));
        let here = killed[0] <= killed[1];
        let victim = if here { Some(ssh) } else { pick(&host.sessions(), random) };
        if victim.is_some_and(|victim| processes::kill(victim, Signal::KILL)) {
            killed[usize::from(!here)] += 1;
            last = Some(ssh);
        }
    }
    // The client also recovers from the last kill.
    next_ssh(watch, last, true).map(drop)
}

/// Waits for a new ssh and, with `in_flow`, for output over it.
fn next_ssh(watch: &RelayWatch, last: Option<u32>, in_flow: bool) -> Result<u32> {
    let is_over = || watch.over.load(Ordering::Relaxed);
    let mut ssh = None;
    wait_until("a new ssh runs", NEXT_SSH, || {
        ssh = find_ssh(watch.pid.load(Ordering::Relaxed)).filter(|ssh| Some(*ssh) != last);
        is_over() || ssh.is_some()
    })?;
    let back = || watch.back.load(Ordering::Relaxed);
    let before = back();
    wait_until("output comes over the new ssh", NEXT_SSH, || is_over() || !in_flow || back() > before)?;
    ensure!(!is_over(), "the run ended before it was told to");
    ssh.context("a new ssh was found")
}

/// The ssh that `run` started.
fn find_ssh(run: u32) -> Option<u32> {
    processes::children_of(run).into_iter().find(|pid| processes::comm(*pid).is_some_and(|name| name == "ssh"))
}

fn pick(pids: &[u32], random: &mut Random) -> Option<u32> {
    let at = random.between(0, pids.len().max(1) as u64);
    pids.get(usize::try_from(at).ok()?).copied()
}
