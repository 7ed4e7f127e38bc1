//! What most files of this tool use. A name that only a few of them use is imported where it is used.

pub(crate) use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::{BufRead as _, Read as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

pub(crate) use anyhow::{Context, Result, bail, ensure};
pub(crate) use base64::{Engine as _, engine::general_purpose::STANDARD};
pub(crate) use serde_json::{Value, json};

pub(crate) use crate::{
    FaultSetting, Figures, descendants,
    figures::{self, percentile},
    parallel_runs,
    producer_load::{ProducerLoad, is_lost},
    resource_level::ResourceLevel,
    slow_reader::Neighbour,
};
pub(crate) use exec_server_chaos::{Event, Plan, Proxy};
pub(crate) use exec_server_harness::{
    Random,
    environment::{try_until, wait_until},
    records::{self, RECORD, Records},
    server::{Server, Setup},
    wire::{self, CallError, ServerAddress, ServerMessage, WireClient, hello},
};
pub(crate) use exec_server_workspace::processes;
