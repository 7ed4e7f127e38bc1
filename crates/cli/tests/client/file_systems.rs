//! The two file systems that every test of files runs on: the local one without a server, and a remote one.

use crate::prelude::*;
use exec_server_client::fs::{EntryKind, FileSystem, LocalFiles};
use testkit::bounded;

/// A file system and a temporary directory for it.
pub(crate) struct Ground {
    pub(crate) files: Arc<dyn FileSystem>,
    dir: TempDir,
}

impl Ground {
    fn new(files: Arc<dyn FileSystem>) -> Self {
        Self { files, dir: tempfile::Builder::new().prefix("exec-server-files-").tempdir().expect("make a directory") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().expect("it exists").join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).expect("write a file");
        path
    }

    pub(crate) fn make_dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("make a directory");
        path
    }

    pub(crate) fn link(&self, name: &str, target: impl AsRef<std::path::Path>) -> PathBuf {
        let path = self.path(name);
        symlink(target, &path).expect("make a link");
        path
    }
}

/// Runs a test on both file systems.
pub(crate) fn at_both(test: impl AsyncFn(Ground)) {
    bounded(async {
        test(Ground::new(Arc::new(LocalFiles::new()))).await;
        let server = TestServer::start();
        let client = Client::connect(server.url()).await.expect("connect");
        test(Ground::new(Arc::new(RemoteFiles::new(client.clone())))).await;
        client.end_session().await.expect("end the session");
    });
}

/// The kind of an expected error.
pub(crate) fn kind<T: std::fmt::Debug>(done: Result<T, exec_server_client::fs::FileError>) -> FileErrorKind {
    done.expect_err("it fails").kind
}

/// One letter per kind of entry.
pub(crate) fn letter(kind: EntryKind) -> char {
    match kind {
        EntryKind::File => 'f',
        EntryKind::Directory => 'd',
        EntryKind::Symlink => 'l',
        EntryKind::Other => '?',
    }
}
