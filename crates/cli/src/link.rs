//! Prints one line whenever a link to a server breaks, stalls or recovers while a command runs.

use std::{collections::BTreeSet, future::Future};

use exec_server_client::{Client, ConnectionState};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::sync::watch;

use crate::{printable, say};

/// Runs `work` and reports the state of the links, once per server.
pub(crate) async fn telling<T>(clients: &[Client], say: impl Fn(&str), work: impl Future<Output = T>) -> T {
    let mut seen = BTreeSet::new();
    let servers = clients.iter().filter(|client| seen.insert(client.address()));
    let mut links: FuturesUnordered<_> = servers.map(|client| tell(client, &say)).collect();
    tokio::pin!(work);
    loop {
        // Both futures are cancel-safe, and `work` is never dropped before its end.
        tokio::select! {
            done = &mut work => return done,
            Some(()) = links.next() => {}
        }
    }
}

/// Reports each change until the session is lost. The loss itself is reported by the operation that fails because of it.
async fn tell(client: &Client, say: &impl Fn(&str)) {
    tell_of(client.watch_state(), client.address(), say).await;
}

/// As [`telling`], for a command without a future to wrap: reports on stderr until the task is aborted. Does not keep the client alive.
pub(crate) fn notices(client: &Client) -> impl Future<Output = ()> + Send + 'static {
    let (state, address) = (client.watch_state(), client.address());
    async move { tell_of(state, address, &|text: &str| say::talk(format_args!("exec-server: {text}"))).await }
}

async fn tell_of(mut state: watch::Receiver<ConnectionState>, address: String, say: &impl Fn(&str)) {
    let (mut is_broken, mut is_silent) = (false, false);
    while state.changed().await.is_ok() {
        let now = state.borrow_and_update().clone();
        match now {
            ConnectionState::Recovering { reason } if !is_broken => {
                is_broken = true;
                say(&format!("connection to {address} lost ({}); reconnecting", printable::clean(&reason)));
            }
            ConnectionState::Recovering { reason } => {
                say(&format!("still reconnecting to {address}: {}", printable::clean(&reason)))
            }
            ConnectionState::Stalled { silent } if !is_broken => {
                is_silent = true;
                say(&format!("no answer from {address} for {} s; waiting", silent.as_secs()));
            }
            ConnectionState::Connected if is_broken => {
                (is_broken, is_silent) = (false, false);
                say(&format!("connected to {address} again"));
            }
            ConnectionState::Connected if is_silent => {
                is_silent = false;
                say(&format!("{address} answers again"));
            }
            _ => {}
        }
    }
}
