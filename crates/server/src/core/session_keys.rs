//! Sessions that a client names by a key of its own (`sessionKey` of `initialize`), so that it can send requests behind `initialize`.
//!
//! The id of such a session is a hash of the principal and the key. So the same key leads to the same session without a table, also after a
//! restart of the server, and the key of another principal leads to another session.
//!
//! A client sends the whole start of its session again if its connection breaks before the answer. The earlier attempt may reach the server
//! late, even after the session has ended. Without care it would then start the process a second time. So the server refuses an attempt that is
//! not the latest one (`Session::attach`), and remembers the sessions that have ended. A restart of the server empties this memory, but
//! also ends the connections on which such an attempt could arrive.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use exec_server_protocol::limits;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{Core, Principal};
use crate::{
    error::Failure,
    session::{Attachment, Session},
};

/// The keyed sessions of a server.
#[derive(Default)]
pub(super) struct KeyedSessions {
    /// Held while a session is created: of two connections with the same key, one creates the session and the other resumes it.
    creating: tokio::sync::Mutex<()>,
    ended: Mutex<EndedSessions>,
}

/// The sessions that have ended, oldest first. Bounded in number and time.
#[derive(Default)]
struct EndedSessions {
    by_age: VecDeque<(Instant, u128)>,
    ids: BTreeSet<u128>,
}

impl EndedSessions {
    fn add(&mut self, id: u128, now: Instant) {
        self.remove_old(now);
        if self.ids.insert(id) {
            self.by_age.push_back((now, id));
        }
    }

    fn contains(&mut self, id: u128, now: Instant) -> bool {
        self.remove_old(now);
        self.ids.contains(&id)
    }

    fn remove_old(&mut self, now: Instant) {
        while let Some((ended, id)) = self.by_age.front().copied()
            && (now.duration_since(ended) >= limits::ENDED_KEY_KEPT || self.by_age.len() >= limits::ENDED_KEYS)
        {
            self.by_age.pop_front();
            self.ids.remove(&id);
        }
    }
}

/// The id of the session that this key names for this principal.
fn session_id(principal: &Principal, key: &str) -> Result<uuid::Uuid, Failure> {
    let is_valid = limits::SESSION_KEY_BYTES.contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if !is_valid {
        let (least, most) = (limits::SESSION_KEY_BYTES.start(), limits::SESSION_KEY_BYTES.end());
        let reason = format!("sessionKey must have {least} to {most} letters, digits, `-` or `_`");
        return Err(Failure::InvalidParams { reason });
    }
    let mut sum = Sha256::new();
    sum.update(b"exec-server session key\0");
    // With its length, so that the boundary between principal and key counts.
    sum.update((principal.as_str().len() as u64).to_le_bytes());
    sum.update(principal.as_str());
    sum.update(key);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&sum.finalize()[..16]);
    Ok(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

impl Core {
    /// Finds or creates the session that this key names. Also returns whether it existed before.
    pub(crate) async fn keyed_session(
        self: &Arc<Self>,
        principal: &Principal,
        key: &str,
        attachment: Attachment,
    ) -> Result<(Arc<Session>, bool), Failure> {
        let uuid = session_id(principal, key)?;
        let id = uuid.to_string();
        let _creating = self.keyed.creating.lock().await;
        match self.session(&id, principal) {
            Ok(session) => Ok((session, true)),
            Err(Failure::UnknownSession { .. })
                if !self.keyed.ended.lock().contains(uuid.as_u128(), Instant::now()) =>
            {
                self.new_session(id, principal.clone(), attachment).await.map(|session| (session, false))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Remembers that a session has ended, so that a late attempt of its client does not create it again.
    pub(super) fn remember_ended(&self, id: &str) {
        // Only the ids of keyed sessions are custom UUIDs.
        if let Ok(uuid) = uuid::Uuid::parse_str(id)
            && uuid.get_version() == Some(uuid::Version::Custom)
        {
            self.keyed.ended.lock().add(uuid.as_u128(), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_key_names_one_session_for_each_principal() {
        let (one, other) = (Principal::named("one"), Principal::named("other"));
        let key = "0123456789abcdef";
        let id = session_id(&one, key).unwrap();
        assert_eq!(id, session_id(&one, key).unwrap());
        assert_ne!(id, session_id(&other, key).unwrap());
        assert_ne!(id, session_id(&one, "0123456789abcdeg").unwrap());
        assert_ne!(
            session_id(&Principal::named("ab"), "c123456789abcdef").unwrap(),
            session_id(&Principal::named("abc"), "0123456789abcdef").unwrap()
        );
    }

    #[test]
    fn keys_that_are_short_long_or_not_plain_text_are_refused() {
        let principal = Principal::owner();
        let million = "k".repeat(1 << 20);
        for key in
            ["", "short", "0123456789abcde/", "0123456789abcdé", "0123456789abcdef\0", &"k".repeat(129), &million]
        {
            let failure = session_id(&principal, key).unwrap_err();
            let Failure::InvalidParams { reason } = failure else { panic!("{failure}") };
            assert!(reason.len() < 100, "the text does not repeat the key: {reason}");
        }
        session_id(&principal, &"k".repeat(128)).unwrap();
    }

    #[test]
    fn ended_sessions_are_remembered_within_number_and_time() {
        let mut ended = EndedSessions::default();
        let begun = Instant::now();
        ended.add(0, begun);
        assert!(ended.contains(0, begun + limits::ENDED_KEY_KEPT - Duration::from_millis(1)));
        assert!(!ended.contains(0, begun + limits::ENDED_KEY_KEPT));
        for id in 0..2 * limits::ENDED_KEYS as u128 {
            ended.add(id, begun);
            ended.add(id, begun);
        }
        assert!(ended.by_age.len() <= limits::ENDED_KEYS && ended.ids.len() == ended.by_age.len());
        assert!(ended.contains(2 * limits::ENDED_KEYS as u128 - 1, begun));
    }
}
