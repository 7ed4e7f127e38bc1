//! The arguments of `mcp`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use exec_server_server::admission::AllowedHost;

use super::{client::ConnectArgs, values};

pub(super) const MCP_HELP: &str = "\
The executor is the machine that --connect or its default selects.

Exit codes: see the help of each command, such as `exec-server mcp call --help`

Examples:
  exec-server mcp bridge --connect ssh://host -- mcp-server-git
  exec-server mcp list
  exec-server mcp call time get_current_time '{\"timezone\": \"UTC\"}'
  exec-server mcp serve --connect ssh://host";

/// A subcommand of `mcp`.
#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Run an MCP server on the executor, connected to stdin and stdout of this command.
    Bridge(BridgeArgs),
    /// List the configured servers and their tools.
    List(McpListArgs),
    /// Show the state of the configured servers without starting them.
    Status(McpStatusArgs),
    /// Call a tool of a server.
    Call(McpCallArgs),
    /// Offer the executor itself as an MCP server.
    Serve(McpServeArgs),
}

const BRIDGE_HELP: &str = "\
For the configuration of any MCP client: the client starts this command, and the MCP server runs on the executor (the machine that \
--connect or its default selects), where the files are. Bytes are copied unchanged in both directions; the server's stderr is copied to \
stderr. After a cut link or a restart of exec-server on the executor the bridge reconnects, and neither the client nor the server notices.

The bridge ends when the MCP client closes stdin or stdout, or on SIGTERM, SIGINT or SIGHUP. It closes the server's stdin and waits until \
the server exits or has written nothing for a second. Then it ends the server and all its descendants. If the bridge \
itself was killed or the network is down, the executor ends the server after --keep.

The server gets the executor's core variables (PATH, HOME, USER, SHELL, LANG and similar), and the variables of --env and \
--env-remote.

Exit codes:
  the server's own exit code if it ended by itself, or 128+n if signal n ended it
  0    the bridge ended the server: the MCP client closed stdin
  126  the server could not be executed
  127  the server was not found
  128+n  the bridge ended the server: the bridge received signal n
  141  the bridge ended the server: standard output was closed (128+SIGPIPE)
  255  exec-server or its connection failed, or the MCP server was lost

Examples:
  exec-server mcp bridge --connect ssh://host -- mcp-server-git --repository /app
  exec-server mcp bridge --env API_KEY --env MODE=ro -- npx -y some-mcp-server

In the configuration of an MCP client:
  {\"mcpServers\": {\"git\": {
    \"command\": \"exec-server\",
    \"args\": [\"mcp\", \"bridge\", \"--connect\", \"ssh://host\", \"--\", \"mcp-server-git\"]
  }}}";

/// Flags of `mcp bridge`.
#[derive(Debug, Args)]
#[command(after_help = BRIDGE_HELP)]
pub(crate) struct BridgeArgs {
    /// How long the executor keeps the server after the bridge has disappeared; not used for a local server
    #[arg(long, value_name = "DUR", default_value = "5m", value_parser = values::duration)]
    pub(crate) keep: Duration,
    /// Working directory of the MCP server. If --connect or its default selects a server, it must be absolute [default: the
    /// current directory, or that of the selected server]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Set an environment variable of the server; NAME alone copies it from this environment; repeatable
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = values::variable_or_name)]
    pub(crate) env: Vec<(String, Option<String>)>,
    /// Pass a variable of the executor's environment to the server; its value is never sent here; repeatable
    #[arg(long, value_name = "NAME", value_parser = values::variable_name)]
    pub(crate) env_remote: Vec<String>,
    /// The MCP server and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

const LIST_HELP: &str = "\
Starts every enabled server, lists its tools, and ends all servers again. A server that cannot be used is \
reported with the reason, and the others are listed. With --json prints one array of objects: name, state, reason, environment, \
transport, tools (name, qualifiedName, description, inputSchema and other fields of the server), resources, resourceTemplates, prompts.

An MCP server with `environment = \"remote\"` in the configuration runs on the server that --connect or its default selects. \
--connect does not affect other MCP servers.

Exit codes:
  0    every enabled server was listed
  1    some servers could not be used; stderr has the reasons
  2    invalid command line
  130  Ctrl-C (128+n for signal n); the servers were ended
  141  standard output was closed (128+SIGPIPE)
  255  exec-server failed, for example to read the configuration

Examples:
  exec-server mcp list
  exec-server mcp list --config .mcp.json git
  exec-server mcp list --json | jq -r '.[].tools[].qualifiedName'";

const STATUS_HELP: &str = "\
Starts no server and makes no connection. The environment of a server is where it runs: `local`, `remote` (the server that \
--connect or its default selects), a name of environments.toml or a URL. The state of a server is notStarted (it can be started), \
disabled (in the configuration) or failed (there is no such environment; stderr has the reason). With --json prints one array of \
objects: name, state, reason, environment, transport, command or url, required.

Exit codes: 0; 1 some servers cannot be started as configured; 2; 141; 255; see `exec-server mcp list --help`

Examples:
  exec-server mcp status
  exec-server mcp status --json --config ~/.codex/config.toml";

const CALL_HELP: &str = "\
Starts only SERVER, calls the tool and ends the server. Writes the text of the result to stdout; with --json \
the whole result as one object: content, structuredContent, isError, _meta. On a terminal, progress is shown on stderr, and if \
the server needs an answer from the user (elicitation), you are asked; without a terminal the question is declined. Ctrl-C cancels the call. \
An MCP server with `environment = \"remote\"` in the configuration runs on the server that --connect or its default selects.

Exit codes:
  0    success
  1    the tool or the server does not exist, or the tool failed; the text
       of a failed call is printed too
  2    invalid command line, or JSON is not an object
  124  no answer within tool_timeout_sec
  130  Ctrl-C (128+n for signal n); the call was cancelled
  141  standard output was closed (128+SIGPIPE)
  255  the server cannot be used, or exec-server failed

Examples:
  exec-server mcp call time get_current_time '{\"timezone\": \"UTC\"}'
  exec-server mcp call --json git git_log '{\"repo_path\": \"/src\"}' | jq .content
  jq -n '{path: \"/etc/hosts\"}' | exec-server mcp call files read_file -";

/// Flags that select the configuration of MCP servers.
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
    /// Print a JSON array of objects
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
    /// Print a JSON array of objects
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) configured: McpConfigArgs,
}

/// Flags of `mcp call`.
#[derive(Debug, Args)]
#[command(after_help = CALL_HELP)]
pub(crate) struct McpCallArgs {
    /// Print the whole result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Name of the server in the configuration
    pub(crate) server: String,
    /// Name of the tool
    pub(crate) tool: String,
    /// Arguments of the tool, a JSON object; `-` reads it from stdin [default: none]
    #[arg(value_name = "JSON")]
    pub(crate) arguments: Option<String>,
    #[command(flatten)]
    pub(crate) configured: McpConfigArgs,
}

const SERVE_MCP_HELP: &str = "\
An MCP client gets tools that run commands and read, write, edit, list and search files on the executor (the machine that \
--connect or its default selects). Without --http, only MCP messages are written to stdout. With --http the first line is \
the URL with the token; clients send the token as `Authorization: Bearer TOKEN` or in the URL.

The processes of an MCP session end with it: at EOF on stdin, by DELETE, after --session-idle, or when SIGTERM, SIGINT or SIGHUP ends this \
command.

With --root, file tools can access only DIR, and processes can write only there; processes can also read what programs need to run \
(/usr, /etc and similar) and the directories of --readable. `.git` directly below DIR is read-only without --writable-git: hooks and settings \
in it run commands when you use git there. If the host cannot enforce --root, the command fails. With --read-only and without --root, \
all files can be read; if the executor's server supports sandboxes, its own files, such as tokens, are hidden.

With --http on an address beyond loopback, --insecure-plaintext is required: the command itself has no TLS, so put a TLS proxy in front of it.

Exit codes: 0 ended by the client or a signal; 2 invalid command line; 255 an error, such as an unreachable server

Examples:
  exec-server mcp serve                     as the command of an MCP client
  exec-server mcp serve --connect ssh://build-host --root /srv/project
  exec-server mcp serve --read-only --root ~/notes
  exec-server mcp serve --http 127.0.0.1:8931 --http-token-file ~/.mcp-token";

/// Flags of `mcp serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_MCP_HELP)]
pub(crate) struct McpServeArgs {
    /// Serve streamable HTTP on this address, path /mcp, instead of stdio; port 0 picks a free port
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) http: Option<SocketAddr>,
    /// Offer only tools that change nothing: no processes, no writing
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Confine files and processes to this directory of the executor
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// With --root, also let processes read DIR; repeatable
    #[arg(long, value_name = "DIR", requires = "root")]
    pub(crate) readable: Vec<PathBuf>,
    /// With --root, allow writing `.git`, as `git commit` does
    #[arg(long, requires = "root", conflicts_with = "read_only")]
    pub(crate) writable_git: bool,
    /// With --http, FILE has the token that clients must send; it must be readable only by its owner [default:
    /// --token-file, then $EXEC_SERVER_TOKEN, unless these are for a server that --connect or its default selects; else a new token]
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) http_token_file: Option<PathBuf>,
    /// With --http, accept this host name in the Host header, with or without a port; repeatable
    #[arg(long, value_name = "NAME", requires = "http")]
    pub(crate) allow_host: Vec<AllowedHost>,
    /// With --http, end sessions that were idle for this long
    #[arg(long, value_name = "DUR", default_value = "30m", value_parser = values::duration)]
    pub(crate) session_idle: Duration,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::args::{Command, McpCommand, normalized, try_parse};

    #[test]
    fn arguments_after_the_server_belong_to_it_and_env_takes_a_name_alone() {
        let line =
            "exec-server mcp bridge --env A --env B=c=d --env C= --env-remote E --keep 3s -- prog --env X=y --keep";
        let parsed = try_parse(normalized(line.split(' ').map(Into::into), false));
        let Ok(Command::Mcp(McpCommand::Bridge(bridge))) = parsed else { panic!("{parsed:?}") };
        let variable = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
        assert_eq!(bridge.env, [variable("A", None), variable("B", Some("c=d")), variable("C", Some(""))]);
        assert_eq!((bridge.env_remote, bridge.keep), (vec!["E".to_owned()], Duration::from_secs(3)));
        assert_eq!(bridge.argv, ["prog", "--env", "X=y", "--keep"]);
        for wrong in ["--env =x -- p", "--env-remote A=b -- p", "--env-remote A* -- p", "--keep 0s -- p", "--"] {
            let line = format!("exec-server mcp bridge {wrong}");
            assert!(try_parse(normalized(line.split(' ').map(Into::into), false)).is_err(), "{wrong}");
        }
    }
}
