//! The speed of reading and writing files, small and large, in JSON and with raw bytes; compared with `cat`, and with `cat` over OpenSSH.
//! Also checks that the server's memory does not grow with a file.
//!
//! A file of up to 1 MiB is sent in one request, a larger one in blocks, with several in flight. The first round compares every byte.

use std::path::{Path, PathBuf};

use super::{baselines, memory};
use crate::prelude::*;
use exec_server_harness::{Random, file_tree};

/// The largest file that is sent in one request.
const WHOLE: usize = 1 << 20;

/// The size of a block and the number in flight, the same as in our client.
const BLOCK: usize = 256 << 10;
const UNDER_WAY: usize = 16;

/// How much the server may grow while a large file is transferred: the blocks in flight in both forms, and some reserve.
const GROWTH_MIB: f64 = 48.0;

const CAT: &str = "cat";
const SSH: &str = "OpenSSH";

/// Indices of the figures of a lane, in MB/s.
const READ: usize = 0;
const WRITE: usize = 1;

/// A file and its contents.
struct FileSample {
    label: String,
    path: PathBuf,
    bytes: Vec<u8>,
    /// How often it is read and written in a round.
    times: u32,
}

pub(super) fn measure(setting: &BenchSetting<'_>) -> Result<Report> {
    let folder = tempfile::Builder::new().prefix("xtask-files-").tempdir()?;
    let large = setting.pick(16_usize, 256);
    let mut rows = Vec::new();
    let mut charts = Vec::new();
    for (size, times) in [(4 << 10, 20), (WHOLE, 5), (large << 20, 1)] {
        let label = if size < WHOLE { format!("{} KiB", size >> 10) } else { format!("{} MiB", size >> 20) };
        let path = folder.path().join("sample");
        file_tree::large(&path, size as u64, &mut Random::new(size as u64))?;
        let sample = FileSample { label, bytes: fs::read(&path)?, path, times: setting.pick(1, times) };
        let contest = hold(setting, &sample)?;
        rows.extend(sample.rows(&contest));
        if size > WHOLE {
            charts.push(sample.chart(&contest));
            rows.extend(growth(setting, &sample)?);
        }
    }
    Ok(Report { rows, charts })
}

fn hold(setting: &BenchSetting<'_>, sample: &FileSample) -> Result<Contest> {
    let rounds = setting.pick(3, 9);
    let mut servers = BenchServers::start(setting)?;
    let (mut json, mut binary) = (servers.json()?, open(&servers, MessageFormat::Binary)?);
    let ssh = setting.ssh.map(Ssh::start).transpose()?;
    let mut lanes = vec![
        BenchLane::new(CAT, |is_first| {
            let read = |path: &str| Ok(shell("cat \"$0\" | cat", path));
            let write = |path: &str| Ok(shell("cat > \"$0\"", path));
            sample.by_commands(is_first, read, write)
        }),
        BenchLane::new("JSON", |is_first| sample.by_session(&mut json, is_first)),
    ];
    if let Some(binary) = &mut binary {
        lanes.push(BenchLane::new("binary", |is_first| sample.by_session(binary, is_first)));
    }
    if let Some(ssh) = &ssh {
        lanes.push(BenchLane::new(SSH, |is_first| {
            let read = |path: &str| ssh.shared(&format!("cat '{path}'"));
            let write = |path: &str| ssh.shared(&format!("cat > '{path}'"));
            sample.by_commands(is_first, read, write)
        }));
    }
    let contest = Contest::hold(rounds, lanes)?;
    ssh.map_or(Ok(()), Ssh::end)?;
    json.end()?;
    binary.map_or(Ok(()), BenchSession::end)?;
    servers.stop()?;
    Ok(contest)
}

/// A session whose raw bytes may be limited to files, which had the dialect before process output.
fn open(servers: &BenchServers, format: MessageFormat) -> Result<Option<BenchSession>> {
    BenchSession::open(BenchConnection::connect(&servers.server.address.url)?, format)
}

/// A script that gets the path as `$0`.
fn shell(script: &str, path: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script, path]);
    shell
}

impl FileSample {
    fn rows(&self, contest: &Contest) -> Vec<Row> {
        let label = &self.label;
        let has_target = self.bytes.len() >= WHOLE;
        let mut rows = Vec::new();
        for (index, what, cat) in [(READ, "read", "`cat FILE | cat`"), (WRITE, "write", "`cat > FILE`")] {
            let pair = |ours, beside| Pair { ours: (ours, index), beside: (beside, index), unit: "MB/s" };
            for (lane, least) in [("binary", 0.4), ("JSON", 0.2)] {
                let row = contest.row(format!("{what} a file of {label}, {lane} / {cat}"), pair(lane, CAT));
                rows.push(if has_target { row.at_least(least) } else { row });
            }
            rows.push(contest.row(format!("{what} a file of {label}, binary / OpenSSH"), pair("binary", SSH)));
        }
        rows
    }

    fn chart(&self, contest: &Contest) -> Bars {
        let value = |lane, index| contest.median(lane, index);
        Bars::new(&format!("Read of a file of {}", self.label), "MB/s")
            .bar("`cat FILE | cat`", BarOwner::Machine, value(CAT, READ))
            .bar("exec-server, binary, ws", BarOwner::Ours, value("binary", READ))
            .bar("exec-server, JSON, ws", BarOwner::Ours, value("JSON", READ))
            .bar("OpenSSH", BarOwner::Ssh, value(SSH, READ))
    }

    /// Where a copy is written. It is removed at once, so that the disk is not measured.
    fn target(&self) -> PathBuf {
        self.path.with_extension("copy")
    }

    /// MB/s of reading and of writing.
    fn figures(&self, reading: Duration, writing: Duration) -> FigureValues {
        let megabytes = self.bytes.len() as f64 / 1e6 * f64::from(self.times);
        vec![megabytes / reading.as_secs_f64(), megabytes / writing.as_secs_f64()]
    }

    fn written(&self, is_first: bool) -> Result<()> {
        let target = self.target();
        let length = fs::metadata(&target)?.len();
        ensure!(length == self.bytes.len() as u64, "{length} of {} bytes were written", self.bytes.len());
        ensure!(!is_first || fs::read(&target)? == self.bytes, "other bytes were written");
        Ok(fs::remove_file(target)?)
    }

    /// Reads and writes with the commands that these make for a path.
    fn by_commands(
        &self,
        is_first: bool,
        read: impl Fn(&str) -> Result<Command>,
        write: impl Fn(&str) -> Result<Command>,
    ) -> Result<FigureValues> {
        let (source, target) = (text(&self.path)?, text(&self.target())?);
        let (mut reading, mut writing) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..self.times {
            let begun = Instant::now();
            let mut child = read(&source)?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
            let seen = baselines::drain(child.stdout.take().context("standard output is a pipe")?, false)?;
            ensure!(child.wait()?.success() && seen == self.bytes.len() as u64, "`cat` gave {seen} bytes");
            reading += begun.elapsed();

            let begun = Instant::now();
            let mut child = write(&target)?.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
            let mut stdin = child.stdin.take().context("standard input is a pipe")?;
            for piece in self.bytes.chunks(64 << 10) {
                stdin.write_all(piece)?;
            }
            drop(stdin);
            ensure!(child.wait()?.success(), "`cat` failed");
            writing += begun.elapsed();
            self.written(is_first)?;
        }
        Ok(self.figures(reading, writing))
    }

    fn by_session(&self, session: &mut BenchSession, is_first: bool) -> Result<FigureValues> {
        let (mut reading, mut writing) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..self.times {
            let begun = Instant::now();
            self.read(session, is_first)?;
            reading += begun.elapsed();
            let begun = Instant::now();
            self.write(session)?;
            writing += begun.elapsed();
            self.written(is_first)?;
        }
        Ok(self.figures(reading, writing))
    }

    /// Whether the file is sent in one request.
    fn is_whole(&self, session: &BenchSession) -> bool {
        // The older dialect for files supports only blocks.
        self.bytes.len() <= WHOLE && (session.speaks("binary") || !session.speaks("attached"))
    }

    fn read(&self, session: &mut BenchSession, is_first: bool) -> Result<()> {
        if self.is_whole(session) {
            // Not `call`, which would parse the bytes as JSON once more.
            session.send("fs/readFile", &json!({ "path": self.path }))?;
            session.next_answer()?;
            return check(session, &self.bytes, is_first);
        }
        session.call("fs/open", &json!({ "handleId": "f", "path": self.path }))?;
        let blocks = self.bytes.len().div_ceil(BLOCK);
        let (mut asked, mut came) = (0, 0);
        let mut order = std::collections::VecDeque::new();
        while came < blocks {
            while asked < blocks && asked < came + UNDER_WAY {
                let params = json!({ "handleId": "f", "offset": asked * BLOCK, "len": BLOCK });
                order.push_back((session.send("fs/readBlock", &params)?, asked));
                asked += 1;
            }
            // Answers may come in any order.
            let id = session.next_answer()?;
            let at = order.iter().position(|(asked, _)| *asked == id).context("an answer to nothing")?;
            let (_, block) = order.remove(at).context("it was found")?;
            let offset = block * BLOCK;
            check(session, &self.bytes[offset..self.bytes.len().min(offset + BLOCK)], is_first)?;
            came += 1;
        }
        session.call("fs/close", &json!({ "handleId": "f" })).map(drop)
    }

    fn write(&self, session: &mut BenchSession) -> Result<()> {
        let target = self.target();
        if self.is_whole(session) {
            send(session, "fs/writeFile", json!({ "path": target }), &self.bytes)?;
            return session.next_answer().map(drop);
        }
        session.call("fs/create", &json!({ "handleId": "d", "path": target }))?;
        let mut under_way = 0;
        for (number, block) in self.bytes.chunks(BLOCK).enumerate() {
            let params = json!({ "handleId": "d", "offset": number * BLOCK });
            send(session, "fs/writeBlock", params, block)?;
            under_way += 1;
            if under_way == UNDER_WAY {
                session.next_answer()?;
                under_way -= 1;
            }
        }
        for _ in 0..under_way {
            session.next_answer()?;
        }
        session.call("fs/commit", &json!({ "handleId": "d" })).map(drop)
    }
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).context("a temporary path is UTF-8")
}

/// Checks the length of the received bytes, and in the first round also their contents.
fn check(session: &BenchSession, expected: &[u8], is_first: bool) -> Result<()> {
    let bytes = session.bytes();
    ensure!(bytes.len() == expected.len(), "{} of {} bytes of a file", bytes.len(), expected.len());
    ensure!(!is_first || bytes == expected, "other bytes than those of the file");
    Ok(())
}

/// Sends raw bytes, or base64 if the dialect does not support them.
fn send(session: &mut BenchSession, method: &str, mut params: Value, bytes: &[u8]) -> Result<()> {
    let member = if method == "fs/writeFile" { "dataBase64" } else { "chunk" };
    if session.speaks("binary") || session.speaks("attached") {
        params[member] = json!("");
        session.send_attached(method, &params, bytes)?;
    } else {
        session.send_base64(method, &params, member, bytes)?;
    }
    Ok(())
}

/// The maximum growth of the server while a large file is read and written repeatedly.
fn growth(setting: &BenchSetting<'_>, sample: &FileSample) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for format in [MessageFormat::Binary, MessageFormat::Json] {
        let servers = BenchServers::start(setting)?;
        let Some(mut session) = open(&servers, format)? else { continue };
        let idle = memory::settled(&servers.setup);
        let most = memory::watched(&servers.setup, || sample.by_session(&mut session, false).map(drop))?;
        session.end()?;
        servers.stop()?;
        let grown = (most - idle) / 1024.0;
        let name = format!("server while a file of {} is read and written, {}, added Pss", sample.label, format.name());
        rows.push(Row::new(name, "MiB").values(vec![grown]).at_most(GROWTH_MIB).note("the most that was seen"));
    }
    Ok(rows)
}
