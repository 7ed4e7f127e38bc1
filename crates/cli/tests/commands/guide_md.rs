//! Runs every command of README.md and of the guide, page by page and in order, and compares the output with what the page shows.
//!
//! Each page has a private home, so `ssh` is a script that runs the remote command in a second home directory on this machine. A real sshd,
//! and the commands in [`NOT_RUN`], are tested by `cargo xtask interop` and `cargo xtask dist`.

use super::Home;
use crate::prelude::*;

/// Commands that no test of this kind can run, each with the reason and the place that runs it.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo test --workspace", "runs this test"),
    ("cargo xtask dist && ", "a release build; `cargo xtask dist` runs the installer"),
    ("ssh build-host 'mkdir ", "part `install` of `cargo xtask interop`"),
    ("pip install websockets", "needs the network; part `readme` of `cargo xtask interop`"),
    ("python3 run.py ", "needs the package above; part `readme` of `cargo xtask interop`"),
];

/// Texts that are replaced in commands and output. `HOME` is the home of the test, `PORT` a free port.
const REPLACED: &[(&str, &str)] = &[
    ("cargo run --release --", "exec-server"),
    // Both hosts are this machine, and `cp` refuses to copy a tree to itself.
    (":/srv/data :/srv/data", ":/srv/data :/srv/copied-data"),
    ("/srv/", "HOME/srv/"),
    ("/var/log/app", "HOME/srv/log"),
    ("--cwd /tmp", "--cwd HOME/run"),
    ("/home/me/", "HOME/"),
    ("0.0.0.0", "127.0.0.1"),
    ("lab.example", "localhost"),
    (":4000", ":PORT"),
    // The MCP server of the tests has other tools.
    (r#"get_current_time '{"timezone": "UTC"}'"#, r#"echo '{"message": "UTC"}'"#),
];

/// The directory in which the reader works. The page about sandboxes shows it.
const WORK: &str = "srv/work";

/// A command of a page, and the output that the page shows below it.
struct DocCommand {
    line: usize,
    command: String,
    shown: Vec<String>,
}

/// The commands in the `console` and `sh` blocks of a page.
fn commands(page: &str) -> Vec<DocCommand> {
    let mut found: Vec<DocCommand> = Vec::new();
    let mut block = None;
    for (at, line) in page.lines().enumerate() {
        if let Some(language) = line.strip_prefix("```") {
            block = if block.is_none() { Some(language) } else { None };
            continue;
        }
        let command = match block {
            Some("console") => line.strip_prefix("$ "),
            Some("sh") => Some(line),
            Some(_) | None => continue,
        };
        match (command, found.last_mut()) {
            (Some(command), _) => {
                found.push(DocCommand { line: at + 1, command: command.to_owned(), shown: Vec::new() });
            }
            (None, Some(last)) => last.shown.push(line.to_owned()),
            (None, None) => panic!("line {}: output before the first command", at + 1),
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn is_run(command: &str) -> bool {
    !NOT_RUN.iter().any(|(begin, _)| command.starts_with(begin))
}

/// A user who follows one page.
struct Reader {
    home: Home,
    port: u16,
    /// The `export` commands so far. Each command runs in a new shell.
    exports: String,
    /// The `serve` command of the page that was started last.
    server: Option<Running>,
}

impl Reader {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("find a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let reader = Self { home: Home::new(), port, exports: String::new(), server: None };
        for dir in ["bin", "srv/ci", "srv/data", "srv/reports", "srv/log", "srv/project", "srv/app/releases", ".codex"]
        {
            fs::create_dir_all(reader.path(dir)).expect("make a directory");
        }
        // The directory in which the reader works, and the home on the host behind ssh.
        for dir in [WORK, "far"] {
            fs::create_dir_all(reader.path(dir).join("src")).expect("make a directory");
            reader.write(&format!("{dir}/src/main.rs"), &format!("{}    // TODO: say why\n", "\n".repeat(6)));
            reader.write(&format!("{dir}/Makefile"), "all check:\n\t@echo made\n");
            reader.write(&format!("{dir}/src/Makefile"), "all:\n\t@echo made with CI=$(CI)\n");
        }
        reader.write(&format!("{WORK}/report.pdf"), "a report");
        reader.write("srv/log/access.log", "a log");
        let config = format!("[mcp_servers.time]\ncommand = {:?}\n", test_mcp_server());
        fs::create_dir_all(reader.path("config/exec-server")).expect("make a directory");
        reader.write("config/exec-server/mcp.toml", &config);
        reader.write(".codex/config.toml", &config);
        reader.make_certificates();
        symlink(binary(), reader.path("bin/exec-server")).expect("link the program");
        let home = reader.home.path().display();
        let ssh = format!(
            "#!/bin/sh\nfor last; do :; done\nexport HOME={home}/far\ncd $HOME\n\
             unset XDG_STATE_HOME XDG_CONFIG_HOME EXEC_SERVER_URL\nexec sh -c \"$last\"\n"
        );
        reader.write("bin/ssh", &ssh);
        set_mode(reader.path("bin/ssh"), 0o755);
        reader
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("write a file");
    }

    /// The files of the TLS section, under the names that it uses.
    fn make_certificates(&self) {
        let work = self.path(WORK);
        let servers = Authority::new(&work, "servers");
        let clients = Authority::new(&work, "clients");
        servers.server("server");
        let name = "me@example.org".try_into().expect("an address");
        clients.client("me", vec![rcgen::SanType::Rfc822Name(name)]);
        fs::copy(servers.ca(), work.join("ca.pem")).expect("copy the authority");
        fs::copy(clients.ca(), work.join("clients.pem")).expect("copy the authority");
    }

    /// A text of a page with the paths and the port of this test.
    fn localize(&self, text: &str) -> String {
        let replaced = REPLACED.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        let home = self.home.path().display().to_string();
        replaced.replace("HOME/", &format!("{home}/")).replace("PORT", &self.port.to_string())
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        copy_env(&mut shell, &self.home.command(&[]));
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        shell.args(["-c", &format!("exec 2>&1\n{}{command}", self.exports)]).env("PATH", path);
        shell.current_dir(self.path(WORK)).stdin(Stdio::null()).stdout(Stdio::piped());
        shell
    }

    /// Runs one command and returns what it printed.
    fn run(&mut self, command: &str) -> String {
        if command.starts_with("export ") {
            self.exports += &format!("{command}\n");
            return String::new();
        }
        if command.starts_with("exec-server serve ") && !command.contains("--print-config") {
            return self.serve(command);
        }
        if command.starts_with("exec-server fs watch ") {
            return self.watch(command);
        }
        if command.ends_with(" -t -- bash") {
            return self.use_terminal(command);
        }
        if command.contains("audit.log.1") {
            // As the page says: the server opens a new file by itself.
            let log = self.path(WORK).join("audit.log");
            fs::rename(&log, log.with_extension("log.1")).expect("rotate");
            wait_for("a new audit log", || log.exists());
        }
        let output = finish(self.shell(command));
        let printed = text(&output.stdout);
        assert!(output.status.success(), "`{command}`: {}: {printed}", output.status);
        printed
    }

    /// Starts a server, which replaces the previous one, and waits for its URL.
    fn serve(&mut self, command: &str) -> String {
        self.stop_server();
        let mut server = spawn(&mut self.shell(&format!("exec {command} 2>/dev/null")));
        let mut url = String::new();
        let stdout = server.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut url).expect("read the URL");
        self.server = Some(server);
        url
    }

    fn stop_server(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let started = descendants(&[server.id()].into());
        signal(server.id(), Signal::TERM);
        assert!(end_of(&mut server).success());
        wait_gone("what the server started", &started);
    }

    /// Changes a directory while it is watched, and returns the first line about it.
    fn watch(&self, command: &str) -> String {
        let mut watch = spawn(&mut self.shell(&format!("exec {command}")));
        let mut lines = BufReader::new(watch.stdout.take().expect("stdout is a pipe")).lines();
        let mut next = || lines.next().expect("a line").expect("read");
        let begun = next();
        assert!(begun.starts_with("exec-server: watching"), "{begun}");
        fs::create_dir(self.path("srv/app/releases/7")).expect("make a directory");
        next()
    }

    /// Ends an interactive shell with `exit`.
    fn use_terminal(&self, command: &str) -> String {
        let (mut terminal, mut shell) = Terminal::with(24, 80, self.shell(command));
        let prompt = if rustix::process::geteuid().is_root() { "# " } else { "$ " };
        terminal.see(prompt);
        terminal.keys(b"exit\n");
        assert!(end_of(&mut shell).success());
        String::new()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.stop_server();
        // The server of the host behind ssh would wait a minute for the next connection.
        let far = marked(&self.path("far").display().to_string());
        for pid in &far {
            signal(*pid, Signal::KILL);
        }
        wait_gone("the server behind ssh", &far);
    }
}

/// Whether a line is the one that a page shows. Words with digits, and session ids, differ from run to run.
fn is_like(shown: &str, printed: &str) -> bool {
    let varies = |word: &str| {
        let is_id = word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id || word.bytes().any(|byte| byte.is_ascii_digit())
    };
    let shown: Vec<&str> = shown.split_whitespace().collect();
    let printed: Vec<&str> = printed.split_whitespace().collect();
    let is_same = |(shown, printed): (&&str, &&str)| shown == printed || (varies(shown) && varies(printed));
    shown.len() == printed.len() && shown.iter().zip(&printed).all(is_same)
}

/// Follows a page word for word.
fn follow(page: &str) {
    let text = fs::read_to_string(root().join(page)).expect("read the page");
    let mut reader = Reader::new();
    for DocCommand { line, command, shown } in commands(&text) {
        if !is_run(&command) {
            continue;
        }
        let printed = reader.run(&reader.localize(&command));
        let mut lines = printed.lines();
        // The state of a progress bar depends on the moment.
        for shown in shown.iter().filter(|shown| !shown.starts_with("[#")) {
            let shown = reader.localize(shown);
            assert!(lines.any(|line| is_like(&shown, line)), "{page}:{line}: no line `{shown}` in: {printed}");
        }
    }
}

#[test]
fn the_readme_works() {
    follow("README.md");
}

#[test]
fn the_page_about_the_audit_log_works() {
    follow("docs/guide/audit.md");
}

#[test]
fn the_page_about_deploying_works() {
    follow("docs/guide/deploying.md");
}

#[test]
fn the_page_about_detached_processes_works() {
    follow("docs/guide/detached-processes.md");
}

#[test]
fn the_page_about_files_works() {
    follow("docs/guide/files.md");
}

#[test]
fn the_page_about_mcp_works() {
    follow("docs/guide/mcp.md");
}

#[test]
fn the_page_about_run_works() {
    follow("docs/guide/run.md");
}

#[test]
fn the_page_about_sandboxes_works() {
    follow("docs/guide/sandbox.md");
}

#[test]
fn the_page_about_serving_works() {
    follow("docs/guide/serving-and-tokens.md");
}

#[test]
fn every_page_with_a_command_is_followed_and_every_exception_is_needed() {
    let source = include_str!("guide_md.rs");
    let guide = fs::read_dir(root().join("docs/guide")).expect("list the guide");
    let guide = guide.map(|entry| format!("docs/guide/{}", entry.expect("an entry").file_name().display()));
    let mut all = Vec::new();
    for page in guide.chain(["README.md".to_owned()]) {
        let found = commands(&fs::read_to_string(root().join(&page)).expect("read the page"));
        let is_followed = source.contains(&format!("follow(\"{page}\")"));
        assert!(is_followed || !found.iter().any(|found| is_run(&found.command)), "no test follows {page}");
        all.extend(found.into_iter().map(|found| found.command));
    }
    for (begin, reason) in NOT_RUN {
        assert!(all.iter().any(|command| command.starts_with(begin)), "no page has `{begin}` ({reason})");
    }
}

#[test]
fn commands_are_found_with_their_output() {
    let page = "```console\n$ a\nout\n$ b\n```\n$ no\n```json\n$ no\n```\n```sh\nc\n```\n";
    let found: Vec<_> =
        commands(page).into_iter().map(|found| (found.line, found.command, found.shown.join("\n"))).collect();
    let expected = [(2, "a", "out"), (4, "b", ""), (11, "c", "")];
    assert_eq!(found, expected.map(|(line, command, shown)| (line, command.to_owned(), shown.to_owned())));
    assert!(is_like("nightly  21664  eef432ff", "nightly 7 abcdefab"));
    assert!(!is_like("a 1", "a b") && !is_like("a", "a b"));
}
