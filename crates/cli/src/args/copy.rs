//! The arguments of `cp`: which of its paths are on a server, and on which one.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use clap::{
    Args,
    builder::{OsStringValueParser, TypedValueParser as _},
};

use super::client::ConnectArgs;

const CP_HELP: &str = "\
A path with a leading `:` is on the server, such as `:/etc/hosts`. After the colon, a relative path starts at the server's working \
directory, so `:.` is that directory, and `:~` is the home directory there. `HOST:PATH` and `ssh://HOST/PATH` name \
their server: HOST is a name of environments.toml, else an ssh host. At least one path must be on a server. \
A local file with a colon in its name is `./a:b`.

As with cp(1), if the target is a directory, the source is copied into it; several sources need a directory as target; `-r DIR/.` \
copies the contents of DIR. The command copies bytes, permission bits, symlinks (as symlinks), holes of files above 1 MiB and modification \
times; it does not set those of existing directories. It does not copy owners, \
set-user-id and set-group-id bits, hard links or extended attributes. Pipes, sockets and devices in a \
tree are skipped with a message.

A new file appears under its name only when it is complete. An existing file that cannot be replaced, such as one with several hard \
links, is overwritten in place. If a copy was interrupted, the same command continues it, unless the source has changed. \
A continued tree skips the files that have the same size, time and mode at the target. \
A copy of a tree that ended with code 1 can be continued as well: a marker beside the tree, `.NAME.exec-server-cp`, stays until everything \
is copied. Nothing is written outside of the target, \
and no symlink in it is followed, whatever the server sends; a symlink is never replaced by a file or directory.

For a copy between two servers, put each server's token into its URL, or into its token file in environments.toml. No token is \
shown to the other server: --token-file is refused, and $EXEC_SERVER_TOKEN is used only for the server of --connect (or \
$EXEC_SERVER_URL).

After a broken connection the copy reconnects and continues; stderr reports both.

Exit codes:
  0    everything was copied
  1    some paths were not copied, and stderr has the reasons;
       the rest was copied
  2    invalid command line
  255  exec-server or its connection failed

Examples:
  exec-server cp report.pdf host:/srv/reports/
  exec-server cp --connect ssh://host a.txt b.txt :/srv/reports/
  exec-server cp -r --progress --connect ssh://host :/var/log/app logs
  exec-server cp -r --from ssh://old --to ssh://new :/srv/data :/srv/data";

/// Flags of `cp`.
#[derive(Debug, Args)]
#[command(after_help = CP_HELP, override_usage = "exec-server cp [OPTIONS] <SRC>... <DST>")]
pub(crate) struct CopyArgs {
    /// Copy directories and their contents
    #[arg(short = 'r', long)]
    pub(crate) recursive: bool,
    /// Show progress; only on a terminal
    #[arg(long)]
    pub(crate) progress: bool,
    /// Server of the sources that start with `:`, instead of --connect
    #[arg(long, value_name = "URL|NAME")]
    pub(crate) from: Option<String>,
    /// Server of a destination that starts with `:`, instead of --connect
    #[arg(long, value_name = "URL|NAME")]
    pub(crate) to: Option<String>,
    /// Sources, then the destination: PATH here, :PATH on the server, HOST:PATH or ssh://HOST/PATH
    #[arg(value_names = ["SRC", "DST"], num_args = 2.., required = true)]
    #[arg(value_parser = OsStringValueParser::new().try_map(copy_path))]
    pub(crate) paths: Vec<CopyPath>,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CopyPath {
    /// On this machine.
    Here(PathBuf),
    /// On the server that a flag or the environment names.
    There(PathBuf),
    /// On a server that the path names: a URL, a name in `environments.toml`, or else an ssh host.
    Named(String, PathBuf),
}

impl CopyPath {
    pub(crate) fn path(&self) -> &Path {
        let (Self::Here(path) | Self::There(path) | Self::Named(_, path)) = self;
        path
    }

    fn is_remote(&self) -> bool {
        !matches!(self, Self::Here(_))
    }
}

/// How the server of a path was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerName<'a> {
    /// The name or URL from a flag or the path; `None` if the variables and `environments.toml` decide.
    pub(crate) name: Option<&'a str>,
    /// Whether a name that is not in `environments.toml` is an ssh host.
    pub(crate) may_be_host: bool,
    /// Whether the token in `EXEC_SERVER_TOKEN` may be meant for this server.
    pub(crate) may_have_token: bool,
}

impl CopyArgs {
    pub(crate) fn sources(&self) -> &[CopyPath] {
        self.paths.split_last().map_or(&[], |(_, sources)| sources)
    }

    pub(crate) fn target(&self) -> &CopyPath {
        self.paths.last().expect("the grammar asks for two paths")
    }

    /// The servers of the sources, and of the target as the last one.
    pub(crate) fn servers(&self) -> Vec<Option<ServerName<'_>>> {
        let is_between_two = self.is_between_two();
        self.ends()
            .map(|(side, own)| {
                side.is_remote().then(|| ServerName {
                    name: own.or(self.connect.connect.as_deref()),
                    may_be_host: matches!(side, CopyPath::Named(..)),
                    may_have_token: own.is_none() || !is_between_two,
                })
            })
            .collect()
    }

    /// Each path with the server name that takes precedence over `--connect`.
    fn ends(&self) -> impl Iterator<Item = (&CopyPath, Option<&str>)> {
        let last = self.paths.len() - 1;
        self.paths.iter().enumerate().map(move |(at, side)| match side {
            CopyPath::Named(server, _) => (side, Some(server.as_str())),
            CopyPath::Here(_) | CopyPath::There(_) if at == last => (side, self.to.as_deref()),
            CopyPath::Here(_) | CopyPath::There(_) => (side, self.from.as_deref()),
        })
    }

    /// Whether the copy names two different servers. One server under two names counts as two.
    fn is_between_two(&self) -> bool {
        let connect = self.connect.connect.as_deref();
        let mut named = self.ends().filter(|(side, _)| side.is_remote()).map(|(_, own)| own.or(connect));
        let first = named.next();
        named.any(|other| Some(other) != first)
    }

    /// Checks the flags together: refuses a flag that would have no effect, a copy without a server, and one token file
    /// for two servers.
    pub(super) fn check(&self) -> Result<(), String> {
        let of_flag = [
            (self.sources(), &self.from, "--from", "SRC"),
            (&self.paths[self.paths.len() - 1..], &self.to, "--to", "DST"),
        ];
        for (sides, own, flag, name) in of_flag {
            if own.is_none() || sides.iter().any(|side| matches!(side, CopyPath::There(_))) {
                continue;
            }
            if let Some(CopyPath::Here(path)) = sides.first() {
                let path = path.display();
                return Err(format!(
                    "{flag} names the server of {name}, and `{path}` is on this machine; write `:{path}`"
                ));
            }
            return Err(format!("{flag} names the server of {name}, and so does the path; leave one out"));
        }
        if !self.paths.iter().any(CopyPath::is_remote) {
            let target = self.target().path().display();
            return Err(format!("neither path is on a server; write `:` before the one that is, such as `:{target}`"));
        }
        let is_used = self.ends().any(|(side, own)| side.is_remote() && own.is_none());
        if self.connect.connect.is_some() && !is_used {
            return Err(
                "--connect names no server of this copy, because --from, --to or the paths do; leave it out".to_owned()
            );
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

fn copy_path(text: OsString) -> Result<CopyPath, &'static str> {
    match text.as_bytes() {
        b"" => Err("it is empty; write `.` for this directory"),
        b":" => Err("it is empty; write `:.` for the server's own directory"),
        [b':', rest @ ..] => Ok(CopyPath::There(PathBuf::from(OsStr::from_bytes(rest)))),
        bytes => named(bytes).unwrap_or_else(|| Ok(CopyPath::Here(PathBuf::from(&text)))),
    }
}

/// Parses `HOST:PATH` or `ssh://HOST/PATH`; `None` for a local path. As with scp, a slash before the colon makes the path local.
fn named(bytes: &[u8]) -> Option<Result<CopyPath, &'static str>> {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    if let Some(rest) = bytes.strip_prefix(b"ssh://") {
        let slash = rest.iter().position(|byte| *byte == b'/');
        let Some((host, below)) = slash.map(|at| rest.split_at(at)).filter(|(_, below)| below.len() > 1) else {
            return Some(Err("it has no path; write ssh://HOST/PATH"));
        };
        let Ok(host) = std::str::from_utf8(host) else { return Some(Err("its host is not UTF-8")) };
        // As in git URLs, `/~` after the host means a home directory.
        let below = if below.starts_with(b"/~") { &below[1..] } else { below };
        return Some(Ok(CopyPath::Named(format!("ssh://{host}"), path(below))));
    }
    let colon = bytes.iter().position(|byte| *byte == b':')?;
    let host = &bytes[..colon];
    let below = &bytes[colon + 1..];
    if host.contains(&b'/') {
        return None;
    }
    if below.starts_with(b"//") {
        return Some(Err("only ssh://HOST/PATH has both server and path; pass --from or --to URL, and `:PATH`"));
    }
    let host = std::str::from_utf8(host).ok()?;
    Some(Ok(CopyPath::Named(host.to_owned(), if below.is_empty() { PathBuf::from("~") } else { path(below) })))
}

#[cfg(test)]
mod tests {
    use super::CopyPath;
    use crate::args::{Command, tests::parse};

    #[test]
    fn a_copy_without_a_server_and_flags_without_effect_are_refused() {
        let error = |line: &str| parse(&format!("exec-server cp {line}")).expect_err(line).to_string();
        for (line, said) in [
            ("--connect ws://a x y", "neither path is on a server; write `:` before the one that is, such as `:y`"),
            ("x y", "neither path is on a server"),
            ("--from ws://a x :y", "--from names the server of SRC, and `x` is on this machine; write `:x`"),
            ("--to ws://a :x y", "--to names the server of DST, and `y` is on this machine; write `:y`"),
            ("--connect ws://a --from ws://b :x y", "--connect names no server of this copy"),
            ("--connect ws://a --from ws://b --to ws://c :x :y", "--connect names no server of this copy"),
            ("-r  :x", "it is empty; write `.`"),
            ("-r : x", "it is empty; write `:.`"),
            ("--from ws://a --to ws://b --token-file f :x :y", "--token-file would show one token to two servers"),
            ("--connect ws://a --to ws://b --token-file f :x :y", "--token-file would show one token to two servers"),
        ] {
            let text = error(line);
            assert!(text.contains(said), "{line}: {text}");
        }
    }

    #[test]
    fn the_token_variable_is_used_for_one_server_only() {
        let shown = |line: &str| match parse(&format!("exec-server cp {line}")) {
            Ok(Command::Cp(copy)) => copy
                .servers()
                .into_iter()
                .map(|named| named.map(|named| (named.name.unwrap_or("-").to_owned(), named.may_have_token)))
                .collect::<Vec<_>>(),
            other => panic!("{line}: {other:?}"),
        };
        let named = |name: &str, may| Some((name.to_owned(), may));
        assert_eq!(shown("x :y"), [None, named("-", true)]);
        assert_eq!(shown("--connect a :x :y"), [named("a", true), named("a", true)]);
        assert_eq!(shown("--token-file f --from a --to a :x :y"), [named("a", true), named("a", true)]);
        assert_eq!(shown("--token-file f --from a :x y"), [named("a", true), None]);
        assert_eq!(shown("--from a --to b :x :y"), [named("a", false), named("b", false)]);
        assert_eq!(shown("--connect a --to b :x :y"), [named("a", true), named("b", false)]);
        assert_eq!(shown("--from b :x :y"), [named("b", false), named("-", true)]);
        assert_eq!(shown("x y :z"), [None, None, named("-", true)]);
        assert_eq!(shown("x host:y"), [None, named("host", true)]);
        assert_eq!(shown("host:x :y"), [named("host", false), named("-", true)]);
        assert_eq!(shown("ssh://a/x ssh://b/y"), [named("ssh://a", false), named("ssh://b", false)]);
    }

    #[test]
    fn a_path_of_a_copy_can_name_its_server() {
        let sides = |line: &str| match parse(&format!("exec-server cp {line}")) {
            Ok(Command::Cp(copy)) => copy.paths,
            other => panic!("{line}: {other:?}"),
        };
        let here = |path: &str| CopyPath::Here(path.into());
        let there = |path: &str| CopyPath::There(path.into());
        let named = |server: &str, path: &str| CopyPath::Named(server.to_owned(), path.into());
        assert_eq!(sides("f host:dir/"), [here("f"), named("host", "dir/")]);
        assert_eq!(sides("f me@host:/dir"), [here("f"), named("me@host", "/dir")]);
        assert_eq!(sides("host: f"), [named("host", "~"), here("f")]);
        assert_eq!(sides("f ssh://host/dir/"), [here("f"), named("ssh://host", "/dir/")]);
        assert_eq!(sides("f ssh://me@host:22/~/dir"), [here("f"), named("ssh://me@host:22", "~/dir")]);
        assert_eq!(sides("./a:b ../c:d :e"), [here("./a:b"), here("../c:d"), there("e")]);
        for (line, said) in [
            ("f ssh://host", "write ssh://HOST/PATH"),
            ("f ws://host/dir", "pass --from or --to URL, and `:PATH`"),
            ("--to ws://a f host:x", "--to names the server of DST, and so does the path"),
            ("--connect ws://a f host:x", "--connect names no server of this copy"),
        ] {
            let text = parse(&format!("exec-server cp {line}")).expect_err(line).to_string();
            assert!(text.contains(said), "{line}: {text}");
        }
    }
}
