//! What is said of links that break and are mended while something is done over them: one line each.
//! Must not know what is done.

use std::{collections::BTreeSet, future::Future};

use exec_server_client::{Client, State};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::sync::watch;

use crate::{printable, say};

/// Does it, and says meanwhile what becomes of the links, once for each server.
pub(crate) async fn telling<T>(clients: &[Client], say: impl Fn(&str), work: impl Future<Output = T>) -> T {
    let mut seen = BTreeSet::new();
    let servers = clients.iter().filter(|client| seen.insert(client.address()));
    let mut links: FuturesUnordered<_> = servers.map(|client| tell(client, &say)).collect();
    tokio::pin!(work);
    loop {
        // Both are cancel safe, and the work is never dropped before its end.
        tokio::select! {
            done = &mut work => return done,
            Some(()) = links.next() => {}
        }
    }
}

/// Reports each change, until nothing can change any more: how a session is lost says whatever it was lost for.
async fn tell(client: &Client, say: &impl Fn(&str)) {
    tell_of(client.watch_state(), client.address(), say).await;
}

/// As [`telling`], for a command that has no work to be wrapped: on standard error, until the task is aborted. Does not keep
/// the client.
pub(crate) fn notices(client: &Client) -> impl Future<Output = ()> + Send + 'static {
    let (state, address) = (client.watch_state(), client.address());
    async move { tell_of(state, address, &|text: &str| say::talk(format_args!("exec-server: {text}"))).await }
}

async fn tell_of(mut state: watch::Receiver<State>, address: String, say: &impl Fn(&str)) {
    let (mut is_broken, mut is_silent) = (false, false);
    while state.changed().await.is_ok() {
        let now = state.borrow_and_update().clone();
        match now {
            State::Recovering { reason } if !is_broken => {
                is_broken = true;
                say(&format!("connection to {address} lost ({}); reconnecting", printable::clean(&reason)));
            }
            State::Recovering { reason } => {
                say(&format!("still reconnecting to {address}: {}", printable::clean(&reason)))
            }
            State::Stalled { silent } if !is_broken => {
                is_silent = true;
                say(&format!("no answer from {address} for {} s; waiting", silent.as_secs()));
            }
            State::Connected if is_broken => {
                (is_broken, is_silent) = (false, false);
                say(&format!("connected to {address} again"));
            }
            State::Connected if is_silent => {
                is_silent = false;
                say(&format!("{address} answers again"));
            }
            _ => {}
        }
    }
}
