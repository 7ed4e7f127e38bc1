//! F13: a thousand descendants that forked twice, lead their own sessions and ignore every signal that can be ignored.
//!
//! With control groups none is left after its process was terminated; without, none is left after the session has ended. There is no
//! zombie, and the number of fds is the same as before.

use crate::prelude::*;
use exec_server_harness::server;

/// Processes that start the daemons.
const MAKERS: u64 = 10;

/// The uid of `nobody`, which cannot create control groups on this host.
const NOBODY: u32 = 65534;

pub(super) fn run(setting: &FaultSetting) -> Result<Vec<Figures>> {
    let count = setting.pick(100, 1000, 20_000);
    let mut lines = Vec::new();
    for grouped in [true, false] {
        lines.push(lot(setting, count, grouped).with_context(|| format!("control groups: {grouped}"))?);
    }
    Ok(lines)
}

fn lot(setting: &FaultSetting, count: u64, grouped: bool) -> Result<Figures> {
    let each = count / MAKERS;
    let setup = Setup::new(&setting.binary)?.arg("--max-pids").arg("none");
    let setup = if grouped { setup } else { setup.run_by(NOBODY)? };
    let server = setup.start()?;
    let (mut wire, _) = WireClient::session(&server.address)?;
    wire.start("first", &["/bin/sh", "-c", "cat /proc/self/cgroup"])?;
    let own = read(&mut wire, "first")?;
    ensure!(
        own.contains("exec-server-") == grouped,
        "this host gives control groups where we did not expect it, or not: {own}"
    );
    wire.call("process/forget", &json!({ "processId": "first" }))?;
    let holder = setup.new_holder(&[])?;
    let before = (server::descriptors(server.pid()), server::descriptors(holder));
    let mark = descendants::mark(u64::from(grouped));
    for maker in 0..MAKERS {
        let script = descendants::script(&mark, each, "exec sleep 1000");
        wire.start(&format!("maker-{maker}"), &["/bin/sh", "-c", &script])?;
    }
    descendants::wait_alive(&mark, each * MAKERS)?;
    let asked = Instant::now();
    for maker in 0..MAKERS {
        wire.call("process/terminate", &json!({ "processId": format!("maker-{maker}") }))?;
    }
    // Their ends come in any order.
    wire.wait_closed(usize::try_from(MAKERS)?)?;
    for maker in 0..MAKERS {
        wire.call("process/forget", &json!({ "processId": format!("maker-{maker}") }))?;
    }
    let mut times = Vec::new();
    if grouped {
        times.push(descendants::until_gone(&mark, asked, Duration::from_secs(1))?);
        descendants::settle("zombies", 0, || descendants::zombies(&[holder, server.pid()]))?;
        descendants::settle("descriptors of the holder", before.1, || server::descriptors(holder))?;
    }
    let asked = Instant::now();
    wire.end_session()?;
    let gone = descendants::until_gone(&mark, asked, Duration::from_secs(5))?;
    if !grouped {
        times.push(gone);
    }
    descendants::settle("descriptors of the server", before.0, || server::descriptors(server.pid()))?;
    descendants::settle("dead and not reaped", 0, || descendants::zombies(&setup.family()))?;
    setup.finish(server)?;
    Ok(Figures::survived(count).times(&mut times).set("groups", grouped))
}

/// All output of a process until it has closed.
fn read(wire: &mut WireClient, wanted: &str) -> Result<String> {
    let mut said = String::new();
    loop {
        match wire.next_message()? {
            ServerMessage::Output(output) if output.process == wanted => {
                said += &String::from_utf8_lossy(&output.bytes)
            }
            ServerMessage::Closed { process, .. } if process == wanted => return Ok(said),
            _ => {}
        }
    }
}
