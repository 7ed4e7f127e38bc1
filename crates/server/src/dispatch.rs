//! The table from methods to handlers, one line per method. The concurrency classes are in
//! `exec_server_protocol::method`.
//!
//! Decodes params and boxes the handler.

use std::pin::Pin;

use bytes::Bytes;
use exec_server_protocol::{message, method::Method};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    error::Failure,
    handlers::{self, RequestContext},
    pump::Reply,
};

/// A running request. When it ends, the answer is queued or another task holds its [`Reply`].
pub(crate) type RequestFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The params of a request, and its attached bytes.
pub(crate) type RawParams<'a> = (Option<&'a RawValue>, Option<Bytes>);

/// The handler of a request, ready to be polled. `None` if the params were invalid; the error is already sent.
pub(crate) fn call(
    context: RequestContext,
    method: &'static Method,
    (params, attached): RawParams<'_>,
    reply: Reply,
) -> Option<RequestFuture> {
    let request = DispatchRequest { context, params, reply };
    if attached.is_some() && !matches!(method.name, "fs/writeBlock" | "fs/writeFile") {
        let reason = format!("`{}` takes no attached bytes", method.name);
        request.reply.fail(&Failure::InvalidParams { reason });
        return None;
    }
    match method.name {
        "process/start" => request.run(handlers::process::start),
        "process/read" => request.run(handlers::process::read),
        "process/write" => request.run_borrowed(handlers::stdin::decode_write, handlers::stdin::write),
        "process/closeStdin" => request.run(handlers::stdin::close),
        "process/signal" => request.run(handlers::process::signal),
        "process/resize" => request.run(handlers::process::resize),
        "process/terminate" => request.run(handlers::process::terminate),
        "process/list" => request.run(handlers::list::list),
        "process/subscribe" => request.run(handlers::subscription::subscribe),
        "process/unsubscribe" => request.run(handlers::subscription::unsubscribe),
        "process/forget" => request.run(handlers::process::forget),
        "session/end" => request.run(handlers::session_end),
        "environment/info" => request.run(handlers::environment::info),
        "environment/status" => request.run(handlers::environment::status),
        "fs/readFile" => request.run(handlers::files::whole::read),
        "fs/writeFile" => {
            let decode = |params| handlers::files::whole::decode_write(params, attached);
            request.run_borrowed(decode, handlers::files::whole::write)
        }
        "fs/getMetadata" => request.run(handlers::files::whole::get_metadata),
        "fs/setMetadata" => request.run(handlers::files::whole::set_metadata),
        "fs/canonicalize" => request.run(handlers::files::whole::canonicalize),
        "fs/createDirectory" => request.run(handlers::files::tree::create_directory),
        "fs/readDirectory" => request.run(handlers::files::tree::read_directory),
        "fs/walk" => request.run(handlers::files::tree::walk),
        "fs/remove" => request.run(handlers::files::tree::remove),
        "fs/copy" => request.run(handlers::files::tree::copy),
        "fs/createSymlink" => request.run(handlers::files::tree::create_symlink),
        "fs/open" => request.run(handlers::files::block::open),
        "fs/readBlock" => request.run(handlers::files::block::read),
        "fs/close" => request.run(handlers::files::block::close),
        "fs/create" => request.run(handlers::files::block::create),
        "fs/writeBlock" => {
            let decode = |params| handlers::files::block::decode_write(params, attached);
            request.run_borrowed(decode, handlers::files::block::write)
        }
        "fs/commit" => request.run(handlers::files::block::commit),
        "fs/search" => request.run(handlers::files::search_and_watch::search),
        "fs/searchNext" => request.run(handlers::files::search_and_watch::search_next),
        "fs/glob" => request.run(handlers::files::search_and_watch::glob),
        "fs/watch" => request.run(handlers::files::search_and_watch::watch),
        "fs/watchNext" => request.run(handlers::files::search_and_watch::watch_next),
        "http/request" => request.run_borrowed(handlers::http::decode, handlers::http::request),
        "http/cancel" => request.run(handlers::http::cancel),
        "command/exec" => request.run(handlers::command::exec),
        "command/exec/write" => request.run_borrowed(handlers::stdin::decode_command_write, handlers::stdin::write),
        "command/exec/terminate" => request.run(handlers::command::terminate),
        unserved => {
            request.reply.fail(&Failure::UnknownMethod { method: unserved.to_owned() });
            None
        }
    }
}

struct DispatchRequest<'a> {
    context: RequestContext,
    params: Option<&'a RawValue>,
    reply: Reply,
}

impl<'a> DispatchRequest<'a> {
    /// Runs a handler with owned params.
    fn run<P, F, R>(self, handler: F) -> Option<RequestFuture>
    where
        P: for<'de> Deserialize<'de>,
        F: FnOnce(RequestContext, P, Reply) -> R,
        R: Future<Output = ()> + Send + 'static,
    {
        self.run_borrowed(Ok::<P, Failure>, handler)
    }

    /// Runs a handler whose params borrow from the message. `own` converts them before the message is dropped.
    fn run_borrowed<P, O, D, F, R>(self, own: D, handler: F) -> Option<RequestFuture>
    where
        P: Deserialize<'a>,
        D: FnOnce(P) -> Result<O, Failure>,
        F: FnOnce(RequestContext, O, Reply) -> R,
        R: Future<Output = ()> + Send + 'static,
    {
        let decoded =
            message::params::<P>(self.params).map_err(|error| Failure::InvalidParams { reason: error.to_string() });
        match decoded.and_then(own) {
            Ok(params) => Some(Box::pin(handler(self.context, params, self.reply))),
            Err(failure) => {
                self.reply.fail(&failure);
                None
            }
        }
    }
}
