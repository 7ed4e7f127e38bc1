//! `exec-server cp -r` into existing directories: which attributes they keep, where a copy goes after an interrupted one, and trees that
//! would be copied into themselves. The attributes of files are tested in `cp`.

use std::time::SystemTime;

use crate::{
    commands::{
        cp::{World, remote},
        tree_helpers::{hidden, make_tree, same, same_inside},
    },
    prelude::*,
};

/// A tree that is large enough to interrupt its copy.
fn make_large_tree(world: &World) -> PathBuf {
    let tree = world.here("tree");
    make_tree(&tree, 14);
    make_large(&tree);
    tree
}

/// A file that is large enough to interrupt its copy.
fn make_large(tree: &Path) {
    fs::write(tree.join("large"), pattern(0, 12 << 20)).expect("write");
}

/// Kills a copy once a part of a large file exists, and kills its server, so that no more data arrives.
fn interrupt(world: &mut World, args: &[&str], target: &Path) {
    let mut child = spawn(&mut world.cp(args));
    let is_part = |path: &PathBuf| path.extension().is_some_and(|end| end == "part");
    wait_for("a part of a file", || target.is_dir() && hidden(target).iter().any(is_part));
    child.kill().expect("kill it");
    child.wait().expect("it ends");
    world.server.restart();
}

#[test]
fn a_mark_that_was_left_leads_only_the_same_copy_to_the_same_directory() {
    let mut world = World::new();
    let tree = make_large_tree(&world);
    // The target of an interrupted copy was removed and created again: it is treated as any other directory.
    let copy = world.there("copy");
    interrupt(&mut world, &["-r", "tree", ":copy"], &copy);
    fs::remove_dir_all(&copy).expect("remove");
    fs::create_dir(&copy).expect("make a directory");
    fs::remove_file(tree.join("large")).expect("remove");
    world.ok(&["-r", "tree", ":copy"]);
    same(&tree, &copy.join("tree"));
    assert!(!copy.join("script").exists());
    // A copy of the contents (`tree/.`) was interrupted; a copy of the directory itself is a different copy.
    let dots = world.there("dots");
    fs::create_dir(&dots).expect("make a directory");
    make_large(&tree);
    interrupt(&mut world, &["-r", "tree/.", ":dots"], &dots);
    fs::remove_file(tree.join("large")).expect("remove");
    world.ok(&["-r", "tree", ":dots"]);
    same(&tree, &dots.join("tree"));
    // First into a directory, and then into the directory that this created.
    let around = world.there("around");
    fs::create_dir(&around).expect("make a directory");
    make_large(&tree);
    interrupt(&mut world, &["-r", "tree", ":around"], &around.join("tree"));
    world.ok(&["-r", "tree", ":around/tree"]);
    same(&tree, &around.join("tree/tree"));
    fs::remove_dir_all(around.join("tree/tree")).expect("remove");
    // The original command continues where it was interrupted and completes.
    world.ok(&["-r", "tree", ":around"]);
    same_inside(&tree, &around.join("tree"));
    assert_eq!(hidden(&around), Vec::<PathBuf>::new());
}

#[test]
fn existing_directories_keep_mode_and_time_also_when_a_copy_continues() {
    let mut world = World::new();
    let tree = make_large_tree(&world);
    let target = world.there("target");
    fs::create_dir_all(target.join("empty")).expect("make a directory");
    fs::create_dir(target.join("d0")).expect("make a directory");
    fs::write(target.join("d1"), "secret").expect("write");
    for (name, mode) in [("", 0o3771), ("empty", 0o751), ("d0", 0o711), ("d1", 0o600)] {
        set_mode(target.join(name), mode);
    }
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for name in ["empty", "d1"] {
        fs::File::open(target.join(name)).expect("open").set_modified(then).expect("set the time");
    }
    interrupt(&mut world, &["-r", "tree/.", ":target"], &target);
    // Create a directory after the mark, as if before the interruption, unless the copy has created it already.
    fs::create_dir_all(target.join("d2/e")).expect("make the directories");
    let (stderr, code) = world.run(&["-r", "tree/.", ":target"]);
    assert_eq!((stderr.lines().count(), code), (2, Some(1)), "{stderr}");
    assert!(stderr.contains("target/d1` is not a directory"), "{stderr}");
    let modes = ["", "empty", "d0", "d1"].map(|name| mode_of(target.join(name)));
    assert_eq!(modes, [0o3771, 0o751, 0o711, 0o600]);
    for name in ["empty", "d1"] {
        assert_eq!(fs::metadata(target.join(name)).and_then(|found| found.modified()).expect("a time"), then, "{name}");
    }
    for made in ["d0/e", "d2", "d2/e"] {
        let [from, to] = [&tree, &target].map(|root| fs::metadata(root.join(made)).expect("it is there"));
        let group = if made == "d0/e" { 0 } else { 0o2000 };
        assert_eq!(to.mode() & 0o7777, from.mode() & 0o7777 | group, "{made}");
        assert_eq!((to.mtime(), to.mtime_nsec()), (from.mtime(), from.mtime_nsec()), "{made}");
    }
}

#[test]
fn a_tree_is_not_copied_into_itself_through_a_server_of_the_same_host() {
    let world = World::new();
    let tree = world.here("tree");
    make_tree(&tree, 14);
    fs::create_dir(tree.join("there")).expect("make a directory");
    let before = fs::read_dir(&tree).expect("list").count();
    let pairs = [
        ("tree", "tree/sub"),
        ("tree", "tree"),
        ("tree/.", "tree"),
        ("tree/.", "tree/there"),
        ("tree", "tree/d0/e"),
        (".", "tree/sub"),
    ];
    for (source, target) in pairs {
        let (stderr, code) = world.run(&["-r", source, &remote(&world.here(target))]);
        assert_eq!(code, Some(1), "{target}: {stderr}");
        assert!(stderr.contains("cannot be copied to itself or below itself"), "{target}: {stderr}");
        assert_eq!((hidden(&tree), fs::read_dir(&tree).expect("list").count()), (Vec::new(), before), "{target}");
        assert_eq!(stderr.lines().count(), 1, "{target}: {stderr}");
    }
    // A copy to a sibling directory is allowed.
    world.ok(&["-r", "tree/d0", &remote(&world.here("tree/d9"))]);
    same(&tree.join("d0"), &tree.join("d9"));
}
