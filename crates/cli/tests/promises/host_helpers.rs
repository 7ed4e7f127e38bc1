//! Helpers for the tests of children: detects what this host allows without using the server, and inspects processes from outside.

use crate::prelude::*;

/// The uid of `nobody`.
pub(crate) const NOBODY: u32 = 65534;

/// Compiles a C program or library for a child to run. The tests need a C compiler.
pub(crate) fn compile(dir: &Path, name: &str, source: &str, flags: &[&str]) -> String {
    let (text, made) = (dir.join(format!("{name}.c")), dir.join(name));
    fs::write(&text, source).expect("write the source");
    let compiled = std::process::Command::new("cc").args(flags).arg("-o").arg(&made).arg(&text).output();
    let compiled = compiled.expect("start the C compiler `cc`, which this test needs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    made.display().to_string()
}

/// The pids of server, spawner and the only holder.
pub(crate) fn family(server: &TestServer) -> BTreeSet<u32> {
    let mut all = BTreeSet::from([server.pid()]);
    all.extend(server.named("exec-spawner"));
    all.extend(server.named("exec-holder"));
    assert_eq!(all.len(), 3, "{all:?}");
    all
}

/// Waits at most `limit` for a condition and returns how long it took; fails with `what` otherwise.
pub(crate) fn within(limit: Duration, what: &str, mut level: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !level() {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
    begun.elapsed()
}

/// The directory of a cgroup hierarchy in which this process may create groups; `None` if the host does not allow it.
fn writable(hierarchy: &str) -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.split_once(hierarchy)?.1.strip_prefix('/'))?.to_owned();
    let places: &[&str] =
        if hierarchy == "0::" { &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] } else { &["/sys/fs/cgroup/pids"] };
    places.iter().map(|place| Path::new(place).join(&path)).find(|base| {
        let probe = base.join(format!("probe-{}", std::process::id()));
        let made = base.join("cgroup.procs").exists() && fs::create_dir(&probe).is_ok();
        let wanted = if hierarchy == "0::" { "cgroup.kill" } else { "pids.max" };
        let is_it = probe.join(wanted).exists();
        fs::remove_dir(&probe).ok();
        made && is_it
    })
}

/// Whether this host allows groups with `cgroup.kill`.
pub(crate) fn has_group_kill() -> bool {
    writable("0::").is_some()
}

/// Whether this host allows limiting processes by a group, in the v1 pids hierarchy or in the unified one.
pub(crate) fn has_group_pids() -> bool {
    let unified = writable("0::").and_then(|base| fs::read_to_string(base.join("cgroup.controllers")).ok());
    writable(":pids:").is_some() || unified.is_some_and(|controllers| controllers.contains("pids"))
}

/// The control groups of the sessions in this server's state directory.
pub(crate) fn groups_of(server: &TestServer) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for session in fs::read_dir(server.state_dir().join("sessions")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(session.path().join("cgroup")).unwrap_or_default();
        all.extend(text.lines().filter_map(|line| line.split_once(' ')).map(|(_, dir)| PathBuf::from(dir)));
    }
    all
}
