//! What a person is told of the link while a program runs: that it is lost or silent, and that it is well again.
//!
//! Beside a program that has our screen this is a line on the last row, which goes when the link is well; the program is made to
//! draw again by the caller. Everywhere else it is a line on standard error each. Must not know what is carried over the link.

use exec_server_client::State;
use tokio::sync::watch;

use crate::{ids, say, terminal};

/// See the module.
pub(crate) struct LinkNotice {
    state: watch::Receiver<State>,
    /// A program has our screen: lines of ours would be in the middle of its picture.
    has_screen: bool,
    /// What is the matter now, if anything, and the text that tells it.
    trouble: Option<(Trouble, String)>,
    is_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Lost,
    Silent,
}

impl LinkNotice {
    pub(crate) fn new(state: watch::Receiver<State>, has_screen: bool) -> Self {
        Self { state, has_screen, trouble: None, is_over: false }
    }

    pub(super) fn is_broken(&self) -> bool {
        matches!(*self.state.borrow(), State::Recovering { .. })
    }

    /// Reports one change; returns true if the link is well again after trouble. Never done once nothing can change.
    /// Cancel safe.
    pub(crate) async fn watch(&mut self) -> bool {
        if self.is_over || self.state.changed().await.is_err() {
            self.is_over = true;
            return std::future::pending().await;
        }
        let state = self.state.borrow_and_update().clone();
        match state {
            // Something else than the first reason keeps it from being mended.
            State::Recovering { reason } if matches!(self.trouble, Some((Trouble::Lost, _))) => {
                let text = format!("exec-server: still reconnecting: {}", ids::clean(&reason));
                self.report(Trouble::Lost, text);
                false
            }
            State::Recovering { reason } => {
                let text = format!("exec-server: connection lost ({}); reconnecting", ids::clean(&reason));
                self.report(Trouble::Lost, text);
                false
            }
            State::Stalled { silent } => {
                let text = format!("exec-server: no answer for {} s; waiting", silent.as_secs());
                self.report(Trouble::Silent, text);
                false
            }
            State::Connected => self.report_end(),
            // Its error is printed by the caller.
            _ => {
                self.hide();
                false
            }
        }
    }

    /// Draws the line again on a screen of another size.
    pub(super) fn handle_resize(&self) {
        if let Some((_, text)) = self.trouble.as_ref().filter(|_| self.has_screen) {
            terminal::show_status(text, true);
        }
    }

    fn report(&mut self, trouble: Trouble, text: String) {
        if self.has_screen {
            terminal::show_status(&text, self.trouble.is_some());
        } else {
            say::notice(&text);
        }
        self.trouble = Some((trouble, text));
    }

    fn report_end(&mut self) -> bool {
        match self.trouble.as_ref().map(|(trouble, _)| *trouble) {
            None => return false,
            Some(_) if self.has_screen => self.hide(),
            Some(Trouble::Lost) => say::notice("exec-server: connected again"),
            Some(Trouble::Silent) => say::notice("exec-server: the server answers again"),
        }
        self.trouble = None;
        true
    }

    fn hide(&mut self) {
        if self.trouble.take().is_some() && self.has_screen {
            terminal::hide_status();
        }
    }
}

impl Drop for LinkNotice {
    fn drop(&mut self) {
        // The work may end before the last change was looked at.
        if !self.has_screen && matches!(*self.state.borrow(), State::Connected) {
            self.report_end();
        }
        self.hide();
    }
}
