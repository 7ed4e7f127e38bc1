//! Builds a child's environment: first the policy on the server's own variables, then the variables of the request,
//! then the removal of variables that no child may see.
//!
//! Works on bytes: a server variable that is not UTF-8 is passed on unchanged.

use std::{collections::BTreeMap, ffi::OsString, os::unix::ffi::OsStrExt};

use exec_server_protocol::process::{CORE_VARIABLES, EnvPolicy, Inherit};

use crate::error::Failure;

/// Patterns that a policy excludes by default.
const DEFAULT_EXCLUDES: [&str; 3] = ["*KEY*", "*SECRET*", "*TOKEN*"];

/// Credentials of this server and of compatible products. No child gets them, no matter who set them.
const TOKEN_NAMES: [&str; 6] = [
    "EXEC_SERVER_TOKEN",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "NODE_REPL_AUTH_TOKEN",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
];

/// Variables of the service manager and our own settings. Never inherited. A request may set them itself, except
/// [`EXIT_ON_STDIN_CLOSE`] and those in [`TOKEN_NAMES`].
const PLUMBING: [&str; 6] =
    ["EXEC_SERVER_*", "NOTIFY_SOCKET", "LISTEN_*", "WATCHDOG_*", "CREDENTIALS_DIRECTORY", EXIT_ON_STDIN_CLOSE];

/// A setting of the reference's exec-server. Like the tokens, no child gets it.
const EXIT_ON_STDIN_CLOSE: &str = "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE";

/// Variables that `http/request` never puts into a header, in addition to [`PLUMBING`]: keys for the services of
/// compatible products, and cloud credentials. `NODE_REPL_AUTH_TOKEN` is not in the list: no child gets it, but a
/// header may contain it.
const KEPT_FROM_HEADERS: [&str; 14] = [
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "CODEX_ACCESS_TOKEN",
    "CODEX_CONNECTORS_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "CODEX_EXEC_SERVER_*",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
];

/// Maximum length of a `PATH` in an error message.
const SHOWN_PATH_MAX: usize = 1000;

/// Refuses names that cannot name a variable. `A=B` would set the variable `A`.
pub(crate) fn check_names(policy: Option<&EnvPolicy>, request: &BTreeMap<String, String>) -> Result<(), Failure> {
    let set = policy.into_iter().flat_map(|policy| policy.set.keys());
    match request.keys().chain(set).find(|name| name.is_empty() || name.contains('=')) {
        None => Ok(()),
        Some(name) => Err(Failure::InvalidParams { reason: format!("`{name}` cannot name an environment variable") }),
    }
}

/// Whether a server variable must not be used in a header. Ignores case, and whether the variable is set.
pub(crate) fn is_kept_from_headers(name: &str) -> bool {
    matches_any(name.as_bytes(), &KEPT_FROM_HEADERS) || matches_any(name.as_bytes(), &PLUMBING)
}

/// The environment of a child as `NAME=value` strings, sorted by name.
pub(crate) fn child_environment(
    server: &[(OsString, OsString)],
    policy: Option<&EnvPolicy>,
    request: &BTreeMap<String, String>,
) -> Vec<Vec<u8>> {
    let mut child: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    if let Some(policy) = policy {
        apply_policy(server, policy, &mut child);
    }
    for (name, value) in request {
        child.insert(name.clone().into_bytes(), value.clone().into_bytes());
    }
    child.retain(|name, _| !matches_any(name, &TOKEN_NAMES) && name.as_slice() != EXIT_ON_STDIN_CLOSE.as_bytes());
    child
        .into_iter()
        .map(|(mut line, value)| {
            line.push(b'=');
            line.extend_from_slice(&value);
            line
        })
        .collect()
}

/// The `PATH` in which a program is searched, truncated for display. `None` for a program with a slash.
pub(crate) fn search_path(program: &str, env: &[Vec<u8>]) -> Option<String> {
    if program.contains('/') {
        return None;
    }
    let path = env.iter().find_map(|entry| entry.strip_prefix(b"PATH="));
    let path = String::from_utf8_lossy(path.unwrap_or(b"unset"));
    let shown = &path[..path.floor_char_boundary(SHOWN_PATH_MAX)];
    Some(if shown.len() < path.len() { format!("{shown}...") } else { shown.to_owned() })
}

fn apply_policy(server: &[(OsString, OsString)], policy: &EnvPolicy, child: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    for (name, value) in server {
        let name = name.as_bytes();
        let inherited = match policy.inherit {
            Inherit::All => true,
            Inherit::Core => matches_any(name, &CORE_VARIABLES),
            Inherit::None => false,
        };
        let excluded = matches_any(name, &PLUMBING)
            || (!policy.ignore_default_excludes && matches_any(name, &DEFAULT_EXCLUDES))
            || policy.exclude.iter().any(|pattern| matches(pattern, name));
        if inherited && !excluded {
            child.insert(name.to_vec(), value.as_bytes().to_vec());
        }
    }
    for (name, value) in &policy.set {
        child.insert(name.clone().into_bytes(), value.clone().into_bytes());
    }
    if !policy.include_only.is_empty() {
        child.retain(|name, _| policy.include_only.iter().any(|pattern| matches(pattern, name)));
    }
}

fn matches_any(name: &[u8], patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

/// Matches a whole name against a wildcard pattern, ignoring case: `*` is any run, `?` is one character. Takes time
/// proportional to the product of both lengths.
fn matches(pattern: &str, name: &[u8]) -> bool {
    let pattern = pattern.as_bytes();
    let (mut p, mut n) = (0, 0);
    // Where to retry after the last star: the pattern after it, and the name one byte further than the last time.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, n));
                p += 1;
            }
            Some(c) if *c == b'?' || c.eq_ignore_ascii_case(&name[n]) => {
                p += 1;
                n += 1;
            }
            _ => match retry {
                Some((after_star, from)) => {
                    p = after_star;
                    n = from + 1;
                    retry = Some((after_star, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Vec<(OsString, OsString)> {
        [
            ("PATH", "/bin"),
            ("HOME", "/h"),
            ("API_KEY", "k"),
            ("Exec_Server_Token", "t"),
            ("LISTEN_FDS", "1"),
            ("OTHER", "o"),
        ]
        .map(|(k, v)| (k.into(), v.into()))
        .to_vec()
    }

    fn check(policy: Option<EnvPolicy>, request: &[(&str, &str)], expected: &[&str]) {
        let request = request.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let got = child_environment(&server(), policy.as_ref(), &request);
        let got: Vec<String> = got.into_iter().map(|line| String::from_utf8_lossy(&line).into_owned()).collect();
        assert_eq!(got, expected);
    }

    fn policy(inherit: Inherit) -> EnvPolicy {
        EnvPolicy {
            inherit,
            ignore_default_excludes: false,
            exclude: vec![],
            set: BTreeMap::new(),
            include_only: vec![],
        }
    }

    #[test]
    fn without_a_policy_a_child_gets_exactly_the_requested_variables() {
        check(None, &[("ONLY", "1")], &["ONLY=1"]);
    }

    #[test]
    fn the_variables_of_the_request_override_those_of_the_policy() {
        let mut p = policy(Inherit::All);
        p.exclude = vec!["oth*".into()];
        p.set.insert("SECRET_KEY".into(), "set".into());
        check(Some(p), &[("PATH", "/mine")], &["HOME=/h", "PATH=/mine", "SECRET_KEY=set"]);
    }

    #[test]
    fn inherit_core_passes_on_only_the_core_variables() {
        check(Some(policy(Inherit::Core)), &[], &["HOME=/h", "PATH=/bin"]);
    }

    #[test]
    fn include_only_also_filters_the_variables_in_set() {
        let mut p = policy(Inherit::None);
        p.set.insert("A".into(), "1".into());
        p.set.insert("B".into(), "2".into());
        p.include_only = vec!["b".into()];
        check(Some(p), &[], &["B=2"]);
    }

    #[test]
    fn no_child_gets_a_token_and_plumbing_is_passed_on_only_if_the_request_sets_it() {
        let mut p = policy(Inherit::All);
        p.ignore_default_excludes = true;
        check(
            Some(p),
            &[("exec_server_TOKEN", "x"), ("NOTIFY_SOCKET", "mine")],
            &["API_KEY=k", "HOME=/h", "NOTIFY_SOCKET=mine", "OTHER=o", "PATH=/bin"],
        );
    }

    #[test]
    fn wildcards_match_whole_names() {
        for (pattern, name, expected) in [
            ("*key*", "MY_KEY_2", true),
            ("A?C", "abc", true),
            ("A?C", "abbc", false),
            ("a*b*c", "aXbYbc", true),
            ("", "x", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
