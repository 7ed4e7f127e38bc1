//! `exec-server token`: creates, lists and revokes entries of a token file.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use exec_server_protocol::method::Scope;
use exec_server_server::{
    access::{AccessEntry, Timestamp, TokenFile, TokenFileError},
    listen::ListenUrl,
    state_dir::TOKENS,
    wall_clock,
};
use serde_json::json;

use crate::{
    args::{TokenCommand, TokenCreateArgs, TokenFileArgs},
    display::{self, Palette},
    listeners, print, state_location,
};

/// Exit code if the named entry does not exist, or exists already.
const NO_ENTRY: u8 = 1;

pub(crate) fn run(command: &TokenCommand) -> anyhow::Result<ExitCode> {
    let done = match command {
        TokenCommand::Create(args) => create(args),
        TokenCommand::List { json, location } => list(&file(location)?, *json),
        TokenCommand::Revoke { name, location } => revoke(&file(location)?, name),
    };
    let Err(error) = done else { return Ok(ExitCode::SUCCESS) };
    match error.downcast_ref() {
        Some(TokenFileError::Exists { .. } | TokenFileError::Unknown { .. }) => {
            print::error(&error);
            Ok(ExitCode::from(NO_ENTRY))
        }
        _ => Err(error),
    }
}

/// The path of the token file that the flags select.
fn file(location: &TokenFileArgs) -> anyhow::Result<PathBuf> {
    match &location.tokens {
        Some(file) => std::path::absolute(file).with_context(|| format!("find `{}`", file.display())),
        None => Ok(state_dir(location)?.join(TOKENS)),
    }
}

/// The state directory of the server that the flags select.
fn state_dir(location: &TokenFileArgs) -> anyhow::Result<PathBuf> {
    match (&location.listen, &location.connect) {
        (Some(url), _) => listeners::find(url),
        (None, Some(url)) => listeners::find(&local_listener(url)?),
        (None, None) => state_location::of_user(location.state_dir.as_deref()),
    }
}

/// The local listener that a client URL refers to.
fn local_listener(url: &str) -> anyhow::Result<ListenUrl> {
    let without_token = url.split('?').next().unwrap_or_default();
    // A listener has an IP address, never a host name.
    let by_address = without_token.replacen("//localhost:", "//127.0.0.1:", 1);
    by_address.parse().with_context(|| {
        format!(
            "`{without_token}` is not a listener of this machine; run `exec-server token` on the machine of the server"
        )
    })
}

fn create(args: &TokenCreateArgs) -> anyhow::Result<()> {
    let path = file(&args.location)?;
    let state_dir = path.parent().filter(|_| args.location.tokens.is_none());
    if let Some(dir) = state_dir {
        // The directory may not exist if the server has never run.
        state_location::make_private(dir)?;
    }
    let all = || Scope::ALL.iter().map(|scope| scope.as_str().to_owned()).collect();
    let roots = args.root.iter().map(|root| {
        // The server compares canonical paths: symlinks resolved. The directory must exist.
        root.canonicalize().with_context(|| format!("find `{}`", root.display()))
    });
    let entry = AccessEntry {
        name: args.name.clone(),
        scopes: if args.scope.is_empty() { all() } else { args.scope.clone() },
        roots: roots.collect::<anyhow::Result<_>>()?,
        env: (!args.env.is_empty()).then(|| args.env.clone()),
        sandbox: args.sandbox,
        expires: args.expires.map(|after| Timestamp(wall_clock::now_seconds() + after.as_secs())),
        ..AccessEntry::default()
    };
    // Open the output file first: do not create a token that cannot be stored.
    let out = args.out.as_deref().map(NewFile::create).transpose()?;
    let token = TokenFile::create(&path, entry)?;
    match out {
        Some(out) => {
            let shown = out.path.display().to_string();
            out.write(token.reveal())?;
            message!("`{}` is in `{}`; its token is in `{shown}`", args.name, path.display());
        }
        None => {
            message!("`{}` is in `{}`; its token is shown only this once", args.name, path.display());
            print::line(token.reveal())?;
        }
    }
    if let Some(dir) = state_dir {
        warn_if_unused(dir)?;
    }
    Ok(())
}

/// Warns if the server does not require a token.
fn warn_if_unused(dir: &Path) -> anyhow::Result<()> {
    let Some(all) = listeners::read(dir) else {
        message!("note: no server has used `{}` yet; check that it is the right one", dir.display());
        return Ok(());
    };
    if all.iter().any(|listener| listener.asks_for_token) {
        return Ok(());
    }
    let urls: Vec<&str> = all.iter().map(|listener| listener.url.as_str()).collect();
    message!("warning: the server at {} does not require a token", urls.join(", "));
    for url in listeners::urls_with_tokens()? {
        message!("  a server that does: --listen {url}");
    }
    Ok(())
}

/// A new file for a secret. Dropping it removes the file unless the secret was written and synced.
struct NewFile {
    path: PathBuf,
    file: File,
    is_written: bool,
}

impl NewFile {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.with_context(|| format!("create `{}` for the token", path.display()))?;
        Ok(Self { path: path.to_owned(), file, is_written: false })
    }

    fn write(mut self, token: &str) -> anyhow::Result<()> {
        let written = writeln!(self.file, "{token}").and_then(|()| self.file.sync_all());
        written.with_context(|| format!("write `{}`; revoke the token and try again", self.path.display()))?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_written {
            fs::remove_file(&self.path).ok(); // The error that led here is reported.
        }
    }
}

fn revoke(path: &Path, name: &str) -> anyhow::Result<()> {
    TokenFile::revoke(path, name)?;
    message!("`{name}` is revoked in `{}`", path.display());
    Ok(())
}

fn list(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let file = TokenFile::read(path)?.unwrap_or_default();
    let date = |moment: Option<Timestamp>| moment.map(|moment| wall_clock::show_seconds(moment.0));
    if as_json {
        let entries: Vec<_> = file
            .all()
            .map(|(is_token, entry)| {
                json!({
                    "name": entry.name, "kind": if is_token { "token" } else { "certificate" }, "san": entry.san,
                    "sha256": entry.sha256, "scopes": entry.scopes, "roots": entry.roots, "env": entry.env,
                    "sandbox": entry.sandbox,
                    "created": date(entry.created), "expires": date(entry.expires), "revoked": date(entry.revoked),
                    "state": state(entry),
                })
            })
            .collect();
        return print::line(&serde_json::to_string_pretty(&entries)?);
    }
    let rows = file.all().map(|(is_token, entry)| {
        let roots: Vec<String> = entry.roots.iter().map(|root| root.display().to_string()).collect();
        [
            entry.name.clone().into(),
            if is_token { "token" } else { "certificate" }.into(),
            state(entry).into(),
            date(entry.expires).unwrap_or_else(|| "never".to_owned()).into(),
            entry.scopes.join(",").into(),
            if roots.is_empty() { "anywhere".to_owned() } else { roots.join(",") }.into(),
        ]
    });
    let heads = ["NAME", "KIND", "STATE", "EXPIRES", "SCOPES", "ROOTS"];
    // If stdout is closed, the reader has gone.
    print::text(&display::table(heads, rows.collect(), Palette::of_stdout(), 0)).ok();
    Ok(())
}

fn state(entry: &AccessEntry) -> &'static str {
    let is_past = |moment: Timestamp| moment.0 <= wall_clock::now_seconds();
    match (entry.revoked, entry.expires) {
        (Some(_), _) => "revoked",
        (None, Some(expires)) if is_past(expires) => "expired",
        (None, _) => "good",
    }
}
