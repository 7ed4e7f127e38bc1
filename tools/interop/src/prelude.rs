//! What most files of this tool use. A name that only a few of them use is imported where it is used.

pub(crate) use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

pub(crate) use anyhow::{Context, Result, ensure};
pub(crate) use rustix::process::Signal;
pub(crate) use serde_json::{Value, json};

pub(crate) use exec_server_harness::{
    environment::{self, Environment, wait_until},
    remote_host::RemoteHost,
    server::Setup,
};
pub(crate) use exec_server_workspace::{cargo, packages, processes};
