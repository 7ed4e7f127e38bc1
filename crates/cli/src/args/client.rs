//! The arguments of the commands that connect to a server.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::{SandboxArgs, values};

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
  exec-server run -it --connect ssh://build-host -- bash
  exec-server run --connect ssh://build-host -w '~/src' -e CI=1 -- make
  exec-server run --login --connect ssh://build-host -- node --version
  exec-server run --sandbox --write . --no-network -- make
  exec-server run --detach --name nightly -- make -C /src all
  exec-server run -d --rm -- ./cleanup.sh      nothing is left of it when it has ended";

const PS_HELP: &str = "\
Running processes come first, the newest of them on top; --json has the order of process/list, the oldest first. \
Ended processes are shown until they are forgotten (`exec-server prune`) or their session ends. \
STATE is running, blocked (its output is not taken and the log is full), exited CODE, killed SIGNAL, \
timed out, out of memory or lost; `open` where something it started still has its streams.

Exit codes: 0 also when there is nothing to show; 130 Ctrl-C with -w; 255 trouble with the connection

Examples:
  exec-server ps
  exec-server ps -w                         watch them
  exec-server kill $(exec-server ps -rq)    end everything that runs
  exec-server ps --json --connect ssh://build-host | jq -r '.[].processId'";

const LOGS_HELP: &str = "\
What the program wrote to standard output and standard error comes out on ours. Where output is no \
longer kept, standard error says so. Of several processes whole lines are printed, each behind `ID |`. With --json each line is an event: output with its number, \
stream and base64 bytes, gap, exited, closed.

Exit codes:
  0    all that is kept was printed
  1    no such process
  141  nobody reads any more
  255  trouble with the connection, also midway; without -f, also a process that was lost with what held it

Examples:
  exec-server logs nightly
  exec-server logs -n 20 -f nightly
  exec-server logs -f web worker            two at once, each line with the name of its process
  exec-server logs -f nightly | grep --line-buffered error";

const ATTACH_HELP: &str = "\
To leave the process running, press Ctrl-] twice (and Enter, where it has no terminal). All other keys go to the process, Ctrl-C too \
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
Without a signal the process and all it started are ended: SIGTERM, then SIGKILL after the grace period. \
With -s, or as -9 or -KILL, its process group gets that one signal. A process that has ended already is left as it is.

Waits until the process has ended; after a signal other than SIGKILL it does not, because the program may heed it in its own way.

Exit codes: 0; 1 no such process; 255 trouble with the connection

Examples:
  exec-server kill nightly
  exec-server kill -9 nightly
  exec-server kill --no-wait nightly
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
  exec-server forget nightly
  exec-server forget -f nightly      end it first: SIGTERM, and SIGKILL after 5 s
  exec-server forget --ended         all that have ended; `exec-server prune` asks and says how much that was";

const PRUNE_HELP: &str = "\
Forgets every process that has ended, of all your sessions, with everything it wrote. Prints their ids, and on standard error \
how much output that was. On a terminal it asks before.

Exit codes: 0; 1 you said no; 255 trouble with the connection

Examples:
  exec-server prune
  exec-server prune -f --older 7d";

/// Where the server is and how to get in.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
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
    /// Log filter for standard error: a level, or target=level pairs [default: nothing]
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
pub(crate) struct RunArgs {
    /// Give the program a terminal
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Pass standard input on, which is the default; accepted so that `run -it` works
    #[arg(short = 'i', long, conflicts_with = "no_stdin")]
    pub(crate) interactive: bool,
    /// Print no notices, such as those of a broken link; errors and missing output are reported
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    /// Log what the connection does on standard error; twice for more. --log says more exactly what
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Read nothing: the program's standard input is /dev/null
    #[arg(short = 'n', long)]
    pub(crate) no_stdin: bool,
    /// Working directory of the program; `~` is the home directory, and on a server a relative one is below the server's own
    /// [default: this one; the server's own]
    #[arg(short = 'w', long, value_name = "DIR", visible_alias = "workdir")]
    pub(crate) cwd: Option<PathBuf>,
    /// Set a variable of the program's environment; K alone passes the variable of this shell. Repeatable
    #[arg(short = 'e', long, value_name = "K=V", value_parser = values::variable_or_ours)]
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
    /// [default with --detach]
    #[arg(long)]
    pub(crate) drop_oldest: bool,
    /// When its output is not taken and the log is full, let the program wait instead of dropping any of it
    /// [default without --detach]
    #[arg(long, conflicts_with = "drop_oldest")]
    pub(crate) keep_all: bool,
    /// Start it, print its id, and leave it running for as long as the server lets it; its standard input is /dev/null, or
    /// with -t the terminal that `attach` shows
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// Forget the process and its output when it has ended; readers that follow it get the end first
    #[arg(long)]
    pub(crate) rm: bool,
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
    pub(crate) confinement: SandboxArgs,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

impl RunArgs {
    /// Translates `-v` into a log level, unless `--log` is given.
    pub(super) fn apply_verbosity(&mut self) {
        if self.connect.log.is_none() {
            self.connect.log = match self.verbose {
                0 => None,
                1 => Some("info".to_owned()),
                2 => Some("debug".to_owned()),
                _ => Some("trace".to_owned()),
            };
        }
    }
}

/// Flags of `ps`.
#[derive(Debug, Args)]
#[command(after_help = PS_HELP)]
pub(crate) struct PsArgs {
    /// Only those that have not ended
    #[arg(short = 'r', long)]
    pub(crate) running: bool,
    /// Print an array of objects, as in the answer to process/list
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the ids only
    #[arg(short = 'q', long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print the list again every interval until Ctrl-C; on a terminal over itself
    #[arg(short = 'w', long)]
    pub(crate) watch: bool,
    /// Time between two lists of --watch, at least 200ms
    #[arg(long, value_name = "DUR", default_value = "1s", requires = "watch", value_parser = values::interval)]
    pub(crate) interval: Duration,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `logs`.
#[derive(Debug, Args)]
#[command(after_help = LOGS_HELP)]
pub(crate) struct LogsArgs {
    /// Follow until the process has ended and its output is complete
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Only the last N lines of what is there
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// Only what has a number above SEQ
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) since: u64,
    /// Print events as lines of JSON; of several processes each with its processId
    #[arg(long)]
    pub(crate) json: bool,
    /// The processes: their ids, the beginnings of them, or SESSION/ID
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `attach`.
#[derive(Debug, Args)]
#[command(after_help = ATTACH_HELP)]
pub(crate) struct AttachArgs {
    /// The process: its id, the beginning of it, or SESSION/ID
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `kill`.
#[derive(Debug, Args)]
#[command(after_help = KILL_HELP)]
pub(crate) struct KillArgs {
    /// Send this signal, and nothing else; `-9` and `-KILL` mean the same as `-s KILL`
    #[arg(short = 's', long, value_name = "SIG", value_parser = values::signal)]
    pub(crate) signal: Option<String>,
    /// Time between SIGTERM and SIGKILL
    #[arg(long, value_name = "DUR", default_value = "5s", conflicts_with = "signal")]
    #[arg(value_parser = values::duration_or_zero)]
    pub(crate) grace: Duration,
    /// Return at once; the process may not have ended yet
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// The processes: their ids, the beginnings of them, or SESSION/ID
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `wait`.
#[derive(Debug, Args)]
#[command(after_help = WAIT_HELP)]
pub(crate) struct WaitArgs {
    /// Print an object a process: how it ended
    #[arg(long)]
    pub(crate) json: bool,
    /// The processes: their ids, the beginnings of them, or SESSION/ID
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `forget`.
#[derive(Debug, Args)]
#[command(after_help = FORGET_HELP)]
pub(crate) struct ForgetArgs {
    /// End those that run first, with all they started
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// All processes that have ended
    #[arg(long, conflicts_with_all = ["ids", "force"])]
    pub(crate) ended: bool,
    /// The processes: their ids, the beginnings of them, or SESSION/ID
    #[arg(required_unless_present = "ended", value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `prune`.
#[derive(Debug, Args)]
#[command(after_help = PRUNE_HELP)]
pub(crate) struct PruneArgs {
    /// Do not ask
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Only those that were started longer ago than this
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) older: Option<Duration>,
    /// Print one object: forgotten (ids) and freedBytes
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
