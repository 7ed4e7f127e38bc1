//! A test-only MCP server, on standard streams or streamable HTTP, that can misbehave in every way a real one does.
//!
//! Written by hand on serde_json, clap and the standard library: it shares no line with what it tests, so that a mistake there cannot
//! hide here. `flags` owns the command line, `server` the protocol, `tools` what can be called, `stdio` and `http` the two
//! transports. It must not be used for anything but tests.

#![expect(clippy::disallowed_methods, reason = "a test program: it reads its arguments, waits and starts children")]

mod flags;
mod http;
mod server;
mod stdio;
mod tools;

use std::{
    io::{self, Write as _},
    process::{Command, ExitCode, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use clap::Parser as _;

use crate::{flags::Flags, server::Server};

fn main() -> ExitCode {
    let server = match Server::new(Flags::parse()) {
        Ok(server) => Arc::new(server),
        Err(error) => {
            eprintln!("test_mcp_server: open the journal: {error}");
            return ExitCode::from(2);
        }
    };
    if let Some(end) = misbehave_at_start(&server) {
        return end;
    }
    match &server.flags.http {
        None => stdio::run(&server),
        Some(address) => http::run(&server, address),
    }
}

/// Faults before the first message.
fn misbehave_at_start(server: &Server) -> Option<ExitCode> {
    let flags = &server.flags;
    if let Some(text) = &flags.stderr {
        eprintln!("{text}");
    }
    if let Some(megabytes) = flags.flood_stderr {
        thread::spawn(move || flood(megabytes));
    }
    if server.starts() <= flags.fail_starts {
        return Some(ExitCode::FAILURE);
    }
    if let Some(code) = flags.exit_at_once {
        return Some(ExitCode::from(code));
    }
    if flags.fork_and_exit {
        // The child keeps our streams open, and no process answers on them.
        let child = Command::new("sleep").arg("1000").stdin(Stdio::inherit()).stdout(Stdio::inherit()).spawn();
        return Some(if child.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    thread::sleep(Duration::from_millis(flags.slow_start_ms));
    None
}

/// Lines of a hundred bytes, as fast as they are taken.
fn flood(megabytes: usize) {
    let line = format!("{}\n", "flood ".repeat(17).trim_end());
    let block = line.repeat(10_000);
    for _ in 0..megabytes {
        // Standard output is closed on purpose.
        if io::stderr().write_all(block.as_bytes()).is_err() {
            return;
        }
    }
}
