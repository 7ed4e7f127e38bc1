//! M1: MCP tool calls through `exec-server mcp bridge` while the link is cut, or while the executor's server is killed and restarted.
//!
//! Each request gets one answer, the MCP server receives each call once, and neither the server nor its client ever sees EOF.

use super::{
    lanes::{self, Lanes},
    mcp_echo::BridgeConversation,
};
use crate::prelude::*;
use exec_server_harness::server;
/// Log segments that may remain at the end. Each one holds an fd until the client acknowledges its contents, which the client does not do
/// after every answer.
const SEGMENTS: u64 = 4;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    Ok(vec![cuts(setting).context("cuts")?, kills(setting).context("kills")?])
}

fn cuts(setting: &FaultSetting) -> Result<Figures> {
    let wanted = setting.pick(24, 200, 5000);
    let mut random = setting.random("M1 cuts");
    // The client uses the proxy's port in `Host`, which is not the server's own.
    let setup = Setup::new(&setting.binary)?.arg("--allow-host").arg("127.0.0.1");
    let server = setup.start()?;
    let proxy = Proxy::start(server.address.socket, random.next(), |random| lanes::cut_plan(random, 512 << 10))?;
    let url = server.address.url_through(proxy.address());
    // The first conversation opens fds that stay open.
    BridgeConversation::begin(&setting.binary, &server.address.url, random.fork())?.end()?;
    descendants::settle("holders", 0, || setup.holders().len() as u64)?;
    let before = server::descriptors(server.pid());
    let (cuts, tally) = converse(setting, &url, random, |lanes| Ok(lanes.wait_for_cuts(&proxy, wanted)))
        .with_context(|| format!("after {} cuts; the server says: {}", proxy.count(), setup.log_tail()))?;
    drop(proxy);
    descendants::settle("descriptors of the server", before, || server::descriptors(server.pid()))?;
    parallel_runs::finish(&setup, server)?;
    Ok(tally.figures(cuts, "cuts"))
}

fn kills(setting: &FaultSetting) -> Result<Figures> {
    let wanted = setting.pick(4, 50, 1000);
    let mut random = setting.random("M1 kills");
    let (setup, mut server) = Setup::started(&setting.binary)?;
    let url = server.address.url.clone();
    let mut times = random.fork();
    let nemesis = |lanes: &Lanes| -> Result<(Server, u64)> {
        let mut killed = 0;
        while killed < wanted && !lanes.is_over() {
            // Long enough for most links to settle; otherwise the pauses between reconnects would be measured.
            thread::sleep(Duration::from_millis(times.between(100, 1200)));
            server.kill()?;
            killed += 1;
            server = setup.start().with_context(|| format!("after {killed} kills"))?;
        }
        Ok((server, killed))
    };
    let ((server, killed), tally) =
        converse(setting, &url, random, nemesis).with_context(|| format!("the server says: {}", setup.log_tail()))?;
    ensure!(killed >= wanted, "only {killed} of {wanted} kills in the time there is");
    parallel_runs::finish(&setup, server)?;
    Ok(tally.figures(killed, "kills"))
}

/// The totals of conversations.
#[derive(Default)]
struct BridgeTally {
    calls: u64,
    bytes: u64,
    times: Vec<f64>,
    /// Number of messages about a lost link.
    lost: u64,
}

impl BridgeTally {
    fn figures(mut self, injected: u64, part: &'static str) -> Figures {
        Figures::survived(injected)
            .set("bytes", self.bytes)
            .times(&mut self.times)
            .set("part", part)
            .set("calls", self.calls)
            .set("noticed", self.lost)
    }
}

/// Runs several conversations in parallel with the nemesis. The nemesis must check regularly whether the run is over.
fn converse<T>(
    setting: &FaultSetting,
    url: &str,
    random: Random,
    nemesis: impl FnOnce(&Lanes) -> Result<T>,
) -> Result<(T, BridgeTally)> {
    let lane = |lanes: &Lanes, random| converse_until_over(setting, url, random, lanes);
    let (done, tallies) = Lanes::new().run(setting.pick(4, 4, 8), random, lane, nemesis)?;
    let mut tally = BridgeTally::default();
    for one in tallies {
        tally.calls += one.calls;
        tally.bytes += one.bytes;
        tally.lost += one.lost;
        tally.times.extend(one.times);
    }
    Ok((done, tally))
}

fn converse_until_over(setting: &FaultSetting, url: &str, random: Random, lanes: &Lanes) -> Result<BridgeTally> {
    let mut conversation = BridgeConversation::begin(&setting.binary, url, random)?;
    conversation.settle()?;
    let before = server::descriptors(conversation.holder);
    while !lanes.is_over() {
        conversation.step().with_context(|| {
            format!("after {} calls; the bridge said: {}", conversation.calls(), conversation.client.stderr_text())
        })?;
    }
    conversation
        .settle()
        .with_context(|| format!("in the end; the bridge said: {}", conversation.client.stderr_text()))?;
    descendants::settle("descriptors of the holder", before + SEGMENTS, || server::descriptors(conversation.holder))?;
    let lost = conversation.client.stderr_text().matches("; reconnecting").count() as u64;
    let tally = BridgeTally {
        calls: conversation.calls(),
        bytes: conversation.bytes,
        times: std::mem::take(&mut conversation.times),
        lost,
    };
    conversation.end()?;
    Ok(tally)
}
