//! The flags of `serve` that set limits. Except for `--overflow`, their help, defaults and ranges come from the list in `limits`; only
//! their types are here.

use std::time::Duration;

use clap::{Args, ValueEnum};
use exec_server_holder as holder;
use exec_server_protocol::process::Overflow;
use exec_server_server::core::Config;

use super::values;
use crate::limits::{
    self,
    LimitValue::{Bytes, Count, Time},
};

/// Limits that users set.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    #[arg(long, value_name = "SIZE")]
    memory_per_process: u64,
    #[arg(long, value_name = "SIZE")]
    disk_per_process: u64,
    #[arg(long, value_name = "SIZE")]
    disk_floor: u64,
    /// When the log of a process is full: block the process, or drop its oldest output and report a gap. A start can override it
    #[arg(long, value_enum, default_value_t = OverflowArg::Block)]
    overflow: OverflowArg,
    #[arg(long, value_name = "N")]
    closed_processes: u64,
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    closed_for: Duration,
    #[arg(long, value_name = "N")]
    max_processes: u64,
    #[arg(long, value_name = "N")]
    max_sessions: u64,
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    takeover_after: Duration,
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    ping_every: Duration,
    #[arg(long, value_name = "DUR", value_parser = values::duration)]
    dead_after: Duration,
    #[arg(long, value_name = "SIZE")]
    ack_window: u64,
    #[arg(long, value_name = "SIZE")]
    incoming_memory: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OverflowArg {
    Block,
    DropOldest,
}

impl LimitArgs {
    /// Checks that involve more than one flag.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.dead_after <= self.ping_every {
            let dead = Time(self.dead_after);
            let ping = Time(self.ping_every);
            return Err(format!("--dead-after ({dead}) must be longer than --ping-every ({ping})"));
        }
        Ok(())
    }

    /// Writes the limits into the configuration of the core.
    pub(crate) fn apply(&self, config: &mut Config) {
        config.memory_cap_bytes = self.memory_per_process;
        config.overflow = match self.overflow {
            OverflowArg::Block => Overflow::Block,
            OverflowArg::DropOldest => Overflow::DropOldest,
        };
        config.closed_processes = count(self.closed_processes);
        config.closed_kept = self.closed_for;
        config.processes_max = count(self.max_processes);
        config.sessions_max = count(self.max_sessions);
        config.takeover_after = self.takeover_after;
        config.ping_every = self.ping_every;
        config.dead_after = self.dead_after;
        config.ack_window_bytes = self.ack_window;
        config.incoming_bytes = count(self.incoming_memory);
    }

    /// The limits for holders.
    pub(crate) fn holder_limits(&self) -> holder::HolderLimits {
        let mut limits =
            holder::HolderLimits { disk_quota_bytes: self.disk_per_process, ..holder::HolderLimits::default() };
        if self.disk_floor != limits.free_floor_bytes {
            // The smaller of the two floors applies, so 100 percent means exactly the given size. The default size keeps its percentage,
            // even if the user passes it explicitly.
            limits.free_floor_bytes = self.disk_floor;
            limits.free_floor_percent = 100;
        }
        limits
    }
}

/// Gives the flags that set limits their help, default and range.
pub(super) fn describe(mut serve: clap::Command) -> clap::Command {
    for limit in limits::all() {
        let Some(flag) = limit.flag else { continue };
        let help = limit.help();
        let default = limit.default.to_string();
        serve = serve.mut_arg(flag.replace('-', "_"), |arg| {
            let arg = arg.help(help).required(false).default_value(default);
            let Some(range) = limit.range else { return arg };
            match range {
                (Bytes(least), Bytes(most)) => arg.value_parser(values::size_within(least, most)),
                (Time(least), Time(most)) => arg.value_parser(values::time_within(least, most)),
                (Count(least), Count(most)) => arg.value_parser(values::count_within(least, most)),
                (least, most) => unreachable!("a range of two kinds: {least} and {most}"),
            }
        });
    }
    serve
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
