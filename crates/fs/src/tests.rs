//! Tests against naive models: ranges, lines and sequences of writes, and path resolution by a view.

use std::{
    ffi::OsStr,
    fs,
    os::{
        fd::AsFd as _,
        unix::fs::{FileExt as _, symlink},
    },
    path::{Path, PathBuf},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use proptest::prelude::*;

use crate::{
    Cancel, Draft, ErrorCategory, Links, ListRange, ReadRange, RemoveOptions, Stat, View, WalkOptions, WriteOptions,
    WritePosition, WriteRequest, create_directory, create_symlink,
    in_place::InPlaceWrite,
    leftovers, metadata, open, read_details, remove,
    target::{WriteTarget, link_scratch_name},
    walk, write,
};

const MOST: u64 = 1 << 20;

fn read(path: &Path, range: ReadRange) -> Vec<u8> {
    let file = open(&View::everything(), path, Links::Follow).expect("it is there");
    file.read(range, MOST, "", &Cancel::new()).expect("it can be read").bytes
}

fn put(view: &View, path: &Path, position: WritePosition, bytes: &[u8]) -> crate::Result<crate::WriteResult> {
    let request = WriteRequest { position, bytes, options: &WriteOptions::default() };
    write(view, path, Links::Follow, &request, &Cancel::new())
}

proptest! {
    #[test]
    fn reads_of_ranges_and_lines_agree_with_a_naive_model(
        text in "[ab\n]{0,60}", offset in 0u64..70, len in 0u64..70, first in 1u64..9, count in 0u64..9,
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        fs::write(&path, &text).expect("write");
        let from = usize::try_from(offset).expect("small").min(text.len());
        let to = (from + usize::try_from(len).expect("small")).min(text.len());
        prop_assert_eq!(read(&path, ReadRange::Bytes { offset, len: Some(len) }), text.as_bytes()[from..to].to_vec());
        let lines: String = text.split_inclusive('\n')
            .skip(usize::try_from(first - 1).expect("small"))
            .take(usize::try_from(count).expect("small"))
            .collect();
        prop_assert_eq!(read(&path, ReadRange::Lines { first, count }), lines.into_bytes());
    }

    #[test]
    fn writes_agree_with_a_model_in_memory(writes in prop::collection::vec((0u8..3, 0u64..40, prop::collection::vec(any::<u8>(), 0..20)), 1..12)) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let mut model: Vec<u8> = Vec::new();
        for (how, offset, bytes) in writes {
            let position = match how {
                0 => { model.clone_from(&bytes); WritePosition::Whole }
                1 => { model.extend(&bytes); WritePosition::End }
                _ => {
                    let at = usize::try_from(offset).expect("small");
                    if !bytes.is_empty() {
                        model.resize(model.len().max(at + bytes.len()), 0);
                        model[at..at + bytes.len()].copy_from_slice(&bytes);
                    }
                    WritePosition::Offset(offset)
                }
            };
            let written = put(&View::everything(), &path, position, &bytes).expect("it can be written");
            prop_assert_eq!(written.atomic, position == WritePosition::Whole);
            prop_assert_eq!(written.size, model.len() as u64);
            prop_assert_eq!(&fs::read(&path).expect("it is there"), &model);
        }
        prop_assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 1);
    }

    #[test]
    fn a_restricted_view_never_leaves_its_root(steps in prop::collection::vec(prop::sample::select(vec!["..", ".", "in", "out", "abs", "file", "loop"]), 0..8)) {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().canonicalize().expect("it is there");
        let root = top.join("root");
        fs::create_dir_all(root.join("in")).expect("make");
        fs::write(root.join("in/file"), b"inside").expect("write");
        fs::write(top.join("file"), b"outside").expect("write");
        symlink("../..", root.join("in/out")).expect("link");
        symlink(root.join("in"), root.join("abs")).expect("link");
        symlink("loop", root.join("in/loop")).expect("link");
        let path = steps.iter().fold(root.clone(), |path: PathBuf, step| path.join(step));
        let view = View::beneath([&root]);
        if let Ok(file) = open(&view, &path, Links::Follow) {
            let bytes = file.read(ReadRange::ALL, MOST, "", &Cancel::new()).expect("it can be read").bytes;
            prop_assert_eq!(bytes, b"inside".to_vec());
        }
        if let Ok(fd) = view.locate(&path, Links::Follow) {
            prop_assert!(crate::view::real_path(std::os::fd::AsFd::as_fd(&fd)).expect("a path").starts_with(&root));
        }
        // The view finds everything beneath the root that an unrestricted lookup finds there.
        if let Ok(real) = path.canonicalize() && real.starts_with(&root) && !path.components().any(|part| part == std::path::Component::ParentDir) {
            prop_assert!(view.locate(&path, Links::Follow).is_ok(), "{}", path.display());
        }
    }
}

#[test]
fn a_missing_root_permits_nothing() {
    let view = View::beneath(["/no/such/root"]);
    for path in ["/", "/no/such/root", "/etc"] {
        let error = metadata(&view, Path::new(path), Links::Follow, false).expect_err("nothing is permitted");
        assert_eq!(error.category(), ErrorCategory::OutsideView);
    }
}

#[test]
fn a_cancelled_operation_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (view, path, cancel) = (View::everything(), dir.path().join("file"), Cancel::new());
    let mut draft = Draft::create(&view, &path, Links::Follow, None).expect("a draft");
    draft.write_block(0, b"bytes").expect("a block");
    cancel.cancel();
    let write_options = WriteOptions::default();
    assert_eq!(
        draft.commit(None, &write_options, &cancel).expect_err("cancelled").category(),
        ErrorCategory::Cancelled
    );
    let request = WriteRequest { position: WritePosition::Whole, bytes: b"x", options: &write_options };
    let error = write(&view, &path, Links::Follow, &request, &cancel).expect_err("cancelled");
    assert_eq!(error.category(), ErrorCategory::Cancelled);
    let options = WalkOptions {
        max_depth: 1,
        max_directories: 1,
        max_entries: 1,
        max_bytes: 99,
        follow_directories: false,
        prune_hidden: false,
    };
    assert_eq!(walk(&view, dir.path(), &options, &cancel).expect_err("cancelled").category(), ErrorCategory::Cancelled);
    drop(draft);
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
}

#[test]
fn a_running_program_is_replaced_but_not_written_in_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let (view, path) = (View::everything(), dir.path().join("program"));
    fs::copy("/bin/sleep", &path).expect("copy a program");
    // The kernel refuses writers while a file is being executed (ETXTBSY), so run it.
    #[expect(clippy::disallowed_methods, reason = "a test runs a program")]
    let mut child = std::process::Command::new(&path).arg("60").spawn().expect("run it");
    let error = put(&view, &path, WritePosition::End, b"x").expect_err("it runs");
    assert_eq!(error.category(), ErrorCategory::Other, "{error}");
    assert!(put(&view, &path, WritePosition::Whole, b"new").expect("it is replaced").atomic);
    assert_eq!(fs::read(&path).expect("it is there"), b"new");
    child.kill().expect("end it");
    child.wait().expect("it ends");
}

#[test]
fn listing_in_parts_misses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let view = View::everything();
    for n in 0..25 {
        create_directory(&view, &dir.path().join(format!("{n:02}")), Links::Refuse, false, None).expect("make");
    }
    let (mut found, mut parts) = (Vec::new(), 0);
    loop {
        let after: Option<std::ffi::OsString> = found.last().cloned();
        let range = ListRange { after: after.as_deref(), most: 7 };
        let (details, more) = read_details(&view, dir.path(), Links::Follow, range, &Cancel::new()).expect("list");
        found.extend(details.into_iter().map(|detail| detail.entry.name));
        parts += 1;
        if !more {
            break;
        }
    }
    assert_eq!((found.len(), parts), (25, 4));
    assert!(found.is_sorted());
    let options = RemoveOptions { recursive: true, force: true };
    remove(&view, dir.path(), Links::Follow, options, &Cancel::new()).expect("remove");
    assert!(!dir.path().exists());
}

#[test]
fn the_next_writer_of_a_name_removes_what_a_killed_writer_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().canonicalize().expect("it is there");
    let (file, link, view) = (path.join("file"), path.join("link"), View::everything());
    let target = WriteTarget::resolve(&view, &file, Links::Refuse).expect("find");
    let aside = [path.join(target.scratch_name()), path.join(link_scratch_name(OsStr::new("link")))];
    fs::write(&file, "old").expect("write");
    symlink("old", &link).expect("link");
    for aside in &aside {
        fs::write(aside, "half").expect("write");
    }
    put(&view, &file, WritePosition::Whole, b"new").expect("it can be written");
    create_symlink(&view, &link, Links::Refuse, b"new", true).expect("it can be replaced");
    assert_eq!(fs::read(&file).expect("it is there"), b"new");
    assert_eq!(fs::read_link(&link).expect("a link"), Path::new("new"));
    assert!(aside.iter().all(|aside| !aside.exists()));
    // A temporary file that is in use stays, and the writer takes another name.
    let held = fs::File::create(&aside[0]).expect("create");
    assert!(leftovers::lock_as_writer(&held));
    put(&view, &file, WritePosition::Whole, b"newer").expect("it can be written");
    assert_eq!((fs::read(&file).expect("it is there"), aside[0].exists()), (b"newer".to_vec(), true));
    assert_eq!(fs::read_dir(&path).expect("it is there").count(), 3);
}

/// Creates a file with two hard links, and returns both paths.
fn with_two_names(dir: &Path, bytes: &[u8]) -> [PathBuf; 2] {
    let names = ["one", "two"].map(|name| dir.join(name));
    fs::write(&names[0], bytes).expect("write");
    fs::hard_link(&names[0], &names[1]).expect("link");
    names
}

#[test]
fn of_two_edits_through_two_hard_links_one_fails_with_etag_mismatch() {
    let dir = tempfile::tempdir().expect("a directory");
    let names = with_two_names(dir.path(), b"first");
    let (view, cancel, large) = (View::everything(), Cancel::new(), vec![b'x'; 1 << 20]);
    for round in 0..100 {
        let etag = metadata(&view, &names[0], Links::Follow, false).expect("look").etag;
        let (write_options, start) = (WriteOptions { if_match: etag, ..WriteOptions::default() }, Barrier::new(2));
        let edit = |name: &Path| {
            start.wait();
            let request = WriteRequest { position: WritePosition::Whole, bytes: &large, options: &write_options };
            write(&view, name, Links::Follow, &request, &cancel)
        };
        let done = thread::scope(|scope| {
            let edits = names.each_ref().map(|name| scope.spawn(|| edit(name)));
            edits.map(|edit| edit.join().expect("no panic"))
        });
        let late = done.iter().filter_map(|done| done.as_ref().err()).map(crate::Error::category);
        assert_eq!(late.collect::<Vec<_>>(), [ErrorCategory::EtagMismatch], "round {round}");
        put(&view, &names[0], WritePosition::Whole, format!("{round}").as_bytes()).expect("write");
    }
}

#[test]
fn a_commit_cancelled_before_its_first_byte_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let names = with_two_names(dir.path(), b"old");
    let (view, cancel) = (View::everything(), Cancel::new());
    let mut draft = Draft::create(&view, &names[0], Links::Follow, None).expect("a draft");
    draft.write_block(0, b"new bytes").expect("a block");
    let bytes = draft.file().and_then(|file| Ok(file.try_clone()?)).expect("its file");
    let target = WriteTarget::resolve(&view, &names[0], Links::Follow).expect("find");
    let committed = thread::scope(|scope| {
        let lock = target.lock();
        let commit = scope.spawn(|| draft.commit(Some(3), &WriteOptions::default(), &cancel));
        // Wait until the commit has cut the draft, so that it now waits for the lock.
        while bytes.metadata().expect("look").len() != 3 && !commit.is_finished() {
            thread::yield_now();
        }
        cancel.cancel();
        drop(lock);
        commit.join().expect("no panic")
    });
    assert_eq!(committed.expect_err("cancelled").category(), ErrorCategory::Cancelled);
    assert_eq!(fs::read(&names[1]).expect("it is there"), b"old");
    assert!(!draft.is_half_done());
}

#[test]
fn an_in_place_copy_that_failed_midway_is_reported_and_can_be_repeated() {
    let dir = tempfile::tempdir().expect("a directory");
    let names = with_two_names(dir.path(), b"old bytes");
    let (view, write_options, cancel) = (View::everything(), WriteOptions::default(), Cancel::new());
    let target = WriteTarget::resolve(&view, &names[0], Links::Follow).expect("find");
    let existing = target.existing().expect("open").expect("it is there");
    // The new bytes can be written but not read, so the copy fails only after it has begun.
    fs::write(dir.path().join("new"), b"new").expect("write");
    let unreadable = fs::OpenOptions::new().write(true).open(dir.path().join("new")).expect("open");
    let mut begun = false;
    let in_place_write =
        InPlaceWrite::prepare(&target, &existing, &write_options, &cancel).expect("nothing is against it");
    in_place_write.copy(&unreadable, &mut begun).expect_err("it cannot be read");
    assert!(begun);
    let mut begun = false;
    let in_place_write =
        InPlaceWrite::prepare(&target, &existing, &write_options, &cancel).expect("the locks are free again");
    let new = fs::File::open(dir.path().join("new")).expect("open");
    assert_eq!(in_place_write.copy(&new, &mut begun).expect("it can be read").size, 3);
    assert_eq!(fs::read(&names[1]).expect("it is there"), b"new");
}

#[test]
fn holes_of_a_draft_replace_the_bytes_of_the_old_file() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let names = with_two_names(dir.path(), &vec![b'o'; 6 << 20]);
    let (view, write_options, cancel) = (View::everything(), WriteOptions::default(), Cancel::new());
    for size in [4 * MIB, 9 * MIB] {
        let mut draft = Draft::create(&view, &names[0], Links::Follow, None).expect("a draft");
        draft.write_block(MIB, b"a").expect("a block");
        draft.write_block(3 * MIB, b"z").expect("a block");
        assert!(!draft.commit(Some(size), &write_options, &cancel).expect("commit").atomic);
        let mut expected = vec![0; usize::try_from(size).expect("small")];
        (expected[1 << 20], expected[3 << 20]) = (b'a', b'z');
        assert!(fs::read(&names[1]).expect("it is there") == expected, "{size}");
        fs::File::options()
            .write(true)
            .open(&names[0])
            .and_then(|file| file.write_all_at(&vec![b'o'; 6 << 20], 0))
            .expect("write");
    }
}

#[test]
fn a_kept_draft_has_its_name_despite_a_concurrent_cleanup() {
    let dir = tempfile::tempdir().expect("a directory");
    let (view, path, done) = (View::everything(), dir.path().join("file"), AtomicBool::new(false));
    let target = WriteTarget::resolve(&view, &path, Links::Refuse).expect("find");
    thread::scope(|scope| {
        scope.spawn(|| {
            let name = target.kept_name("word");
            while !done.load(Ordering::Relaxed) {
                leftovers::remove_if_abandoned(target.dir.as_fd(), &name);
            }
        });
        let lost = (0..5_000).find(|_| {
            // `create` may return `Busy` while the other thread holds the lock.
            let draft = Draft::create(&view, &path, Links::Refuse, Some("word"));
            draft.is_ok_and(|draft| draft.file().and_then(|file| Stat::of(file.as_fd())).expect("look").links == 0)
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(lost, None);
    });
}
