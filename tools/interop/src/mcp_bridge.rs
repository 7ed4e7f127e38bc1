//! Real MCP servers on an executor, through `exec-server mcp bridge`: uses everything they offer, and they send requests back. Then the
//! real clients of the Python and TypeScript SDKs, which start the bridge as configured.

use super::mcp_servers::{self, ConnectedClient, McpPeer as _, TestedServer};
use crate::prelude::*;
use exec_server_harness::mcp_client::McpClient;

/// How long a server and its bridge may take to end after the client has disconnected.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Longer than a client and its server may take in total on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const PYTHON_CLIENT: &str = r#"
import asyncio, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    server = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        result = await session.call_tool("get_current_time", {"timezone": "Asia/Tokyo"})
        assert "Asia/Tokyo" in result.content[0].text, result
        print(*sorted(tool.name for tool in tools))

asyncio.run(main())
"#;

const NODE_CLIENT: &str = r#"
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
const [command, ...args] = process.argv.slice(1);
const client = new Client({ name: "xtask", version: "1" });
await client.connect(new StdioClientTransport({ command, args, stderr: "inherit" }));
const { tools } = await client.listTools();
const result = await client.callTool({ name: "get_current_time", arguments: { timezone: "Asia/Tokyo" } });
if (!result.content[0].text.includes("Asia/Tokyo")) throw new Error(JSON.stringify(result));
console.log(tools.map((tool) => tool.name).sort().join(" "));
await client.close();
"#;

/// A variable that is passed to the server, and one that stays with the client.
const GIVEN: &str = "INTEROP_GIVEN=over there";
const KEPT: (&str, &str) = ("INTEROP_KEPT", "over here");

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let folder = world.folder("mcp")?;
    let setup = Setup::new(&world.binary)?;
    let server = setup.start()?;
    let mut lines = Vec::new();
    for tested in mcp_servers::all(&folder)? {
        let mut connected = begin(world, &server.address.url, &tested).with_context(|| tested.name.to_owned())?;
        let checked = tested.check(&mut connected).with_context(|| {
            format!(
                "{}; the bridge said: {}; the server says: {}",
                tested.name,
                connected.client.stderr_text(),
                setup.log_tail()
            )
        })?;
        lines.push(format!("{} through `mcp bridge`: {checked},", tested.name));
        if tested.name == "server-everything" {
            check_server_requests(&mut connected).context(tested.name)?;
            lines.push(
                "server-everything asks for roots, sampling and elicitation, and sees only its own variables,".into(),
            );
        }
        let status = connected.client.end(END_WITHIN).with_context(|| format!("leave {}", tested.name))?;
        ensure!(status.success(), "the bridge to {} ended with {status}", tested.name);
    }
    lines.extend(sdk_clients(world, &server.address.url)?);
    setup.finish(server)?;
    Ok(lines)
}

/// Runs the SDK clients from their start to the end of the bridge that they started.
fn sdk_clients(world: &Environment, url: &str) -> Result<Vec<String>> {
    let time = packages::mcp_python()?.join("mcp-server-time");
    let mut lines = Vec::new();
    for (name, program, flags, script) in [
        ("Python", packages::mcp_python()?.join("python3"), &["-c"][..], PYTHON_CLIENT),
        ("TypeScript", PathBuf::from("node"), &["--input-type=module", "-e"], NODE_CLIENT),
    ] {
        let mut command = world.command(program);
        command.args(flags).arg(script).current_dir(mcp_servers::node_folder());
        if name == "TypeScript" {
            command.arg("--"); // Otherwise Node takes the flags that follow.
        }
        command.arg(&world.binary).args(["mcp", "bridge", "--connect", url, "--"]).arg(&time);
        let output_text =
            environment::success_of(&mut command, PATIENCE).with_context(|| format!("the client in {name}"))?;
        let output_text = String::from_utf8_lossy(&output_text);
        ensure!(output_text.trim_end() == "convert_time get_current_time", "the client in {name} said: {output_text}");
        lines.push(format!("the client of the SDK for {name} through `mcp bridge`"));
    }
    Ok(lines)
}

fn begin(world: &Environment, url: &str, tested: &TestedServer) -> Result<ConnectedClient> {
    let mut command = world.exec_server(&["mcp", "bridge", "--connect", url, "--env", GIVEN, "--"]);
    command.args(&tested.words).env(KEPT.0, KEPT.1);
    let mut client = McpClient::start(&mut command)?;
    let server = client.initialize()?;
    ensure!(server["serverInfo"]["name"].is_string(), "it said of itself: {server}");
    Ok(ConnectedClient { client, server })
}

/// Requests from the server to the client, and the environment.
fn check_server_requests(connected: &mut ConnectedClient) -> Result<()> {
    let text = |result: &Value| result["content"].to_string();
    let roots = connected.ask("call", "get-roots-list", &json!({}))?;
    ensure!(text(&roots).contains("roots"), "roots: {roots}");
    let sampled = connected.ask("call", "trigger-sampling-request", &json!({ "prompt": "say something" }))?;
    ensure!(text(&sampled).contains("sampled"), "sampling: {sampled}");
    let elicited = connected.ask("call", "trigger-elicitation-request", &json!({}))?;
    ensure!(text(&elicited).contains("decline"), "elicitation: {elicited}");
    let environment = text(&connected.ask("call", "get-env", &json!({}))?);
    ensure!(environment.contains("over there") && environment.contains("HOME"), "variables: {environment}");
    ensure!(!environment.contains(KEPT.0) && !environment.contains("EXEC_SERVER"), "variables: {environment}");
    Ok(())
}
