//! Trees of files for tests of copies: created from a seed, and compared by everything that a copy keeps.
//!
//! A tree has many small files, modes, links, names that are not UTF-8, a file with holes, and a large one. This module shares no code with
//! the program, so that the comparison is independent of it.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};

use crate::Random;

/// Files in one directory of a tree.
const PER_DIRECTORY: u64 = 100;

/// Bytes written and compared at a time.
const BLOCK: usize = 1 << 20;

/// Creates a tree with this number of small files, and with a large file unless `large_bytes` is 0; the directory must not exist.
pub fn make(root: &Path, files: u64, large_bytes: u64, random: &mut Random) -> Result<()> {
    fs::create_dir(root)?;
    for first in (0..files).step_by(usize::try_from(PER_DIRECTORY)?) {
        let dir = root.join(format!("d{:02}", first / PER_DIRECTORY % 10)).join(format!("e{}", first / PER_DIRECTORY));
        fs::create_dir_all(&dir)?;
        for file in first..files.min(first + PER_DIRECTORY) {
            small(&dir.join(format!("f{file}")), random)?;
        }
        symlink(format!("f{first}"), dir.join("link"))?;
    }
    oddities(root, random)?;
    if large_bytes > 0 {
        large(&root.join("large"), large_bytes, random)?;
    }
    // Last, because creating an entry changes the time of its directory.
    set_times(root, random)
}

/// Creates a file of random bytes.
pub fn large(path: &Path, bytes: u64, random: &mut Random) -> Result<()> {
    let mut file = File::create(path)?;
    let mut block = vec![0; BLOCK];
    let mut left = bytes;
    while left > 0 {
        // One random number in every 4 KiB: no two pages are equal, and it is fast.
        for page in block.chunks_mut(4096) {
            page[..8].copy_from_slice(&random.next().to_le_bytes());
        }
        let len = usize::try_from(left.min(BLOCK as u64))?;
        file.write_all(&block[..len])?;
        left -= len as u64;
    }
    Ok(())
}

fn small(path: &Path, random: &mut Random) -> Result<()> {
    let len = usize::try_from(random.between(0, 8192))?;
    let word = random.next().to_le_bytes();
    fs::write(path, word.iter().copied().cycle().take(len).collect::<Vec<u8>>())?;
    if random.one_in(10) {
        let mode = [0o600, 0o755, 0o444, 0o640][usize::try_from(random.between(0, 4))?];
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn oddities(root: &Path, random: &mut Random) -> Result<()> {
    let dir = root.join("odd");
    fs::create_dir_all(dir.join("empty"))?;
    fs::create_dir_all(dir.join("a/b/c/d/e/f"))?;
    fs::write(dir.join(OsStr::from_bytes(b"not utf-8 \xff\xfe")), "x")?;
    fs::write(dir.join("line\nend"), "y")?;
    fs::write(dir.join("a/b/c/d/e/f/deep"), random.next().to_string())?;
    symlink("nowhere", dir.join("dangling"))?;
    symlink("/etc", dir.join("outside"))?;
    symlink(OsStr::from_bytes(b"\xff"), dir.join("link not utf-8"))?;
    let holes = File::create(dir.join("holes"))?;
    holes.write_all_at(&[1; 100_000], 0)?;
    holes.write_all_at(&[2; 100_000], 20 << 20)?;
    holes.set_len(64 << 20)?;
    fs::set_permissions(dir.join("empty"), fs::Permissions::from_mode(0o500))?;
    Ok(())
}

fn set_times(path: &Path, random: &mut Random) -> Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() {
        return Ok(());
    }
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            set_times(&entry?.path(), random)?;
        }
    }
    let nanos = random.between(1, 1_500_000_000_000_000_000);
    File::open(path)?.set_modified(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos))?;
    Ok(())
}

/// Compares two trees by everything that a copy keeps; returns the number of bytes compared.
pub fn compare(left: &Path, right: &Path) -> Result<u64> {
    let (a, b) = (fs::symlink_metadata(left)?, fs::symlink_metadata(right).with_context(|| shown(right))?);
    ensure!(a.file_type() == b.file_type(), "{} is of another type", shown(right));
    let (times, other) = ((a.mtime(), a.mtime_nsec()), (b.mtime(), b.mtime_nsec()));
    ensure!(times == other, "{} was changed at {other:?}, not {times:?}", shown(right));
    if a.is_symlink() {
        ensure!(fs::read_link(left)? == fs::read_link(right)?, "{} leads elsewhere", shown(right));
        return Ok(0);
    }
    ensure!(a.mode() & 0o7777 == b.mode() & 0o7777, "{} has mode {:o}", shown(right), b.mode());
    if a.is_dir() {
        let (names, other) = (names(left)?, names(right)?);
        ensure!(names == other, "{} has other names: {}", shown(right), difference(&names, &other));
        let mut bytes = 0;
        for name in &names {
            bytes += compare(&left.join(name), &right.join(name))?;
        }
        return Ok(bytes);
    }
    ensure!(a.len() == b.len(), "{} has {} bytes, not {}", shown(right), b.len(), a.len());
    let is_sparse = |found: &fs::Metadata| found.blocks() * 512 + (1 << 20) < found.len();
    let name = shown(right);
    ensure!(is_sparse(&a) == is_sparse(&b), "{name} has other holes: {} blocks, not {}", b.blocks(), a.blocks());
    same_bytes(left, right)?;
    Ok(a.len())
}

/// Checks that every visible file of an incomplete copy is complete. Our hidden names are skipped. Returns the number of visible files.
pub fn whole_so_far(source: &Path, target: &Path, bytes_too: bool) -> Result<u64> {
    let mut seen = 0;
    if !target.try_exists()? {
        return Ok(0);
    }
    for name in names(target)?.iter().filter(|name| !is_hidden(name)) {
        let (original, path) = (source.join(name), target.join(name));
        let a = fs::symlink_metadata(&original).with_context(|| format!("{} has no original", shown(&path)))?;
        let b = fs::symlink_metadata(&path)?;
        if b.is_dir() {
            seen += whole_so_far(&original, &path, bytes_too)?;
        } else if b.is_file() {
            ensure!(a.len() == b.len(), "{} is seen with {} of {} bytes", shown(&path), b.len(), a.len());
            if bytes_too {
                same_bytes(&original, &path)?;
            }
            seen += 1;
        }
    }
    Ok(seen)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".") && name.as_bytes().windows(11).any(|part| part == b"exec-server")
}

fn same_bytes(left: &Path, right: &Path) -> Result<()> {
    let (mut a, mut b) = (File::open(left)?, File::open(right)?);
    let (mut x, mut y) = (vec![0; BLOCK], vec![0; BLOCK]);
    loop {
        let got = a.read(&mut x)?;
        b.read_exact(&mut y[..got]).with_context(|| shown(right))?;
        ensure!(x[..got] == y[..got], "{} has other bytes", shown(right));
        if got == 0 {
            return Ok(());
        }
    }
}

fn names(dir: &Path) -> Result<BTreeSet<OsString>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect()
}

fn difference(left: &BTreeSet<OsString>, right: &BTreeSet<OsString>) -> String {
    let missing = left.difference(right).map(|name| format!("-{name:?}"));
    let added = right.difference(left).map(|name| format!("+{name:?}"));
    missing.chain(added).take(10).collect::<Vec<_>>().join(" ")
}

fn shown(path: &Path) -> String {
    format!("`{}`", path.display())
}
