//! A first-generation client: it uses `command/exec` without a handshake, and its processes end with the connection.
//!
//! Owns one connection and what was received on it. There, output arrives without sequence numbers, then the exit, and nothing after it.

use crate::{
    child,
    prelude::*,
    wire::{Arrival, WireConnection},
};

/// One first-generation client and its connection.
pub struct LegacyClient {
    /// The name in the trace. Also the prefix of its process names.
    pub name: String,
    context: WorldContext,
    pub link: SimLink,
    wire: Option<WireConnection>,
    calls: BTreeMap<u64, String>,
    next_call: u64,
    processes: BTreeMap<String, LegacyCommand>,
}

struct LegacyCommand {
    plan: Plan,
    taken: [u64; 2],
    exited: Option<i64>,
    kill_requested: bool,
}

impl LegacyClient {
    pub fn new(name: String, link: SimLink, stream: ByteStream, context: WorldContext) -> Rc<RefCell<Self>> {
        let legacy_client =
            Self { name, context, link, wire: None, calls: BTreeMap::new(), next_call: 0, processes: BTreeMap::new() };
        let legacy_client = Rc::new(RefCell::new(legacy_client));
        let listener = Rc::downgrade(&legacy_client);
        let wire = WireConnection::new(stream, move |arrival| {
            let Some(client) = listener.upgrade() else { return };
            let mut client = client.borrow_mut();
            match arrival {
                Arrival::Message(message) => client.handle(&message),
                Arrival::Ping => {}
                Arrival::End(why) => {
                    client.trace(format_args!("ended: {why}"));
                    client.wire = None;
                }
            }
        });
        legacy_client.borrow_mut().wire = Some(wire);
        legacy_client
    }

    fn trace(&self, what: std::fmt::Arguments<'_>) {
        self.context.trace.line(format_args!("{} {what}", self.name));
    }

    pub(crate) fn report_violation(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.context.trace.report_violation(invariant, format_args!("{}: {what}", self.name));
    }

    fn call(&mut self, what: String, method: &str, params: Value) {
        let Some(wire) = &self.wire else { return };
        self.next_call += 1;
        self.context.trace.sent(method);
        self.context.trace.line(format_args!("{} {what}", self.name));
        wire.send(&json!({"id": self.next_call, "method": method, "params": params}));
        self.calls.insert(self.next_call, what);
    }

    /// Whether it is connected.
    pub fn is_open(&self) -> bool {
        self.wire.is_some()
    }

    /// Whether one of its commands has not exited yet, as far as it knows.
    pub fn has_running(&self) -> bool {
        self.processes.values().any(|command| command.exited.is_none())
    }

    pub fn exec(&mut self, name: String, plan: Plan) {
        let argv = child::argv(&name, &plan.steps);
        let params = json!({"processId": name, "argv": argv, "cwd": "/", "env": {}, "tty": plan.tty});
        self.call(format!("exec {name}: {}", argv[2..].join(" ")), "command/exec", params);
        self.processes.insert(name, LegacyCommand { plan, taken: [0; 2], exited: None, kill_requested: false });
    }

    /// Writes to a running command. Only a terminal accepts it.
    pub fn write(&mut self) {
        let Some(name) =
            self.processes.iter().find(|(_, command)| command.exited.is_none()).map(|(name, _)| name.clone())
        else {
            return;
        };
        let params = json!({"processId": name, "chunk": base64::encode(b"typed")});
        self.call(format!("types into {name}"), "command/exec/write", params);
    }

    /// Terminates a running command.
    pub fn terminate(&mut self) {
        let Some((name, command)) = self.processes.iter_mut().find(|(_, command)| command.exited.is_none()) else {
            return;
        };
        command.kill_requested = true;
        let (params, what) = (json!({"processId": name}), format!("terminate {name}"));
        self.call(what, "command/exec/terminate", params);
    }

    /// Disconnects. Its commands must end.
    pub fn disconnect(&mut self) {
        self.trace(format_args!("leaves"));
        self.wire = None;
    }

    fn handle(&mut self, message: &Value) {
        if let Some(method) = message["method"].as_str() {
            return self.handle_event(method, &message["params"]);
        }
        let Some(what) = message["id"].as_u64().and_then(|id| self.calls.remove(&id)) else {
            return violation!(self, Answered, "an answer to nothing: {message}");
        };
        let kind = message["error"]["data"]["kind"].as_str();
        self.trace(format_args!("{what}: {}", kind.unwrap_or("done")));
        match kind {
            None | Some("stdinClosed" | "unknownProcess" | "draining") => {}
            Some(kind) => violation!(self, Answered, "{what}: {kind}"),
        }
    }

    fn handle_event(&mut self, method: &str, params: &Value) {
        let name = params["processId"].as_str().unwrap_or("").to_owned();
        let Some(command) = self.processes.get_mut(&name) else {
            return violation!(self, Wire, "{method} of unknown {name}");
        };
        if command.exited.is_some() {
            return violation!(self, End, "{name}: {method} after its exit");
        }
        let record = self.context.records.get(&name);
        match method {
            "command/exec/outputDelta" => {
                let stream = usize::from(params["stream"] == "stderr");
                let bytes = params["chunk"].as_str().and_then(|chunk| base64::decode(chunk).ok()).unwrap_or_default();
                let at = command.taken[stream];
                command.taken[stream] += bytes.len() as u64;
                if text(&name, stream, at, bytes.len()) != bytes || command.taken[stream] > record.written[stream] {
                    violation!(self, Prefix, "{name}: {} bytes are not those at {at}", bytes.len());
                }
            }
            "command/exec/exited" => {
                command.exited = params["exitCode"].as_i64();
                self.context.trace.count(Branch::FirstGeneration);
                let (taken, code) = (command.taken, command.exited);
                let is_lost = record.lost && code == Some(-1);
                if !is_lost && (code != record.exit.map(i64::from) || taken != record.written) {
                    let really = (record.exit, record.written);
                    violation!(self, End, "{name} exited {code:?} with {taken:?}, really {really:?}");
                }
            }
            _ => violation!(self, Wire, "event {method}"),
        }
    }

    /// A call that was not answered, while it is connected.
    pub fn first_pending_call(&self) -> Option<String> {
        self.calls.values().next().cloned().filter(|_| self.is_open())
    }

    /// Checks that no command was spawned twice, and that none outlives the connection.
    pub fn check_end(&self) {
        for (name, command) in &self.processes {
            let record = self.context.records.get(name);
            if record.spawns > 1 {
                violation!(self, Start, "{name} was spawned {} times", record.spawns);
            }
            if !self.is_open() && record.spawns > 0 && record.exit.is_none() {
                violation!(self, Expiry, "{name} ({:?}) outlives its connection", command.plan.steps);
            }
        }
    }
}
