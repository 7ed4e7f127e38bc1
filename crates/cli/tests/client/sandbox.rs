//! The reference's tests of sandboxes (specification 10.2 and 10.4) through the client library, embedded and on a server: the access to files
//! and processes that a sandbox allows and denies. Every refused escape is also shown to work without the sandbox.

use std::os::unix::fs::MetadataExt as _;

use bytes::Bytes;
use serde_json::{Value, json, value::to_raw_value};

use crate::prelude::*;
use exec_server_client::{
    fs::{CommitOptions, CreateOptions, FileError, FileSystem as _, Links, WalkOptions, WriteOptions},
    protocol::{process::Size, sandbox::SandboxContext},
};

at_both_places! {
    sandbox_context_from_profile_preserves_workspace_write_read_only_subpaths
    file_system_sandboxed_read_allows_readable_root
    file_system_sandboxed_metadata_and_read_allow_readable_root
    file_system_sandboxed_write_rejects_unwritable_path
    file_system_sandboxed_write_allows_explicit_alias_roots
    file_system_sandboxed_write_allows_additional_write_root
    file_system_sandboxed_read_rejects_symlink_escape
    file_system_sandboxed_read_rejects_symlink_parent_dotdot_escape
    file_system_sandboxed_write_rejects_symlink_escape
    file_system_create_directory_rejects_symlink_escape
    file_system_read_directory_rejects_symlink_escape
    file_system_copy_rejects_symlink_escape_destination
    file_system_copy_rejects_symlink_escape_source
    file_system_remove_rejects_symlink_escape
    file_system_walk_honors_read_sandbox
    file_system_sandboxed_canonicalize_resolves_directory_symlink
    file_system_sandboxed_write_preserves_existing_hard_link
    sandboxed_file_operations_cannot_read_helper_siblings
    sandboxed_streams_read_and_write_where_they_may
    read_file_materializes_environment_workspace_roots
    read_file_preserves_empty_workspace_roots
    a_pattern_denies_what_came_after_the_first_request
    a_repository_that_comes_later_is_protected_and_none_can_be_made
    sandboxed_process_preserves_custom_arg0
    process_starts_with_restricted_reads
    tty_process_in_a_sandbox_ignores_a_hostile_path
    process_preserves_empty_workspace_roots
}

/// A test directory: policies grant `inside` and not `outside`.
struct Ground {
    dir: TempDir,
    files: RemoteFiles,
}

impl Ground {
    fn new(place: &Place) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["inside/sub", "outside"] {
            fs::create_dir_all(dir.path().join(name)).expect("a directory");
        }
        fs::write(dir.path().join("inside/file"), "inner").expect("a file");
        fs::write(dir.path().join("outside/file"), "outer").expect("a file");
        Self { dir, files: RemoteFiles::new(place.client().clone()) }
    }

    /// The same, with the symbolic link `inside/link` to a path that is not in the sandbox.
    fn with_link(place: &Place, target: &str) -> Self {
        let ground = Self::new(place);
        symlink(ground.at(target), ground.at("inside/link")).expect("a link");
        ground
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().expect("its real path").join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).expect("a text")
    }

    /// Files in a sandbox with these entries.
    fn within(&self, entries: &[Value]) -> RemoteFiles {
        self.files.sandboxed(to_raw_value(&sandbox(entries)).expect("JSON"))
    }

    fn readable(&self) -> RemoteFiles {
        self.within(&[entry(&self.at("inside"), "read")])
    }

    fn writable(&self) -> RemoteFiles {
        self.within(&[entry(&self.at("inside"), "write")])
    }
}

fn entry(path: &Path, access: &str) -> Value {
    json!({"path": {"type": "path", "path": path}, "access": access})
}

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn sandbox(entries: &[Value]) -> Value {
    let files = json!({"type": "restricted", "entries": entries});
    json!({"permissions": {"type": "managed", "network": "restricted", "file_system": files}})
}

fn context(sandbox: Value) -> SandboxContext {
    serde_json::from_value(sandbox).expect("a context")
}

#[track_caller]
fn denied<T>(done: Result<T, FileError>) {
    match done {
        Ok(_) => panic!("it was not denied"),
        Err(error) => assert_eq!(error.kind, FileErrorKind::SandboxDenied, "{error}"),
    }
}

async fn read(files: &RemoteFiles, path: &Path) -> Result<String, FileError> {
    let bytes = files.read_file(path, Links::Follow).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

async fn write(files: &RemoteFiles, path: &Path, text: &'static str) -> Result<(), FileError> {
    files.write_file(path, Bytes::from_static(text.as_bytes()), WriteOptions::default()).await.map(drop)
}

async fn sandbox_context_from_profile_preserves_workspace_write_read_only_subpaths(place: &Place) {
    let ground = Ground::new(place);
    fs::create_dir_all(ground.at("inside/.git/hooks")).expect("a repository");
    fs::write(ground.at("inside/.git/config"), "config").expect("a file");
    let files = ground.writable();
    assert_eq!(read(&files, &ground.at("inside/.git/config")).await.expect("it is readable"), "config");
    denied(write(&files, &ground.at("inside/.git/config"), "evil").await);
    denied(write(&files, &ground.at("inside/.git/hooks/pre-commit"), "evil").await);
    denied(files.remove(&ground.at("inside/.git"), true, false, Links::Follow).await);
    write(&files, &ground.at("inside/.gitignore"), "fine").await.expect("beside it all may be written");
    assert_eq!(ground.text("inside/.git/config"), "config");
    // An explicit entry for `.git` overrides the protection.
    let open = ground.within(&[entry(&ground.at("inside"), "write"), entry(&ground.at("inside/.git"), "write")]);
    write(&open, &ground.at("inside/.git/config"), "new").await.expect("it was granted");
}

async fn file_system_sandboxed_read_allows_readable_root(place: &Place) {
    let ground = Ground::new(place);
    assert_eq!(read(&ground.readable(), &ground.at("inside/file")).await.expect("readable"), "inner");
    denied(read(&ground.readable(), &ground.at("outside/file")).await);
    assert_eq!(read(&ground.files, &ground.at("outside/file")).await.expect("without it all is"), "outer");
}

async fn file_system_sandboxed_metadata_and_read_allow_readable_root(place: &Place) {
    let ground = Ground::new(place);
    let files = ground.readable();
    assert_eq!(files.metadata(&ground.at("inside/file"), Links::Follow).await.expect("readable").size, 5);
    denied(files.metadata(&ground.at("outside/file"), Links::Follow).await);
    denied(files.metadata(&ground.at("outside"), Links::Follow).await);
    denied(files.metadata(&ground.at(""), Links::Follow).await);
}

async fn file_system_sandboxed_write_rejects_unwritable_path(place: &Place) {
    let ground = Ground::new(place);
    for files in [ground.readable(), ground.writable()] {
        denied(write(&files, &ground.at("outside/new"), "x").await);
        denied(write(&files, &ground.at("outside/file"), "x").await);
    }
    denied(write(&ground.readable(), &ground.at("inside/new"), "x").await);
    denied(write(&ground.readable(), &ground.at("inside/file"), "x").await);
    assert!(!ground.at("outside/new").exists() && !ground.at("inside/new").exists());
    assert_eq!((ground.text("inside/file"), ground.text("outside/file")), ("inner".into(), "outer".into()));
}

async fn file_system_sandboxed_write_allows_explicit_alias_roots(place: &Place) {
    let ground = Ground::new(place);
    symlink("inside", ground.at("alias")).expect("a link");
    let files = ground.within(&[entry(&ground.at("alias"), "write")]);
    write(&files, &ground.at("alias/one"), "1").await.expect("by its alias");
    write(&files, &ground.at("inside/two"), "2").await.expect("by its name");
    assert_eq!((ground.text("inside/one"), ground.text("inside/two")), ("1".into(), "2".into()));
}

async fn file_system_sandboxed_write_allows_additional_write_root(place: &Place) {
    let ground = Ground::new(place);
    let files = ground.within(&[entry(&ground.at("inside"), "write"), entry(&ground.at("outside"), "write")]);
    for name in ["inside/new", "outside/new"] {
        write(&files, &ground.at(name), "x").await.expect("both are writable");
    }
}

async fn file_system_sandboxed_read_rejects_symlink_escape(place: &Place) {
    let ground = Ground::with_link(place, "outside/file");
    denied(read(&ground.readable(), &ground.at("inside/link")).await);
    assert_eq!(read(&ground.files, &ground.at("inside/link")).await.expect("without it"), "outer");
}

async fn file_system_sandboxed_read_rejects_symlink_parent_dotdot_escape(place: &Place) {
    let ground = Ground::new(place);
    fs::create_dir(ground.at("outside/dir")).expect("a directory");
    symlink(ground.at("outside/dir"), ground.at("inside/link")).expect("a link");
    symlink("link/../file", ground.at("inside/twisted")).expect("a link");
    denied(read(&ground.readable(), &ground.at("inside/twisted")).await);
    assert_eq!(read(&ground.files, &ground.at("inside/twisted")).await.expect("without it"), "outer");
    // The path is lexically inside.
    let path = ground.at("inside").join("link/../file");
    assert_eq!(read(&ground.readable(), &path).await.expect("inside"), "inner");
}

async fn file_system_sandboxed_write_rejects_symlink_escape(place: &Place) {
    let ground = Ground::with_link(place, "outside/file");
    denied(write(&ground.writable(), &ground.at("inside/link"), "evil").await);
    assert_eq!(ground.text("outside/file"), "outer");
    write(&ground.files, &ground.at("inside/link"), "new").await.expect("without it");
    assert_eq!(ground.text("outside/file"), "new");
}

async fn file_system_create_directory_rejects_symlink_escape(place: &Place) {
    let ground = Ground::with_link(place, "outside");
    for recursive in [true, false] {
        denied(ground.writable().create_directory(&ground.at("inside/link/new"), recursive, Links::Follow, None).await);
    }
    assert!(!ground.at("outside/new").exists());
    ground.files.create_directory(&ground.at("inside/link/new"), true, Links::Follow, None).await.expect("without it");
    ground.writable().create_directory(&ground.at("inside/a/b"), true, Links::Follow, None).await.expect("inside");
    assert!(ground.at("inside/a/b").is_dir());
}

async fn file_system_read_directory_rejects_symlink_escape(place: &Place) {
    let ground = Ground::with_link(place, "outside");
    denied(ground.readable().read_directory(&ground.at("inside/link")).await);
    assert_eq!(ground.files.read_directory(&ground.at("inside/link")).await.expect("without it").len(), 1);
    let listed = ground.readable().read_directory(&ground.at("inside")).await.expect("inside");
    let mut names: Vec<_> = listed.iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, ["file", "sub"], "a link that leads out leads nowhere");
}

async fn file_system_copy_rejects_symlink_escape_destination(place: &Place) {
    let ground = Ground::with_link(place, "outside");
    denied(ground.writable().copy(&ground.at("inside/file"), &ground.at("inside/link/copy"), false).await);
    assert!(!ground.at("outside/copy").exists());
    ground.files.copy(&ground.at("inside/file"), &ground.at("inside/link/copy"), false).await.expect("without it");
}

async fn file_system_copy_rejects_symlink_escape_source(place: &Place) {
    let ground = Ground::with_link(place, "outside");
    denied(ground.writable().copy(&ground.at("inside/link/file"), &ground.at("inside/copy"), false).await);
    assert!(!ground.at("inside/copy").exists());
    ground.files.copy(&ground.at("inside/link/file"), &ground.at("inside/copy"), false).await.expect("without it");
}

async fn file_system_remove_rejects_symlink_escape(place: &Place) {
    let ground = Ground::with_link(place, "outside");
    denied(ground.writable().remove(&ground.at("inside/link/file"), false, false, Links::Follow).await);
    assert_eq!(ground.text("outside/file"), "outer");
    ground.files.remove(&ground.at("inside/link/file"), false, false, Links::Follow).await.expect("without it");
}

async fn file_system_walk_honors_read_sandbox(place: &Place) {
    let ground = Ground::new(place);
    fs::write(ground.at("inside/sub/secret"), "secret").expect("a file");
    let entries = [special("root", "read"), entry(&ground.at("inside/sub"), "deny")];
    let options = WalkOptions {
        max_depth: 8,
        max_directories: 100,
        max_entries: 100,
        follow_directory_symlinks: false,
        prune_hidden_directories: false,
    };
    let walk = ground.within(&entries).walk(&ground.at("inside"), options).await.expect("a walk");
    assert!(walk.entries.iter().all(|(path, _)| !path.ends_with("secret")), "{walk:?}");
    assert!(walk.errors.iter().any(|(path, _)| path.ends_with("sub")), "the denied part is told: {walk:?}");
    denied(read(&ground.within(&entries), &ground.at("inside/sub/secret")).await);
    denied(ground.within(&entries).read_directory(&ground.at("inside/sub")).await);
    let walk = ground.files.walk(&ground.at("inside"), options).await.expect("a walk");
    assert!(walk.entries.iter().any(|(path, _)| path.ends_with("secret")), "{walk:?}");
}

async fn file_system_sandboxed_canonicalize_resolves_directory_symlink(place: &Place) {
    let ground = Ground::new(place);
    symlink("sub", ground.at("inside/link")).expect("a link");
    let real = ground.readable().canonicalize(&ground.at("inside/link")).await.expect("inside");
    assert_eq!(real, ground.at("inside/sub"));
    symlink(ground.at("outside"), ground.at("inside/out")).expect("a link");
    denied(ground.readable().canonicalize(&ground.at("inside/out")).await);
}

async fn file_system_sandboxed_write_preserves_existing_hard_link(place: &Place) {
    let ground = Ground::new(place);
    fs::hard_link(ground.at("inside/file"), ground.at("inside/second")).expect("a second name");
    let inode = fs::metadata(ground.at("inside/file")).expect("it").ino();
    write(&ground.writable(), &ground.at("inside/second"), "shared").await.expect("inside");
    assert_eq!(ground.text("inside/file"), "shared");
    assert_eq!(fs::metadata(ground.at("inside/second")).expect("it").ino(), inode);
}

async fn sandboxed_file_operations_cannot_read_helper_siblings(place: &Place) {
    let ground = Ground::new(place);
    let program = PathBuf::from(testkit::binary());
    let sibling = program.with_file_name(format!("sibling-{}", std::process::id()));
    fs::write(&sibling, "beside the program").expect("a file");
    let seen = read(&ground.readable(), &sibling).await;
    let free = read(&ground.files, &sibling).await;
    fs::remove_file(&sibling).expect("tidy up");
    denied(seen);
    assert_eq!(free.expect("without it"), "beside the program");
}

async fn sandboxed_streams_read_and_write_where_they_may(place: &Place) {
    let ground = Ground::new(place);
    let files = ground.writable();
    let open = files.open(&ground.at("inside/file"), Links::Follow).await.expect("inside");
    assert_eq!(open.read_at(2, 3, false).await.expect("a block").bytes, "ner");
    denied(files.open(&ground.at("outside/file"), Links::Follow).await.map(drop));
    let draft = files.create(&ground.at("inside/new"), CreateOptions::default()).await.expect("inside");
    draft.write_at(0, Bytes::from_static(b"streamed")).await.expect("a block");
    draft.commit(CommitOptions::default()).await.expect("it is there");
    assert_eq!(ground.text("inside/new"), "streamed");
    denied(files.create(&ground.at("outside/new"), CreateOptions::default()).await.map(drop));
}

fn roots(ground: &Ground, roots: &[PathBuf], entries: &[Value]) -> Value {
    let uri = |path: &Path| format!("file://{}", path.display());
    let mut sandbox = sandbox(entries);
    sandbox["cwd"] = json!(uri(&ground.at("outside")));
    sandbox["workspaceRoots"] = json!(roots.iter().map(|root| uri(root)).collect::<Vec<_>>());
    sandbox
}

async fn read_file_materializes_environment_workspace_roots(place: &Place) {
    let ground = Ground::new(place);
    let policy = roots(&ground, &[ground.at("inside")], &[special("project_roots", "read")]);
    let files = ground.files.sandboxed(to_raw_value(&policy).expect("JSON"));
    assert_eq!(read(&files, &ground.at("inside/file")).await.expect("a root"), "inner");
    denied(read(&files, &ground.at("outside/file")).await);
}

async fn read_file_preserves_empty_workspace_roots(place: &Place) {
    let ground = Ground::new(place);
    let policy = roots(&ground, &[], &[special("project_roots", "read")]);
    let files = ground.files.sandboxed(to_raw_value(&policy).expect("JSON"));
    denied(read(&files, &ground.at("inside/file")).await);
    denied(read(&files, &ground.at("outside/file")).await);
}

async fn a_pattern_denies_what_came_after_the_first_request(place: &Place) {
    let ground = Ground::new(place);
    let pattern = format!("{}/**/*.env", ground.at("").display());
    let deny = json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"});
    let files = ground.within(&[entry(&ground.at("inside"), "write"), deny]);
    write(&files, &ground.at("inside/new"), "x").await.expect("inside");
    fs::write(ground.at("inside/sub/late.env"), "secret").expect("a file");
    denied(read(&files, &ground.at("inside/sub/late.env")).await);
    denied(files.metadata(&ground.at("inside/sub/late.env"), Links::Follow).await);
    assert_eq!(read(&files, &ground.at("inside/new")).await.expect("inside"), "x");
}

async fn a_repository_that_comes_later_is_protected_and_none_can_be_made(place: &Place) {
    let ground = Ground::new(place);
    let files = ground.writable();
    write(&files, &ground.at("inside/new"), "x").await.expect("inside");
    denied(files.create_directory(&ground.at("inside/.git"), true, Links::Follow, None).await);
    denied(files.create_directory(&ground.at("inside/.git/hooks"), true, Links::Follow, None).await);
    denied(write(&files, &ground.at("inside/.git"), "gitdir: elsewhere").await);
    assert!(!ground.at("inside/.git").exists());
    fs::create_dir(ground.at("inside/.git")).expect("somebody makes one");
    denied(write(&files, &ground.at("inside/.git/config"), "evil").await);
}

async fn sandboxed_process_preserves_custom_arg0(place: &Place) {
    let ground = Ground::new(place);
    let script = format!("echo $0; echo x > {}; echo $?", ground.at("outside/new").display());
    let policy = sandbox(&[special("root", "read"), entry(&ground.at("inside"), "write")]);
    let start = Start::new(["/bin/sh", "-c", &script]).cwd("/").sandbox(context(policy));
    let own = Start::new(["/bin/sh", "-c", "echo $0"]).cwd("/").arg0("mine");
    for (start, expected) in [(start.arg0("mine"), "mine\n2\n"), (own, "mine\n")] {
        let told = tell(&place.start(start).await).await;
        assert_eq!(String::from_utf8_lossy(&told.stdout).replace("\n1\n", "\n2\n"), expected);
    }
    assert!(!ground.at("outside/new").exists());
}

async fn process_starts_with_restricted_reads(place: &Place) {
    let ground = Ground::new(place);
    let policy = sandbox(&[special("minimal", "read"), entry(&ground.at("inside"), "read")]);
    let script =
        format!("cat {} {} 2>/dev/null", ground.at("inside/file").display(), ground.at("outside/file").display());
    let start = Start::new(["sh", "-c", &script]).cwd("/").sandbox(context(policy));
    assert_eq!(tell(&place.start(start).await).await.stdout, b"inner");
    assert_eq!(tell(&place.start(Start::new(["sh", "-c", &script]).cwd("/")).await).await.stdout, b"innerouter");
}

async fn tty_process_in_a_sandbox_ignores_a_hostile_path(place: &Place) {
    let ground = Ground::new(place);
    // Fake programs under every name that a sandbox helper might have; each would print `hijacked`.
    for name in ["bwrap", "exec-server", "unshare", "landlock"] {
        let fake = ground.at("inside").join(name);
        fs::write(&fake, "#!/bin/sh\necho hijacked\n").expect("a program");
        fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    }
    let policy = sandbox(&[special("root", "read"), entry(&ground.at("inside"), "write")]);
    let start = Start::new(["sh", "-c", "test -t 0 && echo on a terminal"])
        .cwd(ground.at("inside"))
        .env("PATH", format!("{}:/usr/bin:/bin", ground.at("inside").display()))
        .tty(Some(Size { rows: 24, cols: 80 }))
        .sandbox(context(policy));
    assert_eq!(String::from_utf8_lossy(&tell(&place.start(start).await).await.stdout), "on a terminal\r\n");
}

async fn process_preserves_empty_workspace_roots(place: &Place) {
    let ground = Ground::new(place);
    let script =
        format!("cat {}/file {}/file 2>/dev/null", ground.at("inside").display(), ground.at("outside").display());
    for (granted, expected) in [(vec![], ""), (vec![ground.at("inside")], "inner")] {
        let entries = [special("minimal", "read"), special("project_roots", "write")];
        let policy = roots(&ground, &granted, &entries);
        let start = Start::new(["sh", "-c", &script]).cwd("/").sandbox(context(policy));
        assert_eq!(String::from_utf8_lossy(&tell(&place.start(start).await).await.stdout), expected);
    }
}
