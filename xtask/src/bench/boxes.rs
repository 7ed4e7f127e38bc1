//! What a sandbox costs: a read of a small file and a spawn, each beside the same without one, on one server and in turns.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};

use super::{Rounds, Row, Setting, median, spawn::Spawner};
use crate::{server::Setup, wire::Wire};

/// Bytes of the file that is read.
const SMALL: usize = 4 << 10;

pub(super) fn measure(setting: &Setting) -> Result<Vec<Row>> {
    let (rounds, reads, spawns) = setting.pick((9_u32, 100, 15), (21, 300, 50));
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let (mut wire, _) = Wire::session(&server.address)?;
    let dir = tempfile::tempdir()?;
    let root = dir.path().canonicalize()?;
    fs::create_dir(root.join(".git"))?;
    fs::write(root.join("small"), vec![b'x'; SMALL])?;
    let special = |kind: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": "read"});
    let sandbox = json!({"permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "restricted",
        "entries": [special("root"), {"path": {"type": "path", "path": root}, "access": "write"}]}}});
    let small = json!(root.join("small"));

    let (mut reading, mut spawning) = (Rounds::default(), Rounds::default());
    // The first round warms caches, makes the view and counts for nothing.
    for round in 0..=rounds {
        let free = read(&mut wire, &small, &Value::Null, reads)?;
        let confined = read(&mut wire, &small, &sandbox, reads)?;
        let mut spawner = Spawner::new(&mut wire, u64::from(round) * 1000);
        let plain = spawner.batch(&json!({}), spawns)?;
        let boxed = spawner.batch(&json!({ "sandbox": sandbox }), spawns)?;
        if round > 0 {
            reading.add(confined, free);
            spawning.add(boxed, plain);
        }
    }
    wire.call("session/end", &json!({}))?;
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    let row = |name, target, rounds: &Rounds| Row {
        name,
        value: rounds.ratio(),
        unit: "x",
        target: Some(target),
        note: rounds.figures("µs"),
    };
    Ok(vec![
        row("sandboxed fs/readFile of 4 KiB / without", 3.0, &reading),
        row("sandboxed spawn / without", 1.3, &spawning),
    ])
}

/// The median of a batch of reads in microseconds.
fn read(wire: &mut Wire, path: &Value, sandbox: &Value, count: u32) -> Result<f64> {
    let params = json!({ "path": path, "sandbox": sandbox });
    let mut times = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        wire.call("fs/readFile", &params)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}
