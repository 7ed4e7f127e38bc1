//! The command line beside the lean client, on loopback over ws: output of `run`, `logs` and `fs cat` to a pipe, a file and `/dev/null`,
//! input of `run`, and the time of whole commands.

use std::path::PathBuf;

use super::{
    TRUE,
    baselines::{self, HEAD},
    servers::{ConnectionKind, Transport},
    throughput::{self, Workload},
    user_commands::{OutputSink, UserCommands},
};
use crate::prelude::*;
use exec_server_harness::{Random, environment::wait_until, file_tree};

/// A tmpfs of the machine.
const TMPFS: &str = "/dev/shm";

/// The id of the process whose log is printed.
const LOGGED: &str = "logged";

/// How long a holder may take to write its logs and end; it begins two seconds after its last process has closed.
const ARCHIVING: Duration = Duration::from_secs(30);

const PIPE: &str = "raw pipe";
const LEAN: &str = "lean client";

/// `head | cat` into the same sinks as our commands.
const BARE_PIPE: &str = "head, cat, pipe";
const BARE_FILE: &str = "head, cat, file";

/// The commands whose output is measured.
const WRITERS: [&str; 3] = ["run", "logs", "fs cat"];

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let environment = setting.environment;
    let mut servers = BenchServers::start(setting)?;
    let url = servers.server.address.url.clone();
    let bench = CommandLineBench {
        setting,
        ours: UserCommands::new(environment, &["--connect", &url]),
        here: UserCommands::new(environment, &[]),
        folder: environment.folder("command-line")?,
    };
    let output = bench.output(&mut servers)?;
    let mut rows = output_rows(&output);
    rows.push(bench.input()?);
    rows.extend(bench.whole_commands()?);
    servers.stop()?;
    let rate = |lane: &str| output.median(lane, 0);
    let chart = Bars::new("Output of `exec-server run`, over ws on loopback", "MB/s")
        .bar("raw pipe", BarOwner::Machine, rate(PIPE))
        .bar("lean client", BarOwner::Ours, rate(LEAN))
        .bar("run | cat", BarOwner::Ours, rate("run | cat"))
        .bar("run >/dev/null", BarOwner::Ours, rate("run >/dev/null"))
        .bar("run >file", BarOwner::Ours, rate("run >file"));
    Ok(Report { rows, charts: vec![chart] })
}

struct CommandLineBench<'a> {
    setting: &'a BenchSetting<'a>,
    /// Commands for the server.
    ours: UserCommands<'a>,
    /// Commands for this machine, without a server.
    here: UserCommands<'a>,
    folder: PathBuf,
}

impl CommandLineBench<'_> {
    /// MB/s of each command into each sink.
    fn output(&self, servers: &mut BenchServers) -> Result<Contest> {
        let (rounds, run_bytes, bytes) = self.setting.pick((0, 16 << 20, 16 << 20), (7, 1 << 30, 512 << 20));
        let file = self.folder.join("zeros");
        fs::File::create(&file)?.set_len(bytes)?;
        let file = file.to_str().context("the path is UTF-8")?;
        self.log(bytes, &servers.setup)?;
        let kind = ConnectionKind::new(Transport::Ws, MessageFormat::Binary);
        let mut lean = servers.open(kind)?.context("our server offers the binary dialect")?;
        let has_room =
            rustix::fs::statvfs(TMPFS).is_ok_and(|stat| stat.f_bavail * stat.f_frsize > run_bytes.max(bytes));
        let tmpfs = has_room.then(|| tempfile::Builder::new().prefix("xtask-").tempdir_in(TMPFS));
        let tmpfs = tmpfs.transpose().context("make a directory on the tmpfs")?;

        let mut lanes = vec![
            BenchLane::new(PIPE, |is_first| Ok(vec![baselines::pipe(run_bytes, is_first)?])),
            BenchLane::new(LEAN, |is_first| {
                Ok(vec![throughput::output(&mut lean, Workload::One, run_bytes, is_first)?])
            }),
        ];
        for (name, sink) in [
            (BARE_PIPE, Some(OutputSink::Pipe)),
            (BARE_FILE, tmpfs.as_ref().map(|folder| OutputSink::File(folder.path().join("output")))),
        ] {
            let Some(sink) = sink else { continue };
            lanes.push(BenchLane::new(name, move |is_first| {
                let mut bare = self.setting.environment.command("/bin/sh");
                bare.args(["-c", &format!("{HEAD} -c {run_bytes} /dev/zero | cat")]);
                Ok(vec![sink.rate(bare, run_bytes, is_first)?])
            }));
        }
        for writer in WRITERS {
            let mut sinks = vec![("| cat", OutputSink::Pipe), (">/dev/null", OutputSink::Null)];
            sinks.extend(tmpfs.as_ref().map(|folder| (">file", OutputSink::File(folder.path().join("output")))));
            for (suffix, sink) in sinks {
                lanes.push(BenchLane::new(format!("{writer} {suffix}"), move |is_first| {
                    let (command, bytes) = match writer {
                        "run" => (self.ours.run_zeros(run_bytes), run_bytes),
                        "logs" => (self.ours.command(&["logs"], &[LOGGED]), bytes),
                        _ => (self.ours.command(&["fs", "cat"], &[file]), bytes),
                    };
                    Ok(vec![sink.rate(command, bytes, is_first)?])
                }));
            }
        }
        let contest = Contest::hold(rounds, lanes)?;
        lean.end()?;
        fs::remove_file(file)?;
        Ok(contest)
    }

    /// Leaves a process with this much output in its log. Waits until its session is archived, so that each round reads the same files and
    /// no holder is left at the end.
    fn log(&self, bytes: u64, setup: &Setup) -> Result<()> {
        let bytes = bytes.to_string();
        let args = ["--detach", "--keep-all", "--name", LOGGED, "--", HEAD, "-c", &bytes, "/dev/zero"];
        run(self.ours.command(&["run"], &args))?;
        run(self.ours.command(&["wait"], &[LOGGED]))?;
        wait_until("the session of the process is archived", ARCHIVING, || setup.holders().is_empty())
    }

    /// MB/s of a file through standard input.
    fn input(&self) -> Result<Row> {
        let (rounds, bytes) = self.setting.pick((0, 16 << 20), (7, 512 << 20));
        let file = self.folder.join("input");
        file_tree::large(&file, bytes, &mut Random::new(3))?;
        let rate = |mut command: Command| {
            let input = fs::File::open(&file)?;
            let begun = Instant::now();
            // The program fails if it gets another number of bytes.
            let status = command.stdin(input).status().with_context(|| format!("start `{command:?}`"))?;
            let took = begun.elapsed().as_secs_f64();
            ensure!(status.success(), "`{command:?}` {status}");
            Ok(vec![bytes as f64 / 1e6 / took])
        };
        let count = format!("test $(wc -c) -eq {bytes}");
        let lanes = vec![
            BenchLane::new("bare", |_| {
                let mut bare = self.setting.environment.command("/bin/sh");
                bare.args(["-c", &format!("cat | {{ {count}; }}")]);
                rate(bare)
            }),
            BenchLane::new("run", |_| rate(self.ours.command(&["run"], &["--", "sh", "-c", &count]))),
        ];
        let contest = Contest::hold(rounds, lanes)?;
        fs::remove_file(&file)?;
        let pair = Pair { ours: ("run", 0), beside: ("bare", 0), unit: "MB/s" };
        Ok(contest.row("run -- wc -c <file / cat <file | wc -c", pair))
    }

    /// The time of commands from their start to their end.
    fn whole_commands(&self) -> Result<Vec<Row>> {
        let (rounds, batch) = self.setting.pick((1, 3), (11, 20));
        let times = |command: &dyn Fn() -> Command| {
            let times = (0..batch).map(|_| baselines::timed(command())).collect::<Result<Vec<_>>>()?;
            Ok(vec![median(times) / 1e3])
        };
        let lanes = vec![
            BenchLane::new("version", |_| times(&|| self.setting.environment.exec_server(&["--version"]))),
            BenchLane::new("ws", |_| times(&|| self.ours.command(&["run"], &["--", TRUE]))),
            BenchLane::new("embedded", |_| times(&|| self.here.command(&["run"], &["--", TRUE]))),
            BenchLane::new("ps", |_| {
                times(&|| {
                    let mut ps = self.ours.command(&["ps"], &[]);
                    // It reports that there are no processes.
                    ps.stderr(Stdio::null());
                    ps
                })
            }),
        ];
        let contest = Contest::hold(rounds, lanes)?;
        let pair = |ours| Pair { ours: (ours, 0), beside: ("version", 0), unit: "ms" };
        Ok(vec![
            contest.row("run -- true over ws / exec-server --version", pair("ws")).at_most(2.0),
            contest.row("run -- true on this machine / exec-server --version", pair("embedded")).at_most(2.5),
            contest.row("ps over ws / exec-server --version", pair("ps")),
        ])
    }
}

fn output_rows(contest: &Contest) -> Vec<Row> {
    let row = |name: String, ours: &str, beside: &str| {
        contest.row(name, Pair { ours: (ours, 0), beside: (beside, 0), unit: "MB/s" })
    };
    let mut rows = Vec::new();
    for writer in WRITERS {
        let [pipe, null, file] = ["| cat", ">/dev/null", ">file"].map(|sink| format!("{writer} {sink}"));
        rows.push(row(format!("{pipe} / raw pipe"), &pipe, PIPE).at_least(0.35));
        rows.push(row(format!("{null} / {pipe}"), &null, &pipe).at_least(1.0));
        let to_file = row(format!("{writer} >file on tmpfs / {pipe}"), &file, &pipe).at_least(1.0);
        let has_tmpfs = contest.median(&file, 0).is_some();
        rows.push(if has_tmpfs { to_file } else { to_file.note(format!("without room in `{TMPFS}`")) });
    }
    rows.push(row("run | cat / the lean client".to_owned(), "run | cat", LEAN));
    // A file needs new pages from the kernel, and a pipe reuses its own. If `>file` misses its target, this row shows the bound.
    rows.push(row("floor: head | cat >file on tmpfs / head | cat".to_owned(), BARE_FILE, BARE_PIPE));
    rows
}

/// Runs a command to its end; fails if the command does.
fn run(mut command: Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("start `{command:?}`"))?;
    ensure!(output.status.success(), "`{command:?}` {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}
