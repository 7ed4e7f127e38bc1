//! The rules of safety, one file each, named after the rule; `cargo xtask faults --list` names them, too.
#![allow(clippy::disallowed_methods, reason = "a test starts the real program and waits on the real clock")]

mod common;

mod promises {
    pub(crate) mod host;

    mod s02_nothing_before_the_door;
    mod s09_certificates_say_who_it_is;
    mod s20_what_a_command_starts_is_bounded_and_ends_with_it;

    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    /// The request of a WebSocket client, with more header lines.
    pub(crate) fn upgrade(target: &str, host: &str, more: &str) -> String {
        format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}{more}\r\n")
    }
}
