//! The words of `cp`: which of its two paths are on a server, and on which.
//! Must not act on them.

use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser as _},
};

use super::client::Connect;

const CP_HELP: &str = "\
A path with `:` before it is on the server: `:/etc/hosts`. Without a slash at its beginning it is \
below the server's own directory. A file of this machine whose name begins with a colon is `./:name`.

As with cp, a target that is a directory gets the source's name in it; `-r DIR/.` copies what is in DIR. \
Kept are bytes, permission bits, symbolic links (as links), holes of files above 1 MiB and times of \
modification; directories that are there keep their own mode and time. Not kept are owners, \
set-user-id and set-group-id bits, hard links and extended attributes. Pipes, sockets and devices in a \
tree are left out, and said so.

No file is seen under its name before it is whole: until then it is hidden beside it. Interrupted, the same \
command goes on where it was, if the source is still the same; of a tree, what is there with the same size, \
time and mode is not copied again. So it is when something failed: a mark beside the tree, \
`.NAME.exec-server-cp`, says that, and goes when all is there. Nothing is written outside of the target, \
and no link in it is followed, whatever the server says; a file or directory is not copied over a link.

Exit codes:
  0    everything was copied
  1    something was not; standard error says what and why. The rest was copied
  2    the command line is wrong
  255  trouble of exec-server itself, or with the connection

Examples:
  exec-server cp --connect ssh://host report.pdf :/srv/reports/
  exec-server cp -r --progress --connect ssh://host :/var/log/app logs
  exec-server cp -r --from ssh://old --to ssh://new :/srv/data :/srv/data";

/// Flags of `cp`.
#[derive(Debug, Args)]
#[command(after_help = CP_HELP)]
pub(crate) struct Copy {
    /// Copy directories with all that is in them
    #[arg(short = 'r', long)]
    pub(crate) recursive: bool,
    /// Show how far it is; only on a terminal
    #[arg(long)]
    pub(crate) progress: bool,
    /// The server of a source with `:`, in place of --connect
    #[arg(long, value_name = "URL|NAME")]
    pub(crate) from: Option<String>,
    /// The server of a target with `:`, in place of --connect
    #[arg(long, value_name = "URL|NAME")]
    pub(crate) to: Option<String>,
    /// What to copy: PATH here, :PATH on the server
    #[arg(value_name = "SRC", value_parser = OsStringValueParser::new().try_map(side))]
    pub(crate) source: Side,
    /// Where to: PATH here, :PATH on the server
    #[arg(value_name = "DST", value_parser = OsStringValueParser::new().try_map(side))]
    pub(crate) target: Side,
    #[command(flatten)]
    pub(crate) connect: Connect,
}

/// One of the two ends of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Side {
    /// On this machine.
    Here(PathBuf),
    /// On a server.
    There(PathBuf),
}

fn side(text: OsString) -> Result<Side, Infallible> {
    Ok(match text.as_bytes().strip_prefix(b":") {
        Some(rest) => Side::There(PathBuf::from(OsStr::from_bytes(rest))),
        None => Side::Here(PathBuf::from(text)),
    })
}
