//! S10: a principal with the scope `http` alone makes no request to this host or the networks around it: not by an address in whatever
//! clothes, not by a name, not by a redirect, not by a proxy; and takes nothing from the server's variables. One that may start
//! processes reaches what these reach.

use serde_json::{Value, json};

use crate::{
    common::{Client, RpcError, Target, TestServer, target},
    promises::tokens,
};

fn get(client: &mut Client, url: &str) -> Result<Value, RpcError> {
    client.call("http/request", json!({"method": "GET", "url": url, "requestId": "r"}))
}

fn refused(client: &mut Client, url: &str) -> RpcError {
    let error = get(client, url).expect_err("it is refused");
    assert_eq!((error.code, error.kind()), (-32600, "forbidden"), "{url}: {}", error.message);
    assert!(error.message.contains("`exec`"), "{}", error.message);
    error
}

#[test]
fn no_private_address_is_reached_however_it_is_written() {
    let target = Target::saying("inside");
    let server = TestServer::builder().arg("--audit").arg("{dir}/audit.log").start();
    let mut client = tokens::client(&server, &tokens::create(&server, "web", &["--scope", "http"]));
    let port = target.address().rsplit(':').next().expect("a port").to_owned();
    for host in [
        "127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "2130706433", "0x7f000001", "0177.1", "0.0.0.0", "0",
        "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]",
    ] {
        refused(&mut client, &format!("http://{host}:{port}/"));
    }
    for host in [
        "10.1.2.3", "172.16.9.9", "192.168.0.1", "169.254.169.254", "100.100.100.200", "[fe80::1]", "[fd00:ec2::254]",
        "224.0.0.1", "[ff02::1]", "255.255.255.255", "[::ffff:169.254.169.254]", "198.18.0.1",
    ] {
        refused(&mut client, &format!("http://{host}/latest/meta-data"));
        refused(&mut client, &format!("https://{host}/"));
    }
    assert_eq!(target.asked(), [], "nothing was sent");
    let denied = tokens::lines(&server.dir().join("audit.log"));
    let denied = denied.iter().filter(|line| line["event"] == "request.deny" && line["method"] == "http/request");
    assert!(denied.count() >= 40, "and all of it is on record");
    // The owner may start processes, and they could ask as well.
    assert_eq!(get(&mut server.client(), &target.url("/")).expect("an answer")["status"], 200);
    let both = tokens::create(&server, "both", &["--scope", "http", "--scope", "exec"]);
    assert_eq!(get(&mut tokens::client(&server, &both), &target.url("/")).expect("an answer")["status"], 200);
    let without = tokens::create(&server, "without", &["--scope", "exec"]);
    let error = get(&mut tokens::client(&server, &without), &target.url("/")).expect_err("it lacks http");
    assert_eq!(error.kind(), "forbidden");
}

/// An address of the public internet.
const OUTSIDE: &str = "8.8.4.4";

#[test]
fn a_redirect_leads_to_no_private_target_and_no_name_changes_its_meaning() {
    // A network of its own, in which that address is this host's.
    let script = format!(
        "exec unshare --net -- sh -c 'ip link set lo up && ip addr add {OUTSIDE}/32 dev lo && exec \"$0\" \"$@\"' \"$0\" \"$@\""
    );
    if !can_unshare() {
        eprintln!("skipped: this host lets nobody have a network of its own");
        return;
    }
    let server = TestServer::builder().listen("unix://{dir}/x.sock").after(&script).start();
    // Beside it a target that knows where to send people: a process of the server's, so that it is in the same network.
    let mut owner = server.client();
    let port = 8080;
    let program = format!(
        r#"
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        place = {{'/literal': 'http://127.0.0.1:{port}/inside', '/name': 'http://localhost:{port}/inside', '/here': '/fine'}}.get(self.path)
        self.send_response(302 if place else 200)
        if place:
            self.send_header('location', place)
        self.send_header('content-length', '0')
        self.end_headers()
    def log_message(self, form, *args):
        print(self.path, flush=True)
server = http.server.ThreadingHTTPServer(('', {port}), Handler)
print('ready', flush=True)
server.serve_forever()
"#
    );
    let start = crate::common::start_params("web", &["python3", "-c", &program]);
    owner.ok("process/start", start);
    let first = owner.next_notification();
    assert_eq!(first["method"], "process/output", "{first}");
    let token = tokens::create(&server, "web", &["--scope", "http"]);
    let mut client = Client::connect_with(server.url(), &[("authorization", &format!("Bearer {token}"))]).expect("connect");
    client.initialize();
    let public = |path: &str| format!("http://{OUTSIDE}:{port}{path}");
    assert_eq!(get(&mut client, &public("/fine")).expect("a public target is reached")["status"], 200);
    assert_eq!(get(&mut client, &public("/here")).expect("a redirect within it, too")["status"], 200);
    refused(&mut client, &public("/literal"));
    refused(&mut client, &public("/name"));
    // It was never asked for what lies inside.
    let heard = owner.ok("process/read", json!({"processId": "web"}));
    assert!(!heard.to_string().contains(&crate::common::encode_base64(b"/inside")), "{heard}");
    assert_eq!(get(&mut owner, &public("/name")).expect("the owner goes there")["status"], 200);
}

fn can_unshare() -> bool {
    let tried = std::process::Command::new("unshare").args(["--net", "--", "ip", "link", "set", "lo", "up"]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

#[test]
fn no_proxy_undoes_it_and_no_variable_is_read() {
    let proxy = Target::start(|_, stream| target::respond(stream, "200 OK", &[], b"from inside"));
    let server = TestServer::builder().env("http_proxy", &proxy.url("")).env("API_KEY", "k3y").start();
    let token = tokens::create(&server, "web", &["--scope", "http"]);
    let mut client = tokens::client(&server, &token);
    for host in ["intranet.example", "8.8.8.8", "127.0.0.1"] {
        refused(&mut client, &format!("http://{host}/"));
    }
    let headers = json!([{"name": "x", "value": "", "valueEnvVar": "API_KEY"}]);
    let params = json!({"method": "GET", "url": "http://8.8.8.8/", "headers": headers, "requestId": "r"});
    let error = client.call("http/request", params).expect_err("it is refused");
    assert_eq!(error.kind(), "forbidden");
    assert!(!error.message.contains("k3y"));
    assert_eq!(proxy.asked(), []);
    assert_eq!(get(&mut server.client(), "http://intranet.example/").expect("by the proxy")["status"], 200);
}
