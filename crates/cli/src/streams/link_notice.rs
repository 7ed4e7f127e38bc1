//! Tells the user while a program runs that the link is lost or silent, and that it works again.
//!
//! If the program uses our screen, the notice is a line on the last row, which disappears when the link works again; the caller then makes
//! the program redraw. Otherwise each notice is a line on stderr.

use exec_server_client::ConnectionState;
use tokio::sync::watch;

use crate::{ids, terminal};

pub(crate) struct LinkNotice {
    state: watch::Receiver<ConnectionState>,
    /// The program uses our screen, so a line on stderr would corrupt its picture.
    has_screen: bool,
    /// The current trouble, if any, and the text of the notice.
    problem: Option<(LinkProblem, String)>,
    is_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkProblem {
    Lost,
    Silent,
}

impl LinkNotice {
    pub(crate) fn new(state: watch::Receiver<ConnectionState>, has_screen: bool) -> Self {
        Self { state, has_screen, problem: None, is_over: false }
    }

    pub(super) fn is_broken(&self) -> bool {
        matches!(*self.state.borrow(), ConnectionState::Recovering { .. })
    }

    /// Reports one change. Returns true if the link works again after trouble. Never completes once the state can no longer change.
    /// Cancel-safe.
    pub(crate) async fn watch(&mut self) -> bool {
        if self.is_over || self.state.changed().await.is_err() {
            self.is_over = true;
            return std::future::pending().await;
        }
        let state = self.state.borrow_and_update().clone();
        let (problem, text) = match state {
            // The reconnect now fails for another reason than the first one.
            ConnectionState::Recovering { reason } if matches!(self.problem, Some((LinkProblem::Lost, _))) => {
                (LinkProblem::Lost, format!("still reconnecting: {}", ids::clean(&reason)))
            }
            ConnectionState::Recovering { reason } => {
                (LinkProblem::Lost, format!("connection lost ({}); reconnecting", ids::clean(&reason)))
            }
            ConnectionState::Stalled { silent } => {
                (LinkProblem::Silent, format!("no answer for {} s; waiting", silent.as_secs()))
            }
            ConnectionState::Connected => return self.report_end(),
            // The caller prints the error of a lost session.
            _ => {
                self.hide();
                return false;
            }
        };
        if self.has_screen {
            terminal::show_status(&format!("exec-server: {text}"), self.problem.is_some());
        } else {
            notice!("{text}");
        }
        self.problem = Some((problem, text));
        false
    }

    /// Draws the line again after the terminal was resized.
    pub(super) fn handle_resize(&self) {
        if let Some((_, text)) = self.problem.as_ref().filter(|_| self.has_screen) {
            terminal::show_status(&format!("exec-server: {text}"), true);
        }
    }

    fn report_end(&mut self) -> bool {
        match self.problem.as_ref().map(|(problem, _)| *problem) {
            None => return false,
            Some(_) if self.has_screen => self.hide(),
            Some(LinkProblem::Lost) => notice!("connected again"),
            Some(LinkProblem::Silent) => notice!("the server answers again"),
        }
        self.problem = None;
        true
    }

    fn hide(&mut self) {
        if self.problem.take().is_some() && self.has_screen {
            terminal::hide_status();
        }
    }
}

impl Drop for LinkNotice {
    fn drop(&mut self) {
        // The work may have ended before the last change was seen.
        if !self.has_screen && matches!(*self.state.borrow(), ConnectionState::Connected) {
            self.report_end();
        }
        self.hide();
    }
}
