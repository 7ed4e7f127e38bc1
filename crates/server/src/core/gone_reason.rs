//! Remembers why a session is gone, for clients that ask for it later.

use exec_server_holder::tombstone::{ExpiredProcess, Tombstone};

use crate::{error::Failure, process::ProcessMeta};

pub(super) enum GoneReason {
    /// The session's time-to-live ran out.
    Expired { when: String, processes: Vec<String> },
    /// The session's holder died.
    HolderLost,
}

impl GoneReason {
    /// The time-to-live ran out now.
    pub(super) fn expired_now(processes: Vec<String>) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self::Expired { when: format!("at unix time {}", now.as_secs()), processes }
    }

    /// The time-to-live ran out while no server ran. `text` is the tombstone that the holder wrote.
    pub(super) fn expired_before(text: &str) -> Self {
        let Some(tombstone) = Tombstone::decode(text) else {
            return Self::Expired { when: "at an unknown time".to_owned(), processes: Vec::new() };
        };
        let name = |ended: &ExpiredProcess| {
            serde_json::from_slice::<ProcessMeta>(&ended.meta).ok().map(|meta| meta.process_id)
        };
        let processes = tombstone.processes.iter().filter_map(name).collect();
        Self::Expired { when: format!("at unix time {}", tombstone.unix_seconds), processes }
    }

    /// The error for a client that asks for the session.
    pub(super) fn failure(&self, id: &str) -> Failure {
        match self {
            Self::HolderLost => Failure::HolderLost { session: id.to_owned() },
            Self::Expired { when, processes } => Failure::SessionExpired {
                id: id.to_owned(),
                when: when.clone(),
                what: if processes.is_empty() { "none".to_owned() } else { processes.join(", ") },
            },
        }
    }
}
