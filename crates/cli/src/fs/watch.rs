//! `fs watch`: prints one line per change.

use std::{os::unix::ffi::OsStrExt as _, path::PathBuf, sync::Arc};

use exec_server_client::{
    fs::{Change, ChangeKind, WatchEnd, WatchParams},
    protocol::path::PathArg,
};
use serde_json::{Map, Value, json};

use super::{CommandResult, FailureCount, ServerFiles, as_typed, is_terminal, json_line, put, put_path, shown};
use crate::{args, codes, print};

pub(super) async fn run(remote: Arc<ServerFiles>, args: &args::WatchArgs) -> CommandResult {
    let path = args.path.clone().unwrap_or_else(|| PathBuf::from("."));
    let full = remote.path(&path);
    let mut params = WatchParams::new(PathArg::new("/"), "");
    params.recursive = Some(!args.flat);
    params.exclude.clone_from(&args.exclude);
    let mut failures = FailureCount::default();
    let Some(mut watch) = failures.record(remote.files.watch(&full, params).await)? else { return Ok(failures.code()) };
    print::message(format_args!("exec-server: watching, directories: {}", watch.directories));
    let mut unwatched = 0;
    loop {
        if watch.unwatched > unwatched {
            unwatched = watch.unwatched;
            print::message(format_args!(
                "exec-server: not watched, because of a bound of the server or its host: {unwatched}"
            ));
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
                print::message("exec-server: what was watched was removed or moved away");
                return Ok(codes::NOT_COPIED);
            }
            Some(WatchEnd::Failed) => {
                print::message("exec-server: the server's host tells nothing more of changes");
                return Ok(codes::TROUBLE);
            }
            None if args.once => return Ok(0),
            None => {}
        }
    }
}

fn line(text: &mut Vec<u8>, change: &Change, is_json: bool) {
    if is_json {
        let mut object = Map::new();
        put_path(&mut object, "path", &change.path);
        object.insert("change".to_owned(), json!(change.change));
        object.insert("isDirectory".to_owned(), json!(change.is_directory));
        text.extend_from_slice(json_line(&Value::Object(object)).as_bytes());
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
