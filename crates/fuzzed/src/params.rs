//! Round trip of the params and results of every method: a value that decodes must survive encoding and decoding again.

use exec_server_protocol::{Empty, command, environment, http, initialize, message, method, process, session};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// For types that borrow from their text.
macro_rules! borrowing {
    ($text:expr, $type:ident :: $name:ident) => {{
        if let Ok(value) = message::params::<$type::$name<'_>>(Some($text)) {
            let written = serde_json::value::to_raw_value(&value).unwrap();
            let again: $type::$name<'_> = message::params(Some(&written)).unwrap();
            assert_eq!(serde_json::to_string(&again).unwrap(), written.get());
        }
    }};
}

/// Checks the params of the request or notification `name`.
pub(crate) fn check_params(name: &str, text: &RawValue) {
    match name {
        "initialize" => owned::<initialize::InitializeParams>(text),
        "process/start" => owned::<process::StartParams>(text),
        "process/read" => owned::<process::ReadParams>(text),
        "process/write" => borrowing!(text, process::WriteParams),
        "process/signal" => owned::<process::SignalParams>(text),
        "process/terminate" => owned::<process::TerminateParams>(text),
        "process/closeStdin" => owned::<process::CloseStdinParams>(text),
        "process/resize" => owned::<process::ResizeParams>(text),
        "process/list" => owned::<process::ListParams>(text),
        "process/subscribe" => owned::<process::SubscribeParams>(text),
        "process/unsubscribe" => owned::<process::UnsubscribeParams>(text),
        "process/forget" => owned::<process::ForgetParams>(text),
        "session/end" => owned::<session::EndParams>(text),
        "environment/info" | "environment/status" | method::INITIALIZED => owned::<Empty>(text),
        "http/request" => owned::<http::RequestParams>(text),
        "http/cancel" => owned::<http::CancelParams>(text),
        "command/exec" => owned::<command::ExecParams>(text),
        "command/exec/write" => borrowing!(text, command::WriteParams),
        "command/exec/terminate" => owned::<command::TerminateParams>(text),
        method::PROCESS_ACK => owned::<process::AckParams>(text),
        method::PROCESS_OUTPUT => owned::<process::OutputParams>(text),
        method::PROCESS_EXITED => owned::<process::ExitedParams>(text),
        method::PROCESS_CLOSED => owned::<process::ClosedParams>(text),
        method::PROCESS_GAP => owned::<process::GapParams>(text),
        method::PROCESS_CHANNEL => owned::<process::ChannelParams>(text),
        method::HTTP_ACK => owned::<http::AckParams>(text),
        method::HTTP_BODY_DELTA => borrowing!(text, http::BodyDeltaParams),
        method::COMMAND_OUTPUT_DELTA => owned::<command::OutputDeltaParams>(text),
        method::COMMAND_EXITED => owned::<command::ExitedParams>(text),
        other => assert!(
            method::Method::find(other).is_none() && method::NOTIFICATIONS.iter().all(|known| known.name != other),
            "`{other}` is a method without a type here"
        ),
    }
}

/// Decodes `text` as `T`. If that works, the encoded value must decode, and encode to the same text.
fn owned<T: for<'a> Deserialize<'a> + Serialize>(text: &RawValue) {
    let Ok(value) = message::params::<T>(Some(text)) else { return };
    let written = serde_json::value::to_raw_value(&value).unwrap();
    let again: T = message::params(Some(&written)).unwrap_or_else(|error| panic!("we wrote {written}: {error}"));
    assert_eq!(serde_json::to_string(&again).unwrap(), written.get());
}

/// Decodes a result as every result type, because a result does not name its method.
pub(crate) fn check_result(text: &RawValue) {
    owned::<initialize::InitializeResult>(text);
    owned::<process::StartResult>(text);
    owned::<process::ReadResult>(text);
    owned::<process::WriteResult>(text);
    owned::<process::TerminateResult>(text);
    owned::<process::CloseStdinResult>(text);
    owned::<process::ListResult>(text);
    owned::<process::SubscribeResult>(text);
    owned::<environment::InfoResult>(text);
    owned::<environment::StatusResult>(text);
    owned::<http::RequestResult>(text);
    owned::<http::CancelResult>(text);
    owned::<command::ExecResult>(text);
    owned::<command::WriteResult>(text);
    owned::<command::TerminateResult>(text);
}
