//! Queries the servers of a configuration, one JSON request per line: `ask CONFIG [URL]`. URL is the executor for servers whose environment
//! is `remote`. A request is `{"server": "time", "ask": "tools"}`, or `resources` or `prompts`. The requests `call`, `read` and `prompt`
//! also need a `name` and may have arguments. The reply to each is one line with `ok` or `error`.

use std::{
    io::{self, BufRead as _, Write as _},
    path::Path,
    process::ExitCode,
};

use exec_server_client::{
    environment::{self, Choice},
    local::LocalConfig,
};
use exec_server_mcp::{
    config::Config,
    manager::{Error, Hosts, Manager, Settings, ToolCall},
};
use serde_json::{Value, json};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let config = Config::load(Path::new(&args.next().ok_or("usage: ask CONFIG [URL]")?))?;
    let remote = args.next().map_or(Ok(Choice::None), |url| environment::choose(Some(&url)))?;
    let choose = |name: &str| environment::choose(Some(name));
    let settings = Settings { variables: std::env::vars_os().collect(), ..Settings::new(config) };
    let manager = Manager::new(settings, Hosts::by_choice(LocalConfig::default(), remote, None, choose));
    // Starts all servers concurrently. A server that fails reports its error when it is queried.
    manager.start();
    for line in io::stdin().lock().lines() {
        let answer = match answer(&manager, &serde_json::from_str(&line?)?).await {
            Ok(result) => json!({ "ok": result }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        writeln!(io::stdout(), "{answer}")?;
    }
    manager.shutdown().await;
    Ok(())
}

async fn answer(manager: &Manager, asked: &Value) -> Result<Value, Error> {
    let word = |key: &str| asked[key].as_str().unwrap_or_default();
    let (server, name) = (word("server"), word("name"));
    match word("ask") {
        "tools" => Ok(json!(manager.tools_of(server).await?)),
        "resources" => Ok(json!(manager.resources_of(server).await?)),
        "prompts" => Ok(json!(manager.prompts_of(server).await?)),
        "read" => manager.read_resource(server, name).await,
        "prompt" => {
            let arguments = asked["arguments"].as_object().cloned().unwrap_or_default();
            manager.get_prompt(server, name, arguments).await
        }
        _ => {
            let arguments = asked.get("arguments").cloned().unwrap_or(json!({}));
            Ok(json!(manager.call(ToolCall::new(server, name).arguments(arguments)).await?))
        }
    }
}
