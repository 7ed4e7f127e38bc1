//! Runs every fuzz target on its committed corpus, with stable Rust. Each file was once interesting to the fuzzer, or caused a crash.

use std::{fs, path::PathBuf};

use exec_server_fuzzed::TARGETS;

/// Maximum total size of the corpus, because it is part of the repository.
const CORPUS_MAX_BYTES: u64 = 1 << 20;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn every_target_passes_its_corpus() {
    let mut bytes = 0;
    for (name, check) in TARGETS {
        let mut files: Vec<PathBuf> =
            fs::read_dir(corpus().join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 5, "the corpus of `{name}` has {} files", files.len());
        for file in files {
            let data = fs::read(&file).unwrap();
            bytes += data.len() as u64;
            if let Err(panic) = std::panic::catch_unwind(|| check(&data)) {
                println!("broken by {}", file.display());
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(bytes <= CORPUS_MAX_BYTES, "the corpus has {bytes} bytes");
}

#[test]
fn every_corpus_and_every_program_has_a_target() {
    let names = |path: PathBuf| -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let mut targets: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    targets.sort_unstable();
    assert_eq!(names(corpus()), targets);
    assert_eq!(names(corpus().join("../fuzz_targets")), targets);
}

#[test]
fn a_target_can_fail() {
    // A check that can never fail proves nothing. Here the line is too long for the receiver, but not for the model, so the comparison must
    // fail.
    let broken = std::panic::catch_unwind(|| exec_server_fuzzed::lines::check_against(1, 3, b"abc\n"));
    assert!(broken.is_err());
}
