//! The same real MCP servers on an executor, all in one configuration and under one manager: the library's example `ask`.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{ChildStdin, ChildStdout},
};

use anyhow::bail;

use super::mcp_servers::{self, McpPeer};
use crate::prelude::*;

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let folder = world.folder("mcp-manager")?;
    let setup = Setup::new(&world.binary)?;
    let server = setup.start()?;
    let all = mcp_servers::all(&folder)?;
    let servers: serde_json::Map<String, Value> = all
        .iter()
        .map(|tested| {
            let (command, args) = tested.words.split_first().expect("a server has a program");
            (tested.name.to_owned(), json!({ "command": command, "args": args, "environment": "remote" }))
        })
        .collect();
    let config = folder.join("servers.json");
    fs::write(&config, json!({ "mcpServers": servers }).to_string())?;
    listed(world, &config, &server.address.url, all.len())?;
    let mut manager = ManagerProcess::start(&config, &server.address.url)?;
    let mut lines = vec![format!("{} servers listed by `mcp list`,", all.len())];
    for tested in &all {
        let checked = tested.check(&mut ManagedServer { server: tested.name, manager: &mut manager });
        let checked = checked.with_context(|| format!("{}; the server says: {}", tested.name, setup.log_tail()))?;
        lines.push(format!("{} through the manager: {checked},", tested.name));
    }
    manager.end()?;
    setup.finish(server)?;
    Ok(lines)
}

/// Checks that the command line lists all of them as ready, with their tools.
fn listed(world: &Environment, config: &Path, url: &str, servers: usize) -> Result<()> {
    let mut list = world.exec_server(&["mcp", "list", "--json", "--connect", url, "--config"]);
    let output = list.arg(config).output()?;
    ensure!(output.status.success(), "`mcp list` ended with {}: {output:?}", output.status);
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).context("what `mcp list` printed")?;
    let ready = all.iter().filter(|server| server["state"] == "ready" && server["tools"][0]["name"].is_string());
    ensure!(ready.count() == servers, "`mcp list` has not {servers} servers with tools: {all:?}");
    Ok(())
}

/// The running example, which takes one request per line.
struct ManagerProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl ManagerProcess {
    fn start(config: &Path, url: &str) -> Result<Self> {
        let mut command = Command::new(cargo::example("exec-server-mcp", "ask")?);
        command.arg(config).arg(url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start the example `ask`")?;
        let stdin = child.stdin.take().context("its standard input")?;
        let stdout = BufReader::new(child.stdout.take().context("its standard output")?);
        Ok(Self { child, stdin, stdout })
    }

    fn ask(&mut self, question: &Value) -> Result<Value> {
        writeln!(self.stdin, "{question}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let mut answer: Value = serde_json::from_str(&line).with_context(|| format!("read `{line}`"))?;
        match answer["ok"].take() {
            Value::Null => bail!("{}", answer["error"]),
            result => Ok(result),
        }
    }

    fn end(self) -> Result<()> {
        let Self { mut child, stdin, .. } = self;
        drop(stdin);
        let status = child.wait()?;
        ensure!(status.success(), "the example `ask` ended with {status}");
        Ok(())
    }
}

/// One server of the manager.
struct ManagedServer<'a> {
    server: &'a str,
    manager: &'a mut ManagerProcess,
}

impl McpPeer for ManagedServer<'_> {
    fn ask(&mut self, what: &str, name: &str, arguments: &Value) -> Result<Value> {
        self.manager.ask(&json!({ "server": self.server, "ask": what, "name": name, "arguments": arguments }))
    }

    fn list(&mut self, what: &str) -> Result<Vec<Value>> {
        match self.ask(what, "", &Value::Null)? {
            Value::Array(entries) => Ok(entries),
            other => bail!("{what} are {other}"),
        }
    }
}
