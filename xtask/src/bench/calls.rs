//! What an MCP tool call costs through `mcp bridge` and an executor on loopback, beside the same server on its own standard streams.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{Rounds, Row, Setting, median};
use crate::{interop, mcp::McpClient, server::Setup};

pub(super) fn measure(setting: &Setting) -> Result<Vec<Row>> {
    let (rounds, batch) = setting.pick((9, 20), (21, 50));
    let program = interop::mcp_server_time()?;
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let mut direct = begin(&mut Command::new(&program))?;
    let mut through = Command::new(&setting.binary);
    through.args(["mcp", "bridge", "--connect", &server.address.url, "--"]).arg(&program);
    let mut through = begin(&mut through)?;
    let mut both = Rounds::default();
    // The first round warms caches and counts for nothing.
    for round in 0..=rounds {
        // By turns, so that neither always comes first.
        let (ours, bare) = if round % 2 == 0 {
            let bare = calls(&mut direct, batch).context("on its own")?;
            (calls(&mut through, batch).context("through the bridge")?, bare)
        } else {
            (
                calls(&mut through, batch).context("through the bridge")?,
                calls(&mut direct, batch).context("on its own")?,
            )
        };
        if round > 0 {
            both.add(ours, bare);
        }
    }
    for client in [direct, through] {
        ensure!(client.end(Duration::from_secs(10))?.success(), "the server did not end well");
    }
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    let ratios: Vec<f64> = both.ours.iter().zip(&both.bare).map(|(ours, bare)| ours / bare).collect();
    let (least, most) =
        ratios.iter().fold((f64::MAX, 0_f64), |(least, most), ratio| (least.min(*ratio), most.max(*ratio)));
    let note = format!("{}, {} ratios from {least:.2} to {most:.2}", both.figures("µs"), ratios.len());
    Ok(vec![Row {
        name: "MCP tool call through `mcp bridge` / direct",
        value: both.ratio(),
        unit: "x",
        target: Some(1.5),
        note,
    }])
}

fn begin(command: &mut Command) -> Result<McpClient> {
    let mut client = McpClient::start(command)?;
    client.initialize()?;
    Ok(client)
}

/// The median of a batch in microseconds.
fn calls(client: &mut McpClient, count: u32) -> Result<f64> {
    let params = json!({ "name": "get_current_time", "arguments": { "timezone": "Europe/Berlin" } });
    let mut times = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        let result = client.call("tools/call", &params)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        ensure!(result["isError"] != true, "the server failed: {result}");
    }
    Ok(median(times))
}
