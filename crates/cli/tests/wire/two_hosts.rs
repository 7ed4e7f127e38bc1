//! Client and server as two hosts: the server has its own mounts, pids, HOME and working directory, and shares only the loopback network
//! with the client. Nothing of the client's side may be visible to it.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::json;

use testkit::{Client, binary, start_params, wait_for, with};

/// A server behind `unshare`. It is pid 1 of its pid namespace, so everything it started ends with it.
struct OtherHost {
    child: Child,
    url: String,
}

impl OtherHost {
    fn start(client_side: &str) -> Self {
        // An empty tmpfs hides the client's temporary directory. The program stays reachable through an open fd.
        let script = format!(
            "exec 9<{binary} && mount -t tmpfs none /tmp && mkdir /tmp/there && cd /tmp/there && \
             exec /proc/self/fd/9 serve --listen ws://127.0.0.1:0 --state-dir /tmp/state --kill-on-exit",
            binary = binary()
        );
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let mut child = command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", "/tmp/there")
            .env("TMPDIR", "/tmp")
            .env("ONLY_THERE", "yes")
            .current_dir(client_side)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`unshare` of util-linux starts a namespace");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("stdout is a pipe"))
            .read_line(&mut url)
            .expect("the server prints its URL");
        assert!(url.starts_with("ws://"), "the server did not start in its namespace: {url:?}");
        Self { child, url: url.trim_end().to_owned() }
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        // `--kill-child` passes the kill on to pid 1 of the namespace, and the kernel kills everything in it.
        self.child.kill().ok();
        wait_for("end of the other host", || matches!(self.child.try_wait(), Ok(Some(_))));
    }
}

#[test]
fn a_process_on_the_other_host_sees_that_host_and_nothing_of_the_client() {
    let here = tempfile::tempdir().expect("a directory of the client");
    std::fs::write(here.path().join("secret"), "of the client").expect("write the client's file");
    let other = OtherHost::start(&here.path().display().to_string());
    let mut client = Client::connect(&other.url).expect("connect over the shared network");
    client.initialize();

    let info = client.call("environment/info", json!({})).expect("environment/info");
    assert_eq!(info["cwd"], "file:///tmp/there");

    let script = format!(
        "pwd; echo $HOME; echo $ONLY_THERE; ls {} 2>&1 | wc -l; test -e {0}/secret && echo seen",
        here.path().display()
    );
    let mut params = start_params("there", &["sh", "-c", &script]);
    params["cwd"] = json!("/tmp/there");
    params["env"] = json!({});
    params["envPolicy"] =
        json!({"inherit": "all", "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []});
    client.call("process/start", params).expect("start");
    let ended = client.collect("there");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "/tmp/there\n/tmp/there\nyes\n1\n");
    assert_eq!(ended.code(), 1);

    // A directory of the client does not exist there: the start fails and never uses another directory.
    let params = with(start_params("lost", &["pwd"]), json!({"cwd": here.path()}));
    let error = client.call("process/start", params).expect_err("the client's directory does not exist there");
    assert_eq!(error.kind(), "cwdNotFound");
}
