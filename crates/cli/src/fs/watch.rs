//! `fs watch`: prints one line per change.

use std::{os::unix::ffi::OsStrExt as _, path::PathBuf};

use exec_server_client::{
    fs::{Change, ChangeKind, WatchEnd, WatchParams},
    protocol::path::PathArg,
};
use serde_json::json;

use super::{FailureCount, ServerFiles, as_typed, is_terminal, put_bytes, shown};
use crate::{args, codes, print::put, printable};

pub(super) async fn run(remote: &ServerFiles, args: &args::WatchArgs) -> anyhow::Result<u8> {
    let path = args.path.clone().unwrap_or_else(|| PathBuf::from("."));
    let full = remote.path(&path);
    // `RemoteFiles::watch` replaces the path and the id.
    let mut params = WatchParams::new(PathArg::new("/"), "");
    params.recursive = Some(!args.flat);
    params.exclude.clone_from(&args.exclude);
    let mut failures = FailureCount::default();
    let Some(mut watch) = failures.record(remote.files.watch(&full, params).await)? else { return Ok(failures.code()) };
    report!("watching; directories: {}", watch.directories);
    let mut unwatched = 0;
    loop {
        if watch.unwatched > unwatched {
            unwatched = watch.unwatched;
            report!("directories not watched, because of a limit of the server or its host: {unwatched}");
        }
        let Some(update) = failures.record(watch.next(args.settle).await)? else { return Ok(failures.code()) };
        watch.unwatched = update.unwatched;
        let mut text = Vec::new();
        if update.overflow {
            text.extend_from_slice(if args.json { b"{\"overflow\":true}\n" } else { b"overflow\n" });
        }
        for change in update.changes {
            let change = Change { path: as_typed(&change.path, &full, args.path.as_deref()), ..change };
            line(&mut text, &change, args.json);
        }
        put(&text)?;
        match update.ended {
            Some(WatchEnd::RootRemoved) => {
                report!("watch ended: the path was removed or moved away");
                return Ok(codes::FILES_FAILED);
            }
            Some(WatchEnd::Failed) => {
                report!("watch failed: the server could not read change events");
                return Ok(codes::TROUBLE);
            }
            None if args.once => return Ok(0),
            None => {}
        }
    }
}

fn line(text: &mut Vec<u8>, change: &Change, is_json: bool) {
    if is_json {
        let mut object = json!({"change": change.change, "isDirectory": change.is_directory});
        put_bytes(&mut object, "path", change.path.as_os_str().as_bytes());
        text.extend_from_slice(printable::json_line(&object).as_bytes());
        return;
    }
    text.extend_from_slice(match change.change {
        ChangeKind::Created => b"created  ",
        ChangeKind::Modified => b"modified ",
        ChangeKind::Removed => b"removed  ",
    });
    text.extend_from_slice(&shown(change.path.as_os_str().as_bytes(), is_terminal()));
    text.push(b'\n');
}
