//! Packs the relative relocations of the program: two thirds of a megabyte that every start would read.
//!
//! Done where the C library that is linked can read them, which glibc does since 2.36, and said to the linker of the program alone. A program
//! that is made elsewhere, or for elsewhere, is as it always was.

#![expect(
    clippy::disallowed_methods,
    reason = "a build script is told all that it knows by variables, and runs before there is a holder"
)]

use std::env;
use std::process::Command;

/// The first glibc that reads packed relocations.
const READS_PACKED: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_ours = env::var("TARGET").is_ok_and(|target| env::var("HOST").is_ok_and(|host| host == target));
    let is_glibc = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    if is_ours && is_glibc && glibc().is_some_and(|version| version >= READS_PACKED) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Which glibc this machine has: `getconf` says it as `glibc 2.36`.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
