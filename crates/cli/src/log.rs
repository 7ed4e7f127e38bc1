//! What is logged, on standard error. Must not know what is worth a line.

use std::io;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

/// Logs what the filter lets through, from now on.
pub(crate) fn init(filter: &str) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter).with_context(|| format!("read log filter `{filter}`"))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        // It would report a closed stderr on stderr, and panic there.
        .log_internal_errors(false)
        .init();
    Ok(())
}
