//! How the model client handles messages: passes events to views and answers to the calls that they end.

use crate::{client::PendingCall, prelude::*, stdin::WriteOutcome};

impl ModelClient {
    /// Handles a message on a connection.
    pub(crate) fn handle(&mut self, connection: u32, message: &Value) {
        if let Some(method) = message["method"].as_str() {
            return self.handle_event(connection, method, &message["params"]);
        }
        if message["id"] == -1 {
            return self.handle_stray(connection, &message["error"]["data"]["kind"]);
        }
        let id = message["id"].as_u64();
        let call = id.and_then(|id| self.connections.get_mut(&connection)?.calls.remove(&id));
        let Some(call) = call else {
            return violation!(self, Answered, "an answer to nothing: {message}");
        };
        match (&message["result"], message["error"]["data"]["kind"].as_str()) {
            (_, Some(kind)) => self.handle_failure(connection, call, kind),
            (Value::Null, None) => violation!(self, Wire, "{call:?}: an error without a kind: {message}"),
            (result, None) => self.handle_answer(connection, call, result),
        }
    }

    fn handle_event(&mut self, connection: u32, method: &str, params: &Value) {
        // Events on a superseded connection were sent before it lost the session.
        if self.connections.get(&connection).is_none_or(|known| known.superseded) {
            return;
        }
        let Some(name) = params["processId"].as_str().map(str::to_owned) else {
            return violation!(self, Wire, "{method} without a process");
        };
        if let Some(session) = params["sessionId"].as_str().filter(|id| Some(*id) != self.session.as_deref()) {
            return self.handle_watched(connection, session, &name, method, params);
        }
        if let Some(seq) = params["seq"].as_u64().or(params["fromSeq"].as_u64()) {
            self.note_number(connection, &name, seq);
        }
        let Some(view) = self.views.get_mut(&name) else {
            return violation!(self, Wire, "{method} of unknown {name}");
        };
        let Some(whole) = apply_event(view, method, params) else {
            return violation!(self, Wire, "event {method}");
        };
        match (whole, self.kind) {
            (true, _) => self.ack_if_due(&name),
            (false, ClientKind::Acknowledges) => {
                violation!(self, Prefix, "{name}: {method} #{} jumps over what was not taken", params["seq"]);
            }
            // For a reference client, sent output counts as received. After a resume it reads what was lost in the cut.
            (false, ClientKind::Reference) => self.read(&name, 0),
        }
    }

    /// Handles an event of a process in another session that this connection subscribes to.
    fn handle_watched(&mut self, connection: u32, session: &str, name: &str, method: &str, params: &Value) {
        let Some(known) = self.connections.get_mut(&connection) else { return };
        // Unsubscribed while this event was on its way.
        let Some((_, view)) = known.watched.get_mut(name) else { return };
        match apply_event(view, method, params) {
            Some(true) => {}
            Some(false) => violation!(self, Prefix, "{name} of {session}: {method} jumps over what was not told"),
            None => violation!(self, Wire, "event {method}"),
        }
    }

    fn handle_stray(&mut self, connection: u32, kind: &Value) {
        let Some(known) = self.connections.get_mut(&connection) else { return };
        match known.strays.pop_front() {
            Some(expected) if kind == expected => self.context.trace.count(Branch::Nonsense),
            expected => violation!(self, Answered, "an error {kind} for nobody, due was {expected:?}"),
        }
    }

    fn ack_if_due(&mut self, name: &str) {
        let due = self.views.get(name).is_some_and(|view| view.unacked >= 32 << 10 || view.exited.is_some());
        if due && self.acks_promptly {
            self.ack(name);
        }
    }

    /// Whether the server may not know a process: it never started, its session was ended, or it exited and a clock jump may have removed
    /// it.
    fn may_be_unknown(&self, name: &str) -> bool {
        self.is_unstarted(name) || self.end_requested || self.views.get(name).is_some_and(|view| view.may_be_gone)
    }

    fn handle_answer(&mut self, connection: u32, call: PendingCall, result: &Value) {
        match call {
            PendingCall::Initialize(arrival) => self.handle_initialized(connection, arrival, result),
            PendingCall::Start(name) => {
                self.trace(format_args!("{name} started"));
                if let Some(view) = self.views.get_mut(&name) {
                    view.start = StartState::Done;
                }
            }
            PendingCall::Write(name, index) => {
                let status = self.write_outcome(&name, result);
                self.trace(format_args!("write {name} {index}: {}", result["status"]));
                match (self.views.get_mut(&name), status) {
                    (Some(view), Some(_)) => view.writes[index].status = status,
                    _ => violation!(self, Answered, "write {name} {index}: {result}"),
                }
                self.note_settled(&name, index);
            }
            PendingCall::CloseStdin(name) => {
                self.trace(format_args!("close stdin of {name}: {}", result["status"]));
                let status = self.write_outcome(&name, result);
                match (self.views.get_mut(&name), status) {
                    (Some(view), Some(status)) => view.close_stdin = Some(Some(status)),
                    _ => violation!(self, Answered, "close stdin of {name}: {result}"),
                }
            }
            PendingCall::Read(name, wait_ms) => {
                if wait_ms > 0 && self.kind == ClientKind::Reference {
                    self.context.trace.count(Branch::PollSwitch);
                }
                self.handle_read(&name, result);
            }
            PendingCall::Subscribe(name) => self.trace(format_args!("follows {name}: {result}")),
            PendingCall::Command(name) => self.trace(format_args!("command on {name}: {result}")),
            PendingCall::List => self.handle_list(result),
            PendingCall::File(file) => self.handle_file(&file, result),
            PendingCall::EndSession => {
                self.trace(format_args!("session ended"));
                self.ended = true;
                self.check_nobody_lives("its session was ended");
            }
            PendingCall::Stale => violation!(self, Superseded, "a superseded connection was obeyed: {result}"),
            PendingCall::Nonsense(kind) => violation!(self, Answered, "nonsense that is {kind} was obeyed: {result}"),
        }
    }

    /// Checks that no child is alive after the end of its session.
    pub(crate) fn check_nobody_lives(&self, why: &str) {
        for name in self.views.keys() {
            if self.context.records.lives(name) {
                violation!(self, Expiry, "{name} lives although {why}");
            }
        }
    }

    /// Counts a write that was accepted by another server than the one it was first sent to. Its id made the retry safe.
    fn note_settled(&self, name: &str, index: usize) {
        let Some(write) = self.views.get(name).map(|view| view.writes[index]) else { return };
        if write.status == Some(WriteOutcome::Yes) && write.server != self.server.lives() {
            self.context.trace.count(Branch::SettledAfterCrash);
        }
    }

    fn handle_list(&self, result: &Value) {
        let mut processes: Vec<&Value> = result["processes"].as_array().into_iter().flatten().collect();
        // The server sorts by start time of day, which differs between runs. Sort by id to keep the trace repeatable.
        processes.sort_by_key(|process| process["processId"].as_str());
        for process in processes {
            let (id, blocked) = (&process["processId"], &process["blocked"]);
            let (retained, written) = (&process["retainedBytes"], &process["outputBytes"]);
            self.trace(format_args!("list: {id} blocked {blocked}, {retained} of {written} bytes"));
            if !blocked.is_null() {
                self.context.trace.count(Branch::Blocked);
            }
            if blocked.as_str().is_some_and(|why| why == "diskFull") {
                self.context.trace.count(Branch::DiskFull);
            }
            let is_own = process["sessionId"].as_str() == self.session.as_deref();
            if is_own && retained.as_u64() > self.retained_max {
                let allowed = self.retained_max;
                violation!(self, Retained, "{id} retains {retained} bytes, allowed {allowed:?}");
            }
        }
    }

    fn handle_initialized(&mut self, connection: u32, arrival: AttachMode, result: &Value) {
        let id = result["sessionId"].as_str().map(str::to_owned);
        match (&self.session, arrival) {
            (None, AttachMode::New) => self.session = id,
            (known, AttachMode::Resume | AttachMode::TakeOver) if *known == id => {}
            _ => violation!(self, Answered, "{arrival:?} gave another session"),
        }
        self.trace(format_args!("connection {connection} is attached"));
        self.handle_attached(connection, arrival);
    }

    fn handle_read(&mut self, name: &str, result: &Value) {
        let Some(view) = self.views.get_mut(name) else { return };
        if result["gap"].is_object() {
            view.handle_gap(&result["gap"]);
        }
        for chunk in result["chunks"].as_array().into_iter().flatten() {
            view.handle_chunk(chunk, false);
        }
        let next = result["nextSeq"].as_u64().unwrap_or(0);
        view.last = view.last.max(next.saturating_sub(1));
        if result["exited"] == true {
            let code = result["exitCode"].as_i64().and_then(|code| i32::try_from(code).ok());
            view.handle_exit(code.unwrap_or(i32::MIN));
        }
        if result["closed"] == true {
            view.handle_close();
        }
        self.ack_if_due(name);
    }

    fn handle_failure(&mut self, connection: u32, call: PendingCall, kind: &str) {
        self.trace(format_args!("{call:?} failed: {kind}"));
        let superseded = self.connections.get(&connection).is_some_and(|known| known.superseded);
        match (&call, kind) {
            (PendingCall::Stale, "sessionResumedElsewhere") => {}
            (_, "sessionResumedElsewhere") if superseded || self.is_contested(connection) => {}
            (PendingCall::Initialize(AttachMode::Resume), "sessionAttached") => {
                self.context.trace.count(Branch::Refused);
                self.connections.remove(&connection);
            }
            (PendingCall::Initialize(_), "sessionExpired" | "unknownSession" | "holderLost") => {
                self.refused = Some(kind.to_owned());
                self.connections.remove(&connection);
                self.check_refusal(kind);
            }
            (PendingCall::Initialize(_), "draining") => drop(self.connections.remove(&connection)),
            (PendingCall::Start(name), "draining") => {
                // The request is sent again to the next server.
                if let Some(StartState::Asked(times)) = self.views.get_mut(name).map(|view| &mut view.start) {
                    *times = times.saturating_sub(1);
                }
            }
            (PendingCall::Nonsense(expected), kind) if *expected == kind => self.context.trace.count(Branch::Nonsense),
            (PendingCall::Subscribe(_) | PendingCall::Command(_), "unknownSession" | "unknownProcess") => {}
            (PendingCall::Subscribe(_), "sessionExpired") => {}
            (PendingCall::File(file), kind) if self.may_fail(file, kind) => {}
            (call, "holderLost") if self.is_lost(call) => {}
            // A process of another session, whose holder this client knows nothing about.
            (PendingCall::Subscribe(name) | PendingCall::Command(name), "holderLost")
                if !self.views.contains_key(name) => {}
            // The client resumed just when its time-to-live ended, and the server accepted it.
            (_, "sessionExpired") if self.last_attached.elapsed() >= SESSION_TTL => {}
            // The request was sent after the end of the session.
            (_, "unknownSession" | "holderLost") if self.end_requested => {}
            (PendingCall::Start(name), "duplicateProcess") => self.handle_started_before(name),
            // The process never started.
            (PendingCall::Read(name, _), "unknownProcess") if self.is_unstarted(name) => {}
            (PendingCall::Read(name, _), "unknownProcess")
                if self.views.get(name).is_some_and(|view| view.may_be_gone) =>
            {
                if let Some(view) = self.views.get_mut(name) {
                    view.forgotten = true;
                    if !view.closed {
                        view.cancel();
                    }
                }
            }
            _ => violation!(self, Answered, "{call:?} failed: {kind}"),
        }
    }

    /// Checks the reason of a refused resume: a session must not expire early, and a lost holder must really be dead.
    fn check_refusal(&self, kind: &str) {
        let detached = self.last_attached.elapsed();
        let is_early = detached + Duration::from_secs(1) < SESSION_TTL;
        match kind {
            "sessionExpired" if is_early => {
                violation!(self, Expiry, "expired {detached:?} after it was heard of, its time is {SESSION_TTL:?}");
            }
            "sessionExpired" => self.check_nobody_lives("its time is over"),
            // Only the server that saw a session end knows the reason. The next server only knows that the session does not exist.
            "unknownSession" if is_early && !self.end_requested && !self.holder_killed => {
                violation!(self, Lost, "its session is unknown, and nobody has ended it");
            }
            // If a server got `session/end` before it crashed, the session has no holder either.
            "holderLost" if !self.holder_killed && !self.end_requested => {
                violation!(self, Answered, "its holder is said to be lost, and lives");
            }
            _ => {}
        }
    }

    /// Whether the object of a call was lost with its holder.
    fn is_lost(&mut self, call: &PendingCall) -> bool {
        let (PendingCall::Start(name)
        | PendingCall::Write(name, _)
        | PendingCall::CloseStdin(name)
        | PendingCall::Read(name, _)
        | PendingCall::Command(name)) = call
        else {
            return false;
        };
        if let (Some(view), true) = (self.views.get_mut(name), self.holder_killed) {
            match call {
                PendingCall::Start(_) => view.cancel(),
                PendingCall::Write(_, index) => view.writes[*index].status = Some(WriteOutcome::Unknown),
                PendingCall::CloseStdin(_) => view.close_stdin = Some(Some(WriteOutcome::No)),
                _ => {}
            }
        }
        self.holder_killed
    }

    fn is_unstarted(&self, name: &str) -> bool {
        self.views.get(name).is_some_and(|view| view.start == StartState::Cancelled)
    }

    fn handle_started_before(&mut self, name: &str) {
        match self.views.get_mut(name) {
            Some(view) if matches!(view.start, StartState::Asked(2..) | StartState::Done) => {
                view.start = StartState::Done;
                self.context.trace.count(Branch::StartRetry);
            }
            _ => violation!(self, Start, "{name} is taken although it was asked for once"),
        }
    }

    /// Records the sequence number of an event. On one connection the numbers only grow.
    fn note_number(&mut self, connection: u32, name: &str, seq: u64) {
        let Some(seen) = self.connections.get_mut(&connection).map(|known| &mut known.seen) else { return };
        let before = seen.insert(name.to_owned(), seq);
        if before.is_some_and(|before| before >= seq) {
            violation!(self, Prefix, "{name} #{seq} after #{} on one connection", before.unwrap_or(0));
        }
    }

    /// Whether another connection may have the session without this client knowing it yet.
    fn is_contested(&self, connection: u32) -> bool {
        self.connections.iter().any(|(number, known)| *number != connection && !known.superseded)
    }

    /// The result of a write or a close; `None` for a status that the server must not answer.
    fn write_outcome(&self, name: &str, result: &Value) -> Option<WriteOutcome> {
        match result["status"].as_str()? {
            "accepted" => Some(WriteOutcome::Yes),
            "stdinClosed" => Some(WriteOutcome::No),
            "unknownProcess" if self.may_be_unknown(name) => Some(WriteOutcome::No),
            _ => None,
        }
    }
}

/// Passes an event to a view. Returns whether it fits after the previous events, or `None` for an unknown event.
fn apply_event(view: &mut ProcessView, method: &str, params: &Value) -> Option<bool> {
    Some(match method {
        "process/output" => view.handle_chunk(params, true),
        "process/exited" => view.handle_exited_event(params),
        "process/closed" => view.handle_closed_event(params),
        "process/gap" => {
            view.handle_gap(params);
            true
        }
        _ => return None,
    })
}
