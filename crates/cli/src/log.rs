//! Sets up logging to stderr, as text for people or as JSON for programs.

mod json;

use std::io;

use anyhow::Context as _;
use tracing_subscriber::{EnvFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::{args::LogFormat, printable};

/// Stderr with control characters escaped, because log lines can contain text from servers. The formatter writes whole lines.
struct CleanStderr;

impl io::Write for CleanStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = printable::clean_coloured(&String::from_utf8_lossy(bytes));
        io::Write::write_all(&mut io::stderr(), text.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::Write::flush(&mut io::stderr())
    }
}

/// Starts logging with the given filter.
pub(crate) fn init(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| format!("read log filter `{filter}`"))?;
    match format {
        LogFormat::Text => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(|| CleanStderr)
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            // Otherwise the subscriber would report a closed stderr on stderr, and panic.
            .log_internal_errors(false)
            .init(),
        LogFormat::Json => tracing_subscriber::registry().with(filter).with(json::Json).init(),
    }
    Ok(())
}
