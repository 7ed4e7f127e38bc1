//! Shell completions: the candidates that a shell offers after Tab, with the scripts that `completions` prints.

use crate::{commands::COMMANDS, prelude::*};

/// The candidates that a real bash offers for a command line whose last word is being typed.
fn offered(home: &Home, words: &[&str]) -> Vec<String> {
    let script = home.ok(&["completions", "bash"]);
    let program = format!(
        "{script}\nCOMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9\n\
         _clap_complete_exec_server exec-server \"${{COMP_WORDS[COMP_CWORD]}}\" \"\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &program, "bash", "exec-server"]).args(words);
    bash.stdout(Stdio::piped()).stderr(Stdio::piped());
    copy_env(&mut bash, &home.command(&[]));
    let dir = std::path::Path::new(testkit::binary()).parent().expect("it is in a directory").display().to_string();
    bash.env("PATH", format!("{dir}:{}", std::env::var("PATH").expect("there is one")));
    let output = finish(bash);
    assert_eq!(text(&output.stderr), "", "the prompt stays clean");
    let is_flag = words.last().is_some_and(|word| word.starts_with('-'));
    let offers = text(&output.stdout);
    // Flags are allowed everywhere, so the shell offers them after the other candidates. Filter for the kind that is tested.
    offers.lines().filter(|line| !line.is_empty() && line.starts_with('-') == is_flag).map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_ids_and_environments() {
    let (home, server) = (Home::new(), TestServer::start());
    home.write_environments(&format!("[[environments]]\nid = \"build\"\nurl = \"{}\"\n", server.url()));
    let all = offered(&home, &[""]);
    assert!(COMMANDS.split(' ').all(|command| all.iter().any(|offer| offer == command)), "{all:?}");
    assert!(offered(&home, &["run", "--ti"]).contains(&"--timeout".to_owned()));
    assert_eq!(offered(&home, &["run", "--connect", "bu"]), ["build"]);
    assert_eq!(offered(&home, &["cp", "--from", "lo"]), ["local"]);
    assert_eq!(offered(&home, &["logs", ""]), [""; 0], "nothing runs, and no server is started for that");
    assert!(!home.state_dir().exists());

    home.ok(&["run", "-d", "--name", "nightly", "--", "sleep", "1000"]);
    home.ok(&["run", "-d", "--name", "night-ended", "--", "true"]);
    assert_eq!(home.run(&["wait", "night-ended"]).status.code(), Some(0));
    home.ok(&["run", "-d", "--name", "$(touch x)", "--", "sleep", "1000"]);
    assert_eq!(offered(&home, &["logs", "night"]), ["night-ended", "nightly"]);
    assert_eq!(offered(&home, &["kill", ""]), ["nightly"], "what a shell would act on is never offered");
    assert_eq!(offered(&home, &["attach", "nigh"]), ["nightly"]);
    assert_eq!(offered(&home, &["forget", ""]), ["night-ended"]);
    home.ok(&["run", "-d", "--connect", "build", "--name", "there", "--", "sleep", "1000"]);
    for words in [&["logs", "--connect", "build", "th"][..], &["wait", "--connect", "=", "build", "th"]] {
        assert_eq!(offered(&home, words), ["there"], "{words:?}");
    }
    home.ok(&["kill", "--connect", "build", "there"]);
}

#[test]
fn zsh_and_fish_ask_the_same_program() {
    let home = Home::new();
    for shell in ["zsh", "fish"] {
        assert!(home.ok(&["completions", shell]).contains("EXEC_SERVER_COMPLETE"), "{shell}");
        let mut command = home.command(&["--", "exec-server", ""]);
        command.env("EXEC_SERVER_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "1");
        let said = text(&finish(command).stdout);
        let offers: Vec<&str> = said.lines().filter_map(|line| line.split([':', '\t']).next()).collect();
        assert!(COMMANDS.split(' ').all(|command| offers.contains(&command)), "{shell}: {said}");
    }
}
