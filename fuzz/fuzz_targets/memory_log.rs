//! Gives what libFuzzer makes up to the target of this name in `crates/fuzzed`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exec_server_fuzzed::memory_log::check(data));
