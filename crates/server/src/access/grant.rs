//! What a connection was given at the door: who it speaks for, what it may do, and word of the day it may no more.
//! Must not know where a grant comes from, nor methods by name.

use std::{fmt, path::PathBuf, sync::Arc};

use exec_server_protocol::method::{Method, Scope};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::core::Principal;

/// What a principal may do. The widest is [`Rights::all`]; a token file gives less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Which methods it may call.
    pub scopes: Vec<Scope>,
    /// Directories beneath which its files lie and its processes start; empty means anywhere. No confinement: a process goes where it likes.
    pub roots: Vec<PathBuf>,
    /// Names of variables that its requests may set, `LC_*` for all that begin so; `None` means any.
    pub env: Option<Vec<String>>,
    /// How far its requests must be confined at least; `None` means that they need not be.
    pub sandbox: Option<Floor>,
}

/// The least that the sandbox of a request must be. What it grants is the request's own choice; that there is one is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Floor {
    /// One that restricts files, enforced by this server.
    Required,
    /// The same without a network.
    Offline,
}

impl Rights {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self { scopes: Scope::ALL.to_vec(), roots: Vec::new(), env: None, sandbox: None }
    }
}

/// Why a grant is no longer good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was revoked, or is no longer in the file.
    Revoked,
    /// Its time is over.
    Expired,
    /// It grants something else now; whoever connects again gets that.
    Changed,
}

impl Ended {
    /// One word for logs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::Changed => "changed",
        }
    }

    /// What a peer is told when its connection is closed for it.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Revoked => "access was revoked",
            Self::Expired => "access has expired",
            Self::Changed => "access was changed; connect again",
        }
    }
}

/// What the door gives to a connection. Cheap to copy; all copies hear of its end.
#[derive(Clone)]
pub struct Grant {
    principal: Principal,
    rights: Arc<Rights>,
    /// `None` where nobody can take it back while the server runs.
    ended: Option<watch::Receiver<Option<Ended>>>,
}

/// The source's end of its grants: where it takes them back.
#[derive(Debug)]
pub(super) struct Recall(watch::Sender<Option<Ended>>);

impl Recall {
    pub(super) fn new() -> Self {
        Self(watch::channel(None).0)
    }

    /// Some rights for a principal, until they are taken back here.
    pub(super) fn grant(&self, principal: Principal, rights: Arc<Rights>) -> Grant {
        Grant { principal, rights, ended: Some(self.0.subscribe()) }
    }

    /// Tells every grant; the first reason stays.
    pub(super) fn end(&self, why: Ended) {
        self.0.send_if_modified(|ended| ended.is_none() && ended.replace(why).is_none());
    }

    /// Whether anybody has a grant of it.
    pub(super) fn is_in_use(&self) -> bool {
        self.0.receiver_count() > 0
    }
}

impl Grant {
    /// Everything, for the owner of the server: whom the kernel or the owner's own token vouches for. Never taken back.
    #[must_use]
    pub fn owner() -> Self {
        Self { principal: Principal::owner(), rights: Arc::new(Rights::all()), ended: None }
    }

    /// Who it speaks for.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whether it is the owner of the server, to whom nothing is closed. Neither a token file nor a certificate can say so.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.principal == Principal::owner()
    }

    /// What it allows.
    #[must_use]
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// The scope that this method needs and the grant does not have.
    pub(crate) fn lacks(&self, method: &Method) -> Option<Scope> {
        method.scope.filter(|scope| !self.rights.scopes.contains(scope))
    }

    /// Returns when the grant is no longer good; cancel safe.
    pub(crate) async fn ended(&mut self) -> Ended {
        if let Some(ended) = &mut self.ended
            && let Ok(why) = ended.wait_for(Option::is_some).await
            && let Some(why) = *why
        {
            return why;
        }
        // Nobody is left who could take it back.
        std::future::pending().await
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant")
            .field("principal", &self.principal)
            .field("rights", &self.rights)
            .finish_non_exhaustive()
    }
}
