//! What most tests of this program use. A name that only a few of them use is imported where it is used.

pub(crate) use std::{sync::Arc, time::Duration};

pub(crate) use futures_util::future::join_all;
pub(crate) use serde_json::{Value, json};
pub(crate) use tokio::time::Instant;

pub(crate) use crate::{
    Door, Kind, Peer, SESSION, both, collect, connect, connect_by, connect_with, during, error_kind, is_connected,
    is_pending, lost, named, next,
    peer::{CURRENT, read_result},
    running, running_two, settle, start, take, until, within,
};
pub(crate) use exec_server_client::{
    Attach, Client, ConnectionState, Error, ErrorKind, Event, Process,
    protocol::{base64, failure::Kind as Word},
};
