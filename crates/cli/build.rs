//! Packs the relative relocations of the program. Unpacked, they are two thirds of a megabyte that every start would read.
//!
//! The dynamic loader must support packed relocations; glibc does since 2.36. So the flag is passed only for a native build on a machine
//! with such a glibc, and only for binaries.

#![expect(
    clippy::disallowed_methods,
    reason = "a build script gets its input in variables, and starts `getconf` without a holder"
)]

use std::{env, process::Command};

/// The first glibc that supports packed relocations.
const FIRST_WITH_PACKED: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_native = env::var("TARGET").is_ok_and(|target| env::var("HOST").is_ok_and(|host| host == target));
    let is_glibc = env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    if is_native && is_glibc && glibc().is_some_and(|version| version >= FIRST_WITH_PACKED) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The glibc version of this machine, which `getconf` prints as `glibc 2.36`.
fn glibc() -> Option<(u32, u32)> {
    let printed = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let printed = String::from_utf8(printed.stdout).ok()?;
    let (major, minor) = printed.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
