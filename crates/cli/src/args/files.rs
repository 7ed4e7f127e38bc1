//! The arguments of `fs`.

use std::{ffi::OsString, os::unix::ffi::OsStrExt as _, path::PathBuf, time::Duration};

use clap::{
    Args, Subcommand,
    builder::{OsStringValueParser, TypedValueParser as _},
};

use super::{client::ConnectArgs, values};

const FS_HELP: &str = "\
Paths are the server's: without a slash at the beginning they are below its own directory, and `~` is its home directory (in quotes, \
because your shell would put your own). Where no server \
is named they are paths of this machine, below this directory, and the user's own server looks at them.

Names and lines come out as they are, byte for byte; on a terminal, what would steer it is escaped.

Exit codes:
  0    done
  1    something was not there, or could not be done; standard error says what and why. The rest was done
  2    the command line is wrong
  141  nobody reads standard output any more (128+SIGPIPE)
  255  trouble of exec-server itself, or with the connection
  `fs grep` has codes of its own; see `exec-server fs grep --help`

Examples:
  exec-server fs ls -l --connect ssh://host /var/log
  exec-server fs cat --connect ssh://host /etc/os-release | head -3
  exec-server fs grep --connect ssh://host -n 'TODO|FIXME' src
  exec-server fs watch --connect ssh://host /srv/app";

const LS_HELP: &str = "\
A file is listed as itself, a directory by what is in it, in the order of names. With --json one array for each PATH: \
name, nameBase64 (where it is not UTF-8), kind, size, mode, modifiedAtMs, owner, target (of a link).

Exit codes: 0; 1 something was not there or could not be listed; 141; 255; see `exec-server fs --help`

Examples:
  exec-server fs ls
  exec-server fs ls -la --connect ssh://host /srv
  exec-server fs ls -lh '~/Downloads'
  exec-server fs ls -0 /srv | xargs -0 -n1 echo";

const CAT_HELP: &str = "\
Exit codes: 0; 1 something was not there or could not be read; 141; 255; see `exec-server fs --help`

Examples:
  exec-server fs cat --connect ssh://host /etc/hosts
  exec-server fs cat a b > both";

const STAT_HELP: &str = "\
A link is described itself; with -L what it leads to. With --json one object a line: path, kind, size, mode, \
modifiedAtMs, createdAtMs, etag, owner, target.

Exit codes: 0; 1 something was not there; 141; 255; see `exec-server fs --help`

Examples:
  exec-server fs stat --connect ssh://host /etc/hosts
  exec-server fs stat --json /etc/hosts | jq .size";

const TREE_HELP: &str = "\
At most 50,000 names; what was cut is said, with code 1. With --json one object a line: path, kind, size, modifiedAtMs.

Exit codes: 0; 1 something was not there, or not all could be shown; 141; 255; see `exec-server fs --help`

Examples:
  exec-server fs tree -L 2 --connect ssh://host /srv
  exec-server fs tree --ignore-rules";

const GREP_HELP: &str = "\
Looks into files and whole trees, without binary files, hidden names and what .gitignore, .ignore and .git/info/exclude \
leave out. A PATH that is a file is always looked into. The syntax is that of Rust's regex crate. With --json one object a \
line: path, line, offset, text (textBase64 where it is not UTF-8), spans, context; the last one is the summary.

Exit codes:
  0    something matched
  1    nothing did
  2    the command line or the pattern is wrong
  141  nobody reads standard output any more (128+SIGPIPE)
  255  a PATH could not be searched, or trouble with the connection

Examples:
  exec-server fs grep --connect ssh://host 'panic|fatal' /var/log/app
  exec-server fs grep -l -g '*.rs' 'fn main'
  exec-server fs grep -C 3 -F 'a[0]' src/lib.rs";

const WATCH_HELP: &str = "\
One line a change: created, modified or removed, and the path. `overflow` means that changes were lost: look at \
everything. A broken connection is mended, and said as an overflow. With --json one object a line: path, change, isDirectory; \
or overflow: true.

Ends with code 1 when what is watched is removed; with Ctrl-C otherwise.

Exit codes: 0 with --once; 1 it was not there, or was removed; 130 Ctrl-C; 141; 255; see `exec-server fs --help`

Examples:
  exec-server fs watch --connect ssh://host /srv/app
  exec-server fs watch --once --exclude target . && make";

const RM_HELP: &str = "\
A link is removed itself, never what it leads to. A PATH that ends in `.` or `..`, is empty or is the root is refused with \
code 2, and then nothing is removed.

Exit codes: 0; 1 something was not there (without -f) or could not be removed; 2; 255; see `exec-server fs --help`

Examples:
  exec-server fs rm --connect ssh://host /tmp/old.log
  exec-server fs rm -rf /srv/build";

const MKDIR_HELP: &str = "\
Exit codes: 0; 1 something could not be made; 255; see `exec-server fs --help`

Examples:
  exec-server fs mkdir -p --connect ssh://host /srv/app/releases";

/// Flags of `fs`.
#[derive(Debug, Args)]
#[command(after_help = FS_HELP, arg_required_else_help = true)]
pub(crate) struct FilesArgs {
    #[command(subcommand)]
    pub(crate) command: FilesCommand,
}

/// What to do with files.
#[derive(Debug, Subcommand)]
pub(crate) enum FilesCommand {
    /// List directories.
    Ls(LsArgs),
    /// Print files.
    Cat(CatArgs),
    /// Say what is known of files.
    Stat(StatArgs),
    /// Show a directory with all that is below it.
    Tree(TreeArgs),
    /// Search files and trees for a regular expression.
    Grep(Box<GrepArgs>),
    /// Tell what changes below a directory, or of a file.
    Watch(WatchArgs),
    /// Remove files, links and directories.
    Rm(RmArgs),
    /// Make directories.
    Mkdir(MkdirArgs),
}

/// Flags of `fs ls`.
#[derive(Debug, Args)]
#[command(after_help = LS_HELP, disable_help_flag = true)]
pub(crate) struct LsArgs {
    /// With mode, owner, group, size and local time of modification
    #[arg(short = 'l', long)]
    pub(crate) long: bool,
    /// With -l, sizes as 1.5K or 20M
    #[arg(short = 'h', long = "human-readable", conflicts_with_all = ["json", "null"])]
    pub(crate) human: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Names that begin with a dot too
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// A NUL byte after each name in place of a line end
    #[arg(short = '0', long, conflicts_with_all = ["json", "long"])]
    pub(crate) null: bool,
    /// For programs
    #[arg(long, conflicts_with = "long")]
    pub(crate) json: bool,
    /// Path to list [default: the server's directory]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs cat`.
#[derive(Debug, Args)]
#[command(after_help = CAT_HELP)]
pub(crate) struct CatArgs {
    /// The files
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs stat`.
#[derive(Debug, Args)]
#[command(after_help = STAT_HELP)]
pub(crate) struct StatArgs {
    /// Describe what a link leads to
    #[arg(short = 'L', long)]
    pub(crate) dereference: bool,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
    /// The files
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs tree`.
#[derive(Debug, Args)]
#[command(after_help = TREE_HELP)]
pub(crate) struct TreeArgs {
    /// Levels below PATH
    #[arg(short = 'L', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(crate) depth: Option<u64>,
    /// Names that begin with a dot too
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Leave out what .gitignore, .ignore and .git/info/exclude say
    #[arg(long)]
    pub(crate) ignore_rules: bool,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
    /// The directory [default: the server's directory]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs grep`.
#[derive(Debug, Args)]
#[command(after_help = GREP_HELP)]
pub(crate) struct GrepArgs {
    /// Letters match in either case
    #[arg(short = 'i', long)]
    pub(crate) ignore_case: bool,
    /// Only whole words match
    #[arg(short = 'w', long)]
    pub(crate) word_regexp: bool,
    /// The pattern is a plain text
    #[arg(short = 'F', long)]
    pub(crate) fixed_strings: bool,
    /// Print the number of each line
    #[arg(short = 'n', long)]
    pub(crate) line_number: bool,
    /// Print only the names of files that match
    #[arg(short = 'l', long, conflicts_with_all = ["line_number", "json"])]
    pub(crate) files_with_matches: bool,
    /// Lines after each match
    #[arg(short = 'A', long, value_name = "N")]
    pub(crate) after_context: Option<u64>,
    /// Lines before each match
    #[arg(short = 'B', long, value_name = "N")]
    pub(crate) before_context: Option<u64>,
    /// Lines before and after each match, 100 at most
    #[arg(short = 'C', long, value_name = "N")]
    pub(crate) context: Option<u64>,
    /// Only files that GLOB matches; with ! before it, none that it matches. Repeatable
    #[arg(short = 'g', long, value_name = "GLOB")]
    pub(crate) glob: Vec<String>,
    /// Names that begin with a dot too
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Include files that ignore files exclude
    #[arg(long)]
    pub(crate) no_ignore: bool,
    /// Matching lines in all
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) max_matches: u64,
    /// Matching lines of each file
    #[arg(short = 'm', long, value_name = "N")]
    pub(crate) max_count: Option<u64>,
    /// How long it may take, at most 10m
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
    /// The regular expression
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: String,
    /// Where to look [default: the server's directory]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs watch`.
#[derive(Debug, Args)]
#[command(after_help = WATCH_HELP)]
pub(crate) struct WatchArgs {
    /// End after the first changes
    #[arg(long)]
    pub(crate) once: bool,
    /// Only the directory itself
    #[arg(long)]
    pub(crate) flat: bool,
    /// Leave out what GLOB matches, and what is below it. Repeatable
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Gather changes for so long after the first one
    #[arg(long, value_name = "DUR", value_parser = values::duration, default_value = "100ms")]
    pub(crate) settle: Duration,
    /// For programs
    #[arg(long)]
    pub(crate) json: bool,
    /// Path to watch [default: the server's directory]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs rm`.
#[derive(Debug, Args)]
#[command(after_help = RM_HELP)]
pub(crate) struct RmArgs {
    /// Directories with all that is in them; without it no directory is removed, not even an empty one
    #[arg(short = 'r', long)]
    pub(crate) recursive: bool,
    /// Ignore paths that do not exist
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Paths to remove
    #[arg(value_name = "PATH", required = true, value_parser = OsStringValueParser::new().try_map(removable))]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs mkdir`.
#[derive(Debug, Args)]
#[command(after_help = MKDIR_HELP)]
pub(crate) struct MkdirArgs {
    /// Parents too, and no trouble where it is there
    #[arg(short = 'p', long)]
    pub(crate) parents: bool,
    /// Permission bits in octal, independent of the umask
    #[arg(short = 'm', long, value_name = "MODE", value_parser = mode)]
    pub(crate) mode: Option<u32>,
    /// The directories
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Parses a path to remove. Refuses the root, and a path that is empty or ends in `.` or `..`: it means the current directory or one
/// above it, and is usually an empty variable or a slip.
fn removable(text: OsString) -> Result<PathBuf, &'static str> {
    let bytes = text.as_bytes();
    match bytes.split(|byte| *byte == b'/').rfind(|part| !part.is_empty()) {
        None if bytes.is_empty() => Err("it is empty, which would be the working directory; write its name"),
        None => Err("it is the root of all files, which is not removed"),
        Some(b"." | b"..") => Err("it ends in dots; write the name of what is to be removed"),
        Some(_) => Ok(PathBuf::from(text)),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "permission bits are octal digits, such as 755".to_owned())
}
