//! The cost of a sandbox: reading a small file and spawning a process, each with and without a sandbox, alternating on one server.

use super::{TRUE, spawn};
use crate::prelude::*;

/// Size of the file that is read.
const SMALL: usize = 4 << 10;

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let (rounds, reads, spawns) = setting.pick((5, 50, 15), (21, 300, 50));
    let mut servers = BenchServers::start(setting)?;
    let (mut free, mut confined) = (servers.json()?, servers.json()?);
    let dir = tempfile::tempdir()?;
    let root = dir.path().canonicalize()?;
    fs::create_dir(root.join(".git"))?;
    fs::write(root.join("small"), vec![b'x'; SMALL])?;
    let special = |kind: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": "read"});
    let sandbox = json!({"permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "restricted",
        "entries": [special("root"), {"path": {"type": "path", "path": root}, "access": "write"}]}}});
    let small = json!(root.join("small"));
    let boxed = json!({ "sandbox": sandbox });

    // The first round creates the view.
    let turn = |session: &mut BenchSession, sandbox: &Value, more: &Value| {
        let start = StartRequest { more: Some(more), ..StartRequest::new(&[TRUE]) };
        Ok(vec![read(session, &small, sandbox, reads)?, median(spawn::starts(session, start, spawns)?)])
    };
    let lanes = vec![
        BenchLane::new("free", |_| turn(&mut free, &Value::Null, &json!({}))),
        BenchLane::new("confined", |_| turn(&mut confined, &sandbox, &boxed)),
    ];
    let contest = Contest::hold(rounds, lanes)?;
    free.end()?;
    confined.end()?;
    servers.stop()?;
    let pair = |index| Pair { ours: ("confined", index), beside: ("free", index), unit: "µs" };
    let rows = vec![
        contest.row("sandboxed fs/readFile of 4 KiB / without", pair(0)).at_most(3.0),
        contest.row("sandboxed start / without", pair(1)).at_most(1.3),
    ];
    Ok(rows.into())
}

/// The median of a batch of reads in microseconds.
fn read(session: &mut BenchSession, path: &Value, sandbox: &Value, count: u32) -> Result<f64> {
    let params = json!({ "path": path, "sandbox": sandbox });
    Ok(median(micros(count, || session.call("fs/readFile", &params).map(drop))?))
}
