//! How fast files are copied: a large one beside `cat`, a tree of many small ones beside `scp -r`, each to and from a server.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::{Rounds, Row, Setting};
use crate::{
    interop,
    random::Random,
    server::Setup,
    tree::{self, Plan},
};

pub(super) fn measure(setting: &Setting) -> Result<Vec<Row>> {
    let mut rows = beside_server(setting, |place| place.large(setting))?;
    // Whoever is beside an sshd looks at its end whether anybody is left; so the server goes before.
    let tree = |command: &dyn Fn(&str) -> Command| beside_server(setting, |place| place.tree(setting, command));
    rows.extend(interop::beside_sshd(&setting.binary, tree)?);
    Ok(rows)
}

fn beside_server(setting: &Setting, work: impl FnOnce(&Place<'_>) -> Result<Vec<Row>>) -> Result<Vec<Row>> {
    let setup = Setup::new(&setting.binary)?;
    let server = setup.start()?;
    let place = Place { binary: &setting.binary, url: &server.address.url, folder: setup.scratch() };
    let rows = work(&place)?;
    server.stop()?;
    setup.wait_gone(Duration::from_secs(5))?;
    Ok(rows)
}

struct Place<'a> {
    binary: &'a Path,
    url: &'a str,
    folder: &'a Path,
}

impl Place<'_> {
    fn large(&self, setting: &Setting) -> Result<Vec<Row>> {
        let (rounds, bytes) = setting.pick((1, 128 << 20), (5, 2 << 30));
        let (source, target) = (self.folder.join("large"), self.folder.join("target"));
        tree::large(&source, bytes, &mut Random::new(1))?;
        let (mut up, mut down) = (Rounds::default(), Rounds::default());
        for round in 0..=rounds {
            let mut cat = Command::new("/bin/sh");
            cat.args(["-c", "cat \"$0\" > \"$1\""]).args([&source, &target]);
            let bare = timed(cat, &target)?;
            let there = timed(self.copy(&source, true, &target, false), &target)?;
            let here = timed(self.copy(&source, false, &target, true), &target)?;
            if round > 0 {
                up.add(there, bare);
                down.add(here, bare);
            }
        }
        fs::remove_file(&source)?;
        let row = |name, rounds: &Rounds| Row {
            name,
            value: rounds.ratio(),
            unit: "x",
            target: Some(2.0),
            note: rounds.figures(&format!("ms for {} MiB", bytes >> 20)),
        };
        Ok(vec![row("cp of a large file to a server / cat", &up), row("cp of a large file from a server / cat", &down)])
    }

    fn tree(&self, setting: &Setting, command: &dyn Fn(&str) -> Command) -> Result<Vec<Row>> {
        let (rounds, files) = setting.pick((1, 300), (5, 10_000));
        let (source, target) = (self.folder.join("tree"), self.folder.join("copied"));
        tree::make(&source, Plan { files, large: 0 }, &mut Random::new(2))?;
        // What scp cannot copy in good order, or follows.
        fs::remove_dir_all(source.join("odd"))?;
        for link in links(&source)? {
            fs::remove_file(link)?;
        }
        let (mut up, mut down) = (Rounds::default(), Rounds::default());
        let remote = |path: &Path| format!("box:{}", path.display());
        for round in 0..=rounds {
            let mut scp_up = command("scp");
            scp_up.args(["-q", "-r", "-p"]).arg(&source).arg(remote(&target));
            let mut scp_down = command("scp");
            scp_down.args(["-q", "-r", "-p"]).arg(remote(&source)).arg(&target);
            let (bare_up, bare_down) = (timed(scp_up, &target)?, timed(scp_down, &target)?);
            let there = timed(self.copy(&source, true, &target, false), &target)?;
            let here = timed(self.copy(&source, false, &target, true), &target)?;
            if round > 0 {
                up.add(there, bare_up);
                down.add(here, bare_down);
            }
        }
        let row = |name, rounds: &Rounds| Row {
            name,
            value: rounds.ratio(),
            unit: "x",
            target: Some(1.0),
            note: rounds.figures(&format!("ms for {files} files")),
        };
        Ok(vec![
            row("cp -r of small files to a server / scp -r", &up),
            row("cp -r of small files from a server / scp -r", &down),
        ])
    }

    fn copy(&self, source: &Path, source_here: bool, target: &Path, target_here: bool) -> Command {
        let path = |path: &Path, is_here: bool| format!("{}{}", if is_here { "" } else { ":" }, path.display());
        let mut command = Command::new(self.binary);
        command.args(["cp", "-r", "--connect", self.url]).args([path(source, source_here), path(target, target_here)]);
        command
    }
}

/// Milliseconds of a command that makes `target`, which is removed; what others left to be written is written before.
fn timed(mut command: Command, target: &Path) -> Result<f64> {
    rustix::fs::sync();
    let begun = Instant::now();
    let ended = command.stdin(Stdio::null()).output().with_context(|| format!("start {command:?}"))?;
    let took = begun.elapsed().as_secs_f64() * 1e3;
    ensure!(ended.status.success(), "{command:?} {}: {}", ended.status, String::from_utf8_lossy(&ended.stderr));
    if target.is_dir() {
        fs::remove_dir_all(target)?;
    } else {
        fs::remove_file(target)?;
    }
    Ok(took)
}

fn links(dir: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            found.push(entry.path());
        } else if kind.is_dir() {
            found.extend(links(&entry.path())?);
        }
    }
    Ok(found)
}
