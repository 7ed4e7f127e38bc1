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
    handlers::{
        self, RequestContext,
        files::{self, FileRequest},
    },
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
        Method::ProcessSignal => request.answer(requests::ProcessSignal, handlers::process::signal),
        Method::ProcessResize => request.answer(requests::ProcessResize, handlers::process::resize),
        Method::ProcessTerminate => request.answer(requests::ProcessTerminate, handlers::process::terminate),
        Method::ProcessList => request.answer(requests::ProcessList, handlers::list::list),
        Method::ProcessSubscribe => request.run(requests::ProcessSubscribe, handlers::process::subscribe),
        Method::ProcessUnsubscribe => request.answer(requests::ProcessUnsubscribe, handlers::process::unsubscribe),
        Method::ProcessForget => request.answer(requests::ProcessForget, handlers::process::forget),
        Method::SessionEnd => request.run(requests::SessionEnd, handlers::session_end),
        Method::EnvironmentInfo => request.answer(requests::EnvironmentInfo, handlers::environment::info),
        Method::EnvironmentStatus => request.answer(requests::EnvironmentStatus, handlers::environment::status),
        Method::FsReadFile => request.run(requests::FsReadFile, files::whole::read),
        Method::FsWriteFile => {
            let decode = |params| files::whole::decode_write(params, attached);
            request.files(requests::FsWriteFile, decode, files::whole::write)
        }
        Method::FsGetMetadata => request.files(requests::FsGetMetadata, Ok, files::whole::get_metadata),
        Method::FsSetMetadata => request.files(requests::FsSetMetadata, Ok, files::whole::set_metadata),
        Method::FsCanonicalize => request.files(requests::FsCanonicalize, Ok, files::whole::canonicalize),
        Method::FsCreateDirectory => request.files(requests::FsCreateDirectory, Ok, files::tree::create_directory),
        Method::FsReadDirectory => request.files(requests::FsReadDirectory, Ok, files::tree::read_directory),
        Method::FsWalk => request.files(requests::FsWalk, Ok, files::tree::walk),
        Method::FsRemove => request.files(requests::FsRemove, Ok, files::tree::remove),
        Method::FsCopy => request.files(requests::FsCopy, Ok, files::tree::copy),
        Method::FsCreateSymlink => request.files(requests::FsCreateSymlink, Ok, files::tree::create_symlink),
        Method::FsOpen => request.files(requests::FsOpen, Ok, files::block::open),
        Method::FsReadBlock => request.run(requests::FsReadBlock, files::block::read),
        Method::FsClose => request.answer(requests::FsClose, files::block::close),
        Method::FsCreate => request.files(requests::FsCreate, Ok, files::block::create),
        Method::FsWriteBlock => {
            let decode = |params| files::block::decode_write(params, attached);
            request.files(requests::FsWriteBlock, decode, files::block::write)
        }
        Method::FsCommit => request.files(requests::FsCommit, Ok, files::block::commit),
        Method::FsSearch => request.files(requests::FsSearch, Ok, files::search_and_watch::search),
        Method::FsSearchNext => request.files(requests::FsSearchNext, Ok, files::search_and_watch::search_next),
        Method::FsGlob => request.files(requests::FsGlob, Ok, files::search_and_watch::glob),
        Method::FsWatch => request.files(requests::FsWatch, Ok, files::search_and_watch::watch),
        Method::FsWatchNext => request.files(requests::FsWatchNext, Ok, files::search_and_watch::watch_next),
        Method::HttpRequest => {
            request.run_converted(requests::HttpRequest, handlers::http::decode, handlers::http::request)
        }
        Method::HttpCancel => request.answer(requests::HttpCancel, handlers::http::cancel),
        Method::CommandExec => request.run(requests::CommandExec, compat::command::exec),
        Method::CommandExecWrite => {
            request.run_converted(requests::CommandExecWrite, compat::command::decode_write, handlers::stdin::write)
        }
        Method::CommandExecTerminate => request.run(requests::CommandExecTerminate, compat::command::terminate),
        // The connection handles `initialize` itself and does not dispatch it.
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

    /// Runs a handler whose result is the answer.
    fn answer<M, F, R>(self, method: M, handler: F) -> Option<RequestFuture>
    where
        M: Request,
        F: FnOnce(RequestContext, M::Params<'a>) -> R,
        R: Future<Output = Result<M::Result, Failure>> + Send + 'static,
    {
        self.run(method, |context, params, reply| {
            let handled = handler(context, params);
            async {
                match handled.await {
                    Ok(result) => reply.result(&result),
                    Err(failure) => reply.fail(&failure),
                }
            }
        })
    }

    /// Runs a handler of a file method in its turn. Its result is the answer.
    fn files<M, P, C, F, R>(self, method: M, convert: C, handler: F) -> Option<RequestFuture>
    where
        M: Request<Result: 'static>,
        P: Send + 'static,
        C: FnOnce(M::Params<'a>) -> Result<P, Failure>,
        F: FnOnce(FileRequest, P) -> R + Send + 'static,
        R: Future<Output = Result<M::Result, Failure>> + Send + 'static,
    {
        self.run_converted(method, convert, |context, params, reply| files::answer(context, params, reply, handler))
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
