//! The keeper's work on a link that is up: acknowledgements, pings, and the report of a silent link. `session.rs`
//! reconnects.

use std::sync::Arc;

use exec_server_protocol::method::Notification;
use exec_server_rpc::CloseReason;

use super::{
    ConnectionState, Session,
    stall::{LinkActivity, StallWatch},
};
use crate::{
    error::Error,
    process::log::WhenFull,
    server_link::{self, ServerLink},
};

impl Session {
    /// Sends acknowledgements and pings until the link ends. Returns why the link ended.
    pub(super) async fn maintain_link(&self, link: &ServerLink) -> Arc<CloseReason> {
        let closed = link.raw.closed();
        tokio::pin!(closed);
        let mut pings = server_link::ping_interval();
        // If a full log blocks this client's own reader, silence on the link proves nothing.
        let is_checked = self.peer.flow_policy().when_full != WhenFull::BlockConnection;
        let mut stall = StallWatch::new(self.options.report_stall_after.filter(|_| is_checked));
        loop {
            // All arms are cancel safe: a `Notify` permit that is not taken stays. Acknowledgements come last, because a stream of output
            // makes them ready all the time.
            tokio::select! {
                biased;
                closed = &mut closed => return closed,
                () = stall.tick(), if stall.is_on() => {
                    self.handle_activity(stall.check(link.raw.progress()), link);
                    continue;
                }
                _ = pings.tick(), if link.raw.silent_for().is_some() => link.check_alive(),
                () = self.acks.notified() => {}
            }
            // An error means that the link has ended, which the next iteration notices.
            self.send_acks(link).await.ok();
        }
    }

    fn handle_activity(&self, seen: LinkActivity, link: &ServerLink) {
        match seen {
            LinkActivity::Alive => {}
            LinkActivity::AliveAgain => self.link_state.publish(ConnectionState::Connected),
            LinkActivity::Silent => link.request_activity(),
            LinkActivity::Stalled => {
                let silent = self.options.report_stall_after.unwrap_or_default();
                self.link_state.publish(ConnectionState::Stalled { silent });
            }
        }
    }

    pub(super) async fn send_acks(&self, link: &ServerLink) -> Result<(), Error> {
        for params in self.routes.due_acks() {
            link.notify(Notification::ProcessAck, &params).await?;
        }
        for params in self.streams.due_acks(link.epoch) {
            link.notify(Notification::HttpAck, &params).await?;
        }
        Ok(())
    }
}
