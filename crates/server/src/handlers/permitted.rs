//! Where a principal may start processes, which variables it may set, and which sandbox it must use. These rules come
//! in addition to the scopes that the connection checks.
//!
//! They restrict requests; they do not confine processes. A running process can open everything that its user and its
//! sandbox allow.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use exec_server_protocol::process::EnvPolicy;

use crate::{
    access::{Grant, SandboxFloor},
    error::Failure,
    sandbox::{Confinement, NEEDS_RESTRICTED_FILES},
};

/// The default directory of a start: the principal's first root, or else the server's own directory.
pub(super) fn default_directory(grant: &Grant, own: Option<&Path>) -> PathBuf {
    let root = grant.rights().roots.first().map(PathBuf::as_path);
    root.or(own).unwrap_or(Path::new("/")).to_owned()
}

/// The directory to start in. If the principal has roots, symlinks are resolved, so that the checked directory is the
/// one that is used. `program` is for the error text.
pub(super) fn directory(grant: &Grant, path: PathBuf, program: &str) -> Result<PathBuf, Failure> {
    let roots = &grant.rights().roots;
    if roots.is_empty() {
        return Ok(path);
    }
    let forbidden =
        || Failure::OutsideRoots { principal: grant.principal().to_string(), cwd: path.display().to_string() };
    match path.canonicalize() {
        Ok(real) if is_beneath(&real, roots) => Ok(real),
        Ok(_) => Err(forbidden()),
        // Beneath a root, report the reason. Elsewhere do not reveal whether the path exists.
        Err(source) if is_beneath(&path, roots) && !path.components().any(|part| part == Component::ParentDir) => {
            Err(Failure::Cwd { program: program.to_owned(), cwd: path.display().to_string(), source })
        }
        Err(_) => Err(forbidden()),
    }
}

fn is_beneath(path: &Path, roots: &[PathBuf]) -> bool {
    // If a root is itself a symlink, its target counts.
    roots.iter().any(|root| path.starts_with(root) || root.canonicalize().is_ok_and(|root| path.starts_with(root)))
}

/// Checks that every variable set by the request is granted. Variables that the server passes on are the server's own
/// choice.
pub(crate) fn variables(
    grant: &Grant,
    policy: Option<&EnvPolicy>,
    request: &BTreeMap<String, String>,
) -> Result<(), Failure> {
    let Some(granted) = &grant.rights().env else { return Ok(()) };
    let is_granted = |name: &str| {
        granted.iter().any(|known| match known.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == known,
        })
    };
    let set = policy.into_iter().flat_map(|policy| policy.set.keys());
    match request.keys().chain(set).find(|name| !is_granted(name)) {
        None => Ok(()),
        Some(name) => Err(Failure::ForbiddenVariable { principal: grant.principal().to_string(), name: name.clone() }),
    }
}

/// Checks the requested sandbox against the principal's minimum. Whether the entries of a policy restrict anything is
/// known only when they are resolved on this host, which blocks. So the returned confinement only notes in `floor_of`
/// that they must restrict something.
pub(super) fn sandbox(grant: &Grant, asked: Option<Confinement>) -> Result<Option<Confinement>, Failure> {
    let Some(floor) = grant.rights().sandbox else { return Ok(asked) };
    let principal = grant.principal().to_string();
    match asked.filter(|asked| asked.files.is_some()) {
        None => Err(Failure::BelowFloor { principal, needed: NEEDS_RESTRICTED_FILES }),
        Some(asked) if floor == SandboxFloor::Offline && !asked.is_network_restricted => {
            Err(Failure::BelowFloor { principal, needed: "a sandbox without a network" })
        }
        Some(mut asked) => {
            asked.floor_of = Some(principal);
            Ok(Some(asked))
        }
    }
}

/// Checks that the principal may make HTTP requests. The server makes them, with its own network and not that of a
/// sandbox.
pub(super) fn network(grant: &Grant) -> Result<(), Failure> {
    match grant.rights().sandbox {
        Some(SandboxFloor::Offline) => {
            let principal = grant.principal().to_string();
            Err(Failure::BelowFloor {
                principal,
                needed: "a sandbox without a network, so HTTP requests are not possible",
            })
        }
        Some(SandboxFloor::Required) | None => Ok(()),
    }
}
