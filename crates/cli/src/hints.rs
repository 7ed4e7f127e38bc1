//! Suggestions for command lines that would be right for another program, such as docker or ssh.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::ids;

/// Our commands, and what other programs call them.
const COMMANDS: [(&str, &[&str]); 7] = [
    ("ps", &["ls", "list", "jobs", "top", "status"]),
    ("run", &["exec", "start", "shell"]),
    ("kill", &["stop"]),
    ("forget", &["rm", "remove"]),
    ("logs", &["log", "tail"]),
    ("cp", &["scp"]),
    ("serve", &["server"]),
];

/// If other programs use the unknown subcommand for something that we do too, suggests our command.
pub(crate) fn suggest_command(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some((meant, _)) = COMMANDS.iter().find(|(_, others)| others.contains(&word.as_str()))
    {
        let meant = ContextValue::Strings(vec![(*meant).to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    error
}

/// The URL that a plain host name probably stands for: an ssh host, or an address with a port.
pub(crate) fn url_for(asked: &str) -> Option<String> {
    let is_word = |text: &str| {
        !text.is_empty()
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            && !text.starts_with('-')
    };
    let (user, rest) = asked.split_once('@').map_or((None, asked), |(user, rest)| (Some(user), rest));
    let (host, port) = rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if !is_word(host) || !user.is_none_or(is_word) || !is_port {
        return None;
    }
    match (user, port) {
        (None, Some(_)) => Some(format!("ws://{asked}")),
        (Some(_), _) | (None, None) => Some(format!("ssh://{asked}")),
    }
}

/// If the only argument looks like a shell command line, the command that runs it in a shell.
pub(crate) fn shell_command(argv: &[String]) -> Option<String> {
    let [only] = argv else { return None };
    let is_shell = only.trim().contains(|c: char| c.is_whitespace() || ";|&<>$`*(){}".contains(c));
    is_shell.then(|| format!("exec-server run -- sh -c {}", ids::quoted(only)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_becomes_an_ssh_url_and_an_address_with_a_port_a_ws_url() {
        for (asked, url) in [
            ("build-host", Some("ssh://build-host")),
            ("me@build-host", Some("ssh://me@build-host")),
            ("me@build-host:2222", Some("ssh://me@build-host:2222")),
            ("host:4000", Some("ws://host:4000")),
            ("127.0.0.1:4000", Some("ws://127.0.0.1:4000")),
            ("http://host", None),
            ("host:port", None),
            ("host:0", None),
            ("a b", None),
            ("-x", None),
            ("", None),
        ] {
            assert_eq!(url_for(asked).as_deref(), url, "{asked}");
        }
    }

    #[test]
    fn a_single_argument_with_shell_characters_becomes_a_shell_command() {
        let argv = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let meant = shell_command(&argv(&["echo hi; ls"]));
        assert_eq!(meant.as_deref(), Some("exec-server run -- sh -c 'echo hi; ls'"));
        assert_eq!(shell_command(&argv(&["a|b"])).as_deref(), Some("exec-server run -- sh -c 'a|b'"));
        assert_eq!(shell_command(&argv(&["no-such"])), None);
        assert_eq!(shell_command(&argv(&["echo hi", "x"])), None);
    }
}
