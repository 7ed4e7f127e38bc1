//! The words of `mcp bridge`.
//! Must not act on them.

use clap::Args;

use crate::args::client::Connect;

/// Flags of `mcp bridge`.
#[derive(Debug, Args)]
pub(crate) struct Bridge {
    #[command(flatten)]
    pub(crate) connect: Connect,
}
