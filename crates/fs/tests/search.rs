//! Searching and globbing real trees: ignore rules, limits, unusual names, and changes during the search.
#![allow(clippy::disallowed_methods, reason = "tests measure real time")]

use std::{
    ffi::OsStr,
    fs,
    io::Write as _,
    ops::ControlFlow,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use exec_server_fs::{
    ErrorCategory, FileKind, PathPattern, Patterns, Stop, View, glob,
    scan::{ScanCut, ScanFilter},
    search::{self, PatternOptions, SearchLimits, SearchLine, SearchPattern, SearchRequest, SearchSummary},
};
use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::TempDir;

fn filter() -> ScanFilter {
    ScanFilter {
        hidden: false,
        ignore_rules: true,
        rules_above: true,
        include: Patterns::default(),
        exclude: Patterns::default(),
        max_depth: 64,
        max_entries: 1_000_000,
    }
}

fn limits() -> SearchLimits {
    SearchLimits {
        context: (0, 0),
        max_matches: 1000,
        max_per_file: None,
        max_line_bytes: 1024,
        max_file_bytes: 1 << 30,
        max_result_bytes: 4 << 20,
    }
}

fn run(
    path: &Path,
    pattern: &str,
    filter: &ScanFilter,
    limits: &SearchLimits,
    stop: &Stop,
) -> (Vec<SearchLine>, SearchSummary) {
    let pattern = SearchPattern::new(pattern, PatternOptions::default()).expect("the tree can be made and searched");
    let mut lines = Vec::new();
    let request = SearchRequest { path, pattern: &pattern, filter, limits };
    let outcome = search::search(&View::everything(), request, stop, &mut |line| {
        lines.push(line);
        ControlFlow::Continue(())
    });
    (lines, outcome.expect("the tree can be made and searched"))
}

fn find(path: &Path, pattern: &str) -> (Vec<SearchLine>, SearchSummary) {
    run(path, pattern, &filter(), &limits(), &Stop::new())
}

fn put(dir: &TempDir, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().expect("a file lies in a directory")).expect("the tree can be made and searched");
    fs::write(&path, content).expect("the tree can be made and searched");
    path
}

fn names(dir: &TempDir, lines: &[SearchLine]) -> Vec<String> {
    lines
        .iter()
        .map(|line| {
            line.path
                .strip_prefix(dir.path())
                .expect("the tree can be made and searched")
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

#[test]
fn a_match_is_reported_with_its_line_offset_and_context() {
    let dir = TempDir::new().unwrap();
    let path = put(&dir, "a/b.txt", "one\ntwo needle needle\r\nthree\nfour\n");
    let limits = SearchLimits { context: (1, 1), ..limits() };
    let (lines, outcome) = run(dir.path(), "needle", &filter(), &limits, &Stop::new());
    let reported: Vec<(u64, u64, &[u8], bool)> =
        lines.iter().map(|line| (line.number, line.offset, line.text.as_slice(), line.is_context)).collect();
    assert_eq!(
        reported,
        [(1, 0, b"one".as_slice(), true), (2, 4, b"two needle needle", false), (3, 23, b"three", true)]
    );
    assert_eq!((lines[1].path.clone(), lines[1].spans.clone()), (path, vec![(4, 10), (11, 17)]));
    assert_eq!((outcome.matches, outcome.matched_files, outcome.files, outcome.bytes), (1, 1, 1, 34));
    assert!(outcome.scan.cuts.is_empty());
}

#[test]
fn ignore_files_hidden_names_and_patterns_apply_unless_switched_off() {
    let dir = TempDir::new().unwrap();
    for name in
        ["a.rs", "a.log", "keep.log", "target/x", "sub/a.log", "sub/own", ".hid/x", ".git/config", "sub/deep/not"]
    {
        put(&dir, name, "needle\n");
    }
    put(&dir, ".gitignore", "*.log\n!keep.log\n/target\n");
    put(&dir, "sub/.ignore", "own\n# a comment\nbroken[\n");
    put(&dir, ".git/info/exclude", "deep\n");
    let (lines, _) = find(dir.path(), "needle");
    assert_eq!(names(&dir, &lines), ["a.rs", "keep.log"]);
    // Ignore rules of the repository also apply to a search that starts below its top.
    let (lines, _) = find(&dir.path().join("sub"), "needle");
    assert_eq!(names(&dir, &lines), [] as [&str; 0]);
    let alone = ScanFilter { rules_above: false, ..filter() };
    let (lines, _) = run(&dir.path().join("sub"), "needle", &alone, &limits(), &Stop::new());
    assert_eq!(names(&dir, &lines), ["sub/a.log", "sub/deep/not"]);
    let all = ScanFilter { hidden: true, ignore_rules: false, ..filter() };
    let (lines, _) = run(dir.path(), "needle", &all, &limits(), &Stop::new());
    assert_eq!(lines.len(), 9);
    let some = ScanFilter {
        include: Patterns::anywhere(&["*.log".into()]).unwrap(),
        exclude: Patterns::anywhere(&["/sub".into()]).unwrap(),
        ..all
    };
    let (lines, _) = run(dir.path(), "needle", &some, &limits(), &Stop::new());
    assert_eq!(names(&dir, &lines), ["a.log", "keep.log"]);
}

#[test]
fn binary_files_are_skipped_and_counted() {
    let dir = TempDir::new().unwrap();
    put(&dir, "binary", b"needle\0needle\n");
    let mut late = b"needle\n".repeat(20_000);
    late.extend(b"\0\nneedle\n");
    put(&dir, "late", late);
    put(&dir, "text", "needle \u{e9}\n");
    let limits = SearchLimits { max_matches: 1_000_000, ..limits() };
    let (lines, outcome) = run(dir.path(), "needle", &filter(), &limits, &Stop::new());
    assert_eq!(outcome.binary, 2);
    assert!(names(&dir, &lines).iter().all(|name| name != "binary"));
    assert_eq!(names(&dir, &lines).iter().filter(|name| *name == "text").count(), 1);
}

#[test]
fn names_of_any_bytes_are_reported_unchanged() {
    let dir = TempDir::new().unwrap();
    for name in [b"new\nline".as_slice(), b"\xff\xfe.txt", b" space ", b"-dash", b"qu\"ote'", b"\x01"] {
        put(&dir, OsStr::from_bytes(name), "needle\n");
    }
    put(&dir, Path::new(OsStr::from_bytes(b"dir\xff\n")).join("inner"), b"\xffneedle\xfe\n");
    let (lines, outcome) = find(dir.path(), "needle");
    assert_eq!((lines.len(), outcome.scan.error_count), (7, 0));
    let inner = lines.iter().find(|line| line.path.ends_with("inner")).unwrap();
    assert_eq!(inner.path.parent().unwrap().file_name().unwrap().as_bytes(), b"dir\xff\n");
    assert_eq!(inner.text, b"\xffneedle\xfe");
    let limits = glob::GlobLimits { max_results: 100, max_result_bytes: 1 << 20 };
    let pattern = PathPattern::new("*.txt").unwrap();
    let request = glob::GlobRequest { path: dir.path(), pattern: &pattern, filter: &filter(), limits };
    let (found, _) = glob::glob(&View::everything(), request, &Stop::new()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].path.file_name().unwrap().as_bytes(), b"\xff\xfe.txt");
}

#[test]
fn links_fifos_and_kernel_files_are_not_followed_and_do_not_block() {
    let dir = TempDir::new().unwrap();
    let outside = TempDir::new().unwrap();
    put(&outside, "secret", "needle\n");
    put(&dir, "here", "needle\n");
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), dir.path().join("file-link")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    symlink("..", dir.path().join("up")).unwrap();
    symlink("/proc", dir.path().join("proc")).unwrap();
    mkfifoat(CWD, dir.path().join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    let (lines, outcome) = find(dir.path(), "needle");
    assert_eq!(names(&dir, &lines), ["here"]);
    assert_eq!((outcome.scan.special, outcome.scan.error_count), (1, 0));
    // A directory of /proc is not entered. A file of /proc or a FIFO is refused. None of them blocks.
    let (lines, outcome) = find(Path::new("/proc/self"), "a");
    assert_eq!((lines.len(), outcome.scan.special, outcome.files), (0, 1, 0));
    let pattern = SearchPattern::new("x", PatternOptions::default()).unwrap();
    for path in [&dir.path().join("fifo"), Path::new("/proc/self/environ")] {
        let request = SearchRequest { path, pattern: &pattern, filter: &filter(), limits: &limits() };
        let refused = search::search(&View::everything(), request, &Stop::new(), &mut |_| ControlFlow::Continue(()));
        assert_eq!(refused.unwrap_err().category(), ErrorCategory::NotRegular, "{path:?}");
    }
}

#[test]
fn every_limit_cuts_the_result_and_is_reported() {
    let dir = TempDir::new().unwrap();
    for at in 0..20 {
        put(&dir, format!("d/e/{at:02}"), "needle\nneedle\n");
    }
    let cut = |filter: ScanFilter, limits: SearchLimits, stop: Stop| {
        let (lines, outcome) = run(dir.path(), "needle", &filter, &limits, &stop);
        (lines.len(), outcome.scan.cuts)
    };
    assert_eq!(cut(filter(), limits(), Stop::new()), (40, vec![]));
    assert_eq!(cut(filter(), SearchLimits { max_matches: 40, ..limits() }, Stop::new()), (40, vec![]));
    assert_eq!(cut(filter(), SearchLimits { max_matches: 39, ..limits() }, Stop::new()), (39, vec![ScanCut::Results]));
    assert_eq!(cut(filter(), SearchLimits { max_per_file: Some(1), ..limits() }, Stop::new()), (20, vec![]));
    assert_eq!(cut(ScanFilter { max_depth: 2, ..filter() }, limits(), Stop::new()), (0, vec![ScanCut::Depth]));
    assert_eq!(cut(ScanFilter { max_entries: 12, ..filter() }, limits(), Stop::new()), (20, vec![ScanCut::Entries]));
    assert_eq!(cut(filter(), limits(), Stop::within(Duration::ZERO)), (0, vec![ScanCut::Time]));
    let stop = Stop::new();
    stop.cancel();
    assert_eq!(cut(filter(), limits(), stop), (0, vec![ScanCut::Cancelled]));
    let (some, cuts) = cut(filter(), SearchLimits { max_result_bytes: 1000, ..limits() }, Stop::new());
    assert!((1..20).contains(&some) && cuts == [ScanCut::Bytes], "{some} {cuts:?}");
    put(&dir, "large", "needle".repeat(100));
    let (_, outcome) = run(dir.path(), "x", &filter(), &SearchLimits { max_file_bytes: 100, ..limits() }, &Stop::new());
    assert_eq!((outcome.large, outcome.files), (1, 20));
}

#[test]
fn a_long_line_is_cut_around_its_match_and_an_endless_one_costs_no_memory() {
    let dir = TempDir::new().unwrap();
    let mut line = "\u{e9}".repeat(50_000);
    line.push_str("needle");
    line.push_str(&"y".repeat(100_000));
    put(&dir, "long", &line);
    let (lines, _) = find(dir.path(), "needle");
    let [reported] = lines.as_slice() else { panic!("{}", lines.len()) };
    assert!(reported.text.len() <= 1024 && reported.bytes == line.len() && reported.skipped > 99_000);
    let (from, to) = reported.spans[0];
    assert_eq!(&reported.text[from..to], b"needle");
    assert!(std::str::from_utf8(&reported.text).is_ok(), "characters are not cut");
    put(&dir, "long", vec![b'x'; 40 << 20]);
    let (lines, outcome) = find(dir.path(), "needle");
    assert_eq!((lines.len(), outcome.long_lines, outcome.scan.error_count), (0, 1, 0));
}

#[test]
fn a_search_of_a_hundred_thousand_entries_can_be_cancelled_at_once() {
    let dir = TempDir::new().unwrap();
    for at in 0..100_000 {
        let name = dir.path().join(format!("{at:06}.txt"));
        fs::File::create(name).unwrap().write_all(if at % 1000 == 0 { b"needle\n" } else { b"hay\n" }).unwrap();
    }
    let (lines, outcome) = find(dir.path(), "needle");
    assert_eq!((lines.len(), outcome.files, outcome.scan.entries), (100, 100_000, 100_000));
    assert_eq!(lines[99].path.file_name().unwrap(), "099000.txt", "in the order of names");
    let glob_limits = glob::GlobLimits { max_results: 200_000, max_result_bytes: 64 << 20 };
    let pattern = PathPattern::new("*9.txt").unwrap();
    let request = glob::GlobRequest { path: dir.path(), pattern: &pattern, filter: &filter(), limits: glob_limits };
    let (found, _) = glob::glob(&View::everything(), request, &Stop::new()).unwrap();
    assert_eq!(found.len(), 10_000);
    assert!(found.iter().all(|named| named.kind == FileKind::File && named.size == 4));
    let (lines, outcome) = {
        let (stop, mut count) = (Stop::new(), 0);
        let pattern = SearchPattern::new("needle", PatternOptions::default()).unwrap();
        let request = SearchRequest { path: dir.path(), pattern: &pattern, filter: &filter(), limits: &limits() };
        let outcome = search::search(&View::everything(), request, &stop, &mut |_| {
            count += 1;
            stop.cancel();
            ControlFlow::Continue(())
        });
        (count, outcome.unwrap())
    };
    assert_eq!((lines, outcome.files, outcome.scan.cuts), (1, 1, vec![ScanCut::Cancelled]));
}

#[test]
fn a_search_never_leaves_a_tree_that_is_replaced_by_links_meanwhile() {
    let dir = TempDir::new().unwrap();
    let outside = TempDir::new().unwrap();
    put(&outside, "secret", "needle\n");
    put(&outside, "x/secret", "needle\n");
    let over = Arc::new(AtomicBool::new(false));
    let racer = {
        let (over, base, outside) = (over.clone(), dir.path().to_owned(), outside.path().to_owned());
        thread::spawn(move || {
            let mut turns = 0_u32;
            while !over.load(Ordering::Relaxed) {
                let sub = base.join("sub");
                fs::create_dir_all(sub.join("x")).unwrap();
                fs::write(sub.join("x/file"), "hay\n").unwrap();
                fs::remove_dir_all(&sub).unwrap();
                symlink(&outside, &sub).unwrap();
                fs::remove_file(&sub).unwrap();
                fs::create_dir(&sub).unwrap();
                symlink(outside.join("secret"), sub.join("file")).unwrap();
                fs::remove_dir_all(&sub).unwrap();
                turns += 1;
            }
            turns
        })
    };
    let until = Instant::now() + Duration::from_secs(2);
    let mut searches = 0;
    while Instant::now() < until {
        let (lines, _) = find(dir.path(), "needle");
        assert!(lines.is_empty(), "{lines:?}");
        searches += 1;
    }
    over.store(true, Ordering::Relaxed);
    let turns = racer.join().unwrap();
    assert!(turns > 10 && searches > 10, "{turns} {searches}");
}

#[test]
fn a_search_stays_beneath_its_view_and_reports_a_missing_path() {
    let (dir, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    put(&dir, "repo/.gitignore", "*\n");
    put(&dir, "repo/.git/HEAD", "");
    let inside = put(&dir, "repo/sub/file", "needle\n");
    put(&outside, "file", "needle\n");
    let pattern = SearchPattern::new("needle", PatternOptions::default()).unwrap();
    let find = |view: &View, path: &Path| {
        let request = SearchRequest { path, pattern: &pattern, filter: &filter(), limits: &limits() };
        let mut lines = Vec::new();
        let outcome = search::search(view, request, &Stop::new(), &mut |line| {
            lines.push(line.path);
            ControlFlow::Continue(())
        });
        outcome.map(|_| lines).map_err(|error| error.category())
    };
    let sub = inside.parent().unwrap();
    let view = View::beneath([sub]);
    // The search does not apply ignore rules from outside its view either.
    assert_eq!(find(&View::everything(), sub), Ok(vec![]));
    assert_eq!(find(&view, sub), Ok(vec![inside.clone()]));
    assert_eq!(find(&view, outside.path()), Err(ErrorCategory::OutsideView));
    assert_eq!(find(&view, &sub.join("none")), Err(ErrorCategory::NotFound));
    symlink(outside.path(), sub.join("link")).unwrap();
    assert_eq!(find(&view, &sub.join("link")), Err(ErrorCategory::OutsideView));
}

#[test]
fn an_invalid_expression_is_an_error() {
    for (pattern, options) in [("(", PatternOptions::default()), ("a\nb", PatternOptions::default())] {
        assert!(SearchPattern::new(pattern, options).is_err(), "{pattern:?}");
    }
    assert!(SearchPattern::new("(", PatternOptions { literal: true, ..PatternOptions::default() }).is_ok());
    assert!(SearchPattern::new(&"x".repeat(10_000), PatternOptions::default()).is_err());
    assert!(SearchPattern::new("((a{100}){100}){100}", PatternOptions::default()).is_err());
}
