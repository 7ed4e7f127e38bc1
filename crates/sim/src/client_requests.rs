//! The requests of the model client, one function per method. A request is recorded in any case and sent if there is a connection.

use crate::{child, client::PendingCall, prelude::*};

/// Every method that model clients send. [`ClientFiles`](crate::client_files::ClientFiles) sends `fs/…`,
/// [`LegacyClient`](crate::legacy_client::LegacyClient) sends `command/…`, this file sends the others.
pub const METHODS: &[&str] = &[
    "initialize",
    "process/start",
    "process/read",
    "process/write",
    "process/signal",
    "process/terminate",
    "process/closeStdin",
    "process/resize",
    "process/list",
    "process/subscribe",
    "process/unsubscribe",
    "process/forget",
    "session/end",
    "environment/info",
    "environment/status",
    "fs/readFile",
    "fs/writeFile",
    "fs/createDirectory",
    "fs/getMetadata",
    "fs/setMetadata",
    "fs/canonicalize",
    "fs/readDirectory",
    "fs/walk",
    "fs/remove",
    "fs/copy",
    "fs/createSymlink",
    "fs/open",
    "fs/readBlock",
    "fs/close",
    "fs/create",
    "fs/writeBlock",
    "fs/commit",
    "fs/search",
    "fs/searchNext",
    "fs/glob",
    "fs/watch",
    "fs/watchNext",
    "http/request",
    "http/cancel",
    "command/exec",
    "command/exec/write",
    "command/exec/terminate",
];

impl ModelClient {
    pub fn start(&mut self, name: &str, plan: Plan) {
        self.trace(format_args!("start {name}: {}", child::argv(name, &plan.steps)[2..].join(" ")));
        self.views.insert(name.to_owned(), ProcessView::new(name, plan, &self.context));
        self.send_start(name);
    }

    pub(crate) fn send_start(&mut self, name: &str) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get_mut(name)) else { return };
        if let StartState::Asked(times) = &mut view.start {
            *times += 1;
        }
        let mut params = json!({
            "processId": name,
            "argv": child::argv(name, &view.plan.steps),
            "cwd": "/",
            "env": {},
            "tty": view.plan.tty,
            "pipeStdin": view.plan.stdin,
        });
        if view.plan.drops {
            params["overflow"] = json!("dropOldest");
        }
        if view.plan.tty {
            (params["term"], params["size"]) = (json!("xterm"), json!({"rows": 40, "cols": 132}));
        }
        (params["timeoutMs"], params["idleTimeoutMs"]) = (json!(view.plan.timeout_ms), json!(view.plan.idle_ms));
        self.call(attached, PendingCall::Start(name.to_owned()), "process/start", params);
    }

    /// Writes to the stdin of a process, with an id unless `is_keyless`.
    pub fn write(&mut self, name: &str, len: u64, is_keyless: bool) {
        // A write without an id is never sent again, so it is only created if it can be sent now.
        let (server, is_keyless) = (self.server.lives(), is_keyless && self.attached.is_some());
        let Some(view) = self.views.get_mut(name) else { return };
        let index = view.next_write(len, is_keyless, server);
        self.trace(format_args!("write {name} {index}: {len} bytes{}", if is_keyless { " without id" } else { "" }));
        self.send_write(name, index);
    }

    pub(crate) fn send_write(&mut self, name: &str, index: usize) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get(name)) else { return };
        let chunk = base64::encode(&view.write_bytes(index));
        let mut params = json!({"processId": name, "chunk": chunk});
        if !view.writes[index].is_keyless {
            params["writeId"] = json!(format!("{name}/{index}"));
        }
        self.call(attached, PendingCall::Write(name.to_owned(), index), "process/write", params);
    }

    /// Closes the stdin of a process after its writes.
    pub fn close_stdin(&mut self, name: &str) {
        self.trace(format_args!("close stdin of {name}"));
        let Some(view) = self.views.get_mut(name) else { return };
        view.close_stdin = Some(None);
        self.send_close_stdin(name);
    }

    pub(crate) fn send_close_stdin(&mut self, name: &str) {
        if let Some(attached) = self.attached {
            let params = json!({"processId": name});
            self.call(attached, PendingCall::CloseStdin(name.to_owned()), "process/closeStdin", params);
        }
    }

    /// Reads the output after the last received event.
    pub fn read(&mut self, name: &str, wait_ms: u64) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get(name)) else { return };
        let params = json!({"processId": name, "afterSeq": view.last, "waitMs": wait_ms});
        self.call(attached, PendingCall::Read(name.to_owned(), wait_ms), "process/read", params);
    }

    /// Sends a signal, a terminate or another request for which only the fact of an answer matters.
    pub fn command(&mut self, name: &str, method: &str, params: Value) {
        let Some(attached) = self.attached else { return };
        self.trace(format_args!("{method} {params}"));
        if let (Some(view), "process/signal" | "process/terminate") = (self.views.get_mut(name), method) {
            view.kill_requested = true;
        }
        self.call(attached, PendingCall::Command(name.to_owned()), method, params);
    }

    /// Forgets a closed process.
    pub fn forget(&mut self, name: &str) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get_mut(name)) else { return };
        view.forgotten = true;
        self.trace(format_args!("forget {name}"));
        self.call(attached, PendingCall::Command(name.to_owned()), "process/forget", json!({"processId": name}));
    }

    pub fn list(&mut self, scope: &str) {
        if let Some(attached) = self.attached {
            self.call(attached, PendingCall::List, "process/list", json!({"scope": scope}));
        }
    }

    pub fn end_session(&mut self) {
        if let Some(attached) = self.attached {
            self.end_requested = true;
            self.trace(format_args!("ends its session"));
            self.call(attached, PendingCall::EndSession, "session/end", json!({}));
        }
    }

    /// Acknowledges the received output of a process.
    pub fn ack(&mut self, name: &str) {
        let (Some(attached), Some(view)) = (self.attached, self.views.get_mut(name)) else { return };
        if self.kind == ClientKind::Acknowledges && view.last > view.acked {
            (view.acked, view.unacked) = (view.last, 0);
            let params = json!({"processId": name, "seq": view.last});
            self.notify(attached, "process/ack", params);
        }
    }

    /// Sends requests on a superseded connection: a write and a terminate that must have no effect.
    pub fn send_stale_request(&mut self) {
        let stale = self.connections.iter().find(|(_, connection)| connection.superseded).map(|(number, _)| *number);
        let (Some(stale), Some(name)) = (stale, self.views.keys().next().cloned()) else { return };
        self.context.trace.count(Branch::StaleSpoke);
        self.trace(format_args!("superseded connection {stale} speaks of {name}"));
        let params = json!({"processId": name, "chunk": base64::encode(b"from the past"), "writeId": "stale"});
        self.call(stale, PendingCall::Stale, "process/write", params);
        self.call(stale, PendingCall::Stale, "process/terminate", json!({"processId": name}));
        self.notify(stale, "process/ack", json!({"processId": name, "seq": 1_000_000}));
    }

    /// Subscribes to a process of another session, without holding its output. The process must write to one stream only, so that the
    /// position of gaps is known.
    pub fn subscribe(&mut self, session: &str, name: &str, plan: Plan) {
        let Some(attached) = self.attached.filter(|_| self.kind == ClientKind::Acknowledges) else { return };
        let Some(connection) = self.connections.get_mut(&attached) else { return };
        // Events of a subscription that is just ending could be mistaken for events of the new one.
        if connection.watched.contains_key(name) || connection.calls.values().any(|call| call.is_about(name)) {
            return;
        }
        let mut view = ProcessView::new(name, plan, &self.context);
        view.observe();
        connection.watched.insert(name.to_owned(), (session.to_owned(), view));
        self.trace(format_args!("subscribe {name}"));
        let params = json!({"processId": name, "sessionId": session, "afterSeq": 0});
        self.call(attached, PendingCall::Subscribe(name.to_owned()), "process/subscribe", params);
    }

    /// The processes of other sessions that the attached connection subscribes to.
    pub fn watched(&self) -> Vec<String> {
        let attached = self.attached.and_then(|number| self.connections.get(&number));
        attached.into_iter().flat_map(|connection| connection.watched.keys().cloned()).collect()
    }

    /// Ends a subscription.
    pub fn unsubscribe(&mut self, name: &str) {
        let Some(attached) = self.attached else { return };
        let connection = self.connections.get_mut(&attached);
        let Some((session, _)) = connection.and_then(|connection| connection.watched.remove(name)) else { return };
        self.trace(format_args!("unsubscribe {name}"));
        let params = json!({"processId": name, "sessionId": session});
        self.call(attached, PendingCall::Command(name.to_owned()), "process/unsubscribe", params);
    }

    /// Queries the environment of the host.
    pub fn request_environment(&mut self, method: &str) {
        if let Some(attached) = self.attached {
            self.call(attached, PendingCall::Command(String::new()), method, json!({}));
            if method == "environment/status" {
                self.request_http(attached);
            }
        }
    }

    /// Sends HTTP requests that a world without a network can answer: one that the sandbox refuses, and a cancel of an unknown request.
    fn request_http(&mut self, attached: u32) {
        let permissions = json!({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "restricted"});
        let sandbox = json!({"permissions": permissions});
        let params = json!({"method": "GET", "url": "http://nowhere.example/", "requestId": "r", "sandbox": sandbox});
        self.call(attached, PendingCall::Nonsense("sandboxDenied"), "http/request", params);
        self.notify(attached, "http/request/ack", json!({"requestId": "r", "seq": 1}));
        self.call(attached, PendingCall::Command(String::new()), "http/cancel", json!({"requestId": "r"}));
    }

    /// Sends an invalid message. The server must answer it, and it must have no effect.
    pub fn send_invalid_message(&mut self, rng: &mut Rng) {
        let Some(attached) = self.attached else { return };
        let unknown_note = r#"{"method":"unknown/note","params":{}}"#;
        let start =
            |argv: &[&str], cwd: &str| json!({"processId": "x", "argv": argv, "cwd": cwd, "env": {}, "tty": false});
        let (method, params, kind) = match rng.within(0..14) {
            0 => return self.send_invalid_text(attached, "not-json", "malformed"),
            1 => return self.send_invalid_text(attached, unknown_note, "unknownNotification"),
            2 => return self.send_invalid_text(attached, &"[".repeat(500), "malformed"),
            3 => return self.send_invalid_text(attached, r#"{"id":1,"id":2,"method":"process/list"}"#, "malformed"),
            4 => ("no/such", json!({}), "unknownMethod"),
            5 => ("command/no/such", json!({}), "unknownMethod"),
            6 => ("process/read", json!({"processId": 5}), "invalidParams"),
            7 => ("initialize", json!({"clientName": "again"}), "alreadyInitialized"),
            8 => ("process/write", json!({"processId": "x", "chunk": "***"}), "invalidBase64"),
            9 => ("process/write", json!({"processId": "x", "chunk": "", "writeId": ""}), "emptyWriteId"),
            10 => ("process/read", json!({"processId": "nobody"}), "unknownProcess"),
            11 => ("process/list", json!({"scope": 3}), "invalidParams"),
            12 => ("process/start", start(&[], "/"), "emptyArgv"),
            _ => ("process/start", start(&["a"], "here"), "relativePath"),
        };
        self.trace(format_args!("nonsense: {method} {params}"));
        self.call(attached, PendingCall::Nonsense(kind), method, params);
    }

    fn send_invalid_text(&mut self, connection: u32, text: &str, kind: &'static str) {
        self.trace(format_args!("nonsense: {}", &text[..text.len().min(40)]));
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.wire.send_text(text.to_owned());
            connection.strays.push_back(kind);
        }
    }
}
