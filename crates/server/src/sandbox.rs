//! Sandboxes of requests: what a context of the wire asks for, and what enforces it, kept ready for the next request that asks for the same.
//!
//! Owns the conversion from the wire and a bounded store of what was made. A stored sandbox is used again only while every place that its
//! policy speaks of is what it was; patterns are searched again each time. All of it blocks, and is called off the runtime's threads.

use std::{
    collections::BTreeSet,
    fmt::Display,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use exec_server_fs::{self as files, Tree, View};
use exec_server_protocol::{
    path::{Form, PathArg},
    sandbox as wire,
};
use exec_server_sandbox::{
    Access, Applied, Built, Denied, Entry, Kit, KitError, Mounted, Place, Policy, PolicyError, Purpose, Rules, Scope,
    Script,
};

use rustix::fs::{AtFlags, statat};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::{
    core::{Core, Holders},
    error::Failure,
    own_files,
    placeholder::{self, Placeholder},
    process::lock,
    session::Launch,
};

/// Sandboxes that are kept ready; each costs some descriptors and a table of mounts.
const KEPT: usize = 32;

/// How long placeholders stay after their last use, and how often they are looked at.
const PLACED: Duration = Duration::from_secs(5);

/// How long one is kept ready that nobody asks for: it holds on to every file system of the host, also to one that is unmounted.
const IDLE: Duration = Duration::from_secs(60);

/// Mounts of one sandbox.
const MOUNTS_MAX: usize = 4000;

/// How often a sandbox is made anew because something was renamed while it was made.
const TRIES: usize = 3;

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confinement {
    /// Absent where files are not restricted.
    files: Option<Policy>,
    scope: Scope,
    is_network_restricted: bool,
    /// The principal whose floor demands that files are restricted.
    floor_of: Option<String>,
}

/// What a principal with a floor is told whose policy restricts no files.
pub(crate) const NEEDS_RESTRICTED_FILES: &str = "a sandbox that restricts files, in which `/` is not writable";

impl Confinement {
    /// Refuses, when it is read, to let everything be written.
    pub(crate) fn with_floor_of(self, principal: String) -> Self {
        Self { floor_of: Some(principal), ..self }
    }

    /// Whether only some files can be reached.
    pub(crate) fn restricts_files(&self) -> bool {
        self.files.is_some()
    }

    /// Whether there is no network.
    pub(crate) fn restricts_network(&self) -> bool {
        self.is_network_restricted
    }
}

/// What the text of a sandbox in a request says.
pub(crate) enum Asked {
    /// `null`: there is none.
    Nothing,
    /// One that confines nothing.
    Free,
    Confined(Confinement),
}

/// What a request is told whose sandbox confines nothing.
pub(crate) const NOT_CONFINED: wire::AppliedSandbox =
    wire::AppliedSandbox { file_system: wire::AppliedFileSystem::Unrestricted, network: wire::Network::Enabled };

/// A confined process's kit, and what it means.
#[derive(Debug)]
pub(crate) struct Confined {
    pub(crate) kit: Kit,
    pub(crate) rules: Rules,
    mounted: Mounted,
    /// What stands for what must not come into being.
    placeholders: Vec<Placeholder>,
    used: Mutex<Instant>,
}

/// Where files of a confined request are.
#[derive(Debug)]
pub(crate) struct FileView {
    /// What it shows, and what keeps it; absent where all may be touched.
    shown: Option<Shown>,
    pub(crate) rules: Rules,
    is_network_restricted: bool,
    used: Mutex<Instant>,
}

/// A tree of files, and the namespace that it is in.
#[derive(Debug)]
struct Shown {
    tree: Arc<Tree>,
    mounted: Mounted,
    _namespace: OwnedFd,
}

impl FileView {
    /// The word for how it confines.
    pub(crate) fn applied(&self) -> wire::AppliedSandbox {
        applied(Applied { files: self.shown.is_some(), network: self.is_network_restricted })
    }

    /// What a request sees, beneath its roots if it has any.
    pub(crate) fn view(&self) -> View {
        self.shown.as_ref().map_or_else(View::everything, |shown| View::of(shown.tree.clone()))
    }

    /// An early word for what takes long: whether it may begin there at all.
    pub(crate) fn permits_reading(&self, path: &Path) -> Result<(), Failure> {
        if self.shown.is_none() {
            return Ok(());
        }
        Ok(self.rules.decide(path, Access::Read)?)
    }

    /// Says of an operation that failed that the sandbox was the reason, where it was.
    pub(crate) fn explain(&self, error: &files::Error) -> Option<Failure> {
        self.shown.as_ref()?;
        // So the kernel says it, and who speaks in its place, of what the view keeps as it is.
        let is_kept =
            |os: &io::Error| matches!(os.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::ResourceBusy);
        let is_kept = matches!(&error.trouble, files::Trouble::Os(os) if is_kept(os));
        let denied = self.rules.decide(&error.path, Access::Read).and_then(|()| match error.kind() {
            // Only what wants to write meets these in what it may read.
            files::Kind::PermissionDenied | files::Kind::OutsideView => self.rules.decide(&error.path, Access::Write),
            _ if is_kept => Err(Denied { path: error.path.clone(), wanted: Access::Write }),
            _ => Ok(()),
        });
        denied.err().map(Failure::from)
    }
}

impl Confined {
    /// Says of a start that came to nothing that the sandbox was the reason, where it was.
    pub(crate) fn explain(&self, failure: Failure) -> Failure {
        let denied = match &failure {
            Failure::Cwd { cwd, .. } => self.rules.decide(Path::new(cwd), Access::Read).err(),
            Failure::Program { program, .. } if program.contains('/') => {
                self.rules.decide(Path::new(program), Access::Read).err()
            }
            // Looked for in directories, of which the sandbox hides or refuses some.
            Failure::Program { program, source } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some(Denied { path: program.into(), wanted: Access::Read })
            }
            _ => None,
        };
        denied.map_or(failure, Failure::from)
    }
}

trait Ready {
    fn rules(&self) -> &Rules;

    /// Whether nothing was taken away from it.
    fn is_whole(&self) -> bool;

    fn used(&self) -> &Mutex<Instant>;
}

impl Ready for Confined {
    fn rules(&self) -> &Rules {
        &self.rules
    }

    fn is_whole(&self) -> bool {
        self.mounted.is_whole()
    }

    fn used(&self) -> &Mutex<Instant> {
        &self.used
    }
}

impl Ready for FileView {
    fn rules(&self) -> &Rules {
        &self.rules
    }

    fn is_whole(&self) -> bool {
        self.shown.as_ref().is_none_or(|shown| shown.mounted.is_whole())
    }

    fn used(&self) -> &Mutex<Instant> {
        &self.used
    }
}

/// The last used at the end; at most [`KEPT`].
type Kept<T> = Mutex<Vec<(Confinement, Arc<T>)>>;

/// All sandboxes of a server.
pub(crate) struct Sandboxes {
    holders: Arc<dyn Holders>,
    hidden: Vec<PathBuf>,
    tmpdir: Option<PathBuf>,
    processes: Kept<Confined>,
    views: Kept<FileView>,
    /// Where placeholders may be, and when it was last looked whether they are needed.
    placed: Mutex<(BTreeSet<PathBuf>, Instant)>,
}

impl Sandboxes {
    pub(crate) fn new(holders: Arc<dyn Holders>, hidden: Vec<PathBuf>, tmpdir: Option<PathBuf>) -> Self {
        let placed = Mutex::new((BTreeSet::new(), Instant::now()));
        Self { holders, hidden, tmpdir, processes: Mutex::default(), views: Mutex::default(), placed }
    }

    /// What a context asks for; nothing where it confines nothing.
    pub(crate) fn read(&self, context: &wire::SandboxContext) -> Result<Option<Confinement>, Failure> {
        let wire::Profile::Managed { file_system, network } = &context.permissions else { return Ok(None) };
        let is_network_restricted = *network == wire::Network::Restricted;
        let files = match file_system {
            wire::FileSystem::Unrestricted => None,
            wire::FileSystem::Restricted { entries, glob_scan_max_depth } => {
                if *glob_scan_max_depth == Some(0) {
                    return Err(Failure::InvalidParams { reason: "`glob_scan_max_depth` is at least 1".to_owned() });
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
            // Of the generation that has roots, and there are none.
            (None, Some(cwd)) if cwd.form() == Form::Uri => Some(Vec::new()),
            (None, Some(_)) => Some(cwd.iter().cloned().collect()),
        };
        let scope = Scope { cwd, roots, tmpdir: self.tmpdir.clone(), hidden: self.hidden.clone() };
        Ok(Some(Confinement { files, scope, is_network_restricted, floor_of: None }))
    }

    /// The same from the text of a request.
    pub(crate) fn read_raw(&self, context: &RawValue) -> Result<Asked, Failure> {
        let context: Option<wire::SandboxContext> = serde_json::from_str(context.get())
            .map_err(|error| Failure::InvalidParams { reason: format!("sandbox: {error}") })?;
        let Some(context) = context else { return Ok(Asked::Nothing) };
        Ok(self.read(&context)?.map_or(Asked::Free, Asked::Confined))
    }

    /// What a process is to be confined with.
    pub(crate) fn process(&self, asked: &Confinement) -> Result<Arc<Confined>, Failure> {
        // Mounts hide a name. Another name of the same file may be anywhere, also in what the policy grants.
        if let Some(path) = own_files::find_hard_linked(&self.hidden) {
            return Err(Failure::NotEnforceable {
                what: format!(
                    "`{}` belongs to the server and has more than one hard link, so that a sandbox cannot hide it; remove the others",
                    path.display()
                ),
            });
        }
        self.ready(
            asked,
            &self.processes,
            || self.rules_with_placeholders(asked),
            |rules| {
                let placeholders: Vec<Placeholder> =
                    rules.guarded().iter().filter_map(|path| placeholder::hold(path)).collect();
                let purpose = match asked.files {
                    Some(_) if !rules.allows_everything_but(&self.hidden) => Purpose::Process,
                    Some(_) | None => Purpose::WholeSystem,
                };
                // Cheaper to find out, and on a host without it no view is made for nothing.
                Kit::check_host().map_err(not_enforceable)?;
                let (view, mounted) = self.build(&Script::new(rules, purpose))?;
                let kit = Kit::new(rules, purpose, asked.is_network_restricted, view).map_err(not_enforceable)?;
                Ok(Confined { kit, rules: rules.clone(), mounted, placeholders, used: Mutex::new(Instant::now()) })
            },
        )
    }

    /// What a policy means for a process: there is something in every place that must not come into being.
    fn rules_with_placeholders(&self, asked: &Confinement) -> Result<Rules, Failure> {
        let mut rules = asked.rules()?;
        // Rules that confine nothing keep nothing from anybody.
        if asked.files.is_none() || rules.allows_everything_but(&self.hidden) {
            return Ok(rules);
        }
        if !rules.absent().is_empty() {
            // Before they are made: a server that is killed in between leaves the next one their paths.
            self.place(rules.absent());
            for path in rules.absent() {
                placeholder::make(path).map_err(|error| Failure::NotEnforceable {
                    what: format!("`{}` cannot be kept from being made: {error}", path.display()),
                })?;
            }
            rules = asked.rules()?;
        }
        self.place(rules.guarded());
        Ok(rules)
    }

    /// Remembers placeholders, here and on disk. The file is written under the lock, so that it is never older than what is in memory.
    fn place(&self, paths: &[PathBuf]) {
        let mut placed = lock(&self.placed);
        let before = placed.0.len();
        placed.0.extend(paths.iter().cloned());
        if placed.0.len() == before {
            return;
        }
        let all: Vec<PathBuf> = placed.0.iter().cloned().collect();
        if let Err(error) = self.holders.keep_placeholders(&all) {
            // They go with this server; only one that is killed leaves them.
            tracing::warn!(%error, "the paths of placeholders are not kept for the next server");
        }
    }

    /// Takes away what earlier servers left, but for placeholders that a process still needs: these are looked at again. Blocks.
    pub(crate) fn adopt_placeholders(&self) {
        let (gone, left) = placeholder::remove_all(self.holders.placeholders().into_iter().collect());
        if !gone.is_empty() {
            tracing::info!(count = gone.len(), "took away the placeholders of an earlier server");
        }
        if !gone.is_empty() || !left.is_empty() {
            lock(&self.placed).0.extend(left);
            self.forget_placed(&gone);
        }
    }

    /// Forgets placeholders that are gone, here and on disk.
    fn forget_placed(&self, gone: &[PathBuf]) {
        let mut placed = lock(&self.placed);
        for path in gone {
            placed.0.remove(path);
        }
        let all: Vec<PathBuf> = placed.0.iter().cloned().collect();
        if let Err(error) = self.holders.keep_placeholders(&all) {
            tracing::debug!(%error, "the paths of placeholders that are gone stay on disk");
        }
    }

    /// Whether there is something to look after.
    pub(crate) fn has_any(&self) -> bool {
        !(lock(&self.placed).0.is_empty() && lock(&self.processes).is_empty() && lock(&self.views).is_empty())
    }

    /// Takes away the placeholders that nobody needs any more, and what was kept ready in vain. Blocks.
    pub(crate) fn sweep(&self) {
        let paths = {
            let mut placed = lock(&self.placed);
            if placed.1.elapsed() < PLACED {
                return;
            }
            placed.1 = Instant::now();
            placed.0.clone()
        };
        // A kit that was used just now may be used again soon.
        lock(&self.processes).retain(|(_, kept)| {
            let enough = if kept.placeholders.is_empty() { IDLE } else { PLACED };
            Arc::strong_count(kept) > 1 || lock(&kept.used).elapsed() < enough
        });
        lock(&self.views).retain(|(_, kept)| Arc::strong_count(kept) > 1 || lock(&kept.used).elapsed() < IDLE);
        let (gone, _) = placeholder::remove_all(paths);
        if !gone.is_empty() {
            self.forget_placed(&gone);
        }
    }

    /// Where a confined request finds its files; nothing where it may touch all.
    pub(crate) fn files(&self, asked: &Confinement) -> Result<Arc<FileView>, Failure> {
        self.ready(
            asked,
            &self.views,
            || asked.rules(),
            |rules| {
                let is_open = asked.files.is_none() || rules.allows_everything_but(&self.hidden);
                let shown = if is_open { None } else { Some(self.show(rules)?) };
                let is_network_restricted = asked.is_network_restricted;
                Ok(FileView { shown, rules: rules.clone(), is_network_restricted, used: Mutex::new(Instant::now()) })
            },
        )
    }

    /// What is kept for a request, while it still fits, or what is made for it.
    fn ready<T: Ready>(
        &self,
        asked: &Confinement,
        kept: &Kept<T>,
        read: impl Fn() -> Result<Rules, Failure>,
        make: impl Fn(&Rules) -> Result<T, Failure>,
    ) -> Result<Arc<T>, Failure> {
        let found = {
            let mut kept = lock(kept);
            let at = kept.iter().position(|(request, _)| request == asked);
            at.map(|at| {
                let entry = kept.remove(at);
                let made = entry.1.clone();
                kept.push(entry);
                made
            })
        };
        if let Some(found) = found {
            let fits = match asked.has_patterns() {
                true => read()? == *found.rules(),
                false => found.rules().is_fresh(),
            };
            if fits && found.is_whole() {
                *lock(found.used()) = Instant::now();
                return Ok(found);
            }
        }
        let mut rules = read()?;
        let mut made = make(&rules);
        for _ in 1..TRIES {
            // Something was renamed meanwhile, and what was made may lie elsewhere.
            if made.is_ok() && rules.is_fresh() {
                break;
            }
            rules = read()?;
            made = make(&rules);
        }
        let made = Arc::new(made?);
        let mut kept = lock(kept);
        kept.retain(|(request, _)| request != asked);
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((asked.clone(), made.clone()));
        Ok(made)
    }

    /// A tree of files that shows what the rules grant.
    fn show(&self, rules: &Rules) -> Result<Shown, Failure> {
        let script = Script::new(rules, Purpose::Files);
        let (Built { root, mounts, .. }, mounted) = self.build(&script)?;
        let mut covers = Vec::new();
        for path in script.covers() {
            let below =
                path.strip_prefix("/").ok().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let stat = statat(&root, below, AtFlags::SYMLINK_NOFOLLOW);
            let stat = stat
                .map_err(|errno| Failure::NotEnforceable { what: format!("look at the view of the files: {errno}") })?;
            if !covers.contains(&stat.st_dev) {
                covers.push(stat.st_dev);
            }
        }
        // One that is a placeholder may go meanwhile, and its name is not free for that.
        let absent = rules.absent().iter().chain(rules.guarded()).cloned().collect();
        Ok(Shown { tree: Arc::new(Tree { root, covers, absent }), mounted, _namespace: mounts })
    }

    fn build(&self, script: &Script) -> Result<(Built, Mounted), Failure> {
        let refused = |error: &dyn Display| Failure::NotEnforceable {
            what: format!("this host does not let us make a view of the files: {error}"),
        };
        if script.mounts() > MOUNTS_MAX {
            let what =
                format!("the policy takes more than {MOUNTS_MAX} mounts; deny whole directories instead of files");
            return Err(Failure::NotEnforceable { what });
        }
        let built = self.holders.view(script).map_err(|error| refused(&error))?;
        let mounted = Mounted::look(&built.root, script).map_err(|error| refused(&error))?;
        Ok((built, mounted))
    }
}

/// What is kept ready goes with the server, and what stands for repositories where nobody runs that needs it; the rest is found by the
/// next server that confines a process there.
impl Drop for Sandboxes {
    fn drop(&mut self) {
        lock(&self.processes).clear();
        let mut placed = lock(&self.placed);
        let (_, left) = placeholder::remove_all(std::mem::take(&mut placed.0));
        self.holders.keep_placeholders(&left).ok(); // The next server looks at each path anyway.
    }
}

impl Confinement {
    fn rules(&self) -> Result<Rules, Failure> {
        let everything = Policy {
            entries: vec![Entry { place: Place::Root, access: Access::Write, skips_missing: false }],
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

/// Makes ready what a start is to be confined with, and notes it in its record.
pub(crate) async fn confine(core: Option<Arc<Core>>, launch: &mut Launch) -> Result<Option<Arc<Confined>>, Failure> {
    let (Some(asked), Some(core)) = (launch.confinement.clone(), core) else { return Ok(None) };
    let sandboxes = core.sandboxes.clone();
    let made = tokio::task::spawn_blocking(move || sandboxes.process(&asked)).await;
    let confined = made.map_err(|error| Failure::NotEnforceable { what: error.to_string() })??;
    launch.meta.sandbox = Some(applied(confined.kit.applied()));
    launch.spec.meta = serde_json::to_vec(&launch.meta).expect("a record of strings and numbers serializes");
    Ok(Some(confined))
}

/// The word for what was applied.
pub(crate) fn applied(applied: Applied) -> wire::AppliedSandbox {
    wire::AppliedSandbox {
        file_system: match applied.files {
            false => wire::AppliedFileSystem::Unrestricted,
            true => wire::AppliedFileSystem::View,
        },
        network: if applied.network { wire::Network::Restricted } else { wire::Network::Enabled },
    }
}

fn not_enforceable(error: KitError) -> Failure {
    Failure::NotEnforceable { what: error.to_string() }
}

fn entry(entry: &wire::Entry) -> Result<Entry, Failure> {
    let place = match &entry.path {
        wire::EntryPath::Path { path } => Place::Path(resolve(path)?),
        wire::EntryPath::GlobPattern { pattern } => Place::Pattern(pattern.clone()),
        wire::EntryPath::Special { value } => match value {
            wire::Special::Root => Place::Root,
            wire::Special::Minimal => Place::Minimal,
            wire::Special::ProjectRoots { subpath } => Place::ProjectRoots(subpath.as_ref().map(PathBuf::from)),
            wire::Special::Tmpdir => Place::Tmpdir,
            wire::Special::SlashTmp => Place::SlashTmp,
            wire::Special::Unknown { path, .. } => Place::Unknown(path.clone()),
        },
    };
    let access = match entry.access {
        wire::Access::Read => Access::Read,
        wire::Access::Write => Access::Write,
        wire::Access::Deny => Access::Deny,
    };
    let skips_missing = entry.missing_path_behavior.as_deref() == Some("skip");
    Ok(Entry { place, access, skips_missing })
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

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        Self::SandboxDenied { what: denied.to_string() }
    }
}
