//! The clap grammar of the command line. This module and its submodules only parse; doc comments on flags and subcommands are `--help`
//! texts.

mod access;
mod bounds;
mod client;
mod copy;
mod files;
mod mcp;
mod values;

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum, error::ErrorKind};
use exec_server_client::environment;
use exec_server_server::{
    admission::AllowedHost,
    listen::{
        ListenUrl,
        exposure::{ExposureTerms, RequiredAuth},
    },
    tls::{MinTlsVersion, TlsFiles},
};
use rustix::fs::FileType;

use crate::{hints, print_config};

pub(crate) use {access::*, bounds::LimitArgs, client::*, copy::*, files::*, mcp::*, values::Bound, values::Ttl};

/// Set by the client for a server that it starts in the background.
pub(crate) const DETACHED: &str = "--detached";

const EXAMPLES: &str = "\
Examples:
  exec-server run -- echo hello              run a program on this machine
  exec-server run --connect ssh://host -- uname -a
                                             run it on host, through your ssh
  exec-server run --detach --name job -- make
                                             leave it running; then:
  exec-server ps; exec-server logs -f job; exec-server attach job
  exec-server cp -r --connect ssh://host :/srv/data .
                                             copy a tree from host
  exec-server serve                          serve on a free loopback port

Exit codes:
  0    success; `serve`: shut down by a signal
  1    the command ran but did not succeed; see its help
  2    invalid command line
  255  exec-server or its connection failed
  `run`, `attach`, `wait` and `mcp bridge` exit with the program's own code.
  docs/reference/exit-codes.md lists all codes.

Environment:
  EXEC_SERVER_URL, then CODEX_EXEC_SERVER_URL
      the server, if --connect is not given
  EXEC_SERVER_TOKEN
      the token, if --token-file, environments.toml and the URL have none
  EXEC_SERVER_MCP_CONFIG
      the configuration of MCP servers, if --config is not given

Files:
  ~/.config/exec-server/environments.toml
      names of servers for --connect, and the default server";

const SERVE_HELP: &str = "\
SIGTERM, SIGINT and SIGHUP shut the server down: clients are notified, and processes keep running for the \
next server on the same state directory. The processes end with this server if its state directory is private (port 0 or stdio, \
without --state-dir), or with --kill-on-exit. A second signal exits at once.

Exit codes: 0 shut down; 1 ended by a second signal; 255 an error, such as an address in use

Examples:
  exec-server serve
  exec-server serve --port 4000
  exec-server serve --listen ws://127.0.0.1:4000 --token-file ~/.exec-token
  exec-server serve --listen ws://127.0.0.1:4000 --listen unix:///run/x.sock
  exec-server serve --listen wss://0.0.0.0:4000 \\
      --tls-cert c.pem --tls-key c.key --client-ca ca.pem";

const DIAL_HELP: &str = "\
Without --state-dir, the server is your background server: one per user on this machine. Commands such as `run --detach`, `ps` \
and `fs` use it if no server is given. A command with `--connect ssh://HOST` uses the background server of HOST.

A server that this command starts exits after one minute with no connection and no running process.

Exit codes: 0 either side closed; 255 no server could be reached or started

Example:
  ssh host exec-server dial-stdio";

const DOCTOR_HELP: &str = "\
Changes nothing on this host.

Exit codes: 0 nothing essential is missing; 1 something is; 255 exec-server failed

Example:
  exec-server doctor";

const COMPLETIONS_HELP: &str = "\
At every Tab the script runs this program, so it also completes the ids of processes on the server that the command line \
names, and the names in environments.toml.

Examples:
  cd ~/.local/share/bash-completion/completions
  exec-server completions bash > exec-server
  exec-server completions zsh  > ~/.zfunc/_exec-server
  exec-server completions fish > ~/.config/fish/completions/exec-server.fish";

/// Runs processes on another machine as if they were local; they survive broken links and server restarts.
#[derive(Debug, Parser)]
#[command(name = "exec-server", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The command to run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program here or on a server; keep stdout and stderr separate, and exit with its code.
    Run(Box<RunArgs>),
    /// List the processes of all your sessions.
    Ps(PsArgs),
    /// Print the output of a process.
    Logs(LogsArgs),
    /// Connect this terminal to a running process.
    Attach(AttachArgs),
    /// End a process, or send it a signal.
    Kill(KillArgs),
    /// Wait until a process has ended and exit with its code.
    Wait(WaitArgs),
    /// Delete an ended process and its output.
    Forget(ForgetArgs),
    /// Delete all ended processes and their output.
    Prune(PruneArgs),
    /// Copy files and trees to, from and between servers.
    Cp(CopyArgs),
    /// List, read, search, watch and change files on a server.
    #[command(subcommand, after_help = files::FS_HELP)]
    Fs(FilesCommand),
    /// Run MCP servers on another machine, or offer a machine as an MCP server.
    #[command(subcommand, after_help = mcp::MCP_HELP)]
    Mcp(McpCommand),
    /// Serve processes over WebSocket, Unix sockets or stdio. `exec-server --listen URL` is the same.
    Serve(Box<ServeArgs>),
    /// Connect stdin and stdout to the server of a state directory; start the server if none runs.
    DialStdio(DialStdioArgs),
    /// Create, list and revoke named tokens with permissions.
    #[command(subcommand, after_help = access::TOKEN_HELP)]
    Token(TokenCommand),
    /// Verify an audit log.
    #[command(subcommand, after_help = access::AUDIT_HELP)]
    Audit(AuditCommand),
    /// Report what this host can and cannot enforce, with remedies.
    Doctor(DoctorArgs),
    /// Print the completion script of a shell.
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page of the program or of one command.
    #[command(hide = true)]
    Man {
        /// The command
        command: Option<String>,
    },
    /// Print the JSON Schema of every method, notification and error kind.
    Schema,
}

/// The shells that have completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Flags of `serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
pub(crate) struct ServeArgs {
    /// Where to listen: ws://IP:PORT, wss://IP:PORT, unix:///path or stdio; repeatable [default: ws://127.0.0.1:0]
    #[arg(long, value_name = "URL")]
    pub(crate) listen: Vec<ListenUrl>,
    /// Listen on this port of this machine: the same as --listen ws://127.0.0.1:N
    #[arg(short = 'p', long, value_name = "N")]
    port: Option<u16>,
    /// How ws and wss clients authenticate [default: a token; on wss with --client-ca, only the certificate]
    #[arg(long, value_enum)]
    auth: Option<AuthArg>,
    /// Certificate chain for wss, in PEM; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert; must be readable only by its owner
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Minimum TLS version
    #[arg(long, value_enum, value_name = "VERSION", default_value_t = TlsMin::V1_3)]
    pub(crate) tls_min: TlsMin,
    /// Require client certificates of these authorities on wss; clients are identified by the certificate's subjectAltName
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Read the owner's token from FILE, which must be readable only by its owner [default: $EXEC_SERVER_TOKEN, then the
    /// systemd credential exec-server-token, then the file `token` in the state directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// Directory for sessions and the token [default: one per fixed address in ~/.local/state/exec-server; for port 0 and
    /// stdio a private one, which is removed at exit]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    #[arg(long, value_name = "DUR", value_parser = values::ttl, help_heading = "Limits")]
    pub(crate) session_ttl: Ttl,
    #[arg(long, value_name = "N", value_parser = values::concurrent, help_heading = "Limits")]
    pub(crate) concurrent_requests: usize,
    /// Accept this host name in the Host header, with or without a port; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<AllowedHost>,
    /// Allow non-loopback listeners without TLS, for use behind a TLS proxy; the token is still required
    #[arg(long)]
    pub(crate) insecure_plaintext: bool,
    /// Run processes and access files as this user, by name or number; the server must run as root. Names are read from
    /// /etc/passwd and /etc/group, without NSS
    #[arg(long, value_name = "USER[:GROUP]")]
    pub(crate) run_as: Option<String>,
    #[arg(long, value_name = "N", value_parser = values::pids, help_heading = "Limits")]
    pub(crate) max_pids: Bound,
    #[arg(long, value_name = "SIZE", value_parser = values::bytes, help_heading = "Limits")]
    pub(crate) max_memory: Bound,
    /// End all sessions and their processes when the server exits
    #[arg(long)]
    pub(crate) kill_on_exit: bool,
    /// Shut down after this long with no connection and no running process
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) exit_when_idle: Option<Duration>,
    /// Log filter for standard error: a level, or target=level pairs
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    pub(crate) log: String,
    /// Log format: text for people, or one JSON object per line, with `request`, `session` and `process` as members where they apply
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Print all settings with their values and sources as JSON, then exit
    #[arg(long)]
    pub(crate) print_config: bool,
    /// All flags with their values and sources, for `--print-config`
    #[arg(skip)]
    pub(crate) settings: serde_json::Map<String, serde_json::Value>,
    /// How long a private state directory, and the sessions in it whose clients did not request a time-to-live, stay after this server
    /// was killed; for tests, which cannot wait for a minute
    #[arg(long, hide = true, value_name = "DUR", value_parser = values::duration, default_value = "60s")]
    pub(crate) orphan_ttl: Duration,
    /// Call setsid(2) to leave the Unix session of the client that started this server
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Last, because flags after it would appear below its heading.
    #[command(flatten)]
    pub(crate) bounds: LimitArgs,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// State directory to check [default: that of your background server, ~/.local/state/exec-server/default]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Print a JSON array of findings: what, state (fine, weak, missing), seen, advice
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `dial-stdio`.
#[derive(Debug, Args)]
#[command(after_help = DIAL_HELP)]
pub(crate) struct DialStdioArgs {
    /// The server's state directory [default: that of your background server, ~/.local/state/exec-server/default]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AuthArg {
    /// Every client needs a token; on wss with --client-ca it needs a certificate too
    Token,
    /// No token: everyone who can reach the socket is admitted; on wss with --client-ca, everyone with a certificate
    None,
}

/// Versions of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TlsMin {
    /// 1.2 and 1.3
    #[value(name = "1.2")]
    V1_2,
    /// 1.3 only
    #[value(name = "1.3")]
    V1_3,
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl ServeArgs {
    /// The authentication rules of the listeners.
    pub(crate) fn terms(&self) -> ExposureTerms {
        ExposureTerms {
            auth: self.auth.map(|auth| match auth {
                AuthArg::Token => RequiredAuth::Token,
                AuthArg::None => RequiredAuth::None,
            }),
            has_certificate: self.tls_cert.is_some(),
            asks_for_certificates: self.client_ca.is_some(),
            insecure_plaintext: self.insecure_plaintext,
        }
    }

    /// The TLS files, if they were given.
    pub(crate) fn tls_files(&self) -> Option<TlsFiles> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return None };
        let oldest = match self.tls_min {
            TlsMin::V1_2 => MinTlsVersion::Tls12,
            TlsMin::V1_3 => MinTlsVersion::Tls13,
        };
        Some(TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: self.client_ca.clone(), oldest })
    }
}

/// An error in the command line that the grammar does not detect, such as one that depends on files or the environment.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Parses the command line; exits the program with help or a usage error.
pub(crate) fn parse() -> Command {
    try_parse(normalized(std::env::args_os(), are_pipes())).unwrap_or_else(|error| hints::suggest_command(error).exit())
}

fn try_parse(args: Vec<OsString>) -> Result<Command, clap::Error> {
    let mut grammar = grammar();
    let mut matches = grammar.try_get_matches_from_mut(args)?;
    let settings = match (matches.subcommand(), grammar.find_subcommand("serve")) {
        (Some(("serve", matches)), Some(serve)) => print_config::settings(serve, matches),
        _ => serde_json::Map::new(),
    };
    let mut command = Cli::from_arg_matches_mut(&mut matches)?.command;
    if let Command::Serve(serve) = &mut command {
        serve.settings = settings;
        let loopback = |port| ListenUrl::Ws((std::net::Ipv4Addr::LOCALHOST, port).into());
        serve.listen.extend(serve.port.map(loopback));
        serve.bounds.check().map_err(|text| grammar.error(ErrorKind::ValueValidation, text))?;
    }
    if let Command::Run(run) = &mut command {
        run.apply_verbosity();
    }
    if let Command::Cp(copy) = &command {
        let grammar = grammar.find_subcommand_mut("cp").expect("the grammar has it");
        copy.check().map_err(|text| grammar.error(ErrorKind::ArgumentConflict, text))?;
    }
    Ok(command)
}

/// The whole grammar, also for completions and manual pages.
pub(crate) fn grammar() -> clap::Command {
    Cli::command().mut_subcommand("serve", bounds::describe)
}

/// The connection flags of an incomplete command line, for its completion. Bash passes the `=` of `--flag=value` as a
/// separate word.
pub(crate) fn connection(words: &[OsString]) -> Option<ConnectArgs> {
    let mut line: Vec<OsString> = vec!["exec-server".into(), "ps".into()];
    let mut words = words.iter().filter(|word| *word != "=");
    while let Some(word) = words.next() {
        let text = word.to_str().unwrap_or_default();
        let (flag, value) = text.split_once('=').map_or((text, None), |(flag, value)| (flag, Some(value)));
        if !["--connect", "--token-file", "--tls-ca", "--tls-cert", "--tls-key"].contains(&flag) {
            continue;
        }
        line.push(flag.into());
        line.push(match value {
            Some(value) => value.into(),
            None => words.next()?.clone(),
        });
    }
    match try_parse(line) {
        Ok(Command::Ps(ps)) => Some(ps.connect),
        Ok(_) | Err(_) => None,
    }
}

/// Resources that a command needs at startup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartupRole {
    /// It is a server, and forks a spawner for its holders.
    Serves,
    /// It may embed a server.
    Runs,
    /// It never has holders.
    Neither,
}

/// The role of this command, from its first argument only: the spawner must be forked before the arguments are parsed.
pub(crate) fn startup_role() -> StartupRole {
    let Some(first) = std::env::args_os().nth(1) else {
        return if are_pipes() { StartupRole::Serves } else { StartupRole::Neither };
    };
    match first.as_encoded_bytes() {
        b"run" if is_surely_remote() => StartupRole::Neither,
        b"run" | b"mcp" => StartupRole::Runs,
        b"serve" | b"exec-server" => StartupRole::Serves,
        // A leading flag means `serve`; see `normalized`.
        word if word.starts_with(b"--") => StartupRole::Serves,
        _ => StartupRole::Neither,
    }
}

/// Whether `run` certainly talks to a server, so that it needs no spawner: a URL directly after `run`, or in the environment without any
/// `--connect`. Anything else, such as a name, may mean this machine.
fn is_surely_remote() -> bool {
    let is_url = |value: &OsStr| value.as_encoded_bytes().windows(3).any(|part| part == b"://");
    let args: Vec<OsString> = std::env::args_os().skip(2).collect();
    let is_connect = |arg: &OsString| arg.as_encoded_bytes().starts_with(b"--connect");
    match args.as_slice() {
        [first, url, ..] if first == "--connect" => is_url(url),
        args if args.iter().any(is_connect) => false,
        _ => environment::value_of_variables(|name| std::env::var_os(name))
            .is_ok_and(|value| value.is_some_and(|value| is_url(OsStr::new(&value)))),
    }
}

/// Whether this is a server started in the background. Checked before the arguments are parsed, because the server must call setsid(2)
/// before the spawner is forked.
pub(crate) fn is_detached() -> bool {
    std::env::args_os().nth(2).is_some_and(|arg| arg == DETACHED)
}

/// Whether stdin and stdout are both pipes or sockets, as when another program starts this one. A terminal, a file and `/dev/null` are
/// neither.
fn are_pipes() -> bool {
    let is_pipe = |fd: BorrowedFd<'_>| {
        let kind = rustix::fs::fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        matches!(kind, Ok(FileType::Fifo | FileType::Socket))
    };
    is_pipe(io::stdin().as_fd()) && is_pipe(io::stdout().as_fd())
}

/// Rewrites command lines of the reference: `exec-server --listen URL` and `exec-server exec-server` mean `serve`. The launcher of its
/// first generation passes no argument and two pipes, and expects the protocol on them. Also turns `kill -9` into `kill --signal`.
fn normalized(args: impl Iterator<Item = OsString>, are_pipes: bool) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let first = args.get(1).and_then(|arg| arg.to_str());
    match first {
        None if args.len() == 1 && are_pipes => args.extend(["serve", "--listen", "stdio"].map(OsString::from)),
        Some("exec-server") => args[1] = "serve".into(),
        Some("--help" | "--version") => {}
        Some(flag) if flag.starts_with("--") => args.insert(1, "serve".into()),
        Some("kill") => args.iter_mut().skip(2).take_while(|arg| *arg != "--").for_each(name_signal),
        Some(_) | None => {}
    }
    args
}

/// Turns `-9`, `-KILL` and `-SIGKILL` into a flag of the grammar.
fn name_signal(arg: &mut OsString) {
    let named = arg.to_str().and_then(|arg| arg.strip_prefix('-')).and_then(|name| values::signal(name).ok());
    if let Some(name) = named {
        *arg = format!("--signal={name}").into();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Command, grammar, normalized, try_parse, values::CONCURRENT_MAX};

    pub(in crate::args) fn parse(line: &str) -> Result<Command, clap::Error> {
        try_parse(normalized(line.split(' ').map(Into::into), false))
    }

    #[test]
    fn the_grammar_is_consistent() {
        grammar().debug_assert();
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
        let piped = try_parse(normalized(["exec-server".into()].into_iter(), true));
        assert!(matches!(piped, Ok(Command::Serve(serve)) if serve.listen == ["stdio".parse().expect("a URL")]));
    }

    #[test]
    fn concurrent_requests_are_at_least_one_and_capped_at_the_maximum() {
        let parsed = |n: &str| match parse(&format!("exec-server serve --concurrent-requests {n}")) {
            Ok(Command::Serve(serve)) => Some(serve.concurrent_requests),
            Ok(_) | Err(_) => None,
        };
        assert_eq!(parsed("1"), Some(1));
        assert_eq!(parsed("7"), Some(7));
        assert_eq!(parsed("99999999999999999999999"), Some(CONCURRENT_MAX));
        for bad in ["0", "-1", "x", "1.5", ""] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn limits_have_ranges_and_fit_each_other() {
        let error = |flags: &str| parse(&format!("exec-server serve {flags}")).expect_err(flags).to_string();
        assert!(error("--memory-per-process 1MiB").contains("must be from 3MiB to 64GiB"));
        assert!(error("--ping-every 1ms").contains("must be from 30ms to 1h"));
        assert!(error("--max-sessions 0").contains("must be from 1 to 1048576"));
        assert!(error("--ping-every 30s").contains("--dead-after (30s) must be longer than --ping-every (30s)"));
        assert!(parse("exec-server serve --ping-every 40s --dead-after 2m --disk-per-process 0").is_ok());
    }

    #[test]
    fn rm_refuses_the_root_an_empty_path_and_paths_that_end_in_dots() {
        for bad in [".", "..", "a/.", "a/..", "./", "a/../", "/", "//", "/.", "/..", "a//.//"] {
            assert!(parse(&format!("exec-server fs rm -r x {bad}")).is_err(), "{bad}");
        }
        for good in ["x", "/x", "./x", "../x", "x/", ".x", "..x", "..."] {
            assert!(parse(&format!("exec-server fs rm -r {good}")).is_ok(), "{good}");
        }
        assert!(parse("exec-server fs rm ").is_err());
    }

    #[test]
    fn kill_accepts_a_signal_in_every_form_of_the_shell_command() {
        for (line, signal, ids) in [
            ("kill -9 a", Some("SIGKILL"), &["a"][..]),
            ("kill -KILL a b", Some("KILL"), &["a", "b"]),
            ("kill a -HUP", Some("HUP"), &["a"]),
            ("kill -s USR1 a", Some("USR1"), &["a"]),
            ("kill -s 1 a", Some("SIGHUP"), &["a"]),
            ("kill a -- -9", None, &["a", "-9"]),
        ] {
            let Ok(Command::Kill(kill)) = parse(&format!("exec-server {line}")) else { panic!("{line}") };
            assert_eq!(
                (kill.signal.as_deref(), &kill.ids[..]),
                (signal, &ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>()[..]),
                "{line}"
            );
        }
        assert!(parse("exec-server kill -9 --grace 1s a").is_err());
        assert!(parse("exec-server kill -99 a").is_err());
    }

    #[test]
    fn arguments_after_the_program_belong_to_the_program() {
        let Ok(Command::Run(run)) = parse("exec-server run -t --env A=b=c -- prog -t --cwd x") else { panic!() };
        assert_eq!(run.argv, ["prog", "-t", "--cwd", "x"]);
        assert_eq!((run.tty, run.env), (true, vec![("A".to_owned(), "b=c".to_owned())]));
        let Ok(Command::Run(run)) = parse("exec-server run prog -t") else { panic!() };
        assert_eq!((run.argv.len(), run.tty), (2, false));
        assert!(parse("exec-server run").is_err());
        assert!(parse("exec-server run --env =x -- prog").is_err());
    }
}
