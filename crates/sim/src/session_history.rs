//! Records what happened to a session of the real client, to check the reason that the client gives when it gives up.

use std::cell::Cell;

use crate::{dialer::Dialer, prelude::*};

/// The history of one session, as used by one program.
pub struct SessionHistory {
    who: String,
    dialer: Dialer,
    trace: Trace,
    /// The client resumed after the time-to-live. The server may have accepted it at the last moment, but the session still ends.
    is_doomed: Cell<bool>,
    /// The program ended the session or requested it.
    pub ended: Cell<bool>,
    /// The program closed its connection or dropped its handles.
    pub left: Cell<bool>,
    /// A rival took the session.
    pub taken: Cell<bool>,
    /// The session's holder was killed. Shared by all programs that ever had this session.
    pub holder_killed: Rc<Cell<bool>>,
    /// Another program had this session before. Its remaining requests may still take the session.
    has_forerunner: bool,
    /// The client has given up.
    gave_up: Cell<bool>,
}

impl SessionHistory {
    /// A session to which nothing has happened.
    pub fn new(who: String, dialer: Dialer, trace: Trace) -> Self {
        Self {
            who,
            dialer,
            trace,
            is_doomed: Cell::default(),
            ended: Cell::default(),
            left: Cell::default(),
            taken: Cell::default(),
            holder_killed: Rc::default(),
            has_forerunner: false,
            gave_up: Cell::default(),
        }
    }

    /// The client has its session on the current link.
    pub fn handle_up(&self) {
        self.is_doomed.set(self.is_doomed.get() || self.dialer.last_received().elapsed() >= SESSION_TTL);
        self.dialer.mark_up();
    }

    /// Whether the session may have been detached for its time-to-live.
    fn may_have_expired(&self) -> bool {
        self.is_doomed.get() || self.dialer.last_received().elapsed() + Duration::from_secs(1) >= SESSION_TTL
    }

    /// The history of the same session, as used by the next program.
    pub fn continued(&self) -> Self {
        Self {
            is_doomed: self.is_doomed.clone(),
            ended: self.ended.clone(),
            holder_killed: self.holder_killed.clone(),
            has_forerunner: true,
            ..Self::new(self.who.clone(), self.dialer.clone(), self.trace.clone())
        }
    }

    /// Whether the holder may be gone: it was killed, or the session is being ended.
    fn may_lack_holder(&self) -> bool {
        self.holder_killed.get() || self.ended.get()
    }

    /// Whether the server may refuse a request with this error because of what happened to the session.
    fn may_refuse(&self, error: &Error) -> bool {
        match error.server_kind() {
            Some(Kind::HolderLost) => self.may_lack_holder(),
            Some(Kind::UnknownSession) => self.ended.get(),
            Some(Kind::SessionExpired) => self.may_have_expired(),
            _ => false,
        }
    }

    /// Checks the error of a call: what happened to the session must explain it.
    pub fn check_refusal(&self, what: &str, error: &Error) {
        match error {
            error if self.may_refuse(error) => {}
            Error::Disconnected { .. } | Error::SessionLost { .. } => self.check_error(what, error),
            _ => violation!(self.trace, Answered, "{} {what}: {error}", self.who),
        }
    }

    /// Checks the reason in an error that ends a session. A wrong reason fails the world.
    pub fn check_error(&self, what: &str, error: &Error) {
        let is_true = match error {
            Error::SessionLost { reason, .. } if reason.contains("expired") => self.may_have_expired(),
            Error::SessionLost { reason, .. } if reason.contains("taken") => self.taken.get(),
            // Only the server that saw a session end knows the reason. The next server only knows that the session does not exist.
            Error::SessionLost { reason, .. } if reason.contains("unknown session") => {
                self.may_lack_holder() || self.may_have_expired()
            }
            // The holder was killed, or a server ended the session and crashed before it could report that.
            Error::SessionLost { .. } => self.may_lack_holder(),
            Error::Disconnected { reason: Some(reason) } if reason.contains("the session was ended") => {
                self.ended.get()
            }
            Error::Disconnected { reason: Some(reason) } if reason.contains("not restored within") => {
                let by_forerunner = self.has_forerunner && reason.contains("resumed by another connection");
                self.taken.get() || by_forerunner || self.may_have_expired()
            }
            Error::Disconnected { .. } => self.left.get() || self.ended.get(),
            _ => false,
        };
        let text = repeatable(error);
        self.trace.line(format_args!("{} {what}: {text}", self.who));
        if !is_true {
            violation!(self.trace, Lost, "{} {what}: `{text}` is not true", self.who);
        } else if !self.gave_up.replace(true) && !self.left.get() {
            self.trace.count(Branch::GaveUp);
        }
    }
}

/// The text of an error without the time of day, so that the trace is repeatable. Session ids are the same in every run.
pub fn repeatable(error: &Error) -> String {
    let text = error.to_string();
    match text.split_once("unix time ") {
        Some((before, after)) => {
            format!("{before}unix time …{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        None => text,
    }
}
