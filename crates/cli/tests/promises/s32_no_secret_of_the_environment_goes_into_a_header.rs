//! S32: no principal can put an API key or a cloud credential of the server's environment into an HTTP header, whether the variable is set
//! or not, in any case.

use crate::prelude::*;

/// The names that the reference refuses, and our own.
const REFUSED: &str = "\
    OPENAI_API_KEY CODEX_API_KEY CODEX_ACCESS_TOKEN CODEX_CONNECTORS_TOKEN AWS_ACCESS_KEY_ID \
    AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET AZURE_FEDERATED_TOKEN_FILE \
    GOOGLE_APPLICATION_CREDENTIALS CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN OPENAI_FEDERATION_RULE_ID \
    OPENAI_IDENTITY_TOKEN_FILE OPENAI_WORKLOAD_IDENTITY_CONTEXT EXEC_SERVER_TOKEN EXEC_SERVER_URL \
    CREDENTIALS_DIRECTORY NOTIFY_SOCKET";

/// A name unchanged, in lower case, and in mixed case.
fn spellings(name: &str) -> [String; 3] {
    let mixed = name.char_indices().map(|(at, c)| if at % 2 == 0 { c.to_ascii_lowercase() } else { c }).collect();
    [name.to_owned(), name.to_ascii_lowercase(), mixed]
}

fn with(target: &Target, variable: &str) -> Value {
    let header = json!({"name": "authorization", "value": "Bearer ", "valueEnvVar": variable});
    json!({"method": "GET", "url": target.url("/"), "headers": [header], "requestId": "r"})
}

#[test]
fn credentials_are_refused_whether_set_or_not_in_letters_of_any_case() {
    let target = Target::saying("hello");
    for is_set in [true, false] {
        let mut builder = TestServer::builder();
        for name in
            REFUSED.split(' ').filter(|name| is_set && !["NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY"].contains(name))
        {
            // The value must be valid as a token, because one of the variables holds the server's token.
            builder = builder.env(name, "secret-secret-secret-secret");
        }
        let server = builder.start();
        let mut client = server.client();
        for variable in REFUSED.split(' ').flat_map(spellings) {
            let error = client.fails("http/request", with(&target, &variable));
            assert_error(&error, -32602, "invalidParams");
            assert!(error.message.contains("holds a secret of the server"), "{variable}: {}", error.message);
            assert!(!error.message.contains("secret-secret"), "{}", error.message);
        }
    }
    assert_eq!(target.asked(), [], "nothing was sent");
}

#[test]
fn an_unlisted_variable_is_sent_and_stays_hidden_from_children_where_it_was() {
    let target = Target::saying("hello");
    let variables = [("NODE_REPL_AUTH_TOKEN", "n0de"), ("MY_SERVICE_KEY", "mine"), ("OPENAI_API_KEYS", "other")];
    let builder = variables.iter().fold(TestServer::builder(), |builder, (name, value)| builder.env(name, value));
    let server = builder.start();
    let mut client = server.client();
    for (at, (variable, value)) in variables.into_iter().enumerate() {
        client.ok("http/request", with(&target, variable));
        assert_eq!(target.asked()[at].all("authorization"), [format!("Bearer {value}")], "{variable}");
    }
    let mut params = start_params("p", &["sh", "-c", "echo \"[$NODE_REPL_AUTH_TOKEN]\""]);
    params["envPolicy"] = inherit_all();
    assert_eq!(client.run_params(params).stdout, b"[]\n");
}
