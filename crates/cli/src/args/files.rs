//! The arguments of `fs`.

use std::{ffi::OsString, os::unix::ffi::OsStrExt as _, path::PathBuf, time::Duration};

use clap::{
    Args, Subcommand,
    builder::{OsStringValueParser, TypedValueParser as _},
};

use super::{client::ConnectArgs, values};

pub(super) const FS_HELP: &str = "\
Paths are on the server. A relative path starts at the server's working directory, and `~` is the home directory there (quote it, \
or your shell expands it). Without a server, paths are on this machine and relative to this directory; your \
background server (see `exec-server dial-stdio --help`) accesses them.

Names and lines are printed byte for byte; on a terminal, control characters are escaped.

Exit codes:
  0    success
  1    a path does not exist or an operation failed; stderr has the reason,
       and the other paths were processed
  2    invalid command line
  141  standard output was closed (128+SIGPIPE)
  255  exec-server or its connection failed
  `fs grep` has its own codes; see `exec-server fs grep --help`

Examples:
  exec-server fs ls -l --connect ssh://host /var/log
  exec-server fs cat --connect ssh://host /etc/os-release | head -3
  exec-server fs grep --connect ssh://host -n 'TODO|FIXME' src
  exec-server fs watch --connect ssh://host /srv/app";

const LS_HELP: &str = "\
Lists the entries of a directory, sorted by name; any other PATH is listed itself. With --json prints one array for each PATH, of \
objects with name, nameBase64 (if it is not UTF-8), kind, size, mode, modifiedAtMs, owner and target (of a symlink).

Exit codes: 0; 1 a path does not exist or cannot be listed; 141; 255; see `exec-server fs --help`

Examples:
  exec-server fs ls
  exec-server fs ls -la --connect ssh://host /srv
  exec-server fs ls -lh '~/Downloads'
  exec-server fs ls -0 /srv | xargs -0 -n1 echo";

const CAT_HELP: &str = "\
Exit codes: 0; 1 a path does not exist or cannot be read; 141; 255; see `exec-server fs --help`

Examples:
  exec-server fs cat --connect ssh://host /etc/hosts
  exec-server fs cat a b > both";

const STAT_HELP: &str = "\
Describes a symlink itself, or with -L its target. With --json prints one object per line: path, kind, size, mode, \
modifiedAtMs, createdAtMs, etag, owner, target.

Exit codes: 0; 1 a path does not exist; 141; 255; see `exec-server fs --help`

Examples:
  exec-server fs stat --connect ssh://host /etc/hosts
  exec-server fs stat --json /etc/hosts | jq .size";

const TREE_HELP: &str = "\
Shows at most 50,000 names; if a larger tree is cut, stderr says so and the exit code is 1. With --json prints one object per line: \
path, kind, size, modifiedAtMs.

Exit codes: 0; 1 the path does not exist, or the tree is incomplete; 141; 255; see `exec-server fs --help`

Examples:
  exec-server fs tree -L 2 --connect ssh://host /srv
  exec-server fs tree --ignore-rules";

const GREP_HELP: &str = "\
Searches files and directory trees. Skips binary files, and below a directory also hidden names and what .gitignore, .ignore and \
.git/info/exclude exclude. The syntax is that of Rust's regex crate. With --json prints one object per \
line: path, line, offset, text (textBase64 if it is not UTF-8), spans, context. The last object for each PATH is a summary.

Exit codes:
  0    something matched
  1    nothing matched
  2    invalid command line or pattern
  141  standard output was closed (128+SIGPIPE)
  255  a PATH could not be searched, or the connection failed

Examples:
  exec-server fs grep --connect ssh://host 'panic|fatal' /var/log/app
  exec-server fs grep -l -g '*.rs' 'fn main'
  exec-server fs grep -C 3 -F 'a[0]' src/lib.rs";

const WATCH_HELP: &str = "\
Prints one line per change: `created`, `modified` or `removed`, and the path. A line `overflow` means that changes were lost: check \
everything. After a broken connection the command reconnects and reports an overflow. With --json prints one object per line: path, \
change, isDirectory; or overflow: true.

Runs until Ctrl-C, or until the watched path is removed (exit code 1).

Exit codes: 0 with --once, after the first changes; 1 the path does not exist or was removed; 130 Ctrl-C; 141; 255; see \
`exec-server fs --help`

Examples:
  exec-server fs watch --connect ssh://host /srv/app
  exec-server fs watch --once --exclude target . && make";

const RM_HELP: &str = "\
Removes a symlink itself, never its target. A PATH that ends in `.` or `..`, is empty or is the root is refused with \
code 2, and then nothing is removed.

Exit codes: 0; 1 a path does not exist (without -f) or cannot be removed; 2; 255; see `exec-server fs --help`

Examples:
  exec-server fs rm --connect ssh://host /tmp/old.log
  exec-server fs rm -rf /srv/build";

const MKDIR_HELP: &str = "\
Exit codes: 0; 1 a directory could not be created; 255; see `exec-server fs --help`

Examples:
  exec-server fs mkdir -p --connect ssh://host /srv/app/releases";

/// A subcommand of `fs`.
#[derive(Debug, Subcommand)]
pub(crate) enum FilesCommand {
    /// List directories.
    Ls(LsArgs),
    /// Print files.
    Cat(CatArgs),
    /// Show the metadata of files.
    Stat(StatArgs),
    /// Show a directory tree.
    Tree(TreeArgs),
    /// Search files and trees for a regular expression.
    Grep(Box<GrepArgs>),
    /// Print changes to a file or below a directory.
    Watch(WatchArgs),
    /// Remove files, symlinks and directories.
    Rm(RmArgs),
    /// Create directories.
    Mkdir(MkdirArgs),
}

/// Flags of `fs ls`.
#[derive(Debug, Args)]
#[command(after_help = LS_HELP, disable_help_flag = true)]
pub(crate) struct LsArgs {
    /// Show mode, owner, group, size and local modification time
    #[arg(short = 'l', long)]
    pub(crate) long: bool,
    /// With -l, print sizes such as 1.5K or 20M
    #[arg(short = 'h', long = "human-readable", conflicts_with_all = ["json", "null"])]
    pub(crate) human: bool,
    // Defined here, because `-h` means `--human-readable`, as in ls(1).
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Include names that begin with a dot
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// End each name with a NUL byte instead of a newline
    #[arg(short = '0', long, conflicts_with_all = ["json", "long"])]
    pub(crate) null: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "long")]
    pub(crate) json: bool,
    /// Path to list [default: .]
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
    /// Describe the target of a symlink
    #[arg(short = 'L', long)]
    pub(crate) dereference: bool,
    /// Print JSON
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
    /// Maximum depth below PATH
    #[arg(short = 'L', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(crate) depth: Option<u64>,
    /// Include names that begin with a dot
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Apply .gitignore, .ignore and .git/info/exclude: leave out what they exclude
    #[arg(long)]
    pub(crate) ignore_rules: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The directory [default: .]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs grep`.
#[derive(Debug, Args)]
#[command(after_help = GREP_HELP)]
pub(crate) struct GrepArgs {
    /// Ignore case
    #[arg(short = 'i', long)]
    pub(crate) ignore_case: bool,
    /// Match only whole words
    #[arg(short = 'w', long)]
    pub(crate) word_regexp: bool,
    /// Treat the pattern as plain text
    #[arg(short = 'F', long)]
    pub(crate) fixed_strings: bool,
    /// Print line numbers
    #[arg(short = 'n', long)]
    pub(crate) line_number: bool,
    /// Print only the names of matching files
    #[arg(short = 'l', long, conflicts_with_all = ["line_number", "json"])]
    pub(crate) files_with_matches: bool,
    /// Lines of context after each match, at most 100
    #[arg(short = 'A', long, value_name = "N")]
    pub(crate) after_context: Option<u64>,
    /// Lines of context before each match, at most 100
    #[arg(short = 'B', long, value_name = "N")]
    pub(crate) before_context: Option<u64>,
    /// Lines of context before and after each match, at most 100
    #[arg(short = 'C', long, value_name = "N")]
    pub(crate) context: Option<u64>,
    /// Only files that match GLOB; with a leading !, only files that do not. Repeatable
    #[arg(short = 'g', long, value_name = "GLOB")]
    pub(crate) glob: Vec<String>,
    /// Include names that begin with a dot
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Search also what .gitignore, .ignore and .git/info/exclude exclude
    #[arg(long)]
    pub(crate) no_ignore: bool,
    /// Maximum number of matching lines
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(crate) max_matches: u64,
    /// Maximum number of matching lines per file
    #[arg(short = 'm', long, value_name = "N")]
    pub(crate) max_count: Option<u64>,
    /// Time limit for each PATH, at most 10m [default: 10m]
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The regular expression
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: String,
    /// Files and directories to search [default: .]
    #[arg(value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs watch`.
#[derive(Debug, Args)]
#[command(after_help = WATCH_HELP)]
pub(crate) struct WatchArgs {
    /// Exit after the first changes
    #[arg(long)]
    pub(crate) once: bool,
    /// Watch only the directory itself, not its subdirectories
    #[arg(long)]
    pub(crate) flat: bool,
    /// Exclude paths that match GLOB, and everything below them. Repeatable
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,
    /// Collect changes for this long after the first one
    #[arg(long, value_name = "DUR", value_parser = values::duration, default_value = "100ms")]
    pub(crate) settle: Duration,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Path to watch [default: .]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Flags of `fs rm`.
#[derive(Debug, Args)]
#[command(after_help = RM_HELP)]
pub(crate) struct RmArgs {
    /// Remove directories and their contents; without it even an empty directory is refused
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
    /// Create parents as needed; an existing directory is not an error
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

/// Parses a path to remove. Refuses the root, and a path that is empty or ends in `.` or `..`. Such a path is usually a
/// typo or an empty shell variable, and often names the current directory or one of its ancestors.
fn removable(text: OsString) -> Result<PathBuf, &'static str> {
    let bytes = text.as_bytes();
    match bytes.split(|byte| *byte == b'/').rfind(|part| !part.is_empty()) {
        None if bytes.is_empty() => Err("the path is empty; write the name of the file or directory to remove"),
        None => Err("the path is the root directory, which cannot be removed"),
        Some(b"." | b"..") => Err("the path ends in dots; write the name of the directory to remove"),
        Some(_) => Ok(PathBuf::from(text)),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "must be octal permission bits, such as 755".to_owned())
}
