//! Computes the environment variables of an MCP server, on this machine or on an executor.
//!
//! A server on this machine starts with our values of [`DEFAULT_NAMES`]. A server on an executor inherits the executor's
//! core variables ([`Inherit::Core`]). If the server's configuration names variables of the executor, the server inherits
//! exactly these and `DEFAULT_NAMES` instead. In all cases, our variables that the configuration names are added, and
//! literal values in the configuration win. The functions read no environment: our variables are an argument.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
};

use exec_server_client::{
    environment::TOKEN_VARIABLE,
    protocol::process::{EnvPolicy, Inherit},
};

use crate::config::{EnvSource, EnvVar, StdioConfig};

/// The environment variables of this program.
pub type Variables = BTreeMap<OsString, OsString>;

/// Variables that a server on this machine always gets, and that a server on an executor gets if its configuration
/// names a variable of the executor.
pub const DEFAULT_NAMES: [&str; 11] =
    ["HOME", "LOGNAME", "PATH", "SHELL", "USER", "__CF_USER_TEXT_ENCODING", "LANG", "LC_ALL", "TERM", "TMPDIR", "TZ"];

/// The environment of a program, in the form that a start request takes.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchEnv {
    /// Which variables the program inherits from the place where it runs.
    pub policy: EnvPolicy,
    /// Variables set in addition to the inherited ones. They win.
    pub env: BTreeMap<String, String>,
}

/// Why the environment that a configuration requests is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// A variable with source `remote`, but the server runs on this machine.
    #[error(
        "variable `{name}` has `source = \"remote\"`, but the server runs on this machine; remove `source`, or set `environment`"
    )]
    RemoteHere { name: String },
    /// A value that is not UTF-8, which the protocol cannot carry.
    #[error("variable `{name}` is not UTF-8, so it cannot be sent to an executor")]
    NotText { name: String },
}

/// The environment of a server on this machine: our values of `DEFAULT_NAMES` and `env_vars`, then the literal values.
///
/// The protocol cannot carry a value that is not UTF-8, not even to the back end `Local`, which runs in this process.
/// `Local` has our environment, so the policy lets the server inherit such a variable from it instead.
pub fn local(stdio: &StdioConfig, ours: &Variables) -> Result<LaunchEnv, EnvError> {
    if let Some(name) = remote_names(&stdio.env_vars).next() {
        return Err(EnvError::RemoteHere { name: name.to_owned() });
    }
    let mut launch = LaunchEnv { policy: policy(Inherit::None), env: BTreeMap::new() };
    for name in DEFAULT_NAMES.into_iter().chain(named(&stdio.env_vars, EnvSource::Local)) {
        let Some(value) = ours.get(OsStr::new(name)) else { continue };
        match value.to_str() {
            Some(text) => drop(launch.env.insert(name.to_owned(), text.to_owned())),
            // In the policy this name would be a pattern that can match other variables too, so leave the variable out.
            None if name.contains(['*', '?']) => {}
            None => {
                launch.policy.inherit = Inherit::All;
                launch.policy.include_only.push(name.to_owned());
            }
        }
    }
    launch.env.extend(stdio.env.clone());
    Ok(launch.without_token())
}

/// The environment of a server on an executor: what it inherits there, our variables that the configuration names, and
/// the literal values, which win. If the configuration names variables of the executor, the policy lists
/// `DEFAULT_NAMES` and those names; their values are never sent to this machine.
pub fn executor(stdio: &StdioConfig, ours: &Variables) -> Result<LaunchEnv, EnvError> {
    let mut launch = LaunchEnv { policy: remote_policy(&stdio.env_vars), env: BTreeMap::new() };
    for name in named(&stdio.env_vars, EnvSource::Local) {
        let Some(value) = ours.get(OsStr::new(name)) else { continue };
        let text = value.to_str().ok_or_else(|| EnvError::NotText { name: name.to_owned() })?;
        launch.env.insert(name.to_owned(), text.to_owned());
    }
    launch.env.extend(stdio.env.clone());
    Ok(launch.without_token())
}

/// The names of the variables whose values are read on the executor.
pub fn remote_names(variables: &[EnvVar]) -> impl Iterator<Item = &str> {
    named(variables, EnvSource::Remote)
}

/// Which variables a server inherits from its executor.
#[must_use]
pub fn remote_policy(variables: &[EnvVar]) -> EnvPolicy {
    let mut names = remote_names(variables).peekable();
    if names.peek().is_none() {
        return policy(Inherit::Core);
    }
    let mut policy = policy(Inherit::All);
    for name in DEFAULT_NAMES.into_iter().chain(names) {
        if !policy.include_only.iter().any(|known| known == name) {
            policy.include_only.push(name.to_owned());
        }
    }
    policy
}

fn named(variables: &[EnvVar], source: EnvSource) -> impl Iterator<Item = &str> {
    variables.iter().filter(move |variable| variable.source == source).map(|variable| variable.name.as_str())
}

/// A policy without the executor's default exclusion of names that look like secrets. The inherited names are known, so the exclusion could
/// only remove a variable that the configuration asks for.
fn policy(inherit: Inherit) -> EnvPolicy {
    EnvPolicy { inherit, ignore_default_excludes: true, ..EnvPolicy::core() }
}

impl LaunchEnv {
    /// Removes our token, which grants access to executors. No program gets it, even if the configuration names it. The name is removed
    /// from the policy too, because an executor of another implementation might pass on its own token.
    fn without_token(mut self) -> Self {
        let is_token = |name: &str| name.eq_ignore_ascii_case(TOKEN_VARIABLE);
        self.env.retain(|name, _| !is_token(name));
        self.policy.include_only.retain(|name| !is_token(name));
        self
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    fn ours(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn stdio(env: &[(&str, &str)], variables: &[(&str, EnvSource)]) -> StdioConfig {
        StdioConfig {
            command: "server".to_owned(),
            env: texts(env),
            env_vars: variables
                .iter()
                .map(|(name, source)| EnvVar { name: (*name).to_owned(), source: *source })
                .collect(),
            ..StdioConfig::default()
        }
    }

    fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    use EnvSource::{Local, Remote};

    #[test]
    fn create_env_takes_the_short_list_and_nothing_else() {
        let ours = ours(&[("PATH", "/bin"), ("HOME", "/h"), ("TZ", "UTC"), ("SECRET", "s"), ("EDITOR", "vi")]);
        let launch = local(&stdio(&[], &[]), &ours).expect("made");
        assert_eq!(launch.env, texts(&[("PATH", "/bin"), ("HOME", "/h"), ("TZ", "UTC")]));
        assert_eq!(launch.policy, policy(Inherit::None));
    }

    #[test]
    fn create_env_literal_values_win() {
        let ours = ours(&[("HOME", "/h"), ("A", "ours"), ("B", "ours")]);
        let launch =
            local(&stdio(&[("A", "set"), ("HOME", "/set"), ("NEW", "n")], &[("A", Local), ("B", Local)]), &ours);
        assert_eq!(launch.expect("made").env, texts(&[("A", "set"), ("B", "ours"), ("HOME", "/set"), ("NEW", "n")]));
    }

    #[test]
    fn create_env_includes_named_variables_and_leaves_missing_ones_out() {
        let ours = ours(&[("API_TOKEN", "t"), ("OTHER", "o")]);
        let launch = local(&stdio(&[], &[("API_TOKEN", Local), ("MISSING", Local)]), &ours).expect("made");
        assert_eq!(launch.env, texts(&[("API_TOKEN", "t")]));
    }

    #[test]
    fn create_env_refuses_a_remote_source_here() {
        let error =
            local(&stdio(&[], &[("A", Local), ("TOKEN", Remote)]), &ours(&[("TOKEN", "t")])).expect_err("refused");
        assert_eq!(error, EnvError::RemoteHere { name: "TOKEN".to_owned() });
        assert!(error.to_string().contains("`TOKEN`"), "{error}");
    }

    #[test]
    fn create_env_inherits_values_that_are_not_utf8() {
        let raw = OsString::from_vec(vec![b'x', 0xff]);
        let mut ours = ours(&[("PATH", "/bin"), ("HOME", "/h")]);
        ours.insert("RAW".into(), raw.clone());
        ours.insert("HOME".into(), raw.clone());
        let launch = local(&stdio(&[], &[("RAW", Local)]), &ours).expect("made");
        assert_eq!(launch.env, texts(&[("PATH", "/bin")]));
        assert_eq!(
            (launch.policy.inherit, launch.policy.include_only),
            (Inherit::All, vec!["HOME".into(), "RAW".into()])
        );
    }

    #[test]
    fn create_env_never_has_our_token() {
        let ours = ours(&[("EXEC_SERVER_TOKEN", "t"), ("exec_server_token", "t"), ("A", "1")]);
        let asks = stdio(
            &[("Exec_Server_Token", "t")],
            &[("EXEC_SERVER_TOKEN", Local), ("exec_server_token", Local), ("A", Local)],
        );
        assert_eq!(local(&asks, &ours).expect("made").env, texts(&[("A", "1")]));
        assert_eq!(executor(&asks, &ours).expect("made").env, texts(&[("A", "1")]));
        let remote = executor(&stdio(&[], &[("EXEC_SERVER_TOKEN", Remote), ("B", Remote)]), &ours).expect("made");
        assert!(!remote.policy.include_only.contains(&"EXEC_SERVER_TOKEN".to_owned()), "{remote:?}");
        assert!(remote.policy.include_only.contains(&"B".to_owned()), "{remote:?}");
    }

    #[test]
    fn create_remote_env_overlay_has_only_named_and_literal_values() {
        let ours = ours(&[("PATH", "/here"), ("HOME", "/here"), ("A", "a"), ("B", "b"), ("C", "c")]);
        let launch = executor(&stdio(&[("B", "set")], &[("A", Local), ("B", Local), ("MISSING", Local)]), &ours);
        assert_eq!(launch.expect("made").env, texts(&[("A", "a"), ("B", "set")]));
    }

    #[test]
    fn create_remote_env_overlay_does_not_copy_remote_sources() {
        let launch = executor(&stdio(&[], &[("A", Remote), ("B", Local)]), &ours(&[("A", "a"), ("B", "b")]));
        assert_eq!(launch.expect("made").env, texts(&[("B", "b")]));
    }

    #[test]
    fn create_remote_env_overlay_refuses_values_that_are_not_utf8() {
        let mut ours = ours(&[]);
        ours.insert("RAW".into(), OsString::from_vec(vec![0xff]));
        let error = executor(&stdio(&[], &[("RAW", Local)]), &ours).expect_err("refused");
        assert_eq!(error, EnvError::NotText { name: "RAW".to_owned() });
        // The configuration does not name it, so it is not sent.
        assert_eq!(executor(&stdio(&[], &[]), &ours).expect("made").env, texts(&[]));
    }

    #[test]
    fn remote_mcp_env_var_names_are_those_with_that_source() {
        let variables = stdio(&[], &[("A", Local), ("B", Remote), ("C", Remote)]).env_vars;
        assert_eq!(remote_names(&variables).collect::<Vec<_>>(), ["B", "C"]);
        assert_eq!(remote_names(&[]).count(), 0);
    }

    #[test]
    fn remote_env_policy_is_the_executor_s_short_list() {
        assert_eq!(remote_policy(&stdio(&[], &[("A", Local)]).env_vars), policy(Inherit::Core));
        assert!(policy(Inherit::Core).ignore_default_excludes);
    }

    #[test]
    fn remote_env_policy_lists_all_names_if_a_variable_has_a_remote_source() {
        let policy = remote_policy(&stdio(&[], &[("TOKEN", Remote), ("HOME", Remote), ("A", Local)]).env_vars);
        let mut expected: Vec<String> = DEFAULT_NAMES.map(str::to_owned).to_vec();
        expected.push("TOKEN".to_owned());
        assert_eq!((policy.inherit, policy.ignore_default_excludes), (Inherit::All, true));
        assert_eq!(policy.include_only, expected);
    }
}
