//! `fs watch`: prints one line per change.

use std::{os::unix::ffi::OsStrExt as _, path::PathBuf, sync::Arc};

use exec_server_client::{
    fs::{Change, ChangeKind, WatchEnd, WatchParams},
    protocol::path::PathArg,
};
use serde_json::{Map, Value, json};

use super::{Done, Place, Troubles, as_asked, is_terminal, json_line, put, put_path, shown};
use crate::{args, codes, say};

pub(super) async fn run(place: Arc<Place>, args: &args::WatchFiles) -> Done {
    let path = args.path.clone().unwrap_or_else(|| PathBuf::from("."));
    let full = place.path(&path);
    let mut params = WatchParams::new(PathArg::new("/"), "");
    params.recursive = Some(!args.flat);
    params.exclude.clone_from(&args.exclude);
    let mut troubles = Troubles::default();
    let Some(mut watch) = troubles.note(place.files.watch(&full, params).await)? else { return Ok(troubles.code()) };
    say::talk(format_args!("exec-server: watching, directories: {}", watch.directories));
    let mut unwatched = 0;
    loop {
        if watch.unwatched > unwatched {
            unwatched = watch.unwatched;
            say::talk(format_args!(
                "exec-server: not watched, because of a bound of the server or its host: {unwatched}"
            ));
        }
        let Some(told) = troubles.note(watch.next(args.settle).await)? else { return Ok(troubles.code()) };
        watch.unwatched = told.unwatched;
        let mut text = Vec::new();
        if told.overflow {
            text.extend_from_slice(if args.json { b"{\"overflow\":true}\n" } else { b"overflow\n" });
        }
        for change in told.changes {
            let change = Change { path: as_asked(&change.path, &full, args.path.as_deref()), ..change };
            line(&mut text, &change, args.json);
        }
        put(&text)?;
        match told.ended {
            Some(WatchEnd::RootRemoved) => {
                say::talk("exec-server: what was watched was removed or moved away");
                return Ok(codes::NOT_COPIED);
            }
            Some(WatchEnd::Failed) => {
                say::talk("exec-server: the server's host tells nothing more of changes");
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
