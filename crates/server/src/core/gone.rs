//! What is remembered of a session that is gone. Must not know how it went.

use exec_server_holder::tombstone::{Ended, Tombstone};

use crate::{error::Failure, process::Meta};

/// Why a session is gone.
pub(super) enum Gone {
    /// Its time was over.
    Expired { when: String, processes: Vec<String> },
    /// Its holder died.
    HolderLost,
}

impl Gone {
    /// Its time is over now.
    pub(super) fn expired_now(processes: Vec<String>) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self::Expired { when: format!("at unix time {}", now.as_secs()), processes }
    }

    /// Its time was over when no server was there: what its holder wrote then.
    pub(super) fn expired_before(text: &str) -> Self {
        let Some(tombstone) = Tombstone::decode(text) else {
            return Self::Expired { when: "at an unknown time".to_owned(), processes: Vec::new() };
        };
        let name = |ended: &Ended| serde_json::from_slice::<Meta>(&ended.meta).ok().map(|meta| meta.process_id);
        let processes = tombstone.processes.iter().filter_map(name).collect();
        Self::Expired { when: format!("at unix time {}", tombstone.unix_seconds), processes }
    }

    /// What somebody is told who asks for it.
    pub(super) fn failure(&self, id: &str) -> Failure {
        match self {
            Self::HolderLost => Failure::HolderLost { session: id.to_owned() },
            Self::Expired { when, processes } => Failure::SessionExpired {
                id: id.to_owned(),
                when: when.clone(),
                what: if processes.is_empty() { "no process".to_owned() } else { processes.join(", ") },
            },
        }
    }
}
