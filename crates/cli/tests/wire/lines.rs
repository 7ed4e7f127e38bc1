//! A connection of any transport, and a server or a relay on its standard streams.

use std::{
    io::{BufRead, Write},
    process::ChildStdin,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread::JoinHandle,
};

use crate::prelude::*;

/// A connection of any transport, one message at a time.
pub(crate) trait Wire {
    fn send(&mut self, text: &str);
    fn receive(&mut self) -> Value;

    /// Calls a method; notifications before the answer are dropped.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.send(&json!({"id": "call", "method": method, "params": params}).to_string());
        loop {
            let message = self.receive();
            if message.get("method").is_none() {
                assert_eq!(message["id"], "call");
                return message;
            }
        }
    }

    fn initialize(&mut self) -> String {
        let answer = self.call("initialize", json!({"clientName": "test"}));
        self.send(r#"{"method":"initialized","params":{}}"#);
        answer["result"]["sessionId"].as_str().expect("a session id").to_owned()
    }

    /// Starts a process; returns its output, exit code and sequence numbers.
    fn run(&mut self, params: Value) -> (Vec<u8>, Value, Vec<u64>) {
        self.send(&json!({"id": "run", "method": "process/start", "params": params}).to_string());
        let (mut bytes, mut code, mut seqs) = (Vec::new(), Value::Null, Vec::new());
        loop {
            let message = self.receive();
            let event = &message["params"];
            seqs.extend(event["seq"].as_u64());
            match message["method"].as_str() {
                Some("process/output") => bytes.extend(decoded(&event["chunk"])),
                Some("process/exited") => code = event["exitCode"].clone(),
                Some("process/closed") => return (bytes, code, seqs),
                _ => assert!(message["result"]["pid"].is_u64(), "{message}"),
            }
        }
    }
}

impl Wire for Client {
    fn send(&mut self, text: &str) {
        self.send_text(text);
    }

    fn receive(&mut self) -> Value {
        self.next()
    }
}

/// A server on its standard streams.
pub(crate) struct Lines {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    messages: Receiver<Value>,
    reader: Option<JoinHandle<()>>,
    /// The argument by which its processes are found, and its directory.
    home: Option<(String, TempDir)>,
}

impl Lines {
    pub(crate) fn start(name: &str) -> Self {
        Self::start_with(name, |command| command)
    }

    /// Starts the server with a changed command.
    pub(crate) fn start_with(name: &str, change: impl Fn(&mut Command) -> &mut Command) -> Self {
        let dir = tempfile::tempdir().expect("make a private directory");
        let mark = format!("stdio-{}-{name}.test", std::process::id());
        let mut command = TestServer::builder().default_state_dir().listen("stdio").command(dir.path(), &mark);
        Self::spawn(change(command.stderr(Stdio::inherit())), Some((mark, dir)))
    }

    /// Starts the server like the launcher of the first generation: no arguments, and two pipes.
    pub(crate) fn start_without_arguments() -> Self {
        let dir = tempfile::tempdir().expect("make a private directory");
        let (mut command, mark) = (Command::new(binary()), dir.path().display().to_string());
        command.env_remove("EXEC_SERVER_TOKEN");
        for name in ["HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "TMPDIR"] {
            command.env(name, dir.path());
        }
        Self::spawn(&mut command, Some((mark, dir)))
    }

    /// Starts any program that speaks the protocol on its standard streams.
    pub(crate) fn spawn(command: &mut Command, home: Option<(String, TempDir)>) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start exec-server");
        let (sender, messages) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let reader = thread::spawn(move || {
            for line in stdout.lines() {
                let line = line.expect("the server writes lines");
                let message = serde_json::from_str(&line).expect("nothing but messages is on standard output");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, messages, reader: Some(reader), home }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(bytes).and_then(|()| stdin.flush()).expect("write to the server");
    }

    /// Ends its input; it must end without a failure.
    pub(crate) fn end(&mut self) {
        drop(self.stdin.take());
        assert_eq!(self.child.wait().expect("wait for exec-server").code(), Some(0));
    }

    /// Waits for the server to end without another message.
    pub(crate) fn wait_ended(&mut self) {
        assert!(matches!(self.messages.recv_timeout(DEADLINE), Err(RecvTimeoutError::Disconnected)));
        wait_for("end of the server", || matches!(self.child.try_wait(), Ok(Some(_))));
    }
}

impl Wire for Lines {
    fn send(&mut self, text: &str) {
        self.write(format!("{text}\n").as_bytes());
    }

    fn receive(&mut self) -> Value {
        self.messages.recv_timeout(DEADLINE).expect("a message within the deadline")
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if thread::panicking() {
            self.child.kill().ok(); // The panic is reported elsewhere.
        }
        wait_for("end of the server", || matches!(self.child.try_wait(), Ok(Some(_))));
        if let Some(reader) = self.reader.take().filter(|_| !thread::panicking()) {
            reader.join().expect("the reader does not panic");
            self.home.iter().for_each(|(mark, _)| wait_gone("holders of the server", &marked(mark)));
        }
    }
}
