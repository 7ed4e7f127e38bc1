//! Decodes one line of a server's stdout as a message.
//!
//! rmcp's types drop unknown fields and reject unknown values: a single unknown kind of content would make a whole result unreadable. So
//! with [`ResultForm::Raw`], results and elicitation requests are passed on unparsed, except for the result of the handshake. The caller
//! knows the expected type.

use rmcp::{
    RoleClient,
    model::{CustomRequest, CustomResult, InitializeResult, JsonRpcMessage, RequestId, ServerRequest, ServerResult},
    service::RxJsonRpcMessage,
};
use serde_json::Value;

use super::Progress;

/// The form in which results are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultForm {
    /// Parsed into rmcp's types.
    Typed,
    /// Unparsed: every result except the first, and every `elicitation/create`, is delivered as a custom message.
    Raw,
}

/// The kind of a line.
#[derive(Debug)]
pub(super) enum DecodedLine {
    Message(Box<RxJsonRpcMessage<RoleClient>>),
    Progress(Progress),
    /// Not a message, with the reason.
    Noise(String),
}

/// Decodes a line. `is_first` means that no other result has arrived yet.
pub(super) fn decode(line: &[u8], results: ResultForm, is_first: bool) -> DecodedLine {
    let value = match serde_json::from_slice::<Value>(line) {
        Ok(value) => value,
        Err(error) => return DecodedLine::Noise(format!("not JSON: {error}")),
    };
    let Value::Object(mut object) = value else { return DecodedLine::Noise("JSON, but not an object".to_owned()) };
    let id = object.get("id").and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok());
    let method = object.get("method").and_then(Value::as_str);
    let is_result = id.is_some() && object.contains_key("result");
    match (results, method, id) {
        (_, None, _) if !is_result && !object.contains_key("error") => {
            DecodedLine::Noise("JSON, but not a JSON-RPC message".to_owned())
        }
        (ResultForm::Raw, Some("notifications/progress"), None) => {
            match object.remove("params").map(serde_json::from_value) {
                Some(Ok(progress)) => DecodedLine::Progress(progress),
                Some(Err(error)) => DecodedLine::Noise(format!("an invalid progress notification: {error}")),
                None => DecodedLine::Noise("a progress notification without parameters".to_owned()),
            }
        }
        (ResultForm::Raw, None, Some(id)) if is_result => {
            let result = object.remove("result").unwrap_or_default();
            message(JsonRpcMessage::response(to_result(result, is_first), id))
        }
        (ResultForm::Raw, Some(super::ELICIT), Some(id)) => {
            let request = CustomRequest::new(super::ELICIT, object.remove("params"));
            message(JsonRpcMessage::request(ServerRequest::CustomRequest(request), id))
        }
        _ => match serde_json::from_value(Value::Object(object)) {
            Ok(read) => message(read),
            Err(error) => DecodedLine::Noise(format!("an invalid JSON-RPC message: {error}")),
        },
    }
}

fn message(message: RxJsonRpcMessage<RoleClient>) -> DecodedLine {
    DecodedLine::Message(Box::new(message))
}

fn to_result(result: Value, is_first: bool) -> ServerResult {
    if is_first && let Ok(read) = serde_json::from_value::<InitializeResult>(result.clone()) {
        return ServerResult::InitializeResult(read);
    }
    ServerResult::CustomResult(CustomResult(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(line: &str) -> String {
        match decode(line.as_bytes(), ResultForm::Raw, false) {
            DecodedLine::Noise(why) => why,
            other => panic!("{other:?}"),
        }
    }

    fn read(line: &str, results: ResultForm, is_first: bool) -> RxJsonRpcMessage<RoleClient> {
        match decode(line.as_bytes(), results, is_first) {
            DecodedLine::Message(message) => *message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_line_that_is_not_a_message_is_noise_with_a_reason() {
        assert!(noise("INFO starting").starts_with("not JSON"));
        assert!(noise("[1]").contains("not an object"));
        assert!(noise("{\"level\":\"info\",\"msg\":\"up\"}").contains("not a JSON-RPC message"));
        assert!(noise("{\"jsonrpc\":\"2.0\",\"id\":1,\"resu").starts_with("not JSON"));
        assert!(noise("{\"method\":\"notifications/progress\"}").contains("progress"));
    }

    #[test]
    fn a_result_with_unknown_content_is_passed_on_unchanged() {
        let line = r#"{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"new","x":[1]}],"extra":null}}"#;
        let JsonRpcMessage::Response(response) = read(line, ResultForm::Raw, false) else { panic!("a response") };
        let ServerResult::CustomResult(CustomResult(value)) = response.result else { panic!("not unparsed") };
        assert_eq!(value, serde_json::json!({"content": [{"type": "new", "x": [1]}], "extra": null}));
    }

    #[test]
    fn the_first_result_is_that_of_the_handshake() {
        let line = r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{},
            "serverInfo":{"name":"n","version":"1"}}}"#;
        let JsonRpcMessage::Response(response) = read(line, ResultForm::Raw, true) else { panic!("a response") };
        assert!(matches!(response.result, ServerResult::InitializeResult(_)));
    }

    #[test]
    fn an_error_without_an_id_and_a_ping_are_messages() {
        let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse"}}"#;
        assert!(matches!(read(error, ResultForm::Raw, false), JsonRpcMessage::Error(_)));
        let ping = r#"{"jsonrpc":"2.0","id":"a","method":"ping"}"#;
        let JsonRpcMessage::Request(request) = read(ping, ResultForm::Raw, false) else { panic!("a request") };
        assert!(matches!(request.request, ServerRequest::PingRequest(_)));
    }

    #[test]
    fn an_elicitation_request_is_passed_on_unparsed() {
        let line = r#"{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":"m","x":1}}"#;
        let JsonRpcMessage::Request(request) = read(line, ResultForm::Raw, false) else { panic!("a request") };
        let ServerRequest::CustomRequest(custom) = request.request else { panic!("not unparsed") };
        assert_eq!(custom.params, Some(serde_json::json!({"message": "m", "x": 1})));
    }
}
