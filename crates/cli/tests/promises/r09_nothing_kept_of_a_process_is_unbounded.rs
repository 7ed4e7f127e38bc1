//! R9: nothing that is kept per process or session is unbounded: names, arguments and lists have limits, and no message exceeds the limits
//! of the protocol. A thousand processes with the longest names and arguments are listed in pages, before and after a restart.

use crate::prelude::*;
use exec_server_protocol::limits;

const PROCESSES: usize = 1024;

/// The longest single argument that the kernel accepts.
const ARGUMENT_BYTES: usize = 32 * 4096 - 1;

/// A name of the maximum length. In JSON it is six times as long, because every byte except the last few is escaped.
fn longest_name(number: usize) -> String {
    let number = number.to_string();
    "\u{1}".repeat(limits::PROCESS_ID_BYTES - number.len()) + &number
}

/// The number of values in a message; each scalar, array and object counts.
fn values(message: &Value) -> usize {
    1 + match message {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(members) => members.values().map(values).sum(),
        _ => 0,
    }
}

/// All pages of a list; each one is checked against the limits of a message.
fn pages(client: &mut Client, limit: Option<usize>) -> Vec<Vec<Value>> {
    let (mut pages, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let page = client.ok("process/list", json!({"cursor": cursor, "limit": limit}));
        let bytes = page.to_string().len();
        assert!(bytes <= limits::LIST_BYTES + (64 << 10), "{bytes} bytes");
        assert!(values(&page) <= limits::VALUES, "{} values", values(&page));
        pages.push(page["processes"].as_array().expect("a list").clone());
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            return pages;
        }
    }
}

fn names(processes: &[Value]) -> Vec<&str> {
    processes.iter().map(|process| process["processId"].as_str().expect("a name")).collect()
}

#[test]
fn a_thousand_processes_of_the_largest_size_are_listed_in_pages() {
    let mut server = TestServer::builder().keep_holders().start();
    let (mut client, session) = server.modern_client();
    // More than is kept, and all of it is escaped in JSON. The first process has the longest possible argument.
    let argument = "\u{1}".repeat(limits::KEPT_ARGV_BYTES + 1);
    for number in 0..PROCESSES {
        let name = longest_name(number);
        let longest = "x".repeat(ARGUMENT_BYTES);
        let argument = if number == 0 { &longest } else { &argument };
        client.ok("process/start", start_params(&name, &["true", argument]));
        let last = client.collect(&name).closed["seq"].clone();
        client.notify("process/ack", json!({"processId": name, "seq": last}));
    }
    let expected: BTreeSet<String> = (0..PROCESSES).map(longest_name).collect();
    for _ in 0..2 {
        let found = pages(&mut client, None);
        assert!(found.len() > 1, "they do not fit one answer");
        let all = found.concat();
        assert_eq!(names(&all).len(), PROCESSES, "each is listed once");
        assert_eq!(names(&all).into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), expected);
        assert!(all.is_sorted_by_key(|process| process["startedAtMs"].as_u64().expect("a time")));
        let first = all.iter().find(|process| process["processId"] == longest_name(0)).expect("it is listed");
        assert_eq!(first["argvBytes"], ARGUMENT_BYTES + 4, "all of it reached the program");
        let kept: usize =
            first["argv"].as_array().expect("argv").iter().map(|arg| arg.as_str().expect("text").len()).sum();
        assert!(kept <= limits::KEPT_ARGV_BYTES && kept > limits::KEPT_ARGV_BYTES / 2, "{kept} bytes are kept");
        // A page with a requested limit.
        let page = client.ok("process/list", json!({"limit": 10}));
        assert_eq!(page["processes"], json!(all[..10]));
        // The data that the holder keeps for the next server has the same bounds.
        server.restart();
        client = server.resume(&session, modern());
    }
    // `ps` fetches all pages itself.
    let mut ps = Command::new(binary());
    let listed = ps.args(["ps", "--json", "--connect", server.url()]).stdin(Stdio::null()).output().expect("run ps");
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let listed: Vec<Value> = serde_json::from_slice(&listed.stdout).expect("a list");
    assert_eq!(names(&listed).into_iter().collect::<BTreeSet<_>>().len(), PROCESSES);
    let page = client.ok("process/list", json!({"limit": 2}));
    let (first, second) = (page["processes"][0].clone(), page["processes"][1].clone());
    client.ok("process/forget", json!({"processId": second["processId"]}));
    let next = client.ok("process/list", json!({"limit": 1, "cursor": page["nextCursor"]}));
    let rest = client.ok("process/list", json!({"limit": 2}));
    assert_eq!(rest["processes"], json!([first, next["processes"][0]]), "the one between them is gone, and no other");
    client.ok("session/end", json!({}));
}

#[test]
fn what_is_longer_than_its_limit_is_refused_with_the_limit_in_the_text() {
    // A small stack, so that the kernel's limit for all arguments is 256 KiB.
    let server = TestServer::builder().after("ulimit -s 1024").start();
    let (mut client, _) = server.modern_client();
    let argument = "x".repeat(ARGUMENT_BYTES);
    let (too_long, huge) = ("x".repeat(ARGUMENT_BYTES + 1), "x".repeat(10_000_000));
    let (few, many) = (vec![argument.as_str(); 3], vec![argument.as_str(); 100]);
    let limit = (256 << 10).to_string();
    for (what, params, limit) in [
        ("a name", start_params(&"n".repeat(1025), &["true"]), "1024"),
        ("an argument", start_params("p", &["true", &too_long]), "131071"),
        ("an argument of 10 MB", start_params("p", &["true", &huge]), "131071"),
        ("arg0", with(start_params("p", &["true"]), json!({"arg0": too_long})), "131071"),
        ("a variable", with(start_params("p", &["true"]), json!({"env": {"A": argument}})), "131071"),
        ("all arguments", start_params("p", &[&["true"], &few[..]].concat()), &limit),
        ("far more than fits", start_params("p", &[&["true"], &many[..]].concat()), &limit),
    ] {
        for method in ["process/start", "command/exec"] {
            let error = client.call(method, params.clone()).expect_err(what);
            assert_eq!((error.code, error.kind()), (-32602, "invalidParams"), "{what}: {}", error.message);
            assert!(error.message.contains(limit), "{what}: {}", error.message);
        }
    }
    // The id is free, and a start that just fits succeeds.
    let fits = start_params(&"n".repeat(1024), &["true", &argument]);
    client.ok("process/start", fits);
    assert_eq!(client.collect(&"n".repeat(1024)).code(), 0);
}

#[test]
fn a_cursor_that_no_answer_had_and_a_limit_of_nothing_are_refused() {
    let server = TestServer::start();
    let (mut client, _) = server.modern_client();
    for params in
        [json!({"limit": 0}), json!({"cursor": ""}), json!({"cursor": "bm90IG91cnM="}), json!({"cursor": "*"})]
    {
        let error = client.fails("process/list", params.clone());
        assert_error(&error, -32602, "invalidParams");
    }
}
