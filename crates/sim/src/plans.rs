//! Random scripts of children: all kinds of behaviour that a log and a holder must handle.

use crate::{
    child::ScriptStep::{Close, Eof, Exit, IgnoreTerm, Stdin, Wait, Write},
    prelude::*,
};

/// Draws a script. `heavy` makes scripts likely that write more than a log may hold.
pub(crate) fn draw(rng: &mut Rng, heavy: bool) -> Plan {
    let code = i32::try_from(rng.within(0..5)).expect("small");
    let mut plan = Plan { steps: Vec::new(), tty: false, stdin: false, drops: false, timeout_ms: None, idle_ms: None };
    let out = |stream, bytes, chunk, pause_ms| Write { stream, bytes, chunk, pause_ms };
    plan.steps = match if heavy && rng.chance(60) { 9 } else { rng.within(0..16) } {
        // Exits before its output can be read.
        0 => vec![out(0, rng.within(0..300), 100, 0), Exit(code)],
        // Writes after the exit, like a grandchild.
        1 => vec![
            out(0, rng.within(1..5000), 500, 1),
            Exit(code),
            Wait(rng.within(1..500)),
            out(0, rng.within(1..5000), 700, 3),
        ],
        // Stderr stays open long after everything else has ended.
        2 => vec![out(0, 100, 50, 1), Close(0), Exit(code), Wait(rng.within(500..6000))],
        // Ignores SIGTERM.
        3 => vec![IgnoreTerm, out(0, 2000, 100, 7), Wait(rng.within(1000..20_000)), Exit(code)],
        // Writes one byte at a time.
        4 => vec![out(0, rng.within(20..400), 1, 1), Exit(code)],
        // Writes a burst that fills the pipe, and also the log if its output is not read.
        5 => vec![out(0, rng.within(1 << 20..4 << 20), 64 << 10, 0), Exit(code)],
        // Writes to both streams.
        6 => vec![
            out(0, rng.within(1..40_000), 3000, 1),
            out(1, rng.within(1..20_000), 1000, 1),
            out(0, rng.within(1..2000), 10, 0),
            Exit(code),
        ],
        // Drops its oldest output.
        7 => {
            plan.drops = true;
            vec![
                out(0, rng.within(2 << 20..5 << 20), 32 << 10, 0),
                Wait(rng.within(1..3000)),
                out(0, rng.within(1..1 << 20), 8 << 10, 1),
                Exit(code),
            ]
        }
        // Runs as long as the world and writes a little at a time.
        8 => {
            let long = vec![out(0, rng.within(10_000..100_000), 500, rng.within(5..60)), Exit(code)];
            // Some of these ignore SIGTERM too.
            rng.chance(40).then_some(IgnoreTerm).into_iter().chain(long).collect()
        }
        // Writes more than the log may hold over several seconds, so that faults of its client occur in the middle of it.
        9 => {
            plan.drops = rng.chance(25);
            vec![out(0, rng.within(7 << 19..5 << 20), 32 << 10, rng.within(5..40)), Exit(code)]
        }
        // Is ended by a time limit: in the first case by the total limit, in the second by the idle limit.
        10 => {
            plan.timeout_ms = Some(rng.within(100..5000));
            vec![out(0, rng.within(10_000..100_000), 500, rng.within(5..60)), Wait(10_000), Exit(code)]
        }
        11 => {
            plan.idle_ms = Some(rng.within(100..3000));
            vec![out(0, rng.within(1..5000), 500, 20), Wait(20_000), Exit(code)]
        }
        // Reads stdin: at once, or late and slowly, so that stdin fills up.
        _ => {
            plan.stdin = true;
            let (delay_ms, chunk) = (*rng.pick(&[0, 0, 300, 4000]), *rng.pick(&[100, 4096, 65_536]));
            vec![Stdin { delay_ms, chunk }, out(0, rng.within(0..2000), 100, 5), Eof, Exit(code)]
        }
    };
    let pipes_only = plan.steps.iter().any(|step| matches!(step, Close(_) | Write { stream: 1, .. }));
    plan.tty = !pipes_only && !plan.stdin && rng.chance(20);
    plan
}
