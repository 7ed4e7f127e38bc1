//! `fs ls`, `fs stat` and `fs tree`: list files and show their metadata.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use exec_server_client::{
    fs::{
        Cut, EntryKind, FileError, FileSystem as _, GlobParams, Links, ListEntry, Metadata, Moment, Owner, ScanSummary,
    },
    protocol::{fs::ScanParams, path::PathArg},
};
use serde_json::{Value, json};

use super::{FailureCount, ServerFiles, as_typed, grep::cut_word, is_terminal, put_bytes, put_json, shown};
use crate::{
    args, codes,
    display::{self, Palette, Style},
    ids,
    print::put,
    printable,
};

/// Maximum number of names in a tree.
const TREE_NAMES: u64 = 50_000;

pub(super) async fn ls(remote: &ServerFiles, args: &args::LsArgs) -> anyhow::Result<u8> {
    let mut failures = FailureCount::default();
    let here = [PathBuf::from(".")];
    let paths = if args.paths.is_empty() { &here[..] } else { &args.paths };
    let mut is_first = true;
    for path in paths {
        let Some(entries) = failures.record(entries(remote, path, args.all).await)? else { continue };
        if args.json {
            put_json(&entries.iter().map(entry_json).collect())?;
            continue;
        }
        if paths.len() > 1 && !args.null {
            let gap = if is_first { "" } else { "\n" };
            put(&[gap.as_bytes(), &shown(path.as_os_str().as_bytes(), is_terminal()), b":\n"].concat())?;
        }
        is_first = false;
        put(&listing(&entries, args))?;
    }
    Ok(failures.code())
}

/// The entries of a directory. For any other path, one entry with the path itself.
async fn entries(remote: &ServerFiles, path: &Path, all: bool) -> Result<Vec<ListEntry>, FileError> {
    let full = remote.path(path);
    let found = remote.files.metadata(&full, Links::Follow).await;
    let is_directory = found.as_ref().is_ok_and(|found| found.kind == EntryKind::Directory);
    if !is_directory {
        // Show a symlink itself, also a dangling one. `Links::Itself` fails if a parent directory is a symlink; then use `found`.
        let found = remote.files.metadata(&full, Links::Itself).await.or(found)?;
        return Ok(vec![ListEntry {
            name: path.as_os_str().to_owned(),
            kind: found.kind,
            size: found.size,
            mode: found.mode.unwrap_or_default(),
            modified: found.modified,
            owner: found.owner,
            target: found.link_target,
        }]);
    }
    let mut entries = Vec::new();
    let mut after = None;
    loop {
        let page = remote.files.list(&full, after, Links::Follow).await?;
        after = page.entries.last().map(|entry| entry.name.clone());
        entries.extend(page.entries.into_iter().filter(|entry| all || !entry.name.as_bytes().starts_with(b".")));
        if !page.more || after.is_none() {
            return Ok(entries);
        }
    }
}

fn listing(entries: &[ListEntry], args: &args::LsArgs) -> Vec<u8> {
    let is_terminal = is_terminal();
    let palette = Palette::of_stdout();
    let size = |entry: &ListEntry| if args.human { display::short_size(entry.size) } else { entry.size.to_string() };
    let owners: Vec<Option<[String; 2]>> = entries.iter().map(|entry| entry.owner.as_ref().map(owner_names)).collect();
    let widest = |at: usize| owners.iter().flatten().map(|names| display::width(&names[at])).max().unwrap_or(0);
    let user_width = widest(0);
    let group_width = widest(1);
    let size_width = entries.iter().map(|entry| size(entry).len()).max().unwrap_or(0);
    let mut text = Vec::new();
    for (entry, owner) in entries.iter().zip(&owners) {
        if args.long {
            let mode = mode_text(entry.kind, entry.mode);
            // A server that does not report owners gets no owner columns.
            let owner = owner.as_ref().map_or_else(String::new, |[user, group]| {
                format!("{} {} ", display::pad(user, user_width), display::pad(group, group_width))
            });
            let size = size(entry);
            let time = display::local_time(entry.modified.seconds, "%Y-%m-%d %H:%M");
            text.extend_from_slice(format!("{mode} {owner}{size:>size_width$} {time} ").as_bytes());
        }
        let name = shown(entry.name.as_bytes(), is_terminal && !args.null);
        text.extend_from_slice(&palette.paint_bytes(style(entry.kind, entry.mode), &name));
        if let (true, Some(target)) = (args.long, &entry.target) {
            text.extend_from_slice(b" -> ");
            text.extend_from_slice(&shown(target.as_bytes(), is_terminal));
        }
        text.push(if args.null { 0 } else { b'\n' });
    }
    text
}

/// The colours that `ls` uses.
fn style(kind: EntryKind, mode: u32) -> Style {
    match kind {
        EntryKind::Directory => display::BLUE.bold(),
        EntryKind::Symlink => display::CYAN.bold(),
        EntryKind::Other => display::YELLOW,
        EntryKind::File if mode & 0o111 != 0 => display::GREEN.bold(),
        EntryKind::File => Style::new(),
    }
}

/// The user and the group that own an entry, each by name, or by number if it has no name. Cleaned, because they come from the server.
fn owner_names(owner: &Owner) -> [String; 2] {
    let user = owner.user.as_deref().map_or_else(|| owner.uid.to_string(), ids::clean);
    let group = owner.group.as_deref().map_or_else(|| owner.gid.to_string(), ids::clean);
    [user, group]
}

fn entry_json(entry: &ListEntry) -> Value {
    let mut object =
        json!({"kind": entry.kind, "size": entry.size, "mode": entry.mode, "modifiedAtMs": millis(entry.modified)});
    put_bytes(&mut object, "name", entry.name.as_bytes());
    put_owner_and_target(&mut object, entry.owner.as_ref(), entry.target.as_deref());
    object
}

fn put_owner_and_target(object: &mut Value, owner: Option<&Owner>, target: Option<&OsStr>) {
    if let Some(owner) = owner {
        object["owner"] = json!(owner);
    }
    if let Some(target) = target {
        put_bytes(object, "target", target.as_bytes());
    }
}

pub(super) async fn stat(remote: &ServerFiles, args: &args::StatArgs) -> anyhow::Result<u8> {
    let mut failures = FailureCount::default();
    let links = if args.dereference { Links::Follow } else { Links::Itself };
    for path in &args.paths {
        let full = remote.path(path);
        // `Links::Itself` refuses symlinks in the parent directories, so resolve those first.
        let full = match (links, full.parent(), full.file_name()) {
            (Links::Itself, Some(parent), Some(name)) => match remote.files.canonicalize(parent).await {
                Ok(parent) => parent.join(name),
                Err(_) => full,
            },
            _ => full,
        };
        let Some(found) = failures.record(remote.files.metadata(&full, links).await)? else { continue };
        if args.json {
            put_json(&stat_json(path, &found))?;
        } else {
            put(&stat_text(path, &found))?;
        }
    }
    Ok(failures.code())
}

fn stat_json(path: &Path, found: &Metadata) -> Value {
    let mut object = json!({
        "kind": found.kind,
        "size": found.size,
        "mode": found.mode,
        "modifiedAtMs": millis(found.modified),
        "createdAtMs": found.created_ms,
        "etag": found.etag,
    });
    put_bytes(&mut object, "path", path.as_os_str().as_bytes());
    put_owner_and_target(&mut object, found.owner.as_ref(), found.link_target.as_deref());
    object
}

fn stat_text(path: &Path, found: &Metadata) -> Vec<u8> {
    let is_terminal = is_terminal();
    let mut text = shown(path.as_os_str().as_bytes(), is_terminal);
    if let Some(target) = &found.link_target {
        text.extend_from_slice(b" -> ");
        text.extend_from_slice(&shown(target.as_bytes(), is_terminal));
    }
    let mode = found.mode.map_or_else(String::new, |mode| format!("{} ({:04o})", mode_text(found.kind, mode), mode));
    let lines = [
        ("kind", kind_names(found.kind).0.to_owned()),
        ("size", found.size.to_string()),
        ("mode", mode),
        ("owner", found.owner.as_ref().map(owner_text).unwrap_or_default()),
        ("modified", display::local_time(found.modified.seconds, "%Y-%m-%d %H:%M:%S %:z")),
        ("etag", found.etag.as_deref().map(ids::clean).unwrap_or_default()),
    ];
    for (name, value) in lines.iter().filter(|(_, value)| !value.is_empty()) {
        text.extend_from_slice(format!("\n  {name:<8} {value}").as_bytes());
    }
    text.push(b'\n');
    text
}

/// `root (0), wheel (0)`; only numbers if the names are unknown.
fn owner_text(owner: &Owner) -> String {
    let part = |name: &Option<String>, number: u32| match name {
        Some(name) => format!("{} ({number})", ids::clean(name)),
        None => number.to_string(),
    };
    format!("{}, {}", part(&owner.user, owner.uid), part(&owner.group, owner.gid))
}

pub(super) async fn tree(remote: &ServerFiles, args: &args::TreeArgs) -> anyhow::Result<u8> {
    let path = args.path.clone().unwrap_or_else(|| PathBuf::from("."));
    let full = remote.path(&path);
    let scan = ScanParams {
        hidden: args.all,
        ignore_rules: Some(args.ignore_rules),
        max_depth: args.depth,
        ..ScanParams::default()
    };
    // `RemoteFiles::glob` replaces the path.
    let params = GlobParams { scan, max_results: Some(TREE_NAMES), ..GlobParams::new(PathArg::new("/"), "**") };
    let mut failures = FailureCount::default();
    let Some(found) = failures.record(remote.files.glob(&full, params).await)? else { return Ok(failures.code()) };
    if !args.json {
        put(&[&shown(path.as_os_str().as_bytes(), is_terminal()), b"\n".as_slice()].concat())?;
    }
    let typed = args.path.as_deref();
    let depth = |path: &Path| path.strip_prefix(&full).unwrap_or(path).iter().count();
    let lines = branches(&found.entries.iter().map(|(path, ..)| depth(path)).collect::<Vec<_>>());
    let mut text = Vec::new();
    for ((entry, kind, size, modified), line) in found.entries.iter().zip(lines) {
        if args.json {
            let mut object = json!({"kind": kind, "size": size, "modifiedAtMs": modified});
            put_bytes(&mut object, "path", as_typed(entry, &full, typed).as_os_str().as_bytes());
            text.extend_from_slice(printable::json_line(&object).as_bytes());
            continue;
        }
        text.extend_from_slice(line.as_bytes());
        let name = shown(entry.file_name().unwrap_or_default().as_bytes(), is_terminal());
        // A glob returns no modes, so executable files have no colour of their own here.
        text.extend_from_slice(&Palette::of_stdout().paint_bytes(style(*kind, 0), &name));
        text.extend_from_slice(match kind {
            EntryKind::Directory => b"/\n",
            EntryKind::Symlink => b"@\n",
            EntryKind::File | EntryKind::Other => b"\n",
        });
    }
    put(&text)?;
    report_if_cut(&found.summary, args.depth, &failures)
}

/// The line art before each name of a tree. `depths` lists the entries in order, a directory before its contents. The list is processed
/// from last to first, so that for each entry it is known which of its levels have a later sibling.
fn branches(depths: &[usize]) -> Vec<String> {
    // For each level, whether a later entry follows on it.
    let mut continues: Vec<bool> = Vec::new();
    let mut lines: Vec<String> = depths
        .iter()
        .rev()
        .map(|depth| {
            continues.resize(*depth, false);
            let mut line = String::new();
            for (level, continues) in continues.iter().enumerate() {
                line.push_str(match (level + 1 == *depth, continues) {
                    (true, true) => "├── ",
                    (true, false) => "└── ",
                    (false, true) => "│   ",
                    (false, false) => "    ",
                });
            }
            if let Some(last) = continues.last_mut() {
                *last = true;
            }
            line
        })
        .collect();
    lines.reverse();
    lines
}

/// Reports what the tree does not show. A cut at the depth that the user asked for is not reported.
fn report_if_cut(summary: &ScanSummary, depth: Option<u64>, failures: &FailureCount) -> anyhow::Result<u8> {
    for error in &summary.errors {
        report!("list `{}`: {}", ids::clean(error.path.as_str()), ids::clean(&error.message));
    }
    let cuts: Vec<&str> = summary
        .truncated_by
        .iter()
        .filter(|cut| !(depth.is_some() && **cut == Cut::Depth))
        .map(|cut| cut_word(*cut))
        .collect();
    if !cuts.is_empty() {
        report!("the tree is incomplete; reason: {}", cuts.join(", "));
    }
    let is_whole = cuts.is_empty() && summary.error_count == 0;
    Ok(if is_whole { failures.code() } else { codes::FILES_FAILED })
}

fn millis(moment: Moment) -> i64 {
    moment.seconds.saturating_mul(1000).saturating_add(i64::from(moment.nanos / 1_000_000))
}

/// The word that `stat` prints, and the first letter of `ls -l`.
fn kind_names(kind: EntryKind) -> (&'static str, char) {
    match kind {
        EntryKind::File => ("file", '-'),
        EntryKind::Directory => ("directory", 'd'),
        EntryKind::Symlink => ("symlink", 'l'),
        EntryKind::Other => ("other", '?'),
    }
}

/// The mode in the format of `ls -l`.
fn mode_text(kind: EntryKind, mode: u32) -> String {
    let bit = |shift: u32, letter: char| if mode & (1 << shift) == 0 { '-' } else { letter };
    let special = |execute: u32, extra: u32, small: char| match (mode & (1 << execute) != 0, mode & (1 << extra) != 0) {
        (true, true) => small,
        (false, true) => small.to_ascii_uppercase(),
        (true, false) => 'x',
        (false, false) => '-',
    };
    let mut text = String::from(kind_names(kind).1);
    for (execute, extra, small) in [(6, 11, 's'), (3, 10, 's'), (0, 9, 't')] {
        text.extend([bit(execute + 2, 'r'), bit(execute + 1, 'w'), special(execute, extra, small)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use exec_server_client::fs::EntryKind;

    use super::{branches, mode_text};

    #[test]
    fn modes_are_printed_as_by_ls() {
        assert_eq!(mode_text(EntryKind::File, 0o644), "-rw-r--r--");
        assert_eq!(mode_text(EntryKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(EntryKind::File, 0o4711), "-rws--x--x");
        assert_eq!(mode_text(EntryKind::Symlink, 0o777), "lrwxrwxrwx");
    }

    #[test]
    fn a_tree_is_drawn_with_its_branches() {
        // The entries are a, a/b, a/b/x, a/c and d.
        assert_eq!(branches(&[1, 2, 3, 2, 1]), ["├── ", "│   ├── ", "│   │   └── ", "│   └── ", "└── "]);
        assert_eq!(branches(&[1, 2]), ["└── ", "    └── "]);
    }
}
