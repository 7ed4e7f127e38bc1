//! The arguments of `mcp list`, `mcp status` and `mcp call`.

use std::path::PathBuf;

use clap::Args;

use crate::args::client::ConnectArgs;

const LIST_HELP: &str = "\
Starts every enabled server, lists its tools through all pages, and ends all of them again. A server that cannot be used is \
told with the reason, and the others are listed. With --json one array: name, state, reason, environment, transport, tools \
(name, qualifiedName, description, inputSchema and the rest of what the server says), resources, resourceTemplates, prompts.

--connect is the place of servers whose environment is `remote`; it moves no other.

Exit codes:
  0    every enabled server was listed
  1    some could not be used; standard error says which and why
  2    the command line is wrong
  130  Ctrl-C (128+n for signal n); the servers are ended
  141  nobody reads standard output any more (128+SIGPIPE)
  255  trouble of exec-server itself, such as a configuration that cannot be read

Examples:
  exec-server mcp list
  exec-server mcp list --config .mcp.json git
  exec-server mcp list --json --connect ssh://host | jq -r '.[].tools[].qualifiedName'";

const STATUS_HELP: &str = "\
Starts and connects nothing: notStarted is a server that would be started, disabled one that would not, failed one whose \
configuration names a place that there is none of. With --json one array: name, state, reason, environment, transport, \
command or url, required.

Exit codes: 0; 1 some cannot be started as they are configured; 2; 141; 255; see `exec-server mcp list --help`

Examples:
  exec-server mcp status
  exec-server mcp status --json --config ~/.codex/config.toml";

const CALL_HELP: &str = "\
Starts that server alone, calls the tool and ends the server. What the tool says as text is on standard output; with --json \
the whole result is, one object: content, structuredContent, isError, _meta. On a terminal progress is shown, and questions of \
the server are asked; elsewhere they are declined. Ctrl-C cancels the call. --connect is the place of a server whose environment is `remote`.

Exit codes:
  0    done
  1    the tool failed, or there is no such tool; what it said is shown all the same
  2    the command line is wrong, also where JSON is no object
  124  no answer within tool_timeout_sec
  130  Ctrl-C (128+n for signal n); the call is cancelled and the server ended
  141  nobody reads standard output any more (128+SIGPIPE)
  255  the server cannot be used, or trouble of exec-server itself

Examples:
  exec-server mcp call time get_current_time '{\"timezone\": \"UTC\"}'
  exec-server mcp call --json git git_log '{\"repo_path\": \"/src\"}' | jq .structuredContent
  jq -n '{path: \"/etc/hosts\"}' | exec-server mcp call --connect ssh://host files read_file -";

/// Which servers there are.
#[derive(Debug, Args)]
pub(crate) struct McpConfigArgs {
    /// The configuration: TOML with [mcp_servers.NAME], or a .json file with mcpServers
    /// [default: $EXEC_SERVER_MCP_CONFIG, else mcp.toml or mcp.json beside environments.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `mcp list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_HELP)]
pub(crate) struct McpListArgs {
    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,
    /// Only these servers [default: all that are enabled]
    #[arg(value_name = "SERVER")]
    pub(crate) servers: Vec<String>,
    #[command(flatten)]
    pub(crate) configured: McpConfigArgs,
}

/// Flags of `mcp status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_HELP)]
pub(crate) struct McpStatusArgs {
    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) configured: McpConfigArgs,
}

/// Flags of `mcp call`.
#[derive(Debug, Args)]
#[command(after_help = CALL_HELP)]
pub(crate) struct McpCallArgs {
    /// Print the whole result as an object
    #[arg(long)]
    pub(crate) json: bool,
    /// The server, by its name in the configuration
    pub(crate) server: String,
    /// The tool, by its own name
    pub(crate) tool: String,
    /// Its arguments, an object; `-` reads them from standard input [default: none]
    #[arg(value_name = "JSON")]
    pub(crate) arguments: Option<String>,
    #[command(flatten)]
    pub(crate) configured: McpConfigArgs,
}
