//! Decodes the params of a request and calls its handler, one line per method. The types and the rules of the methods
//! are in `exec_server_protocol::method`.

use std::pin::Pin;

use bytes::Bytes;
use exec_server_protocol::{
    message,
    method::{Method, Request, requests},
};
use serde_json::value::RawValue;

use crate::{
    compat,
    error::Failure,
    handlers::{self, RequestContext},
    pump::Reply,
};

/// A running request. When it ends, the answer is queued or another task holds its [`Reply`].
pub(crate) type RequestFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The handler of a request, ready to be polled. `None` if the params were invalid; the error is already sent.
pub(crate) fn call(
    context: RequestContext,
    params: Option<&RawValue>,
    attached: Option<Bytes>,
    reply: Reply,
) -> Option<RequestFuture> {
    let method = context.method;
    let request = DispatchRequest { context, params, reply };
    if attached.is_some() && !method.info().takes_bytes {
        let reason = format!("`{}` takes no attached bytes", method.name());
        request.reply.fail(&Failure::InvalidParams { reason });
        return None;
    }
    match method {
        Method::ProcessStart => request.run(requests::ProcessStart, handlers::process::start),
        Method::ProcessRead => request.run(requests::ProcessRead, handlers::process::read),
        Method::ProcessWrite => {
            request.run_converted(requests::ProcessWrite, handlers::stdin::decode_write, handlers::stdin::write)
        }
        Method::ProcessCloseStdin => request.run(requests::ProcessCloseStdin, handlers::stdin::close),
        Method::ProcessSignal => request.run(requests::ProcessSignal, handlers::process::signal),
        Method::ProcessResize => request.run(requests::ProcessResize, handlers::process::resize),
        Method::ProcessTerminate => request.run(requests::ProcessTerminate, handlers::process::terminate),
        Method::ProcessList => request.run(requests::ProcessList, handlers::list::list),
        Method::ProcessSubscribe => request.run(requests::ProcessSubscribe, handlers::subscription::subscribe),
        Method::ProcessUnsubscribe => request.run(requests::ProcessUnsubscribe, handlers::subscription::unsubscribe),
        Method::ProcessForget => request.run(requests::ProcessForget, handlers::process::forget),
        Method::SessionEnd => request.run(requests::SessionEnd, handlers::session_end),
        Method::EnvironmentInfo => request.run(requests::EnvironmentInfo, handlers::environment::info),
        Method::EnvironmentStatus => request.run(requests::EnvironmentStatus, handlers::environment::status),
        Method::FsReadFile => request.run(requests::FsReadFile, handlers::files::whole::read),
        Method::FsWriteFile => {
            let decode = |params| handlers::files::whole::decode_write(params, attached);
            request.run_converted(requests::FsWriteFile, decode, handlers::files::whole::write)
        }
        Method::FsGetMetadata => request.run(requests::FsGetMetadata, handlers::files::whole::get_metadata),
        Method::FsSetMetadata => request.run(requests::FsSetMetadata, handlers::files::whole::set_metadata),
        Method::FsCanonicalize => request.run(requests::FsCanonicalize, handlers::files::whole::canonicalize),
        Method::FsCreateDirectory => request.run(requests::FsCreateDirectory, handlers::files::tree::create_directory),
        Method::FsReadDirectory => request.run(requests::FsReadDirectory, handlers::files::tree::read_directory),
        Method::FsWalk => request.run(requests::FsWalk, handlers::files::tree::walk),
        Method::FsRemove => request.run(requests::FsRemove, handlers::files::tree::remove),
        Method::FsCopy => request.run(requests::FsCopy, handlers::files::tree::copy),
        Method::FsCreateSymlink => request.run(requests::FsCreateSymlink, handlers::files::tree::create_symlink),
        Method::FsOpen => request.run(requests::FsOpen, handlers::files::block::open),
        Method::FsReadBlock => request.run(requests::FsReadBlock, handlers::files::block::read),
        Method::FsClose => request.run(requests::FsClose, handlers::files::block::close),
        Method::FsCreate => request.run(requests::FsCreate, handlers::files::block::create),
        Method::FsWriteBlock => {
            let decode = |params| handlers::files::block::decode_write(params, attached);
            request.run_converted(requests::FsWriteBlock, decode, handlers::files::block::write)
        }
        Method::FsCommit => request.run(requests::FsCommit, handlers::files::block::commit),
        Method::FsSearch => request.run(requests::FsSearch, handlers::files::search_and_watch::search),
        Method::FsSearchNext => request.run(requests::FsSearchNext, handlers::files::search_and_watch::search_next),
        Method::FsGlob => request.run(requests::FsGlob, handlers::files::search_and_watch::glob),
        Method::FsWatch => request.run(requests::FsWatch, handlers::files::search_and_watch::watch),
        Method::FsWatchNext => request.run(requests::FsWatchNext, handlers::files::search_and_watch::watch_next),
        Method::HttpRequest => {
            request.run_converted(requests::HttpRequest, handlers::http::decode, handlers::http::request)
        }
        Method::HttpCancel => request.run(requests::HttpCancel, handlers::http::cancel),
        Method::CommandExec => request.run(requests::CommandExec, compat::command::exec),
        Method::CommandExecWrite => {
            request.run_converted(requests::CommandExecWrite, compat::command::decode_write, handlers::stdin::write)
        }
        Method::CommandExecTerminate => request.run(requests::CommandExecTerminate, compat::command::terminate),
        // The connection handles it before it reads the next message.
        Method::Initialize => {
            request.reply.fail(&Failure::AlreadyInitialized);
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
    /// Runs a handler that takes the params as they are.
    fn run<M, F, R>(self, method: M, handler: F) -> Option<RequestFuture>
    where
        M: Request,
        F: FnOnce(RequestContext, M::Params<'a>, Reply) -> R,
        R: Future<Output = ()> + Send + 'static,
    {
        self.run_converted(method, Ok, handler)
    }

    /// Runs a handler whose params borrow from the message. `convert` makes them independent of it.
    fn run_converted<M, O, C, F, R>(self, _: M, convert: C, handler: F) -> Option<RequestFuture>
    where
        M: Request,
        C: FnOnce(M::Params<'a>) -> Result<O, Failure>,
        F: FnOnce(RequestContext, O, Reply) -> R,
        R: Future<Output = ()> + Send + 'static,
    {
        let decoded = message::params::<M::Params<'a>>(self.params)
            .map_err(|error| Failure::InvalidParams { reason: error.to_string() });
        match decoded.and_then(convert) {
            Ok(params) => Some(Box::pin(handler(self.context, params, self.reply))),
            Err(failure) => {
                self.reply.fail(&failure);
                None
            }
        }
    }
}
