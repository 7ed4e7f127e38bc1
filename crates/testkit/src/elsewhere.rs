//! A server on "another machine": in its own user, mount and pid namespaces, with another HOME, PATH, `/tmp` and working directory. Only
//! the loopback network is shared.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{binary, descendants, marked, wait_for, wait_gone};

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A server behind `unshare`. It is pid 1 of its namespace, so everything it started ends with it.
pub struct Elsewhere {
    child: Child,
    url: String,
    mark: String,
}

impl Elsewhere {
    /// The server's HOME.
    pub const HOME: &str = "/tmp/there/home";
    /// The server's working directory.
    pub const CWD: &str = "/tmp/there";
    /// The server's PATH, with a directory for programs that exist only there.
    pub const PATH: &str = "/tmp/there/bin:/usr/bin:/bin";

    /// Starts the server; it inherits nothing of the caller's environment.
    pub fn start() -> Self {
        Self::start_from(Path::new("/"))
    }

    /// The same by a caller whose working directory is `here`.
    pub fn start_from(here: &Path) -> Self {
        let mark = format!("elsewhere-{}-{}.test", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        // An empty tmpfs hides our temporary directory. The program stays reachable through an open fd.
        let script = format!(
            "exec 9<{binary} && mount -t tmpfs none /tmp && mkdir -p {home} {cwd}/bin && cd {cwd} && \
             printf '#!/bin/sh\\necho there\\n' >bin/greet && chmod 755 bin/greet && \
             exec /proc/self/fd/9 serve --listen ws://127.0.0.1:0 --state-dir /tmp/state --kill-on-exit \
             --allow-host {mark}",
            binary = binary(),
            home = Self::HOME,
            cwd = Self::CWD,
        );
        let mut child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", &script])
            .env_clear()
            .env("PATH", Self::PATH)
            .env("HOME", Self::HOME)
            .env("TMPDIR", "/tmp")
            .env("ONLY_THERE", "yes")
            .env("DEEP_SECRET", "hidden")
            .current_dir(here)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`unshare` of util-linux starts a namespace");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("stdout is a pipe"))
            .read_line(&mut url)
            .expect("the server prints its URL");
        assert!(url.starts_with("ws://"), "the server did not start in its namespace: {url:?}");
        Self { child, url: url.trim_end().to_owned(), mark }
    }

    /// The server's URL, token included.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The argument by which its processes are found.
    pub fn mark(&self) -> &str {
        &self.mark
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let mut all = marked(&self.mark);
        all.extend(descendants(&all));
        // `--kill-child` passes the kill on to pid 1 of the namespace, and the kernel kills everything in it.
        self.child.kill().ok();
        wait_for("end of the other machine", || matches!(self.child.try_wait(), Ok(Some(_))));
        if !std::thread::panicking() {
            wait_gone("everything on the other machine", &all);
        }
    }
}
