//! An MCP server with one echo tool, and a client that detects what was lost, repeated or changed on the way.
//!
//! The server (a child mode of the tools) counts the calls that reach it and identifies each by its own number, so a request that arrives twice
//! is detected on the far side. Its answers come late and in any order. This module does not depend on links, servers and their faults.

use std::{
    collections::HashSet,
    io::{self, Write as _},
};

use crate::prelude::*;
use exec_server_harness::mcp_client::McpClient;

/// Maximum number of unanswered calls.
const OPEN: usize = 8;

/// The exit code of a server at EOF.
pub(super) const CODE: i32 = 7;

/// The exit code of a server whose input was damaged.
const DAMAGED: i32 = 250;

/// The child mode.
pub(super) fn child() -> Result<()> {
    let (mut seen, mut calls, mut repeated) = (HashSet::new(), 0_u64, 0_u64);
    for line in io::stdin().lock().lines() {
        let line = line?;
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            eprintln!("input damaged: {line}");
            std::process::exit(DAMAGED);
        };
        let Some(id) = message.get("id").cloned() else { continue };
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "tools", "version": "1" },
                "pid": std::process::id(),
                "holder": std::os::unix::process::parent_id(),
            }),
            "tools/call" => {
                let arguments = &message["params"]["arguments"];
                calls += 1;
                repeated += u64::from(!seen.insert(arguments["number"].as_u64()));
                let delay = Duration::from_millis(arguments["delay_ms"].as_u64().unwrap_or_default());
                let content = json!({ "content": [{ "type": "text", "text": arguments["text"] }], "number": arguments["number"] });
                thread::spawn(move || {
                    thread::sleep(delay);
                    reply(&id, &content)
                });
                continue;
            }
            "tally" => json!({ "calls": calls, "repeated": repeated }),
            other => json!({ "unknown": other }),
        };
        reply(&id, &result)?;
    }
    std::process::exit(CODE)
}

fn reply(id: &Value, result: &Value) -> Result<()> {
    let line = format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    let mut stdout = io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    Ok(stdout.flush()?)
}

/// `exec-server mcp bridge` at this URL, with these words after its flags.
pub(super) fn bridge(binary: &Path, url: &str, keep: &str, words: &[&str]) -> Command {
    let mut command = parallel_runs::connected(binary, &["mcp", "bridge", "--wait", "10s", "--keep", keep], url);
    command.arg("--").args(words);
    command
}

/// An unanswered call.
struct OpenCall {
    number: u64,
    text: String,
    asked: Instant,
    delay: Duration,
}

/// A conversation through a bridge.
pub(super) struct BridgeConversation {
    /// The bridge; its stderr has the messages about its link.
    pub(super) client: McpClient,
    random: Random,
    open: HashMap<u64, OpenCall>,
    next_number: u64,
    /// The pid of the holder of the server on the executor.
    pub(super) holder: u32,
    /// Bytes of answers that were checked.
    pub(super) bytes: u64,
    /// Milliseconds from each request to its answer, without the server's deliberate delay.
    pub(super) times: Vec<f64>,
}

impl BridgeConversation {
    /// Starts a bridge and performs the MCP handshake through it.
    pub(super) fn begin(binary: &Path, url: &str, random: Random) -> Result<Self> {
        let program = records::program()?;
        let mut client = McpClient::start(&mut bridge(binary, url, "5m", &[&program, "mcp"]))?;
        let server = client.initialize()?;
        let holder = u32::try_from(server["holder"].as_u64().context("no holder")?)?;
        Ok(Self { client, random, open: HashMap::new(), next_number: 1, holder, bytes: 0, times: Vec::new() })
    }

    /// Sends calls until enough are open, and receives one answer.
    pub(super) fn step(&mut self) -> Result<()> {
        while self.open.len() < OPEN {
            self.ask()?;
            if self.random.one_in(3) {
                break; // Not always the maximum.
            }
        }
        self.take()
    }

    fn ask(&mut self) -> Result<()> {
        let number = self.next_number;
        self.next_number += 1;
        // Mostly short, as calls are; some larger than a pipe and than a chunk.
        let most = if self.random.one_in(16) { 200_000 } else { 4000 };
        let length = usize::try_from(self.random.between(0, most))?;
        let text: String = (0..length).map(|at| char::from(b'a' + ((number + at as u64) % 26) as u8)).collect();
        let delay_ms = self.random.between(0, 30);
        let arguments = json!({ "number": number, "delay_ms": delay_ms, "text": text });
        let asked = Instant::now();
        let id = self.client.ask("tools/call", &json!({ "name": "say", "arguments": arguments }))?;
        self.open.insert(id, OpenCall { number, text, asked, delay: Duration::from_millis(delay_ms) });
        Ok(())
    }

    /// Receives one answer, which must belong to an open call.
    fn take(&mut self) -> Result<()> {
        let message = self.client.next_message()?;
        let id = message["id"].as_u64().with_context(|| format!("not an answer: {message}"))?;
        let open =
            self.open.remove(&id).with_context(|| format!("question {id} was answered twice, or never asked"))?;
        let result = &message["result"];
        ensure!(result["number"] == open.number, "question {id} got the answer to number {}", result["number"]);
        ensure!(result["content"][0]["text"] == *open.text, "the answer to question {id} is damaged");
        self.bytes += open.text.len() as u64;
        self.times.push(open.asked.elapsed().saturating_sub(open.delay).as_secs_f64() * 1e3);
        Ok(())
    }

    /// Receives all outstanding answers, and asks the server how many calls it got.
    pub(super) fn settle(&mut self) -> Result<()> {
        while !self.open.is_empty() {
            self.take()?;
        }
        ensure!(!self.client.has_next()?, "an answer too many");
        let tally = self.client.call("tally", &json!({}))?;
        let asked = self.next_number - 1;
        ensure!(
            tally["calls"] == asked && tally["repeated"] == 0,
            "{asked} calls were made, and the server heard {} of which {} came again",
            tally["calls"],
            tally["repeated"]
        );
        Ok(())
    }

    /// Disconnects; the server ends by itself, and the bridge with the same code.
    pub(super) fn end(self) -> Result<()> {
        let status = self.client.end(Duration::from_secs(10))?;
        ensure!(status.code() == Some(CODE), "the bridge ended with {status}, not with its server's {CODE}");
        Ok(())
    }

    /// How many calls were made.
    pub(super) fn calls(&self) -> u64 {
        self.next_number - 1
    }
}
