//! What a client makes of messages: events to views, answers to the calls they end.

use std::time::Duration;

use serde_json::Value;

use crate::{
    branch::Branch,
    client::{Arrival, Call, Client, Kind},
    stdin::Accepted,
    trace::Invariant,
    view::{Start, View},
};

impl Client {
    /// A message came on a connection.
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
            return self.wrong(Invariant::Answered, format_args!("an answer to nothing: {message}"));
        };
        match (&message["result"], message["error"]["data"]["kind"].as_str()) {
            (_, Some(kind)) => self.handle_failure(connection, call, kind),
            (Value::Null, None) => {
                self.wrong(Invariant::Wire, format_args!("{call:?}: an error without a kind: {message}"))
            }
            (result, None) => self.handle_answer(connection, call, result),
        }
    }

    fn handle_event(&mut self, connection: u32, method: &str, params: &Value) {
        // What a superseded connection still says was under way before it lost the session.
        if self.connections.get(&connection).is_none_or(|known| known.superseded) {
            return;
        }
        let Some(name) = params["processId"].as_str().map(str::to_owned) else {
            return self.wrong(Invariant::Wire, format_args!("{method} without a process"));
        };
        if let Some(session) = params["sessionId"].as_str().filter(|id| Some(*id) != self.session.as_deref()) {
            return self.handle_watched(connection, session, &name, method, params);
        }
        if let Some(seq) = params["seq"].as_u64().or(params["fromSeq"].as_u64()) {
            self.note_number(connection, &name, seq);
        }
        let Some(view) = self.views.get_mut(&name) else {
            return self.wrong(Invariant::Wire, format_args!("{method} of unknown {name}"));
        };
        let Some(whole) = hear(view, method, params) else {
            return self.wrong(Invariant::Wire, format_args!("event {method}"));
        };
        match (whole, self.kind) {
            (true, _) => self.ack_if_due(&name),
            (false, Kind::Acknowledges) => {
                self.wrong(
                    Invariant::Prefix,
                    format_args!("{name}: {method} #{} jumps over what was not taken", params["seq"]),
                );
            }
            // What was sent counts as taken: a resumed reference client reads what the cut swallowed.
            (false, Kind::Reference) => self.read(&name, 0),
        }
    }

    /// An event of a process of another session, which this connection follows.
    fn handle_watched(&mut self, connection: u32, session: &str, name: &str, method: &str, params: &Value) {
        let Some(known) = self.connections.get_mut(&connection) else { return };
        // Unsubscribed, and this was under way.
        let Some((_, view)) = known.watched.get_mut(name) else { return };
        match hear(view, method, params) {
            Some(true) => {}
            Some(false) => {
                self.wrong(
                    Invariant::Prefix,
                    format_args!("{name} of {session}: {method} jumps over what was not told"),
                );
            }
            None => self.wrong(Invariant::Wire, format_args!("event {method}")),
        }
    }

    fn handle_stray(&mut self, connection: u32, kind: &Value) {
        let Some(known) = self.connections.get_mut(&connection) else { return };
        match known.strays.pop_front() {
            Some(expected) if kind == expected => self.stage.trace.count(Branch::Nonsense),
            expected => {
                self.wrong(Invariant::Answered, format_args!("an error {kind} for nobody, due was {expected:?}"))
            }
        }
    }

    fn ack_if_due(&mut self, name: &str) {
        let due = self.views.get(name).is_some_and(|view| view.unacked >= 32 << 10 || view.exited.is_some());
        if due && self.acks_promptly {
            self.ack(name);
        }
    }

    /// It never began, it went with its session, or it ended and a leap of the clock may have taken it off the table.
    fn may_be_unknown(&self, name: &str) -> bool {
        self.is_unstarted(name) || self.asked_to_end || self.views.get(name).is_some_and(|view| view.may_be_gone)
    }

    fn handle_answer(&mut self, connection: u32, call: Call, result: &Value) {
        match call {
            Call::Initialize(arrival) => self.handle_initialized(connection, arrival, result),
            Call::Start(name) => {
                self.trace(format_args!("{name} started"));
                if let Some(view) = self.views.get_mut(&name) {
                    view.start = Start::Done;
                }
            }
            Call::Write(name, index) => {
                let status = match Self::accepted(&result["status"]) {
                    None if self.may_be_unknown(&name) && result["status"] == "unknownProcess" => Some(Accepted::No),
                    status => status,
                };
                self.trace(format_args!("write {name} {index}: {}", result["status"]));
                match (self.views.get_mut(&name), status) {
                    (Some(view), Some(_)) => view.writes[index].status = status,
                    _ => self.wrong(Invariant::Answered, format_args!("write {name} {index}: {result}")),
                }
                self.note_settled(&name, index);
            }
            Call::CloseStdin(name) => {
                self.trace(format_args!("close stdin of {name}: {}", result["status"]));
                let status = match Self::accepted(&result["status"]) {
                    None if self.may_be_unknown(&name) && result["status"] == "unknownProcess" => Some(Accepted::No),
                    status => status,
                };
                match (self.views.get_mut(&name), status) {
                    (Some(view), Some(status)) => view.close_stdin = Some(Some(status)),
                    _ => self.wrong(Invariant::Answered, format_args!("close stdin of {name}: {result}")),
                }
            }
            Call::Read(name, wait_ms) => {
                if wait_ms > 0 && self.kind == Kind::Reference {
                    self.stage.trace.count(Branch::PollSwitch);
                }
                self.handle_read(&name, result);
            }
            Call::Subscribe(name) => self.trace(format_args!("follows {name}: {result}")),
            Call::Command(name) => self.trace(format_args!("command on {name}: {result}")),
            Call::List => self.handle_list(result),
            Call::File(file) => self.handle_file(&file, result),
            Call::EndSession => {
                self.trace(format_args!("session ended"));
                self.ended = true;
                self.check_nobody_lives("its session was ended");
            }
            Call::Stale => {
                self.wrong(Invariant::Superseded, format_args!("a superseded connection was obeyed: {result}"));
            }
            Call::Nonsense(kind) => {
                self.wrong(Invariant::Answered, format_args!("nonsense that is {kind} was obeyed: {result}"));
            }
        }
    }

    /// After the end of a session no child of it lives.
    pub(crate) fn check_nobody_lives(&self, why: &str) {
        for name in self.views.keys() {
            let lives = self.stage.records.with(name, |record| record.spawns > 0 && record.exit.is_none());
            if lives {
                self.wrong(Invariant::Expiry, format_args!("{name} lives although {why}"));
            }
        }
    }

    /// A write that another server than the first one answers was in already, or went in now: its id told them apart.
    fn note_settled(&self, name: &str, index: usize) {
        let Some(write) = self.views.get(name).map(|view| view.writes[index]) else { return };
        if write.status == Some(Accepted::Yes) && write.server != self.server.lives() {
            self.stage.trace.count(Branch::SettledAfterCrash);
        }
    }

    fn handle_list(&self, result: &Value) {
        let mut processes: Vec<&Value> = result["processes"].as_array().into_iter().flatten().collect();
        // By the time of day they began at, which no seed repeats.
        processes.sort_by_key(|process| process["processId"].as_str());
        for process in processes {
            let (id, blocked) = (&process["processId"], &process["blocked"]);
            let (retained, written) = (&process["retainedBytes"], &process["outputBytes"]);
            self.trace(format_args!("list: {id} blocked {blocked}, {retained} of {written} bytes"));
            if !blocked.is_null() {
                self.stage.trace.count(Branch::Blocked);
            }
            if blocked.as_str().is_some_and(|why| why == "diskFull") {
                self.stage.trace.count(Branch::DiskFull);
            }
            let is_own = process["sessionId"].as_str() == self.session.as_deref();
            if is_own && retained.as_u64() > self.retained_max {
                let allowed = self.retained_max;
                self.wrong(Invariant::Retained, format_args!("{id} retains {retained} bytes, allowed {allowed:?}"));
            }
        }
    }

    fn handle_initialized(&mut self, connection: u32, arrival: Arrival, result: &Value) {
        let id = result["sessionId"].as_str().map(str::to_owned);
        match (&self.session, arrival) {
            (None, Arrival::New) => self.session = id,
            (known, Arrival::Resume | Arrival::TakeOver) if *known == id => {}
            _ => self.wrong(Invariant::Answered, format_args!("{arrival:?} gave another session")),
        }
        self.trace(format_args!("connection {connection} is attached"));
        self.settle_in(connection, arrival);
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

    fn handle_failure(&mut self, connection: u32, call: Call, kind: &str) {
        self.trace(format_args!("{call:?} failed: {kind}"));
        let superseded = self.connections.get(&connection).is_some_and(|known| known.superseded);
        match (&call, kind) {
            (Call::Stale, "sessionResumedElsewhere") => {}
            (_, "sessionResumedElsewhere") if superseded || self.is_contested(connection) => {}
            (Call::Initialize(Arrival::Resume), "sessionAttached") => {
                self.stage.trace.count(Branch::Refused);
                self.connections.remove(&connection);
            }
            (Call::Initialize(_), "sessionExpired" | "unknownSession" | "holderLost") => {
                self.refused = Some(kind.to_owned());
                self.connections.remove(&connection);
                self.check_refusal(kind);
            }
            (Call::Initialize(_), "draining") => drop(self.connections.remove(&connection)),
            (Call::Start(name), "draining") => {
                // The server that comes next is asked again.
                if let Some(Start::Asked(times)) = self.views.get_mut(name).map(|view| &mut view.start) {
                    *times = times.saturating_sub(1);
                }
            }
            (Call::Nonsense(expected), kind) if *expected == kind => self.stage.trace.count(Branch::Nonsense),
            (Call::Subscribe(_) | Call::Command(_), "unknownSession" | "unknownProcess") => {}
            (Call::File(file), kind) if self.may_fail(file, kind) => {}
            (Call::Subscribe(_), "sessionExpired") => {}
            (call, "holderLost") if self.is_lost(call) => {}
            // Of another session, whose holder is that session's business.
            (Call::Subscribe(name) | Call::Command(name), "holderLost") if !self.views.contains_key(name) => {}
            // It came in the moment in which its time was over, and was let in.
            (_, "sessionExpired") if self.heard.elapsed() >= Duration::from_millis(self.ttl_ms) => {}
            // It was sent behind the end of the session.
            (_, "unknownSession" | "holderLost") if self.asked_to_end => {}
            (Call::Start(name), "duplicateProcess") => self.handle_started_before(name),
            // It never began.
            (Call::Read(name, _), "unknownProcess") if self.is_unstarted(name) => {}
            (Call::Read(name, _), "unknownProcess") if self.views.get(name).is_some_and(|view| view.may_be_gone) => {
                if let Some(view) = self.views.get_mut(name) {
                    view.forgotten = true;
                    if !view.closed {
                        view.cancel();
                    }
                }
            }
            _ => self.wrong(Invariant::Answered, format_args!("{call:?} failed: {kind}")),
        }
    }

    /// A session is gone: by its clock, and then not early; by its holder, and then it is dead.
    fn check_refusal(&self, kind: &str) {
        let (alone, ttl) = (self.heard.elapsed(), Duration::from_millis(self.ttl_ms));
        match kind {
            "sessionExpired" if alone + Duration::from_secs(1) < ttl => {
                self.wrong(
                    Invariant::Expiry,
                    format_args!("expired {alone:?} after it was heard of, its time is {ttl:?}"),
                );
            }
            "sessionExpired" => self.check_nobody_lives("its time is over"),
            // Why a session is gone is known to the server that saw it go; the next one only knows that there is none.
            "unknownSession" if !self.asked_to_end && !self.holder_killed && alone + Duration::from_secs(1) < ttl => {
                self.wrong(Invariant::Lost, format_args!("its session is unknown, and nobody has ended it"));
            }
            // A session that a server was asked to end before it crashed has no holder either.
            "holderLost" if !self.holder_killed && !self.asked_to_end => {
                self.wrong(Invariant::Answered, format_args!("its holder is said to be lost, and lives"));
            }
            _ => {}
        }
    }

    /// Whether what a call was about died with its holder.
    fn is_lost(&mut self, call: &Call) -> bool {
        let (Call::Start(name)
        | Call::Write(name, _)
        | Call::CloseStdin(name)
        | Call::Read(name, _)
        | Call::Command(name)) = call
        else {
            return false;
        };
        if let (Some(view), true) = (self.views.get_mut(name), self.holder_killed) {
            match call {
                Call::Start(_) => view.cancel(),
                Call::Write(_, index) => view.writes[*index].status = Some(Accepted::Unknown),
                Call::CloseStdin(_) => view.close_stdin = Some(Some(Accepted::No)),
                _ => {}
            }
        }
        self.holder_killed
    }

    fn is_unstarted(&self, name: &str) -> bool {
        self.views.get(name).is_some_and(|view| view.start == Start::Cancelled)
    }

    fn handle_started_before(&mut self, name: &str) {
        match self.views.get_mut(name) {
            Some(view) if matches!(view.start, Start::Asked(2..) | Start::Done) => {
                view.start = Start::Done;
                self.stage.trace.count(Branch::StartRetry);
            }
            _ => self.wrong(Invariant::Start, format_args!("{name} is taken although it was asked for once")),
        }
    }

    /// Notes an event's number; on one connection they only grow.
    fn note_number(&mut self, connection: u32, name: &str, seq: u64) {
        let Some(seen) = self.connections.get_mut(&connection).map(|known| &mut known.seen) else { return };
        let before = seen.insert(name.to_owned(), seq);
        if before.is_some_and(|before| before >= seq) {
            self.wrong(
                Invariant::Prefix,
                format_args!("{name} #{seq} after #{} on one connection", before.unwrap_or(0)),
            );
        }
    }

    /// Whether somebody else may have been given the session without this client knowing yet.
    fn is_contested(&self, connection: u32) -> bool {
        self.connections.iter().any(|(number, known)| *number != connection && !known.superseded)
    }

    fn accepted(status: &Value) -> Option<Accepted> {
        match status.as_str()? {
            "accepted" => Some(Accepted::Yes),
            "stdinClosed" => Some(Accepted::No),
            _ => None,
        }
    }
}

/// Gives an event to a view: whether it fits behind what is known, or nothing where there is no such event.
fn hear(view: &mut View, method: &str, params: &Value) -> Option<bool> {
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
