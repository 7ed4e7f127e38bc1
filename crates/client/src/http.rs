//! HTTP requests that the server makes from its own network, with a buffered or a streamed response body.
//!
//! ```text
//! http_stream() ── register `http-N` in BodyStreams ──▶ http/request ──▶ head of the response
//! Body ◀── pieces ◀── BodyStreams ◀── NotificationRouter ◀── http/request/bodyDelta
//! Body ──▶ consumed pieces ──▶ http/request/ack
//! ```
//!
//! A stream belongs to one link and ends with it; it is not requested again. A current server sends at most one window beyond what was
//! consumed. For a server without a window, the client keeps 256 pieces per stream and 16 MiB for all streams. Exceeding a limit fails only
//! the stream that does so. Dropping a [`Body`], or a future of this module, cancels the request if the server supports that.
//!
//! The server decides which targets are allowed.

mod body_streams;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use exec_server_protocol::{base64, http as wire};
use futures_util::{Stream, StreamExt as _};

pub use exec_server_protocol::http::{Header, RedirectPolicy};

use self::body_streams::BodyRead;
pub(crate) use self::body_streams::BodyStreams;
use crate::{Client, Request as _, client::SessionHandle, error::Error, process::millis, requests, server_link};

const NAME: &str = requests::HttpRequest::NAME;

/// The number of pieces of a body that a server may send beyond what was consumed. A piece has at most 64 KiB, so this is 4 MiB.
const WINDOW: u64 = 64;

/// An HTTP request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Request {
    /// The method, such as `GET`.
    pub method: String,
    /// The URL, `http:` or `https:`.
    pub url: String,
    /// The headers. Repeated headers are kept, in order.
    pub headers: Vec<Header>,
    /// The request body.
    pub body: Bytes,
    /// Timeout for the whole request, including the response body.
    pub timeout: Option<Duration>,
    /// How the server treats a redirect.
    pub redirect: RedirectPolicy,
}

impl Request {
    /// Creates a request without headers and body.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self { method: method.into(), url: url.into(), ..Self::default() }
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push(Header { name: name.into(), value: value.into(), value_env_var: None });
        self
    }

    /// Adds a header whose value is `prefix` followed by the value of the server's environment variable `variable`. The
    /// client never sees that value.
    pub fn header_from_server(
        mut self,
        name: impl Into<String>,
        prefix: impl Into<String>,
        variable: impl Into<String>,
    ) -> Self {
        let value_env_var = Some(variable.into());
        self.headers.push(Header { name: name.into(), value: prefix.into(), value_env_var });
        self
    }

    setters! {
        /// Sets the request body.
        body(body: impl Into<Bytes>) => body = body.into();

        /// Sets the timeout for the whole request.
        timeout(timeout: Duration) => timeout = Some(timeout);

        /// Sets what the server does with a redirect.
        redirect(policy: RedirectPolicy) => redirect = policy;
    }

    fn params(&self, request_id: String) -> wire::RequestParams {
        wire::RequestParams {
            method: self.method.clone(),
            url: self.url.clone(),
            headers: self.headers.clone(),
            body_base64: (!self.body.is_empty()).then(|| base64::encode(&self.body)),
            timeout_ms: self.timeout.map(millis),
            redirect_policy: self.redirect,
            request_id,
            stream_response: false,
            window: None,
            sandbox: None,
        }
    }
}

/// The head of a response, and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response<B> {
    /// The status code.
    pub status: u16,
    /// The headers, with names in lower case. Repeated headers are kept, in order.
    pub headers: Vec<Header>,
    /// The body: buffered bytes or a stream.
    pub body: B,
}

impl<B> Response<B> {
    /// The first value of a header. The case of the name does not matter.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value.as_str())
    }
}

impl Client {
    /// Makes a request from the server's network, and waits for the whole response. The body may have at most 16 MiB.
    ///
    /// A request that a cut interrupts is not sent again: it fails with [`Error::UnknownOutcome`].
    pub async fn http_request(&self, request: &Request) -> Result<Response<Bytes>, Error> {
        self.check_http(request).await?;
        let id = self.session().streams.next_buffered_id();
        let mut guard = RequestGuard { handle: &self.handle, request_id: &id, may_be_running: true };
        let params = request.params(id.clone());
        let answered = self.request::<requests::HttpRequest>(&params).await;
        // If the request was answered, or ended with its link, there is nothing to cancel. With a `call_timeout`, an unknown outcome can
        // also mean that the time is over and the request is still running.
        let has_timeout = self.session().options.call_timeout.is_some();
        guard.may_be_running = has_timeout && matches!(&answered, Err(Error::UnknownOutcome { .. }));
        let result = answered?;
        let unreadable =
            |error: base64::InvalidBase64| Error::Decode { method: NAME.to_owned(), reason: error.to_string() };
        let body = base64::decode(&result.body_base64).map_err(unreadable)?;
        Ok(Response { status: result.status, headers: result.headers, body: body.into() })
    }

    /// Makes a request from the server's network, and returns after the head of the response. The body is a stream.
    ///
    /// The stream ends with the connection. After a cut, it first returns what had arrived, and then an error.
    pub async fn http_stream(&self, request: &Request) -> Result<Response<Body>, Error> {
        self.check_http(request).await?;
        let session = self.session();
        let window = session.peer.server.capabilities.http_window.then_some(WINDOW);
        let mut params = request.params(session.streams.next_streamed_id());
        params.stream_response = true;
        params.window = window;
        let asking = async {
            let mut after = 0;
            let links = session.link_waiter();
            loop {
                let link = links.after(after).await?;
                after = link.epoch;
                // Register the body before sending: its first piece may come together with the answer.
                let body = Body::new(&self.handle, params.request_id.clone(), link.epoch, window);
                let sent = match link.send(requests::HttpRequest::METHOD, &params).await {
                    Ok(sent) => sent,
                    Err(error) => {
                        body.forget();
                        match link.error(NAME, error) {
                            // The request was never sent, so the next link can be used.
                            Error::Disconnected { .. } => continue,
                            error => return Err(error),
                        }
                    }
                };
                match sent.answer().await {
                    Ok(answer) => return Ok((server_link::decode(NAME, &answer)?, body)),
                    Err(error) => {
                        body.forget();
                        return Err(match link.error(NAME, error) {
                            Error::Disconnected { reason } => Error::UnknownOutcome { method: NAME, reason },
                            other => other,
                        });
                    }
                }
            }
        };
        let (result, body): (wire::RequestResult, Body) = session.with_call_timeout(NAME, asking).await?;
        Ok(Response { status: result.status, headers: result.headers, body })
    }

    /// Refuses options that this server would silently ignore.
    async fn check_http(&self, request: &Request) -> Result<(), Error> {
        let takes_variables = request.headers.iter().any(|header| header.value_env_var.is_some());
        let stops_at_redirect = request.redirect == RedirectPolicy::Stop;
        match self.session().ignored_http_option(takes_variables, stops_at_redirect).await? {
            Some(what) => Err(self.session().cannot(what)),
            None => Ok(()),
        }
    }
}

/// Guard of a request in flight. If it is dropped before the answer, the request is cancelled.
struct RequestGuard<'a> {
    handle: &'a Arc<SessionHandle>,
    request_id: &'a str,
    /// Whether the request may be running on the server.
    may_be_running: bool,
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        if self.may_be_running {
            self.handle.cancel_http(self.request_id);
        }
    }
}

/// A response body as a `Stream` of bytes. Dropping it before its end cancels the request.
///
/// An error is the last item: the target, the server or the connection failed, and the body is incomplete.
pub struct Body {
    handle: Arc<SessionHandle>,
    request_id: String,
    epoch: u64,
    is_over: bool,
}

impl Body {
    fn new(handle: &Arc<SessionHandle>, request_id: String, epoch: u64, window: Option<u64>) -> Self {
        handle.session.streams.add(request_id.clone(), epoch, window);
        Self { handle: Arc::clone(handle), request_id, epoch, is_over: false }
    }

    /// Drops the body without cancelling the request, because it was refused or its link is gone.
    fn forget(mut self) {
        self.is_over = true;
    }

    /// Returns the next piece, or `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        self.next().await.transpose()
    }

    /// Returns the rest of the body. Fails if it has more than `most` bytes.
    pub async fn collect_up_to(mut self, most: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if all.len() + chunk.len() > most {
                return Err(Error::Protocol(format!("the body has more than {most} bytes")));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}

impl Stream for Body {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let session = &self.handle.session;
        let taken = session.streams.take(&self.request_id, self.epoch, cx.waker());
        match taken {
            BodyRead::Nothing => Poll::Pending,
            BodyRead::Piece { bytes, is_ack_due } => {
                if is_ack_due {
                    session.acks.notify_one();
                }
                Poll::Ready(Some(Ok(bytes)))
            }
            BodyRead::End(end) => {
                self.is_over = true;
                Poll::Ready(end.err().map(Err))
            }
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let is_under_way = self.handle.session.streams.remove(&self.request_id, self.epoch);
        if is_under_way && !self.is_over {
            self.handle.cancel_http(&self.request_id);
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("id", &self.request_id).field("is_over", &self.is_over).finish_non_exhaustive()
    }
}
