//! Follows the events of a process and checks their invariants: sequence numbers without holes, one exit, the close last.

use super::soon;
use crate::prelude::*;
use exec_server_client::{Events, Exit, Totals, protocol::process::Stream};

/// Everything that a process reported.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    /// Bytes of stdout, or of the terminal.
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) exit: Exit,
    /// The totals in the close event.
    pub(crate) totals: Totals,
    /// Output bytes reported as missing by gaps.
    pub(crate) gone: u64,
}

/// Follows a process from its first event to its last.
pub(crate) async fn tell(process: &Process) -> Told {
    let told = follow(process.events()).await;
    assert_eq!(told.gone, 0, "nothing of it is gone");
    told
}

/// Follows events to the last, from the current position.
pub(crate) async fn follow(mut events: Events) -> Told {
    let (mut stdout, mut stderr, mut gone) = (Vec::new(), Vec::new(), 0);
    let (mut exit, mut totals, mut last) = (None, None, events.position());
    while let Some(event) = events.next().await {
        assert!(totals.is_none(), "{event:?} after the close");
        let (from, to) = match &event {
            Event::Output { seq, .. } | Event::Exited { seq, .. } | Event::Closed { seq, .. } => (*seq, *seq),
            Event::Gap { from_seq, to_seq, .. } => (*from_seq, *to_seq),
            Event::Failed(error) => panic!("failed after number {last}: {error}"),
        };
        assert!(from == last + 1 && to >= from, "number {from} to {to} after number {last}");
        last = to;
        match event {
            Event::Output { stream: Stream::Stderr, bytes, .. } => stderr.extend_from_slice(&bytes),
            Event::Output { bytes, .. } => stdout.extend_from_slice(&bytes),
            Event::Gap { bytes, .. } => gone += bytes.expect("this server counts what is gone"),
            Event::Exited { exit: how, .. } => assert_eq!(exit.replace(how), None, "one exit"),
            Event::Closed { totals: all, .. } => totals = Some(all),
            Event::Failed(_) => {}
        }
    }
    let exit = exit.expect("an exit before the end");
    Told { stdout, stderr, exit, totals: totals.expect("a close before the end"), gone }
}

/// Reads output until it contains `wanted`, and returns all of it.
pub(crate) async fn output_until(events: &mut Events, wanted: &str) -> String {
    let mut said = Vec::new();
    soon(&format!("output `{wanted}`"), async {
        while !String::from_utf8_lossy(&said).contains(wanted) {
            match events.next().await {
                Some(Event::Output { bytes, .. }) => said.extend_from_slice(&bytes),
                other => panic!("{other:?} where output `{wanted}` is expected, after {said:?}"),
            }
        }
    })
    .await;
    String::from_utf8(said).expect("text")
}

/// The next events, each as one line of text.
pub(crate) async fn stories(events: &mut Events, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..count {
        told.push(spell(events).await);
    }
    told
}

/// The next event as one line of text.
pub(crate) async fn spell(events: &mut Events) -> String {
    match soon("an event", events.next()).await {
        Some(Event::Output { seq, stream, bytes, .. }) => {
            format!("{seq} {} {}", stream.as_str(), String::from_utf8_lossy(&bytes))
        }
        Some(Event::Gap { from_seq, to_seq, .. }) => format!("{from_seq}-{to_seq} gap"),
        Some(Event::Exited { seq, exit }) => format!("{seq} exited {}", exit.code),
        Some(Event::Closed { seq, .. }) => format!("{seq} closed"),
        Some(Event::Failed(error)) => format!("failed: {error}"),
        None => "end".to_owned(),
    }
}
