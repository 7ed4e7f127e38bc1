//! The sources of a program's variables: `--login`, `environments.toml`, and the server's PATH.

use crate::prelude::*;

/// Installs a one-line shell script as a program in a new directory.
fn install(dir: &Path, name: &str, line: &str) {
    fs::create_dir_all(dir).expect("make a directory");
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{line}\n")).expect("write a program");
    set_mode(&path, 0o755);
}

/// Runs a command with this login shell; returns stdout, stderr and the exit code.
fn run(home: &Home, args: &[&str], shell: &str) -> (String, String, Option<i32>) {
    let mut command = home.command(args);
    command.env("SHELL", shell);
    outcome(command)
}

#[test]
fn login_adds_the_variables_of_the_profile_and_the_flag_env_wins() {
    let home = Home::new();
    install(&home.path().join("tools"), "my-tool", "echo \"$FROM_PROFILE $BOTH\"");
    let profile = "echo Welcome\nexport PATH=$HOME/tools:$PATH FROM_PROFILE=profile BOTH=profile\n";
    fs::write(home.path().join(".profile"), profile).expect("write the profile");
    for shell in ["/bin/sh", "/bin/bash"] {
        let (stdout, stderr, code) = run(&home, &["run", "--login", "--env", "BOTH=flag", "--", "my-tool"], shell);
        assert_eq!((stdout.as_str(), stderr.as_str(), code), ("profile flag\n", "", Some(0)));
    }
    let (_, _, code) = run(&home, &["run", "--", "my-tool"], "/bin/sh");
    assert_eq!(code, Some(127));
}

#[test]
fn login_works_for_detached_programs_and_leaves_no_shell_behind() {
    let home = Home::new();
    fs::write(home.path().join(".profile"), "export FROM_PROFILE=profile\n").expect("write the profile");
    let args = ["run", "-d", "--name", "job", "--login", "--", "sh", "-c", "echo $FROM_PROFILE"];
    let (stdout, stderr, code) = run(&home, &args, "/bin/sh");
    assert_eq!((stdout.as_str(), code), ("job\n", Some(0)), "{stderr}");
    assert!(home.run(&["wait", "job"]).status.success());
    assert_eq!(home.ok(&["logs", "job"]), "profile");
    let listed = home.json(&["ps", "--json"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
}

#[test]
fn a_login_shell_that_fails_is_named_with_its_code() {
    let home = Home::new();
    fs::write(home.path().join(".profile"), "echo broken profile >&2; exit 7\n").expect("write the profile");
    let (stdout, stderr, code) = run(&home, &["run", "--login", "--", "true"], "/bin/sh");
    assert_eq!((stdout.as_str(), code), ("", Some(255)));
    let expected =
        "exec-server: read the environment of the login shell: the shell exited with code 7: broken profile\n";
    assert_eq!(stderr, expected);
}

#[test]
fn an_environment_sets_variables_and_searches_its_directories_first() {
    let server = TestServer::start();
    let home = Home::new();
    let tools = server.dir().join("home/tools");
    install(&tools, "tool-there", "echo \"$GREETING\"");
    let entry = format!(
        "[[environments]]\nid = \"there\"\nurl = \"{}\"\npath = [\"~/tools\"]\nenv = {{ GREETING = \"hello\" }}\n",
        server.url()
    );
    home.write_environments(&entry);
    assert_eq!(home.ok(&["run", "--connect", "there", "--", "tool-there"]), "hello");
    assert_eq!(home.ok(&["run", "--connect", "there", "--env", "GREETING=flag", "--", "tool-there"]), "flag");
    home.write_environments(&entry.replace("~/tools", "tools"));
    let (_, stderr, _) = outcome(home.command(&["run", "--connect", "there", "--", "tool-there"]));
    assert!(stderr.contains("`tools` must begin with `/` or `~/` and contain no colon"), "{stderr}");
}

#[test]
fn a_missing_program_is_reported_with_the_path_it_was_searched_in() {
    let server = TestServer::builder().env("PATH", "/opt/nowhere:/usr/bin:/bin").start();
    let home = Home::new();
    let mut command = home.command(&["run", "--", "no-such-program"]);
    command.env("EXEC_SERVER_URL", server.url());
    let (_, stderr, code) = outcome(command);
    assert_eq!(code, Some(127));
    assert!(stderr.contains("`no-such-program`: not found in PATH (/opt/nowhere:/usr/bin:/bin)"), "{stderr}");
}

#[test]
fn the_server_of_an_ssh_login_finds_programs_below_the_home_directory() {
    let home = Home::new();
    install(&home.path().join(".local/bin"), "installed-by-me", "echo found");
    let url = concat!("stdio:", env!("CARGO_BIN_EXE_exec-server"), " dial-stdio");
    let mut command = home.command(&["run", "--connect", url, "--", "installed-by-me"]);
    // The PATH that sshd sets, without a profile.
    command.env("PATH", "/usr/bin:/bin");
    let (stdout, stderr, code) = outcome(command);
    assert_eq!((stdout.as_str(), code), ("found\n", Some(0)), "{stderr}");
}
