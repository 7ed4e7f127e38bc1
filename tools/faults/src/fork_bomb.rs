//! F12: fork bombs under a process limit, and a host that refuses a fork.
//!
//! A bomb is started only after its limit was verified from outside. It stays below the limit, is gone within a second of
//! `process/terminate`, and the server answers other clients throughout. If the kernel refuses a fork of the holder itself, the start gets
//! `resourcesExhausted`, and the next start works.

use crate::prelude::*;

/// Process limit of one command.
const LIMIT: u64 = 200;

/// How long each bomb runs.
const RAGE: Duration = Duration::from_millis(300);

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let rounds = setting.pick(3, 5, 50);
    let setup = Setup::new(&setting.binary)?.arg("--max-pids").arg(&LIMIT.to_string());
    let server = setup.start()?;
    let (mut other, _) = WireClient::session(&server.address)?;
    let level = ResourceLevel::of(server.pid());
    let (mut times, mut answers, mut most) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds {
        let context = || format!("bomb {round}; the server says: {}", setup.log_tail());
        let (mut wire, _) = WireClient::session(&server.address)?;
        let group = limited_group(&mut wire).with_context(context)?;
        // A shell that cannot fork ends, and another one takes its place.
        let bomb = "b() { while :; do (b) & (b) & wait; done; }; b 2>/dev/null & exec sleep 1000";
        wire.start("bomb", &["/bin/sh", "-c", bomb]).with_context(context)?;
        let raging = Instant::now();
        while raging.elapsed() < RAGE {
            let asked = Instant::now();
            other.call("environment/status", &json!({})).with_context(context)?;
            answers.push(asked.elapsed().as_secs_f64() * 1e3);
            most = most.max(number(&group.join("pids.current"))?);
        }
        ensure!(most > LIMIT / 2, "the bomb had {most} processes and is none");
        // The kernel counts a fork before it refuses it, so one per core may be seen beyond the limit.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
        ensure!(most <= LIMIT + cores, "{most} processes under a limit of {LIMIT}");
        let asked = Instant::now();
        wire.call("process/terminate", &json!({ "processId": "bomb" })).with_context(context)?;
        wire.wait_closed(1)?;
        while number(&group.join("pids.current")).unwrap_or(0) > 0 {
            ensure!(asked.elapsed() < Duration::from_secs(1), "the bomb is not gone after {:?}", asked.elapsed());
        }
        times.push(asked.elapsed().as_secs_f64() * 1e3);
        refused_fork(&setup, &mut wire).with_context(context)?;
        wire.end_session()?;
    }
    other.end_session()?;
    drop(other);
    level.wait_back().context("after the last bomb")?;
    setup.finish(server)?;
    let worst = figures::worst(&answers);
    ensure!(worst < 1000.0, "the server answered after {worst:.0} ms");
    answers.sort_by(f64::total_cmp);
    Figures::survived(rounds)
        .times(&mut times)
        .set("most_processes", most)
        .set("answer_p99_ms", format!("{:.1}", percentile(&answers, 99)))
        .only_line()
}

/// The control group of the session's next process, after verifying that its limit is in force.
fn limited_group(wire: &mut WireClient) -> Result<PathBuf> {
    let mut calm = wire::start("calm", &["/bin/sh", "-c", "echo up; read line"]);
    calm["pipeStdin"] = json!(true);
    wire.call("process/start", &calm)?;
    let list = wire.call("process/list", &json!({}))?;
    let pid = list["processes"][0]["pid"].as_u64().context("a pid")?;
    let group = pids_group(pid).context("no limit of processes can be set on this host: no bomb goes off here")?;
    let limit = fs::read_to_string(group.join("pids.max"))?;
    ensure!(limit.trim() == LIMIT.to_string(), "the limit in force is {limit}");
    wire.call("process/closeStdin", &json!({ "processId": "calm" }))?;
    wire.wait_closed(1)?;
    // The next process gets the same group, because it is empty and was never killed; the bomb is watched there.
    Ok(group)
}

/// The directory in which the kernel counts the processes of this one.
fn pids_group(pid: u64) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let older = text.lines().find_map(|line| line.split_once(":pids:")).map(|(_, path)| ("/sys/fs/cgroup/pids", path));
    let unified = text.lines().find_map(|line| line.strip_prefix("0::")).map(|path| ("/sys/fs/cgroup", path));
    let places = [older, unified].into_iter().flatten().map(|(base, path)| PathBuf::from(format!("{base}{path}")));
    places.into_iter().find(|dir| dir.join("pids.max").exists() && dir.to_string_lossy().contains("exec-server-"))
}

fn number(file: &Path) -> Result<u64> {
    Ok(fs::read_to_string(file)?.trim().parse()?)
}

/// Makes the kernel refuse a fork of the holder, by putting the holder into a group of ours, and undoes that.
fn refused_fork(setup: &Setup, wire: &mut WireClient) -> Result<()> {
    let own = Path::new("/sys/fs/cgroup/pids");
    if !own.join("cgroup.procs").exists() {
        // In the unified hierarchy the holder cannot be moved without changing the groups of the host.
        return Ok(());
    }
    let holders: Vec<u32> = setup.holders();
    let home = fs::read_to_string(format!("/proc/{}/cgroup", holders.first().context("a holder")?))?;
    let home = home.lines().find_map(|line| line.split_once(":pids:")).context("a group")?.1.trim_start_matches('/');
    let narrow = own.join(format!("xtask-{}", std::process::id()));
    fs::create_dir(&narrow)?;
    fs::write(narrow.join("pids.max"), "1")?;
    let put = |dir: &Path| holders.iter().try_for_each(|pid| fs::write(dir.join("cgroup.procs"), pid.to_string()));
    let outcome = put(&narrow).map(|()| wire.start("refused", &["/bin/true"]));
    put(&own.join(home))?;
    fs::remove_dir(&narrow)?;
    match outcome? {
        Err(CallError::Refused { kind, .. }) if kind == "resourcesExhausted" => {}
        other => bail!("a fork that is refused gave {other:?}"),
    }
    wire.start("again", &["/bin/true"])?;
    wire.wait_closed(1)
}
