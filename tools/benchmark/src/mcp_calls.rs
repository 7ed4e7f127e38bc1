//! The cost of an MCP tool call through `mcp bridge` and an executor on loopback, compared with the same server on its own standard
//! streams.

use crate::prelude::*;
use exec_server_harness::mcp_client::McpClient;
use exec_server_workspace::packages;

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let (rounds, batch) = setting.pick((5, 20), (21, 50));
    let program = packages::mcp_python()?.join("mcp-server-time");
    let (setup, server) = Setup::started(&setting.binary)?;
    let mut direct = begin(&mut Command::new(&program))?;
    let mut through = Command::new(&setting.binary);
    through.args(["mcp", "bridge", "--connect", &server.address.url, "--"]).arg(&program);
    let mut through = begin(&mut through)?;
    let lanes = vec![
        BenchLane::new("direct", |_| Ok(vec![calls(&mut direct, batch)?])),
        BenchLane::new("bridge", |_| Ok(vec![calls(&mut through, batch)?])),
    ];
    let contest = Contest::hold(rounds, lanes)?;
    for client in [direct, through] {
        ensure!(client.end(Duration::from_secs(10))?.success(), "the server did not end well");
    }
    setup.finish(server)?;
    let pair = Pair { ours: ("bridge", 0), beside: ("direct", 0), unit: "µs" };
    Ok(vec![contest.row("MCP tool call through `mcp bridge` / direct", pair).at_most(1.5)].into())
}

fn begin(command: &mut Command) -> Result<McpClient> {
    let mut client = McpClient::start(command)?;
    client.initialize()?;
    Ok(client)
}

/// The median of a batch in microseconds.
fn calls(client: &mut McpClient, count: u32) -> Result<f64> {
    let params = json!({ "name": "get_current_time", "arguments": { "timezone": "Europe/Berlin" } });
    let times = micros(count, || {
        let result = client.call("tools/call", &params)?;
        ensure!(result["isError"] != true, "the server failed: {result}");
        Ok(())
    })?;
    Ok(median(times))
}
