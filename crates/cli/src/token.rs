//! `exec-server token`: makes, lists and revokes the entries of a token file.
//! Must not know how a server reads it.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use exec_server_protocol::method::Scope;
use exec_server_server::{
    access::{Entry, FileError, Moment, TokenFile},
    state_dir::TOKENS,
    wall_clock,
};
use serde_json::json;

use crate::{
    args::{Create, Token, TokenCommand, TokenPlace},
    place, say,
};

/// There is no such entry, or one already.
const NO_ENTRY: u8 = 1;

/// Does what was asked with the file that is meant.
pub(crate) fn run(args: &Token) -> anyhow::Result<ExitCode> {
    let done = match &args.command {
        TokenCommand::Create(args) => create(args),
        TokenCommand::List { json, place } => list(&file(place)?, *json),
        TokenCommand::Revoke { name, place } => revoke(&file(place)?, name),
    };
    match done {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if matches!(error.downcast_ref(), Some(FileError::Exists { .. } | FileError::Unknown { .. })) => {
            say::error(&error);
            Ok(ExitCode::from(NO_ENTRY))
        }
        Err(error) => Err(error),
    }
}

fn file(place: &TokenPlace) -> anyhow::Result<PathBuf> {
    match &place.tokens {
        Some(file) => std::path::absolute(file).with_context(|| format!("find `{}`", file.display())),
        None => Ok(place::of_user(place.state_dir.as_deref())?.join(TOKENS)),
    }
}

fn create(args: &Create) -> anyhow::Result<()> {
    let path = file(&args.place)?;
    if let (None, Some(dir)) = (&args.place.tokens, path.parent()) {
        // The server may not have run yet.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .with_context(|| format!("make `{}`", dir.display()))?;
    }
    let all = || Scope::ALL.iter().map(|scope| scope.as_str().to_owned()).collect();
    let roots = args.root.iter().map(|root| {
        // As the server will compare it: links resolved, and it must be there.
        root.canonicalize().with_context(|| format!("find `{}`", root.display()))
    });
    let entry = Entry {
        name: args.name.clone(),
        scopes: if args.scope.is_empty() { all() } else { args.scope.clone() },
        roots: roots.collect::<anyhow::Result<_>>()?,
        env: (!args.env.is_empty()).then(|| args.env.clone()),
        sandbox: args.sandbox,
        expires: args.expires.map(|after| Moment(wall_clock::now_seconds() + after.as_secs())),
        ..Entry::default()
    };
    let token = TokenFile::create(&path, entry)?;
    say::talk(format_args!("`{}` is in `{}`; its token is shown only now", args.name, path.display()));
    say::line(token.reveal());
    Ok(())
}

fn revoke(path: &Path, name: &str) -> anyhow::Result<()> {
    TokenFile::revoke(path, name)?;
    say::talk(format_args!("`{name}` is revoked in `{}`", path.display()));
    Ok(())
}

fn list(path: &Path, as_json: bool) -> anyhow::Result<()> {
    let file = TokenFile::read(path)?.unwrap_or_default();
    let date = |moment: Option<Moment>| moment.map(|moment| wall_clock::show_seconds(moment.0));
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
        say::line(&serde_json::to_string_pretty(&entries)?);
        return Ok(());
    }
    let mut rows = vec![["NAME", "KIND", "STATE", "EXPIRES", "SCOPES", "ROOTS"].map(str::to_owned)];
    rows.extend(file.all().map(|(is_token, entry)| {
        let roots: Vec<String> = entry.roots.iter().map(|root| root.display().to_string()).collect();
        [
            entry.name.clone(),
            if is_token { "token" } else { "certificate" }.to_owned(),
            state(entry).to_owned(),
            date(entry.expires).unwrap_or_else(|| "never".to_owned()),
            entry.scopes.join(","),
            if roots.is_empty() { "anywhere".to_owned() } else { roots.join(",") },
        ]
    }));
    let widths: Vec<usize> =
        (0..6).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        say::line(cells.join("  ").trim_end());
    }
    Ok(())
}

fn state(entry: &Entry) -> &'static str {
    let is_past = |moment: Moment| moment.0 <= wall_clock::now_seconds();
    match (entry.revoked, entry.expires) {
        (Some(_), _) => "revoked",
        (None, Some(expires)) if is_past(expires) => "expired",
        (None, _) => "good",
    }
}
