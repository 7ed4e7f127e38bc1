//! S14: a child has exactly the fds 0, 1 and 2, even if the server, its spawner and its holder have others open, and however many children
//! are started at once. The fd limit, signal dispositions and umask are those with which the server was started, or the defaults.

use crate::prelude::*;

/// A server that was started with open fds, limits and signal dispositions that a child must not inherit.
fn untidy() -> TestServer {
    let script = "exec 7</etc/passwd 8</dev/null 9>/dev/null; ulimit -Sn 777; umask 027; trap '' USR1 QUIT TSTP";
    TestServer::builder().after(script).start()
}

/// Lists the open fds after the listing's own fd is closed.
const LIST: &str = "for f in /proc/self/fd/*; do [ -e \"$f\" ] && echo \"${f##*/}\"; done";

#[test]
fn a_thousand_children_at_once_have_three_descriptors_each() {
    const CLIENTS: usize = 8;
    const EACH: usize = 125;
    let server = untidy();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                let (mut client, _) = server.modern_client();
                let ids: Vec<String> = (0..EACH).map(|at| format!("p{number}-{at}")).collect();
                let start = |(at, id): (usize, &String)| {
                    let more = json!({"tty": at % 2 == 0, "pipeStdin": at % 3 == 0});
                    client.send_request("process/start", with(sh(id, LIST), more))
                };
                let requests: Vec<i64> = ids.iter().enumerate().map(start).collect();
                for request in requests {
                    client.answer(request).expect("it starts");
                }
                for id in ids {
                    let listed = client.collect(&id).text().replace('\r', "");
                    assert_eq!(listed, "0\n1\n2\n", "{id}");
                }
            });
        }
    });
}

#[test]
fn limits_signals_and_mask_are_those_the_server_was_started_with_or_none() {
    let server = untidy();
    let (mut client, _) = server.modern_client();
    assert_eq!(client.script("limit", "ulimit -Sn; umask"), "777\n0027");
    for tty in [false, true] {
        let id = format!("signals-{tty}");
        let params = with(start_params(&id, &["cat", "/proc/self/status"]), json!({"tty": tty}));
        let status = client.run_params(params).text();
        for field in ["SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:"] {
            let line = status.lines().find(|line| line.starts_with(field)).expect("the field");
            assert_eq!(line.split_whitespace().nth(1), Some("0000000000000000"), "{line}");
        }
    }
}
