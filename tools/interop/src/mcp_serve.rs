//! Third-party MCP clients against `mcp serve`: the official Python SDK and the inspector's command line, over stdio and HTTP.
//!
//! Uses a Python environment and a directory for Node's package below the target directory. Needs Python 3 with `venv`, Node 20 with npm,
//! and their package indexes once. The clients implement the protocol; this module does not.

use crate::prelude::*;

/// For one client on a busy machine: it starts an interpreter, and waits for one timeout.
const PATIENCE: Duration = Duration::from_secs(120);

/// The client in Python.
const SCRIPT: &str = include_str!("mcp_serve.py");

/// The inspector: its last release that runs on Node 20.
const INSPECTOR: &str = "@modelcontextprotocol/inspector@0.15.0";

/// A tool with its arguments for the inspector, and a text that its answer must contain. Each call is a separate session.
type InspectorCall = (&'static str, &'static [&'static str], &'static str);

const CALLS: &[InspectorCall] = &[
    ("run_command", &["command=echo by the inspector"], "by the inspector"),
    ("start_process", &["command=sleep 1000"], "p1"),
    ("list_processes", &[], "no processes"),
    ("read_output", &["process_id=p1"], "no process `p1`"),
    ("write_stdin", &["process_id=p1", "text=x"], "no process `p1`"),
    ("signal_process", &["process_id=p1"], "no process `p1`"),
    ("write_file", &["path=inspected.txt", "content=one two"], "inspected.txt"),
    ("edit_file", &["path=inspected.txt", "old=two", "new=2"], "changed 1 place"),
    ("read_file", &["path=inspected.txt"], "one 2"),
    ("list_directory", &["path=."], "inspected.txt"),
    ("search_files", &["pattern=one", "path=."], "inspected.txt:1: one 2"),
];

pub(super) fn run(world: &Environment) -> Result<Vec<String>> {
    let (python, inspector) = (python()?, inspector()?);
    let script = world.folder("mcp-serve")?.join("client.py");
    fs::write(&script, SCRIPT)?;
    let mut passed = Vec::new();
    for way in ["stdio", "http"] {
        let folder = world.folder(&format!("mcp-serve-{way}"))?;
        let served = if way == "http" { Some(McpHttpServer::start(world, &folder)?) } else { None };
        let mut client = world.command(&python);
        client.arg(&script).arg(way).arg(&folder);
        match &served {
            Some(served) => client.args([&served.url, &served.token]),
            None => client.arg(&world.binary).args(["mcp", "serve"]),
        };
        let output = environment::output_of(&mut client, PATIENCE)?;
        let output_text = String::from_utf8_lossy(&output.stdout);
        let expected = format!("python: 11 tools over {way}");
        ensure!(
            output.status.success() && output_text.trim_end() == expected,
            "{output_text}{}",
            environment::describe(&output)
        );
        passed.push(format!("the Python SDK's client lists and calls all tools over {way}"));
        inspect(world, &inspector, &folder, served.as_ref())?;
        passed.push(format!("the MCP inspector lists and calls all tools over {way}"));
        if let Some(served) = served {
            served.stop()?;
        }
    }
    Ok(passed)
}

/// Lists the tools and calls each with the inspector's command line.
fn inspect(world: &Environment, inspector: &Path, folder: &Path, served: Option<&McpHttpServer>) -> Result<()> {
    let ask = |args: &[&str]| -> Result<Value> {
        let mut command = world.command(inspector);
        command.arg("--cli").current_dir(folder);
        match served {
            // With the token in the URL, as it is printed: this release sends no headers.
            Some(served) => command.arg(format!("{}?token={}", served.url, served.token)).args(["--transport", "http"]),
            None => command.arg(&world.binary).args(["mcp", "serve"]),
        };
        let output = environment::output_of(command.args(args), PATIENCE)?;
        let output_text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{output_text}{}", environment::describe(&output));
        serde_json::from_str(&output_text).with_context(|| format!("the inspector said: {output_text}"))
    };
    let listed = ask(&["--method", "tools/list"])?;
    let tools = listed["tools"].as_array().context("a list of tools")?.len();
    ensure!(tools == CALLS.len(), "{tools} tools");
    for (tool, arguments, expected) in CALLS {
        let mut args = vec!["--method", "tools/call", "--tool-name", tool];
        for argument in *arguments {
            args.extend(["--tool-arg", argument]);
        }
        let result = ask(&args).with_context(|| format!("call `{tool}`"))?;
        let text = result["content"][0]["text"].as_str().context("a text")?;
        ensure!(text.contains(expected), "`{tool}` answered: {text}");
    }
    Ok(())
}

/// `mcp serve` over HTTP.
struct McpHttpServer {
    child: Child,
    url: String,
    token: String,
}

impl McpHttpServer {
    fn start(world: &Environment, folder: &Path) -> Result<Self> {
        let mut command = world.exec_server(&["mcp", "serve", "--http", "127.0.0.1:0"]);
        let mut child = command.current_dir(folder).stdout(Stdio::piped()).spawn().context("start `mcp serve`")?;
        let line = processes::first_line(&mut child)?;
        let (url, token) = line.split_once("?token=").with_context(|| format!("it printed: {line}"))?;
        Ok(Self { url: url.to_owned(), token: token.to_owned(), child })
    }

    fn stop(mut self) -> Result<()> {
        processes::kill(self.child.id(), Signal::TERM);
        let status = self.child.wait()?;
        ensure!(status.success(), "`mcp serve` ended with {status}");
        Ok(())
    }
}

/// A Python with the package `mcp`.
pub(super) fn python() -> Result<PathBuf> {
    Ok(packages::python("mcp-clients-venv", &["mcp>=1.12"])?.join("python3"))
}

/// The inspector's program.
pub(super) fn inspector() -> Result<PathBuf> {
    Ok(packages::node("mcp-clients-node", &[INSPECTOR])?.join("mcp-inspector"))
}
