//! Real MCP servers on an executor, through `exec-server mcp bridge`: everything they offer is asked for, and the servers ask back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    mcp_servers::{self, Hosted, Speaks as _, Spoken},
    world::World,
};
use crate::{mcp::McpClient, server::Setup};

/// What a server may take to end once its client has left, and its bridge with it.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A variable that the server is given, and one that stays with the client.
const GIVEN: &str = "INTEROP_GIVEN=over there";
const KEPT: (&str, &str) = ("INTEROP_KEPT", "over here");

pub(super) fn run(world: &World) -> Result<Vec<String>> {
    let folder = world.folder("mcp")?;
    let setup = Setup::new(&world.binary)?;
    let server = setup.start()?;
    let mut lines = Vec::new();
    for hosted in mcp_servers::all(&folder)? {
        let mut spoken = begin(world, &server.address.url, &hosted).with_context(|| hosted.name.to_owned())?;
        let checked = hosted.check(&mut spoken).with_context(|| {
            format!("{}; the bridge said: {}; the server says: {}", hosted.name, spoken.client.said(), setup.log_tail())
        })?;
        lines.push(format!("{} through `mcp bridge`: {checked},", hosted.name));
        if hosted.name == "server-everything" {
            asks_back(&mut spoken).context(hosted.name)?;
            lines.push(
                "server-everything asks for roots, sampling and elicitation, and sees only its own variables,".into(),
            );
        }
        let status = spoken.client.end(END_WITHIN).with_context(|| format!("leave {}", hosted.name))?;
        ensure!(status.success(), "the bridge to {} ended with {status}", hosted.name);
    }
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    Ok(lines)
}

fn begin(world: &World, url: &str, hosted: &Hosted) -> Result<Spoken> {
    let mut command = world.exec_server(&["mcp", "bridge", "--connect", url, "--env", GIVEN, "--"]);
    command.args(&hosted.words).env(KEPT.0, KEPT.1);
    let mut client = McpClient::start(&mut command)?;
    let server = client.initialize()?;
    ensure!(server["serverInfo"]["name"].is_string(), "it said of itself: {server}");
    Ok(Spoken { client, server })
}

/// Requests in the other direction, and the environment.
fn asks_back(spoken: &mut Spoken) -> Result<()> {
    let text = |result: &Value| result["content"].to_string();
    let roots = spoken.call("get-roots-list", &json!({}))?;
    ensure!(text(&roots).contains("roots"), "roots: {roots}");
    let sampled = spoken.call("trigger-sampling-request", &json!({ "prompt": "say something" }))?;
    ensure!(text(&sampled).contains("sampled"), "sampling: {sampled}");
    let elicited = spoken.call("trigger-elicitation-request", &json!({}))?;
    ensure!(text(&elicited).contains("decline"), "elicitation: {elicited}");
    let environment = text(&spoken.call("get-env", &json!({}))?);
    ensure!(environment.contains("over there") && environment.contains("HOME"), "variables: {environment}");
    ensure!(!environment.contains(KEPT.0) && !environment.contains("EXEC_SERVER"), "variables: {environment}");
    Ok(())
}
