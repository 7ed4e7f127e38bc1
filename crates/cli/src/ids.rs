//! Process ids: generates new ones, and resolves what the user typed to a process.
//!
//! A user can name a process by its id, by a prefix of the id, or as `SESSION/ID` with a prefix of the session id. If several processes
//! have the same id, it means the running one, else the latest.

use std::hash::{BuildHasher as _, RandomState};

use exec_server_protocol::{ProcessId, SessionId, process::ProcessInfo};

pub(crate) use crate::printable::clean;

/// Maximum number of characters taken from the program name.
const STEM_MAX: usize = 20;

/// The alphabet for suffixes: lower-case letters and digits without those that look alike.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Length of the suffix that distinguishes two runs of one program.
const SUFFIX: usize = 4;

/// How many characters of a session id are shown: enough to tell sessions apart, too few to resume one.
const SESSION_SHOWN: usize = 8;

/// The typed id does not name exactly one suitable process.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProcessLookupError {
    /// No process has that id.
    #[error("no such process: `{}`; `exec-server ps` lists them", clean(asked))]
    Unknown { asked: String },
    /// No listed process has that id, but the processes of some sessions are not known yet.
    #[error(
        "no such process: `{}`; {sessions} session(s) not listed yet, because the holder process does not answer; \
         try again",
        clean(asked)
    )]
    Unlisted { asked: String, sessions: usize },
    /// Several processes match. The candidates have the form `SESSION/ID`, which can be typed.
    #[error("`{}` is ambiguous; it matches {}", clean(asked), candidates.join(", "))]
    Ambiguous { asked: String, candidates: Vec<String> },
    /// The process still runs, but the command needs an ended one.
    #[error("`{0}` is still running; `exec-server kill {0}` ends it", clean(asked))]
    Running { asked: String },
}

/// Generates an id that is easy to read and to type: the program name and a few random letters.
pub(crate) fn generate(program: &str) -> ProcessId {
    let base = program.rsplit('/').next().unwrap_or_default();
    let stem: String =
        base.chars().filter(|c| c.is_ascii_alphanumeric() || "._+-".contains(*c)).take(STEM_MAX).collect();
    let stem = stem.trim_start_matches(['-', '.']);
    let stem = if stem.is_empty() { "process" } else { stem };
    // The id only has to be new, not secret, so a few bytes of a randomly keyed hash are enough.
    let random = RandomState::new().hash_one(std::process::id()).to_le_bytes();
    let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
    let suffix: String = random.iter().take(SUFFIX).map(letter).collect();
    ProcessId::from(format!("{stem}-{suffix}"))
}

/// Resolves what the user typed.
pub(crate) fn resolve<'a>(asked: &str, all: &'a [ProcessInfo]) -> Result<&'a ProcessInfo, ProcessLookupError> {
    let named: Vec<&ProcessInfo> = all.iter().filter(|info| info.process_id.as_str() == asked).collect();
    if !named.is_empty() {
        return only_match(asked, &named);
    }
    if let Some((session, id)) = asked.split_once('/')
        && !session.is_empty()
    {
        let within = || all.iter().filter(|info| info.session_id.as_str().starts_with(session));
        let exact: Vec<&ProcessInfo> = within().filter(|info| info.process_id.as_str() == id).collect();
        let found = if exact.is_empty() { with_prefix(id, within()) } else { exact };
        if !found.is_empty() {
            return only_match(asked, &found);
        }
    }
    only_match(asked, &with_prefix(asked, all.iter()))
}

/// Whether a process with this id is not closed yet.
pub(crate) fn is_in_use(name: &str, all: &[ProcessInfo]) -> bool {
    all.iter().any(|info| info.process_id.as_str() == name && !info.closed)
}

/// The first characters of a session id.
pub(crate) fn short_session(id: &SessionId) -> String {
    clean(&id.as_str().chars().take(SESSION_SHOWN).collect::<String>())
}

/// Quotes an argument for a shell if needed. Unlike `shlex::try_quote`, it leaves letters of all scripts unquoted and escapes control
/// characters.
pub(crate) fn quoted(arg: &str) -> String {
    let shown = clean(arg);
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=+,@%^".contains(c);
    if !shown.is_empty() && shown.chars().all(is_plain) {
        return shown;
    }
    format!("'{}'", shown.replace('\'', "'\\''"))
}

/// The processes whose ids start with `prefix`. An empty prefix matches nothing.
fn with_prefix<'a>(prefix: &str, all: impl Iterator<Item = &'a ProcessInfo>) -> Vec<&'a ProcessInfo> {
    all.filter(|info| !prefix.is_empty() && info.process_id.as_str().starts_with(prefix)).collect()
}

/// The process that `found` identifies. Among several with the same id it is the only running one, or the latest if none runs.
fn only_match<'a>(asked: &str, found: &[&'a ProcessInfo]) -> Result<&'a ProcessInfo, ProcessLookupError> {
    let Some(first) = found.first() else { return Err(ProcessLookupError::Unknown { asked: asked.to_owned() }) };
    if found.iter().any(|info| info.process_id != first.process_id) {
        return Err(ambiguous(asked, found));
    }
    let running: Vec<&ProcessInfo> = found.iter().filter(|info| !info.closed).copied().collect();
    match running[..] {
        [one] => Ok(one),
        // The listing is oldest first, so the last match is the latest.
        [] => Ok(found.last().copied().unwrap_or(first)),
        _ => Err(ambiguous(asked, &running)),
    }
}

fn ambiguous(asked: &str, found: &[&ProcessInfo]) -> ProcessLookupError {
    let candidates = found
        .iter()
        .map(|info| format!("{}/{}", short_session(&info.session_id), clean(info.process_id.as_str())))
        .collect();
    ProcessLookupError::Ambiguous { asked: asked.to_owned(), candidates }
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
    fn an_id_means_the_running_process_else_the_latest() {
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
            assert_eq!(found(asked), Err(ProcessLookupError::Unknown { asked: asked.to_owned() }));
        }
        let Err(ProcessLookupError::Ambiguous { candidates, .. }) = found("twice") else { panic!() };
        assert_eq!(candidates, ["s6-fffff/twice", "s7-ggggg/twice"]);
        assert!(matches!(found("t"), Err(ProcessLookupError::Ambiguous { .. })));
        assert!(is_in_use("test", &all) && !is_in_use("build", &all));
    }

    #[test]
    fn a_generated_id_contains_the_program_name_and_is_safe_to_type() {
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
