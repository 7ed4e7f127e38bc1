//! F20: servers and holders of this version and of the previous one, in every combination; and the program replaced under load.
//!
//! The same script runs with each pair of a server that creates the holder and a server that adopts it, with a reference client and with
//! one of ours. The client must see the same in all combinations. Then a server under load is replaced by the other version
//! repeatedly, as an upgrade does it: new file over the old one, SIGTERM, start.
//!
//! The previous version is built from the repository's own history.

mod script;

use anyhow::anyhow;

use self::script::{ClientShape, run_script};
use super::server_shutdown;
use crate::prelude::*;
use exec_server_workspace::cargo;

/// The previous version. Both versions must understand each other's servers and holders.
const BEFORE: &str = "b029e5b02f6976a930d39c89ef63f9b7daa8208c";

/// Concurrent producers while the program is replaced.
const LANES: usize = 4;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let before = build_before().context("build the version before")?;
    let now = &setting.binary;
    let plays = mixtures(now, &before)?;
    let upgrades = upgrade_under_load(setting, [&before, now])?;
    Ok(vec![plays, upgrades])
}

/// Runs every combination with every shape of client; all must equal the previous version alone.
fn mixtures(now: &Path, before: &Path) -> Result<Figures> {
    let pairs =
        [("N-1", before, "N-1", before), ("N", now, "N", now), ("N-1", before, "N", now), ("N", now, "N-1", before)];
    let mut lines = 0;
    let mut played = 0_u64;
    for shape in [ClientShape::Reference, ClientShape::Ours] {
        // In parallel, because a script mostly waits.
        let transcripts: Vec<_> = thread::scope(|scope| {
            let started = pairs.map(|(_, first, _, second)| scope.spawn(move || run_script(shape, first, second)));
            started.into_iter().map(|run_script| run_script.join().map_err(|_| anyhow!("a script panicked"))?).collect()
        });
        let mut expected: Option<Vec<String>> = None;
        for ((holder, _, server, _), transcript) in pairs.iter().zip(transcripts) {
            let name = format!("holder of {holder}, server of {server}, {shape:?} client");
            let transcript = transcript.with_context(|| name.clone())?;
            lines += transcript.len();
            played += 1;
            let expected = expected.get_or_insert_with(|| transcript.clone());
            ensure_equal(expected, &transcript).with_context(|| name)?;
        }
    }
    Ok(Figures::survived(played).set("lines", lines).set("part", "mixtures"))
}

fn ensure_equal(expected: &[String], received: &[String]) -> Result<()> {
    for at in 0..expected.len().max(received.len()) {
        let [expected, received] = [expected, received].map(|lines| lines.get(at).map_or("nothing", String::as_str));
        ensure!(expected == received, "line {at} is `{received}`, with the version before alone `{expected}`");
    }
    Ok(())
}

/// R4: the file is replaced, the server shuts down, the other version takes over; back and forth.
fn upgrade_under_load(setting: &FaultSetting, versions: [&Path; 2]) -> Result<Figures> {
    let wanted = setting.pick(4, 20, 200);
    let mut random = setting.random("F20");
    let bin = tempfile::Builder::new().prefix("exec-server-xtask-").tempdir()?;
    let program = bin.path().join("exec-server");
    install(versions[0], &program)?;
    let setup = Setup::new(&program)?;
    let mut server = setup.start()?;
    let mut load = ProducerLoad::new(random.fork(), LANES)?;
    load.attach(&server.address)?;
    let mut times = Vec::new();
    for (done, version) in versions.iter().cycle().skip(1).take(usize::try_from(wanted)?).enumerate() {
        let until = Instant::now() + Duration::from_millis(random.between(50, 300));
        let context = || format!("after {done} upgrades; the server says: {}", setup.log_tail());
        load.flow(&server, |_| Instant::now() >= until).with_context(context)?;
        install(version, &program)?;
        let begun = Instant::now();
        server_shutdown::drain(server, Some(&mut load)).with_context(context)?;
        server = setup.start().with_context(context)?;
        times.push(load.resume_restarted(&server, begun).with_context(context)?);
    }
    load.finish(&server)?;
    setup.finish(server)?;
    let figures = Figures::survived(wanted).set("bytes", load.bytes);
    Ok(figures.times(&mut times).set("processes", load.ended).set("part", "upgrades"))
}

/// Replaces the program like an installer: writes a new file and renames it, because the old file is running.
fn install(version: &Path, program: &Path) -> Result<()> {
    let beside = program.with_extension("new");
    fs::copy(version, &beside)?;
    Ok(fs::rename(&beside, program)?)
}

/// Extracts the previous version from the history and builds it.
pub(super) fn build_before() -> Result<PathBuf> {
    let place = cargo::target_dir().join("skew").join(BEFORE);
    let binary = place.join("bin/exec-server");
    if binary.exists() {
        return Ok(binary);
    }
    let source = place.join("source");
    fs::create_dir_all(&source)?;
    let mut git = cargo::command("git", &["archive", "--format=tar", BEFORE]);
    let mut archive = git.stdout(Stdio::piped()).spawn().context("start `git archive`")?;
    let tar = archive.stdout.take().context("standard output is a pipe")?;
    cargo::check(cargo::command("tar", &["x", "-C"]).arg(&source).stdin(tar))?;
    ensure!(archive.wait()?.success(), "`git archive {BEFORE}` failed: this needs the whole history of the repository");
    // Use a separate target directory: cargo treats crates with the same name and workspace path as the same.
    let target = place.join("target");
    for part in ["deps", "build", ".fingerprint"] {
        lend(&cargo::target_dir().join("debug").join(part), &target.join("debug").join(part))?;
    }
    let mut build = cargo::cargo(&["build", "--quiet", "--locked", "-p", "exec-server", "--target-dir"]);
    cargo::check(build.arg(&target).current_dir(&source))?;
    fs::create_dir_all(place.join("bin"))?;
    install(&target.join("debug/exec-server"), &binary)?;
    Ok(fs::remove_dir_all(&target).map(|()| binary)?)
}

/// Links the third-party crates that the tests have built, because both versions share them. A missing directory is ignored.
fn lend(from: &Path, to: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let is_ours = text.contains("exec_server") || text.contains("exec-server");
        if entry.file_type()?.is_dir() && !is_ours {
            lend(&entry.path(), &to.join(name))?;
        } else if !is_ours {
            fs::hard_link(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}
