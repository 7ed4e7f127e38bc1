//! Checks of the kernel and the machine.

use std::{
    env, fs,
    net::{Ipv6Addr, TcpListener},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags},
    process::{PidfdFlags, Resource},
};

use super::{CheckOutcome, CheckState, Finding, fine, missing, of_call, weak};

/// With fewer fds than this, the server has room for only a few sessions and processes.
const LEAST_NOFILE: u64 = 256;

/// Recommended minimum: each process costs the server a few fds.
const GOOD_NOFILE: u64 = 4096;

/// All checks that do not depend on a state directory.
pub(super) fn check() -> Vec<Finding> {
    type Check = fn() -> CheckOutcome;
    let checks: [(&'static str, Check); 15] = [
        ("kernel", kernel),
        ("pidfds", pidfd),
        ("memfd seals", memfd),
        ("openat2", openat2),
        ("/proc", proc_mounted),
        ("landlock", landlock),
        ("seccomp", seccomp),
        ("user namespaces", user_namespaces),
        ("cgroup v2", cgroup),
        ("descriptors", nofile),
        ("processes", nproc),
        ("logout", linger),
        ("clock", clock),
        ("IPv6", ipv6),
        ("ssh", ssh),
    ];
    checks.into_iter().map(|(what, check)| Finding { what, outcome: check() }).collect()
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn kernel() -> CheckOutcome {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    match crate::kernel::check() {
        Err(error) => missing(error.to_string(), "use a host with Linux 5.9 or newer"),
        Ok(Some(lack)) => weak(lack, "use Linux 6.9 or newer, which signals process groups without a race"),
        Ok(None) => fine(release),
    }
}

fn pidfd() -> CheckOutcome {
    let opened = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    of_call(opened, CheckState::Missing, "a seccomp filter may forbid pidfd_open; allow it")
}

fn memfd() -> CheckOutcome {
    let sealed = rustix::fs::memfd_create("doctor", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC)
        .and_then(|fd| rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW));
    of_call(sealed, CheckState::Missing, "a seccomp filter may forbid memfd_create; allow it")
}

fn openat2() -> CheckOutcome {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(rustix::fs::CWD, "/", flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
    of_call(opened, CheckState::Weak, "a seccomp filter may forbid openat2; allow it")
}

fn proc_mounted() -> CheckOutcome {
    if Path::new("/proc/self/fd").exists() {
        fine("mounted")
    } else {
        missing("not mounted", "mount it: the server finds descendants and opens fds through it")
    }
}

fn landlock() -> CheckOutcome {
    const ADVICE: &str = "boot with `landlock` in `lsm=`: without it, a start with a sandbox is refused";
    const NEWER: &str =
        "use Linux 6.12 or later: an older Landlock does not restrict signals, so a start with a sandbox is refused";
    let host = exec_server_sandbox::Host::detect();
    match host.landlock {
        Some(release) if host.has_landlock() => fine(format!("release {release}")),
        Some(release) => weak(format!("release {release}"), NEWER),
        None => weak("not offered by this kernel", ADVICE),
    }
}

fn seccomp() -> CheckOutcome {
    if exec_server_sandbox::Host::detect().seccomp {
        fine("available")
    } else {
        weak("not in this kernel", "without it, a start with a sandbox is refused")
    }
}

fn user_namespaces() -> CheckOutcome {
    let most = read("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    let is_off = most == "0"
        || read("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0")
        || read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1");
    if is_off {
        const ADVICE: &str = "allow them: without them, a server that is not root refuses a start with a sandbox";
        weak("not available to every user", ADVICE)
    } else {
        fine("available")
    }
}

/// Checks for cgroup v2, a delegated directory that we may write, and the `pids` and `memory` controllers.
fn cgroup() -> CheckOutcome {
    const ADVICE: &str = "run as a systemd unit with `Delegate=yes`: then `--max-pids` and `--max-memory` apply to all descendants of a command, \
                          and killing it reaches all of them";
    let Some(own) = read("/proc/self/cgroup")
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned)))
    else {
        return weak("this host does not use cgroup v2", ADVICE);
    };
    let dir = PathBuf::from(format!("/sys/fs/cgroup{own}"));
    let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    let has = |name: &str| controllers.split_whitespace().any(|controller| controller == name);
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    if rustix::fs::access(&dir, access).is_err() {
        return weak(format!("`{own}` is not delegated to us"), ADVICE);
    }
    if !has("pids") || !has("memory") {
        return weak(format!("delegated with `{}`; pids or memory is missing", controllers.trim()), ADVICE);
    }
    // The root cgroup never has `cgroup.kill`.
    if !dir.join("cgroup.kill").exists() && own != "/" {
        return weak("delegated, without cgroup.kill", "use Linux 5.14 or newer, which kills a whole group at once");
    }
    fine(format!("delegated: {}", controllers.trim()))
}

fn nofile() -> CheckOutcome {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let seen = limit.maximum.map_or_else(|| "no hard limit".to_owned(), |hard| format!("hard limit {hard}"));
    match limit.maximum {
        Some(hard) if hard < LEAST_NOFILE => missing(seen, "raise it: `ulimit -Hn`, `LimitNOFILE=`"),
        Some(hard) if hard < GOOD_NOFILE => {
            weak(seen, "raise it for hundreds of processes: `ulimit -Hn`, `LimitNOFILE=`")
        }
        _ => fine(seen),
    }
}

fn nproc() -> CheckOutcome {
    let limit = rustix::process::getrlimit(Resource::Nproc);
    match limit.current {
        Some(soft) if soft < 256 => weak(format!("limit {soft}"), "raise it: `ulimit -u`, `LimitNPROC=`"),
        Some(soft) => fine(format!("limit {soft}")),
        None => fine("no limit"),
    }
}

/// Without lingering, systemd may kill all processes of a user at the last logout (`KillUserProcesses=`).
fn linger() -> CheckOutcome {
    if !Path::new("/run/systemd/system").exists() {
        return fine("no systemd: nothing ends processes at logout");
    }
    if rustix::process::geteuid().is_root() {
        return fine("root: nothing ends its processes at logout");
    }
    let user = env::var_os("USER").or_else(|| env::var_os("LOGNAME")).unwrap_or_default();
    if !user.is_empty() && Path::new("/var/lib/systemd/linger").join(&user).exists() {
        return fine("lingering is on: processes stay");
    }
    weak("lingering is off: processes may end at the last logout", "loginctl enable-linger")
}

fn clock() -> CheckOutcome {
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    fine(source.unwrap_or_else(|| "unknown source".to_owned()))
}

fn ipv6() -> CheckOutcome {
    let bound = TcpListener::bind((Ipv6Addr::LOCALHOST, 0));
    of_call(bound, CheckState::Weak, "listen on IPv4 or a Unix socket")
}

fn ssh() -> CheckOutcome {
    let path = env::var_os("PATH").unwrap_or_default();
    match env::split_paths(&path).map(|dir| dir.join("ssh")).find(|program| program.is_file()) {
        Some(program) => fine(program.display().to_string()),
        None => weak("not in PATH", "install OpenSSH's client for `ssh://`"),
    }
}
