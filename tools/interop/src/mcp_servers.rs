//! Real third-party MCP servers, installed once below the target directory, and a test plan for each of them.
//!
//! Defines which servers in which versions, and one plan per server: every tool it offers with sensible arguments and a text of the answer,
//! its resources and its prompts. If a server offers a tool that is neither called nor left out with a reason, the plan fails. [`McpPeer`]
//! abstracts how a server is reached: through a bridge or a manager.

use std::collections::BTreeSet;

use anyhow::bail;

use crate::prelude::*;
use exec_server_harness::mcp_client::McpClient;

const NODE_FOLDER: &str = "mcp-node";

const NODE: [&str; 2] =
    ["@modelcontextprotocol/server-everything@2026.8.31", "@modelcontextprotocol/server-filesystem@2026.8.31"];

/// One server with its plan.
#[derive(Default)]
pub(super) struct TestedServer {
    pub(super) name: &'static str,
    /// The command line that starts it on its host.
    pub(super) words: Vec<String>,
    /// In this order.
    calls: Vec<ToolCall>,
    /// Tools that are offered but not called, with the reason.
    left_out: &'static [(&'static str, &'static str)],
    prompts: Vec<(&'static str, Value)>,
    /// Resources to read in addition to those that are listed.
    resources: &'static [&'static str],
}

struct ToolCall {
    tool: &'static str,
    arguments: Value,
    /// A text that the answer must contain.
    says: String,
}

fn call(tool: &'static str, arguments: Value, says: &str) -> ToolCall {
    ToolCall { tool, arguments, says: says.to_owned() }
}

/// A way to talk to a running server.
pub(super) trait McpPeer {
    /// All of its `tools`, `resources` or `prompts`; empty if it does not support them, or if they cannot be requested this way.
    fn list(&mut self, what: &str) -> Result<Vec<Value>>;
    /// The result of a `call` of a tool, of a `read` of a resource by its URI, or of getting a `prompt`.
    fn ask(&mut self, what: &str, name: &str, arguments: &Value) -> Result<Value>;
}

/// A client after its handshake, with the server's `initialize` result.
pub(super) struct ConnectedClient {
    pub(super) client: McpClient,
    pub(super) server: Value,
}

impl McpPeer for ConnectedClient {
    fn list(&mut self, what: &str) -> Result<Vec<Value>> {
        if self.server["capabilities"].get(what).is_none() {
            return Ok(Vec::new());
        }
        self.client.list(&format!("{what}/list"), what)
    }

    fn ask(&mut self, what: &str, name: &str, arguments: &Value) -> Result<Value> {
        let named = json!({ "name": name, "arguments": arguments });
        match what {
            "call" => self.client.call("tools/call", &named),
            "read" => self.client.call("resources/read", &json!({ "uri": name })),
            "prompt" => self.client.call("prompts/get", &named),
            _ => bail!("no request `{what}`"),
        }
    }
}

impl TestedServer {
    /// Executes the plan; returns a summary.
    pub(super) fn check(&self, server: &mut dyn McpPeer) -> Result<String> {
        let tools: BTreeSet<String> = names(&server.list("tools").context("list tools")?);
        let called: BTreeSet<String> = self.calls.iter().map(|call| call.tool.to_owned()).collect();
        let left_out: BTreeSet<String> = self.left_out.iter().map(|(tool, _)| (*tool).to_owned()).collect();
        let unknown: Vec<_> =
            tools.iter().filter(|tool| !called.contains(*tool) && !left_out.contains(*tool)).collect();
        ensure!(unknown.is_empty(), "offered, and not called: {unknown:?}");
        let absent: Vec<_> = called.difference(&tools).collect();
        ensure!(absent.is_empty(), "not offered: {absent:?}; offered: {tools:?}");
        for ToolCall { tool, arguments, says } in &self.calls {
            let result = server.ask("call", tool, arguments).with_context(|| format!("call `{tool}`"))?;
            let text = result.to_string();
            ensure!(result["isError"] != true, "`{tool}` failed: {text}");
            ensure!(text.contains(says.as_str()), "`{tool}` did not say `{says}`: {text}");
        }
        let listed = server.list("resources").context("list resources")?;
        let listed: Vec<String> = listed.iter().filter_map(|entry| Some(entry["uri"].as_str()?.to_owned())).collect();
        let more = self.resources.iter().map(|uri| (*uri).to_owned());
        let mut read = 0;
        for uri in listed.into_iter().chain(more) {
            let result = server.ask("read", &uri, &Value::Null).with_context(|| format!("read `{uri}`"))?;
            ensure!(result["contents"][0]["uri"] == *uri, "`{uri}` was read as {result}");
            read += 1;
        }
        let prompts = names(&server.list("prompts").context("list prompts")?);
        let planned: BTreeSet<String> = self.prompts.iter().map(|(name, _)| (*name).to_owned()).collect();
        // A transport that cannot request prompts lists none.
        ensure!(prompts.is_empty() || prompts == planned, "other prompts than planned: {prompts:?}");
        for (name, arguments) in self.prompts.iter().filter(|(name, _)| prompts.contains(*name)) {
            let result = server.ask("prompt", name, arguments).with_context(|| format!("get prompt `{name}`"))?;
            ensure!(result["messages"][0].is_object(), "prompt `{name}` has no message: {result}");
        }
        let (offered, left) = (tools.len(), tools.intersection(&left_out).count());
        Ok(format!("{} of {offered} tools called, {read} resources and {} prompts read", offered - left, prompts.len()))
    }
}

fn names(entries: &[Value]) -> BTreeSet<String> {
    entries.iter().filter_map(|entry| Some(entry["name"].as_str()?.to_owned())).collect()
}

/// The servers, with their data in a directory of the executor.
pub(super) fn all(folder: &Path) -> Result<Vec<TestedServer>> {
    let (python, node) = (packages::mcp_python()?, node()?);
    Ok(vec![time(&python), git(&python, folder)?, everything(&node), filesystem(&node, folder)?])
}

/// The directory with the programs of the Node servers.
pub(super) fn node() -> Result<PathBuf> {
    packages::node(NODE_FOLDER, &NODE)
}

/// The directory with the packages of the Node servers, including the SDK.
pub(super) fn node_folder() -> PathBuf {
    packages::interop(NODE_FOLDER)
}

fn words(program: &Path, rest: &[&str]) -> Vec<String> {
    let program = program.display().to_string();
    std::iter::once(program).chain(rest.iter().map(|word| (*word).to_owned())).collect()
}

fn time(bin: &Path) -> TestedServer {
    TestedServer {
        name: "mcp-server-time",
        words: words(&bin.join("mcp-server-time"), &["--local-timezone", "Europe/Berlin"]),
        calls: vec![
            call("get_current_time", json!({ "timezone": "Asia/Tokyo" }), "Asia/Tokyo"),
            call(
                "convert_time",
                json!({ "source_timezone": "Europe/Berlin", "time": "16:30", "target_timezone": "Asia/Tokyo" }),
                "time_difference",
            ),
        ],
        ..TestedServer::default()
    }
}

/// A repository with one commit and an uncommitted change.
fn git(bin: &Path, folder: &Path) -> Result<TestedServer> {
    let repository = folder.join("repository");
    fs::create_dir(&repository)?;
    fs::write(repository.join("first"), "one\n")?;
    let git = |args: &[&str]| {
        cargo::check(Command::new("git").arg("-C").arg(&repository).args(args)).context("make a repository")
    };
    git(&["init", "--quiet", "--initial-branch=main"])?;
    git(&["config", "user.name", "xtask"])?;
    git(&["config", "user.email", "xtask@example.invalid"])?;
    git(&["add", "first"])?;
    git(&["commit", "--quiet", "--message=first commit"])?;
    fs::write(repository.join("first"), "one\ntwo\n")?;
    let path = repository.display().to_string();
    let with = |more: Value| {
        let mut arguments = json!({ "repo_path": path });
        for (name, value) in more.as_object().into_iter().flatten() {
            arguments[name] = value.clone();
        }
        arguments
    };
    Ok(TestedServer {
        name: "mcp-server-git",
        words: words(&bin.join("mcp-server-git"), &["--repository", &path]),
        calls: vec![
            call("git_status", with(json!({})), "first"),
            call("git_diff_unstaged", with(json!({})), "+two"),
            call("git_add", with(json!({ "files": ["first"] })), "staged"),
            call("git_diff_staged", with(json!({})), "+two"),
            call("git_reset", with(json!({})), ""),
            call("git_diff", with(json!({ "target": "HEAD" })), "+two"),
            call("git_add", with(json!({ "files": ["first"] })), "staged"),
            call("git_commit", with(json!({ "message": "second commit" })), "committed"),
            call("git_log", with(json!({ "max_count": 5 })), "second commit"),
            call("git_show", with(json!({ "revision": "HEAD" })), "+two"),
            call("git_create_branch", with(json!({ "branch_name": "side" })), "side"),
            call("git_checkout", with(json!({ "branch_name": "side" })), "side"),
            call("git_branch", with(json!({ "branch_type": "local" })), "main"),
        ],
        ..TestedServer::default()
    })
}

fn everything(bin: &Path) -> TestedServer {
    TestedServer {
        name: "server-everything",
        words: words(&bin.join("mcp-server-everything"), &["stdio"]),
        calls: vec![
            call("echo", json!({ "message": "through and back, wörtlich" }), "through and back, wörtlich"),
            call("get-sum", json!({ "a": 17, "b": 25 }), "42"),
            call("get-env", json!({}), "PATH"),
            call("get-tiny-image", json!({}), "image/png"),
            call("get-annotated-message", json!({ "messageType": "error", "includeImage": true }), "priority"),
            call("get-resource-links", json!({ "count": 3 }), "resource_link"),
            call("get-resource-reference", json!({ "resourceType": "Text", "resourceId": 1 }), "demo://"),
            call("get-structured-content", json!({ "location": "New York" }), "structuredContent"),
            call("gzip-file-as-resource", json!({ "name": "a.gz", "data": "data:text/plain,hello" }), "a.gz"),
            call("trigger-long-running-operation", json!({ "duration": 1, "steps": 2 }), "completed"),
            call("toggle-simulated-logging", json!({}), "simulated"),
            call("toggle-simulated-logging", json!({}), "topped"),
            call("toggle-subscriber-updates", json!({}), "updates"),
            call("toggle-subscriber-updates", json!({}), "topped"),
        ],
        left_out: &[
            ("get-roots-list", "asked of clients that have roots; see the bridge's own part"),
            ("trigger-sampling-request", "asked of clients that can sample; see the bridge's own part"),
            ("trigger-elicitation-request", "asked of clients that can ask their user; see the bridge's own part"),
            ("trigger-url-elicitation", "for clients that open addresses"),
            ("simulate-research-query", "runs only as a task, which is not of this version of MCP"),
            ("trigger-sampling-request-async", "as above"),
            ("trigger-elicitation-request-async", "as above"),
        ],
        prompts: vec![
            ("simple-prompt", json!({})),
            ("args-prompt", json!({ "city": "Bern", "state": "BE" })),
            ("completable-prompt", json!({ "department": "Engineering", "name": "Alice" })),
            ("resource-prompt", json!({ "resourceType": "Text", "resourceId": "1" })),
        ],
        resources: &["demo://resource/dynamic/text/7", "demo://resource/dynamic/blob/7"],
    }
}

/// A directory with a few files, one of them larger than any buffer on the way.
fn filesystem(bin: &Path, folder: &Path) -> Result<TestedServer> {
    let served = folder.join("served");
    fs::create_dir_all(served.join("below"))?;
    // The server reports files by their canonical paths.
    let served = served.canonicalize()?;
    fs::write(served.join("text"), "one\ntwo\nthree\n")?;
    fs::write(served.join("large"), "0123456789abcdef".repeat(100_000))?;
    fs::write(served.join("below/picture.png"), [0x89, 0x50, 0x4e, 0x47])?;
    let at = |name: &str| served.join(name).display().to_string();
    let edits = json!([{ "oldText": "two", "newText": "zwei" }]);
    Ok(TestedServer {
        name: "server-filesystem",
        words: words(&bin.join("mcp-server-filesystem"), &[&served.display().to_string()]),
        calls: vec![
            call("list_allowed_directories", json!({}), "served"),
            call("read_file", json!({ "path": at("text") }), "three"),
            call("read_text_file", json!({ "path": at("text"), "head": 1 }), "one"),
            call("read_text_file", json!({ "path": at("large") }), &"0123456789abcdef".repeat(99_999)),
            call("read_media_file", json!({ "path": at("below/picture.png") }), "image/png"),
            call("read_multiple_files", json!({ "paths": [at("text"), at("below/picture.png")] }), "three"),
            call("write_file", json!({ "path": at("new"), "content": "two\n" }), "new"),
            call("edit_file", json!({ "path": at("new"), "edits": edits }), "zwei"),
            call("create_directory", json!({ "path": at("made") }), "made"),
            call("move_file", json!({ "source": at("new"), "destination": at("made/moved") }), "moved"),
            call("list_directory", json!({ "path": at("made") }), "moved"),
            call("list_directory_with_sizes", json!({ "path": at("") }), "large"),
            call("directory_tree", json!({ "path": at("") }), "picture.png"),
            call("search_files", json!({ "path": at(""), "pattern": "**/*.png" }), "picture.png"),
            call("get_file_info", json!({ "path": at("text") }), "size"),
        ],
        ..TestedServer::default()
    })
}
