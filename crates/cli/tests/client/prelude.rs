//! What most tests of this program use. A name that only a few of them use is imported where it is used.

pub(crate) use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

pub(crate) use tempfile::TempDir;
pub(crate) use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(crate) use crate::{
    Place, Proxy, assert_same, bounded, client_of, follow, output_until, pattern, sh, soon, spell, tell, until,
};
pub(crate) use exec_server_client::{
    Client, ConnectionState, Error, ErrorKind, Event, Process, Start,
    fs::{FileErrorKind, RemoteFiles},
    protocol::{
        failure::Kind,
        process::{Cause, Scope, WriteStatus},
    },
};
pub(crate) use testkit::*;
