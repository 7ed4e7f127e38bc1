//! `run --sandbox`: turns flags into a policy for the server, and reports what the server applied.

use std::path::{Component, Path, PathBuf};

use anyhow::bail;
use exec_server_client::{
    Client, Generation, Process,
    protocol::{
        path::{self, PathArg},
        sandbox::{Access, AppliedFileSystem, Entry, EntryPath, FileSystem, Network, Profile, SandboxContext, Special},
    },
};

use crate::args::SandboxArgs;

/// The access that a program gets, as absolute paths on the server's host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grants {
    cwd: PathBuf,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    network: Network,
}

impl Grants {
    /// The grants that the flags ask for. Relative directories are resolved against `base`.
    pub(crate) fn new(args: &SandboxArgs, cwd: &Path, base: &Path) -> Self {
        // Joins the paths and removes `.` parts. Keeps `..`, because only the server knows where symlinks lead.
        let absolute = |dir: &PathBuf| base.join(dir).components().filter(|part| *part != Component::CurDir).collect();
        let all = |dirs: &[PathBuf]| dirs.iter().map(absolute).collect();
        Self {
            cwd: cwd.to_owned(),
            read: all(&args.read),
            write: all(&args.write),
            network: if args.no_network { Network::Restricted } else { Network::Enabled },
        }
    }

    /// The policy in the form of the wire protocol.
    pub(crate) fn to_policy(&self) -> SandboxContext {
        let uri = |dir: &PathBuf| PathArg::new(path::to_uri(dir));
        let entry = |path, access| Entry { path, access, missing_path_behavior: None };
        let dir = |access| move |dir| entry(EntryPath::Path { path: uri(dir) }, access);
        let system = entry(EntryPath::Special { value: Special::Minimal }, Access::Read);
        let mut entries = vec![system];
        entries.extend([&self.cwd].into_iter().chain(&self.read).map(dir(Access::Read)));
        entries.extend(self.write.iter().map(dir(Access::Write)));
        SandboxContext {
            permissions: Profile::Managed {
                file_system: FileSystem::Restricted { entries, glob_scan_max_depth: None },
                network: self.network,
            },
            cwd: Some(uri(&self.cwd)),
            workspace_roots: None,
            windows_sandbox_level: None,
            windows_sandbox_private_desktop: false,
            windows_sandbox_proxy_settings_mode: None,
            use_legacy_landlock: false,
        }
    }

    fn describe(&self) -> String {
        let list = |dirs: &[PathBuf]| {
            let names: Vec<String> = dirs.iter().map(|dir| format!("`{}`", dir.display())).collect();
            names.join(", ")
        };
        let is_writable = self.write.contains(&self.cwd);
        let mut readable = self.read.clone();
        if !is_writable {
            readable.insert(0, self.cwd.clone());
        }
        let read = if readable.is_empty() { String::new() } else { format!(" and {}", list(&readable)) };
        let write = if self.write.is_empty() { "nothing".to_owned() } else { list(&self.write) };
        let network = match self.network {
            Network::Restricted => "off",
            Network::Enabled => "on",
        };
        format!("sandbox: read system directories{read}; write {write}; network {network}")
    }
}

/// Refuses a server that cannot report how it confined a program.
pub(crate) fn check_server(client: &Client) -> anyhow::Result<()> {
    if client.server().generation != Generation::Current {
        bail!("the server at {} does not report how it confines a program; run without `--sandbox`", client.address());
    }
    Ok(())
}

/// Reports on stderr what the sandbox grants. Fails if the server applied something else.
///
/// A server refuses a policy that it cannot enforce. If a cut link loses the answer that describes the applied sandbox, `process.sandbox()`
/// is `None`; that is not an error.
pub(crate) fn report(grants: &Grants, process: &Process) -> anyhow::Result<()> {
    match process.sandbox() {
        Some(applied) if applied.file_system != AppliedFileSystem::View || applied.network != grants.network => {
            bail!("the server applied a different sandbox: {applied:?}")
        }
        Some(_) | None => report!("{}", grants.describe()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(read: &[&str], write: &[&str], no_network: bool) -> SandboxArgs {
        let paths = |dirs: &[&str]| dirs.iter().map(PathBuf::from).collect();
        SandboxArgs { sandbox: true, read: paths(read), write: paths(write), no_network }
    }

    #[test]
    fn relative_directories_are_resolved_and_the_report_names_every_grant() {
        let cwd = Path::new("/src/app");
        for (flags, text) in [
            (flags(&[], &[], false), "sandbox: read system directories and `/src/app`; write nothing; network on"),
            (
                flags(&["../lib", "/data"], &["out"], true),
                "sandbox: read system directories and `/src/app`, `/src/app/../lib`, `/data`; write `/src/app/out`; network off",
            ),
            (flags(&[], &["."], true), "sandbox: read system directories; write `/src/app`; network off"),
        ] {
            assert_eq!(Grants::new(&flags, cwd, cwd).describe(), text);
        }
    }
}
