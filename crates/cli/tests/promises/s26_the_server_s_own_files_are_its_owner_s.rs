//! S26: only the owner can access the server's own files (state directory, token file and table, audit log, TLS files, sockets). Every
//! other principal is refused in every file method, search, watch and copy, in every sandbox, and over HTTP. The files are identified by
//! device and inode, so neither a symlink nor a bind mount (of the state directory, of a directory below it, of one file) nor a hard link
//! helps.

use super::{
    on,
    sandbox_helpers::{confined, path, said_in, sandbox, special, unrestricted},
    token_helpers,
};
use crate::prelude::*;
use testkit::target::Target;

/// A server in its own mount namespace, with every kind of file that it can have, and a directory for other names of them.
struct World {
    server: TestServer,
    base: PathBuf,
    names: PathBuf,
    state: PathBuf,
    /// The server's files outside and inside of the state directory.
    files: Vec<PathBuf>,
    /// The owner has a session with a process, so that the session's directory exists.
    owner: Client,
    session: PathBuf,
    tls: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "this test mounts in a namespace of its own: run it as root");
        let tls = tempfile::tempdir().expect("make a directory");
        let (authority, clients) = (Authority::new(tls.path(), "servers"), Authority::new(tls.path(), "clients"));
        let identity = authority.server("server");
        let server = TestServer::builder()
            .after("exec unshare -m --propagation private \"$0\" \"$@\"")
            .listen("ws://127.0.0.1:0")
            .listen_tls(&identity)
            .listen("unix://{dir}/run/x.sock")
            .path_arg("--client-ca", &clients.ca())
            .args(["--audit", "{dir}/log/audit.log"])
            .after_making("log")
            .start();
        let base = server.dir().canonicalize().expect("the directory is there");
        let (names, state) = (base.join("names"), base.join("state"));
        fs::create_dir(&names).expect("make a directory");
        let mut owner = server.client();
        owner.ok("process/start", sh("p", "exec sleep 1000"));
        let mut sessions = fs::read_dir(state.join("sessions")).expect("list the sessions");
        let session = sessions.next().expect("there is one").expect("an entry").path();
        token_helpers::create(&server, "first", &[]);
        let files = vec![
            state.join("token"),
            state.join("tokens.toml"),
            state.join("lock"),
            session.join("secret"),
            base.join("log/audit.log"),
            identity.key.canonicalize().expect("the key is there"),
            identity.cert.canonicalize().expect("the certificate is there"),
            clients.ca().canonicalize().expect("the authority is there"),
            base.join("run/x.sock"),
            state.join("dial.sock"),
        ];
        Self { server, base, names, state, files, owner, session, tls }
    }

    /// Creates a bind mount in the server's mount namespace.
    fn bind(&self, from: &Path, to: &Path) {
        let mut command = Command::new("nsenter");
        command.arg("-t").arg(self.server.pid().to_string()).args(["-m", "mount", "--bind"]).arg(from).arg(to);
        let mounted = command.output().expect("run nsenter");
        assert!(mounted.status.success(), "{mounted:?}");
    }

    /// Other paths of each file, with their kind. A symlink is a separate object; the others are the file itself.
    fn aliases(&self) -> Vec<(&'static str, PathBuf)> {
        let mut all: Vec<(&'static str, PathBuf)> = self.files.iter().map(|file| ("path", file.clone())).collect();
        let place = |name: &str| {
            let dir = self.names.join(name);
            fs::create_dir(&dir).expect("make a directory");
            dir
        };
        let (whole, sessions, session) = (place("whole"), place("sessions"), place("session"));
        self.bind(&self.state, &whole);
        self.bind(&self.state.join("sessions"), &sessions);
        self.bind(&self.session, &session);
        all.extend(["token", "tokens.toml", "lock"].map(|name| ("bind mount", whole.join(name))));
        all.push(("bind mount of a part", sessions.join(self.session.file_name().expect("a name")).join("secret")));
        all.push(("bind mount of a session", session.join("secret")));
        for (number, file) in self.files.iter().enumerate() {
            let link = self.names.join(format!("link-{number}"));
            symlink(file, &link).expect("link");
            all.push(("symbolic link", link));
            let bound = self.names.join(format!("bound-{number}"));
            fs::write(&bound, "").expect("make a place");
            self.bind(file, &bound);
            all.push(("bind mount of the file", bound));
            let hard = self.names.join(format!("hard-{number}"));
            // Fails across file systems.
            if fs::hard_link(file, &hard).is_ok() {
                all.push(("hard link", hard));
            }
        }
        all
    }

    /// Clients with every combination of file scopes, by name.
    fn clients(&self) -> BTreeMap<&'static str, Client> {
        let base = self.base.display().to_string();
        let files = ["--scope", "fs-read", "--scope", "fs-write"];
        let flags: [(&'static str, Vec<&str>); 4] = [
            ("all", Vec::new()),
            ("files", files.to_vec()),
            ("rooted", [&files[..], &["--root", &base]].concat()),
            ("above", [&files[..], &["--root", "/"]].concat()),
        ];
        flags.map(|(name, flags)| (name, token_helpers::new_client(&self.server, name, &flags))).into_iter().collect()
    }

    /// Contents that must not change: all files except the audit log, which grows.
    fn contents(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let is_still = |file: &&PathBuf| !file.ends_with("audit.log");
        self.files.iter().filter(is_still).map(|file| (file.clone(), fs::read(file).ok())).collect()
    }
}

/// Methods that follow a path to its target.
fn following() -> Vec<(&'static str, Value)> {
    vec![
        ("fs/readFile", json!({})),
        ("fs/readFile", json!({"offset": 0, "len": 1})),
        ("fs/open", json!({"handleId": "h"})),
        ("fs/writeFile", json!({"dataBase64": "eA=="})),
        ("fs/writeFile", json!({"dataBase64": "eA==", "append": true})),
        ("fs/writeFile", json!({"dataBase64": "eA==", "offset": 0})),
        ("fs/create", json!({"handleId": "d"})),
        ("fs/create", json!({"handleId": "k", "keep": "word"})),
        ("fs/getMetadata", json!({})),
        ("fs/setMetadata", json!({"mode": 0o777})),
        ("fs/canonicalize", json!({})),
        ("fs/search", json!({"pattern": "."})),
        ("fs/watch", json!({"handleId": "w"})),
    ]
}

/// Methods that act on the name itself.
fn naming() -> Vec<(&'static str, Value)> {
    vec![
        ("fs/remove", json!({})),
        ("fs/createSymlink", json!({"target": "/dev/null", "replace": true})),
        ("fs/getMetadata", json!({"ofLink": true})),
    ]
}

#[track_caller]
fn forbidden(client: &mut Client, (who, what): (&str, &str), method: &str, params: &Value) {
    match client.call(method, params.clone()) {
        Ok(answer) => panic!("{who}, {what}: {method} {params}: {answer}"),
        Err(error) => assert_eq!(error.kind(), "forbidden", "{who}, {what}: {method} {params}: {}", error.message),
    }
}

#[test]
fn no_method_reaches_a_file_of_the_server_by_any_path() {
    let mut world = World::new();
    let mut clients = world.clients();
    let before = world.contents();
    // The owner can read its own file, which shows that the paths are right.
    world.owner.ok("fs/readFile", json!({"path": world.state.join("token")}));
    let aliases = world.aliases();
    let kinds =
        ["bind mount", "bind mount of a part", "bind mount of a session", "hard link", "bind mount of the file"];
    for what in kinds {
        assert!(aliases.iter().any(|(alias, _)| *alias == what), "there is no {what}");
    }
    for (who, client) in &mut clients {
        // The TLS files are elsewhere. For a client with a root they are outside of it, which is refused with the same error.
        for (what, file) in &aliases {
            for (method, more) in following() {
                forbidden(client, (who, what), method, &on(file, &more));
            }
            if *what != "symbolic link" {
                for (method, more) in naming() {
                    forbidden(client, (who, what), method, &on(file, &more));
                }
                let copy =
                    |from: &Path, to: &Path| json!({"sourcePath": from, "destinationPath": to, "recursive": true});
                let (stolen, mine) = (world.names.join("stolen"), world.names.join("mine"));
                forbidden(client, (who, what), "fs/copy", &copy(file, &stolen));
                fs::write(&mine, "mine").expect("write");
                forbidden(client, (who, what), "fs/copy", &copy(&mine, file));
                assert!(!stolen.exists(), "{who}, {what}");
            }
        }
    }
    assert_eq!(world.contents(), before);
}

#[test]
fn no_method_reads_or_creates_anything_in_a_directory_of_the_server() {
    let mut world = World::new();
    let mut clients = world.clients();
    let before = world.contents();
    world.aliases();
    let link = world.names.join("link");
    symlink(&world.state, &link).expect("link");
    let options = json!({"maxDepth": 9, "maxDirectories": 99, "maxEntries": 9999, "followDirectorySymlinks": true});
    let mut dirs = vec![world.state.clone(), world.state.join("sessions"), world.session.clone(), link];
    dirs.extend(["whole", "sessions", "session"].map(|name| world.names.join(name)));
    for (who, client) in &mut clients {
        for dir in &dirs {
            let what = dir.display().to_string();
            for (method, more) in [
                ("fs/readDirectory", json!({})),
                ("fs/readDirectory", json!({"details": true})),
                ("fs/walk", json!({"options": options})),
                ("fs/glob", json!({"pattern": "**"})),
                ("fs/search", json!({"pattern": "."})),
                ("fs/watch", json!({"handleId": "w"})),
                ("fs/setMetadata", json!({"mode": 0o777})),
                ("fs/getMetadata", json!({})),
            ] {
                forbidden(client, (who, &what), method, &on(dir, &more));
            }
            let new = dir.join("new");
            for (method, more) in [
                ("fs/writeFile", json!({"dataBase64": "eA=="})),
                ("fs/create", json!({"handleId": "d"})),
                ("fs/createDirectory", json!({})),
                ("fs/createDirectory", json!({"recursive": false})),
                ("fs/createSymlink", json!({"target": "x"})),
                ("fs/remove", json!({})),
            ] {
                forbidden(client, (who, &what), method, &on(&new, &more));
            }
            if !dir.is_symlink() {
                let stolen = world.names.join("stolen");
                let params = json!({"sourcePath": dir, "destinationPath": stolen, "recursive": true});
                forbidden(client, (who, &what), "fs/copy", &params);
                forbidden(client, (who, &what), "fs/remove", &json!({"path": dir, "recursive": true}));
            }
        }
        // From a parent directory: the server's files are skipped, and a tree that contains them cannot be removed.
        let token = fs::read_to_string(world.state.join("token")).expect("the token");
        let search = json!({"path": world.base, "pattern": token.trim(), "literal": true, "ignoreRules": false});
        let found = client.ok("fs/search", search);
        assert_eq!(found["matches"], json!([]), "{who}: {found}");
        let walked = client.ok("fs/walk", json!({"path": world.base, "options": options}));
        assert!(!walked["entries"].to_string().contains("tokens.toml"), "{who}: {walked}");
        let globbed = client.ok("fs/glob", json!({"path": world.base, "pattern": "**", "hidden": true}));
        assert!(!globbed["entries"].to_string().contains("tokens.toml"), "{who}: {globbed}");
        let stolen = world.tls.path().join(format!("stolen-{who}"));
        client.fails("fs/copy", json!({"sourcePath": world.base, "destinationPath": stolen, "recursive": true}));
        forbidden(client, (who, "above"), "fs/remove", &json!({"path": world.base, "recursive": true}));
        forbidden(client, (who, "above"), "fs/remove", &json!({"path": world.base.join("log"), "recursive": true}));
        assert!(world.names.exists(), "nothing beside it was removed");
        client.ok("fs/watch", json!({"handleId": "around", "path": world.base}));
        fs::write(world.names.join(format!("seen-{who}")), "x").expect("write");
        fs::write(world.state.join("noise"), "x").expect("write");
        fs::remove_file(world.state.join("noise")).expect("remove");
        let changes = client.ok("fs/watchNext", json!({"handleId": "around", "waitMs": 10_000, "settleMs": 200}));
        assert!(!changes.to_string().contains("noise"), "{who}: {changes}");
        client.ok("fs/close", json!({"handleId": "around"}));
    }
    assert_eq!(world.contents(), before);
    world.owner.ok("fs/readFile", json!({"path": world.state.join("token")}));
}

#[test]
fn a_name_of_a_file_of_the_server_can_be_neither_taken_nor_redirected() {
    let server = TestServer::builder()
        .after("mkdir -p $TMPDIR/conf/real; ln -s real $TMPDIR/conf/link")
        .listen("ws://127.0.0.1:0")
        .listen("unix://{dir}/run/x.sock")
        .args(["--tokens", "{dir}/conf/link/table.toml"])
        .start();
    let base = server.dir().canonicalize().expect("the directory is there");
    let (conf, table, socket) = (base.join("conf"), base.join("conf/real/table.toml"), base.join("run/x.sock"));
    let token = {
        let mut command = Command::new(testkit::binary());
        command.args(["token", "create", "files", "--scope", "fs-read", "--scope", "fs-write", "--tokens"]).arg(&table);
        let made = command.output().expect("run exec-server token");
        assert!(made.status.success(), "{made:?}");
        text(&made.stdout).trim_end().to_owned()
    };
    let before = fs::read(&table).expect("the table is there");
    let mut client = token_helpers::client(&server, &token);
    // The name is free now, and a file created there would be taken for the socket.
    fs::remove_file(&socket).expect("take the socket's name away");
    let entry = encode_base64(b"[[tokens]]\nname = \"me\"\n");
    let new = |path: &Path| PathBuf::from(format!("{}.new", path.display()));
    let linked = conf.join("link/table.toml");
    for path in [table.clone(), linked.clone(), new(&table), new(&linked), socket.clone()] {
        let params = json!({"path": path, "dataBase64": entry});
        forbidden(&mut client, ("files", "a name"), "fs/writeFile", &params);
        forbidden(&mut client, ("files", "a name"), "fs/createSymlink", &json!({"path": path, "target": "/tmp/x"}));
        if !path.exists() {
            forbidden(&mut client, ("files", "a name"), "fs/createDirectory", &json!({"path": path}));
        }
    }
    for path in [conf.join("link"), conf.join("real"), conf.clone(), base.join("run")] {
        forbidden(&mut client, ("files", "on the way"), "fs/remove", &json!({"path": path, "recursive": true}));
        let params = json!({"path": path, "target": "/tmp/x", "replace": true});
        forbidden(&mut client, ("files", "on the way"), "fs/createSymlink", &params);
    }
    assert!(conf.join("link").is_symlink() && base.join("run").is_dir() && !socket.exists());
    assert_eq!(fs::read(&table).expect("the table is there"), before);
    client.ok("fs/writeFile", json!({"path": conf.join("real/table"), "dataBase64": entry}));
}

#[test]
fn no_sandbox_shows_a_file_of_the_server_by_any_path() {
    let world = World::new();
    let whole = world.names.join("whole");
    let part = world.names.join("part");
    let bound = world.names.join("bound");
    for dir in [&whole, &part] {
        fs::create_dir(dir).expect("make a directory");
    }
    fs::write(&bound, "").expect("make a place");
    world.bind(&world.state, &whole);
    world.bind(&world.session, &part);
    world.bind(&world.state.join("token"), &bound);
    let policies = [
        sandbox(vec![special("root", "read")], "restricted"),
        sandbox(vec![special("root", "write")], "restricted"),
        sandbox(vec![special("root", "read"), path(&world.names, "write")], "restricted"),
        sandbox(vec![special("minimal", "read"), path(&world.names, "write"), path(&whole, "read")], "restricted"),
        unrestricted(),
    ];
    let mut client = world.server.client();
    let mut other = token_helpers::new_client(&world.server, "other", &[]);
    let files = [world.state.join("token"), whole.join("token"), part.join("secret"), bound.clone()];
    let names = files.each_ref().map(|file| file.display().to_string()).join(" ");
    let script = format!("cat {names} 2>/dev/null; (echo x > {}/new) 2>/dev/null; echo done", whole.display());
    for (number, policy) in policies.iter().enumerate() {
        for (who, client) in [("owner", &mut client), ("other", &mut other)] {
            let id = format!("{who}-{number}");
            assert_eq!(said_in(client, &id, &script, Some(policy)), "done", "{who}: {policy}");
            for file in &files {
                let params = json!({"path": file, "sandbox": policy});
                client.call("fs/readFile", params).expect_err(&format!("{who} {file:?}: {policy}"));
            }
        }
    }
    assert!(!world.state.join("new").exists());
    // A hard link could be anywhere, so no process can be sandboxed any longer. File methods still refuse the link.
    let hard = world.names.join("hard");
    fs::hard_link(world.state.join("token"), &hard).expect("link");
    let params = confined(start_params("hard", &["cat", &hard.display().to_string()]), &policies[0]);
    let error = client.fails("process/start", params.clone());
    assert_eq!(error.kind(), "notEnforceable");
    assert!(error.message.contains("hard link"), "{}", error.message);
    client.fails("fs/readFile", json!({"path": hard, "sandbox": policies[0]}));
    fs::remove_file(&hard).expect("remove it");
    client.run_params(params);
    // Without a sandbox a process of the server's own user is inside the trust boundary.
    assert_eq!(client.script("free", &format!("cat {}", whole.join("token").display())), world.server.token());
}

#[test]
fn only_the_owner_may_request_the_server_itself_over_http() {
    let server = TestServer::builder().env("NO_PROXY", "*").start();
    let port = server.address().rsplit(':').next().expect("a port").to_owned();
    let here = format!("http://127.0.0.1:{port}/healthz");
    let leads = here.clone();
    let redirecting =
        Target::start(move |_, stream| target::respond(stream, "302 Found", &[("location", &leads)], b""));
    let mut other = token_helpers::new_client(&server, "web", &["--scope", "http", "--scope", "exec"]);
    let hosts =
        ["127.0.0.1", "localhost", "127.1", "2130706433", "0.0.0.0", "127.0.0.2", "[::1]", "[::ffff:127.0.0.1]"];
    let mut urls = hosts.map(|host| format!("http://{host}:{port}/healthz")).to_vec();
    urls.push(redirecting.url("/"));
    for (number, url) in urls.iter().enumerate() {
        let params = json!({"requestId": format!("r{number}"), "method": "GET", "url": url});
        let error = other.call("http/request", params).expect_err(url);
        assert_eq!(error.kind(), "forbidden", "{url}: {}", error.message);
    }
    let elsewhere = Target::saying("hello");
    let params = json!({"requestId": "e", "method": "GET", "url": elsewhere.url("/")});
    assert_eq!(other.ok("http/request", params)["status"], 200, "other ports are as before");
    let mut owner = server.client();
    let params = json!({"requestId": "o", "method": "GET", "url": here});
    assert_eq!(owner.ok("http/request", params)["status"], 200, "the owner may");
}
