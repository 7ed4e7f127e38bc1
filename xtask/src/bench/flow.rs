//! How fast bytes and answers flow: output of one process beside a raw pipe, a request beside a bare WebSocket echo.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{Rounds, Row, Setting, median};
use crate::{
    children,
    server::Setup,
    wire::{self, Address, Incoming, Wire},
};

/// Consumed bytes after which the reader acknowledges.
const ACK_EVERY: usize = 256 << 10;

pub(super) fn throughput(setting: &Setting) -> Result<Vec<Row>> {
    let (rounds, bytes) = setting.pick((5, 128 << 20), (9, 512 << 20));
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let (mut wire, _) = Wire::session(&server.address)?;
    let mut measured = Rounds::default();
    for round in 0..=rounds {
        let bare = pipe(bytes)?;
        let ours = output(&mut wire, bytes)?;
        if round > 0 {
            measured.add(ours, bare);
        }
    }
    wire.call("session/end", &json!({}))?;
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    Ok(vec![Row {
        name: "output of one process / raw pipe",
        value: measured.ratio(),
        unit: "x",
        target: None,
        note: measured.figures("MB/s, decoded and checked in length by the client"),
    }])
}

/// MB/s of a raw pipe.
fn pipe(bytes: usize) -> Result<f64> {
    let begun = Instant::now();
    let mut child = Command::new(children::program()?)
        .args(["child", "flood", &bytes.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdout = child.stdout.take().context("standard output is a pipe")?;
    let mut buffer = vec![0; 64 << 10];
    let mut seen = 0;
    loop {
        match stdout.read(&mut buffer)? {
            0 => break,
            count => seen += count,
        }
    }
    child.wait()?;
    ensure!(seen == bytes, "{seen} of {bytes} bytes through the raw pipe");
    Ok(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64())
}

/// MB/s of a process of the server, as its client gets them.
fn output(wire: &mut Wire, bytes: usize) -> Result<f64> {
    let program = children::program()?;
    let begun = Instant::now();
    wire.send("process/start", &wire::start("flood", &[&program, "child", "flood", &bytes.to_string()]))?;
    let (mut seen, mut unacknowledged) = (0, 0);
    loop {
        match wire.next()? {
            Incoming::Output(output) => {
                seen += output.bytes.len();
                unacknowledged += output.bytes.len();
                if unacknowledged >= ACK_EVERY {
                    unacknowledged = 0;
                    wire.notify("process/ack", &json!({ "processId": "flood", "seq": output.seq }))?;
                }
            }
            Incoming::Closed { .. } => break,
            Incoming::Answer { outcome, .. } => drop(outcome?),
            _ => {}
        }
    }
    let rate = bytes as f64 / 1e6 / begun.elapsed().as_secs_f64();
    ensure!(seen == bytes, "{seen} of {bytes} bytes through the server");
    wire.call("process/forget", &json!({ "processId": "flood" }))?;
    Ok(rate)
}

pub(super) fn roundtrip(setting: &Setting) -> Result<Vec<Row>> {
    let (rounds, batch) = setting.pick((9, 200), (21, 1000));
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let (mut wire, _) = Wire::session(&server.address)?;
    let mut echo = Command::new(children::program()?).args(["child", "echo"]).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(echo.stdout.take().context("standard output is a pipe")?).read_line(&mut line)?;
    let mut bare = Wire::connect(&Address::parse(line.trim_end())?)?;
    let mut measured = Rounds::default();
    for round in 0..=rounds {
        let ours = calls(&mut wire, batch, |wire| wire.call("environment/status", &json!({})).map(drop))?;
        // The echo is read as a message of the server, an unknown notification.
        let theirs = calls(&mut bare, batch, |bare| {
            bare.notify("environment/status", &json!({ "id": 1 }))?;
            bare.next().map(drop)
        })?;
        if round > 0 {
            measured.add(ours, theirs);
        }
    }
    drop(bare);
    echo.wait()?;
    wire.call("session/end", &json!({}))?;
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    Ok(vec![Row {
        name: "request round trip / bare WebSocket echo",
        value: measured.ratio(),
        unit: "x",
        target: None,
        note: measured.figures("µs"),
    }])
}

/// The median of a batch in microseconds.
fn calls(wire: &mut Wire, count: usize, call: fn(&mut Wire) -> Result<(), wire::Fault>) -> Result<f64> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        call(wire)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}
