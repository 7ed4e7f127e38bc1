//! An MCP client over standard streams that shares no code with ours: one JSON object per line.
//!
//! Runs a program that speaks MCP: a server, or a bridge to one. Reads in the caller's thread, so that a call takes only as long as the
//! program does.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::fd::AsFd as _,
    process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::environment::{OwnedChild, wait_child};

/// Longer than any answer may take, including the first start of a package on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The version of MCP that is offered.
const VERSION: &str = "2025-06-18";

/// More pages than any list has.
const PAGES: usize = 100;

/// A running program that speaks MCP.
pub struct McpClient {
    child: OwnedChild,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// Bytes that were read but are not a whole line yet, or were not requested yet.
    buffer: Vec<u8>,
    next_id: u64,
    /// Gets its stderr: a descendant may outlive the program and hold a pipe open.
    stderr: NamedTempFile,
}

impl McpClient {
    /// Starts the program without sending anything.
    pub fn start(command: &mut Command) -> Result<Self> {
        let name = format!("{command:?}");
        let stderr = NamedTempFile::new()?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr.reopen()?);
        let mut child = OwnedChild(command.spawn().with_context(|| format!("start `{name}`"))?);
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("standard output is a pipe")?;
        Ok(Self { child, stdin, stdout, buffer: Vec::new(), next_id: 1, stderr })
    }

    /// Its stderr so far.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.stderr.path()).unwrap_or_default()).into_owned()
    }

    /// Performs the handshake; returns the server's `initialize` result.
    pub fn initialize(&mut self) -> Result<Value> {
        let params = json!({
            "protocolVersion": VERSION,
            "capabilities": { "roots": {}, "sampling": {}, "elicitation": {} },
            "clientInfo": { "name": "xtask", "version": "1" },
        });
        let server = self.call("initialize", &params)?;
        self.notify("notifications/initialized", &json!({}))?;
        Ok(server)
    }

    /// Sends a request and returns its result. Requests of the server in the meantime are answered, notifications ignored.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        let id = self.ask(method, params)?;
        loop {
            let mut message = self.next_message()?;
            if message.get("method").is_some() {
                self.answer(&message)?;
                continue;
            }
            ensure!(message["id"] == id, "`{method}` ({id}) got an answer to another question: {message}");
            if let Some(error) = message.get("error") {
                bail!("`{method}`: {error}");
            }
            return Ok(message["result"].take());
        }
    }

    /// All entries of a list, through all of its pages.
    pub fn list(&mut self, method: &str, of: &str) -> Result<Vec<Value>> {
        let (mut all, mut cursor) = (Vec::new(), Value::Null);
        for _ in 0..PAGES {
            let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
            let mut page = self.call(method, &params)?;
            match page[of].take() {
                Value::Array(entries) => all.extend(entries),
                other => bail!("`{method}` gave no `{of}`: {other}"),
            }
            cursor = page["nextCursor"].take();
            if cursor.is_null() {
                return Ok(all);
            }
        }
        bail!("`{method}` has more than {PAGES} pages")
    }

    /// Sends a request without waiting; returns its id.
    pub fn ask(&mut self, method: &str, params: &Value) -> Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        Ok(id)
    }

    pub fn notify(&mut self, method: &str, params: &Value) -> Result<()> {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        let stdin = self.stdin.as_mut().context("standard input was closed")?;
        let sent = stdin.write_all(format!("{message}\n").as_bytes());
        sent.with_context(|| format!("send to it; it said: {}", self.stderr_text()))
    }

    /// The next message. Anything else on stdout is an error.
    pub fn next_message(&mut self) -> Result<Value> {
        let line = self.line()?.with_context(|| format!("it ended its output; it said: {}", self.stderr_text()))?;
        serde_json::from_slice(&line).with_context(|| format!("not a message: {}", String::from_utf8_lossy(&line)))
    }

    /// Whether a message, or EOF, has already arrived.
    pub fn has_next(&self) -> Result<bool> {
        Ok(self.buffer.contains(&b'\n') || self.wait(Duration::ZERO)?)
    }

    /// The next line; `None` at EOF. Bytes after the last newline are an error.
    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut looked = 0;
        loop {
            if let Some(at) = self.buffer[looked..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(looked + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            looked = self.buffer.len();
            ensure!(self.wait(PATIENCE)?, "nothing came within {PATIENCE:?}; it said: {}", self.stderr_text());
            let mut part = [0; 16 << 10];
            let count = self.stdout.read(&mut part)?;
            if count == 0 {
                ensure!(self.buffer.is_empty(), "half a line: {}", String::from_utf8_lossy(&self.buffer));
                return Ok(None);
            }
            self.buffer.extend_from_slice(&part[..count]);
        }
    }

    fn wait(&self, patience: Duration) -> rustix::io::Result<bool> {
        let patience = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
        let mut stdout = [PollFd::from_borrowed_fd(self.stdout.as_fd(), PollFlags::IN)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut stdout, Some(&patience))).map(|ready| ready > 0)
    }

    /// Answers a request of the server, so that the server can continue.
    fn answer(&mut self, message: &Value) -> Result<()> {
        let Some(id) = message.get("id") else { return Ok(()) };
        let result = match message["method"].as_str().unwrap_or_default() {
            "ping" => json!({}),
            "roots/list" => json!({ "roots": [] }),
            "sampling/createMessage" => {
                json!({ "model": "none", "role": "assistant", "content": { "type": "text", "text": "sampled" } })
            }
            "elicitation/create" => json!({ "action": "decline" }),
            other => bail!("the server asks for `{other}`"),
        };
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }))
    }

    /// Closes its stdin, like a client that disconnects.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// Waits for its end; its output must end too, without a further answer.
    pub fn end(mut self, within: Duration) -> Result<ExitStatus> {
        self.close();
        let status = wait_child(&mut self.child, within)?
            .with_context(|| format!("it did not end within {within:?}; it said: {}", self.stderr_text()))?;
        while let Some(line) = self.line()? {
            // The server may send notifications at the end; another answer would be a duplicate.
            let message: Value = serde_json::from_slice(&line).context("not a message at the end")?;
            ensure!(message.get("method").is_some(), "one answer too many: {message}");
        }
        Ok(status)
    }
}
