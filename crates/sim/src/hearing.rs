//! What a client makes of messages: events to views, answers to the calls they end.

use serde_json::Value;

use crate::{
    client::{Arrival, Call, Client, Kind},
    trace::Branch,
    view::{Accepted, Start},
};

impl Client {
    /// A message came on a connection.
    pub(crate) fn handle(&mut self, connection: u32, message: &Value) {
        if let Some(method) = message["method"].as_str() {
            return self.handle_event(connection, method, &message["params"]);
        }
        let id = message["id"].as_u64();
        let call = id.and_then(|id| self.connections.get_mut(&connection)?.calls.remove(&id));
        let Some(call) = call else {
            return self.wrong(format_args!("an answer to nothing: {message}"));
        };
        match (&message["result"], message["error"]["data"]["kind"].as_str()) {
            (_, Some(kind)) => self.handle_failure(connection, call, kind),
            (Value::Null, None) => self.wrong(format_args!("{call:?}: an error without a kind: {message}")),
            (result, None) => self.handle_answer(connection, call, result),
        }
    }

    fn handle_event(&mut self, connection: u32, method: &str, params: &Value) {
        // What a superseded connection still says was under way before it lost the session.
        if self.connections.get(&connection).is_none_or(|known| known.superseded) {
            return;
        }
        let Some(name) = params["processId"].as_str().map(str::to_owned) else {
            return self.wrong(format_args!("{method} without a process"));
        };
        if let Some(seq) = params["seq"].as_u64().or(params["fromSeq"].as_u64()) {
            self.note_number(connection, &name, seq);
        }
        let Some(view) = self.views.get_mut(&name) else {
            return self.wrong(format_args!("{method} of unknown {name}"));
        };
        let whole = match method {
            "process/output" => view.handle_chunk(params, true),
            "process/exited" => view.handle_exited_event(params),
            "process/closed" => view.handle_closed_event(params),
            "process/gap" => {
                view.handle_gap(params);
                true
            }
            other => return self.wrong(format_args!("event {other}")),
        };
        match (whole, self.kind) {
            (true, _) => self.ack_if_due(&name),
            (false, Kind::Acknowledges) => {
                self.wrong(format_args!("{name}: {method} #{} jumps over what was not taken", params["seq"]));
            }
            // What was sent counts as taken: a resumed reference client reads what the cut swallowed.
            (false, Kind::Reference) => self.read(&name, 0),
        }
    }

    fn ack_if_due(&mut self, name: &str) {
        let due = self.views.get(name).is_some_and(|view| view.unacked >= 32 << 10 || view.exited.is_some());
        if due && self.acks_promptly {
            self.ack(name);
        }
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
                let status = Self::accepted(&result["status"]);
                self.trace(format_args!("write {name} {index}: {}", result["status"]));
                match (self.views.get_mut(&name), status) {
                    (Some(view), Some(_)) => view.writes[index].status = status,
                    _ => self.wrong(format_args!("write {name} {index}: {result}")),
                }
            }
            Call::CloseStdin(name) => {
                self.trace(format_args!("close stdin of {name}: {}", result["status"]));
                match (self.views.get_mut(&name), Self::accepted(&result["status"])) {
                    (Some(view), Some(status)) => view.close_stdin = Some(Some(status)),
                    _ => self.wrong(format_args!("close stdin of {name}: {result}")),
                }
            }
            Call::Read(name) => self.handle_read(&name, result),
            Call::Command(name) => self.trace(format_args!("command on {name}: {result}")),
            Call::List => {
                for process in result["processes"].as_array().into_iter().flatten() {
                    let (id, blocked) = (&process["processId"], &process["blocked"]);
                    let (retained, written) = (&process["retainedBytes"], &process["outputBytes"]);
                    self.trace(format_args!("list: {id} blocked {blocked}, {retained} of {written} bytes"));
                    if !blocked.is_null() {
                        self.stage.trace.count(Branch::Blocked);
                    }
                    if retained.as_u64() > self.retained_max {
                        self.wrong(format_args!("{id} retains {retained} bytes, allowed {:?}", self.retained_max));
                    }
                }
            }
            Call::EndSession => {
                self.trace(format_args!("session ended"));
                self.ended = true;
            }
            Call::Stale => self.wrong(format_args!("a superseded connection was obeyed: {result}")),
        }
    }

    fn handle_initialized(&mut self, connection: u32, arrival: Arrival, result: &Value) {
        let id = result["sessionId"].as_str().map(str::to_owned);
        match (&self.session, arrival) {
            (None, Arrival::New) => self.session = id,
            (known, Arrival::Resume | Arrival::TakeOver) if *known == id => {}
            _ => self.wrong(format_args!("{arrival:?} gave another session")),
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
            (Call::Initialize(_), "sessionExpired" | "unknownSession") => {
                self.refused = Some(kind.to_owned());
                self.connections.remove(&connection);
            }
            (Call::Start(name), "duplicateProcess") => self.handle_started_before(name),
            (Call::Start(name), "startCancelled") => {
                if let Some(view) = self.views.get_mut(name)
                    && view.asked_to_die
                {
                    view.start = Start::Cancelled;
                    view.writes.iter_mut().for_each(|write| write.status = Some(Accepted::No));
                }
            }
            // Its start was called off.
            (Call::Read(name), "unknownProcess") if self.is_called_off(name) => {}
            _ => self.wrong(format_args!("{call:?} failed: {kind}")),
        }
    }

    fn is_called_off(&self, name: &str) -> bool {
        self.views.get(name).is_some_and(|view| view.asked_to_die)
    }

    fn handle_started_before(&mut self, name: &str) {
        match self.views.get_mut(name) {
            Some(view) if matches!(view.start, Start::Asked(2..) | Start::Done) => {
                view.start = Start::Done;
                self.stage.trace.count(Branch::StartRetry);
            }
            _ => self.wrong(format_args!("{name} is taken although it was asked for once")),
        }
    }

    /// Notes an event's number; on one connection they only grow.
    fn note_number(&mut self, connection: u32, name: &str, seq: u64) {
        let Some(seen) = self.connections.get_mut(&connection).map(|known| &mut known.seen) else { return };
        let before = seen.insert(name.to_owned(), seq);
        if before.is_some_and(|before| before >= seq) {
            self.wrong(format_args!("{name} #{seq} after #{} on one connection", before.unwrap_or(0)));
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
