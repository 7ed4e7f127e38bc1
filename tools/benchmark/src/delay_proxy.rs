//! A server behind a proxy that adds 25 ms to each direction, compared with ssh, scp and rsync through the same kind of proxy.
//!
//! The proxy (`exec_server_chaos::Proxy`) takes bytes as fast as they come, so TCP has no part in the results: they show the round trips and
//! windows of the programs. Needs no root.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use super::{TRUE, baselines, copy, plain_tcp::PlainServer, user_commands::UserCommands};
use crate::prelude::*;
use exec_server_chaos::{Plan, Proxy, Shape};
use exec_server_harness::{Random, file_tree, remote_host::RemoteHost};
use exec_server_workspace::packages;

const ROUND_TRIP: Duration = Duration::from_millis(50);

/// The tree that is copied: files of this size, this many in a directory.
const FILE_BYTES: usize = 4 << 10;
const FILES_PER_DIRECTORY: u64 = 100;

const TCP: &str = "plain TCP";
const SSH: &str = "OpenSSH";

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let setup = Setup::new(&setting.binary)?.arg("--allow-host=127.0.0.1");
    let server = setup.start()?;
    let proxy = far(server.address.socket)?;
    let url = server.address.url_through(proxy.address());
    let ssh = setting.ssh.map(SshThroughProxy::start).transpose()?;
    let bench = ProxyBench {
        setting,
        delayed: UserCommands::new(setting.environment, &["--connect", &url]),
        direct: UserCommands::new(setting.environment, &["--connect", &server.address.url]),
        ssh: ssh.as_ref(),
        folder: setting.environment.folder("delay-proxy")?,
    };
    let (bulk, short, tree) = (bench.bulk()?, bench.short_commands()?, bench.trees()?);
    drop(proxy);
    setup.finish(server)?;
    let charts = vec![rate_chart(&bulk), command_chart(&short), tree_chart(&tree)];
    Ok(Report { rows: [bulk_rows(&bulk), short_rows(&short), tree.rows].concat(), charts })
}

/// A proxy in front of a server.
fn far(server: SocketAddr) -> Result<Proxy> {
    let shape = Shape { latency: ROUND_TRIP / 2, ..Shape::default() };
    Ok(Proxy::start(server, 0, move |_| Plan::shaped(shape))?)
}

/// An sshd behind a proxy.
struct SshThroughProxy<'a> {
    sshd: &'a RemoteHost<'a>,
    options: [String; 4],
    _proxy: Proxy,
    has_rsync: bool,
}

impl<'a> SshThroughProxy<'a> {
    fn start(sshd: &'a RemoteHost<'a>) -> Result<Self> {
        let proxy = far(sshd.plain_address()?)?;
        let rsync = packages::ensure(packages::RSYNC).inspect_err(|error| eprintln!("bench: no rsync: {error:#}"));
        Ok(Self { sshd, options: RemoteHost::through(proxy.address()), _proxy: proxy, has_rsync: rsync.is_ok() })
    }

    fn ssh(&self, command: &str) -> Result<Command> {
        let mut ssh = self.sshd.plain(&self.options.each_ref().map(String::as_str))?;
        ssh.arg(command);
        Ok(ssh)
    }

    /// A copy by scp or rsync between two paths, one of which is on the far side.
    fn copy(&self, program: CopyProgram, from: &str, to: &str) -> Command {
        let mut command = self.sshd.command(program.name());
        match program {
            CopyProgram::Scp => command.args(&self.options).args(["-q", "-r", "-p"]),
            CopyProgram::Rsync => command.args(["-a", "-e", &format!("ssh {}", self.options.join(" "))]),
        };
        command.args([from, to]);
        command
    }
}

/// A program that copies over ssh.
#[derive(Clone, Copy)]
enum CopyProgram {
    Scp,
    Rsync,
}

impl CopyProgram {
    fn name(self) -> &'static str {
        match self {
            Self::Scp => "scp",
            Self::Rsync => "rsync",
        }
    }
}

struct ProxyBench<'a> {
    setting: &'a BenchSetting<'a>,
    /// Commands through the proxy.
    delayed: UserCommands<'a>,
    /// Commands to the same server without the proxy.
    direct: UserCommands<'a>,
    ssh: Option<&'a SshThroughProxy<'a>>,
    folder: PathBuf,
}

/// The figures of the trees, and how many files they have.
struct TreeFigures {
    contest: Contest,
    files: u64,
    rows: Vec<Row>,
}

impl ProxyBench<'_> {
    /// MB/s of output and of a large file.
    fn bulk(&self) -> Result<Contest> {
        let (rounds, bytes) = self.setting.pick((0, 2 << 20), (3, 256 << 20));
        let mut plain = PlainServer::start(TcpListener::bind("127.0.0.1:0")?)?;
        let proxy = far(plain.address)?;
        plain.address = proxy.address();
        let (source, target) = (self.folder.join("large"), self.folder.join("target"));
        file_tree::large(&source, bytes, &mut Random::new(1))?;
        let copied = |command: Command| Ok(vec![bytes as f64 / 1e3 / copy::timed(command, &target)?[0]]);
        let mut lanes = vec![
            BenchLane::new(TCP, |is_first| Ok(vec![plain.zeros(bytes, is_first)?])),
            BenchLane::new("run", |is_first| {
                Ok(vec![baselines::output_of(self.delayed.run_zeros(bytes), bytes, is_first)?])
            }),
        ];
        for way in CopyDirection::BOTH {
            let (from, to) = way.ends("", &source, &target);
            lanes.push(BenchLane::new(way.lane("cp"), move |_| copied(self.delayed.command(&["cp"], &[&from, &to]))));
        }
        if let Some(ssh) = self.ssh {
            lanes.push(BenchLane::new(SSH, move |is_first| {
                let command = ssh.ssh(&format!("{} -c {bytes} /dev/zero", baselines::HEAD))?;
                Ok(vec![baselines::output_of(command, bytes, is_first)?])
            }));
            for way in CopyDirection::BOTH {
                let (from, to) = way.ends("plain", &source, &target);
                lanes.push(BenchLane::new(way.lane("scp"), move |_| copied(ssh.copy(CopyProgram::Scp, &from, &to))));
            }
        }
        let contest = Contest::hold(rounds, lanes)?;
        fs::remove_file(&source)?;
        plain.stop()?;
        Ok(contest)
    }

    /// The time of `run -- true`: in round trips after the upgrade to WebSocket, and in milliseconds beside ssh.
    fn short_commands(&self) -> Result<Contest> {
        let (rounds, batch) = self.setting.pick((1, 1), (5, 3));
        let times = |commands: &UserCommands<'_>| {
            let time = |_| baselines::timed(commands.command(&["run"], &["--", TRUE]));
            Ok::<_, anyhow::Error>(median((0..batch).map(time).collect::<Result<Vec<_>>>()?) / 1e3)
        };
        let mut lanes = vec![BenchLane::new("run", |_| {
            let (delayed, direct) = (times(&self.delayed)?, times(&self.direct)?);
            // What the programs compute takes equally long in both. The proxy accepts at once, so the upgrade is the first round trip.
            // Timers wake late by some tenths of a millisecond, so a tenth of a round trip is as exact as this can be.
            let round_trips = (delayed - direct) / (ROUND_TRIP.as_secs_f64() * 1e3) - 1.0;
            Ok(vec![(round_trips * 10.0).round() / 10.0, delayed])
        })];
        if let Some(ssh) = self.ssh {
            lanes.push(BenchLane::new(SSH, move |_| Ok(vec![baselines::timed(ssh.ssh("true")?)? / 1e3])));
        }
        Contest::hold(rounds, lanes)
    }

    /// Milliseconds of a tree of small files.
    fn trees(&self) -> Result<TreeFigures> {
        let (rounds, files, few_files) = self.setting.pick((0, 100, 2), (3, 1000, 50));
        let (source, few, one) = (self.folder.join("tree"), self.folder.join("few"), self.folder.join("one"));
        let target = self.folder.join("copied");
        for (root, files) in [(&source, files), (&few, few_files), (&one, 1)] {
            small_files(root, files)?;
        }
        let mut lanes = Vec::new();
        for way in CopyDirection::BOTH {
            let (from, to) = way.ends("", &source, &target);
            let target = &target;
            lanes.push(BenchLane::new(way.lane("cp"), move |_| {
                copy::timed(self.delayed.command(&["cp"], &["-r", &from, &to]), target)
            }));
            let Some(ssh) = self.ssh else { continue };
            if ssh.has_rsync {
                let (from, to) = way.ends("plain", &source.join(""), target);
                lanes.push(BenchLane::new(way.lane("rsync"), move |_| {
                    copy::timed(ssh.copy(CopyProgram::Rsync, &from, &to), target)
                }));
            }
            if self.setting.quick {
                continue;
            }
            let [few, one] = [&few, &one].map(|source| way.ends("plain", source, target));
            lanes.push(BenchLane::new(way.lane("scp"), move |_| {
                // All of them would take minutes: each file takes as long as the next one.
                let time = |(from, to): &(String, String)| copy::timed(ssh.copy(CopyProgram::Scp, from, to), target);
                let (few_took, one_took) = (time(&few)?[0], time(&one)?[0]);
                let each = (few_took - one_took) / (few_files - 1) as f64;
                Ok(vec![one_took + each * (files - 1) as f64])
            }));
        }
        let contest = Contest::hold(rounds, lanes)?;
        let mut rows = Vec::new();
        for way in CopyDirection::BOTH {
            let (ours, rsync, scp) = (way.lane("cp"), way.lane("rsync"), way.lane("scp"));
            let row = |beside: &str, name: &str| {
                let pair = Pair { ours: (&ours, 0), beside: (beside, 0), unit: "ms" };
                contest.row(format!("cp -r of {files} small files {} at 50 ms / {name}", way.words()), pair)
            };
            rows.push(row(&rsync, "rsync -a").at_most(1.0));
            let beside_scp = row(&scp, &format!("scp -r, from {few_files} files"));
            rows.push(if self.setting.quick { beside_scp.note("not in a short run") } else { beside_scp });
        }
        Ok(TreeFigures { contest, files, rows })
    }
}

/// The direction of a copy.
#[derive(Clone, Copy)]
enum CopyDirection {
    Up,
    Down,
}

impl CopyDirection {
    const BOTH: [Self; 2] = [Self::Up, Self::Down];

    fn words(self) -> &'static str {
        match self {
            Self::Up => "to a server",
            Self::Down => "from a server",
        }
    }

    /// The name of a program's lane.
    fn lane(self, program: &str) -> String {
        format!("{program} {}", self.words())
    }

    /// Source and target as arguments, with this host before the one on the far side.
    fn ends(self, host: &str, source: &Path, target: &Path) -> (String, String) {
        let (source, target) = (source.display(), target.display());
        match self {
            Self::Up => (source.to_string(), format!("{host}:{target}")),
            Self::Down => (format!("{host}:{source}"), target.to_string()),
        }
    }
}

fn small_files(root: &Path, files: u64) -> Result<()> {
    let mut random = Random::new(files);
    for at in 0..files {
        let folder = root.join(format!("d{}", at / FILES_PER_DIRECTORY));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("f{at}")), random.next().to_le_bytes().repeat(FILE_BYTES / 8))?;
    }
    Ok(())
}

fn bulk_rows(contest: &Contest) -> Vec<Row> {
    let row = |name: String, ours: &str, beside: &str| {
        contest.row(name, Pair { ours: (ours, 0), beside: (beside, 0), unit: "MB/s" })
    };
    let mut rows = vec![row("output of `run` at 50 ms / OpenSSH".to_owned(), "run", SSH).at_least(5.0)];
    for way in CopyDirection::BOTH {
        let name = format!("cp of a large file {} at 50 ms / scp", way.words());
        rows.push(row(name, &way.lane("cp"), &way.lane("scp")).at_least(5.0));
    }
    rows.push(row("output of `run` through the proxy / plain TCP".to_owned(), "run", TCP));
    rows
}

fn short_rows(contest: &Contest) -> Vec<Row> {
    let round_trips = contest.figure("run", 0).unwrap_or_default();
    let pair = Pair { ours: ("run", 1), beside: (SSH, 0), unit: "ms" };
    vec![
        Row::new("run -- true at 50 ms, after the upgrade", "round trips").values(round_trips).at_most(2.0),
        contest.row("run -- true at 50 ms / ssh true", pair),
    ]
}

fn rate_chart(contest: &Contest) -> Bars {
    let value = |lane: String| contest.median(&lane, 0);
    Bars::new("Proxy of 50 ms: output and a large file", "MB/s")
        .bar("exec-server run", BarOwner::Ours, value("run".to_owned()))
        .bar("ssh", BarOwner::Ssh, value(SSH.to_owned()))
        .bar("exec-server cp, to", BarOwner::Ours, value(CopyDirection::Up.lane("cp")))
        .bar("scp, to", BarOwner::Ssh, value(CopyDirection::Up.lane("scp")))
        .bar("exec-server cp, from", BarOwner::Ours, value(CopyDirection::Down.lane("cp")))
        .bar("scp, from", BarOwner::Ssh, value(CopyDirection::Down.lane("scp")))
}

fn command_chart(contest: &Contest) -> Bars {
    Bars::new("Proxy of 50 ms: `true`", "ms").bar("exec-server run", BarOwner::Ours, contest.median("run", 1)).bar(
        "ssh",
        BarOwner::Ssh,
        contest.median(SSH, 0),
    )
}

fn tree_chart(figures: &TreeFigures) -> Bars {
    let value = |program: &str| figures.contest.median(&CopyDirection::Up.lane(program), 0);
    Bars::new(&format!("Proxy of 50 ms: {} files of 4 KiB to a server", figures.files), "ms")
        .bar("exec-server cp -r", BarOwner::Ours, value("cp"))
        .bar("rsync -a", BarOwner::Rsync, value("rsync"))
        .bar("scp -r", BarOwner::Ssh, value("scp"))
}
