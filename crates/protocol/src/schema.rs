//! Generates the JSON Schema of all messages from the wire types. All descriptions in it are the doc comments of the types.

use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    failure::Kind,
    fs, initialize,
    message::{RequestId, Trace},
    method::{
        Family, METHODS, Message, MethodInfo, NOTIFICATIONS, Notification, NotificationInfo, Scope, Sender, TypeVisitor,
    },
};

/// The whole schema as one document: envelope, methods with params and result, notifications and error kinds. The output is deterministic.
#[must_use]
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let envelope = json!({
        "id": generator.subschema_for::<RequestId>(),
        "trace": generator.subschema_for::<Trace>(),
    });
    let methods: Map<String, Value> =
        METHODS.iter().map(|info| (info.name.to_owned(), method_schema(info, &mut generator))).collect();
    let notifications: Map<String, Value> =
        NOTIFICATIONS.iter().map(|info| (info.name.to_owned(), notification_schema(info, &mut generator))).collect();
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

/// Writes the schema of one type of a method.
struct SchemaWriter<'a> {
    generator: &'a mut SchemaGenerator,
    /// Whether the result says which sandbox confined the request.
    has_sandbox: bool,
}

impl TypeVisitor for SchemaWriter<'_> {
    type Output = Schema;

    fn visit_params<M: Message>(self) -> Schema {
        named::<M::Params<'static>>(self.generator)
    }

    fn visit_result<T: JsonSchema>(self) -> Schema {
        if self.has_sandbox { named::<fs::SandboxedResult<T>>(self.generator) } else { named::<T>(self.generator) }
    }
}

fn method_schema(info: &MethodInfo, generator: &mut SchemaGenerator) -> Value {
    let params = info.method.visit_params(SchemaWriter { generator, has_sandbox: false });
    // `process/start` and `http/request` also have this member. The result type of the first has its own `sandbox`; that of the second none.
    let has_sandbox = info.family == Family::Filesystem && params.pointer("/properties/sandbox").is_some();
    let result = info.method.visit_result(SchemaWriter { generator, has_sandbox });
    let scope = info.scope.map(Scope::as_str);
    json!({ "params": params, "result": result, "scope": scope, "addition": info.addition })
}

fn notification_schema(info: &NotificationInfo, generator: &mut SchemaGenerator) -> Value {
    let params = match info.notification {
        // The server ignores these params, so any value is valid.
        Notification::Initialized => named::<Value>(generator),
        other => other.visit_params(SchemaWriter { generator, has_sandbox: false }),
    };
    let sender = match info.sender {
        Sender::Client => "client",
        Sender::Server => "server",
    };
    json!({ "params": params, "sender": sender, "addition": info.addition })
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
    use super::schema;
    use crate::{SCHEMA, failure::Kind};

    #[test]
    fn the_schema_is_deterministic_and_lists_every_error_kind() {
        let first = schema();
        assert_eq!(serde_json::to_string(&first).unwrap(), serde_json::to_string(&schema()).unwrap());
        assert_eq!(first["errors"].as_array().map(Vec::len), Some(Kind::ALL.len()));
    }

    #[test]
    fn schema_descriptions_contain_no_rustdoc_links() {
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
    fn every_reference_in_the_schema_resolves() {
        let document = schema();
        let text = document.to_string();
        for part in text.split("\"$ref\":\"#").skip(1) {
            let pointer = part.split('"').next().unwrap_or_default();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }
}
