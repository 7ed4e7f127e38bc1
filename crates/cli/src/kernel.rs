//! Checks the kernel version at startup.

/// The oldest supported kernel. It has `close_range`, without which a child could inherit an fd, and pidfds, without which a signal could
/// hit a recycled pid.
const OLDEST_SUPPORTED: (u32, u32) = (5, 9);

/// From this version on, a process group can be signalled through the pidfd of its leader.
const GROUP_BY_PIDFD: (u32, u32) = (6, 9);

/// Fails for a kernel that is too old. Otherwise returns what the kernel lacks, as a sentence for the log.
pub(crate) fn check() -> anyhow::Result<Option<String>> {
    check_release(&rustix::system::uname().release().to_string_lossy())
}

fn check_release(release: &str) -> anyhow::Result<Option<String>> {
    let Some(version) = version(release) else {
        return Ok(Some(format!("cannot parse the kernel version `{release}`; Linux 5.9 or newer is needed")));
    };
    anyhow::ensure!(version >= OLDEST_SUPPORTED, "exec-server needs Linux 5.9 or newer; this host runs {release}");
    let lacks = (version < GROUP_BY_PIDFD).then(|| {
        format!(
            "Linux {release}: before 6.9, process groups are signalled by number instead of by their leader's pidfd"
        )
    });
    Ok(lacks)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_before_5_9_are_refused_and_those_before_6_9_get_a_warning() {
        for (release, refused, lacks) in [
            ("4.19.0-27-amd64", true, false),
            ("5.9.0", false, true),
            ("6.8.12", false, true),
            ("6.9", false, false),
            ("6.18.44-x", false, false),
            ("odd", false, true),
        ] {
            let checked = check_release(release);
            assert_eq!(checked.is_err(), refused, "{release}");
            assert_eq!(checked.is_ok_and(|lack| lack.is_some()), lacks, "{release}");
        }
    }
}
