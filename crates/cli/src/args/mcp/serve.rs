//! The words of `mcp serve`.
//! Must not act on them.

use clap::Args;

use crate::args::client::Connect;

/// Flags of `mcp serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeMcp {
    #[command(flatten)]
    pub(crate) connect: Connect,
}
