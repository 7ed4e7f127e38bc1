//! The program itself: its startup time and its file size.

use super::{TRUE, baselines, table::short};
use crate::prelude::*;
use exec_server_workspace::cargo;

/// How long a server may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time from the start of the program to its URL, with a new state directory; compared with running `true`.
pub(super) fn startup(setting: &BenchSetting<'_>) -> Result<Report> {
    let rounds = setting.pick(5, 21);
    let (mut times, mut bare) = (Vec::new(), Vec::new());
    // The first round loads the program into memory and is not counted.
    for round in 0..=rounds {
        let plain = baselines::timed(Command::new(TRUE))? / 1e3;
        let setup = Setup::new(&setting.binary)?;
        let begun = Instant::now();
        let server = setup.start()?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        server.stop()?;
        setup.wait_gone(PATIENCE)?;
        if round > 0 {
            times.push(took);
            bare.push(plain);
        }
    }
    let note = format!("`true` takes {} ms", short(median(bare)));
    Ok(vec![Row::new("start of the server until its URL is printed", "ms").values(times).at_most(15.0).note(note)]
        .into())
}

/// The size of the program without symbols.
pub(super) fn size(setting: &BenchSetting<'_>) -> Result<Report> {
    let row = Row::new("stripped program", "MB").at_most(12.0);
    if cfg!(debug_assertions) {
        return Ok(vec![row.note("not of a release build")].into());
    }
    let folder = tempfile::tempdir()?;
    let stripped = folder.path().join("stripped");
    cargo::check(Command::new("strip").arg("-o").arg(&stripped).arg(&setting.binary)).context("strip the program")?;
    let bytes = |path| fs::metadata(path).map(|metadata| metadata.len() as f64 / 1e6);
    let note = format!("{} MB as built", short(bytes(&setting.binary)?));
    Ok(vec![row.values(vec![bytes(&stripped)?]).note(note)].into())
}
