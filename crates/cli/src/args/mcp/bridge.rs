//! The arguments of `mcp bridge`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::args::{client::ConnectArgs, values};

const BRIDGE_HELP: &str = "\
For the configuration of any MCP client: it starts this program, and the MCP server runs on the executor, where the \
files are. What either side writes reaches the other byte for byte; the server's standard error comes out on ours. A \
cut link and an executor that is killed and started again are mended without either of them noticing.

It ends when the MCP client closes standard input or standard output, or by SIGTERM, SIGINT or SIGHUP: the server's \
standard input is closed, it gets a second to end by itself, then it and all it started are ended. Where the bridge \
itself was killed, or the network is gone, the executor does so after --keep.

The server gets the executor's basic variables (PATH, HOME, USER, SHELL, LANG and the like) and what --env and \
--env-remote say.

Exit codes:
  the server's own, if it ended by itself; 128+n when signal n ended it
  0    ended because standard input was closed
  126  the server could not be executed
  127  the server was not found
  128+n  ended because signal n came to the bridge
  141  ended because standard output was closed (128+SIGPIPE)
  255  trouble of exec-server itself, or with the connection; the server is lost

Examples:
  exec-server mcp bridge --connect ssh://build-host -- mcp-server-git --repository /srv/app
  exec-server mcp bridge --connect ws://127.0.0.1:4000 --env API_KEY --env MODE=ro -- npx -y some-mcp-server
  {\"mcpServers\": {\"git\": {\"command\": \"exec-server\", \"args\": [\"mcp\", \"bridge\", \"--connect\", \"ssh://build-host\", \"--\", \"mcp-server-git\"]}}}";

/// Flags of `mcp bridge`.
#[derive(Debug, Args)]
#[command(after_help = BRIDGE_HELP)]
pub(crate) struct BridgeArgs {
    /// How long the executor waits for a bridge that vanished before it ends the server; here, without one, it does not wait
    #[arg(long, value_name = "DUR", default_value = "5m", value_parser = values::duration)]
    pub(crate) keep: Duration,
    /// Working directory of the server; absolute on an executor [default: this one; the executor's own]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Set a variable of the server's environment, or without a value pass ours on; repeatable
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = values::variable_or_name)]
    pub(crate) env: Vec<(String, Option<String>)>,
    /// Pass a variable of the executor's own environment to the server; its value never comes here; repeatable
    #[arg(long, value_name = "NAME", value_parser = values::variable_name)]
    pub(crate) env_remote: Vec<String>,
    /// The MCP server and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::args::{Command, McpCommand, normalized, try_parse};

    #[test]
    fn everything_after_the_server_is_its_own_and_a_variable_may_be_a_name() {
        let line =
            "exec-server mcp bridge --env A --env B=c=d --env C= --env-remote E --keep 3s -- prog --env X=y --keep";
        let parsed = try_parse(normalized(line.split(' ').map(Into::into), false));
        let Ok(Command::Mcp(mcp)) = parsed else { panic!("{parsed:?}") };
        let McpCommand::Bridge(bridge) = mcp.command else { panic!("{mcp:?}") };
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
