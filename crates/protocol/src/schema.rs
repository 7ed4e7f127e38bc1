//! Generates the JSON Schema of all messages from the wire types. All descriptions in it are the doc comments of the types.

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    Empty, command, environment,
    failure::Kind,
    fs, http, initialize,
    message::{RequestId, Trace},
    method::{METHODS, NOTIFICATIONS, Scope, Sender},
    process, session,
};

/// The whole schema as one document: envelope, methods with params and result, notifications and error kinds. The output is deterministic.
#[must_use]
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let envelope = json!({
        "id": generator.subschema_for::<RequestId>(),
        "trace": generator.subschema_for::<Trace>(),
    });
    let methods: Map<String, Value> = METHODS
        .iter()
        .map(|method| {
            let (params, result) = method_schema(method.name, &mut generator).unwrap_or_default();
            let scope = method.scope.map(Scope::as_str);
            let entry = json!({ "params": params, "result": result, "scope": scope, "addition": method.addition });
            (method.name.to_owned(), entry)
        })
        .collect();
    let notifications: Map<String, Value> = NOTIFICATIONS
        .iter()
        .map(|notification| {
            let sender = match notification.sender {
                Sender::Client => "client",
                Sender::Server => "server",
            };
            let params = notification_schema(notification.name, &mut generator).unwrap_or_default();
            let entry = json!({ "params": params, "sender": sender, "addition": notification.addition });
            (notification.name.to_owned(), entry)
        })
        .collect();
    let errors: Vec<Value> = Kind::ALL
        .iter()
        .map(|kind| json!({ "kind": kind, "code": kind.code(), "description": kind.description() }))
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "exec-server",
        "protocolVersion": initialize::PROTOCOL_VERSION,
        "envelope": envelope,
        "methods": methods,
        "notifications": notifications,
        "errors": errors,
        "$defs": generator.take_definitions(true),
    })
}

fn method_schema(name: &str, generator: &mut SchemaGenerator) -> Option<(Schema, Schema)> {
    fn pair<P: JsonSchema, R: JsonSchema>(generator: &mut SchemaGenerator) -> (Schema, Schema) {
        (named::<P>(generator), named::<R>(generator))
    }
    Some(match name {
        "initialize" => pair::<initialize::InitializeParams, initialize::InitializeResult>(generator),
        "process/start" => pair::<process::StartParams, process::StartResult>(generator),
        "process/read" => pair::<process::ReadParams, process::ReadResult>(generator),
        "process/write" => pair::<process::WriteParams<'_>, process::WriteResult>(generator),
        "process/signal" => pair::<process::SignalParams, process::SignalResult>(generator),
        "process/terminate" => pair::<process::TerminateParams, process::TerminateResult>(generator),
        "process/closeStdin" => pair::<process::CloseStdinParams, process::CloseStdinResult>(generator),
        "process/resize" => pair::<process::ResizeParams, process::ResizeResult>(generator),
        "process/list" => pair::<process::ListParams, process::ListResult>(generator),
        "process/subscribe" => pair::<process::SubscribeParams, process::SubscribeResult>(generator),
        "process/unsubscribe" => pair::<process::UnsubscribeParams, process::UnsubscribeResult>(generator),
        "process/forget" => pair::<process::ForgetParams, process::ForgetResult>(generator),
        "session/end" => pair::<session::EndParams, session::EndResult>(generator),
        "environment/info" => pair::<Empty, environment::InfoResult>(generator),
        "environment/status" => pair::<Empty, environment::StatusResult>(generator),
        "fs/readFile" => pair::<fs::ReadFileParams, fs::SandboxedResult<fs::ReadFileResult>>(generator),
        "fs/writeFile" => pair::<fs::WriteFileParams<'_>, fs::SandboxedResult<fs::WriteFileResult>>(generator),
        "fs/createDirectory" => {
            pair::<fs::CreateDirectoryParams, fs::SandboxedResult<fs::CreateDirectoryResult>>(generator)
        }
        "fs/getMetadata" => pair::<fs::GetMetadataParams, fs::SandboxedResult<fs::GetMetadataResult>>(generator),
        "fs/canonicalize" => pair::<fs::CanonicalizeParams, fs::SandboxedResult<fs::CanonicalizeResult>>(generator),
        "fs/readDirectory" => pair::<fs::ReadDirectoryParams, fs::SandboxedResult<fs::ReadDirectoryResult>>(generator),
        "fs/walk" => pair::<fs::WalkParams, fs::SandboxedResult<fs::WalkResult>>(generator),
        "fs/remove" => pair::<fs::RemoveParams, fs::SandboxedResult<fs::RemoveResult>>(generator),
        "fs/copy" => pair::<fs::CopyParams, fs::SandboxedResult<fs::CopyResult>>(generator),
        "fs/open" => pair::<fs::OpenParams, fs::SandboxedResult<fs::OpenResult>>(generator),
        "fs/readBlock" => pair::<fs::ReadBlockParams, fs::ReadBlockResult>(generator),
        "fs/close" => pair::<fs::CloseParams, fs::CloseResult>(generator),
        "fs/create" => pair::<fs::CreateParams, fs::SandboxedResult<fs::CreateResult>>(generator),
        "fs/writeBlock" => pair::<fs::WriteBlockParams<'_>, fs::WriteBlockResult>(generator),
        "fs/commit" => pair::<fs::CommitParams, fs::CommitResult>(generator),
        "fs/setMetadata" => pair::<fs::SetMetadataParams, fs::SandboxedResult<fs::SetMetadataResult>>(generator),
        "fs/createSymlink" => pair::<fs::CreateSymlinkParams, fs::SandboxedResult<fs::CreateSymlinkResult>>(generator),
        "http/request" => pair::<http::RequestParams, http::RequestResult>(generator),
        "http/cancel" => pair::<http::CancelParams, http::CancelResult>(generator),
        "command/exec" => pair::<command::ExecParams, command::ExecResult>(generator),
        "command/exec/write" => pair::<command::WriteParams<'_>, command::WriteResult>(generator),
        "command/exec/terminate" => pair::<command::TerminateParams, command::TerminateResult>(generator),
        "fs/search" => pair::<fs::SearchParams, fs::SandboxedResult<fs::SearchResult>>(generator),
        "fs/searchNext" => pair::<fs::SearchNextParams, fs::SearchResult>(generator),
        "fs/glob" => pair::<fs::GlobParams, fs::SandboxedResult<fs::GlobResult>>(generator),
        "fs/watch" => pair::<fs::WatchParams, fs::SandboxedResult<fs::WatchResult>>(generator),
        "fs/watchNext" => pair::<fs::WatchNextParams, fs::WatchNextResult>(generator),
        _ => return None,
    })
}

fn notification_schema(name: &str, generator: &mut SchemaGenerator) -> Option<Schema> {
    Some(match name {
        "initialized" => named::<Value>(generator),
        "process/ack" => named::<process::AckParams>(generator),
        "process/output" => named::<process::OutputParams>(generator),
        "process/exited" => named::<process::ExitedParams>(generator),
        "process/closed" => named::<process::ClosedParams>(generator),
        "process/gap" => named::<process::GapParams>(generator),
        "process/channel" => named::<process::ChannelParams>(generator),
        "http/request/ack" => named::<http::AckParams>(generator),
        "http/request/bodyDelta" => named::<http::BodyDeltaParams<'_>>(generator),
        "command/exec/outputDelta" => named::<command::OutputDeltaParams>(generator),
        "command/exec/exited" => named::<command::ExitedParams>(generator),
        _ => return None,
    })
}

/// The schema of a type, with the types of its members in the shared definitions. The type itself is written in place, because types in
/// different modules have the same short name.
fn named<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    schema.insert("title".to_owned(), T::schema_name().into());
    schema
}

#[cfg(test)]
mod tests {
    use schemars::generate::SchemaSettings;

    use super::{method_schema, notification_schema, schema};
    use crate::{
        SCHEMA,
        failure::Kind,
        method::{METHODS, NOTIFICATIONS},
    };

    #[test]
    fn every_method_and_notification_has_a_schema() {
        let mut generator = SchemaSettings::draft2020_12().into_generator();
        for method in METHODS {
            assert!(method_schema(method.name, &mut generator).is_some(), "{}", method.name);
        }
        for notification in NOTIFICATIONS {
            assert!(notification_schema(notification.name, &mut generator).is_some(), "{}", notification.name);
        }
    }

    #[test]
    fn the_document_is_the_same_every_time_and_has_every_failure() {
        let first = schema();
        assert_eq!(serde_json::to_string(&first).unwrap(), serde_json::to_string(&schema()).unwrap());
        assert_eq!(first["errors"].as_array().map(Vec::len), Some(Kind::ALL.len()));
    }

    #[test]
    fn descriptions_are_for_readers_of_the_wire() {
        assert!(!schema().to_string().contains("[`"));
    }

    #[test]
    fn the_golden_document_is_fresh() {
        let fresh = format!("{}\n", serde_json::to_string_pretty(&schema()).unwrap());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/schema.json"), fresh).unwrap();
        } else {
            assert!(
                SCHEMA == fresh,
                "schema.json is stale: UPDATE=1 cargo test -p exec-server-protocol golden_document"
            );
        }
    }

    #[test]
    fn every_reference_in_the_document_leads_somewhere() {
        let document = schema();
        let text = document.to_string();
        for part in text.split("\"$ref\":\"#").skip(1) {
            let pointer = part.split('"').next().unwrap_or_default();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }
}
