//! What is done on a link while it is up: acknowledgements, signs of life, and the report of a silence. Must not mend it.

use std::sync::Arc;

use exec_server_protocol::method;
use exec_server_rpc::Closed;

use super::{
    Generation, Session, State,
    stall::{Seen, StallWatch},
};
use crate::{
    error::Error,
    link::{self, Link},
};

impl Session {
    /// Acknowledges what was taken until the link ends; returns why.
    pub(super) async fn attend(&self, link: &Link) -> Arc<Closed> {
        let closed = link.raw.closed();
        tokio::pin!(closed);
        let mut look = link::looks();
        // A reference server's output can stop our own reader, so its silence says nothing.
        let is_told = self.peer.server.generation == Generation::Current;
        let mut stall = StallWatch::new(self.options.report_stall_after.filter(|_| is_told));
        loop {
            // All are cancel safe: a wake-up that is not taken stays. What is rare comes first, so that much output does not starve it.
            tokio::select! {
                biased;
                closed = &mut closed => return closed,
                () = stall.tick(), if stall.is_on() => {
                    self.handle_look(stall.look(link.raw.progress()), link);
                    continue;
                }
                _ = look.tick(), if link.raw.silent_for().is_some() => link.look_alive(),
                () = self.acks.notified() => {}
            }
            // A failed one is the end of the link, which the next turn sees.
            self.send_acks(link).await.ok();
        }
    }

    fn handle_look(&self, seen: Seen, link: &Link) {
        match seen {
            Seen::Alive => {}
            Seen::AliveAgain => drop(self.state.send_replace(State::Connected)),
            Seen::Silent => link.ask_for_sign_of_life(),
            Seen::Stalled => {
                let silent = self.options.report_stall_after.unwrap_or_default();
                self.state.send_replace(State::Stalled { silent });
            }
        }
    }

    pub(super) async fn send_acks(&self, link: &Link) -> Result<(), Error> {
        for params in self.routes.due_acks() {
            link.notify(method::PROCESS_ACK, &params).await?;
        }
        for params in self.streams.due_acks(link.epoch) {
            link.notify(method::HTTP_ACK, &params).await?;
        }
        Ok(())
    }
}
