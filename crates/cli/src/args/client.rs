//! The arguments of the commands that connect to a server.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::values;

const RUN_HELP: &str = "\
Without a server the program runs here, in this directory, with this environment; killing this command also ends the program. \
With --detach it runs on your background server on this machine, which the command starts if needed; directory and environment \
stay the same. On any other server it runs in the server's directory, with the server's core variables (PATH, HOME, USER, SHELL, \
LANG and similar).

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are forwarded. Ctrl-Z stops the program and this \
command; `fg` continues both. After a broken link the command reconnects in the background. With -t on a server, \
pressing Ctrl-] twice leaves the program running there. If stdin cannot be read or forwarded completely, the \
program is killed, because it would take partial input for complete input.

Exit codes:
  the program's own exit code, or 128+n if signal n ended it
  124  ended by --timeout or --idle-timeout
  126  the program could not be executed
  127  the program was not found
  141  standard output was closed before the program ended (128+SIGPIPE)
  255  exec-server or its connection failed

Examples:
  exec-server run -- sh -c 'echo out; echo err >&2; exit 3'
  tar c . | exec-server run --connect ssh://build-host --cwd /tmp -- tar x
  exec-server run -it --connect ssh://build-host -- bash
  exec-server run --connect ssh://build-host -w '~/src' -e CI=1 -- make
  exec-server run --login --connect ssh://build-host -- node --version
  exec-server run --sandbox --write . --no-network -- make
  exec-server run --detach --name nightly -- make -C /src all
  exec-server run -d --rm -- ./cleanup.sh   forget the process when it ends";

const PS_HELP: &str = "\
Running processes are listed first, the newest on top; --json uses the order of process/list, oldest first. \
Ended processes are listed until they are forgotten (`exec-server prune`) or their session ends. While a client is connected to the \
session, the server also forgets old processes whose output this client has taken (`serve --closed-for` and `--closed-processes`).

STATE is `running`, `blocked memory`, `blocked quota` or `blocked disk` (output has filled the memory limit, the disk quota or the disk, \
and no reader takes it), `exited CODE`, `killed SIGNAL`, `timed out`, `out of memory` or `lost` (its holder died). The word `open` follows after a comma while a \
descendant of an ended process still holds its streams.

Exit codes:
  0    success, also for an empty list
  130  Ctrl-C ended -w (128+n for signal n)
  141  standard output was closed (128+SIGPIPE)
  255  the connection failed

Examples:
  exec-server ps
  exec-server ps -w                         refresh until Ctrl-C
  exec-server kill $(exec-server ps -rq)    end all running processes
  exec-server ps --json --connect ssh://build-host | jq -r '.[].processId'";

const LOGS_HELP: &str = "\
Writes the program's stdout to stdout and its stderr to stderr. Where output is missing, a message on stderr \
says so. The output of several processes is printed in whole lines, each with the prefix `ID |`. With --json each line is one event with \
its number: `output` with stream and base64 bytes, `gap`, and with -f also `exited` and `closed`.

With -f, if this command's output is not read and the log of the process is full, the process blocks. A process that was started with \
`run --drop-oldest`, the default of `run --detach`, loses its oldest output instead.

Exit codes:
  0    all output that the server still has was printed
  1    no such process
  141  standard output was closed (128+SIGPIPE)
  255  the connection failed, possibly after a part of the output;
       or the process is lost (its holder died), so its output may be incomplete

Examples:
  exec-server logs nightly
  exec-server logs -n 20 -f nightly
  exec-server logs -f web worker            each line with its process id
  exec-server logs -f nightly | grep --line-buffered error";

const ATTACH_HELP: &str = "\
Press Ctrl-] twice to detach and leave the process running. If the process has no terminal, press Enter as well. \
All other keys go to the process, including Ctrl-C if the process has a terminal. A signal to this command only detaches.

For a process with a terminal, the screen is redrawn from the latest output. A running process without a terminal shows its output from \
now on; an ended process, its latest output. If the process has no terminal, Ctrl-D closes its stdin, but the end of piped input does not.

Exit codes:
  the process's own exit code, as in `exec-server run --help`
  0    detached by keys
  128+n  detached by signal n
  1    no such process
  255  the connection failed, or the process is lost (its holder died)

Examples:
  exec-server run --detach -t --name work -- bash
  exec-server attach work";

const KILL_HELP: &str = "\
Without a signal, sends SIGTERM to the process group. If the process, or a descendant that holds its streams, still runs after the \
grace period, kills the process and all its descendants with SIGKILL. With --grace 0s, kills them at once. If the process ends within \
the grace period, a descendant that ignored SIGTERM or left the process group, and does not hold the streams, runs until the session ends.

With -s SIG, -9 or -KILL, the process group gets only that signal. A process that has ended and whose streams are closed is left as it is.

Then waits until the process has ended. After a signal other than SIGKILL it does not wait, because the program may handle or \
ignore the signal.

Exit codes: 0 success; 1 no such process; 255 the connection failed

Examples:
  exec-server kill nightly
  exec-server kill -9 nightly
  exec-server kill --no-wait nightly
  exec-server kill --grace 0s nightly       at once
  exec-server kill -s HUP nightly";

const WAIT_HELP: &str = "\
Waits until the process has ended and its output is complete.

Exit codes:
  the exit code of the last ID on the command line, as in `exec-server run --help`
  1    no such process
  255  the connection failed, or the process is lost (its holder died)

Examples:
  exec-server wait nightly && echo ok
  exec-server wait --json nightly";

const FORGET_HELP: &str = "\
Exit codes: 0 success; 1 no such process, or it or a descendant that holds its streams still runs; 255 the connection failed

Examples:
  exec-server forget nightly
  exec-server forget -f nightly   end it first, as `kill nightly` does
  exec-server forget --ended      all ended processes; see also `prune`";

const PRUNE_HELP: &str = "\
Forgets every ended process of all your sessions, with its output. Keeps a process whose state in `ps` has the word `open`, because \
descendants still hold its streams. Prints the ids, and on stderr the size of the deleted output. On a terminal it asks first; \
elsewhere it deletes without asking.

Exit codes: 0 success; 1 you answered no; 255 the connection failed

Examples:
  exec-server prune
  exec-server prune -f --older 7d";

/// The server and the credentials for it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// The server: ws://, wss://, unix://, ssh://user@host, stdio:COMMAND, or a name of environments.toml
    /// [default: $EXEC_SERVER_URL, then $CODEX_EXEC_SERVER_URL, then `default` of environments.toml, else this machine (`local`)]
    #[arg(long, value_name = "URL|NAME")]
    pub(crate) connect: Option<String>,
    /// Read the token from FILE [default: token_file of environments.toml, then the token in the URL, else $EXEC_SERVER_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// For wss://, trust the certificates in FILE instead of the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// For wss://, authenticate with the client certificate in FILE
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Send the token to a ws:// server on another machine, where it can be read on the network
    #[arg(long)]
    pub(crate) insecure_plaintext: bool,
    /// Retry for this long if the server cannot be reached or does not listen [default: if nothing listens, one retry after 0.2 s]
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) wait: Option<Duration>,
    /// Stop reconnecting after this long [default: as long as the server keeps the session]
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) recover_for: Option<Duration>,
    /// Log filter for standard error: a level, or target=level pairs [default: nothing]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

/// Which variables a program inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum InheritArg {
    /// All variables; on a server, without names that look like secrets
    All,
    /// PATH, HOME, USER, SHELL, LANG and similar
    Core,
    /// None
    None,
}

/// Flags of `run` that confine the program.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxArgs {
    /// Confine the program: it can read system directories and its working directory, and write nowhere
    #[arg(long)]
    pub(crate) sandbox: bool,
    /// Let the confined program read and execute files in DIR; repeatable
    #[arg(long, value_name = "DIR", requires = "sandbox")]
    pub(crate) read: Vec<PathBuf>,
    /// Let the confined program also write in DIR; repeatable. A relative DIR starts at the current
    /// directory, on a server at the working directory of the program
    #[arg(long, value_name = "DIR", requires = "sandbox")]
    pub(crate) write: Vec<PathBuf>,
    /// Prevent the confined program from opening network connections
    #[arg(long, requires = "sandbox")]
    pub(crate) no_network: bool,
}

/// Flags of `run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Give the program a terminal
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Forward stdin, which is the default; accepted so that `run -it` works
    #[arg(short = 'i', long, conflicts_with = "no_stdin")]
    pub(crate) interactive: bool,
    /// Print no notices, such as for a broken link; errors and missing output are still reported
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    /// Log connection events on stderr: -v at level info, -vv debug, -vvv trace. --log overrides this
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Do not forward stdin: the program reads /dev/null, or with -t a terminal that gets no input
    #[arg(short = 'n', long)]
    pub(crate) no_stdin: bool,
    /// Working directory of the program; `~` is the home directory. On a server, relative to the server's directory
    /// [default: the current one; on a server, the server's]
    #[arg(short = 'w', long, value_name = "DIR", visible_alias = "workdir")]
    pub(crate) cwd: Option<PathBuf>,
    /// Set an environment variable; K alone copies it from this shell. Repeatable
    #[arg(short = 'e', long, value_name = "K=V", value_parser = values::variable_or_ours)]
    pub(crate) env: Vec<(String, String)>,
    /// Which other variables the program inherits [default: all here, core on a server]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) env_inherit: Option<InheritArg>,
    /// Add the variables that the user's login shell sets on the machine where the program runs
    #[arg(long)]
    pub(crate) login: bool,
    /// End the program after this long, such as 90s or 2h
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
    /// End the program after this long without output
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) idle_timeout: Option<Duration>,
    /// When the log is full and no reader takes output, drop the oldest output instead of blocking the program
    /// [default with --detach]
    #[arg(long)]
    pub(crate) drop_oldest: bool,
    /// When the log is full and no reader takes output, block the program instead of dropping output
    /// [default without --detach, unless the server has --overflow drop-oldest]
    #[arg(long, conflicts_with = "drop_oldest")]
    pub(crate) keep_all: bool,
    /// Start the program, print its id and leave it running; its stdin is /dev/null, or with -t a terminal that you can
    /// `attach` to
    #[arg(short = 'd', long)]
    pub(crate) detach: bool,
    /// Forget the process and its output when it has ended; clients that follow it still get the rest of the output
    #[arg(long)]
    pub(crate) rm: bool,
    /// With --detach, print an object with processId, sessionId and pid
    #[arg(long, requires = "detach")]
    pub(crate) json: bool,
    /// Id of the process for the other commands [default: generated from the program name]
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
        if self.connect.log.is_none() && self.verbose > 0 {
            let level = ["info", "debug", "trace"][usize::from(self.verbose.min(3) - 1)];
            self.connect.log = Some(level.to_owned());
        }
    }
}

/// Flags of `ps`.
#[derive(Debug, Args)]
#[command(after_help = PS_HELP)]
pub(crate) struct PsArgs {
    /// Only running processes
    #[arg(short = 'r', long)]
    pub(crate) running: bool,
    /// Print a JSON array of objects, as in the result of process/list
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only the ids
    #[arg(short = 'q', long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Refresh the list every interval until Ctrl-C; in place on a terminal
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
    /// Only the last N lines of the existing output
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tail: Option<usize>,
    /// Only events with a number above SEQ
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub(crate) since: u64,
    /// Print events as lines of JSON; for several processes each with its processId
    #[arg(long)]
    pub(crate) json: bool,
    /// Processes: ids, unique prefixes, or SESSION/ID
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `attach`.
#[derive(Debug, Args)]
#[command(after_help = ATTACH_HELP)]
pub(crate) struct AttachArgs {
    /// Process: its id, a unique prefix, or SESSION/ID
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `kill`.
#[derive(Debug, Args)]
#[command(after_help = KILL_HELP)]
pub(crate) struct KillArgs {
    /// Send only this signal; `-9` and `-KILL` are the same as `-s KILL`
    #[arg(short = 's', long, value_name = "SIG", value_parser = values::signal)]
    pub(crate) signal: Option<String>,
    /// Time between SIGTERM and SIGKILL
    #[arg(long, value_name = "DUR", default_value = "5s", conflicts_with = "signal")]
    #[arg(value_parser = values::duration_or_zero)]
    pub(crate) grace: Duration,
    /// Do not wait until the process has ended
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Processes: ids, unique prefixes, or SESSION/ID
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `wait`.
#[derive(Debug, Args)]
#[command(after_help = WAIT_HELP)]
pub(crate) struct WaitArgs {
    /// Print one JSON object per process: its ids, exitCode, signal, cause and usage
    #[arg(long)]
    pub(crate) json: bool,
    /// Processes: ids, unique prefixes, or SESSION/ID
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `forget`.
#[derive(Debug, Args)]
#[command(after_help = FORGET_HELP)]
pub(crate) struct ForgetArgs {
    /// End running processes first, as `kill` does
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// All ended processes, except those whose state in `ps` has the word `open`
    #[arg(long, conflicts_with_all = ["ids", "force"])]
    pub(crate) ended: bool,
    /// Processes: ids, unique prefixes, or SESSION/ID
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
    /// Only processes that were started longer ago than this
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) older: Option<Duration>,
    /// Print one JSON object: forgotten (ids) and freedBytes
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}
