//! S15: a child's environment starts empty. The policy adds variables of the server, without our own settings, the variables of the service
//! manager and token names, in any case. The request adds its variables, except token names. `LD_…` of a request affects only the program,
//! never holder, spawner or server.

use crate::{
    prelude::*,
    promises::host_helpers::{compile, family},
};

/// Names that must not be inherited from the server, in several spellings.
const PLUMBING: &str = "\
    EXEC_SERVER_LOG exec_server_anything NOTIFY_SOCKET Notify_Socket LISTEN_FDS LISTEN_PID listen_fdnames \
    WATCHDOG_USEC watchdog_pid CREDENTIALS_DIRECTORY credentials_directory CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE";

/// Names that must not reach a child from any source.
const TOKENS: &str = "\
    EXEC_SERVER_TOKEN Exec_Server_Token CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN codex_exec_server_noise_auth_token \
    NODE_REPL_AUTH_TOKEN OPENAI_FEDERATION_RULE_ID OPENAI_IDENTITY_TOKEN_FILE OPENAI_WORKLOAD_IDENTITY_CONTEXT";

fn environment_of(client: &mut Client, id: &str, env: Value, policy: Option<Value>) -> BTreeSet<String> {
    let mut params = with(start_params(id, &["/usr/bin/env", "-0"]), json!({"env": env}));
    if let Some(policy) = policy {
        params["envPolicy"] = policy;
    }
    let ended = client.run_params(params);
    assert_eq!(ended.code(), 0, "{ended:?}");
    ended.text().split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn the_environment_is_the_requested_one_without_the_names_that_no_child_may_have() {
    let mut builder = TestServer::builder().env("INHERITED", "yes");
    for name in PLUMBING.split(' ').chain(TOKENS.split(' ')) {
        // The server reads only the exact name, and its value must be a valid token.
        let value =
            if name == "EXEC_SERVER_TOKEN" { "0123456789abcdef0123456789abcdef0123456789abcdef" } else { "leak" };
        builder = builder.env(name, value);
    }
    let server = builder.start();
    let (mut client, _) = server.modern_client();
    assert_eq!(environment_of(&mut client, "exact", json!({"ONLY": "1"}), None), BTreeSet::from(["ONLY=1".to_owned()]));

    let got = environment_of(&mut client, "all", json!({"ONLY": "1"}), Some(inherit_all()));
    assert!(got.contains("INHERITED=yes") && got.contains("ONLY=1"), "{got:?}");
    let names: BTreeSet<&str> = got.iter().filter_map(|line| line.split('=').next()).collect();
    for name in PLUMBING.split(' ').chain(TOKENS.split(' ')) {
        assert!(!names.contains(name), "`{name}` was inherited");
    }

    let mut env: serde_json::Map<String, Value> =
        TOKENS.split(' ').map(|name| (name.to_owned(), json!("leak"))).collect();
    env.insert("NOTIFY_SOCKET".to_owned(), json!("/run/mine"));
    let set = with(inherit_all(), json!({"set": env}));
    for (id, env, policy) in [("request", json!(env), None), ("set", json!({}), Some(set))] {
        let got = environment_of(&mut client, id, env, policy);
        assert!(!got.iter().any(|line| line.ends_with("=leak")), "{id}: {got:?}");
        assert!(got.contains("NOTIFY_SOCKET=/run/mine"), "{id}: a request's own names, except token names: {got:?}");
    }
}

/// A library that appends a line with the name of the program that loaded it.
const CANARY: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void sing(void) {
    char program[4096] = "", line[4200];
    const char *file = getenv("CANARY_FILE");
    int fd = open(file ? file : "/dev/null", O_WRONLY | O_APPEND);
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) abort();
    int size = snprintf(line, sizeof line, "%d %s\n", getpid(), program);
    if (fd >= 0 && write(fd, line, size) != size) abort();
}

"#;

#[test]
fn a_preloaded_library_of_a_request_is_loaded_by_the_child_alone() {
    let server = TestServer::start();
    let library = compile(server.dir(), "canary.so", CANARY, &["-shared", "-fPIC"]);
    let sung = server.dir().join("sung");
    fs::write(&sung, "").expect("make the file");
    let (mut client, _) = server.modern_client();
    let preload = json!({"LD_PRELOAD": library, "CANARY_FILE": sung});
    let mut first = sh("first", "echo up; kill -STOP $$");
    first["env"] = with(first["env"].take(), preload);
    client.ok("process/start", first);
    client.wait_output("first", "up\n");
    let child = client.pid_of("first");
    let shell = fs::canonicalize("/bin/sh").expect("there is a shell");
    let sang = fs::read_to_string(&sung).expect("read it");
    assert_eq!(sang, format!("{child} {}\n", shell.display()), "once, in the program: no launcher came before it");
    for pid in family(&server) {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("read the mappings");
        assert!(!maps.is_empty() && !maps.contains("canary.so"), "{pid} has loaded it");
        let environ = fs::read(format!("/proc/{pid}/environ")).expect("read the environment");
        assert!(!text(&environ).contains("LD_PRELOAD=/"), "{pid} has it in its environment");
    }
}
