//! S16 in a sandbox: while directories and files are exchanged with symlinks that lead out, no request reads or changes anything outside,
//! whichever user runs the server. The same requests without the sandbox do, which proves that the race is real. `cargo xtask faults --only
//! F27` runs it longer.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::{
    prelude::*,
    promises::sandbox_helpers::{Ground, USERS, path, server_of, special},
};

/// Rounds of requests in each sandbox.
const ROUNDS: usize = 150;

/// Sends each request once; returns whether data from outside was read.
fn ask(client: &mut Client, ground: &Ground, sandbox: Option<&Value>) -> bool {
    let at = |name: &str| ground.text(&format!("work/{name}"));
    let evil = STANDARD.encode("evil");
    let requests = [
        ("fs/readFile", json!({"path": at("dir/file")})),
        ("fs/readFile", json!({"path": at("name")})),
        ("fs/writeFile", json!({"path": at("dir/new"), "dataBase64": evil})),
        ("fs/createDirectory", json!({"path": at("dir/made"), "recursive": true})),
        ("fs/readDirectory", json!({"path": at("dir")})),
        ("fs/copy", json!({"sourcePath": at("dir/file"), "destinationPath": at("copy"), "recursive": false})),
        ("fs/readFile", json!({"path": at("copy")})),
        ("fs/copy", json!({"sourcePath": at("inner"), "destinationPath": at("dir/copied"), "recursive": false})),
    ];
    let mut escaped = false;
    for (method, params) in requests {
        let Ok(result) = client.call(method, confined(params, sandbox)) else { continue };
        let data = result["dataBase64"].as_str().map(|data| STANDARD.decode(data).expect("base64"));
        escaped |= data.is_some_and(|data| data == b"outer");
    }
    escaped
}

#[test]
fn no_request_leaves_its_sandbox_while_names_are_exchanged() {
    for user in USERS {
        let (server, ground, is_over) = (server_of(user), Ground::new(), AtomicBool::new(false));
        fs::create_dir(ground.at("work/dir")).expect("a directory");
        fs::write(ground.at("work/dir/file"), "inner").expect("a file");
        fs::write(ground.at("work/name"), "inner").expect("a file");
        ground.open_to_all(&ground.at(""));
        symlink(ground.at("outside"), ground.at("work/dir.link")).expect("a link");
        symlink(ground.at("outside/file"), ground.at("work/name.link")).expect("a link");
        let (work, outside) = (ground.at("work"), ground.at("outside"));
        let policies = [
            sandbox(vec![path(&work, "write")], "restricted"),
            sandbox(vec![special("root", "read"), path(&work, "write"), path(&outside, "deny")], "restricted"),
        ];
        let (mut client, _) = server.modern_client();
        thread::scope(|scope| {
            let racer = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for name in ["dir", "name"] {
                        let (one, other) = (work.join(name), work.join(format!("{name}.link")));
                        renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("exchange them");
                    }
                }
            });
            for policy in &policies {
                for round in 0..ROUNDS {
                    assert!(!ask(&mut client, &ground, Some(policy)), "{user}: round {round} read what is outside");
                }
            }
            let names: Vec<_> =
                fs::read_dir(&outside).expect("list it").map(|entry| entry.expect("it").file_name()).collect();
            assert_eq!(names, ["file"], "{user}");
            assert_eq!(fs::read_to_string(outside.join("file")).expect("it is there"), "outer");
            let free = (0..ROUNDS * 20).any(|_| ask(&mut client, &ground, None));
            is_over.store(true, Ordering::Relaxed);
            racer.join().expect("the racer ends");
            assert!(free, "{user}: without the sandbox it is read");
        });
    }
}
