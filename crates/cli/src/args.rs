//! The words of the command line.
//! Must not act on them.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use exec_server_protocol::limits;
use exec_server_server::{
    door::AllowedHost,
    listen::{ListenUrl, exposure::Auth},
};

/// Requests of one connection that may run at once, whatever is asked for: all that may wait.
const CONCURRENT_MAX: usize = limits::REQUESTS_WAITING;

/// Set by `dial-stdio` for the server that it starts.
pub(crate) const DETACHED: &str = "--detached";

const EXAMPLES: &str = "\
Examples:
  exec-server run -- echo hello           run a program here, as if it were remote
  exec-server serve                       serve on a free loopback port; prints the URL
  exec-server serve --listen ws://127.0.0.1:4000 --listen unix:///run/user/1000/exec.sock
  ssh host exec-server dial-stdio         speak to the server of your user on host

Exit codes:
  0    done; for `serve`: ended by a signal, in order
  2    the command line is wrong
  255  trouble of exec-server itself
  `run` ends with the code of the program; see `exec-server run --help`";

const RUN_HELP: &str = "\
Exit codes:
  the program's own; 128+n when signal n ended it
  126  the program could not be executed
  127  the program was not found
  141  standard output was closed before the program ended (128+SIGPIPE)
  255  trouble of exec-server itself

Examples:
  exec-server run -- sh -c 'echo out; echo err >&2; exit 3'
  tar c . | exec-server run --cwd /tmp -- tar x
  exec-server run -t -- bash";

/// Runs processes on another machine as if they were local, and never loses them.
#[derive(Debug, Parser)]
#[command(name = "exec-server", version, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve processes over WebSocket, Unix sockets or standard streams. `exec-server --listen URL` means the same.
    Serve(Serve),
    /// Carry standard input and output to the server of a state directory, starting it where none runs.
    DialStdio(DialStdio),
    /// Run a program through an embedded server: streams apart, exit code kept.
    Run(Run),
    /// Print the JSON Schema of every method, notification and error kind.
    Schema,
}

/// Flags of `serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen: ws://IP:PORT, unix:///path or stdio; repeatable [default: ws://127.0.0.1:0]
    #[arg(long, value_name = "URL")]
    pub(crate) listen: Vec<ListenUrl>,
    /// Who may connect over ws: bearers of the token, or everybody who reaches the socket
    #[arg(long, value_enum, default_value_t = AuthArg::Token)]
    auth: AuthArg,
    /// Read the token from FILE, which only its owner may read [default: $EXEC_SERVER_TOKEN, else the state directory's]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Keep sessions and token in DIR [default: one per fixed address; a private one for port 0 and stdio]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Keep no session longer than this without a connection: 30s, 10m, 24h, 30d or none. A client gets 10m, one that can
    /// acknowledge 24h, or what it asks for
    #[arg(long, value_name = "DUR", default_value = "30d", value_parser = parse_ttl)]
    pub(crate) session_ttl: Ttl,
    /// Requests of one connection that run at once
    #[arg(long, value_name = "N", default_value_t = limits::REQUESTS_RUNNING, value_parser = parse_concurrent)]
    pub(crate) concurrent_requests: usize,
    /// Accept requests for this host name, with or without a port; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<AllowedHost>,
    /// Listen beyond loopback without TLS, behind a proxy that has it; the token is still required
    #[arg(long)]
    pub(crate) insecure_plaintext: bool,
    /// End all sessions and their processes when the server ends
    #[arg(long)]
    pub(crate) kill_on_exit: bool,
    /// What to log on standard error: a level, or target=level pairs
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    pub(crate) log: String,
    /// Leave the session of whoever started this server
    #[arg(long, hide = true)]
    detached: bool,
}

/// Flags of `dial-stdio`.
#[derive(Debug, Args)]
pub(crate) struct DialStdio {
    /// The server's state directory [default: one per user]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// Flags of `run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub(crate) struct Run {
    /// Give the program a terminal
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Working directory of the program [default: this one]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<PathBuf>,
    /// Set a variable of the program's environment; repeatable
    #[arg(long, value_name = "K=V", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) argv: Vec<String>,
}

/// A time to live; `None` means no end. A name of its own, because clap reads an `Option` as an optional flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ttl(pub(crate) Option<Duration>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AuthArg {
    Token,
    None,
}

impl Serve {
    /// Who may come in over TCP.
    pub(crate) fn auth(&self) -> Auth {
        match self.auth {
            AuthArg::Token => Auth::Token,
            AuthArg::None => Auth::None,
        }
    }
}

/// Reads the command line; ends the program with help or a usage error.
pub(crate) fn parse() -> Command {
    Cli::parse_from(normalized(std::env::args_os())).command
}

/// Whether this is a server started in the background. Asked before the arguments are parsed, because it must leave its
/// session before the spawner is forked.
pub(crate) fn is_detached() -> bool {
    std::env::args_os().nth(2).is_some_and(|arg| arg == DETACHED)
}

/// The reference is started as `exec-server --listen URL`, or with the name once more: both mean `serve`.
fn normalized(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let first = args.get(1).and_then(|arg| arg.to_str());
    match first {
        Some("exec-server") => args[1] = "serve".into(),
        Some("--help" | "--version") => {}
        Some(flag) if flag.starts_with("--") => args.insert(1, "serve".into()),
        Some(_) | None => {}
    }
    args
}

fn parse_concurrent(text: &str) -> Result<usize, &'static str> {
    match text.parse::<u128>() {
        Ok(0) | Err(_) => Err("must be an integer of at least 1"),
        Ok(number) => Ok(usize::try_from(number).map_or(CONCURRENT_MAX, |number| number.min(CONCURRENT_MAX))),
    }
}

fn parse_ttl(text: &str) -> Result<Ttl, &'static str> {
    const FORMS: &str = "must be like 30s, 10m, 24h, 30d, or none";
    if text == "none" {
        return Ok(Ttl(None));
    }
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).ok_or(FORMS)?);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(FORMS),
    };
    let number: u64 = number.parse().map_err(|_| FORMS)?;
    let total =
        number.checked_mul(seconds).filter(|total| *total <= u64::from(u32::MAX)).ok_or("is too long; use none")?;
    if total == 0 {
        return Err("must not be zero");
    }
    Ok(Ttl(Some(Duration::from_secs(total))))
}

fn parse_env(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("must be NAME=value"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{CommandFactory as _, Parser as _};

    use super::{CONCURRENT_MAX, Cli, Command, Ttl, normalized, parse_ttl};

    fn parse(line: &str) -> Result<Command, clap::Error> {
        let args = line.split(' ').map(Into::into);
        Cli::try_parse_from(normalized(args)).map(|cli| cli.command)
    }

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_ways_to_start_a_server_mean_the_same() {
        for line in [
            "exec-server serve --listen stdio --kill-on-exit",
            "exec-server --listen stdio --kill-on-exit",
            "exec-server exec-server --listen stdio --kill-on-exit",
            "exec-server --kill-on-exit --listen stdio",
        ] {
            let Ok(Command::Serve(serve)) = parse(line) else { panic!("{line}") };
            assert_eq!((serve.listen.len(), serve.kill_on_exit), (1, true), "{line}");
        }
        assert!(matches!(parse("exec-server exec-server"), Ok(Command::Serve(_))));
        assert!(parse("exec-server").is_err());
    }

    #[test]
    fn requests_are_at_least_one_and_at_most_the_maximum() {
        let of = |n: &str| match parse(&format!("exec-server serve --concurrent-requests {n}")) {
            Ok(Command::Serve(serve)) => Some(serve.concurrent_requests),
            Ok(_) => None,
            Err(_) => None,
        };
        assert_eq!((of("1"), of("7"), of("99999999999999999999999")), (Some(1), Some(7), Some(CONCURRENT_MAX)));
        for bad in ["0", "-1", "x", "1.5", ""] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, seconds) in [("30s", 30), ("10m", 600), ("24h", 86_400), ("30d", 2_592_000)] {
            assert_eq!(parse_ttl(text), Ok(Ttl(Some(Duration::from_secs(seconds)))));
        }
        assert_eq!(parse_ttl("none"), Ok(Ttl(None)));
        for bad in ["", "30", "s", "0s", "-1s", "1w", "1.5h", "99999999999999999999d", "1 h"] {
            assert!(parse_ttl(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn everything_after_the_program_is_its_own() {
        let Ok(Command::Run(run)) = parse("exec-server run -t --env A=b=c -- prog -t --cwd x") else { panic!() };
        assert_eq!(run.argv, ["prog", "-t", "--cwd", "x"]);
        assert_eq!((run.tty, run.env), (true, vec![("A".to_owned(), "b=c".to_owned())]));
        let Ok(Command::Run(run)) = parse("exec-server run prog -t") else { panic!() };
        assert_eq!((run.argv.len(), run.tty), (2, false));
        assert!(parse("exec-server run").is_err());
        assert!(parse("exec-server run --env =x -- prog").is_err());
    }
}
