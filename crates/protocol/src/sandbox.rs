//! The sandbox context that `process/start`, `http/request` and every `fs/*` method with a path accept.
//!
//! Inside `permissions`, names are in snake case, as in the reference. The older profile without a `type` is accepted too. A profile with
//! more entries than [`limits::SANDBOX_ENTRIES`] is refused, because the server has to process each entry for every request.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    limits,
    path::PathArg,
    tolerant::{is_false, null_default},
};

/// The sandbox of a request: its policy, and the directories that the policy's entries refer to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SandboxContext {
    /// The policy.
    pub permissions: Profile,
    /// Base directory of relative patterns. If `workspaceRoots` is absent and this is a native path, it is also the only project root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathArg>,
    /// The project roots. An empty list means that there are none.
    #[serde(default, deserialize_with = "bounded_roots", skip_serializing_if = "Option::is_none")]
    pub workspace_roots: Option<Vec<PathArg>>,
    /// For another platform. Ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows_sandbox_level: Option<String>,
    /// For another platform. Ignored.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub windows_sandbox_private_desktop: bool,
    /// For another platform. Ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows_sandbox_proxy_settings_mode: Option<String>,
    /// Selects a back end of the reference. Ignored.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "is_false")]
    pub use_legacy_landlock: bool,
}

/// A sandbox policy: which side enforces it, and what it allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
pub enum Profile {
    /// This server enforces the sandbox.
    Managed {
        /// Access to files.
        file_system: FileSystem,
        /// Access to the network.
        network: Network,
    },
    /// No sandbox.
    Disabled,
    /// Another program enforces the sandbox. This server does not confine anything.
    External {
        /// The network access that the external sandbox allows.
        network: Network,
    },
}

/// Access to files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FileSystem {
    /// Everything that the user of the process may access.
    Unrestricted,
    /// Only what the entries grant. If several entries cover a path, the one with the longest path decides.
    Restricted {
        /// Grants and denials.
        entries: Vec<Entry>,
        /// Maximum depth of a pattern search, counted from the end of the pattern's fixed part. At least 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        glob_scan_max_depth: Option<usize>,
    },
}

/// Access to the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// No connections.
    #[default]
    Restricted,
    /// The same access as without a sandbox.
    Enabled,
}

/// One grant or denial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Entry {
    /// The path that the entry is about. The entry covers everything below it.
    pub path: EntryPath,
    /// The access that the entry allows.
    pub access: Access,
    /// `skip`: ignore the entry if the path does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_path_behavior: Option<String>,
}

/// The access that an entry allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read and execute.
    Read,
    /// Read, execute and write.
    Write,
    /// No access. `none` is accepted as another name.
    #[serde(alias = "none")]
    Deny,
}

/// The path that an entry is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EntryPath {
    /// A file or directory.
    Path {
        /// An absolute path or a `file:` URI.
        path: PathArg,
    },
    /// All paths that match a pattern when the policy is applied.
    GlobPattern {
        /// Glob pattern: `*`, `?` and `[..]` match within a name, `**` matches across directories. Relative to `cwd`, unless it begins with
        /// a slash.
        pattern: String,
    },
    /// A predefined place.
    Special {
        /// Which place.
        value: Special,
    },
}

/// A predefined place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Special {
    /// The root directory, `/`.
    Root,
    /// The directories that programs of the system need to run, such as `/usr`, `/etc` and `/lib`.
    Minimal,
    /// The project roots: `workspaceRoots`, or `cwd`. `current_working_directory` is accepted as another name.
    #[serde(alias = "current_working_directory")]
    ProjectRoots {
        /// A relative path that is appended to each project root.
        #[serde(skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
    /// The directory that the server's `TMPDIR` names.
    Tmpdir,
    /// The directory `/tmp`.
    SlashTmp,
    /// A place that a later generation may define. An entry that grants access to it has no effect; an entry that
    /// denies access to it is an error.
    Unknown {
        /// Name of the place in that generation.
        #[serde(default, deserialize_with = "null_default")]
        path: String,
        /// A relative path below the place.
        #[serde(skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
}

/// The older form of a profile, without a `type`. It grants only what it mentions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Untagged {
    network: Option<UntaggedNetwork>,
    file_system: Option<UntaggedFileSystem>,
}

#[derive(Deserialize)]
struct UntaggedNetwork {
    enabled: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UntaggedFileSystem {
    #[serde(default, deserialize_with = "null_default")]
    read: Vec<PathArg>,
    #[serde(default, deserialize_with = "null_default")]
    write: Vec<PathArg>,
    #[serde(default, deserialize_with = "null_default")]
    entries: Vec<Entry>,
    glob_scan_max_depth: Option<usize>,
}

// With `remote = "Self"`, the derives generate the functions `Profile::serialize` and `Profile::deserialize` for the form with a `type`, and
// leave the traits to the next two impls, which call these functions.
impl Serialize for Profile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Profile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let profile = if value.get("type").is_some() {
            Self::deserialize(value)
        } else {
            Untagged::deserialize(value).map(Self::from)
        };
        let profile = profile.map_err(D::Error::custom)?;
        profile.refuse_too_much().map_err(D::Error::custom)?;
        Ok(profile)
    }
}

impl Profile {
    fn refuse_too_much(&self) -> Result<(), String> {
        let Self::Managed { file_system: FileSystem::Restricted { entries, .. }, .. } = self else { return Ok(()) };
        let patterns = entries.iter().filter(|entry| matches!(entry.path, EntryPath::GlobPattern { .. })).count();
        refuse_more(entries.len(), limits::SANDBOX_ENTRIES, "entries")?;
        refuse_more(patterns, limits::SANDBOX_PATTERNS, "patterns")
    }
}

fn refuse_more(count: usize, most: usize, what: &str) -> Result<(), String> {
    if count > most { Err(format!("a sandbox has at most {most} {what}, this one has {count}")) } else { Ok(()) }
}

fn bounded_roots<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<PathArg>>, D::Error> {
    let roots = Option::<Vec<PathArg>>::deserialize(deserializer)?;
    refuse_more(roots.as_ref().map_or(0, Vec::len), limits::SANDBOX_ROOTS, "workspaceRoots")
        .map_err(D::Error::custom)?;
    Ok(roots)
}

impl From<Untagged> for Profile {
    fn from(untagged: Untagged) -> Self {
        let enabled = untagged.network.and_then(|network| network.enabled).unwrap_or(false);
        let (mut entries, mut depth) = (Vec::new(), None);
        if let Some(file_system) = untagged.file_system {
            let entry =
                |access| move |path| Entry { path: EntryPath::Path { path }, access, missing_path_behavior: None };
            entries.extend(file_system.entries);
            entries.extend(file_system.read.into_iter().map(entry(Access::Read)));
            entries.extend(file_system.write.into_iter().map(entry(Access::Write)));
            depth = file_system.glob_scan_max_depth;
        }
        Self::Managed {
            file_system: FileSystem::Restricted { entries, glob_scan_max_depth: depth },
            network: if enabled { Network::Enabled } else { Network::Restricted },
        }
    }
}

/// The sandbox that was applied to a request, as reported in its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AppliedSandbox {
    /// Confinement of files.
    pub file_system: AppliedFileSystem,
    /// Access to the network.
    pub network: Network,
}

/// Confinement of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum AppliedFileSystem {
    /// Not confined.
    Unrestricted,
    /// Confined to a view of the file system in which everything that is not granted is missing or read-only. For a process, Landlock rules
    /// apply too.
    View,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<SandboxContext, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn a_profile_of_the_reference_decodes_completely() {
        let context = read(json!({
            "permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "restricted", "glob_scan_max_depth": 3,
                "entries": [
                    {"path": {"type": "special", "value": {"kind": "root"}}, "access": "read"},
                    {"path": {"type": "special", "value": {"kind": "current_working_directory"}}, "access": "write"},
                    {"path": {"type": "special", "value": {"kind": "project_roots", "subpath": ".git"}}, "access": "read", "missing_path_behavior": "skip"},
                    {"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "none"},
                    {"path": {"type": "path", "path": "file:///x"}, "access": "deny"},
                    {"path": {"type": "special", "value": {"kind": "unknown", "path": "later"}}, "access": "read"}]}},
            "cwd": "/w", "workspaceRoots": [], "windowsSandboxLevel": "disabled", "useLegacyLandlock": false}))
        .unwrap();
        let Profile::Managed { file_system: FileSystem::Restricted { entries, glob_scan_max_depth }, network } =
            context.permissions
        else {
            panic!("not restricted");
        };
        assert_eq!((entries.len(), glob_scan_max_depth, network), (6, Some(3), Network::Restricted));
        assert_eq!(entries[1].path, EntryPath::Special { value: Special::ProjectRoots { subpath: None } });
        assert_eq!((entries[3].access, entries[4].access), (Access::Deny, Access::Deny));
        assert_eq!(context.workspace_roots, Some(Vec::new()));
    }

    #[test]
    fn profiles_without_confinement_and_older_profiles_decode() {
        let permissions = |value| read(json!({ "permissions": value })).map(|context| context.permissions);
        assert_eq!(permissions(json!({"type": "disabled"})), Ok(Profile::Disabled));
        assert_eq!(
            permissions(json!({"type": "external", "network": "enabled"})),
            Ok(Profile::External { network: Network::Enabled })
        );
        let Ok(Profile::Managed { file_system: FileSystem::Restricted { entries, .. }, network }) =
            permissions(json!({"network": {"enabled": true}, "file_system": {"read": ["/r"], "write": ["/w"]}}))
        else {
            panic!("not read");
        };
        assert_eq!((entries.len(), entries[1].access, network), (2, Access::Write, Network::Enabled));
    }

    #[test]
    fn too_many_entries_patterns_or_roots_are_refused() {
        let path = |n: usize| json!({"path": {"type": "path", "path": format!("/{n}")}, "access": "read"});
        let pattern =
            |n: usize| json!({"path": {"type": "glob_pattern", "pattern": format!("/{n}/*")}, "access": "deny"});
        let managed = |entries: Vec<serde_json::Value>| {
            json!({"permissions": {"type": "managed", "network": "restricted",
                "file_system": {"type": "restricted", "entries": entries}}})
        };
        let older = |count: usize| {
            let read: Vec<_> = (0..count).map(|n| format!("/{n}")).collect();
            json!({"permissions": {"file_system": {"read": read}}})
        };
        let rooted = |count: usize| {
            let roots: Vec<_> = (0..count).map(|n| format!("/{n}")).collect();
            json!({"permissions": {"type": "disabled"}, "workspaceRoots": roots})
        };
        for (most, make, expected) in [
            (2000, &(|n| managed((0..n).map(path).collect())) as &dyn Fn(usize) -> serde_json::Value, "entries"),
            (2000, &older, "entries"),
            (64, &|n| managed((0..n).map(pattern).collect()), "patterns"),
            (64, &rooted, "workspaceRoots"),
        ] {
            assert!(read(make(most)).is_ok(), "{expected}");
            let error = read(make(most + 1)).unwrap_err();
            assert!(error.contains(&format!("at most {most} {expected}, this one has {}", most + 1)), "{error}");
        }
    }

    #[test]
    fn a_profile_that_is_not_understood_is_an_error() {
        for value in [
            json!({}),
            json!({"permissions": {"type": "later"}}),
            json!({"permissions": {"sandbox_mode": "read-only"}}),
            json!({"permissions": {"type": "managed", "network": "restricted", "file_system": {"type": "restricted"}}}),
            json!({"permissions": {"type": "managed", "network": "maybe", "file_system": {"type": "unrestricted"}}}),
            json!({"permissions": {"type": "managed", "file_system": {"type": "unrestricted"}}}),
        ] {
            assert!(read(value.clone()).is_err(), "{value}");
        }
    }
}
