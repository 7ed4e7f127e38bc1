//! What is logged, on standard error, for people or for programs. Must not know what is worth a line.

mod json;

use std::io;

use anyhow::Context as _;
use tracing_subscriber::{EnvFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::args::LogFormat;

/// Logs what the filter lets through, from now on.
pub(crate) fn init(filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| format!("read log filter `{filter}`"))?;
    match format {
        LogFormat::Text => tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
            // It would report a closed stderr on stderr, and panic there.
            .log_internal_errors(false)
            .init(),
        LogFormat::Json => tracing_subscriber::registry().with(filter).with(json::Json).init(),
    }
    Ok(())
}
