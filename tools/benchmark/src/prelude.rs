//! What most files of this tool use. A name that only a few of them use is imported where it is used.

pub(crate) use std::{
    fs,
    io::Write as _,
    os::fd::OwnedFd,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

pub(crate) use anyhow::{Context, Result, bail, ensure};
pub(crate) use serde_json::{Value, json};

pub(crate) use crate::{
    BenchSetting,
    lean_client::{BenchSession, SessionMessage},
    lean_connection::BenchConnection,
    message::{MessageFormat, StartRequest},
    servers::BenchServers,
    ssh::Ssh,
    table::{BarOwner, Bars, BenchLane, Contest, FigureValues, Pair, Report, Row, median, micros},
};
pub(crate) use exec_server_harness::server::Setup;
