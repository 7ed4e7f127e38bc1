//! The speed of copying files: a large one compared with `cat`, a tree of many small ones compared with `scp -r`, each to and from a
//! server.

use std::{ffi::OsStr, path::Path};

use crate::prelude::*;
use exec_server_harness::{Random, file_tree};

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let (setup, server) = Setup::started(&setting.binary)?;
    let bench = CopyBench { binary: &setting.binary, url: &server.address.url, folder: setup.scratch() };
    let mut rows = bench.large(setting)?;
    rows.extend(bench.tree(setting)?);
    setup.finish(server)?;
    Ok(rows.into())
}

struct CopyBench<'a> {
    binary: &'a Path,
    url: &'a str,
    folder: &'a Path,
}

impl CopyBench<'_> {
    fn large(&self, setting: &BenchSetting<'_>) -> Result<Vec<Row>> {
        let (rounds, bytes) = setting.pick((1, 64 << 20), (9, 1 << 30));
        let (source, target) = (self.folder.join("large"), self.folder.join("target"));
        file_tree::large(&source, bytes, &mut Random::new(1))?;
        let lanes = vec![
            BenchLane::new("cat", |_| {
                let mut cat = Command::new("/bin/sh");
                cat.args(["-c", "cat \"$0\" > \"$1\""]).args([&source, &target]);
                timed(cat, &target)
            }),
            BenchLane::new("up", |_| timed(self.copy(&source, true, &target, false), &target)),
            BenchLane::new("down", |_| timed(self.copy(&source, false, &target, true), &target)),
        ];
        let contest = Contest::hold(rounds, lanes)?;
        fs::remove_file(&source)?;
        let unit = format!("ms for {} MiB", bytes >> 20);
        let pair = |ours| Pair { ours: (ours, 0), beside: ("cat", 0), unit: &unit };
        Ok(vec![
            contest.row("cp of a large file to a server / cat", pair("up")).at_most(2.0),
            contest.row("cp of a large file from a server / cat", pair("down")).at_most(2.0),
        ])
    }

    fn tree(&self, setting: &BenchSetting<'_>) -> Result<Vec<Row>> {
        let (rounds, files) = setting.pick((1, 300), (9, 5000));
        let (source, target) = (self.folder.join("tree"), self.folder.join("copied"));
        file_tree::make(&source, files, 0, &mut Random::new(2))?;
        // Remove what scp cannot copy properly or would follow.
        fs::remove_dir_all(source.join("odd"))?;
        for link in links(&source)? {
            fs::remove_file(link)?;
        }
        let remote = |path: &Path| format!("box:{}", path.display());
        let mut lanes = vec![
            BenchLane::new("up", |_| timed(self.copy(&source, true, &target, false), &target)),
            BenchLane::new("down", |_| timed(self.copy(&source, false, &target, true), &target)),
        ];
        if let Some(sshd) = setting.ssh {
            let (source, target) = (&source, &target);
            let scp = move |from: &OsStr, to: &OsStr| {
                let mut scp = sshd.command("scp");
                scp.args(["-q", "-r", "-p"]).args([from, to]);
                timed(scp, target)
            };
            lanes.push(BenchLane::new("scp up", move |_| scp(source.as_ref(), remote(target).as_ref())));
            lanes.push(BenchLane::new("scp down", move |_| scp(remote(source).as_ref(), target.as_ref())));
        }
        let contest = Contest::hold(rounds, lanes)?;
        let unit = format!("ms for {files} files");
        let pair = |ours, beside| Pair { ours: (ours, 0), beside: (beside, 0), unit: &unit };
        Ok(vec![
            contest.row("cp -r of small files to a server / scp -r", pair("up", "scp up")).at_most(1.0),
            contest.row("cp -r of small files from a server / scp -r", pair("down", "scp down")).at_most(1.0),
        ])
    }

    fn copy(&self, source: &Path, source_here: bool, target: &Path, target_here: bool) -> Command {
        let path = |path: &Path, is_here: bool| format!("{}{}", if is_here { "" } else { ":" }, path.display());
        let mut command = Command::new(self.binary);
        command.args(["cp", "-r", "--connect", self.url]).args([path(source, source_here), path(target, target_here)]);
        command
    }
}

/// Milliseconds of a command that creates `target`, which is then removed. Syncs first, so that earlier writes are not included.
pub(super) fn timed(mut command: Command, target: &Path) -> Result<FigureValues> {
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
    Ok(vec![took])
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
