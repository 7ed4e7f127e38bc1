//! Client and server as two hosts: the server has its own mounts, pids, HOME and working directory, and shares only the loopback network
//! with the client. Nothing of the client's side may be visible to it.

use crate::prelude::*;

#[test]
fn a_process_on_the_other_host_sees_that_host_and_nothing_of_the_client() {
    let here = tempfile::tempdir().expect("a directory of the client");
    fs::write(here.path().join("secret"), "of the client").expect("write the client's file");
    let other = Elsewhere::start_from(here.path());
    let mut client = Client::connect(other.url()).expect("connect over the shared network");
    client.initialize();

    assert_eq!(client.ok("environment/info", json!({}))["cwd"], "file:///tmp/there");

    let dir = here.path().display();
    let script = format!("pwd; echo $HOME; echo $ONLY_THERE; ls {dir} 2>&1 | wc -l; test -e {dir}/secret && echo seen");
    let policy = json!({"inherit": "all", "ignoreDefaultExcludes": false, "exclude": [], "set": {}, "includeOnly": []});
    let params = json!({"cwd": "/tmp/there", "env": {}, "envPolicy": policy});
    let ended = client.run_params(with(start_params("there", &["sh", "-c", &script]), params));
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert_eq!((said, ended.code()), (format!("/tmp/there\n{}\nyes\n1\n", Elsewhere::HOME), 1));

    // A directory of the client does not exist there: the start fails and never uses another directory.
    let params = with(start_params("lost", &["pwd"]), json!({"cwd": here.path()}));
    assert_eq!(client.fails("process/start", params).kind(), "cwdNotFound");
}
