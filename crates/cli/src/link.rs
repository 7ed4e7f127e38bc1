//! Prints one line whenever a link to a server breaks, stalls or recovers while a command runs.

use std::{collections::BTreeSet, future::Future};

use exec_server_client::{Client, ConnectionState};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::sync::watch;

use crate::printable;

/// Runs `work` and reports the state of the links, once per server.
pub(crate) async fn report_during<T>(clients: &[Client], report: impl Fn(&str), work: impl Future<Output = T>) -> T {
    let mut seen = BTreeSet::new();
    let servers = clients.iter().filter(|client| seen.insert(client.address()));
    let mut links: FuturesUnordered<_> =
        servers.map(|client| report_state_changes(client.watch_state(), client.address(), &report)).collect();
    tokio::pin!(work);
    loop {
        // Both futures are cancel-safe, and `work` is never dropped before its end.
        tokio::select! {
            done = &mut work => return done,
            Some(()) = links.next() => {}
        }
    }
}

/// Reports the state of one link on stderr, for commands that cannot pass their work to [`report_during`]. The future ends with the
/// session; a caller that is done earlier aborts the task that runs the future. The future does not keep the client alive.
pub(crate) fn report_on_stderr(client: &Client) -> impl Future<Output = ()> + Send + 'static {
    let state = client.watch_state();
    let address = client.address();
    async move { report_state_changes(state, address, &|text: &str| report!("{text}")).await }
}

/// Reports each change until the session is lost. The loss itself is reported by the operation that fails because of it.
async fn report_state_changes(mut state: watch::Receiver<ConnectionState>, address: String, report: &impl Fn(&str)) {
    let mut is_broken = false;
    let mut is_silent = false;
    while state.changed().await.is_ok() {
        let now = state.borrow_and_update().clone();
        match now {
            ConnectionState::Recovering { reason } if !is_broken => {
                is_broken = true;
                report(&format!("connection to {address} lost ({}); reconnecting", printable::clean(&reason)));
            }
            ConnectionState::Recovering { reason } => {
                report(&format!("still reconnecting to {address}: {}", printable::clean(&reason)))
            }
            ConnectionState::Stalled { silent } if !is_broken => {
                is_silent = true;
                report(&format!("no answer from {address} for {} s; waiting", silent.as_secs()));
            }
            ConnectionState::Connected if is_broken => {
                is_broken = false;
                is_silent = false;
                report(&format!("connected to {address} again"));
            }
            ConnectionState::Connected if is_silent => {
                is_silent = false;
                report(&format!("{address} answers again"));
            }
            _ => {}
        }
    }
}
