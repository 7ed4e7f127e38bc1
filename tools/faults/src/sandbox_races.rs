//! F27: file requests in a sandbox while the names they use are swapped.
//!
//! A racer exchanges a directory with a symlink that leads out of the sandbox, and a file with such a symlink, as fast as it can. Clients
//! read, write, list, copy, create and remove through those names. Even if a request fails, data from outside is never read, and
//! outside is unchanged afterwards.

use std::os::unix::fs::symlink;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::prelude::*;

/// The contents of files that are only outside.
const SECRET: &str = "this is outside";

/// Concurrent clients.
const CLIENTS: u64 = 4;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let operations = setting.pick(8_000, 200_000, 2_000_000);
    let at_least = Duration::from_secs(setting.pick(2, 60, 600));
    let (setup, server) = Setup::started(&setting.binary)?;
    let directories = RaceDirectories::new(&setup.scratch().join("ground"))?;
    let (is_over, done, swaps) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    let outcome: Result<Vec<u64>> = thread::scope(|scope| {
        let racer = scope.spawn(|| directories.race(&is_over, &swaps));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (directories, done, address) = (&directories, &done, &server.address);
                scope.spawn(move || {
                    directories.send_requests(address, client, || {
                        let count = done.fetch_add(1, Ordering::Relaxed);
                        count < operations || begun.elapsed() < at_least
                    })
                })
            })
            .collect();
        let answers = clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect();
        is_over.store(true, Ordering::Relaxed);
        racer.join().expect("the racer does not panic")?;
        answers
    });
    let allowed: u64 = outcome?.iter().sum();
    directories.ensure_untouched()?;
    setup.finish(server)?;
    let done = done.load(Ordering::Relaxed);
    ensure!(allowed > 0 && allowed < done, "{allowed} of {done} were allowed: the race did not take place");
    Figures::survived(done).set("allowed", allowed).set("swaps", swaps.load(Ordering::Relaxed)).only_line()
}

struct RaceDirectories {
    inside: PathBuf,
    outside: PathBuf,
}

impl RaceDirectories {
    fn new(path: &Path) -> Result<Self> {
        let (inside, outside) = (path.join("inside"), path.join("outside"));
        for dir in [&inside.join("dir"), &outside] {
            fs::create_dir_all(dir)?;
        }
        fs::write(inside.join("dir/file"), "inside")?;
        fs::write(inside.join("file"), "inside")?;
        fs::write(outside.join("file"), SECRET)?;
        symlink(&outside, inside.join("dir.link"))?;
        symlink(outside.join("file"), inside.join("file.link"))?;
        Ok(Self { inside: inside.canonicalize()?, outside: outside.canonicalize()? })
    }

    /// Exchanges names until the run is over.
    fn race(&self, is_over: &AtomicBool, swaps: &AtomicU64) -> Result<()> {
        while !is_over.load(Ordering::Relaxed) {
            for name in ["dir", "file"] {
                let (one, other) = (self.inside.join(name), self.inside.join(format!("{name}.link")));
                // Restore what a client has removed or replaced.
                if renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).is_err() {
                    self.restore(name)?;
                }
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn restore(&self, name: &str) -> Result<()> {
        let target = if name == "dir" { self.outside.clone() } else { self.outside.join("file") };
        for path in [self.inside.join(name), self.inside.join(format!("{name}.link"))] {
            match symlink(&target, path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Both shapes of policy: nothing but inside, and everything but outside.
    fn sandbox(&self, client: u64) -> Value {
        let entry = |path: &Path, access: &str| json!({"path": {"type": "path", "path": path}, "access": access});
        let root = json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"});
        let entries = match client % 2 {
            0 => vec![entry(&self.inside, "write")],
            _ => vec![root, entry(&self.inside, "write"), entry(&self.outside, "deny")],
        };
        json!({"permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "restricted", "entries": entries}}})
    }

    /// Sends requests while `more` returns true; returns how many succeeded.
    fn send_requests(&self, address: &ServerAddress, client: u64, mut more: impl FnMut() -> bool) -> Result<u64> {
        let (mut wire, _) = WireClient::session(address)?;
        let sandbox = self.sandbox(client);
        let at = |name: &str| self.inside.join(name);
        let evil = STANDARD.encode("evil");
        let mine = format!("mine-{client}");
        let (copied, back) = (at(&format!("{mine}.copy")), at("dir").join(format!("{mine}.back")));
        let copy = |from: PathBuf, to: &Path| json!({"sourcePath": from, "destinationPath": to, "recursive": false});
        let requests = [
            ("fs/readFile", json!({"path": at("dir/file")})),
            ("fs/readFile", json!({"path": at("file")})),
            ("fs/readFile", json!({"path": at("file.link")})),
            ("fs/writeFile", json!({"path": at("dir").join(&mine), "dataBase64": evil})),
            ("fs/writeFile", json!({"path": at("file"), "dataBase64": evil})),
            ("fs/createDirectory", json!({"path": at("dir").join(format!("{mine}.d")), "recursive": true})),
            ("fs/readDirectory", json!({"path": at("dir")})),
            ("fs/copy", copy(at("dir/file"), &copied)),
            ("fs/readFile", json!({"path": copied})),
            ("fs/copy", copy(copied.clone(), &back)),
            ("fs/remove", json!({"path": at("dir.link").join("file"), "recursive": false, "force": true})),
            ("fs/getMetadata", json!({"path": at("dir/file")})),
        ];
        let requests = requests.map(|(method, mut params)| {
            params["sandbox"] = sandbox.clone();
            (method, params)
        });
        let mut allowed = 0;
        for (method, params) in requests.iter().cycle() {
            if !more() {
                return Ok(allowed);
            }
            match wire.call(method, params) {
                Ok(result) => {
                    allowed += 1;
                    let data = result["dataBase64"].as_str().map(|data| STANDARD.decode(data)).transpose()?;
                    let is_secret = data.is_some_and(|data| String::from_utf8_lossy(&data).contains(SECRET));
                    ensure!(!is_secret, "`{method}` with {params} read what is outside");
                    ensure!(result["size"] != json!(SECRET.len()), "`{method}` with {params} saw what is outside");
                }
                Err(fault @ CallError::Lost(_)) => return Err(fault).context("the server hung up"),
                Err(_) => {}
            }
        }
        Ok(allowed)
    }

    fn ensure_untouched(&self) -> Result<()> {
        let names: Vec<_> =
            fs::read_dir(&self.outside)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
        ensure!(names == ["file"], "outside has {names:?}");
        ensure!(fs::read_to_string(self.outside.join("file"))? == SECRET, "the file outside was written");
        Ok(())
    }
}
