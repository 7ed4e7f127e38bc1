//! What most tests of this program use. A name that only a few of them use is imported where it is used.

pub(crate) use std::os::fd::AsFd;

pub(crate) use crate::support::{HolderRig, MIB, MS, open_dir, pattern, shell, spec};
pub(crate) use exec_server_holder::{
    HolderConfig, HolderLimits,
    control::{CommandStatus, FromHolder, OverflowPolicy, StartSpec, TTL_NONE, ToHolder, WriteStatus},
};
pub(crate) use exec_server_process::{ScriptDriver, TerminalSize};
