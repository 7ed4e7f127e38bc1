//! Standard streams: one message per line. All faults on standard output are made here.
//! Must not know what a message means.

use std::{
    io::{self, BufRead as _, Write as _},
    process::{self, ExitCode},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

use crate::server::{Out, Server};

struct Stdout {
    server: Arc<Server>,
    /// Held for a whole message.
    lock: Mutex<()>,
    /// The one-time fault has happened.
    has_erred: AtomicBool,
}

/// Serves until the end of the input.
pub(crate) fn run(server: &Arc<Server>) -> ExitCode {
    let out =
        Arc::new(Stdout { server: Arc::clone(server), lock: Mutex::default(), has_erred: AtomicBool::new(false) });
    for line in io::stdin().lock().split(b'\n') {
        let Ok(line) = line else { break };
        let message = match serde_json::from_slice::<Value>(&line) {
            Ok(message) => message,
            Err(error) => {
                eprintln!("test_mcp_server: skipped a line of {} bytes: {error}", line.len());
                continue;
            }
        };
        if Server::may_wait(&message) {
            let (server, out) = (Arc::clone(server), Arc::clone(&out));
            thread::spawn(move || out.answer(server.handle(&message, &*out), &message));
        } else {
            out.answer(server.handle(&message, &*out), &message);
        }
    }
    server.end_of_input()
}

impl Stdout {
    fn answer(&self, answer: Option<Value>, asked: &Value) {
        let Some(answer) = answer else { return };
        let flags = &self.server.flags;
        let is_call = asked["method"] == "tools/call";
        if flags.stdout_logs {
            self.write(b"INFO a line of a log\n\n{}\n[1, 2]\n{\"jsonrpc\": \"2.0\"}\nhalf {\n");
        }
        if flags.invalid_utf8 {
            self.write(b"{\"jsonrpc\": \"2.0\", \"method\": \"\xff\xfe\"}\n");
        }
        if is_call && (flags.half_message || flags.long_line.is_some()) && !self.has_erred.swap(true, Ordering::Relaxed)
        {
            if let Some(bytes) = flags.long_line {
                let params = json!({"level": "info", "data": "x".repeat(bytes)});
                self.send(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}));
            }
            if flags.half_message {
                let text = answer.to_string();
                self.write(&text.as_bytes()[..text.len() / 2]);
                process::exit(0);
            }
        }
        self.send(&answer);
        if flags.close_stdout && !self.has_erred.swap(true, Ordering::Relaxed) {
            let nowhere = std::fs::File::create("/dev/null").expect("open /dev/null");
            rustix::stdio::dup2_stdout(nowhere).expect("close standard output");
        }
    }

    fn write(&self, bytes: &[u8]) {
        let held = self.lock.lock().expect("no writer panics");
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
        drop(held);
        if written.is_err() {
            // The client has closed its end.
            process::exit(0);
        }
    }
}

impl Out for Stdout {
    fn send(&self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }
}
