//! What most files of this crate use. A name that only a few of them use is imported where it is used.

pub(crate) use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    io,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

pub(crate) use exec_server_client::{
    Error,
    protocol::{failure::Kind, process as wire},
};
pub(crate) use exec_server_protocol::base64;
pub(crate) use exec_server_rpc::ByteStream;
pub(crate) use parking_lot::Mutex;
pub(crate) use serde_json::{Value, json};
pub(crate) use tokio::time::{Instant, sleep};

pub(crate) use crate::{
    branch::Branch,
    child::text,
    client::{AttachMode, ClientKind, ModelClient},
    context::WorldContext,
    link::{LinkQuality, SimLink},
    rng::Rng,
    server::{SESSION_TTL, SESSION_TTL_MS, Server},
    trace::{Invariant, Trace, violation},
    user::User,
    view::{Plan, ProcessView, StartState},
};
