//! Turns rules into a script: the ordered list of mounts that make the view. Does not mount anything itself.
//!
//! If `/` is granted, the view starts with the host's own tree, read-only unless `/` is writable. Otherwise it starts
//! with an empty tmpfs. On top of it, outer paths first, come bind mounts of granted paths (read-only or not), and
//! masks over paths that are denied inside them. A mount point for a grant inside a mask is created in the mask.
//! `build` clones the sources of all bind mounts before it changes anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use crate::rules::{Access, AccessRule, AccessRules};

/// Devices that programs expect and that reveal nothing.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// The mount point of devpts. A process with restricted files gets a new instance, unless the policy names this path or
/// grants `/dev`.
const TERMINALS: &str = "/dev/pts";

/// Symbolic links that programs expect in `/dev`.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("/dev/ptmx", "pts/ptmx"),
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// The use of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ViewPurpose {
    /// A process with restricted files. It gets `/proc` and a few devices.
    Process,
    /// A process that may use all files except those that every view hides (`AccessRules::hidden`: the server's own files). It keeps all
    /// devices.
    WholeSystem,
    /// File requests: a server thread opens paths beneath the view's root, without entering the view. There is no `/proc`, and no `/dev`
    /// unless the policy grants something in it.
    Files,
}

/// What happens at a path of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ViewStep {
    /// Mounts a clone of the same path on the host. Without `has_place`, the mount point must be created in a tmpfs.
    Bind { is_read_only: bool, is_dir: bool, has_place: bool },
    /// Covers a directory with an empty one. With `is_open`, it can be entered, because it has mount points or links.
    MaskDir { is_open: bool },
    /// Covers a file with one that cannot be opened.
    MaskFile,
    /// Mounts a new devpts instance.
    Terminals,
    /// Creates a symbolic link in a tmpfs of the view.
    Link { target: PathBuf },
}

/// A view as a list of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewScript {
    /// Start with an empty tree instead of the host's.
    pub(crate) is_empty_tree: bool,
    /// Make the host's tree read-only.
    pub(crate) is_read_only: bool,
    /// The view is for a process: make mounts of kernel file systems read-only, and hide mounted POSIX message queues
    /// under an empty tmpfs.
    pub(crate) is_for_process: bool,
    pub(crate) steps: Vec<(PathBuf, ViewStep)>,
}

/// Adapts the rules to a purpose. `Files`: denies `/proc`, and `/dev` unless the rules grant something in it. `Process`:
/// denies `/dev` and adds `/proc` and a few devices, except where the rules already have an entry. `WholeSystem`: no change.
pub(crate) fn fitted(rules: &AccessRules, purpose: ViewPurpose) -> AccessRules {
    let mut rules = rules.clone();
    let dir = |access| AccessRule { access, is_dir: true };
    match purpose {
        ViewPurpose::WholeSystem => {}
        ViewPurpose::Files => {
            rules.deny_below(Path::new("/proc"), true);
            let grants_device =
                |(at, rule): (&PathBuf, &AccessRule)| at.starts_with("/dev") && rule.access != Access::Deny;
            if !rules.rules.iter().any(grants_device) {
                rules.deny_below(Path::new("/dev"), true);
            }
        }
        ViewPurpose::Process => {
            if !rules.rules.contains_key(Path::new("/dev")) {
                rules.add("/dev".into(), dir(Access::Deny));
            }
            for device in DEVICES.iter().filter(|device| Path::new(device).exists()) {
                rules.rules.entry(device.into()).or_insert(AccessRule { access: Access::Write, is_dir: false });
            }
            rules.rules.entry(TERMINALS.into()).or_insert(dir(Access::Write));
            rules.rules.entry("/proc".into()).or_insert(dir(Access::Read));
            rules.links.extend(DEVICE_LINKS.map(|(path, target)| (path.into(), target.into())));
        }
    }
    rules
}

/// Keeps the parent directories of mounts from being renamed. The mount would move along, and a program could create the protected path
/// again, unprotected.
/// Each such directory is bind-mounted onto itself: the kernel refuses to rename a mount point.
fn pin(rules: &AccessRules, steps: &mut BTreeMap<PathBuf, ViewStep>) {
    let is_movable = |dir: &Path| rules.access(dir) == Access::Write && rules.around(dir) == Access::Write;
    let above = steps.keys().flat_map(|path| path.ancestors().skip(1));
    let pins: BTreeSet<PathBuf> =
        above.filter(|dir| *dir != Path::new("/") && is_movable(dir)).map(Path::to_owned).collect();
    for path in pins {
        steps.entry(path).or_insert(ViewStep::Bind { is_read_only: false, is_dir: true, has_place: true });
    }
}

impl ViewScript {
    /// The view for these rules.
    pub fn new(rules: &AccessRules, purpose: ViewPurpose) -> Self {
        // Before `fitted`, which always adds a rule for this path.
        let has_own_terminals = purpose == ViewPurpose::Process && !rules.rules.contains_key(Path::new(TERMINALS));
        let rules = fitted(rules, purpose);
        let root = rules.access(Path::new("/"));
        // Sorted by path, so that outer paths come first.
        let mut steps = BTreeMap::new();
        for (path, rule) in rules.rules.iter().filter(|(path, _)| *path != Path::new("/")) {
            let around = rules.around(path);
            let is_dir = rule.is_dir;
            let step = match (rule.access, around) {
                (Access::Deny, Access::Deny) => continue,
                (Access::Deny, _) if is_dir => {
                    let is_open = rules.rules.iter().any(|(inner, inside)| {
                        inner != path && inner.starts_with(path) && inside.access != Access::Deny
                    }) || rules.links.keys().any(|link| link.parent() == Some(path));
                    ViewStep::MaskDir { is_open }
                }
                (Access::Deny, _) => ViewStep::MaskFile,
                (access, around) if access == around => continue,
                (_, Access::Deny) if has_own_terminals && path == Path::new(TERMINALS) => ViewStep::Terminals,
                (access, around) => {
                    let has_place = around != Access::Deny;
                    ViewStep::Bind { is_read_only: access == Access::Read, is_dir, has_place }
                }
            };
            steps.insert(path.clone(), step);
        }
        pin(&rules, &mut steps);
        let mut steps: Vec<(PathBuf, ViewStep)> = steps.into_iter().collect();
        // Only for links whose directory is denied. A link in a granted directory exists already.
        let is_in_tmpfs = |path: &Path| path.parent().is_some_and(|dir| rules.access(dir) == Access::Deny);
        let links = rules.links.iter().filter(|(path, _)| is_in_tmpfs(path));
        steps.extend(links.map(|(path, target)| (path.clone(), ViewStep::Link { target: target.clone() })));
        Self {
            is_empty_tree: root == Access::Deny,
            is_read_only: root == Access::Read,
            is_for_process: purpose != ViewPurpose::Files,
            steps,
        }
    }

    /// Number of steps, for callers that limit the mounts of a view. Each step except a link adds at least one mount.
    pub fn mounts(&self) -> usize {
        self.steps.len()
    }

    /// Paths in the view that are our own tmpfs instances or masks. They only cover other files or contain mount
    /// points.
    pub fn covers(&self) -> Vec<&Path> {
        let root = self.is_empty_tree.then_some(Path::new("/"));
        let is_mask = |step: &ViewStep| matches!(step, ViewStep::MaskDir { .. } | ViewStep::MaskFile);
        let masks = self.steps.iter().filter(|(_, step)| is_mask(step)).map(|(path, _)| path.as_path());
        root.into_iter().chain(masks).collect()
    }

    /// Encodes the script for the process that builds the view.
    pub fn encode(&self) -> Vec<u8> {
        // The first flag is the lowest bit.
        let bits = |flags: [bool; 3]| flags.iter().rev().fold(0, |all, &flag| all << 1 | u8::from(flag));
        let mut out = vec![bits([self.is_empty_tree, self.is_read_only, self.is_for_process])];
        for (path, step) in &self.steps {
            let none = Path::new("");
            let (kind, flags, target) = match step {
                ViewStep::Bind { is_read_only, is_dir, has_place } => (1, [*is_read_only, *is_dir, *has_place], none),
                ViewStep::MaskDir { is_open } => (2, [*is_open, false, false], none),
                ViewStep::MaskFile => (3, [false; 3], none),
                ViewStep::Link { target } => (4, [false; 3], target.as_path()),
                ViewStep::Terminals => (5, [false; 3], none),
            };
            out.extend([kind, bits(flags)]);
            for text in [path, target] {
                let bytes = text.as_os_str().as_bytes();
                out.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
                out.extend(bytes);
            }
        }
        out
    }

    /// Decodes a script. `None` if the bytes are invalid.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
            let (taken, rest) = bytes.split_at_checked(count)?;
            *bytes = rest;
            Some(taken)
        }
        fn text(bytes: &mut &[u8]) -> Option<PathBuf> {
            let count = u32::from_le_bytes(take(bytes, 4)?.try_into().ok()?);
            Some(OsStr::from_bytes(take(bytes, usize::try_from(count).ok()?)?).into())
        }
        let first = *take(&mut bytes, 1)?.first()?;
        let mut steps = Vec::new();
        while !bytes.is_empty() {
            let &[kind, flags] = take(&mut bytes, 2)? else { return None };
            let flag = |at: u8| flags >> at & 1 == 1;
            let (path, target) = (text(&mut bytes)?, text(&mut bytes)?);
            let step = match kind {
                1 => ViewStep::Bind { is_read_only: flag(0), is_dir: flag(1), has_place: flag(2) },
                2 => ViewStep::MaskDir { is_open: flag(0) },
                3 => ViewStep::MaskFile,
                4 => ViewStep::Link { target },
                5 => ViewStep::Terminals,
                _ => return None,
            };
            steps.push((path, step));
        }
        let [is_empty_tree, is_read_only, is_for_process] = [0, 1, 2].map(|at| first >> at & 1 == 1);
        Some(Self { is_empty_tree, is_read_only, is_for_process, steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(list: &[(&str, Access)]) -> AccessRules {
        let mut rules = AccessRules::default();
        for (path, access) in list {
            rules.add(PathBuf::from(path), AccessRule { access: *access, is_dir: !path.ends_with(".env") });
        }
        rules
    }

    #[test]
    fn a_script_has_a_step_for_each_change_of_access_and_survives_encoding() {
        let mut rules = rules(&[
            ("/", Access::Read),
            ("/usr", Access::Read),
            ("/w", Access::Write),
            ("/w/.git", Access::Read),
            ("/w/a.env", Access::Deny),
            ("/w/deep", Access::Deny),
            ("/w/deep/out", Access::Write),
            ("/w/on/the/way", Access::Deny),
        ]);
        rules.links.insert("/w/deep/alias".into(), "out".into());
        let script = ViewScript::new(&rules, ViewPurpose::WholeSystem);
        let bind = |path: &str, is_read_only, has_place| {
            (path.into(), ViewStep::Bind { is_read_only, is_dir: true, has_place })
        };
        assert_eq!(
            script.steps,
            [
                bind("/w", false, true),
                bind("/w/.git", true, true),
                ("/w/a.env".into(), ViewStep::MaskFile),
                ("/w/deep".into(), ViewStep::MaskDir { is_open: true }),
                bind("/w/deep/out", false, false),
                bind("/w/on", false, true),
                bind("/w/on/the", false, true),
                ("/w/on/the/way".into(), ViewStep::MaskDir { is_open: false }),
                ("/w/deep/alias".into(), ViewStep::Link { target: "out".into() }),
            ]
        );
        assert!(script.is_read_only && !script.is_empty_tree && script.is_for_process);
        let bytes = script.encode();
        assert_eq!(ViewScript::decode(&bytes), Some(script));
        for cut in 0..bytes.len() {
            // A cut between two steps decodes. No cut may panic.
            ViewScript::decode(&bytes[..cut]);
        }
    }

    #[test]
    fn without_a_grant_of_the_root_the_tree_has_only_the_granted_paths() {
        let script = ViewScript::new(&rules(&[("/r", Access::Read), ("/no", Access::Deny)]), ViewPurpose::Files);
        assert!(script.is_empty_tree && !script.is_for_process);
        assert_eq!(
            script.steps,
            [("/r".into(), ViewStep::Bind { is_read_only: true, is_dir: true, has_place: false })]
        );
    }

    #[test]
    fn file_views_mask_proc_and_process_views_have_devices() {
        let whole = rules(&[("/", Access::Read), ("/proc/1", Access::Write)]);
        let files = ViewScript::new(&whole, ViewPurpose::Files);
        assert!(files.steps.contains(&("/proc".into(), ViewStep::MaskDir { is_open: false })), "{files:?}");
        let mask = ("/dev".into(), ViewStep::MaskDir { is_open: false });
        for (rule, is_masked) in [(Access::Read, false), (Access::Write, false), (Access::Deny, true)] {
            let files = ViewScript::new(&rules(&[("/", Access::Read), ("/dev/sub", rule)]), ViewPurpose::Files);
            assert_eq!(files.steps.contains(&mask), is_masked, "{rule:?} {files:?}");
        }
        let process = ViewScript::new(&whole, ViewPurpose::Process);
        assert!(process.steps.contains(&("/dev".into(), ViewStep::MaskDir { is_open: true })), "{process:?}");
        let null = ("/dev/null".into(), ViewStep::Bind { is_read_only: false, is_dir: false, has_place: false });
        assert!(process.steps.contains(&null), "{process:?}");
    }
}
