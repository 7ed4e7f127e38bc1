//! Helpers for the tests of `fs/*`: short calls on the wire, and a private directory for each test.

use crate::prelude::*;

/// A server, a client of it, and a directory.
pub(crate) struct Files {
    pub(crate) client: Client,
    pub(crate) server: TestServer,
}

impl Files {
    /// A server whose client is the owner.
    pub(crate) fn start() -> Self {
        let server = TestServer::start();
        let client = server.client();
        let files = Self { client, server };
        fs::create_dir(files.dir()).expect("make the directory of the test");
        files
    }

    /// The test's private directory, as a path without symlinks.
    pub(crate) fn dir(&self) -> PathBuf {
        self.server.dir().canonicalize().expect("the directory is there").join("files")
    }

    /// A path in that directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    /// Creates a file with these bytes.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).expect("write a file");
        path
    }

    /// Creates a directory.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("make a directory");
        path
    }

    /// Creates a symlink.
    pub(crate) fn link(&self, name: &str, target: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        std::os::unix::fs::symlink(target, &path).expect("make a link");
        path
    }

    #[track_caller]
    pub(crate) fn ok(&mut self, method: &str, params: Value) -> Value {
        self.client.ok(method, params)
    }

    #[track_caller]
    pub(crate) fn fails(&mut self, method: &str, params: Value) -> RpcError {
        self.client.fails(method, params)
    }

    #[track_caller]
    pub(crate) fn refuses(&mut self, method: &str, params: Value, code: i64, kind: &str) -> RpcError {
        self.client.refuses(method, params, code, kind)
    }

    #[track_caller]
    pub(crate) fn read(&mut self, path: &Path) -> Vec<u8> {
        data(&self.client.ok("fs/readFile", json!({"path": path})))
    }

    #[track_caller]
    pub(crate) fn write(&mut self, path: &Path, bytes: &[u8]) -> Value {
        self.client.ok("fs/writeFile", json!({"path": path, "dataBase64": encode_base64(bytes)}))
    }

    #[track_caller]
    pub(crate) fn copy(&mut self, source: &Path, destination: &Path, recursive: bool) -> Value {
        let params = json!({"sourcePath": source, "destinationPath": destination, "recursive": recursive});
        self.client.ok("fs/copy", params)
    }

    /// The sorted names in the test's directory.
    pub(crate) fn names(&self) -> Vec<String> {
        names(&self.dir())
    }
}

/// The sorted names in a directory.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("list a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The bytes in an answer to `fs/readFile`.
pub(crate) fn data(result: &Value) -> Vec<u8> {
    decode_base64(result["dataBase64"].as_str().expect("a file is text in base64"))
}

/// The `file:` URI of a path without special characters.
pub(crate) fn uri(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// The bytes in an answer to `fs/readBlock`.
pub(crate) fn chunk(result: &Value) -> Vec<u8> {
    decode_base64(result["chunk"].as_str().expect("a block is text in base64"))
}
