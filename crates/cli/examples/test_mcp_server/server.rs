//! The protocol: which message gets which answer, in pages where there are many, and what was seen so far.
//! Must not know how messages come and go.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, Write as _},
    process::ExitCode,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{flags::Flags, tools};

/// Protocol versions that the server accepts as requested.
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// How long an answer to a question is waited for: longer than any test.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

const RESOURCES: usize = 5;
const TEMPLATES: usize = 3;

/// Where the messages that belong to a request go.
pub(crate) trait Out: Send + Sync {
    fn send(&self, message: &Value);
}

/// An error of the protocol.
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
}

impl RpcError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self { code: -32602, message: message.into() }
    }
}

/// A request on its way.
pub(crate) struct Call<'a> {
    pub(crate) id: Value,
    pub(crate) params: &'a Value,
    pub(crate) out: &'a dyn Out,
}

/// State of one server process.
pub(crate) struct Server {
    pub(crate) flags: Flags,
    journal: Option<Mutex<File>>,
    starts: usize,
    /// Calls of tools, by name.
    pub(crate) calls: Mutex<BTreeMap<String, u64>>,
    /// Ids of cancelled requests, as JSON; `ended` wakes who sleeps.
    cancelled: Mutex<BTreeSet<String>>,
    ended: Condvar,
    /// Requests waiting at each barrier.
    pub(crate) barriers: Mutex<BTreeMap<String, u64>>,
    pub(crate) arrived: Condvar,
    /// Questions of ours that wait for an answer.
    questions: Mutex<BTreeMap<u64, mpsc::SyncSender<Value>>>,
    next_question: AtomicU64,
    pub(crate) added_tools: AtomicU64,
}

impl Server {
    pub(crate) fn new(flags: Flags) -> io::Result<Self> {
        let mut starts = 1;
        let mut journal = None;
        if let Some(path) = &flags.journal {
            let before = std::fs::read_to_string(path).unwrap_or_default();
            starts += before.lines().filter(|line| line.contains("\"event\":\"start\"")).count();
            journal = Some(Mutex::new(OpenOptions::new().create(true).append(true).open(path)?));
        }
        let server = Self {
            flags,
            journal,
            starts,
            calls: Mutex::default(),
            cancelled: Mutex::default(),
            ended: Condvar::new(),
            barriers: Mutex::default(),
            arrived: Condvar::new(),
            questions: Mutex::default(),
            next_question: AtomicU64::new(1),
            added_tools: AtomicU64::new(0),
        };
        server.note(&json!({"event": "start", "pid": std::process::id()}));
        Ok(server)
    }

    /// How often a server with this journal was started, this time included.
    pub(crate) fn starts(&self) -> usize {
        self.starts
    }

    /// A line of the journal, in one write so that two servers may share it.
    pub(crate) fn note(&self, event: &Value) {
        if let Some(journal) = &self.journal {
            let line = format!("{event}\n");
            journal.lock().expect("no writer panics").write_all(line.as_bytes()).expect("write the journal");
        }
    }

    /// Notes the end of the input. Returns the exit code, unless a flag tells the server to stay.
    pub(crate) fn end_of_input(&self) -> ExitCode {
        self.note(&json!({"event": "eof"}));
        if self.flags.ignore_eof {
            loop {
                thread::park();
            }
        }
        ExitCode::SUCCESS
    }

    /// Whether a message may block, so that on standard streams it needs a separate thread.
    pub(crate) fn may_wait(message: &Value) -> bool {
        let waits = ["barrier", "read_only_barrier", "sleep", "elicit"];
        message["method"] == "tools/call" && waits.iter().any(|tool| message["params"]["name"] == *tool)
    }

    /// Does what a message asks for; the answer to a request, where it gets one.
    pub(crate) fn handle(&self, message: &Value, out: &dyn Out) -> Option<Value> {
        let Some(method) = message["method"].as_str() else {
            self.answered(message);
            return None;
        };
        let tool = &message["params"]["name"];
        let Some(id) = message.get("id") else {
            self.note(&json!({"event": "notification", "method": method, "params": message["params"]}));
            if method == "notifications/cancelled" {
                let id = message["params"]["requestId"].to_string();
                self.cancelled.lock().expect("no writer panics").insert(id);
                self.ended.notify_all();
            }
            return None;
        };
        self.note(&json!({"event": "request", "method": method, "id": id, "tool": tool}));
        if self.flags.never_answer.iter().any(|never| never == "all" || never == method) {
            return None;
        }
        let call = Call { id: id.clone(), params: &message["params"], out };
        match self.answer(method, &call) {
            Ok(Some(result)) => Some(json!({"jsonrpc": "2.0", "id": id, "result": result})),
            Ok(None) => None,
            Err(RpcError { code, message }) => {
                Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
            }
        }
    }

    fn answer(&self, method: &str, call: &Call<'_>) -> Result<Option<Value>, RpcError> {
        let params = call.params;
        let result = match method {
            "initialize" => self.initialize(params),
            "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => json!({}),
            "tools/list" => self.page("tools", &tools::list(self), params, usize::MAX)?,
            "tools/call" => return tools::call(self, call),
            "resources/list" => self.page("resources", &resources(), params, 2)?,
            "resources/templates/list" => self.page("resourceTemplates", &templates(), params, 2)?,
            "resources/read" => read(params)?,
            "prompts/list" => self.page("prompts", &prompts(), params, usize::MAX)?,
            "prompts/get" => prompt(params)?,
            _ => return Err(RpcError { code: -32601, message: format!("no method `{method}`") }),
        };
        Ok(Some(result))
    }

    fn initialize(&self, params: &Value) -> Value {
        let asked = params["protocolVersion"].as_str().filter(|asked| VERSIONS.contains(asked));
        let version = self.flags.protocol.as_deref().or(asked).unwrap_or(VERSIONS[2]);
        let mut capabilities = json!({
            "tools": {"listChanged": true}, "resources": {"subscribe": true}, "prompts": {}, "logging": {},
        });
        if self.flags.sandbox_state_meta {
            capabilities["experimental"] = json!({"codex/sandbox-state-meta": {}});
        }
        json!({
            "protocolVersion": version,
            "capabilities": capabilities,
            "serverInfo": {"name": "test_mcp_server", "version": env!("CARGO_PKG_VERSION")},
            "instructions": "For tests only.",
        })
    }

    /// One page of a list; a cursor is the number of items before it.
    fn page(&self, key: &str, all: &[Value], params: &Value, size: usize) -> Result<Value, RpcError> {
        let flags = &self.flags;
        let size = flags.page_size.unwrap_or(size).max(1);
        let cursor = params["cursor"].as_str();
        let digits = |cursor: &str| cursor.trim_start_matches("after-").trim_end_matches('x').parse::<usize>().ok();
        let from = match cursor {
            None => 0,
            Some(cursor) => digits(cursor).ok_or_else(|| RpcError::invalid("no such cursor"))?,
        };
        let items: Vec<&Value> = all.iter().skip(from).take(size).collect();
        let next = from.saturating_add(size);
        let next = match () {
            () if flags.repeat_cursor => Some("after-0".to_owned()),
            () if flags.endless_pages => Some(format!("after-{}", from + 1)),
            () => match flags.long_cursor {
                Some(bytes) if cursor.is_none() => Some(format!("after-{}{}", all.len(), "x".repeat(bytes))),
                _ => (next < all.len()).then(|| format!("after-{next}")),
            },
        };
        let mut page = json!({ key: items });
        if let Some(next) = next {
            page["nextCursor"] = next.into();
        }
        Ok(page)
    }

    /// Asks the client something, and waits for what it says.
    pub(crate) fn ask(&self, out: &dyn Out, method: &str, params: &Value) -> Result<Value, RpcError> {
        let id = self.next_question.fetch_add(1, Ordering::Relaxed);
        let (answer_tx, answer_rx) = mpsc::sync_channel(1);
        self.questions.lock().expect("no writer panics").insert(id, answer_tx);
        out.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let unanswered = |_| RpcError { code: -32603, message: "nobody answered".to_owned() };
        answer_rx.recv_timeout(ANSWER_WITHIN).map_err(unanswered)
    }

    fn answered(&self, message: &Value) {
        self.note(&json!({"event": "answer", "id": message["id"]}));
        let mut questions = self.questions.lock().expect("no writer panics");
        if let Some(waiting) = message["id"].as_u64().and_then(|id| questions.remove(&id)) {
            waiting.send(message.clone()).ok(); // It gave up.
        }
    }

    /// Waits; true where the request was cancelled before the time was over.
    pub(crate) fn sleep(&self, id: &Value, time: Duration) -> bool {
        let id = id.to_string();
        let cancelled = self.cancelled.lock().expect("no writer panics");
        let waited = self.ended.wait_timeout_while(cancelled, time, |cancelled| !cancelled.contains(&id));
        !waited.expect("no writer panics").1.timed_out()
    }

    pub(crate) fn cancelled(&self) -> Vec<Value> {
        let cancelled = self.cancelled.lock().expect("no writer panics");
        cancelled.iter().filter_map(|id| serde_json::from_str(id).ok()).collect()
    }
}

fn resources() -> Vec<Value> {
    let resource =
        |n| json!({"uri": format!("test://item/{n}"), "name": format!("item {n}"), "mimeType": "text/plain"});
    (1..=RESOURCES).map(resource).collect()
}

fn templates() -> Vec<Value> {
    let template = |n| json!({"uriTemplate": format!("test://kind{n}/{{id}}"), "name": format!("kind {n}")});
    (1..=TEMPLATES).map(template).collect()
}

fn read(params: &Value) -> Result<Value, RpcError> {
    let uri = params["uri"].as_str().ok_or_else(|| RpcError::invalid("`uri` is missing"))?;
    let content = match uri {
        "test://blob" => json!({"uri": uri, "mimeType": "application/octet-stream", "blob": "AAEC/w=="}),
        _ if uri.starts_with("test://") => {
            json!({"uri": uri, "mimeType": "text/plain", "text": format!("the content of {uri}")})
        }
        _ => return Err(RpcError { code: -32002, message: format!("no resource `{uri}`") }),
    };
    Ok(json!({"contents": [content]}))
}

fn prompts() -> Vec<Value> {
    vec![
        json!({"name": "greet", "description": "greets somebody", "arguments": [{"name": "who", "required": true}]}),
        json!({"name": "plain"}),
    ]
}

fn prompt(params: &Value) -> Result<Value, RpcError> {
    let text = match params["name"].as_str() {
        Some("greet") => {
            let who = params["arguments"]["who"].as_str().ok_or_else(|| RpcError::invalid("`who` is missing"))?;
            format!("say hello to {who}")
        }
        Some("plain") => "say something".to_owned(),
        _ => return Err(RpcError::invalid("no such prompt")),
    };
    Ok(json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}))
}
