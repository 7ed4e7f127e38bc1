//! S18: paths that a policy protects stay protected in later requests with the same policy. A sandboxed process cannot change that. Path
//! components that lead to them cannot be renamed, symlinks that could be changed decide nothing, and a denied path that does not exist
//! cannot be created.

use crate::{
    prelude::*,
    promises::sandbox_helpers::{USERS, path, pattern, said_in, special, stage, workspace_with},
};
use testkit::kind_or_ok as kind;

/// Runs two scripts one after the other in the same sandbox; returns the output of each.
fn in_turn(client: &mut Client, policy: &Value, scripts: [String; 2]) -> [String; 2] {
    let mut turn = 0;
    scripts.map(|script| {
        turn += 1;
        said_in(client, &format!("{turn}-{}", client_word()), &format!("exec 2>&1; {script}"), Some(policy))
    })
}

/// A unique number for the id of a start.
fn client_word() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    COUNTER.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn names_on_the_way_to_a_protected_path_cannot_be_moved() {
    for user in USERS {
        let (_server, mut client, ground) = stage(user);
        fs::create_dir_all(ground.at("work/a/b")).expect("make a directory");
        fs::write(ground.at("work/a/b/secret"), "hidden word").expect("write a file");
        ground.open_to_all(&ground.at("work"));
        let work = ground.text("work");
        let policy = workspace_with(&ground.at("work"), [path(ground.at("work/a/b/secret"), "deny")]);
        let scripts =
            [format!("mv {work}/a {work}/z; mv {work}/a/b {work}/y"), format!("cat {work}/*/secret {work}/*/b/secret")];
        let [_, found] = in_turn(&mut client, &policy, scripts);
        assert!(!found.contains("hidden word"), "{user}: {found}");
        // The rest of the directory can be used as before.
        let script = format!("echo x > {work}/a/n && mv {work}/a/n {work}/a/b/m && cat {work}/a/b/m");
        let used = said_in(&mut client, "use", &script, Some(&policy));
        assert_eq!(used, "x", "{user}");
        // A repository in a root that is inside another root.
        let nested = workspace_with(&ground.at(""), [path(&work, "write")]);
        let hooks = format!("{work}2/.git/hooks");
        let scripts = [
            format!("mv {work} {work}2 && mkdir -p {hooks} && touch {hooks}/evil; mv {work}2 {work}"),
            format!("ls {work}/.git/hooks"),
        ];
        let [_, hooks] = in_turn(&mut client, &nested, scripts);
        assert_eq!(hooks, "", "{user}");
    }
}

#[test]
fn the_server_s_own_directory_stays_out_of_reach_below_a_writable_one() {
    let (server, mut client, _ground) = stage("root");
    let state = server.state_dir().canonicalize().expect("its real path");
    let home = state.parent().expect("it has a parent").to_owned();
    let above = home.parent().expect("it is no root").to_owned();
    let moved = PathBuf::from(format!("{}-moved", home.display()));
    let policies = [sandbox(vec![special("root", "write")], "restricted"), workspace_with(&above, [])];
    for policy in policies {
        let name = state.file_name().expect("a name").display();
        let scripts = [
            format!("mv {} {}", home.display(), moved.display()),
            format!("cat {}/{name}/token {}/{name}/token", home.display(), moved.display()),
        ];
        let token = fs::read_to_string(state.join("token")).expect("the token");
        let [_, found] = in_turn(&mut client, &policy, scripts);
        assert!(!found.contains(token.trim()), "{found}");
        assert!(home.exists() && !moved.exists(), "it was moved");
    }
}

#[test]
fn a_link_that_could_be_changed_grants_nothing() {
    for user in USERS {
        let (_server, mut client, ground) = stage(user);
        let (work, outside) = (ground.text("work"), ground.text("outside"));
        let policy = workspace_with(work.as_ref(), [path(ground.at("work/sub"), "write")]);
        fs::remove_dir(ground.at("work/sub")).expect("remove a directory");
        symlink(&outside, ground.at("work/sub")).expect("make a link");
        let start = confined(sh("after", &format!("touch {outside}/evil")), &policy);
        assert_eq!(kind(client.call("process/start", start)), "notEnforceable", "{user}");
        let write = json!({"path": ground.at("outside/evil"), "dataBase64": ""});
        assert_eq!(kind(client.call("fs/writeFile", confined(write, &policy))), "notEnforceable", "{user}");
        assert!(!ground.at("outside/evil").exists());
    }
}

#[test]
fn file_methods_remove_and_replace_nothing_that_is_kept() {
    for user in USERS {
        let (_server, mut client, ground) = stage(user);
        for name in ["work/kept/ro", "work/kept/secret", "work/kept/free"] {
            fs::create_dir_all(ground.at("work/kept/denied")).expect("make a directory");
            fs::write(ground.at(name), "as it was").expect("write a file");
        }
        ground.open_to_all(&ground.at("work"));
        let policy = sandbox(
            vec![
                path(ground.at("work"), "write"),
                path(ground.at("work/kept/ro"), "read"),
                path(ground.at("work/kept/secret"), "deny"),
                path(ground.at("work/kept/denied"), "deny"),
            ],
            "enabled",
        );
        for name in ["work/kept/ro", "work/kept/secret", "work/kept/denied", "work/kept"] {
            let remove = json!({"path": ground.at(name), "recursive": true, "force": true});
            assert_eq!(kind(client.call("fs/remove", confined(remove, &policy))), "sandboxDenied", "{user} {name}");
        }
        for name in ["work/kept/ro", "work/kept/secret"] {
            let link = json!({"path": ground.at(name), "target": "/etc/passwd", "replace": true});
            let answer = client.call("fs/createSymlink", confined(link, &policy));
            assert_eq!(kind(answer), "sandboxDenied", "{user} {name}");
            assert_eq!(fs::read_to_string(ground.at(name)).expect("it is there"), "as it was", "{user} {name}");
        }
        assert!(ground.at("work/kept/denied").is_dir());
        let remove = json!({"path": ground.at("work/sub"), "recursive": true});
        client.ok("fs/remove", confined(remove, &policy));
    }
}

#[test]
fn a_protected_file_that_was_removed_from_outside_and_created_again_is_protected_again() {
    let (_server, mut client, ground) = stage("root");
    let secret = ground.at("work/secret");
    let policy = workspace_with(&ground.at("work"), [path(&secret, "deny")]);
    for round in 0..8 {
        // The inode number of the old file may be reused for the new one.
        fs::remove_file(&secret).ok();
        fs::write(&secret, "hidden word").expect("write a file");
        let said = said_in(&mut client, &format!("p{round}"), &format!("cat {} 2>&1", secret.display()), Some(&policy));
        assert!(!said.contains("hidden word"), "{said}");
        let read = confined(json!({"path": secret}), &policy);
        assert_eq!(kind(client.call("fs/readFile", read)), "sandboxDenied", "{round}");
    }
}

#[test]
fn a_denied_path_that_does_not_exist_cannot_be_created() {
    for user in USERS {
        let (_server, mut client, ground) = stage(user);
        let work = ground.text("work");
        let mut skipped = path(ground.at("work/skipped"), "deny");
        skipped["missing_path_behavior"] = json!("skip");
        let more = [path(ground.at("work/.tool/config"), "read"), path(ground.at("work/new.env"), "deny"), skipped];
        let policy = workspace_with(work.as_ref(), more);
        let script = format!(
            "cd {work}; mkdir -p .tool && echo x > .tool/config && echo tool; echo x > new.env && echo env; \
             rmdir .tool new.env 2>/dev/null && echo removed; echo x > skipped && echo skipped"
        );
        for id in ["first", "again"] {
            let said = said_in(&mut client, id, &format!("({script}) 2>/dev/null"), Some(&policy));
            assert_eq!(said, "skipped", "{user}");
            fs::remove_file(ground.at("work/skipped")).expect("it was made");
        }
        for name in ["work/.tool", "work/new.env"] {
            let params = confined(json!({"path": ground.at(name), "recursive": false}), &policy);
            assert_eq!(kind(client.call("fs/createDirectory", params)), "sandboxDenied", "{user} {name}");
        }
        let write = json!({"path": ground.at("work/new.env"), "dataBase64": ""});
        assert_eq!(kind(client.call("fs/writeFile", confined(write, &policy))), "sandboxDenied", "{user}");
    }
}

#[test]
fn a_closed_directory_that_could_be_opened_is_not_ignored() {
    let (_server, mut client, ground) = stage("nobody");
    fs::create_dir_all(ground.at("work/locked")).expect("make a directory");
    fs::write(ground.at("work/locked/x.env"), "hidden word").expect("write a file");
    ground.open_to_all(&ground.at("work"));
    set_mode(ground.at("work/locked"), 0o000);
    for entry in
        [path(ground.at("work/locked/x.env"), "deny"), pattern(&format!("{}/**/*.env", ground.text("work")), "deny")]
    {
        let policy = workspace_with(&ground.at("work"), [entry]);
        let start = confined(sh("p", "true"), &policy);
        assert_eq!(kind(client.call("process/start", start)), "notEnforceable");
    }
}

#[test]
fn a_pattern_reaches_as_deep_as_there_are_files() {
    let (_server, mut client, ground) = stage("root");
    let deep = ground.at("work/1/2/3/4/5/6/7/8/9/10");
    fs::create_dir_all(&deep).expect("make directories");
    fs::write(deep.join("x.env"), "hidden word").expect("write a file");
    symlink("1/2", ground.at("work/short")).expect("make a link");
    let hidden = pattern(&format!("{}/**/*.env", ground.text("work")), "deny");
    let policy = workspace_with(&ground.at("work"), [hidden]);
    let script = format!("mv {0}/1/2/3 {0}/x 2>&1; find {0}/ -name x.env -exec cat {{}} + 2>&1", ground.text("work"));
    let said = said_in(&mut client, "p", &script, Some(&policy));
    assert!(!said.contains("hidden word"), "{said}");
}
