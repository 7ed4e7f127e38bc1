//! Copies to a server with unusual answers: marks that cannot be written, files that another copy is writing, and interrupted commits.
//! Hostile servers are tested in `hostile_files`.

#![cfg(feature = "local")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
};

use tempfile::TempDir;

use crate::prelude::*;
use exec_server_client::{
    cp::{self, CopyEndpoint, CopyObserver, CopyReport, NoObserver},
    fs::{
        CommitOptions, CreateOptions, EntryKind, FileErrorKind, FileSystem as _, LocalFiles, Moment, RemoteFiles,
        Written,
    },
};

/// How the server answers a request.
enum Said {
    /// As a working server would.
    Usual,
    Refused(&'static str),
}

/// A source directory, and a server to copy it to. The server remembers which directories were created.
struct Ground {
    dir: TempDir,
    client: Client,
    peer: Peer,
    _door: Door,
    made: BTreeSet<String>,
}

impl Ground {
    async fn new() -> Self {
        let (client, peer, door) = connect(CURRENT).await;
        let dir = tempfile::Builder::new().prefix("exec-server-copies-").tempdir().unwrap();
        Self { dir, client, peer, _door: door, made: BTreeSet::from(["/".to_owned()]) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Copies `name` to `/copy`.
    async fn copy(
        &mut self,
        name: &str,
        watch: &dyn CopyObserver,
        mut server: impl FnMut(&str, &Value) -> Said,
    ) -> Result<CopyReport, cp::CopyError> {
        let source = CopyEndpoint { files: Arc::new(LocalFiles::new()), path: self.path(name) };
        let target = CopyEndpoint { files: Arc::new(RemoteFiles::new(self.client.clone())), path: "/copy".into() };
        let (peer, made) = (&mut self.peer, &mut self.made);
        let playing = async {
            loop {
                let request = peer.any_request().await;
                match server(&request.method, &request.params) {
                    Said::Refused(kind) => peer.refuse(&request, -32603, Some(kind), "it is refused").await,
                    Said::Usual => match usual(made, &request.method, &request.params) {
                        Some(result) => peer.answer(&request, result).await,
                        None => peer.refuse(&request, -32004, Some("notFound"), "no such file").await,
                    },
                }
            }
        };
        let copying = cp::copy(&source, &target, true, watch);
        tokio::select! {
            done = copying => done,
            never = playing => never,
        }
    }
}

fn usual(made: &mut BTreeSet<String>, method: &str, params: &Value) -> Option<Value> {
    let path = params["path"].as_str().unwrap_or_default();
    Some(match method {
        "fs/canonicalize" => json!({"path": path}),
        "fs/getMetadata" if made.contains(path) => {
            json!({"isDirectory": true, "isFile": false, "isSymlink": false, "size": 0, "createdAtMs": 5,
                   "modifiedAtMs": 0, "mode": 0o755, "modifiedAt": {"seconds": 1, "nanos": 2}})
        }
        "fs/getMetadata" => return None,
        "fs/createDirectory" => {
            made.insert(path.to_owned());
            json!({})
        }
        "fs/create" => json!({"handleId": params["handleId"], "size": 0}),
        "fs/writeBlock" => json!({"size": 0}),
        "fs/writeFile" | "fs/commit" => json!({"atomic": true}),
        "fs/setMetadata" | "fs/remove" | "fs/close" => json!({}),
        other => panic!("nobody asks for `{other}`"),
    })
}

#[tokio::test]
async fn a_mark_that_cannot_be_written_ends_no_copy() {
    for kind in ["sandboxDenied", "storageFull", "permissionDenied", "unsupported", "isADirectory", "internal"] {
        let mut ground = Ground::new().await;
        fs::create_dir(ground.path("tree")).unwrap();
        fs::write(ground.path("tree/f"), "1").unwrap();
        let mut marks = 0;
        let done = ground.copy("tree", &NoObserver, |method, params| {
            let is_mark = params["path"].as_str().is_some_and(|path| path.ends_with(".exec-server-cp"));
            marks += u32::from(is_mark && method == "fs/writeFile");
            if is_mark { Said::Refused(kind) } else { Said::Usual }
        });
        let report = done.await.unwrap();
        assert_eq!((report.files, report.directories, report.failed), (1, 1, 0), "{kind}");
        assert!(marks > 0, "{kind}: it was tried");
    }
}

/// Records the reported waits.
#[derive(Default)]
struct Waits(Mutex<Vec<String>>);

impl CopyObserver for Waits {
    fn begun(&self, _: &Path, _: u64) {}
    fn moved(&self, _: &Path, _: u64) {}
    fn done(&self, _: &Path, _: EntryKind) {}
    fn left_out(&self, _: &Path) {}
    fn failed(&self, _: &cp::CopyError) {}

    fn waiting(&self, path: &Path, why: &str) {
        self.0.lock().unwrap().push(format!("{}: {why}", path.display()));
    }
}

/// Copies a file that another copy is writing for this long. Returns the result, the reported waits, and the duration.
async fn behind_another_copy(lasts: Duration) -> (Result<CopyReport, cp::CopyError>, Vec<String>, Duration) {
    let mut ground = Ground::new().await;
    fs::write(ground.path("large"), vec![7; 2 << 20]).unwrap();
    let (waits, began) = (Waits::default(), Instant::now());
    let done = ground
        .copy("large", &waits, |method, _| match method {
            "fs/create" if began.elapsed() < lasts => Said::Refused("draftBusy"),
            _ => Said::Usual,
        })
        .await;
    (done, waits.0.into_inner().unwrap(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_file_that_another_copy_writes_is_waited_for_as_long_as_a_server_needs_to_miss_a_client() {
    let told = ["/copy: another copy is writing this file".to_owned()];
    let (done, said, _) = behind_another_copy(Duration::from_millis(500)).await;
    assert_eq!((done.unwrap().files, said), (1, Vec::new()), "a moment is nothing to speak of");
    let (done, said, _) = behind_another_copy(Duration::from_secs(35)).await;
    assert_eq!((done.unwrap().files, said), (1, told.to_vec()));
    let (done, said, took) = behind_another_copy(Duration::MAX).await;
    assert!(done.unwrap_err().to_string().contains("another copy is writing this file"));
    assert_eq!(said, told);
    assert!((40..45).contains(&took.as_secs()), "{took:?}");
}

/// The time of modification of the new file.
const THEN: Moment = Moment { seconds: 9, nanos: 8 };

/// Cuts the connection before the answer to a commit. The second commit gets the answer `second`. The existing file has the size of the new
/// one, and this time of modification. Returns the result, and the methods that the client called.
async fn cut_commit(
    second: Result<Value, &'static str>,
    modified: Moment,
) -> (Result<Written, FileErrorKind>, Vec<String>) {
    let (client, mut peer, mut door) = connect(CURRENT).await;
    let files = RemoteFiles::new(client);
    let committing = async {
        let draft = files.create(Path::new("/copy"), CreateOptions::default()).await.unwrap();
        let options = CommitOptions { size: Some(3), modified: Some(THEN), ..CommitOptions::default() };
        draft.commit(options).await
    };
    let playing = async {
        peer.serve("fs/create", json!({"handleId": "d", "size": 0})).await;
        peer.request("fs/commit").await;
        peer.cut();
        let (mut peer, _) = door.welcome(CURRENT).await;
        let mut asked = Vec::new();
        loop {
            let request = peer.any_request().await;
            asked.push(request.method.clone());
            match (request.method.as_str(), &second) {
                ("fs/commit", Ok(answer)) => {
                    peer.answer(&request, answer.clone()).await;
                    return asked;
                }
                ("fs/commit", Err(kind)) => peer.refuse(&request, -32004, Some(kind), "refused").await,
                ("fs/getMetadata", _) => {
                    let found = json!({"isDirectory": false, "isFile": true, "isSymlink": false, "size": 3,
                        "createdAtMs": 0, "modifiedAtMs": 0, "modifiedAt": modified, "etag": "found"});
                    peer.answer(&request, found).await;
                    return asked;
                }
                other => panic!("nobody asks for {other:?}"),
            }
        }
    };
    let (written, asked) = both(committing, playing).await;
    (written.map_err(|error| error.kind), asked)
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_a_cut_interrupted_is_tried_again_before_anybody_looks_for_the_file() {
    let etag = |etag: &str| Ok(Written { atomic: true, etag: Some(etag.to_owned()) });
    let other = Moment { seconds: 1, ..THEN };
    // An older file with the same size and time exists. It is not mistaken for the new one.
    let done = cut_commit(Ok(json!({"atomic": true, "etag": "new"})), THEN).await;
    assert_eq!(done, (etag("new"), vec!["fs/commit".to_owned()]));
    let asked = ["fs/commit", "fs/getMetadata"].map(str::to_owned).to_vec();
    assert_eq!(cut_commit(Err("unknownHandle"), THEN).await, (etag("found"), asked.clone()));
    assert_eq!(cut_commit(Err("unknownHandle"), other).await, (Err(FileErrorKind::Closed), asked));
}
