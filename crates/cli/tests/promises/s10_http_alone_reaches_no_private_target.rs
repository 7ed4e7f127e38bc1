//! S10: a principal with only the scope `http` cannot send requests to this host or to private networks: not with any notation of an
//! address, not by a name, not by a redirect, not by a proxy. It also gets nothing from the server's variables. A principal that may start
//! processes can reach what its processes can reach.

use std::os::fd::AsFd as _;

use crate::prelude::*;

fn get(client: &mut Client, url: &str) -> Result<Value, RpcError> {
    client.call("http/request", json!({"method": "GET", "url": url, "requestId": "r"}))
}

fn refused(client: &mut Client, url: &str) -> RpcError {
    let error = get(client, url).expect_err("it is refused");
    assert_error(&error, -32600, "forbidden");
    assert!(error.message.contains("`exec`"), "{}", error.message);
    error
}

#[test]
fn no_private_address_is_reached_however_it_is_written() {
    let target = Target::saying("inside");
    let server = TestServer::builder().audit().start();
    let mut client = token_helpers::client(&server, &token_helpers::create(&server, "web", &["--scope", "http"]));
    let port = target.address().rsplit(':').next().expect("a port").to_owned();
    let this_host = "127.0.0.1 localhost LOCALHOST 127.1 2130706433 0x7f000001 0177.1 0.0.0.0 0 [::1] \
        [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::]";
    for host in this_host.split(' ') {
        refused(&mut client, &format!("http://{host}:{port}/"));
    }
    let private = "10.1.2.3 172.16.9.9 192.168.0.1 169.254.169.254 100.100.100.200 [fe80::1] \
        [fd00:ec2::254] 224.0.0.1 [ff02::1] 255.255.255.255 [::ffff:169.254.169.254] 198.18.0.1";
    for host in private.split(' ') {
        refused(&mut client, &format!("http://{host}/latest/meta-data"));
        refused(&mut client, &format!("https://{host}/"));
    }
    assert_eq!(target.asked(), [], "nothing was sent");
    // The address that a name resolves to is only in the audit log, not in the error.
    let error = refused(&mut client, &format!("http://localhost:{port}/"));
    assert!(!error.message.contains("127.0.0.1") && !error.message.contains("::1"), "{}", error.message);
    wait_for("all of it to be on record", || {
        let denied = token_helpers::lines(&server.dir().join("audit.log"));
        let reasons = denied.iter().filter_map(|line| line["reason"].as_str());
        assert!(reasons.filter(|reason| reason.contains("`localhost`")).all(|reason| reason.contains("it is at ")));
        let denied = denied.iter().filter(|line| line["event"] == "request.deny" && line["method"] == "http/request");
        denied.count() == 41
    });
    // The owner may start processes, which could send the same request.
    assert_eq!(get(&mut server.client(), &target.url("/")).expect("an answer")["status"], 200);
    let both = token_helpers::create(&server, "both", &["--scope", "http", "--scope", "exec"]);
    assert_eq!(get(&mut token_helpers::client(&server, &both), &target.url("/")).expect("an answer")["status"], 200);
    let without = token_helpers::create(&server, "without", &["--scope", "exec"]);
    let error = get(&mut token_helpers::client(&server, &without), &target.url("/")).expect_err("it lacks http");
    assert_eq!(error.kind(), "forbidden");
}

/// A public internet address.
const OUTSIDE: &str = "8.8.4.4";

#[test]
fn a_redirect_leads_to_no_private_target_and_a_public_one_is_reached() {
    let tried = std::process::Command::new("unshare").args(["--net", "--", "ip", "link", "set", "lo", "up"]).output();
    assert!(
        tried.is_ok_and(|tried| tried.status.success()),
        "a network of our own is needed: `unshare --net` must be allowed, and `ip` be there"
    );
    // A network namespace in which that address belongs to this host.
    let script = format!(
        "exec unshare --net -- sh -c 'ip link set lo up && ip addr add {OUTSIDE}/32 dev lo && exec \"$0\" \"$@\"' \"$0\" \"$@\""
    );
    let server = TestServer::builder().after(&script).start();
    // Use a separate thread: it enters that network namespace and cannot return.
    std::thread::scope(|scope| scope.spawn(|| lead_about(&server)).join().expect("all of it holds"));
}

fn lead_about(server: &TestServer) {
    let network = fs::File::open(format!("/proc/{}/ns/net", server.pid())).expect("open the network");
    rustix::thread::move_into_link_name_space(network.as_fd(), None).expect("enter the network");
    let inside = Target::saying("inside");
    let (literal, name) = (inside.url("/"), inside.url("/").replace("127.0.0.1", "localhost"));
    let outside = Target::start_at(OUTSIDE, move |asked, stream| match asked.path.as_str() {
        "/literal" => target::respond(stream, "302 Found", &[("location", &literal)], b""),
        "/name" => target::respond(stream, "307 Temporary Redirect", &[("location", &name)], b""),
        "/here" => target::respond(stream, "302 Found", &[("location", "/fine")], b""),
        _ => target::respond(stream, "200 OK", &[], b"outside"),
    });
    let mut client = token_helpers::client(server, &token_helpers::create(server, "web", &["--scope", "http"]));
    for path in ["/fine", "/here"] {
        assert_eq!(get(&mut client, &outside.url(path)).expect("a public target is reached")["status"], 200);
    }
    refused(&mut client, &outside.url("/literal"));
    refused(&mut client, &outside.url("/name"));
    assert_eq!(inside.asked(), [], "nothing was sent");
    for path in ["/literal", "/name"] {
        assert_eq!(get(&mut server.client(), &outside.url(path)).expect("the owner goes there")["status"], 200);
    }
    assert_eq!(inside.asked().len(), 2);
}

#[test]
fn no_proxy_undoes_it_and_no_variable_is_read() {
    let proxy = Target::start(|_, stream| target::respond(stream, "200 OK", &[], b"from inside"));
    let server = TestServer::builder().env("http_proxy", &proxy.url("")).env("API_KEY", "k3y").start();
    let token = token_helpers::create(&server, "web", &["--scope", "http"]);
    let mut client = token_helpers::client(&server, &token);
    for host in ["intranet.example", "8.8.8.8", "127.0.0.1"] {
        refused(&mut client, &format!("http://{host}/"));
    }
    let headers = json!([{"name": "x", "value": "", "valueEnvVar": "API_KEY"}]);
    let params = json!({"method": "GET", "url": "http://8.8.8.8/", "headers": headers, "requestId": "r"});
    let error = client.call("http/request", params).expect_err("it is refused");
    assert_eq!(error.kind(), "forbidden");
    let message = error.message;
    assert!(message.contains("`API_KEY`") && !message.contains("k3y"), "for the variable: {message}");
    assert_eq!(proxy.asked(), []);
    assert_eq!(get(&mut server.client(), "http://intranet.example/").expect("by the proxy")["status"], 200);
}
