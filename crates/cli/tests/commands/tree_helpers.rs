//! Directory trees for tests of copies: creates and compares them.

use std::{os::unix::fs::FileExt as _, time::SystemTime};

use crate::prelude::*;

/// Creates a tree with `files` small files, and one example of every attribute that a copy keeps.
pub(crate) fn make_tree(root: &Path, files: u64) {
    fs::create_dir_all(root.join("empty")).expect("make a directory");
    for file in 0..files {
        let dir = root.join(format!("d{}", file % 7)).join("e");
        fs::create_dir_all(&dir).expect("make a directory");
        let text = format!("{file}\n").repeat(usize::try_from(file % 50).expect("small"));
        fs::write(dir.join(format!("f{file}")), text).expect("write");
    }
    fs::write(root.join("script"), "#!/bin/sh\n").expect("write");
    set_mode(root.join("script"), 0o751);
    set_mode(root.join("empty"), 0o500);
    fs::write(root.join(OsStr::from_bytes(b"not utf-8 \xff\xfe")), "x").expect("write");
    fs::write(root.join("line\nend"), "y").expect("write");
    symlink("script", root.join("link")).expect("make a link");
    symlink("nowhere", root.join("dangling")).expect("make a link");
    symlink(OsStr::from_bytes(b"\xff"), root.join("odd link")).expect("make a link");
    let holes = File::create(root.join("holes")).expect("create");
    holes.write_all_at(&[1; 70_000], 0).expect("write");
    holes.write_all_at(&[2; 70_000], 5 << 20).expect("write");
    holes.set_len(12 << 20).expect("a hole at the end");
    fs::write(root.join("two blocks"), vec![7; 2 << 20]).expect("write");
    set_times(root, &mut 1);
}

fn set_times(path: &Path, count: &mut u64) {
    let found = fs::symlink_metadata(path).expect("it is there");
    if found.is_symlink() {
        return;
    }
    if found.is_dir() {
        for entry in fs::read_dir(path).expect("list") {
            set_times(&entry.expect("an entry").path(), count);
        }
    }
    *count += 1;
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + *count * 3600, 123_456_789);
    File::open(path).expect("open").set_modified(then).expect("set the time");
}

/// Checks that two trees are equal in everything that a copy keeps.
pub(crate) fn same(left: &Path, right: &Path) {
    let (a, b) = (fs::symlink_metadata(left).expect("it is there"), fs::symlink_metadata(right));
    let b = b.unwrap_or_else(|error| panic!("`{}`: {error}", right.display()));
    let facts = |found: &fs::Metadata| (found.file_type(), found.mode(), found.mtime(), found.mtime_nsec());
    assert_eq!(facts(&a), facts(&b), "{}", right.display());
    if a.is_symlink() {
        assert_eq!(fs::read_link(left).expect("a link"), fs::read_link(right).expect("a link"));
    } else if a.is_dir() {
        same_inside(left, right);
    } else {
        assert_eq!(hash(left), hash(right), "{}", right.display());
        let is_sparse = |found: &fs::Metadata| found.blocks() * 512 < found.len() / 2;
        assert_eq!(is_sparse(&a), is_sparse(&b), "holes of {}", right.display());
    }
}

/// Checks that the contents of two directories are equal in everything that a copy keeps.
pub(crate) fn same_inside(left: &Path, right: &Path) {
    let names = names(left);
    assert_eq!(names, self::names(right), "{}", right.display());
    for name in names {
        same(&left.join(&name), &right.join(&name));
    }
}

/// Checks that every visible file of an incomplete copy is complete.
pub(crate) fn whole_so_far(source: &Path, target: &Path) {
    let Ok(found) = fs::symlink_metadata(target) else { return };
    if found.is_dir() {
        for name in names(target) {
            if !is_hidden(Path::new(&name)) {
                whole_so_far(&source.join(&name), &target.join(&name));
            }
        }
    } else if found.is_file() {
        assert_eq!(hash(source), hash(target), "`{}` is seen and not whole", target.display());
    }
}

/// All hidden names of a copy, in a directory and below it.
pub(crate) fn hidden(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for name in names(dir) {
        let path = dir.join(&name);
        // The server's own directories, such as `exec-server`, have no leading dot and do not count.
        if is_hidden(Path::new(&name)) {
            all.push(path);
        } else if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            all.extend(hidden(&path));
        }
    }
    all
}

fn is_hidden(name: &Path) -> bool {
    let name = name.as_os_str().as_bytes();
    name.starts_with(b".exec-server-") || name.ends_with(b".exec-server-cp")
}

fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        fs::read_dir(dir).expect("list").map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    names
}

fn hash(path: &Path) -> String {
    format!("{:x}", Sha256::digest(fs::read(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))))
}
