//! Where a principal may start processes, which variables it may set and how far it must be confined, beside the scopes that the
//! dispatcher asks for.
//!
//! These are rules for requests and no confinement: a process that runs opens what its user, and its sandbox, let it. Must not know how a
//! grant came about.

use std::{
    collections::BTreeMap,
    io,
    path::{Component, Path, PathBuf},
};

use exec_server_protocol::process::EnvPolicy;

use crate::{
    access::{Floor, Grant},
    error::Failure,
    sandbox::Confinement,
};

/// The directory to start in, with links resolved where that matters: what was looked at is what is used.
pub(super) fn directory(grant: &Grant, path: PathBuf) -> Result<PathBuf, Failure> {
    let roots = &grant.rights().roots;
    if roots.is_empty() {
        return Ok(path);
    }
    let forbidden =
        || Failure::OutsideRoots { principal: grant.principal().to_string(), cwd: path.display().to_string() };
    match path.canonicalize() {
        Ok(real) if is_beneath(&real, roots) => Ok(real),
        Ok(_) => Err(forbidden()),
        // Beneath a root people are told what is wrong; elsewhere not even whether it is there.
        Err(source) if is_beneath(&path, roots) && !path.components().any(|part| part == Component::ParentDir) => {
            Err(Failure::Cwd { program: String::new(), cwd: path.display().to_string(), source })
        }
        Err(_) => Err(forbidden()),
    }
}

fn is_beneath(path: &Path, roots: &[PathBuf]) -> bool {
    // A root that is a link itself means where it leads.
    let real = |root: &PathBuf| -> io::Result<PathBuf> { root.canonicalize() };
    roots.iter().any(|root| path.starts_with(root) || real(root).is_ok_and(|root| path.starts_with(root)))
}

/// Every variable that the request sets must be among those granted; what the server hands down is the server's own choice.
pub(super) fn variables(
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

/// What touches files or runs is confined as far as the principal must be at least.
pub(super) fn sandbox(grant: &Grant, asked: Option<&Confinement>) -> Result<(), Failure> {
    let needed = match grant.rights().sandbox {
        None => return Ok(()),
        Some(_) if !asked.is_some_and(Confinement::restricts_files) => "a sandbox that restricts files",
        Some(Floor::Offline) if !asked.is_some_and(Confinement::restricts_network) => "a sandbox without a network",
        Some(Floor::Required | Floor::Offline) => return Ok(()),
    };
    Err(Failure::BelowFloor { principal: grant.principal().to_string(), needed })
}

/// A request of our own making has the server's network, whatever the sandbox of a process has.
pub(super) fn network(grant: &Grant) -> Result<(), Failure> {
    match grant.rights().sandbox {
        Some(Floor::Offline) => {
            let principal = grant.principal().to_string();
            Err(Failure::BelowFloor { principal, needed: "a sandbox without a network, where no HTTP request is made" })
        }
        Some(Floor::Required) | None => Ok(()),
    }
}
