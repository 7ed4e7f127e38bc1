//! The `ssh://` transport with a script in place of ssh: how it is called, and how its exit is explained.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use exec_server_client::{
    Error, ErrorKind,
    transport::{Connect as _, Connection, Ssh},
};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use crate::{programs::explained, within};

/// A simulated remote machine: a home directory, a `PATH`, and an ssh script that runs commands there.
struct Host {
    dir: TempDir,
}

impl Host {
    /// `shell` runs the remote command, as the login shell of the machine would.
    fn new(shell: &str) -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(host.path("home")).unwrap();
        fs::create_dir_all(host.path("bin")).unwrap();
        let script = format!(
            "#!/bin/sh\nfor arg; do printf '%s\\0' \"$arg\"; done >'{0}/argv'\nfor last; do :; done\n\
             export HOME='{0}/home' PATH='{0}/bin:/usr/bin:/bin'\ncd \"$HOME\"\n{shell}\n",
            host.dir.path().display()
        );
        host.program("ssh", &script);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Installs a server that answers each line with its own path and arguments.
    fn install(&self, name: &str) {
        self.program(name, "#!/bin/sh\nwhile read -r line; do printf '{%s}\\n' \"$0 $*\"; done\n");
    }

    fn ssh(&self, url: &str) -> Ssh {
        let mut ssh: Ssh = url.parse().unwrap();
        ssh.program = self.path("ssh").into();
        ssh
    }

    fn argv(&self) -> Vec<String> {
        let argv = fs::read_to_string(self.path("argv")).unwrap();
        argv.split_terminator('\0').map(str::to_owned).collect()
    }
}

/// Sends a line to the server, and returns its answer.
async fn ask(ssh: &Ssh) -> String {
    use tokio::io::AsyncWriteExt as _;
    let Connection { stream, mut carrier, .. } = ssh.connect().await.unwrap();
    let (mut reader, mut writer) = (BufReader::new(stream.reader).lines(), stream.writer);
    writer.write_all(b"who\n").await.unwrap();
    let answer = within(reader.next_line()).await.unwrap();
    drop((reader, writer));
    let carrier = carrier.as_mut().unwrap();
    let answer = match answer {
        Some(answer) => answer,
        None => panic!("{:?}", carrier.explain().await),
    };
    within(carrier.end()).await;
    answer
}

/// The login shells that exist on this machine.
fn shells() -> Vec<&'static str> {
    let paths = ["/bin/sh", "/bin/bash", "/bin/dash", "/usr/bin/zsh", "/usr/bin/fish", "/bin/csh"];
    paths.into_iter().filter(|path| Path::new(path).exists()).collect()
}

#[tokio::test]
async fn ssh_gets_user_port_and_a_host_that_cannot_be_an_option() {
    let host = Host::new("exec sh -c \"$last\"");
    host.install("bin/exec-server");
    let mut ssh = host.ssh("ssh://me@host.example:2222");
    ssh.options = vec!["-F".into(), "none".into()];
    ask(&ssh).await;
    let argv = host.argv();
    assert_eq!(argv[..5], ["-T", "-x", "-a", "-F", "none"]);
    let at = argv.iter().position(|arg| arg == "--").unwrap();
    assert_eq!(argv[at - 2..at], ["-p", "2222"]);
    assert_eq!(argv[at + 1], "me@host.example");
    assert_eq!(argv.len(), at + 3);
    for option in ["ServerAliveInterval=15", "ServerAliveCountMax=3", "RemoteCommand=none"] {
        assert!(argv.windows(2).any(|pair| pair == ["-o", option]), "{option}: {argv:?}");
    }
    ask(&host.ssh("ssh://[::1]")).await;
    let argv = host.argv();
    assert_eq!((argv[argv.len() - 2].as_str(), argv.contains(&"-p".to_owned())), ("::1", false));
}

#[tokio::test]
async fn the_program_is_found_in_every_usual_place() {
    for shell in shells() {
        let host = Host::new(&format!("exec {shell} -c \"$last\""));
        for (place, url) in [
            // Each path takes precedence over those that were installed before it.
            (".cargo/bin/exec-server", "ssh://h"),
            (".local/bin/exec-server", "ssh://h"),
            ("my tools/exec-server", "ssh://h/~/my%20tools/exec-server"),
        ] {
            host.install(&format!("home/{place}"));
            let answer = ask(&host.ssh(url)).await;
            assert_eq!(answer, format!("{{{} dial-stdio}}", host.path("home").join(place).display()), "{shell}");
        }
        host.install("bin/exec-server");
        assert!(ask(&host.ssh("ssh://h")).await.contains("/bin/exec-server dial-stdio"), "{shell}");
    }
}

#[tokio::test]
async fn no_path_is_more_than_one_word_to_a_shell() {
    for shell in shells() {
        let host = Host::new(&format!("exec {shell} -c \"$last\""));
        for name in
            ["a b", "it's", "a\\b", "a\\\\'b\\", "$(touch pwned)", "`touch pwned`", "\"q\"", "a;touch pwned", "-n", "*"]
        {
            host.install(&format!("home/{name}"));
            let path = host.path("home").join(name);
            let escaped: String = path.to_str().unwrap().bytes().map(|byte| format!("%{byte:02x}")).collect();
            for url in [
                format!("ssh://h/{}", &escaped[3..]),
                format!("ssh://h/~/{}", &escaped[escaped.len() - 3 * name.len()..]),
            ] {
                let answer = ask(&host.ssh(&url)).await;
                assert_eq!(answer, format!("{{{} dial-stdio}}", path.display()), "{shell} {url}");
            }
        }
        assert!(!host.path("home/pwned").exists(), "{shell}");
    }
}

#[tokio::test]
async fn what_a_profile_prints_is_not_taken_for_the_server() {
    let host = Host::new("echo Welcome; printf 'no line end'; exec sh -c \"$last\"");
    host.install("bin/exec-server");
    assert!(ask(&host.ssh("ssh://h")).await.starts_with('{'));
}

#[tokio::test]
async fn questions_are_for_the_first_connection_only() {
    let host = Host::new("exec sh -c \"$last\"");
    let batch = || host.argv().contains(&"BatchMode=yes".to_owned());
    let ssh = host.ssh("ssh://h");
    // No server was reached, so the next attempt may prompt again.
    within(explained(ssh.connect().await.unwrap())).await;
    assert!(!batch() && ssh.patience() > Duration::ZERO);
    host.install("bin/exec-server");
    ask(&ssh).await;
    assert!(!batch());
    assert_eq!(ssh.patience(), Duration::ZERO);
    ask(&ssh).await;
    assert!(batch());
    // A clone belongs to another client, which may prompt.
    ask(&ssh.clone()).await;
    assert!(!batch());
}

/// The error for an ssh that runs this script.
async fn failing(shell: &str, url: &str) -> String {
    let host = Host::new(shell);
    let error = within(explained(host.ssh(url).connect().await.unwrap())).await;
    assert_eq!(error.kind(), ErrorKind::Spawn);
    match error {
        Error::Spawn { reason, program } => {
            assert!(program.contains("ssh"), "{program}");
            reason
        }
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn a_missing_program_comes_with_the_line_that_installs_it() {
    for shell in shells() {
        let run = format!("exec {shell} -c \"$last\"");
        let reason = failing(&run, "ssh://me@h:2222").await;
        assert!(reason.contains("no `exec-server` on me@h"), "{shell}: {reason}");
        assert!(reason.contains("ssh -p 2222 me@h 'mkdir -p .local/bin && cat >"), "{shell}: {reason}");
        assert!(reason.contains("ssh://me@h:2222/path/to/exec-server"), "{shell}: {reason}");
        let reason = failing(&run, "ssh://h/opt/none").await;
        assert!(reason.contains("no `/opt/none` on h"), "{shell}: {reason}");
    }
    let csh = failing("echo 'exec-server: Command not found.' >&2; exit 1", "ssh://h").await;
    assert!(csh.contains("no `exec-server` on h"), "{csh}");
}

/// Runs the command line of the error message: it must do what the message says.
#[tokio::test]
async fn the_line_that_installs_it_does() {
    let host = Host::new("exec sh -c \"$last\"");
    host.install("local/exec-server");
    let error = within(explained(host.ssh("ssh://h").connect().await.unwrap())).await.to_string();
    let line = error.split("this installs it: ").nth(1).unwrap().split("; if it").next().unwrap();
    let dir = host.dir.path().display();
    let here = format!("PATH='{dir}:{dir}/local':$PATH\n{line}");
    let installing = exec_server_client::transport::Launch::new("sh").args(["-c", &here]).connect().await.unwrap();
    let Connection { mut stream, .. } = installing;
    within(stream.reader.read_to_end(&mut Vec::new())).await.unwrap();
    assert!(ask(&host.ssh("ssh://h")).await.contains(".local/bin/exec-server dial-stdio"));
}

#[tokio::test]
async fn trouble_of_ssh_is_told_in_its_own_words() {
    let refused = failing("echo 'debug' >&2; echo 'me@h: Permission denied (publickey).' >&2; exit 255", "ssh://me@h");
    assert_eq!(refused.await, "debug; me@h: Permission denied (publickey).");
    let silent = failing("exit 255", "ssh://h").await;
    assert!(silent.contains("ended before the server on h answered (exit status 255)"), "{silent}");
    let account = failing("echo 'This account is currently not available.'; exit 1", "ssh://h").await;
    assert!(account.ends_with("(exit status 1): This account is currently not available."), "{account}");
    let format = failing("echo 'exec-server: Exec format error' >&2; exit 126", "ssh://h").await;
    assert!(format.contains("that kind of machine?") && format.contains("Exec format error"), "{format}");
}

#[tokio::test]
async fn a_machine_without_ssh_says_so() {
    let mut ssh: Ssh = "ssh://h".parse().unwrap();
    ssh.program = "no-such-ssh-here".into();
    let error = within(explained(ssh.connect().await.unwrap())).await.to_string();
    assert!(error.contains("`no-such-ssh-here h`: it is not installed on this machine"), "{error}");
}

#[tokio::test]
async fn a_signal_of_the_keyboard_does_not_cut_the_link() {
    let host = Host::new("kill -INT $$; kill -QUIT $$; exec sh -c \"$last\"");
    host.install("bin/exec-server");
    assert!(ask(&host.ssh("ssh://h")).await.starts_with('{'));
}
