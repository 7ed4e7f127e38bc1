//! S16: file methods resolve a path below the roots of their principal with one system call: a race that swaps a directory for a symlink
//! finds no gap. Only regular files are opened.

use std::sync::atomic::AtomicU64;

use super::{on, token_helpers};
use crate::prelude::*;

/// Operations in the race. Set `EXEC_SERVER_RACE=200000` for a longer run.
const RACE: u64 = 3000;

/// If the race takes longer than this, it hangs.
const RACE_WITHIN: Duration = Duration::from_secs(1200);

/// A root with contents, a directory beside it, and a client that may access only the root.
struct Fence {
    client: Client,
    root: PathBuf,
    outside: PathBuf,
    server: TestServer,
    /// The token of the client.
    token: String,
}

fn fence() -> Fence {
    let server = TestServer::start();
    let dir = server.dir().canonicalize().expect("the directory is there");
    let (root, outside) = (dir.join("root"), dir.join("outside"));
    fs::create_dir_all(root.join("inner")).expect("make the root");
    fs::create_dir(&outside).expect("make what is outside");
    fs::write(root.join("file"), b"inside").expect("write");
    fs::write(outside.join("secret"), b"secret").expect("write");
    symlink("../outside", root.join("out")).expect("link");
    symlink(&outside, root.join("out-absolute")).expect("link");
    symlink(root.join("inner"), root.join("in-absolute")).expect("link");
    let flags = ["--scope", "fs-read", "--scope", "fs-write", "--root", &root.display().to_string()];
    let token = token_helpers::create(&server, "fenced", &flags);
    let client = token_helpers::client(&server, &token);
    Fence { client, root, outside, server, token }
}

#[track_caller]
fn forbidden(client: &mut Client, method: &str, params: Value) {
    assert_error(&client.fails(method, params), -32600, "forbidden");
}

/// Every method that takes one path, with its other params.
fn methods() -> Vec<(&'static str, Value)> {
    vec![
        ("fs/readFile", json!({})),
        ("fs/writeFile", json!({"dataBase64": "eA=="})),
        ("fs/writeFile", json!({"dataBase64": "eA==", "append": true})),
        ("fs/getMetadata", json!({})),
        ("fs/setMetadata", json!({"mode": 0})),
        ("fs/canonicalize", json!({})),
        ("fs/open", json!({"handleId": "h"})),
        ("fs/create", json!({"handleId": "d"})),
        ("fs/remove", json!({})),
    ]
}

#[test]
fn objects_outside_a_root_are_not_touched_by_any_method() {
    let Fence { mut client, root, outside, server: _server, .. } = fence();
    for path in [
        outside.join("secret"),
        root.join("../outside/secret"),
        root.join("out/secret"),
        root.join("out-absolute/secret"),
        PathBuf::from("/etc/hostname"),
        // The error does not reveal whether the path exists.
        PathBuf::from("/no/such/file"),
        root.join("out/none"),
    ] {
        for (method, more) in methods() {
            forbidden(&mut client, method, on(&path, &more));
        }
    }
    for (from, to) in [(outside.join("secret"), root.join("copy")), (root.join("file"), outside.join("copy"))] {
        forbidden(&mut client, "fs/copy", json!({"sourcePath": from, "destinationPath": to, "recursive": true}));
    }
    for path in [root.join("out"), outside.clone(), PathBuf::from("/")] {
        forbidden(&mut client, "fs/readDirectory", json!({"path": path}));
        forbidden(&mut client, "fs/createDirectory", json!({"path": path.join("new")}));
        forbidden(&mut client, "fs/createSymlink", json!({"path": path.join("new"), "target": "x"}));
    }
    assert_eq!(fs::read(outside.join("secret")).expect("it is there"), b"secret");
    assert_eq!(fs::read_dir(&outside).expect("it is there").count(), 1);
}

#[test]
fn files_beneath_a_root_work_as_everywhere() {
    let Fence { mut client, root, server: _server, .. } = fence();
    let read = client.ok("fs/readFile", json!({"path": root.join("inner/../file")}));
    assert_eq!(decode_base64(read["dataBase64"].as_str().expect("bytes")), b"inside");
    // An absolute symlink that leads back into the root is followed.
    let path = root.join("in-absolute/new");
    assert_eq!(client.ok("fs/writeFile", on(&path, &json!({"dataBase64": "bmV3"})))["atomic"], true);
    assert_eq!(fs::read(root.join("inner/new")).expect("written"), b"new");
    let real = client.ok("fs/canonicalize", json!({"path": path}));
    assert_eq!(real["path"], json!(root.join("inner/new")));
    client.ok("fs/createDirectory", json!({"path": root.join("a/b/c")}));
    let copy = json!({"sourcePath": root.join("inner"), "destinationPath": root.join("a/b/c/d"), "recursive": true});
    client.ok("fs/copy", copy);
    assert_eq!(fs::read(root.join("a/b/c/d/new")).expect("copied"), b"new");
    // A symlink that leads out is omitted from a listing, which follows links, and a walk does not enter it. The link itself can be
    // removed.
    let listed = client.ok("fs/readDirectory", json!({"path": root}));
    let names: Vec<&str> =
        listed["entries"].as_array().expect("entries").iter().filter_map(|entry| entry["fileName"].as_str()).collect();
    assert!(names.contains(&"in-absolute") && !names.contains(&"out") && !names.contains(&"out-absolute"), "{names:?}");
    let options = json!({"maxDepth": 9, "maxDirectories": 99, "maxEntries": 99, "followDirectorySymlinks": true});
    let walked = client.ok("fs/walk", json!({"path": root, "options": options}));
    assert!(!walked.to_string().contains("secret"), "{walked}");
    client.ok("fs/remove", json!({"path": root.join("out")}));
    assert!(!root.join("out").is_symlink());
    // The root itself cannot be removed.
    forbidden(&mut client, "fs/remove", json!({"path": root}));
    assert!(root.join("file").exists());
}

#[test]
fn a_racer_that_swaps_a_directory_for_a_link_finds_no_gap() {
    let Fence { root, outside, server, mut client, token } = fence();
    fs::create_dir(root.join("swap")).expect("make a directory");
    fs::write(root.join("swap/secret"), b"inside").expect("write");
    let (done, operations, reads) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (swap, kept) = (root.join("swap"), root.join("kept"));
            while !done.load(Ordering::Relaxed) {
                // A concurrent method may be in the way; then the next round finds another state.
                if fs::rename(&swap, &kept).is_ok() {
                    symlink(&outside, &swap).ok();
                    fs::remove_file(&swap).ok();
                    symlink("../outside", &swap).ok();
                    fs::remove_file(&swap).ok();
                    if fs::rename(&kept, &swap).is_err() {
                        fs::remove_dir_all(&swap).ok();
                        fs::rename(&kept, &swap).ok();
                    }
                }
            }
        });
        for worker in 0..4 {
            let (server, token, root, done, counts) = (&server, &token, &root, &done, (&operations, &reads));
            scope.spawn(move || race(token_helpers::client(server, token), (root, worker), done, counts));
        }
        let (wanted, end) = (race_length(), Instant::now() + RACE_WITHIN);
        while operations.load(Ordering::Relaxed) < wanted && Instant::now() < end {
            thread::park_timeout(Duration::from_millis(50));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(operations.load(Ordering::Relaxed) >= race_length(), "{operations:?} operations");
    assert!(reads.load(Ordering::Relaxed) > 0, "the race was not lost every time");
    assert_eq!(fs::read(outside.join("secret")).expect("nobody removed it"), b"secret");
    assert_eq!(fs::read_dir(&outside).expect("it is there").count(), 1, "nobody made anything outside");
    client.ok("fs/readFile", json!({"path": root.join("file")}));
}

fn race_length() -> u64 {
    std::env::var("EXEC_SERVER_RACE").ok().and_then(|text| text.parse().ok()).unwrap_or(RACE)
}

/// Accesses the swapped path with every method, and checks the answers.
fn race(
    mut client: Client,
    (root, worker): (&Path, u32),
    done: &AtomicBool,
    (operations, reads): (&AtomicU64, &AtomicU64),
) {
    let swap = root.join("swap");
    let at = |name: &str| swap.join(format!("{name}-{worker}"));
    while !done.load(Ordering::Relaxed) {
        let answers = [
            ("fs/readFile", json!({"path": swap.join("secret")})),
            ("fs/writeFile", json!({"path": at("new"), "dataBase64": encode_base64(b"escaped")})),
            ("fs/writeFile", json!({"path": swap.join("secret"), "dataBase64": encode_base64(b"inside")})),
            ("fs/createDirectory", json!({"path": at("dir").join("deep")})),
            ("fs/readDirectory", json!({"path": swap, "details": true})),
            ("fs/copy", json!({"sourcePath": root.join("inner"), "destinationPath": at("copy"), "recursive": true})),
            ("fs/remove", json!({"path": at("dir")})),
            ("fs/open", json!({"handleId": "h", "path": swap.join("secret")})),
            ("fs/readBlock", json!({"handleId": "h", "offset": 0, "len": 100})),
            ("fs/close", json!({"handleId": "h"})),
        ];
        let asked = answers.map(|(method, params)| (method, client.send_request(method, params)));
        for (method, id) in asked {
            operations.fetch_add(1, Ordering::Relaxed);
            let Ok(answer) = client.answer(id) else { continue };
            for member in ["dataBase64", "chunk"] {
                if let Some(bytes) = answer[member].as_str() {
                    assert_eq!(decode_base64(bytes), b"inside", "{method} read what is outside");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

#[test]
fn pipes_devices_and_files_of_proc_are_not_opened() {
    let (server, mut client) = TestServer::with_client();
    let special = "/dev/zero /dev/null /dev/tty /proc/self/environ /proc/self/mem /proc/cpuinfo /proc/self/maps";
    for path in special.split(' ') {
        for (method, params) in [
            ("fs/readFile", json!({"path": path})),
            ("fs/open", json!({"handleId": "h", "path": path})),
            ("fs/writeFile", json!({"path": path, "dataBase64": "eA=="})),
            ("fs/copy", json!({"sourcePath": path, "destinationPath": server.dir().join("copy"), "recursive": true})),
        ] {
            let error = client.call(method, params).expect_err("it is no file");
            let fits =
                error.kind() == "notRegularFile" || (method == "fs/writeFile" && error.kind() == "permissionDenied");
            assert!(fits, "{method} {path}: {error:?}");
        }
    }
    // A magic link is not followed: it would lead to what this server has open.
    for path in ["/proc/self/fd/0", "/proc/self/exe", "/proc/self/root", "/proc/self/cwd/x"] {
        client.call("fs/readFile", json!({"path": path})).expect_err("it is a magic link");
    }
    assert!(!server.dir().join("copy").exists());
}
