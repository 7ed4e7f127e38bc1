//! The grant that admission gives to a connection: the principal, its rights, and a notification when they end. This
//! module does not know how the principal was authenticated.

use std::{path::PathBuf, sync::Arc};

use exec_server_protocol::method::{MethodInfo, Scope};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::core::Principal;

/// The rights of a principal. The widest are [`Rights::all`]; a token file can give less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The scopes of the methods that it may call.
    pub scopes: Vec<Scope>,
    /// Directories to which file methods and the working directories of processes are limited. Empty: no limit. This
    /// does not confine a process: once started, it can access everything that its user and its sandbox allow.
    pub roots: Vec<PathBuf>,
    /// Names of environment variables that its requests may set; `LC_*` matches a prefix. `None`: any.
    pub env: Option<Vec<String>>,
    /// The weakest sandbox that its requests may use. `None`: a sandbox is not required.
    pub sandbox: Option<SandboxFloor>,
}

/// The minimum for the sandbox of a request. The request must have a sandbox, but chooses itself what the sandbox
/// allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxFloor {
    /// A sandbox that restricts files and that this server enforces.
    Required,
    /// Like `Required`, and also without network access.
    Offline,
}

impl Rights {
    #[must_use]
    pub fn all() -> Self {
        Self { scopes: Scope::ALL.to_vec(), roots: Vec::new(), env: None, sandbox: None }
    }
}

/// Why a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantEnd {
    /// The entry was revoked or removed from the file, or the file no longer accepts the unlisted certificate.
    Revoked,
    /// The entry's expiry date has passed.
    Expired,
    /// The token or certificate now has another name or other rights. A client that reconnects gets those.
    Changed,
}

impl GrantEnd {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::Changed => "changed",
        }
    }

    /// The close reason that the peer gets.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Revoked => "access was revoked",
            Self::Expired => "access has expired",
            Self::Changed => "access was changed; connect again",
        }
    }
}

/// A connection's principal and rights. Cheap to clone; all clones are notified when it ends.
#[derive(Clone, Debug)]
pub struct Grant {
    principal: Principal,
    rights: Arc<Rights>,
    /// `None` for a grant that cannot be revoked while the server runs.
    ended: Option<watch::Receiver<Option<GrantEnd>>>,
}

/// The revoking end of the grants of one entry.
#[derive(Debug)]
pub(super) struct GrantRevoker(watch::Sender<Option<GrantEnd>>);

impl GrantRevoker {
    pub(super) fn new() -> Self {
        Self(watch::channel(None).0)
    }

    pub(super) fn grant(&self, principal: Principal, rights: Arc<Rights>) -> Grant {
        Grant { principal, rights, ended: Some(self.0.subscribe()) }
    }

    /// Ends all grants. If they have ended before, the first reason stays.
    pub(super) fn end(&self, why: GrantEnd) {
        self.0.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(why);
            is_first
        });
    }

    /// Whether a grant of this entry still exists.
    pub(super) fn is_in_use(&self) -> bool {
        self.0.receiver_count() > 0
    }
}

impl Grant {
    /// All rights. Given to the owner of the server, who is authenticated by the kernel or by the owner's token. Never
    /// revoked.
    #[must_use]
    pub fn owner() -> Self {
        Self { principal: Principal::owner(), rights: Arc::new(Rights::all()), ended: None }
    }

    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whether the principal is the owner of the server, who may access everything. Neither a token file nor a
    /// certificate can name the owner.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.principal == Principal::owner()
    }

    #[must_use]
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// The scope that the method needs, if the grant does not have it.
    pub(crate) fn missing_scope(&self, method: &MethodInfo) -> Option<Scope> {
        method.scope.filter(|scope| !self.rights.scopes.contains(scope))
    }

    /// Returns when the grant ends; never for a grant that cannot be revoked. Cancel safe.
    pub(crate) async fn ended(&mut self) -> GrantEnd {
        if let Some(ended) = &mut self.ended
            && let Ok(why) = ended.wait_for(Option::is_some).await
            && let Some(why) = *why
        {
            return why;
        }
        // The grant cannot be revoked, or its `GrantRevoker` was dropped.
        std::future::pending().await
    }
}
