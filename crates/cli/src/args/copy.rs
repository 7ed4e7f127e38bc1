//! The words of `cp`: which of its two paths are on a server, and on which.
//! Must not act on them.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser as _},
};

use super::client::Connect;

const CP_HELP: &str = "\
A path with `:` before it is on the server: `:/etc/hosts`. Without a slash at its beginning it is \
below the server's own directory, which itself is `:.`. One of the two paths has to be on a server. A file of this machine whose \
name begins with a colon is `./:name`.

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

Between two servers each needs a token of its own, and none is shown to the other: in its URL, or in its file by \
environments.toml. --token-file is refused then, and $EXEC_SERVER_TOKEN is for the server of --connect (or $EXEC_SERVER_URL) alone.

When a connection breaks, standard error says so, and again when it is mended; the copy waits meanwhile.

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

impl Side {
    fn path(&self) -> &Path {
        let (Self::Here(path) | Self::There(path)) = self;
        path
    }

    fn is_there(&self) -> bool {
        matches!(self, Self::There(_))
    }
}

/// How the server of a path with `:` was named.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Named<'a> {
    /// By a flag; else the environment has it.
    pub(crate) by: Option<&'a str>,
    /// Whether the token of the environment is meant for it.
    pub(crate) may_have_token: bool,
}

impl Copy {
    /// The servers of source and target.
    pub(crate) fn servers(&self) -> [Option<Named<'_>>; 2] {
        [(&self.source, self.from.as_deref()), (&self.target, self.to.as_deref())].map(|(side, own)| {
            let by = own.or(self.connect.connect.as_deref());
            // A secret of the one is none of the other's business.
            side.is_there().then_some(Named { by, may_have_token: own.is_none() || !self.is_between_two() })
        })
    }

    /// Whether there are two servers, as far as their names say: one server under two names counts as two.
    fn is_between_two(&self) -> bool {
        let connect = self.connect.connect.as_deref();
        let is_same = self.from.as_deref().or(connect) == self.to.as_deref().or(connect);
        self.source.is_there() && self.target.is_there() && !is_same
    }

    /// What is wrong with all of it together: whatever was said and would not be heeded.
    pub(super) fn check(&self) -> Result<(), String> {
        let ends = [(&self.source, &self.from, "--from", "SRC"), (&self.target, &self.to, "--to", "DST")];
        for (side, own, flag, name) in ends {
            if own.is_some() && !side.is_there() {
                let path = side.path().display();
                return Err(format!(
                    "{flag} names the server of {name}, and `{path}` is on this machine; write `:{path}`"
                ));
            }
        }
        if !self.source.is_there() && !self.target.is_there() {
            let target = self.target.path().display();
            return Err(format!("neither path is on a server; write `:` before the one that is, such as `:{target}`"));
        }
        let is_used = ends.iter().any(|(side, own, ..)| side.is_there() && own.is_none());
        if self.connect.connect.is_some() && !is_used {
            return Err("--connect names no server of this copy, because --from and --to do; leave it out".to_owned());
        }
        if self.connect.token_file.is_some() && self.is_between_two() {
            return Err(
                "--token-file would show one token to two servers; write each token in its URL, or name each server \
                        and its token file in environments.toml"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

fn side(text: OsString) -> Result<Side, &'static str> {
    match text.as_bytes() {
        b"" => Err("it is empty; write `.` for this directory"),
        b":" => Err("it is empty; write `:.` for the server's own directory"),
        [b':', rest @ ..] => Ok(Side::There(PathBuf::from(OsStr::from_bytes(rest)))),
        _ => Ok(Side::Here(PathBuf::from(text))),
    }
}
