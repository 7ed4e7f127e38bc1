//! The sandboxes of requests: converts a sandbox from the wire into a policy, builds what enforces it, and caches the
//! result for requests with the same policy.
//!
//! The cache is bounded. A cached sandbox is used again only while every path that its policy names is still the same
//! object. Glob patterns are searched again each time. Building and checking sandboxes and sweeping block, so they run
//! outside the runtime's threads.

use std::{
    collections::BTreeSet,
    fmt::Display,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use exec_server_fs::{self as files, FileTree, View};
use exec_server_protocol::{
    path::{Form, PathArg},
    sandbox as wire,
};
use exec_server_sandbox::{
    Access, AccessDenied, AccessRules, AppliedKit, BuiltView, Kit, KitError, Policy, PolicyEntry, PolicyError,
    PolicyPath, PolicyScope, ViewMounts, ViewPurpose, ViewScript,
};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, statat};
use tokio::time::Instant;

use crate::{
    core::{Core, Holders},
    error::Failure,
    own_files,
    placeholder::{self, Placeholder},
    session::ProcessLaunch,
};

/// Most cached sandboxes of each kind. Each costs a few fds and a mount table.
const CACHED_MAX: usize = 32;

/// How long placeholders stay after their last use, and how often to check them.
const PLACEHOLDER_IDLE: Duration = Duration::from_secs(5);

/// How long an unused sandbox stays cached. Its mount namespace keeps every file system of the host busy, even one that
/// was unmounted on the host.
const SANDBOX_IDLE: Duration = Duration::from_secs(60);

/// Most mounts of one sandbox.
const MOUNTS_MAX: usize = 4000;

/// How many times to build a sandbox if files are renamed while it is built.
const TRIES: usize = 3;

/// The sandbox that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confinement {
    /// `None`: files are not restricted.
    pub(crate) files: Option<Policy>,
    scope: PolicyScope,
    pub(crate) is_network_restricted: bool,
    /// The principal whose rights require that files are restricted (see `SandboxFloor`). `rules` fails if the policy
    /// allows writing everywhere.
    pub(crate) floor_of: Option<String>,
}

/// The error text for a principal that must restrict files and whose policy does not.
pub(crate) const NEEDS_RESTRICTED_FILES: &str = "a sandbox that restricts files, in which `/` is not writable";

/// Reported to a request with a sandbox for which this server restricts nothing.
pub(crate) const NOT_CONFINED: wire::AppliedSandbox =
    wire::AppliedSandbox { file_system: wire::AppliedFileSystem::Unrestricted, network: wire::Network::Enabled };

/// A built sandbox, and what decides whether it can be used again.
#[derive(Debug)]
pub(crate) struct PreparedSandbox<T> {
    pub(crate) parts: T,
    rules: AccessRules,
    /// The mounts of the view. `None` for a file request that may access all files: it needs no view.
    mounted: Option<ViewMounts>,
    last_used: Mutex<Instant>,
}

/// The sandbox of a process.
pub(crate) type ProcessSandbox = PreparedSandbox<ProcessParts>;

/// The file view of a sandboxed `fs/*` request.
pub(crate) type FileView = PreparedSandbox<FileParts>;

#[derive(Debug)]
pub(crate) struct ProcessParts {
    pub(crate) kit: Kit,
    /// Locks on the placeholders at paths that must not be created.
    placeholders: Vec<Placeholder>,
}

#[derive(Debug)]
pub(crate) struct FileParts {
    /// The file tree, and the mount namespace that keeps it alive. `None`: all files may be accessed.
    tree: Option<(Arc<FileTree>, OwnedFd)>,
    is_network_restricted: bool,
}

impl FileView {
    /// The sandbox to report to the client.
    pub(crate) fn applied(&self) -> wire::AppliedSandbox {
        applied(AppliedKit { files: self.mounted.is_some(), network: self.parts.is_network_restricted })
    }

    /// The files that a request sees. The roots of the principal narrow it further.
    pub(crate) fn view(&self) -> View {
        self.parts.tree.as_ref().map_or_else(View::everything, |(tree, _)| View::of(tree.clone()))
    }

    /// An early check for a long operation: whether the sandbox allows reading where it starts.
    pub(crate) fn permits_reading(&self, path: &Path) -> Result<(), Failure> {
        if self.mounted.is_none() {
            return Ok(());
        }
        Ok(self.rules.decide(path, Access::Read)?)
    }

    /// If the sandbox is the reason for a failed operation, returns the error that says so.
    pub(crate) fn explain(&self, error: &files::Error) -> Option<Failure> {
        self.mounted.as_ref()?;
        // Errors for paths that the view protects. They come from the kernel, or from the `fs` crate in its place.
        let is_protected = match &error.kind {
            files::ErrorKind::Os(os) => {
                matches!(os.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::ResourceBusy)
            }
            _ => false,
        };
        let denied = self.rules.decide(&error.path, Access::Read).and_then(|()| match error.category() {
            // If reading is allowed, only a write gets these errors.
            files::ErrorCategory::PermissionDenied | files::ErrorCategory::OutsideView => {
                self.rules.decide(&error.path, Access::Write)
            }
            _ if is_protected => Err(AccessDenied { path: error.path.clone(), wanted: Access::Write }),
            _ => Ok(()),
        });
        denied.err().map(Failure::from)
    }
}

impl ProcessSandbox {
    /// If the sandbox is the reason for a failed start, returns the error that says so. Otherwise returns `failure`.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        let denied = match &failure {
            Failure::Cwd { cwd, .. } => self.rules.decide(Path::new(cwd), Access::Read).err(),
            Failure::Program { program, .. } if program.contains('/') => {
                self.rules.decide(Path::new(program), Access::Read).err()
            }
            // The program was looked up in `PATH`, and the sandbox hides or denies some of those directories.
            Failure::Program { program, source } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some(AccessDenied { path: program.into(), wanted: Access::Read })
            }
            _ => None,
        };
        denied.map_or(failure, Failure::from)
    }
}

/// Cached sandboxes, most recently used last; at most [`CACHED_MAX`].
type SandboxCache<T> = Mutex<Vec<(Confinement, Arc<PreparedSandbox<T>>)>>;

/// All sandboxes of a server, with their caches.
pub(crate) struct Sandboxes {
    holders: Arc<dyn Holders>,
    /// Paths that no sandbox shows: the state directory and other files of the server.
    hidden: Vec<PathBuf>,
    tmpdir: Option<PathBuf>,
    processes: SandboxCache<ProcessParts>,
    views: SandboxCache<FileParts>,
    /// Paths at which there may be placeholders, and the time of the last sweep.
    placed: Mutex<(BTreeSet<PathBuf>, Instant)>,
}

impl Sandboxes {
    pub(crate) fn new(holders: Arc<dyn Holders>, hidden: Vec<PathBuf>, tmpdir: Option<PathBuf>) -> Self {
        let placed = Mutex::new((BTreeSet::new(), Instant::now()));
        Self { holders, hidden, tmpdir, processes: Mutex::default(), views: Mutex::default(), placed }
    }

    /// Converts the sandbox of a request from the wire. `None` if this server has nothing to restrict: also if another
    /// program enforces the sandbox (`External`).
    pub(crate) fn read(&self, context: &wire::SandboxContext) -> Result<Option<Confinement>, Failure> {
        let wire::Profile::Managed { file_system, network } = &context.permissions else { return Ok(None) };
        let is_network_restricted = *network == wire::Network::Restricted;
        let files = match file_system {
            wire::FileSystem::Unrestricted => None,
            wire::FileSystem::Restricted { entries, glob_scan_max_depth } => {
                if *glob_scan_max_depth == Some(0) {
                    return Err(Failure::InvalidParams {
                        reason: "`glob_scan_max_depth` must be at least 1".to_owned(),
                    });
                }
                let entries = entries.iter().map(entry).collect::<Result<_, _>>()?;
                Some(Policy { entries, scan_depth: *glob_scan_max_depth })
            }
        };
        if files.is_none() && !is_network_restricted {
            return Ok(None);
        }
        let cwd = context.cwd.as_ref().map(resolve).transpose()?;
        let roots = match (&context.workspace_roots, &context.cwd) {
            (Some(roots), _) => Some(roots.iter().map(resolve).collect::<Result<_, _>>()?),
            (None, None) => None,
            // A client that sends its cwd as a URI can also send workspace roots, so a missing list means no roots.
            (None, Some(cwd)) if cwd.form() == Form::Uri => Some(Vec::new()),
            (None, Some(_)) => Some(cwd.iter().cloned().collect()),
        };
        let scope = PolicyScope { cwd, roots, tmpdir: self.tmpdir.clone(), hidden: self.hidden.clone() };
        Ok(Some(Confinement { files, scope, is_network_restricted, floor_of: None }))
    }

    /// The sandbox for a process, cached or new.
    pub(crate) fn process(&self, asked: &Confinement) -> Result<Arc<ProcessSandbox>, Failure> {
        // A mount hides a path, not a file. If the file has another hard link, a sandboxed process could reach it
        // there, even inside a directory that the policy grants.
        if let Some(path) = own_files::find_hard_linked(&self.hidden) {
            return Err(Failure::NotEnforceable {
                what: format!(
                    "`{}` belongs to the server and has more than one hard link, so a sandbox cannot hide it; remove the other links",
                    path.display()
                ),
            });
        }
        self.get_or_build(
            asked,
            &self.processes,
            || self.rules_with_placeholders(asked),
            |rules| {
                let placeholders: Vec<Placeholder> =
                    rules.guarded().iter().filter_map(|path| placeholder::hold(path)).collect();
                let purpose = match asked.files {
                    Some(_) if !rules.allows_everything_but(&self.hidden) => ViewPurpose::Process,
                    Some(_) | None => ViewPurpose::WholeSystem,
                };
                // Check this first, because it is cheap. Without Landlock the kit fails, and the view would be wasted.
                Kit::check_host().map_err(not_enforceable)?;
                let (view, mounted) = self.build(&ViewScript::new(rules, purpose))?;
                let kit = Kit::new(rules, purpose, asked.is_network_restricted, view).map_err(not_enforceable)?;
                Ok((ProcessParts { kit, placeholders }, Some(mounted)))
            },
        )
    }

    /// The rules for a process. Creates a placeholder at each path that the process must not create.
    fn rules_with_placeholders(&self, asked: &Confinement) -> Result<AccessRules, Failure> {
        let mut rules = asked.rules()?;
        // Rules that allow everything protect no path, so they need no placeholders.
        if asked.files.is_none() || rules.allows_everything_but(&self.hidden) {
            return Ok(rules);
        }
        if !rules.absent().is_empty() {
            // Record the paths before creating the placeholders. If the server is killed in between, the next server
            // finds them.
            self.record_placeholders(rules.absent());
            for path in rules.absent() {
                placeholder::make(path).map_err(|error| Failure::NotEnforceable {
                    what: format!("the creation of `{}` cannot be prevented: {error}", path.display()),
                })?;
            }
            rules = asked.rules()?;
        }
        self.record_placeholders(rules.guarded());
        Ok(rules)
    }

    /// Records placeholders in memory and on disk. The file is written under the lock, so that it is never older than
    /// the memory.
    fn record_placeholders(&self, paths: &[PathBuf]) {
        let mut placed = self.placed.lock();
        let before = placed.0.len();
        placed.0.extend(paths.iter().cloned());
        if placed.0.len() == before {
            return;
        }
        let all: Vec<PathBuf> = placed.0.iter().cloned().collect();
        if let Err(error) = self.holders.keep_placeholders(&all) {
            // Not fatal: this server removes the placeholders when it ends. They stay only if it is killed.
            tracing::warn!(%error, "cannot record the paths of placeholders for the next server");
        }
    }

    /// Removes the placeholders of earlier servers. Those that a process still needs are checked again by `sweep`.
    /// Blocks.
    pub(crate) fn adopt_placeholders(&self) {
        let (gone, left) = placeholder::remove_all(self.holders.placeholders().into_iter().collect());
        if !gone.is_empty() {
            tracing::info!(count = gone.len(), "removed the placeholders of an earlier server");
        }
        if !gone.is_empty() || !left.is_empty() {
            self.placed.lock().0.extend(left);
            self.forget_placeholders(&gone);
        }
    }

    /// Removes the paths from the record, in memory and on disk.
    fn forget_placeholders(&self, gone: &[PathBuf]) {
        let mut placed = self.placed.lock();
        for path in gone {
            placed.0.remove(path);
        }
        let all: Vec<PathBuf> = placed.0.iter().cloned().collect();
        if let Err(error) = self.holders.keep_placeholders(&all) {
            tracing::debug!(%error, "cannot remove the record of placeholders that are gone");
        }
    }

    /// Whether `sweep` has work to do.
    pub(crate) fn has_any(&self) -> bool {
        !(self.placed.lock().0.is_empty() && self.processes.lock().is_empty() && self.views.lock().is_empty())
    }

    /// Removes placeholders that are no longer needed, and cached sandboxes that are no longer used. Does so at most
    /// every [`PLACEHOLDER_IDLE`]. Blocks.
    pub(crate) fn sweep(&self) {
        let paths = {
            let mut placed = self.placed.lock();
            if placed.1.elapsed() < PLACEHOLDER_IDLE {
                return;
            }
            placed.1 = Instant::now();
            placed.0.clone()
        };
        // Keep a sandbox that is in use or was used recently. One with placeholders is kept for a shorter time, because
        // its locks keep the placeholders.
        self.processes.lock().retain(|(_, kept)| {
            let enough = if kept.parts.placeholders.is_empty() { SANDBOX_IDLE } else { PLACEHOLDER_IDLE };
            Arc::strong_count(kept) > 1 || kept.last_used.lock().elapsed() < enough
        });
        self.views
            .lock()
            .retain(|(_, kept)| Arc::strong_count(kept) > 1 || kept.last_used.lock().elapsed() < SANDBOX_IDLE);
        let (gone, _) = placeholder::remove_all(paths);
        if !gone.is_empty() {
            self.forget_placeholders(&gone);
        }
    }

    /// The view for a file request, cached or new.
    pub(crate) fn files(&self, asked: &Confinement) -> Result<Arc<FileView>, Failure> {
        self.get_or_build(
            asked,
            &self.views,
            || asked.rules(),
            |rules| {
                let is_open = asked.files.is_none() || rules.allows_everything_but(&self.hidden);
                let (tree, mounted) = if is_open { None } else { Some(self.build_tree(rules)?) }.unzip();
                Ok((FileParts { tree, is_network_restricted: asked.is_network_restricted }, mounted))
            },
        )
    }

    /// Returns the cached sandbox for this request if it is still valid, or makes a new one.
    fn get_or_build<T>(
        &self,
        asked: &Confinement,
        kept: &SandboxCache<T>,
        read: impl Fn() -> Result<AccessRules, Failure>,
        make: impl Fn(&AccessRules) -> Result<(T, Option<ViewMounts>), Failure>,
    ) -> Result<Arc<PreparedSandbox<T>>, Failure> {
        // Do not hold the lock while a sandbox is checked or built: both access the file system. If two requests build
        // the same sandbox, the later one replaces the earlier one in the cache.
        let found = {
            let mut kept = kept.lock();
            let at = kept.iter().position(|(request, _)| request == asked);
            at.map(|at| {
                let entry = kept.remove(at);
                let made = entry.1.clone();
                kept.push(entry);
                made
            })
        };
        if let Some(found) = found {
            let are_rules_valid = if asked.has_patterns() { read()? == found.rules } else { found.rules.is_fresh() };
            if are_rules_valid && found.mounted.as_ref().is_none_or(ViewMounts::is_whole) {
                *found.last_used.lock() = Instant::now();
                return Ok(found);
            }
        }
        let mut rules = read()?;
        let mut made = make(&rules);
        for _ in 1..TRIES {
            // If something was renamed in between, the sandbox may refer to the wrong objects. Build it again.
            if made.is_ok() && rules.is_fresh() {
                break;
            }
            rules = read()?;
            made = make(&rules);
        }
        // The last attempt is used even if something was renamed during it. The next request then builds it again.
        let (parts, mounted) = made?;
        let made = Arc::new(PreparedSandbox { parts, rules, mounted, last_used: Mutex::new(Instant::now()) });
        let mut kept = kept.lock();
        kept.retain(|(request, _)| request != asked);
        if kept.len() >= CACHED_MAX {
            kept.remove(0);
        }
        kept.push((asked.clone(), made.clone()));
        Ok(made)
    }

    /// Builds the file tree that the rules allow, with the namespace that keeps it alive and its mounts.
    fn build_tree(&self, rules: &AccessRules) -> Result<((Arc<FileTree>, OwnedFd), ViewMounts), Failure> {
        let script = ViewScript::new(rules, ViewPurpose::Files);
        let (BuiltView { root, mounts, .. }, mounted) = self.build(&script)?;
        let mut covers = Vec::new();
        for path in script.covers() {
            let below =
                path.strip_prefix("/").ok().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let stat = statat(&root, below, AtFlags::SYMLINK_NOFOLLOW);
            let stat = stat
                .map_err(|errno| Failure::NotEnforceable { what: format!("cannot inspect the file view: {errno}") })?;
            if !covers.contains(&stat.st_dev) {
                covers.push(stat.st_dev);
            }
        }
        // A placeholder may be removed at any time, but its name must stay reserved. So the tree also treats as absent
        // the guarded paths: directories that may be placeholders.
        let absent = rules.absent().iter().chain(rules.guarded()).cloned().collect();
        Ok(((Arc::new(FileTree { root, covers, absent }), mounts), mounted))
    }

    fn build(&self, script: &ViewScript) -> Result<(BuiltView, ViewMounts), Failure> {
        let refused = |error: &dyn Display| Failure::NotEnforceable {
            what: format!("cannot create a view of the files on this host: {error}"),
        };
        if script.mounts() > MOUNTS_MAX {
            let what =
                format!("the policy needs more than {MOUNTS_MAX} mounts; deny whole directories instead of files");
            return Err(Failure::NotEnforceable { what });
        }
        let built = self.holders.view(script).map_err(|error| refused(&error))?;
        let mounted = ViewMounts::record(&built.root, script).map_err(|error| refused(&error))?;
        Ok((built, mounted))
    }
}

/// Drops the cached sandboxes and removes the placeholders that no process needs. The rest is recorded for the next
/// server.
impl Drop for Sandboxes {
    fn drop(&mut self) {
        self.processes.lock().clear();
        let mut placed = self.placed.lock();
        let (_, left) = placeholder::remove_all(std::mem::take(&mut placed.0));
        self.holders.keep_placeholders(&left).ok(); // On failure the old list stays. The next server checks each path.
    }
}

impl Confinement {
    fn rules(&self) -> Result<AccessRules, Failure> {
        let everything = Policy {
            entries: vec![PolicyEntry { path: PolicyPath::Root, access: Access::Write, skips_missing: false }],
            scan_depth: None,
        };
        let rules = self.files.as_ref().unwrap_or(&everything).resolve(&self.scope)?;
        match &self.floor_of {
            Some(principal) if rules.access(Path::new("/")) == Access::Write => {
                Err(Failure::BelowFloor { principal: principal.clone(), needed: NEEDS_RESTRICTED_FILES })
            }
            _ => Ok(rules),
        }
    }

    fn has_patterns(&self) -> bool {
        self.files.as_ref().is_some_and(Policy::has_patterns)
    }
}

/// Prepares the sandbox of a start, if it has one, and writes it to the metadata of the process.
pub(crate) async fn confine(
    core: Option<Arc<Core>>,
    launch: &mut ProcessLaunch,
) -> Result<Option<Arc<ProcessSandbox>>, Failure> {
    let (Some(asked), Some(core)) = (launch.confinement.clone(), core) else { return Ok(None) };
    let sandboxes = core.sandboxes.clone();
    let made = tokio::task::spawn_blocking(move || sandboxes.process(&asked)).await;
    let confined = made.map_err(|error| Failure::NotEnforceable { what: error.to_string() })??;
    launch.meta.sandbox = Some(applied(confined.parts.kit.applied()));
    launch.spec.meta = serde_json::to_vec(&launch.meta).expect("a record of strings and numbers serializes");
    Ok(Some(confined))
}

/// Converts to the wire format.
fn applied(applied: AppliedKit) -> wire::AppliedSandbox {
    wire::AppliedSandbox {
        file_system: if applied.files { wire::AppliedFileSystem::View } else { wire::AppliedFileSystem::Unrestricted },
        network: if applied.network { wire::Network::Restricted } else { wire::Network::Enabled },
    }
}

fn not_enforceable(error: KitError) -> Failure {
    Failure::NotEnforceable { what: error.to_string() }
}

fn entry(entry: &wire::Entry) -> Result<PolicyEntry, Failure> {
    let path = match &entry.path {
        wire::EntryPath::Path { path } => PolicyPath::Path(resolve(path)?),
        wire::EntryPath::GlobPattern { pattern } => PolicyPath::Pattern(pattern.clone()),
        wire::EntryPath::Special { value } => match value {
            wire::Special::Root => PolicyPath::Root,
            wire::Special::Minimal => PolicyPath::Minimal,
            wire::Special::ProjectRoots { subpath } => PolicyPath::ProjectRoots(subpath.as_ref().map(PathBuf::from)),
            wire::Special::Tmpdir => PolicyPath::Tmpdir,
            wire::Special::SlashTmp => PolicyPath::SlashTmp,
            wire::Special::Unknown { path, .. } => PolicyPath::Unknown(path.clone()),
        },
    };
    let access = match entry.access {
        wire::Access::Read => Access::Read,
        wire::Access::Write => Access::Write,
        wire::Access::Deny => Access::Deny,
    };
    let skips_missing = entry.missing_path_behavior.as_deref() == Some("skip");
    Ok(PolicyEntry { path, access, skips_missing })
}

fn resolve(path: &PathArg) -> Result<PathBuf, Failure> {
    path.resolve().map_err(|source| Failure::Path { path: path.as_str().to_owned(), source })
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::NeedsCwd { .. } => Self::SandboxNeedsCwd { what: error.to_string() },
            PolicyError::NotEnforceable { what } => Self::NotEnforceable { what },
        }
    }
}

impl From<AccessDenied> for Failure {
    fn from(denied: AccessDenied) -> Self {
        Self::SandboxDenied { what: denied.to_string() }
    }
}
