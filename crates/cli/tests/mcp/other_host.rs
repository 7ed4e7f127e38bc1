//! Servers on another machine with another HOME, PATH, `/tmp` and working directory. Nothing of our machine is visible there, and nothing
//! of that machine is mistaken for ours.

use crate::{
    mcp::{call, data, places::variables, soon},
    prelude::*,
};
use exec_server_client::{
    Client, cp,
    environment::{Choice, RemoteSpec},
    fs,
    local::LocalConfig,
};
use exec_server_mcp::{
    config::{Config, Format},
    manager::{Hosts, Manager, Settings},
};

/// A manager of the server `t` on another machine, where its program is in the `PATH`.
async fn manager_at(host: &Elsewhere, more: &str) -> Manager {
    let client = Client::connect(host.url()).await.expect("connect");
    let source = cp::CopyEndpoint { files: Arc::new(fs::LocalFiles::new()), path: testkit::test_mcp_server().into() };
    let there = format!("{}/bin/test_mcp_server", Elsewhere::CWD);
    let target = cp::CopyEndpoint { files: Arc::new(fs::RemoteFiles::new(client.clone())), path: there.into() };
    cp::copy(&source, &target, true, &cp::NoObserver).await.expect("copy the program");
    client.end_session().await.expect("end");
    let text = format!("[mcp_servers.t]\ncommand = \"test_mcp_server\"\nenvironment = \"remote\"\n{more}");
    let config = Config::parse(&text, "test.toml".as_ref(), Format::Toml).expect("a configuration");
    let mut settings = Settings::new(config);
    settings.variables =
        variables(&[("HOME", "/here"), ("TMPDIR", "/here/tmp"), ("MCP_TEST_VALUE", "ours"), ("NAMED", "n")]);
    let remote = Choice::Remote(RemoteSpec::at("remote", host.url()).expect("a URL"));
    Manager::new(settings, Hosts::by_choice(LocalConfig::default(), remote, None, |_| Ok(Choice::None)))
}

#[test]
fn a_server_sees_its_own_machine_and_nothing_of_ours() {
    bounded(async {
        let host = Elsewhere::start();
        let manager = manager_at(&host, "env_vars = [\"NAMED\", { name = \"ONLY_THERE\", source = \"remote\" }]").await;
        let env = data(&manager, "env", json!({})).await;
        assert_eq!((&env["HOME"], &env["PATH"]), (&json!(Elsewhere::HOME), &json!(Elsewhere::PATH)));
        assert_eq!((&env["TMPDIR"], &env["ONLY_THERE"]), (&json!("/tmp"), &json!("yes")));
        assert_eq!((&env["NAMED"], env.get("MCP_TEST_VALUE")), (&json!("n"), None));
        assert_eq!(env.get("DEEP_SECRET"), None);
        assert_eq!(data(&manager, "cwd", json!({})).await["cwd"], json!(Elsewhere::CWD));
        assert_eq!(manager.tools_of("t").await.expect("listed").len(), 17);
        assert_eq!(manager.resources_of("t").await.expect("listed").len(), 5);
        call(&manager, "crash", json!({})).await.expect_err("it crashed");
        assert_eq!(data(&manager, "echo", json!({"message": "m"})).await["env"], json!(null));
        soon("shutdown", manager.shutdown()).await;
        drop(host);
    });
}

#[test]
fn a_program_is_looked_for_there_and_a_directory_too() {
    bounded(async {
        let host = Elsewhere::start();
        // The directory exists on our machine, but not there.
        let here = tempfile::tempdir().expect("a directory");
        let more = format!("cwd = {:?}", here.path().display().to_string());
        let manager = manager_at(&host, &more).await;
        let error = manager.tools_of("t").await.expect_err("no such directory there").to_string();
        assert!(error.contains(&here.path().display().to_string()), "{error}");
        manager.shutdown().await;
        drop(host);
    });
}
