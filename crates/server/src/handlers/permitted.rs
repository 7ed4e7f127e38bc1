//! Where a principal may start processes and which variables it may set, beside the scopes that the dispatcher asks for.
//!
//! This is a rule for requests and no confinement: a process that runs opens what its user may open. Must not know how a grant came about.

use std::{
    collections::BTreeMap,
    io,
    path::{Component, Path, PathBuf},
};

use exec_server_protocol::process::EnvPolicy;

use crate::{access::Grant, error::Failure};

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
