//! Handles what a server sends on its own: questions to the user (elicitation), progress, and changes of the tool list.
//!
//! While a question is open, the timeouts of all calls to its server are paused. A question is cancelled when the server cancels it or is
//! gone. rmcp answers all other requests of servers. We offer neither roots nor sampling.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use exec_server_client::transport::BoxFuture;
use parking_lot::Mutex;
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, CustomRequest, CustomResult, ElicitRequestParams, ElicitResult, ErrorCode,
        Implementation, ProgressNotificationParam, ProgressToken, ProtocolVersion,
    },
    service::{NotificationContext, RequestContext},
};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use crate::transport::{ELICIT, Progress};

/// How many progress notifications without a registered request are kept. A notification can arrive before its request is registered.
const EARLY: usize = 64;

/// Answers the questions of servers, usually by asking the user.
pub trait Elicit: Send + Sync + 'static {
    /// Answers one question. The future is dropped when the server cancels the question or is gone.
    fn elicit(&self, question: Question) -> BoxFuture<'_, Answer>;
}

/// A question of a server to the user.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    pub server: String,
    /// The id of the question. Unique among the open questions of its server.
    pub id: String,
    /// The parameters: `message`, and `requestedSchema` or `url`. Over stdio they are as received, but over HTTP rmcp
    /// drops fields that it does not know. `_meta` has no progress token.
    pub params: Map<String, Value>,
}

impl Question {
    /// The text for the user.
    #[must_use]
    pub fn message(&self) -> &str {
        self.params.get("message").and_then(Value::as_str).unwrap_or_default()
    }
}

/// The user's answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    pub action: Action,
    /// The data that the user entered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Map<String, Value>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The user answered the question.
    Accept,
    /// The user refused to answer.
    Decline,
    /// The user dismissed the question.
    Cancel,
}

impl Answer {
    /// An answer without content.
    #[must_use]
    pub fn only(action: Action) -> Self {
        Self { action, content: None, meta: None }
    }

    fn into_json(self) -> Value {
        serde_json::to_value(self).expect("an answer has only string keys")
    }
}

/// How a connection ended, for requests that wait for an answer.
#[derive(Debug, Clone)]
pub(super) enum ConnectionEnd {
    /// The server crashed, its executor was lost, or it required authentication.
    Crashed {
        /// Why, with the server's last output.
        reason: String,
        /// Whether the server is being restarted.
        is_restarted: bool,
    },
    /// The manager ended the connection.
    Ended,
}

/// State that the requests of a connection share with its handler.
#[derive(Default)]
pub(super) struct ConnectionShared {
    /// How many questions wait for the user.
    pub(super) open_questions: watch::Sender<usize>,
    /// Set once, when the connection has ended.
    pub(super) end: watch::Sender<Option<ConnectionEnd>>,
    /// Set when the server requires authentication, with the reason.
    refused: watch::Sender<Option<String>>,
    /// The server reported that its tool list changed.
    pub(super) tools_changed: Notify,
    callbacks: Mutex<ProgressCallbacks>,
}

/// Progress notifications of one connection.
#[derive(Default)]
struct ProgressCallbacks {
    /// The callbacks of the requests in progress.
    registered: HashMap<ProgressToken, Arc<dyn Fn(Progress) + Send + Sync>>,
    /// Notifications that arrived before `ConnectionShared::register_progress` registered their request.
    early: VecDeque<Progress>,
}

impl ConnectionShared {
    /// Records that the connection has ended. Only the first call has an effect.
    pub(super) fn set_end(&self, end: ConnectionEnd) {
        // `replace` returns the old value, here `None`, so the closure returns true.
        self.end.send_if_modified(|known| known.is_none() && known.replace(end).is_none());
    }

    /// Records that the server requires authentication. Only the first call has an effect.
    pub(super) fn refuse(&self, reason: &str) {
        self.refused.send_if_modified(|known| known.is_none() && known.replace(reason.to_owned()).is_none());
    }

    /// Waits until the server requires authentication. Cancel safe.
    pub(super) async fn refused(&self) -> String {
        let mut refused = self.refused.subscribe();
        match refused.wait_for(Option::is_some).await.ok().and_then(|known| known.clone()) {
            Some(reason) => reason,
            // Cannot happen: `self` owns the sender.
            None => std::future::pending().await,
        }
    }

    /// Passes a progress notification to the callback of its request. If no such request is registered, keeps it for `register_progress`.
    pub(super) fn report_progress(&self, progress: Progress) {
        let mut callbacks = self.callbacks.lock();
        let Some(callback) = callbacks.registered.get(&progress.token).cloned() else {
            if callbacks.early.len() >= EARLY {
                callbacks.early.pop_front();
            }
            callbacks.early.push_back(progress);
            return;
        };
        drop(callbacks);
        callback(progress);
    }

    /// Registers the callback of a request until the returned value is dropped. Notifications that arrived earlier are delivered first.
    pub(super) fn register_progress(
        self: &Arc<Self>,
        token: ProgressToken,
        callback: Arc<dyn Fn(Progress) + Send + Sync>,
    ) -> ProgressRegistration {
        let mut callbacks = self.callbacks.lock();
        let early = std::mem::take(&mut callbacks.early);
        let (ours, others): (VecDeque<_>, _) = early.into_iter().partition(|progress| progress.token == token);
        callbacks.early = others;
        // Deliver the early ones under the lock, so that no later notification overtakes them.
        for progress in ours {
            callback(progress);
        }
        callbacks.registered.insert(token.clone(), callback);
        drop(callbacks);
        ProgressRegistration { shared: Arc::clone(self), token }
    }
}

/// Unregisters the callback of a request when dropped.
pub(super) struct ProgressRegistration {
    shared: Arc<ConnectionShared>,
    token: ProgressToken,
}

impl Drop for ProgressRegistration {
    fn drop(&mut self) {
        self.shared.callbacks.lock().registered.remove(&self.token);
    }
}

/// Decrements the count of open questions when dropped.
struct OpenQuestion<'a>(&'a watch::Sender<usize>);

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

/// The client side of one connection, as rmcp calls it.
pub(super) struct ConnectionHandler {
    pub(super) server: String,
    pub(super) client_name: String,
    pub(super) elicit: Option<Arc<dyn Elicit>>,
    pub(super) shared: Arc<ConnectionShared>,
}

impl ConnectionHandler {
    async fn answer(&self, mut params: Map<String, Value>, context: &RequestContext<RoleClient>) -> Answer {
        let Some(elicit) = &self.elicit else { return Answer::only(Action::Decline) };
        if let Some(Value::Object(meta)) = params.get_mut("_meta") {
            // Remove the progress token: we do not report progress to the server.
            meta.remove("progressToken");
            if meta.is_empty() {
                params.remove("_meta");
            }
        }
        let question = Question { server: self.server.clone(), id: context.id.to_string(), params };
        let mut end = self.shared.end.subscribe();
        self.shared.open_questions.send_modify(|open| *open += 1);
        let _open = OpenQuestion(&self.shared.open_questions);
        tokio::select! {
            biased;
            () = context.ct.cancelled() => Answer::only(Action::Cancel),
            _ = end.wait_for(Option::is_some) => Answer::only(Action::Cancel),
            answer = elicit.elicit(question) => answer,
        }
    }
}

impl ClientHandler for ConnectionHandler {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new(self.client_name.clone(), env!("CARGO_PKG_VERSION")))
            .with_protocol_version(ProtocolVersion::V_2025_06_18)
    }

    /// Receives elicitations over stdio, where `transport` delivers them unparsed.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        match (request.method.as_str(), request.params) {
            (ELICIT, Some(Value::Object(params))) => Ok(CustomResult(self.answer(params, &context).await.into_json())),
            (ELICIT, _) => Err(ErrorData::invalid_params("`params` must be an object", None)),
            (_, _) => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None)),
        }
    }

    /// Receives elicitations over HTTP, where rmcp parses them.
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let internal = |error: serde_json::Error| ErrorData::internal_error(error.to_string(), None);
        let mut params = match serde_json::to_value(request).map_err(internal)? {
            Value::Object(params) => params,
            _ => Map::new(),
        };
        // rmcp has moved `_meta` to the context. Put it back.
        if let Ok(Value::Object(meta)) = serde_json::to_value(&context.meta)
            && !meta.is_empty()
        {
            params.insert("_meta".to_owned(), Value::Object(meta));
        }
        serde_json::from_value(self.answer(params, &context).await.into_json()).map_err(internal)
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        let ProgressNotificationParam { progress_token: token, progress, total, message, .. } = params;
        self.shared.report_progress(Progress { token, progress, total, message });
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.shared.tools_changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_keeps_its_metadata_and_omits_absent_fields() {
        assert_eq!(Answer::only(Action::Decline).into_json(), json!({"action": "decline"}));
        let meta = Some(Map::from_iter([("k".to_owned(), json!([1]))]));
        let answer = Answer { action: Action::Accept, content: Some(json!({"a": 1})), meta };
        assert_eq!(answer.into_json(), json!({"action": "accept", "content": {"a": 1}, "_meta": {"k": [1]}}));
    }

    #[test]
    fn progress_is_delivered_in_order_even_if_it_arrives_before_its_request_is_registered() {
        let shared = Arc::<ConnectionShared>::default();
        let step = |token: i64, progress: f64| {
            serde_json::from_value::<Progress>(json!({"progressToken": token, "progress": progress})).unwrap()
        };
        for n in 0..3 {
            shared.report_progress(step(7, f64::from(n)));
            shared.report_progress(step(8, f64::from(n)));
        }
        let received = Arc::new(Mutex::new(Vec::new()));
        let registration = {
            let received = Arc::clone(&received);
            shared.register_progress(
                step(7, 0.0).token,
                Arc::new(move |step: Progress| received.lock().push(step.progress)),
            )
        };
        shared.report_progress(step(7, 3.0));
        drop(registration);
        shared.report_progress(step(7, 4.0));
        assert_eq!(*received.lock(), [0.0, 1.0, 2.0, 3.0]);
        for n in 0..1000 {
            shared.report_progress(step(n, 0.0));
        }
        assert_eq!(shared.callbacks.lock().early.len(), EARLY, "unclaimed notifications are bounded");
    }
}
