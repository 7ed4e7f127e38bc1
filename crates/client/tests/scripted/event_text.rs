//! Formats events as short texts, so that a test can compare a whole sequence at once.

use super::within;
use crate::prelude::*;
use exec_server_client::{Events, protocol::process::Stream};

/// Formats one event: `out 1 hello`, `err 2 oops`, `tty 3 $`, `gap 4-7 12`, `exit 8=0`, `close 9`, `failed Protocol: why`.
pub(crate) fn spell(event: &Event) -> String {
    match event {
        Event::Output { seq, stream, bytes, .. } => {
            let stream = match stream {
                Stream::Stdout => "out",
                Stream::Stderr => "err",
                Stream::Pty => "tty",
            };
            let text = if bytes.len() > 20 { format!("{} bytes", bytes.len()) } else { text(bytes) };
            format!("{stream} {seq} {text}")
        }
        Event::Gap { from_seq, to_seq, bytes: Some(bytes) } => format!("gap {from_seq}-{to_seq} {bytes}"),
        Event::Gap { from_seq, to_seq, bytes: None } => format!("gap {from_seq}-{to_seq}"),
        Event::Exited { seq, exit } => format!("exit {seq}={}", exit.code),
        Event::Closed { seq, .. } => format!("close {seq}"),
        Event::Failed(error) => format!("failed {:?}: {error}", error.kind()),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The next event, which must arrive, or `end`.
pub(crate) async fn next(events: &mut Events) -> String {
    within(events.next()).await.as_ref().map_or_else(|| "end".to_owned(), spell)
}

/// The next `count` events.
pub(crate) async fn take(events: &mut Events, count: usize) -> Vec<String> {
    let mut story = Vec::new();
    for _ in 0..count {
        story.push(next(events).await);
    }
    story
}

/// All events up to the end.
pub(crate) async fn collect(events: &mut Events) -> Vec<String> {
    let mut story = Vec::new();
    while let Some(event) = within(events.next()).await {
        story.push(spell(&event));
    }
    story
}

/// The kind of a result that must be an error.
pub(crate) fn error_kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.expect_err("it fails").kind()
}
