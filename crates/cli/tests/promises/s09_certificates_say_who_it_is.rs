//! S9: with `--client-ca` a client can connect over `wss://` only with a currently valid certificate of that authority. Its subject
//! alternative name is the principal. The files are reloaded without a restart, and a broken pair changes nothing. Only TLS 1.3 is used
//! unless a flag says otherwise.

use rcgen::SanType;
use rustls::version::{TLS12, TLS13};
use rustls_pki_types::pem::PemObject as _;

use crate::prelude::*;

/// Authorities for servers and clients, and a server certificate.
struct World {
    dir: TempDir,
    servers: Authority,
    clients: Authority,
    server: Identity,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("make a directory");
        let (servers, clients) = (Authority::new(dir.path(), "servers"), Authority::new(dir.path(), "clients"));
        let server = servers.server("server");
        Self { dir, servers, clients, server }
    }

    /// A server with TLS and without client certificates.
    fn tls(&self) -> Builder {
        TestServer::builder().listen_tls(&self.server)
    }

    /// A server that requires client certificates.
    fn mutual(&self) -> Builder {
        self.tls().path_arg("--client-ca", &self.clients.ca())
    }

    /// The status of an upgrade at `target`; 0 if the TLS handshake fails.
    fn status(&self, server: &TestServer, identity: Option<&Identity>, target: &str) -> u16 {
        let shown = Shown { identity, ..Shown::default() };
        http_tls(server.address(), &self.servers, &shown, &upgrade(target, server.address(), "")).status
    }

    /// A command whose first word is followed by what it needs to connect to this server.
    fn command(&self, server: &TestServer, identity: Option<&Identity>, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg(words[0]).args(["--connect", server.url(), "--tls-ca"]).arg(self.servers.ca());
        if let Some(Identity { cert, key }) = identity {
            command.arg("--tls-cert").arg(cert).arg("--tls-key").arg(key);
        }
        command.env("HOME", self.dir.path()).env_remove("EXEC_SERVER_TOKEN").args(&words[1..]);
        command
    }

    fn run(&self, server: &TestServer, identity: Option<&Identity>, words: &[&str]) -> Output {
        self.command(server, identity, words).output().expect("run exec-server")
    }
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("a name"))
}

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().expect("a URI"))
}

#[test]
fn only_valid_certificates_of_the_authority_that_name_a_principal_are_accepted() {
    let world = World::new();
    let server = world.mutual().args(["--log", "debug"]).start();
    assert_eq!(server.url(), format!("wss://{}", server.address()), "no token is asked for, so none is printed");
    let alice = world.clients.client("alice", vec![dns("alice.example")]);
    assert_eq!(world.status(&server, Some(&alice), "/"), 101);
    let stranger = Authority::new(world.dir.path(), "strangers").client("stranger", vec![dns("alice.example")]);
    let impostors = world.dir.path().join("impostors");
    fs::create_dir(&impostors).expect("make a directory");
    let impostor = Authority::new(&impostors, "clients").client("alice", vec![dns("alice.example")]);
    let expired = world.clients.expired_client("expired", vec![dns("alice.example")]);
    let nameless = world.clients.client("nameless", Vec::new());
    for (who, identity) in [
        ("nobody", None),
        ("of another authority", Some(&stranger)),
        ("of one with the same name", Some(&impostor)),
        ("expired", Some(&expired)),
        ("nameless", Some(&nameless)),
        ("a server's", Some(&world.server)),
    ] {
        assert_eq!(world.status(&server, identity, "/"), 0, "{who}");
    }
    // Without a certificate even the health route is not reachable.
    let health = "GET /healthz HTTP/1.0\r\n\r\n";
    assert_eq!(http_tls(server.address(), &world.servers, &Shown::default(), health).status, 0);
    assert_eq!(world.status(&server, Some(&alice), "/"), 101, "afterwards all is as before");
}

#[test]
fn the_principal_is_the_alternative_name_and_sessions_belong_to_it() {
    let world = World::new();
    let server = world.mutual().start();
    let alice = world.clients.client("alice", vec![dns("a.example"), uri("spiffe://here/alice")]);
    let renewed = world.clients.client("renewed", vec![uri("spiffe://here/alice"), dns("b.example")]);
    let bob = world.clients.client("bob", vec![dns("a.example")]);
    let ran = world.run(&server, Some(&alice), &["run", "--", "sh", "-c", "echo hi; echo oh >&2; exit 3"]);
    assert_eq!((ran.status.code(), &ran.stdout[..], &ran.stderr[..]), (Some(3), &b"hi\n"[..], &b"oh\n"[..]));
    let names = |identity: &Identity| {
        let output = world.run(&server, Some(identity), &["ps", "--json"]);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).contains("\"mine\"")
    };
    let detached = ["run", "--detach", "--name", "mine", "--", "sleep", "1000"];
    assert!(world.run(&server, Some(&alice), &detached).status.success());
    assert!(names(&alice), "whose it is");
    assert!(names(&renewed), "the same name in a new certificate is the same principal");
    assert!(!names(&bob), "the same host name is not the same URI");
}

#[test]
fn a_revoked_certificate_is_refused_by_its_fingerprint_and_another_of_the_same_name_is_not() {
    let world = World::new();
    let [old, new] = ["old", "new"].map(|file| world.clients.client(file, vec![dns("alice.example")]));
    let der = rustls_pki_types::CertificateDer::from_pem_file(&old.cert).expect("read the certificate");
    let fingerprint: String = Sha256::digest(&der).iter().map(|byte| format!("{byte:02x}")).collect();
    let server = world.mutual().args(["--tokens", "{dir}/tokens.toml"]).start();
    assert_eq!((world.status(&server, Some(&old), "/"), world.status(&server, Some(&new), "/")), (101, 101));
    let file = server.dir().join("tokens.toml");
    let entry = format!(
        "[[certificates]]\nname = \"alice\"\nsha256 = \"{fingerprint}\"\nscopes = [\"exec\"]\nrevoked = 2026-01-01T00:00:00Z\n"
    );
    fs::write(server.dir().join("new.toml"), entry).expect("write");
    set_mode(server.dir().join("new.toml"), 0o600);
    fs::rename(server.dir().join("new.toml"), &file).expect("put it in place");
    wait_for("the revocation", || world.status(&server, Some(&old), "/") == 0);
    assert_eq!(world.status(&server, Some(&new), "/"), 101);
}

#[test]
fn a_token_is_required_where_no_certificate_is_or_where_both_were_demanded() {
    let world = World::new();
    let alice = world.clients.client("alice", vec![dns("alice.example")]);
    let plain = world.tls().start();
    assert!(plain.url().starts_with("wss://127.0.0.1:") && plain.url().contains("/?token="), "{}", plain.url());
    let with_token = format!("/?token={}", plain.token());
    assert_eq!((world.status(&plain, None, "/"), world.status(&plain, None, &with_token)), (401, 101));
    assert_eq!(world.run(&plain, None, &["run", "--", "echo", "hi"]).stdout, b"hi\n");
    let both = world.mutual().args(["--auth", "token"]).start();
    let with_token = format!("/?token={}", both.token());
    assert_eq!(world.status(&both, Some(&alice), "/"), 401);
    assert_eq!(world.status(&both, Some(&alice), &with_token), 101);
    assert_eq!(world.status(&both, None, &with_token), 0);
}

#[test]
fn names_of_the_certificate_are_names_of_the_server_but_a_wildcard_is_not() {
    let world = World::new();
    let server = world.tls().start();
    let port = server.address().rsplit(':').next().expect("an address has a port");
    let target = format!("/?token={}", server.token());
    let status =
        |host: &str| http_tls(server.address(), &world.servers, &Shown::default(), &upgrade(&target, host, "")).status;
    for host in ["box.example", "BOX.example:1", &format!("localhost:{port}"), server.address()] {
        assert_eq!(status(host), 101, "{host}");
    }
    for host in ["evil.example", "a.wild.example", "*.wild.example", "box.example.evil.example", ""] {
        assert_eq!(status(host), 403, "{host}");
    }
}

#[test]
fn only_tls_1_3_is_used_unless_the_flag_says_otherwise() {
    let world = World::new();
    let old = Shown { versions: &[&TLS12], ..Shown::default() };
    let new = Shown { versions: &[&TLS13], ..Shown::default() };
    for (server, takes_old) in [(world.tls().start(), false), (world.tls().arg("--tls-min").arg("1.2").start(), true)] {
        assert_eq!(secure(server.address(), &world.servers, &old).is_ok(), takes_old);
        let mut stream = secure(server.address(), &world.servers, &new).expect("TLS 1.3");
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        stream.conn.send_close_notify();
    }
}

#[test]
fn new_files_are_read_without_a_restart_and_broken_ones_change_nothing() {
    let world = World::new();
    let server = world.mutual().start();
    let alice = world.clients.client("alice", vec![dns("alice.example")]);
    let shown = Shown { identity: Some(&alice), ..Shown::default() };
    let leaf = || {
        let stream = secure(server.address(), &world.servers, &shown).expect("shake hands");
        stream.conn.peer_certificates().expect("a server shows one")[0].to_vec()
    };
    let first = leaf();
    fs::write(&world.server.cert, "nothing that is a certificate").expect("write");
    wait_for("the word that it is not used", || server.stderr().contains("keeping the old ones"));
    assert_eq!(leaf(), first);
    world.servers.server("server");
    wait_for("the new certificate", || leaf() != first);
    assert_eq!(world.status(&server, Some(&alice), "/"), 101);
    let others = Authority::new(world.dir.path(), "others");
    fs::copy(others.ca(), world.clients.ca()).expect("replace the authority");
    wait_for("the new authority", || world.status(&server, Some(&alice), "/") == 0);
    assert_eq!(world.status(&server, Some(&others.client("bob", vec![dns("bob.example")])), "/"), 101);
}

#[test]
fn a_key_that_others_can_read_and_files_that_do_not_match_end_the_start() {
    let world = World::new();
    let said = |builder: &Builder| {
        let (code, said) = builder.refusal_text(world.dir.path());
        assert_eq!(code, Some(255), "{said}");
        said
    };
    set_mode(&world.server.key, 0o640);
    let words = said(&world.tls());
    assert!(words.contains("0640") && words.contains("server.key"), "{words}");
    set_mode(&world.server.key, 0o600);
    fs::copy(&world.servers.server("other").key, &world.server.key).expect("take another key");
    let words = said(&world.tls());
    assert!(words.contains("server.pem") && words.contains("server.key"), "{words}");
    fs::remove_file(&world.server.cert).expect("remove the certificate");
    assert!(said(&world.tls()).contains("server.pem"));
}
