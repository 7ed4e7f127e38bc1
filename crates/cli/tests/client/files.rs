//! The reference's tests of files (specification 10.2 and 10.4) through the client's `FileSystem`, each locally and on a server. The wire
//! itself is tested in `fs_reference.rs`.

use std::{
    ffi::OsString,
    os::unix::{ffi::OsStringExt as _, fs::PermissionsExt as _},
    thread,
};

use bytes::Bytes;
use futures_util::StreamExt as _;

use crate::{
    file_systems::{at_both, kind, letter},
    prelude::*,
};
use exec_server_client::fs::{
    BLOCK, CommitOptions, CreateOptions, EntryKind, FileSystem, Links, LocalFiles, Moment, WalkKind, WalkOptions,
    WriteOptions, read_stream,
};
use testkit::bounded;

const WALK: WalkOptions = WalkOptions {
    max_depth: 64,
    max_directories: 10_000,
    max_entries: 50_000,
    follow_directory_symlinks: false,
    prune_hidden_directories: false,
};

fn refusing_links() -> WriteOptions {
    WriteOptions { links: Links::Refuse, ..WriteOptions::default() }
}

#[test]
fn get_metadata_returns_expected_fields() {
    at_both(async |ground| {
        let (file, dir) = (ground.write("f", "hello"), ground.make_dir("d"));
        let (to_file, to_dir, broken) = (ground.link("lf", &file), ground.link("ld", &dir), ground.link("lb", "no"));
        for (path, kind, is_symlink) in [
            (&file, EntryKind::File, false),
            (&dir, EntryKind::Directory, false),
            (&to_file, EntryKind::File, true),
            (&to_dir, EntryKind::Directory, true),
        ] {
            let found = ground.files.metadata(path, Links::Follow).await.expect("it is there");
            assert_eq!((found.kind, found.is_symlink), (kind, is_symlink), "{}", path.display());
            assert!(found.modified.seconds > 0);
            if kind == EntryKind::File {
                assert_eq!(found.size, 5);
                assert!(found.etag.is_some());
            }
        }
        assert_eq!(kind(ground.files.metadata(&broken, Links::Follow).await), FileErrorKind::NotFound);
        let itself = ground.files.metadata(&broken, Links::Itself).await.expect("the link is there");
        assert_eq!((itself.kind, itself.link_target), (EntryKind::Symlink, Some("no".into())));
    });
}

#[test]
fn methods_cover_surface_area() {
    at_both(async |ground| {
        let files = &ground.files;
        let nested = ground.path("a/b");
        files.create_directory(&nested, true, Links::Follow, None).await.expect("make both");
        let note = nested.join("note.txt");
        files.write_file(&note, "hi there".into(), WriteOptions::default()).await.expect("write");
        assert_eq!(files.read_file(&note, Links::Follow).await.expect("read"), "hi there");
        files.copy(&note, &ground.path("copy.txt"), false).await.expect("copy a file");
        files.copy(&ground.path("a"), &ground.path("tree"), true).await.expect("copy a tree");
        assert_eq!(fs::read(ground.path("tree/b/note.txt")).expect("it is there"), b"hi there");
        ground.link("broken", "nowhere");
        let mut entries = files.read_directory(&ground.path("")).await.expect("list");
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let told: Vec<_> = entries.iter().map(|e| (e.name.to_str().unwrap_or(""), e.is_directory, e.is_file)).collect();
        assert_eq!(told, [("a", true, false), ("copy.txt", false, true), ("tree", true, false)]);
        files.remove(&ground.path("a"), true, true, Links::Follow).await.expect("remove");
        assert!(!ground.path("a").exists());
    });
}

#[test]
fn read_file_text_returns_string() {
    at_both(async |ground| {
        let text = "naïve\r\n\u{1f980} and no end of line";
        let path = ground.write("text", text);
        let bytes = ground.files.read_file(&path, Links::Follow).await.expect("read");
        assert_eq!(String::from_utf8(bytes.into()).expect("it is text"), text);
    });
}

#[test]
fn no_follow_metadata_preserves_linux_birthtime() {
    at_both(async |ground| {
        let path = ground.write("f", "");
        let born = fs::metadata(&path).and_then(|found| found.created()).expect("this file system knows it");
        let born = born.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
        // Change the file later, so that no other timestamp can be mistaken for the birth time.
        let modified = Some(Moment { seconds: 1_000_000_000, nanos: 0 });
        ground.files.set_metadata(&path, Links::Refuse, None, modified).await.expect("change");
        for links in [Links::Follow, Links::Refuse, Links::Itself] {
            let found = ground.files.metadata(&path, links).await.expect("look");
            assert_eq!(u128::try_from(found.created_ms), Ok(born), "{links:?}");
        }
    });
}

/// Reads, writes, creates and removes below a directory that has search (`x`) but no read permission.
async fn work_below_search_only(files: &dyn FileSystem, top: &Path) {
    let inner = top.join("searched/inner");
    assert_eq!(files.read_file(&inner.join("file"), Links::Refuse).await.expect("read"), "hi");
    files.write_file(&inner.join("new"), "new".into(), refusing_links()).await.expect("write");
    files.create_directory(&inner.join("a/b"), true, Links::Refuse, None).await.expect("make both");
    let found = files.metadata(&inner.join("a/b"), Links::Refuse).await.expect("look");
    assert_eq!(found.kind, EntryKind::Directory);
    files.remove(&inner.join("new"), false, false, Links::Refuse).await.expect("remove");
    files.remove(&inner.join("a"), true, false, Links::Follow).await.expect("remove");
    assert_eq!(kind(files.read_directory(top).await), FileErrorKind::PermissionDenied);
}

#[test]
fn no_follow_operations_support_search_only_ancestors() {
    let top = tempfile::Builder::new().prefix("exec-server-files-").tempdir().expect("make a directory");
    let top = top.path().canonicalize().expect("it exists");
    fs::create_dir_all(top.join("searched/inner")).expect("make directories");
    fs::write(top.join("searched/inner/file"), "hi").expect("write");
    for (name, mode) in [("searched/inner", 0o777), ("searched", 0o711), ("", 0o711)] {
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(mode)).expect("set a mode");
    }
    // Root may list everything. So one thread changes its uid, and the threads that it starts inherit the change.
    thread::scope(|scope| {
        let local = scope.spawn(|| {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("become nobody; run this as root");
            bounded(work_below_search_only(&LocalFiles::new(), &top));
        });
        local.join().expect("no panic");
    });
    let server = TestServer::builder().run_by_nobody().start();
    bounded(async {
        let client = Client::connect(server.url()).await.expect("connect");
        work_below_search_only(&RemoteFiles::new(client.clone()), &top).await;
        client.end_session().await.expect("end the session");
    });
}

#[test]
fn write_file_reports_missing_parent() {
    at_both(async |ground| {
        let path = ground.path("missing/file");
        let done = ground.files.write_file(&path, Bytes::new(), WriteOptions::default()).await;
        assert_eq!(kind(done), FileErrorKind::NotFound);
        assert!(!ground.path("missing").exists());
        assert_eq!(kind(ground.files.read_file(&path, Links::Follow).await), FileErrorKind::NotFound);
    });
}

#[test]
fn copy_keeps_links_and_refuses_what_it_must() {
    at_both(async |ground| {
        let dir = ground.make_dir("dir");
        ground.write("dir/f", "1");
        ground.link("dir/l", "f");
        fifo(&dir, "p");
        let files = &ground.files;
        assert_eq!(kind(files.copy(&dir, &ground.path("x"), false).await), FileErrorKind::InvalidInput);
        assert_eq!(kind(files.copy(&dir, &ground.path("dir/inside"), true).await), FileErrorKind::InvalidInput);
        let fifo = files.copy(&ground.path("dir/p"), &ground.path("p"), false).await;
        assert_eq!(kind(fifo), FileErrorKind::InvalidInput);
        files.copy(&ground.path("dir/l"), &ground.path("l"), false).await.expect("copy a link");
        assert_eq!(fs::read_link(ground.path("l")).expect("a link"), PathBuf::from("f"));
        files.copy(&dir, &ground.path("tree"), true).await.expect("copy a tree");
        assert_eq!(fs::read_link(ground.path("tree/l")).expect("a link"), PathBuf::from("f"));
        assert!(!ground.path("tree/p").exists(), "a FIFO in a tree is left out");
    });
}

#[test]
fn copy_rejects_directory_without_recursive() {
    at_both(async |ground| {
        let dir = ground.make_dir("source");
        let error = ground.files.copy(&dir, &ground.path("target"), false).await.expect_err("it is a directory");
        let fixed = "fs/copy requires recursive: true when sourcePath is a directory";
        assert_eq!((error.kind, error.reason.as_str()), (FileErrorKind::InvalidInput, fixed));
        assert!(!ground.path("target").exists());
    });
}

#[test]
fn remove_removes_symlink_not_target() {
    at_both(async |ground| {
        let file = ground.write("f", "1");
        let link = ground.link("l", &file);
        ground.files.remove(&link, true, true, Links::Follow).await.expect("remove the link");
        assert!(file.exists() && fs::symlink_metadata(&link).is_err());
        assert_eq!(kind(ground.files.remove(&link, false, false, Links::Follow).await), FileErrorKind::NotFound);
        ground.files.remove(&link, false, true, Links::Follow).await.expect("force hides that it is gone");
        let dir = ground.make_dir("d/e");
        let full = ground.files.remove(&ground.path("d"), false, false, Links::Follow).await;
        assert_eq!(kind(full), FileErrorKind::NotEmpty);
        ground.files.remove(&dir, false, false, Links::Refuse).await.expect("an empty one");
        ground.files.remove(&file, false, false, Links::Refuse).await.expect("a file");
    });
}

#[test]
fn streams_come_in_bounded_chunks_and_stop_at_a_block_boundary() {
    at_both(async |ground| {
        for size in [0, 1, BLOCK, 3 * BLOCK, 3 * BLOCK + 17] {
            let bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let path = ground.write("f", &bytes);
            let file = ground.files.open(&path, Links::Follow).await.expect("open");
            let mut seen = Vec::new();
            let mut chunks = read_stream(Arc::from(file));
            let mut count = 0;
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.expect("a chunk");
                assert!(!chunk.is_empty() && chunk.len() <= BLOCK);
                seen.extend_from_slice(&chunk);
                count += 1;
            }
            assert!(seen == bytes && count == size.div_ceil(BLOCK), "{size} bytes in {count} chunks");
        }
    });
}

#[test]
fn completed_streams_release_handle_capacity() {
    at_both(async |ground| {
        let path = ground.write("f", "x");
        for _ in 0..140 {
            let file = Arc::from(ground.files.open(&path, Links::Follow).await.expect("open"));
            assert_eq!(exec_server_client::fs::read_all(file).await.expect("read"), "x");
        }
    });
}

#[test]
fn reading_goes_on_in_the_open_file_after_path_replacement() {
    at_both(async |ground| {
        let path = ground.write("f", "old bytes");
        let file = ground.files.open(&path, Links::Follow).await.expect("open");
        fs::rename(ground.write("g", "new"), &path).expect("replace");
        for (offset, len, bytes, eof) in [(0, 3, "old", false), (4, 100, "bytes", true), (9, 1, "", true)] {
            let block = file.read_at(offset, len, false).await.expect("read");
            assert_eq!((block.bytes, block.eof), (Bytes::from(bytes), eof));
        }
    });
}

#[test]
fn fifos_are_refused_without_waiting_for_anybody() {
    at_both(async |ground| {
        let path = PathBuf::from(fifo(&ground.path(""), "p"));
        soon("answers", async {
            assert_eq!(kind(ground.files.read_file(&path, Links::Follow).await), FileErrorKind::InvalidInput);
            assert!(ground.files.open(&path, Links::Follow).await.is_err());
            let written = ground.files.write_file(&path, "x".into(), refusing_links()).await;
            assert_eq!(kind(written), FileErrorKind::InvalidInput);
        })
        .await;
    });
}

#[test]
fn walk_returns_a_bounded_tree_and_checks_its_bounds_first() {
    at_both(async |ground| {
        let root = ground.make_dir("r");
        ground.make_dir("r/b/.hidden");
        ground.write("r/a", "");
        ground.write("r/b/c", "");
        ground.write("r/b/.hidden/x", "");
        ground.link("r/loop", &root);
        let names = |walk: &exec_server_client::fs::Walk| -> Vec<String> {
            let name = |path: &PathBuf| path.strip_prefix(&root).expect("below the root").display().to_string();
            walk.entries
                .iter()
                .map(|(path, kind)| format!("{}{}", name(path), if *kind == WalkKind::Directory { "/" } else { "" }))
                .collect()
        };
        let files = &ground.files;
        let all = files.walk(&root, WALK).await.expect("walk");
        assert_eq!(names(&all), ["a", "b/", "b/.hidden/", "b/c", "b/.hidden/x"]);
        let followed = files.walk(&root, WalkOptions { follow_directory_symlinks: true, ..WALK }).await.expect("walk");
        assert!(names(&followed).contains(&"loop/".to_owned()), "a loop is told once: {:?}", names(&followed));
        let pruned = files.walk(&root, WalkOptions { prune_hidden_directories: true, ..WALK }).await.expect("walk");
        assert_eq!(names(&pruned), ["a", "b/", "b/.hidden/", "b/c"]);
        let cut = files.walk(&root, WalkOptions { max_entries: 2, ..WALK }).await.expect("walk");
        assert!(cut.truncated && cut.entries.len() == 2);
        assert!(files.walk(&ground.path("r/a"), WALK).await.expect("a file").entries.is_empty());
        assert_eq!(kind(files.walk(&ground.path("none"), WALK).await), FileErrorKind::NotFound);
        for bad in [
            WalkOptions { max_depth: 65, ..WALK },
            WalkOptions { max_directories: 0, ..WALK },
            WalkOptions { max_entries: 50_001, ..WALK },
        ] {
            assert_eq!(kind(files.walk(&ground.path("none"), bad).await), FileErrorKind::InvalidInput);
        }
    });
}

#[test]
fn walk_reports_non_utf8_names() {
    at_both(async |ground| {
        let top = ground.make_dir("top");
        let good = ground.write("top/good", "");
        let odd = top.join(OsString::from_vec(b"bad-\xff".to_vec()));
        fs::write(&odd, "odd").expect("write");
        let walked = ground.files.walk(&top, WALK).await.expect("walk");
        assert_eq!(walked.entries, [(good, WalkKind::File)]);
        let told: Vec<_> = walked.errors.iter().map(|(path, _)| path.clone()).collect();
        assert_eq!(told, std::slice::from_ref(&odd));
        // The name is reported with all its bytes, so that it can be used for further requests.
        assert_eq!(ground.files.read_file(&told[0], Links::Refuse).await.expect("read"), "odd");
    });
}

#[test]
fn walk_prunes_hidden_directories_without_claiming_visible_aliases() {
    at_both(async |ground| {
        let top = ground.make_dir("top");
        let hidden = ground.make_dir("top/.hidden");
        ground.write("top/.hidden/file", "");
        let visible = ground.link("top/visible", ".hidden");
        let options = WalkOptions { prune_hidden_directories: true, follow_directory_symlinks: true, ..WALK };
        let walked = ground.files.walk(&top, options).await.expect("walk");
        let file = (visible.join("file"), WalkKind::File);
        assert_eq!(walked.entries, [(hidden, WalkKind::Directory), (visible, WalkKind::Directory), file]);
    });
}

#[test]
fn read_block_supports_non_sequential_offsets_and_lengths() {
    at_both(async |ground| {
        let path = ground.write("f", "0123456789");
        let file = ground.files.open(&path, Links::Refuse).await.expect("open");
        for (offset, len, bytes, eof) in
            [(8, 2, "89", false), (0, 3, "012", false), (8, 3, "89", true), (10, 1, "", true), (99, 5, "", true)]
        {
            let block = file.read_at(offset, len, false).await.expect("read");
            assert_eq!((&block.bytes[..], block.eof), (bytes.as_bytes(), eof), "{offset} {len}");
        }
    });
}

#[test]
fn canonicalize_resolves_directory_symlink() {
    at_both(async |ground| {
        let dir = ground.make_dir("d");
        let link = ground.link("l", &dir);
        assert_eq!(ground.files.canonicalize(&link).await.expect("resolve"), dir);
        assert_eq!(kind(ground.files.canonicalize(&ground.path("none")).await), FileErrorKind::NotFound);
    });
}

#[test]
fn operations_can_reject_symlinks_in_any_path_component() {
    at_both(async |ground| {
        let dir = ground.make_dir("d");
        ground.write("d/f", "1");
        ground.link("ld", &dir);
        ground.link("lf", ground.path("d/f"));
        let files = &ground.files;
        for name in ["ld/f", "lf"] {
            let path = ground.path(name);
            let refused = [
                kind(files.read_file(&path, Links::Refuse).await),
                kind(files.metadata(&path, Links::Refuse).await),
                kind(files.write_file(&path, "2".into(), refusing_links()).await),
            ];
            assert_eq!(refused, [FileErrorKind::Symlink; 3], "{name}");
            assert!(files.open(&path, Links::Refuse).await.is_err(), "{name}");
            let create = CreateOptions { links: Links::Refuse, keep: None };
            assert!(files.create(&path, create).await.is_err(), "{name}");
        }
        let below = ground.path("ld/new");
        for recursive in [false, true] {
            assert!(files.create_directory(&below, recursive, Links::Refuse, None).await.is_err());
        }
        assert!(files.symlink(&below, "x".into(), Links::Refuse).await.is_err());
        assert!(files.remove(&ground.path("ld/f"), false, false, Links::Refuse).await.is_err());
        assert!(files.list(&ground.path("ld"), None, Links::Refuse).await.is_err());
        assert!(files.set_metadata(&ground.path("ld/f"), Links::Refuse, Some(0o600), None).await.is_err());
        assert_eq!(fs::read(ground.path("d/f")).expect("it is there"), b"1");
        assert_eq!(fs::read_dir(&dir).expect("list").count(), 1);
    });
}

#[test]
fn no_follow_creation_fails_where_something_is_and_races_well() {
    at_both(async |ground| {
        let files = &ground.files;
        let root = files.create_directory(std::path::Path::new("/"), false, Links::Refuse, None).await;
        assert!(root.is_err(), "the root is there");
        let dir = ground.make_dir("d");
        assert_eq!(kind(files.create_directory(&dir, false, Links::Refuse, None).await), FileErrorKind::AlreadyExists);
        let deep = ground.path("x/y/z");
        let racers = (0..16).map(|_| files.create_directory(&deep, true, Links::Refuse, None));
        for made in futures_util::future::join_all(racers).await {
            made.expect("all of them succeed");
        }
    });
}

#[test]
fn a_file_beyond_one_message_passes_whole_in_either_direction() {
    at_both(async |ground| {
        let size = (64 << 20) + 4711;
        let mut bytes = vec![0; size];
        for (at, page) in bytes.chunks_mut(4096).enumerate() {
            let len = page.len().min(8);
            page[..len].copy_from_slice(&at.to_le_bytes()[..len]);
        }
        let bytes = Bytes::from(bytes);
        let path = ground.path("large");
        let written = ground.files.write_file(&path, bytes.clone(), WriteOptions::default()).await.expect("write");
        assert!(written.atomic);
        assert!(fs::read(&path).expect("it is there") == bytes);
        assert!(ground.files.read_file(&path, Links::Follow).await.expect("read") == bytes);
    });
}

#[test]
fn writes_keep_what_they_are_told_and_lose_no_edit() {
    at_both(async |ground| {
        let path = ground.write("f", "one");
        let files = &ground.files;
        let before = files.metadata(&path, Links::Follow).await.expect("look");
        let modified = Moment { seconds: 1_000_000_000, nanos: 123_456_789 };
        let options = WriteOptions {
            if_match: before.etag.clone(),
            mode: Some(0o640),
            modified: Some(modified),
            ..WriteOptions::default()
        };
        files.write_file(&path, "two".into(), options.clone()).await.expect("write");
        assert_eq!(kind(files.write_file(&path, "three".into(), options).await), FileErrorKind::Changed);
        let after = files.metadata(&path, Links::Follow).await.expect("look");
        assert_eq!((after.mode, after.modified), (Some(0o640), modified));
        let append = WriteOptions { append: true, ..WriteOptions::default() };
        files.write_file(&path, "+".into(), append).await.expect("append");
        assert_eq!(fs::read(&path).expect("read"), b"two+");
        files.set_metadata(&path, Links::Follow, Some(0o444), Some(modified)).await.expect("change");
        let found = fs::metadata(&path).expect("look");
        assert_eq!(found.permissions().mode() & 0o7777, 0o444);
    });
}

#[test]
fn a_file_in_blocks_appears_whole_and_what_is_kept_goes_on() {
    at_both(async |ground| {
        let (files, path) = (&ground.files, ground.path("f"));
        let keep = CreateOptions { links: Links::Refuse, keep: Some("word".to_owned()) };
        let draft = files.create(&path, keep.clone()).await.expect("begin");
        assert_eq!(draft.found(), 0);
        draft.write_at(0, "hello ".into()).await.expect("write");
        assert!(!path.exists());
        drop(draft);
        // The server closes the draft in the background.
        let mut again = files.create(&path, keep.clone()).await;
        while matches!(&again, Err(error) if error.kind == FileErrorKind::Busy) {
            tokio::task::yield_now().await;
            again = files.create(&path, keep.clone()).await;
        }
        let again = again.expect("go on");
        assert_eq!(again.found(), 6);
        again.write_at(6, "world".into()).await.expect("write");
        let options = CommitOptions { size: Some(1 << 20), mode: Some(0o600), ..CommitOptions::default() };
        again.commit(options).await.expect("commit");
        let bytes = fs::read(&path).expect("it is there");
        assert!(bytes.len() == 1 << 20 && bytes.starts_with(b"hello world\0"));
        let gone = files.create(&path, keep).await.expect("begin anew");
        assert_eq!(gone.found(), 0);
        gone.write_at(0, "x".into()).await.expect("write");
        gone.discard().await.expect("give up");
        assert_eq!(fs::read_dir(ground.path("")).expect("list").count(), 1, "nothing is left");
    });
}

#[test]
fn listings_tell_everything_as_it_is() {
    at_both(async |ground| {
        ground.write("f", "12345");
        ground.make_dir("d");
        ground.link("l", "nowhere");
        fifo(&ground.path(""), "p");
        let odd = OsString::from_vec(b"\xff\n".to_vec());
        fs::write(ground.path("").join(&odd), "").expect("write");
        let page = ground.files.list(&ground.path(""), None, Links::Refuse).await.expect("list");
        let told: Vec<_> = page.entries.iter().map(|entry| (entry.name.clone(), letter(entry.kind))).collect();
        let name = |text: &str| OsString::from(text);
        let expected = [(name("d"), 'd'), (name("f"), 'f'), (name("l"), 'l'), (name("p"), '?'), (odd.clone(), 'f')];
        assert_eq!(told, expected);
        assert_eq!((page.entries[1].size, &page.entries[2].target), (5, &Some(name("nowhere"))));
        assert!(!page.more);
        let rest = ground.files.list(&ground.path(""), Some(name("l")), Links::Refuse).await.expect("list");
        assert_eq!(rest.entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>(), [name("p"), odd]);
    });
}

#[test]
fn a_listing_follows_links_where_it_may() {
    at_both(async |ground| {
        let dir = ground.make_dir("above/dir");
        ground.write("above/dir/f", "1");
        let (link, above) = (ground.link("l", &dir), ground.link("la", ground.path("above")));
        for path in [&link, &above.join("dir")] {
            let page = ground.files.list(path, None, Links::Follow).await.expect("list what it leads to");
            let names: Vec<_> = page.entries.into_iter().map(|entry| entry.name).collect();
            assert_eq!(names, [OsString::from("f")], "{}", path.display());
            let plain = ground.files.read_directory(path).await.expect("the reference's listing");
            assert_eq!(plain.iter().map(|entry| entry.is_file).collect::<Vec<_>>(), [true], "{}", path.display());
            let refused = kind(ground.files.list(path, None, Links::Refuse).await);
            assert_eq!(refused, FileErrorKind::Symlink, "{}", path.display());
        }
        let to_file = ground.link("lf", dir.join("f"));
        assert_eq!(kind(ground.files.list(&to_file, None, Links::Follow).await), FileErrorKind::NotADirectory);
    });
}

#[test]
fn holes_are_told_apart_from_zeros() {
    at_both(async |ground| {
        let path = ground.write("f", vec![1; 4096]);
        fs::File::options().write(true).open(&path).expect("open").set_len(8 << 20).expect("a hole");
        let file = ground.files.open(&path, Links::Refuse).await.expect("open");
        for (offset, len, hole) in [(0, 4096, 0), (4096, 0, (8 << 20) - 4096)] {
            let block = file.read_at(offset, BLOCK, true).await.expect("read");
            assert_eq!((block.bytes.len(), block.hole), (len, hole), "{offset}");
        }
        let zeros = file.read_at(4096, BLOCK, false).await.expect("read");
        assert_eq!((zeros.bytes.len(), zeros.hole, zeros.eof), (BLOCK, 0, false));
    });
}
