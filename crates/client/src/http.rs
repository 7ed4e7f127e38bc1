//! HTTP requests that the server makes for us, from its own network: whole, or with a body that streams.
//!
//! ```text
//! stream() ── name `http-n` on the table ──▶ http/request ──▶ head of the answer
//! Body ◀── pieces ◀── Streams ◀── Ear ◀── http/request/bodyDelta          Body ──▶ taken ──▶ http/request/ack
//! ```
//!
//! A stream belongs to one link and ends with it; nothing of it is asked for again. A server of ours sends a window beyond what was
//! taken. Of one that cannot wait, 256 pieces of a stream and 16 MiB of all are kept; a stream that gets more fails, and nothing
//! else does. Dropping a [`Body`], or a future of this module, calls the request off where the server can.
//!
//! Must not know what is fetched, nor which targets are allowed: that is the server's rule.

mod streams;

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

pub(crate) use self::streams::Streams;
use self::streams::Taken;
use crate::{
    Client,
    client::Handle,
    error::Error,
    link,
    process::millis,
    requests::{self, Method as _},
    session::Generation,
};

const NAME: &str = requests::HttpRequest::NAME;

/// Pieces of a body that a server may send beyond what was taken: 4 MiB.
const WINDOW: u64 = 64;

/// What is to be asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The method, such as `GET`.
    pub method: String,
    /// Where to, `http:` or `https:`.
    pub url: String,
    /// Headers; repeats stay, and stay in order.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Bytes,
    /// How long all of it may take, the body of the answer included.
    pub timeout: Option<Duration>,
    /// What to do with a redirect.
    pub redirect: RedirectPolicy,
}

impl Request {
    /// A request without headers and body.
    #[must_use]
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self { method: method.into(), url: url.into(), ..Self::default() }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push(Header { name: name.into(), value: value.into(), value_env_var: None });
        self
    }

    /// Adds a header whose value is `prefix` and the value of a variable of the server, which never comes here.
    #[must_use]
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

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets how long all of it may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets what to do with a redirect.
    #[must_use]
    pub fn redirect(mut self, policy: RedirectPolicy) -> Self {
        self.redirect = policy;
        self
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

/// The head of an answer, and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response<B> {
    /// The status.
    pub status: u16,
    /// The headers, names in small letters; repeats stay, and stay in order.
    pub headers: Vec<Header>,
    /// The body: all of it, or a stream.
    pub body: B,
}

impl<B> Response<B> {
    /// The first value of a header, whatever the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value.as_str())
    }
}

impl Client {
    /// Makes a request from the server's network, and waits for all of the answer: 16 MiB of body at most.
    ///
    /// A request that a cut interrupted is not sent again: it ends with [`Error::UnknownOutcome`].
    pub async fn http_request(&self, request: &Request) -> Result<Response<Bytes>, Error> {
        self.check_http(request).await?;
        let id = format!("buffered-{}", self.handle().session().streams.next_whole());
        let mut calling = Calling { handle: self.handle(), request_id: &id, is_asked: true };
        let params = request.params(id.clone());
        let answered = self.request::<requests::HttpRequest>(&params).await;
        // Answered, or gone with its link: there is nothing to call off. What took too long is under way.
        let is_late = self.handle().session().options.call_timeout.is_some();
        calling.is_asked = is_late && matches!(&answered, Err(Error::UnknownOutcome { .. }));
        let result = answered?;
        let body = base64::decode(&result.body_base64).map_err(|error| unreadable(&error.to_string()))?;
        Ok(Response { status: result.status, headers: result.headers, body: body.into() })
    }

    /// Makes a request from the server's network, and returns with the head of the answer; the body streams.
    ///
    /// The stream ends with the link: a cut fails it, after what had arrived.
    pub async fn http_stream(&self, request: &Request) -> Result<Response<Body>, Error> {
        self.check_http(request).await?;
        let handle = self.handle();
        let session = handle.session();
        let window = session.peer.server.capabilities.http_window.then_some(WINDOW);
        let mut params = request.params(session.streams.next_name());
        (params.stream_response, params.window) = (true, window);
        let asking = async {
            let mut after = 0;
            let links = session.links();
            loop {
                let link = links.after(after).await?;
                after = link.epoch;
                // Listened for before it is asked for: its first piece may come with the answer.
                let body = Body::new(handle, params.request_id.clone(), link.epoch, window);
                match link.send(NAME, &params).await.map_err(|error| link.error(NAME, error)) {
                    Ok(sent) => match sent.answer().await.map_err(|error| link.error(NAME, error)) {
                        Ok(answer) => return Ok((link::decode(NAME, &answer)?, body)),
                        Err(error) => {
                            body.forget();
                            return Err(match error {
                                Error::Disconnected { reason } => Error::UnknownOutcome { method: NAME, reason },
                                other => other,
                            });
                        }
                    },
                    Err(error) => {
                        body.forget();
                        // It was never sent: the next link will do.
                        if !matches!(error, Error::Disconnected { .. }) {
                            return Err(error);
                        }
                    }
                }
            }
        };
        let (result, body): (wire::RequestResult, Body) = session.bounded(NAME, asking).await?;
        Ok(Response { status: result.status, headers: result.headers, body })
    }

    /// Refuses what this server would silently ignore.
    async fn check_http(&self, request: &Request) -> Result<(), Error> {
        let server = &self.handle().session().peer.server;
        let takes_variables = request.headers.iter().any(|header| header.value_env_var.is_some());
        let stops = request.redirect == RedirectPolicy::Stop;
        if server.generation == Generation::Current || !(takes_variables || stops) {
            return Ok(());
        }
        // Generation S knows neither, and not the question.
        let info = self.info().await?;
        let lacks_variables = !info.as_ref().is_some_and(|info| info.capabilities.http_header_env_vars);
        match (takes_variables && lacks_variables, stops && info.is_none()) {
            (true, _) => Err(self.cannot("take headers from its variables")),
            (_, true) => Err(self.cannot("stop at a redirect")),
            (false, false) => Ok(()),
        }
    }

    fn cannot(&self, what: &str) -> Error {
        Error::Protocol(format!("the server at {} cannot {what}", self.address()))
    }
}

fn unreadable(reason: &str) -> Error {
    Error::Decode { method: NAME.to_owned(), reason: reason.to_owned() }
}

/// A request that was asked for; dropped before its answer, it is called off.
struct Calling<'a> {
    handle: &'a Arc<Handle>,
    request_id: &'a str,
    /// Whether the server may know of it.
    is_asked: bool,
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if self.is_asked {
            self.handle.cancel_http(self.request_id);
        }
    }
}

/// The body of an answer, piece by piece: a `Stream` of bytes. Dropped before its end, the request is called off.
///
/// An error is the last item: the target, the server or the link failed, and what came before is not all.
pub struct Body {
    handle: Arc<Handle>,
    name: String,
    epoch: u64,
    is_over: bool,
}

impl Body {
    fn new(handle: &Arc<Handle>, name: String, epoch: u64, window: Option<u64>) -> Self {
        handle.session().streams.add(name.clone(), epoch, window);
        Self { handle: Arc::clone(handle), name, epoch, is_over: false }
    }

    /// There is nothing to call off: it was refused, or its link is gone.
    fn forget(mut self) {
        self.is_over = true;
    }

    /// The next piece; `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error> {
        self.next().await.transpose()
    }

    /// All that is left, if it is no more than `most` bytes.
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
        let session = self.handle.session();
        let taken = session.streams.take(&self.name, self.epoch, cx.waker());
        match taken {
            Taken::Nothing => Poll::Pending,
            Taken::Piece { bytes, is_ack_due } => {
                if is_ack_due {
                    session.acks.notify_one();
                }
                Poll::Ready(Some(Ok(bytes)))
            }
            Taken::End(end) => {
                self.is_over = true;
                Poll::Ready(end.err().map(Err))
            }
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let is_under_way = self.handle.session().streams.remove(&self.name, self.epoch);
        if is_under_way && !self.is_over {
            self.handle.cancel_http(&self.name);
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("name", &self.name).field("is_over", &self.is_over).finish_non_exhaustive()
    }
}
