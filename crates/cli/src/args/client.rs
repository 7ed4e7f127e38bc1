//! The words of the commands that speak with a server: where it is, and what each of them takes.
//! Must not act on them.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::{Confinement, values};

const RUN_HELP: &str = "\
Without a server the program runs here, in this directory, with this environment. On a server it \
runs in the server's own directory, with the server's core variables (PATH, HOME, USER, SHELL, LANG \
and the like).

Signals INT, TERM, HUP, QUIT, USR1 and USR2 are passed on. Ctrl-Z stops the program and us; `fg` \
continues both. A broken link is mended in the background. With -t on a server, Ctrl-] pressed \
twice leaves the program running there. Standard input that cannot be read or passed on to its end \
ends the program, so that it does not take a part for the whole.

Exit codes:
  the program's own; 128+n when signal n ended it
  124  ended by --timeout or --idle-timeout
  126  the program could not be executed
  127  the program was not found
  141  standard output was closed before the program ended (128+SIGPIPE)
  255  trouble of exec-server itself, or with the connection

Examples:
  exec-server run -- sh -c 'echo out; echo err >&2; exit 3'
  tar c . | exec-server run --connect ssh://build-host --cwd /tmp -- tar x
  exec-server run -t --connect ssh://build-host -- bash
  exec-server run --login --connect ssh://build-host -- node --version
  exec-server run --sandbox --write . --no-network -- make
  exec-server run --detach --name nightly -- make -C /src all";

const PS_HELP: &str = "\
Ended processes are shown until they are forgotten (`exec-server forget`) or their session ends. \
STATE is running, blocked (its output is not taken and the log is full), exited CODE, killed SIGNAL, \
timed out, out of memory or lost; `open` where something it started still has its streams.

Exit codes: 0 also when there is nothing to show; 255 trouble with the connection

Examples:
  exec-server ps
  exec-server ps --json --connect ssh://build-host | jq -r '.[].processId'";

const LOGS_HELP: &str = "\
What the program wrote to standard output and standard error comes out on ours. Where output is no \
longer kept, standard error says so. With --json each line is an event: output with its number, \
stream and base64 bytes, gap, exited, closed.

Exit codes:
  0    all that is kept was printed
  1    no such process
  141  nobody reads any more
  255  trouble with the connection, also midway; without -f, also a process that was lost with what held it

Examples:
  exec-server logs nightly
  exec-server logs -f nightly | grep --line-buffered error";

const ATTACH_HELP: &str = "\
To leave the process running, press Ctrl-] twice. All other keys go to the process, Ctrl-C too \
where it has a terminal; a signal to this program only detaches. The screen of a process with a \
terminal is drawn again from its latest output; one without shows what it writes from now on, and \
its standard input is closed by Ctrl-D, not by the end of a file.

Exit codes:
  the process's own, as in `exec-server run --help`
  0    you detached; 128+n when signal n did
  1    no such process
  255  trouble with the connection

Examples:
  exec-server run --detach -t --name work -- bash
  exec-server attach work";

const KILL_HELP: &str = "\
Without -s the process and all it started are ended: SIGTERM, then SIGKILL after the grace period. \
With -s its process group gets that one signal. A process that has ended already is left as it is.

Exit codes: 0; 1 no such process; 255 trouble with the connection

Examples:
  exec-server kill nightly
  exec-server kill --grace 0s nightly       at once
  exec-server kill -s HUP nightly";

const WAIT_HELP: &str = "\
Waits until the process has ended and its output is complete.

Exit codes:
  the last process's own, as in `exec-server run --help`; 1 also when there is no such process
  255  trouble with the connection

Examples:
  exec-server wait nightly && echo ok
  exec-server wait --json nightly";

const FORGET_HELP: &str = "\
Exit codes: 0; 1 no such process, or it has not ended; 255 trouble with the connection

Examples:
  exec-server forget nightly";

/// Where the server is and how to get in.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connect {
    /// The server: ws://, wss://, unix://, ssh://user@host, stdio:COMMAND, or a name of environments.toml
    /// [default: $EXEC_SERVER_URL, then $CODEX_EXEC_SERVER_URL, else this machine]
    #[arg(long, value_name = "URL|NAME")]
    pub(crate) connect: Option<String>,
    /// Read the token from FILE [default: the URL's, else $EXEC_SERVER_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// For wss://, trust the certificates in FILE in place of the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// For wss://, show the certificate in FILE to the server
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Show the token also to a ws:// server on another machine, where everybody on the way can read it
    #[arg(long)]
    pub(crate) insecure_plaintext: bool,
    /// Wait this long for a server that does not listen yet or is not reachable [default: one retry after 0.2 s]
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) wait: Option<Duration>,
    /// Give a broken link up after this long [default: as long as the server keeps the session]
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) recover_for: Option<Duration>,
    /// What to log on standard error: a level, or target=level pairs [default: nothing]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

/// Which variables a program inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InheritArg {
    /// Every variable; from a server, all but names that look like secrets
    All,
    /// PATH, HOME, USER, SHELL, LANG and the like
    Core,
    /// None
    None,
}

/// Flags of `run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct Run {
    /// Give the program a terminal
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Read nothing: the program's standard input is /dev/null
    #[arg(short = 'n', long)]
    pub(crate) no_stdin: bool,
    /// Working directory of the program; absolute on a server [default: this one; the server's own]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Set a variable of the program's environment; repeatable
    #[arg(long, value_name = "K=V", value_parser = values::variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Which other variables it inherits [default: all here, core on a server]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) env_inherit: Option<InheritArg>,
    /// Add the variables of the user's login shell there, as its profile sets them
    #[arg(long)]
    pub(crate) login: bool,
    /// End the program after this long, such as 90s or 2h
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
    /// End the program after this long without output
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) idle_timeout: Option<Duration>,
    /// When its output is not taken and the log is full, drop the oldest of it instead of letting the program wait
    #[arg(long)]
    pub(crate) drop_oldest: bool,
    /// Start it, print its id, and leave it running without a time limit; its standard input is /dev/null, or with -t the
    /// terminal that `attach` shows
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// With --detach, print an object with processId, sessionId and pid
    #[arg(long, requires = "detach")]
    pub(crate) json: bool,
    /// Its id for the other commands [default: made from the program's name]
    #[arg(long, value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) name: Option<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
    #[command(flatten)]
    pub(crate) confinement: Confinement,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Flags of `ps`.
#[derive(Debug, Args)]
#[command(after_help = PS_HELP)]
pub(crate) struct Ps {
    /// Only those that have not ended
    #[arg(short = 'r', long)]
    pub(crate) running: bool,
    /// Print an array of objects, as in the answer to process/list
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Flags of `logs`.
#[derive(Debug, Args)]
#[command(after_help = LOGS_HELP)]
pub(crate) struct Logs {
    /// Follow until the process has ended and its output is complete
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Only what has a number above SEQ
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) since: u64,
    /// Print events as lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The process: its id, the beginning of it, or SESSION/ID
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Flags of `attach`.
#[derive(Debug, Args)]
#[command(after_help = ATTACH_HELP)]
pub(crate) struct Attach {
    /// The process: its id, the beginning of it, or SESSION/ID
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Flags of `kill`.
#[derive(Debug, Args)]
#[command(after_help = KILL_HELP)]
pub(crate) struct Kill {
    /// Send this signal, and nothing else
    #[arg(short = 's', long, value_name = "SIG", value_parser = values::signal)]
    pub(crate) signal: Option<String>,
    /// Time between SIGTERM and SIGKILL
    #[arg(long, value_name = "DUR", default_value = "5s", conflicts_with = "signal")]
    #[arg(value_parser = values::duration_or_zero)]
    pub(crate) grace: Duration,
    /// The processes: their ids, the beginnings of them, or SESSION/ID
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Flags of `wait`.
#[derive(Debug, Args)]
#[command(after_help = WAIT_HELP)]
pub(crate) struct Wait {
    /// Print an object a process: how it ended
    #[arg(long)]
    pub(crate) json: bool,
    /// The processes: their ids, the beginnings of them, or SESSION/ID
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// Flags of `forget`.
#[derive(Debug, Args)]
#[command(after_help = FORGET_HELP)]
pub(crate) struct Forget {
    /// The processes: their ids, the beginnings of them, or SESSION/ID
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: Connect,
}
