//! Every limit in one list: what it bounds, its default, its flag, and what happens at it.
//!
//! The list is what the help texts, the defaults and the ranges of the flags, `serve --print-config` and the README's table are
//! made from. Must not enforce anything: the crates do that, from the configuration that the flags become.

use std::{fmt, time::Duration};

use exec_server_holder as holder;
use exec_server_protocol::limits as wire;
use exec_server_server::core::Config;

use crate::confine;

/// One limit.
pub(crate) struct Limit {
    /// What it bounds.
    pub(crate) name: &'static str,
    /// The flag of `serve` that sets it, without the dashes.
    pub(crate) flag: Option<&'static str>,
    /// Without the flag.
    pub(crate) default: Amount,
    /// What the flag takes; `None` where its parser says.
    pub(crate) range: Option<(Amount, Amount)>,
    /// What happens there.
    pub(crate) at: &'static str,
}

/// A size, a time or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Bytes(u64),
    Time(Duration),
    Count(u64),
    /// No limit.
    Unbounded,
}

use Amount::{Bytes, Count, Time, Unbounded};

/// The limits, those of processes first.
pub(crate) fn all() -> Vec<Limit> {
    let (core, held) = (Config::default(), holder::Limits::default());
    let mut all = of_processes(&core, &held);
    all.extend(of_sessions(&core));
    all.extend(of_connections(&core));
    all.extend(of_messages());
    all.extend(at_the_door());
    all
}

fn of_processes(core: &Config, held: &holder::Limits) -> Vec<Limit> {
    vec![
        set(
            "output of a process in memory",
            "memory-per-process",
            Bytes(core.memory_cap_bytes),
            (Bytes(Config::LEAST_CAP_BYTES), Bytes(64 << 30)),
            "attached, the process waits; detached, output goes to disk. For a client that cannot acknowledge: a quarter of it, and 16MiB",
        ),
        set(
            "output of a process on disk",
            "disk-per-process",
            Bytes(held.disk_quota_bytes),
            (Bytes(0), Bytes(1 << 50)),
            "the process waits, or with `dropOldest` loses its oldest output, counted and told",
        ),
        set(
            "free space left on the disk",
            "disk-floor",
            Bytes(held.free_floor_bytes),
            (Bytes(0), Bytes(1 << 50)),
            "as above, tried again every second. The default is 5% of the disk where that is less",
        ),
        set(
            "closed processes kept in a session",
            "closed-processes",
            Count(core.closed_processes as u64),
            (Count(1), Count(CLOSED_MAX)),
            "the oldest that was taken is forgotten; one whose output was not taken never is",
        ),
        set(
            "time a closed process is kept",
            "closed-for",
            Time(core.closed_kept),
            (Time(Duration::from_secs(1)), Time(YEAR)),
            "it is forgotten; time without its client does not count",
        ),
        set(
            "running processes of a session",
            "max-processes",
            Count(core.processes_max as u64),
            (Count(1), Count(RUNNING_MAX)),
            "`resourcesExhausted`",
        ),
        Limit {
            name: "processes and threads of one command and all it starts",
            flag: Some("max-pids"),
            default: Count(confine::PIDS_MAX),
            range: None,
            at: "a fork is refused, and the exit says so (`limitsHit`). Needs a control group; without one another number than the default becomes RLIMIT_NPROC, which counts all processes of the user and does not bind root",
        },
        Limit {
            name: "memory of one command and all it starts",
            flag: Some("max-memory"),
            default: Unbounded,
            range: None,
            at: "one of them is killed, and the exit says so (`oom`, `limitsHit`). Needs a control group; without one it becomes RLIMIT_DATA of each process",
        },
        fixed("write ids remembered for a process", Count(wire::REMEMBERED_WRITES as u64), "the oldest is forgotten"),
    ]
}

fn of_sessions(core: &Config) -> Vec<Limit> {
    vec![
        set(
            "sessions",
            "max-sessions",
            Count(core.sessions_max as u64),
            (Count(1), Count(1 << 20)),
            "`resourcesExhausted`; those that are there can be resumed",
        ),
        Limit {
            name: "time of a session without a connection",
            flag: Some("session-ttl"),
            default: Time(wire::SESSION_TTL_MAX),
            range: None,
            at: "it ends, and its processes with it. A client gets 10m, one that can acknowledge 24h, or what it asks for; never more than this",
        },
        set(
            "silence of the old connection before a session is handed over",
            "takeover-after",
            Time(core.takeover_after),
            (Time(Duration::from_millis(100)), Time(Duration::from_secs(600))),
            "the session goes to whoever resumes it without `takeover`",
        ),
    ]
}

fn of_connections(core: &Config) -> Vec<Limit> {
    vec![
        set(
            "silence before a peer is pinged",
            "ping-every",
            Time(core.ping_every),
            (Time(Duration::from_millis(30)), Time(Duration::from_secs(3600))),
            "a ping",
        ),
        set(
            "silence before a peer is dead",
            "dead-after",
            Time(core.dead_after),
            (Time(Duration::from_millis(100)), Time(Duration::from_secs(4 * 3600))),
            "the connection is dropped and its session waits",
        ),
        Limit {
            name: "requests of a connection that run at once",
            flag: Some("concurrent-requests"),
            default: Count(wire::REQUESTS_RUNNING as u64),
            range: None,
            at: "others wait; requests that steer (terminate, signal, end) never do",
        },
        fixed("requests of a connection that wait", Count(wire::REQUESTS_WAITING as u64), "`overloaded`"),
        fixed("bytes of requests that wait", Bytes(wire::REQUESTS_WAITING_BYTES as u64), "`overloaded`"),
        fixed("reads of a connection that wait", Count(wire::READS_WAITING as u64), "`overloaded`"),
        fixed("bytes of writes that stdin has not taken", Bytes(wire::PARKED_BYTES as u64), "`overloaded`"),
        fixed(
            "bytes of answers that a peer does not read",
            Bytes(wire::ANSWERS_WAITING_BYTES as u64),
            "the peer is not read any more",
        ),
        set(
            "bytes of incoming messages, of all connections",
            "incoming-memory",
            Bytes(core.incoming_bytes as u64),
            (Bytes(256 << 20), Bytes(1 << 40)),
            "the connection that holds most is closed with 1013 and may come back; requests that would have to wait are `overloaded`",
        ),
        set(
            "output ahead of the last acknowledgement",
            "ack-window",
            Bytes(core.ack_window_bytes),
            (Bytes(64 << 10), Bytes(1 << 30)),
            "the process is not sent any more until the client acknowledges; at most `--memory-per-process` less 2 MiB",
        ),
    ]
}

fn at_the_door() -> Vec<Limit> {
    vec![
        fixed(
            "descriptors that new work leaves free",
            Count(64),
            "a start is `resourcesExhausted`, at half of it a new connection is closed; a quarter of a limit below 256",
        ),
        fixed("a request head", Bytes(8 << 10), "431"),
        fixed("time for TLS, head and answer", Time(Duration::from_secs(10)), "the connection is closed"),
        fixed(
            "connections that have not proven who they are",
            Count(64),
            "whoever comes takes the place of the oldest of the address that has most",
        ),
        fixed(
            "failures of an address in a row of minutes",
            Count(100),
            "429 after 50ms to 5s, and 8 places; the right token still comes in at once",
        ),
    ]
}

fn of_messages() -> Vec<Limit> {
    vec![
        fixed("a message", Bytes(wire::MESSAGE_BYTES as u64), "close 1009, or `malformed` on lines"),
        fixed("depth of a message", Count(wire::DEPTH as u64), "`malformed`"),
        fixed("values in a message", Count(wire::VALUES as u64), "`malformed`"),
        fixed(
            "output in one answer to `process/read`",
            Bytes(wire::READ_BYTES as u64),
            "the rest is for the next read",
        ),
    ]
}

const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);

/// A holder has 4096 slots: so many may be closed and as many run that both fit.
const CLOSED_MAX: u64 = 2048;
const RUNNING_MAX: u64 = 2048;

const fn set(
    name: &'static str,
    flag: &'static str,
    default: Amount,
    range: (Amount, Amount),
    at: &'static str,
) -> Limit {
    Limit { name, flag: Some(flag), default, range: Some(range), at }
}

const fn fixed(name: &'static str, default: Amount, at: &'static str) -> Limit {
    Limit { name, flag: None, default, range: None, at }
}

impl Limit {
    /// The help text of its flag.
    pub(crate) fn help(&self) -> String {
        let (name, at) = (capital(self.name), self.at);
        match self.range {
            Some((least, most)) => format!("{name}, {least} to {most}. At it: {at}"),
            None => format!("{name}. At it: {at}"),
        }
    }
}

/// As the flags take it: the largest unit that says it exactly.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SIZES: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        const TIMES: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
        let (value, units, least) = match self {
            Count(count) => return write!(f, "{count}"),
            Unbounded => return f.write_str("none"),
            Bytes(bytes) => (*bytes, SIZES, "B"),
            Time(time) => (u64::try_from(time.as_millis()).unwrap_or(u64::MAX), TIMES, "ms"),
        };
        // A day is a day only where there are several: 24h is how people say it.
        let fits = |(size, unit): &&(u64, &str)| value > 0 && value % size == 0 && (*unit != "d" || value > *size);
        match units.iter().find(fits) {
            Some((size, unit)) => write!(f, "{}{unit}", value / size),
            None => write!(f, "{value}{least}"),
        }
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_flags_take_them() {
        for (amount, text) in [
            (Bytes(16 << 20), "16MiB"),
            (Bytes(0), "0B"),
            (Bytes(1500), "1500B"),
            (Bytes(1 << 50), "1024TiB"),
            (Time(Duration::from_secs(86_400)), "24h"),
            (Time(Duration::from_secs(30 * 86_400)), "30d"),
            (Time(Duration::from_millis(1500)), "1500ms"),
            (Count(64), "64"),
        ] {
            assert_eq!(amount.to_string(), text);
        }
    }

    /// The README's table.
    fn table() -> String {
        let mut text = "| what | default | flag of `serve` | at the limit |\n|---|---|---|---|\n".to_owned();
        for Limit { name, flag, default, at, .. } in all() {
            let flag = flag.map_or_else(|| "–".to_owned(), |flag| format!("`--{flag}`"));
            text += &format!("| {name} | {default} | {flag} | {at} |\n");
        }
        text
    }

    #[test]
    fn the_readme_has_every_limit_as_it_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
        let readme = std::fs::read_to_string(path).expect("read README.md");
        let (begin, end) =
            ("<!-- limits: made by `UPDATE=1 cargo test -p exec-server readme_has` -->\n", "<!-- end of limits -->");
        let (before, rest) = readme.split_once(begin).expect("README.md has the mark of the table");
        let (table_now, after) = rest.split_once(end).expect("README.md has the mark of the table's end");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, format!("{before}{begin}{}{end}{after}", table())).expect("write README.md");
        } else {
            assert_eq!(table_now, table(), "README.md is stale: UPDATE=1 cargo test -p exec-server readme_has");
        }
    }

    #[test]
    fn a_default_lies_in_its_range_and_a_flag_has_one_limit() {
        let all = all();
        for limit in &all {
            let number = |amount: Amount| match amount {
                Bytes(n) | Count(n) => u128::from(n),
                Time(time) => time.as_millis(),
                Unbounded => u128::MAX,
            };
            if let Some((least, most)) = limit.range {
                let default = number(limit.default);
                assert!(number(least) <= default && default <= number(most), "{}", limit.name);
            }
            let same = all.iter().filter(|other| other.flag.is_some() && other.flag == limit.flag).count();
            assert!(same <= 1, "{:?}", limit.flag);
        }
    }
}
