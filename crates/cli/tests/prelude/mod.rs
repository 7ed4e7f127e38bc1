//! What most tests of this program use. A name that only a few of them use is imported where it is used.

pub(crate) use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub(crate) use rustix::process::Signal;
pub(crate) use serde_json::{Value, json};
pub(crate) use sha2::{Digest as _, Sha256};
pub(crate) use tempfile::TempDir;
pub(crate) use tungstenite::Message;

pub(crate) use crate::{
    commands::Home,
    promises::{
        host_helpers::NOBODY,
        sandbox_helpers::{confined, sandbox},
        token_helpers, upgrade,
    },
};
pub(crate) use testkit::*;
