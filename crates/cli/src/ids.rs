//! Names of processes: how one is made, and which process a typed one means.
//!
//! A process is meant by its id, by the beginning of it, or as `SESSION/ID` with the beginning of the session. A name that was
//! used again means the one that runs, else the latest. Must not know how processes are listed.

use std::fmt;

use exec_server_protocol::{ProcessId, SessionId, process::ProcessInfo};

pub(crate) use crate::printable::clean;

/// Letters of a made name that come from the program's.
const STEM_MAX: usize = 20;

/// Without letters and digits that look alike.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// How many of them tell two runs of one program apart.
const SUFFIX: usize = 4;

/// How much of a session's id is shown; enough to tell sessions apart, too little to be one.
const SESSION_SHOWN: usize = 8;

/// No process is meant, or more than one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoProcess {
    /// Nothing of that name.
    Unknown { asked: String },
    /// Nothing of that name, but the processes of some sessions are not known yet.
    Unlisted { asked: String, sessions: usize },
    /// Several, written so that each can be asked for.
    Ambiguous { asked: String, candidates: Vec<String> },
    /// It still runs, and only an ended one would do.
    Running { asked: String },
}

impl fmt::Display for NoProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { asked } => write!(f, "no such process: `{}`; `exec-server ps` lists them", clean(asked)),
            Self::Unlisted { asked, sessions } => write!(
                f,
                "no such process: `{}`; {sessions} session(s) not listed yet, because the holder process does not answer; \
                 try again",
                clean(asked)
            ),
            Self::Ambiguous { asked, candidates } => {
                write!(f, "`{}` may be any of: {}", clean(asked), candidates.join(", "))
            }
            Self::Running { asked } => {
                write!(f, "`{0}` has not ended; `exec-server kill {0}` ends it", clean(asked))
            }
        }
    }
}

impl std::error::Error for NoProcess {}

/// A name that can be read, typed and told apart: the program's, and a few random letters.
pub(crate) fn generate(program: &str) -> ProcessId {
    let base = program.rsplit('/').next().unwrap_or_default();
    let stem: String =
        base.chars().filter(|c| c.is_ascii_alphanumeric() || "._+-".contains(*c)).take(STEM_MAX).collect();
    let stem = stem.trim_start_matches(['-', '.']);
    let stem = if stem.is_empty() { "process" } else { stem };
    let suffix: String = random().map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).collect();
    ProcessId::from(format!("{stem}-{suffix}"))
}

fn random() -> impl Iterator<Item = u8> {
    // Four bytes of it; the name has to be new, not secret.
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id())
        .to_le_bytes()
        .into_iter()
        .take(SUFFIX)
}

/// The process that `asked` means.
pub(crate) fn resolve<'a>(asked: &str, all: &'a [ProcessInfo]) -> Result<&'a ProcessInfo, NoProcess> {
    let named: Vec<&ProcessInfo> = all.iter().filter(|info| info.process_id.as_str() == asked).collect();
    if !named.is_empty() {
        return one(asked, &named);
    }
    if let Some((session, id)) = asked.split_once('/')
        && !session.is_empty()
    {
        let within: Vec<&ProcessInfo> =
            all.iter().filter(|info| info.session_id.as_str().starts_with(session)).collect();
        let exact: Vec<&ProcessInfo> = within.iter().filter(|info| info.process_id.as_str() == id).copied().collect();
        let some = if exact.is_empty() { beginning(id, &within) } else { exact };
        if !some.is_empty() {
            return one(asked, &some);
        }
    }
    one(asked, &beginning(asked, &all.iter().collect::<Vec<_>>()))
}

/// Whether a process of this name runs.
pub(crate) fn is_in_use(name: &str, all: &[ProcessInfo]) -> bool {
    all.iter().any(|info| info.process_id.as_str() == name && !info.closed)
}

/// The session as it is shown.
pub(crate) fn short(info: &ProcessInfo) -> String {
    short_session(&info.session_id)
}

/// The beginning of a session's id.
pub(crate) fn short_session(id: &SessionId) -> String {
    clean(&id.as_str().chars().take(SESSION_SHOWN).collect::<String>())
}

/// As it could be typed: what a shell would read otherwise stands in quotes.
pub(crate) fn quoted(arg: &str) -> String {
    let shown = clean(arg);
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=+,@%^".contains(c);
    if !shown.is_empty() && shown.chars().all(is_plain) {
        return shown;
    }
    format!("'{}'", shown.replace('\'', "'\\''"))
}

fn beginning<'a>(id: &str, all: &[&'a ProcessInfo]) -> Vec<&'a ProcessInfo> {
    if id.is_empty() {
        return Vec::new();
    }
    all.iter().filter(|info| info.process_id.as_str().starts_with(id)).copied().collect()
}

/// The only one; of several with one name the only one that runs, else the latest.
fn one<'a>(asked: &str, found: &[&'a ProcessInfo]) -> Result<&'a ProcessInfo, NoProcess> {
    let Some(first) = found.first() else { return Err(NoProcess::Unknown { asked: asked.to_owned() }) };
    if found.iter().any(|info| info.process_id != first.process_id) {
        return Err(ambiguous(asked, found));
    }
    let running: Vec<&ProcessInfo> = found.iter().filter(|info| !info.closed).copied().collect();
    match running[..] {
        [one] => Ok(one),
        // The list is the oldest first.
        [] => Ok(found.last().copied().unwrap_or(first)),
        _ => Err(ambiguous(asked, &running)),
    }
}

fn ambiguous(asked: &str, found: &[&ProcessInfo]) -> NoProcess {
    let candidates = found.iter().map(|info| format!("{}/{}", short(info), clean(info.process_id.as_str()))).collect();
    NoProcess::Ambiguous { asked: asked.to_owned(), candidates }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(session: &str, id: &str, closed: bool) -> ProcessInfo {
        ProcessInfo {
            process_id: id.into(),
            session_id: session.into(),
            pid: Some(7),
            argv: vec!["x".to_owned()],
            argv_bytes: None,
            cwd: "/".to_owned(),
            tty: false,
            started_at_ms: 0,
            exited: closed,
            exit: None,
            closed,
            next_seq: 1,
            output_bytes: 0,
            retained_bytes: 0,
            dropped_bytes: 0,
            blocked: None,
        }
    }

    #[test]
    fn a_name_means_the_process_that_runs_else_the_latest() {
        let all = [
            process("s1-aaaaaaaa", "build", true),
            process("s2-bbbbbbbb", "build", true),
            process("s3-cccccccc", "build-old", false),
            process("s4-dddddddd", "test", true),
            process("s5-eeeeeeee", "test", false),
            process("s6-ffffffff", "twice", false),
            process("s7-gggggggg", "twice", false),
            process("s8-hhhhhhhh", "a/b", false),
        ];
        let found = |asked: &str| resolve(asked, &all).map(|info| info.session_id.as_str()[..2].to_owned());
        for (asked, session) in [
            ("build", "s2"),
            ("build-", "s3"),
            ("s1/build", "s1"),
            ("s1-aaaa/b", "s1"),
            ("test", "s5"),
            ("te", "s5"),
            ("s4/test", "s4"),
            ("s7/twice", "s7"),
            ("a/b", "s8"),
            ("s8/a/b", "s8"),
        ] {
            assert_eq!(found(asked).as_deref(), Ok(session), "{asked}");
        }
        for asked in ["", "/", "nothing", "s1/test", "/build", "x/build"] {
            assert_eq!(found(asked), Err(NoProcess::Unknown { asked: asked.to_owned() }));
        }
        let Err(NoProcess::Ambiguous { candidates, .. }) = found("twice") else { panic!() };
        assert_eq!(candidates, ["s6-fffff/twice", "s7-ggggg/twice"]);
        assert!(matches!(found("t"), Err(NoProcess::Ambiguous { .. })));
        assert!(is_in_use("test", &all) && !is_in_use("build", &all));
    }

    #[test]
    fn a_made_name_tells_the_program_and_is_safe_to_type() {
        for (program, stem) in
            [("/usr/bin/make", "make"), ("g++", "g++"), ("-x", "x"), ("/", "process"), ("a b\n", "ab")]
        {
            let name = generate(program);
            let (head, tail) = name.as_str().rsplit_once('-').expect("it has a suffix");
            assert_eq!((head, tail.len()), (stem, SUFFIX), "{program}");
        }
        assert_ne!(generate("x"), generate("x"));
    }
}
