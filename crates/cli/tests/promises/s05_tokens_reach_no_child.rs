//! S5: the owner's token comes from a file that others cannot read, an fd, the credentials of a service or the environment, and never from
//! an argument. In every case, no command line and no environment of server, spawner, holders and children contains it.

use crate::prelude::*;

const SECRET: &str = "Tok-3f1d2c7b9a8e4d6f-of-this-test";

/// Starts children that inherit everything they can, and inspects every process of the server.
fn assert_hidden(client: &mut Client, mark: &str, children: usize) {
    for n in 0..children {
        let mut params = start_params(&format!("p{n}"), &["sh", "-c", "env; sleep 1000"]);
        params["envPolicy"] = inherit_all();
        // A request that sets the variable itself does not get it into the child either.
        params["env"]["Exec_Server_Token"] = json!("another");
        client.ok("process/start", params);
    }
    for n in 0..children {
        let read = client.ok("process/read", json!({"processId": format!("p{n}"), "afterSeq": 0, "waitMs": 5000}));
        let output = decode_base64(read["chunks"][0]["chunk"].as_str().expect("a chunk"));
        let text = text(&output).to_lowercase();
        assert!(text.contains("path=") && !text.contains(&SECRET.to_lowercase()), "{text}");
        assert!(!text.contains("exec_server_token") && !text.contains("credentials_directory"), "{text}");
    }
    let mut all = marked(mark);
    all.extend(descendants(&all));
    assert!(all.len() > children + 2, "server, spawner, a holder and the children: {all:?}");
    for pid in &all {
        for file in ["environ", "cmdline"] {
            let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let text = text(&bytes).to_lowercase();
            assert!(!text.contains(&SECRET.to_lowercase()), "{file} of {pid}");
        }
    }
    let server = fs::read(format!("/proc/{}/cmdline", all.first().expect("there are some"))).expect("read it");
    assert!(!server.is_empty(), "what is looked at can be read");
}

fn private_file(path: &Path, mode: u32) {
    fs::write(path, format!("{SECRET}\n")).expect("write the token");
    set_mode(path, mode);
}

#[test]
fn a_token_from_the_environment_reaches_none_of_a_hundred_children() {
    let mut builder = TestServer::builder();
    for name in ["EXEC_SERVER_TOKEN", "exec_server_token", "Exec_Server_Token"] {
        builder = builder.env(name, SECRET);
    }
    let server = builder.start();
    assert_eq!(server.token(), SECRET);
    assert!(!server.state_dir().join("token").exists());
    assert_hidden(&mut server.client(), server.mark(), 100);
}

#[test]
fn a_file_and_a_credential_must_be_closed_to_others_and_reach_no_child() {
    let dir = tempfile::tempdir().expect("make a directory");
    let file = dir.path().join("exec-server-token");
    let credentials = dir.path().display().to_string();
    for by_flag in [true, false] {
        let builder = || {
            let builder = TestServer::builder();
            if by_flag {
                builder.path_arg("--token-file", &file)
            } else {
                builder.env("CREDENTIALS_DIRECTORY", &credentials)
            }
        };
        for mode in [0o644, 0o640, 0o602] {
            private_file(&file, mode);
            let (code, said) = builder().refusal_text(dir.path());
            assert!(code == Some(255) && said.contains(&format!("{mode:04o}")), "{said}");
            assert!(!said.contains(SECRET), "{said}");
        }
        private_file(&file, 0o400);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65534), None).expect("give it away");
            let (_, said) = builder().refusal_text(dir.path());
            assert!(said.contains("uid 65534"), "{said}");
            std::os::unix::fs::chown(&file, Some(0), None).expect("take it back");
        }
        let server = builder().start();
        assert_eq!(server.token(), SECRET);
        assert_hidden(&mut server.client(), server.mark(), 5);
        fs::remove_file(&file).expect("remove the token");
    }
}

/// Sets a POSIX ACL that lets the owner and these users read; the group gets `group`.
fn list_readers(path: &Path, users: &[u32], group: u8) {
    let entry = |kind: u8, rights: u8, id: u32| {
        let [a, b, c, d] = id.to_le_bytes();
        [kind, 0, rights, 0, a, b, c, d]
    };
    let mut entries = vec![entry(0x01, 4, u32::MAX)];
    entries.extend(users.iter().map(|user| entry(0x02, 4, *user)));
    entries.extend([entry(0x04, group, u32::MAX), entry(0x10, 4, u32::MAX), entry(0x20, 0, u32::MAX)]);
    let list = [&[2, 0, 0, 0][..], &entries.concat()].concat();
    rustix::fs::setxattr(path, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty())
        .expect("this file system has access lists");
}

#[test]
fn a_credential_is_accepted_as_a_service_manager_leaves_it() {
    let dir = tempfile::tempdir().expect("make a directory");
    let credentials = dir.path().join("credentials");
    let file = credentials.join("exec-server-token");
    fs::create_dir(&credentials).expect("make the directory");
    private_file(&file, 0o400);
    set_mode(&credentials, 0o500);
    let place = credentials.display().to_string();
    // A service of root.
    let server = TestServer::builder().env("CREDENTIALS_DIRECTORY", &place).start();
    assert_eq!(server.token(), SECRET);
    drop(server);
    assert!(rustix::process::geteuid().is_root(), "the rest needs root, which hands files to another user");
    // A service of another user: the files belong to root, and an ACL lets that user read. The group bits of the mode then show the ACL
    // mask.
    for path in [dir.path(), &credentials] {
        set_mode(path, 0o755);
    }
    let builder = || TestServer::builder().env("CREDENTIALS_DIRECTORY", &place).run_by_nobody();
    for (users, group, is_taken) in [(&[65534][..], 0, true), (&[65534, 1], 0, false), (&[65534], 4, false)] {
        list_readers(&file, users, group);
        assert_eq!(mode_of(&file) & 0o777, 0o440);
        if is_taken {
            assert_eq!(builder().start().token(), SECRET);
        } else {
            let home = tempfile::tempdir().expect("make a directory");
            let (code, said) = builder().refusal_text(home.path());
            assert!(code == Some(255) && said.contains("0440"), "{users:?} {group}: {said}");
        }
    }
}

#[test]
fn a_token_from_a_descriptor_is_read_to_its_end() {
    let dir = tempfile::tempdir().expect("make a directory");
    let file = dir.path().join("token");
    private_file(&file, 0o600);
    let mark = format!("fd-{}.test", std::process::id());
    let builder = TestServer::builder().args(["--token-fd", "0"]);
    let mut command = builder.command(dir.path(), &mark);
    command.stdin(File::open(&file).expect("open the token")).stderr(Stdio::null());
    let mut child = command.spawn().expect("start exec-server");
    fs::remove_file(&file).expect("remove the token");
    let mut url = String::new();
    BufReader::new(child.stdout.take().expect("stdout is a pipe")).read_line(&mut url).expect("read the URL");
    assert!(url.ends_with(&format!("?token={SECRET}\n")), "{url}");
    let mut client = Client::connect(url.trim_end()).expect("connect");
    client.initialize();
    assert_hidden(&mut client, &mark, 5);
    let mut all: BTreeSet<u32> = marked(&mark);
    all.extend(descendants(&all));
    send_signal(child.id(), rustix::process::Signal::TERM);
    wait_for("the end of the server", || child.try_wait().expect("wait for it").is_some());
    wait_gone("what the server started", &all);
}

#[test]
fn no_argument_takes_a_token() {
    let dir = tempfile::tempdir().expect("make a directory");
    for flag in ["--token", "--auth-token", "--bearer"] {
        let refused = TestServer::builder().args([flag, SECRET]).refusal(dir.path(), "x.test");
        assert_eq!(refused.status.code(), Some(2), "{flag}");
    }
}
