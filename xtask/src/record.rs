//! `cargo xtask record`: records how `exec-server run` survives a cut link and a killed server, as an animated SVG for the README.
//!
//! The output and its times are those of a real run, through a proxy that is closed and opened again. Only the notes about what is broken,
//! and the command that shows the exit code, are added. The SVG has plain text; without animation it shows the whole
//! run.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use exec_server_chaos::{Plan, Proxy};
use exec_server_workspace::{cargo, processes::first_line};

/// The file that the README shows.
const FILE: &str = "docs/assets/cut.svg";

/// How long the link and the server are away.
const OUTAGE: Duration = Duration::from_millis(1500);

/// How long the end stays visible before the recording starts again.
const PAUSE: Duration = Duration::from_secs(4);

/// The program that runs on the server.
const PROGRAM: &str = "#!/bin/sh
for n in 1 2 3 4 5 6 7 8 9; do echo \"test $n ok\"; sleep 1; done
echo '9 passed, 1 failed'
exit 3
";

/// Pixels of a line and of its left margin.
const LINE_HEIGHT: usize = 20;
const MARGIN: usize = 16;

/// Options of `cargo xtask record`.
#[derive(clap::Args)]
pub(super) struct RecordOptions {
    /// Another program than the build of this tree.
    #[arg(long)]
    server: Option<PathBuf>,
}

/// A line, when it appeared, and its CSS class.
struct RecordedLine {
    at: Duration,
    class: &'static str,
    text: String,
}

pub(super) fn run(options: &RecordOptions) -> Result<()> {
    let lines = record(&cargo::server_binary(options.server.as_deref())?)?;
    let file = cargo::root().join(FILE);
    fs::create_dir_all(file.parent().context("the file is in a folder")?)?;
    fs::write(&file, svg(&lines)).with_context(|| format!("write `{FILE}`"))?;
    println!("record: wrote `{FILE}`");
    Ok(())
}

fn record(binary: &Path) -> Result<Vec<RecordedLine>> {
    let dir = tempfile::Builder::new().prefix("exec-server-record-").tempdir()?;
    let home = dir.path();
    fs::write(home.join("run-tests"), PROGRAM)?;
    cargo::check(Command::new("chmod").arg("755").arg(home.join("run-tests")))?;
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let (mut server, url) = serve(binary, home, address)?;
    let open = |listener| Proxy::listen(listener, address, 0, |_| Plan::default());
    let mut proxy = Some(open(TcpListener::bind("127.0.0.1:0")?)?);
    let proxied = proxy.as_ref().context("the proxy runs")?.address();
    let url = url.replace(&address.to_string(), &proxied.to_string());
    fs::create_dir_all(home.join("config/exec-server"))?;
    let entry = format!("[[environments]]\nid = \"build-host\"\nurl = \"{url}\"\n");
    let environments = home.join("config/exec-server/environments.toml");
    fs::write(&environments, entry)?;
    // The file contains a token.
    cargo::check(Command::new("chmod").arg("600").arg(&environments))?;

    let command = "exec-server run --connect build-host -- ./run-tests";
    let mut lines = vec![RecordedLine { at: Duration::ZERO, class: "c", text: format!("$ {command}") }];
    let mut client = Command::new("sh")
        .args(["-c", &format!("exec 2>&1; exec {}", command.replacen("exec-server", "\"$0\"", 1))])
        .arg(binary)
        .env_remove("EXEC_SERVER_TOKEN")
        .env("XDG_CONFIG_HOME", home.join("config"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let begin = Instant::now();
    let note = |text: &str| RecordedLine { at: begin.elapsed(), class: "n", text: format!("# {text}") };
    let stdout = BufReader::new(client.stdout.take().context("stdout is a pipe")?);
    let (lines_tx, lines_rx) = mpsc::channel();
    // A separate thread notes the times, because this one waits during an outage.
    let reader = thread::spawn(move || {
        stdout.lines().map_while(Result::ok).try_for_each(|text| lines_tx.send((begin.elapsed(), text)))
    });
    for (at, text) in lines_rx {
        let class = if text.starts_with("exec-server: ") { "m" } else { "o" };
        lines.push(RecordedLine { at, class, text: text.clone() });
        match text.as_str() {
            "test 3 ok" => {
                lines.push(note("the network is cut"));
                drop(proxy.take());
                thread::sleep(OUTAGE);
                proxy = Some(open(TcpListener::bind(proxied)?)?);
            }
            "test 7 ok" => {
                lines.push(note("kill -9 of the server, then a new one starts"));
                server.kill()?;
                server.wait()?;
                thread::sleep(OUTAGE);
                (server, _) = serve(binary, home, address)?;
            }
            _ => {}
        }
    }
    reader.join().expect("the reader does not panic")?;
    let code = client.wait()?.code().context("the client has an exit code")?;
    lines.push(RecordedLine { at: begin.elapsed() + OUTAGE / 2, class: "c", text: "$ echo $?".to_owned() });
    lines.push(RecordedLine { at: begin.elapsed() + OUTAGE, class: "o", text: code.to_string() });
    server.kill()?;
    server.wait()?;
    let tests = lines.iter().filter(|line| line.text.starts_with("test ")).count();
    ensure!(code == 3 && tests == 9, "the run did not survive: exit code {code}, {tests} of 9 lines");
    Ok(lines)
}

/// Starts the server in `home`, and returns it with its URL.
fn serve(binary: &Path, home: &Path, address: SocketAddr) -> Result<(Child, String)> {
    let mut command = Command::new(binary);
    command.args(["serve", "--listen", &format!("ws://{address}"), "--state-dir"]).arg(home.join("state"));
    let mut child = command.current_dir(home).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let url = first_line(&mut child)?;
    ensure!(url.starts_with("ws://"), "the server did not start");
    Ok((child, url))
}

/// Draws the lines as a terminal in which each one appears at its time, in a loop.
fn svg(lines: &[RecordedLine]) -> String {
    let end = lines.last().map_or(PAUSE, |line| line.at + PAUSE);
    let height = lines.len() * LINE_HEIGHT + 2 * MARGIN;
    let mut style = String::from(
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}\
         .c{fill:#fff;font-weight:bold}.o{fill:#c9d1d9}.m{fill:#e3b341}.n{fill:#ff7b72}\
         @media (prefers-reduced-motion:reduce){text{animation:none!important}}\n",
    );
    let mut body = String::new();
    for (number, line) in lines.iter().enumerate() {
        let percent = 100.0 * line.at.as_secs_f64() / end.as_secs_f64();
        style += &format!("@keyframes k{number}{{0%{{opacity:0}}{percent:.2}%{{opacity:1}}}}\n");
        let text = line.text.replace('&', "&amp;").replace('<', "&lt;");
        body += &format!(
            "<text class=\"{}\" x=\"{MARGIN}\" y=\"{}\" style=\"animation:k{number} {:.1}s step-end infinite\">{text}</text>\n",
            line.class,
            MARGIN + number * LINE_HEIGHT + 14,
            end.as_secs_f64(),
        );
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 {height}\" width=\"640\" height=\"{height}\" role=\"img\">\n\
         <title>exec-server run survives a cut link and a killed server</title>\n<style>{style}</style>\n\
         <rect width=\"640\" height=\"{height}\" rx=\"8\" fill=\"#0d1117\" stroke=\"#30363d\"/>\n{body}</svg>\n"
    )
}
