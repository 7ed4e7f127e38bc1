//! The arguments of `mcp serve`.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use exec_server_server::admission::AllowedHost;

use crate::args::{client::ConnectArgs, values};

const SERVE_MCP_HELP: &str = "\
An MCP client gets tools that run commands and read, write, edit, list and search files, on this machine or \
on a server. Over standard streams nothing but messages is on standard output. With --http the first line is \
the URL, token included; clients send the token as `Authorization: Bearer TOKEN` or as part of the URL.

What a session starts ends with it: at the end of standard input, by DELETE, after --session-idle, or when this \
program is ended by SIGTERM or SIGINT.

With --root, file tools see DIR alone and processes can write nowhere else; they read DIR, what programs need to run \
(/usr, /etc and the like) and what --readable names. `.git` directly below DIR is read-only unless --writable-git is given: hooks and settings \
in it run commands when you use git there. With --read-only and no --root, everything can be read but the server's own files, such as tokens. Where the host cannot enforce that, nothing is served. \
Beyond loopback --http needs --insecure-plaintext and a TLS proxy in front.

Exit codes: 0 ended in order; 2 the command line is wrong; 255 trouble, such as a server that cannot be reached

Examples:
  exec-server mcp serve                                          as the command of an MCP client
  exec-server mcp serve --connect ssh://build-host --root /srv/project
  exec-server mcp serve --read-only --root ~/notes
  exec-server mcp serve --http 127.0.0.1:8931 --http-token-file ~/.mcp-token";

/// Flags of `mcp serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_MCP_HELP)]
pub(crate) struct McpServeArgs {
    /// Serve streamable HTTP at ADDR, below /mcp, in place of standard streams; port 0 picks a free one
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) http: Option<SocketAddr>,
    /// Offer only what changes nothing: no processes, no writing
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Keep files and processes beneath this directory of the executor
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// With --root, let processes read DIR as well; repeatable
    #[arg(long, value_name = "DIR", requires = "root")]
    pub(crate) readable: Vec<PathBuf>,
    /// With --root, let `.git` be changed too, as `git commit` needs it
    #[arg(long, requires = "root", conflicts_with = "read_only")]
    pub(crate) writable_git: bool,
    /// With --http, read the token that clients show from FILE, which only its owner may read [default: without a server to
    /// connect to, --token-file or $EXEC_SERVER_TOKEN; else a new one]
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) http_token_file: Option<PathBuf>,
    /// With --http, accept requests for this host name, with or without a port; repeatable
    #[arg(long, value_name = "NAME", requires = "http")]
    pub(crate) allow_host: Vec<AllowedHost>,
    /// With --http, end sessions that were idle for this long
    #[arg(long, value_name = "DUR", default_value = "30m", value_parser = values::duration)]
    pub(crate) session_idle: Duration,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
