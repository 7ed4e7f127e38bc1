//! F19: a holder is killed at every step of writing its logs; the data on disk is a prefix without a torn record.
//!
//! An example program of the holder's crate implements the steps and the check. It is built with the feature `failpoints`, which no other
//! build has. This module starts it and parses its last line.

use crate::prelude::*;
use exec_server_workspace::cargo;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let seeds = setting.pick(1, 20, 1000);
    // CI uses the same seeds every time; a full run draws new ones.
    let from = setting.pick(1, setting.seed, setting.seed);
    let mut command = cargo::command(cargo::crash_example()?, &[]);
    command.args(["--seeds", &seeds.to_string(), "--from", &from.to_string()]);
    let output = command.stderr(std::process::Stdio::inherit()).output().context("start the program of F19")?;
    ensure!(output.status.success(), "seeds {from} to {}: {}", from + seeds - 1, output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let figure = |name: &str| {
        let mut words = text.split_whitespace().skip_while(|word| *word != name);
        words.nth(1).and_then(|word| word.parse::<u64>().ok()).with_context(|| format!("no `{name}` in: {text}"))
    };
    // The last run of each seed ends by itself.
    let killed = figure("lives")? - seeds;
    Figures::survived(killed).set("bytes", figure("bytes")?).set("seeds", seeds).set("from", from).only_line()
}
