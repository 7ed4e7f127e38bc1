//! A first-generation client: it uses `command/exec` without a handshake, and its processes end with the connection.
//!
//! Owns one connection and what was received on it. There, output arrives without sequence numbers, then the exit, and nothing after it.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::{Rc, Weak},
};

use exec_server_protocol::base64;
use exec_server_rpc::Stream;
use serde_json::{Value, json};

use crate::{
    branch::Branch,
    child::{self, text},
    link::Link,
    stage::Stage,
    trace::Invariant,
    view::Plan,
    wire::{Ear, Wire},
};

/// One first-generation client and its connection.
pub struct Relic {
    /// The name in the trace. Also the prefix of its process names.
    pub name: String,
    stage: Stage,
    pub link: Link,
    wire: Option<Wire>,
    calls: BTreeMap<u64, String>,
    next_call: u64,
    processes: BTreeMap<String, Told>,
}

struct Told {
    plan: Plan,
    taken: [u64; 2],
    exited: Option<i64>,
    asked_to_die: bool,
}

struct Listener(Weak<RefCell<Relic>>);

impl Ear for Listener {
    fn heard(&self, _: u32, message: Value) {
        if let Some(relic) = self.0.upgrade() {
            relic.borrow_mut().handle(&message);
        }
    }

    fn pinged(&self, _: u32) {}

    fn ended(&self, _: u32, why: &str) {
        if let Some(relic) = self.0.upgrade() {
            let mut relic = relic.borrow_mut();
            relic.trace(format_args!("ended: {why}"));
            relic.wire = None;
        }
    }
}

impl Relic {
    pub fn new(name: String, link: Link, stream: Stream, stage: Stage) -> Rc<RefCell<Self>> {
        let relic =
            Self { name, stage, link, wire: None, calls: BTreeMap::new(), next_call: 0, processes: BTreeMap::new() };
        let relic = Rc::new(RefCell::new(relic));
        let wire = Wire::new(1, stream, Listener(Rc::downgrade(&relic)));
        relic.borrow_mut().wire = Some(wire);
        relic
    }

    fn trace(&self, what: std::fmt::Arguments<'_>) {
        self.stage.trace.line(format_args!("{} {what}", self.name));
    }

    fn wrong(&self, invariant: Invariant, what: std::fmt::Arguments<'_>) {
        self.stage.trace.fail(invariant, format_args!("{}: {what}", self.name));
    }

    fn call(&mut self, what: String, method: &str, params: Value) {
        let Some(wire) = &self.wire else { return };
        self.next_call += 1;
        self.stage.trace.sent(method);
        self.stage.trace.line(format_args!("{} {what}", self.name));
        wire.send(&json!({"id": self.next_call, "method": method, "params": params}));
        self.calls.insert(self.next_call, what);
    }

    /// Whether it is connected.
    pub fn is_open(&self) -> bool {
        self.wire.is_some()
    }

    /// Whether one of its commands has not exited yet, as far as it knows.
    pub fn has_running(&self) -> bool {
        self.processes.values().any(|told| told.exited.is_none())
    }

    pub fn exec(&mut self, name: String, plan: Plan) {
        let argv = child::argv(&name, &plan.steps);
        let params = json!({"processId": name, "argv": argv, "cwd": "/", "env": {}, "tty": plan.tty});
        self.call(format!("exec {name}: {}", argv[2..].join(" ")), "command/exec", params);
        self.processes.insert(name, Told { plan, taken: [0; 2], exited: None, asked_to_die: false });
    }

    /// Writes to a running command. Only a terminal accepts it.
    pub fn write(&mut self) {
        let Some(name) = self.processes.iter().find(|(_, told)| told.exited.is_none()).map(|(name, _)| name.clone())
        else {
            return;
        };
        let params = json!({"processId": name, "chunk": base64::encode(b"typed")});
        self.call(format!("types into {name}"), "command/exec/write", params);
    }

    /// Terminates a running command.
    pub fn terminate(&mut self) {
        let Some((name, told)) = self.processes.iter_mut().find(|(_, told)| told.exited.is_none()) else { return };
        told.asked_to_die = true;
        let (params, what) = (json!({"processId": name}), format!("terminate {name}"));
        self.call(what, "command/exec/terminate", params);
    }

    /// Disconnects. Its commands must end.
    pub fn leave(&mut self) {
        self.trace(format_args!("leaves"));
        self.wire = None;
    }

    fn handle(&mut self, message: &Value) {
        if let Some(method) = message["method"].as_str() {
            return self.handle_event(method, &message["params"]);
        }
        let Some(what) = message["id"].as_u64().and_then(|id| self.calls.remove(&id)) else {
            return self.wrong(Invariant::Answered, format_args!("an answer to nothing: {message}"));
        };
        let kind = message["error"]["data"]["kind"].as_str();
        self.trace(format_args!("{what}: {}", kind.unwrap_or("done")));
        match kind {
            None | Some("stdinClosed" | "unknownProcess" | "draining") => {}
            Some(kind) => self.wrong(Invariant::Answered, format_args!("{what}: {kind}")),
        }
    }

    fn handle_event(&mut self, method: &str, params: &Value) {
        let name = params["processId"].as_str().unwrap_or("").to_owned();
        let Some(told) = self.processes.get_mut(&name) else {
            return self.wrong(Invariant::Wire, format_args!("{method} of unknown {name}"));
        };
        if told.exited.is_some() {
            return self.wrong(Invariant::End, format_args!("{name}: {method} after its exit"));
        }
        let record = self.stage.records.get(&name);
        match method {
            "command/exec/outputDelta" => {
                let stream = usize::from(params["stream"] == "stderr");
                let bytes = params["chunk"].as_str().and_then(|chunk| base64::decode(chunk).ok()).unwrap_or_default();
                let at = told.taken[stream];
                told.taken[stream] += bytes.len() as u64;
                if text(&name, stream, at, bytes.len()) != bytes || told.taken[stream] > record.written[stream] {
                    self.wrong(Invariant::Prefix, format_args!("{name}: {} bytes are not those at {at}", bytes.len()));
                }
            }
            "command/exec/exited" => {
                told.exited = params["exitCode"].as_i64();
                self.stage.trace.count(Branch::FirstGeneration);
                let (taken, code) = (told.taken, told.exited);
                let is_lost = record.lost && code == Some(-1);
                if !is_lost && (code != record.exit.map(i64::from) || taken != record.written) {
                    let really = (record.exit, record.written);
                    self.wrong(
                        Invariant::End,
                        format_args!("{name} exited {code:?} with {taken:?}, really {really:?}"),
                    );
                }
            }
            _ => self.wrong(Invariant::Wire, format_args!("event {method}")),
        }
    }

    /// A call that was not answered, while it is connected.
    pub fn waits_for(&self) -> Option<String> {
        self.calls.values().next().cloned().filter(|_| self.is_open())
    }

    /// Checks that no command was spawned twice, and that none outlives the connection.
    pub fn check_end(&self) {
        for (name, told) in &self.processes {
            let record = self.stage.records.get(name);
            if record.spawns > 1 {
                self.wrong(Invariant::Start, format_args!("{name} was spawned {} times", record.spawns));
            }
            if !self.is_open() && record.spawns > 0 && record.exit.is_none() {
                self.wrong(Invariant::Expiry, format_args!("{name} ({:?}) outlives its connection", told.plan.steps));
            }
        }
    }
}
