//! `process/subscribe` and `process/unsubscribe`: further readers of a process, of this session or another one of the same principal.

use exec_server_protocol::{Empty, process as wire};

use super::Context;
use crate::{
    error::Failure,
    process::Position,
    pump::{Follow, Order, Reply, Role, Start},
};

/// Pushes a process's events to this connection too, from `afterSeq` on. With `hold` its untaken output is kept like the owner's.
pub(crate) async fn subscribe(context: Context, params: wire::SubscribeParams, reply: Reply) {
    let process = match context.known_process(params.session_id.as_ref(), params.process_id.as_str()).await {
        Ok(process) => process,
        Err(failure) => return reply.fail(&failure),
    };
    if *process.session == *context.session.id {
        // The owner is pushed its own processes already; two feeds of one process on one connection could not be told apart.
        let reason = "a connection is pushed the processes of its own session without a subscription".to_owned();
        return reply.fail(&Failure::InvalidParams { reason });
    }
    let after = params.after_seq.unwrap_or(0);
    let taker = params.hold.then(|| process.add_taker(after));
    let follow = Follow {
        role: Role::Observer { taker },
        start: Start::After(Position { seq: after, offset: 0 }),
        manners: context.peer.manners(),
        process,
    };
    let status = follow.process.status();
    let first_seq = follow.process.chain().first().map_or(status.next_seq, |(seq, _)| seq);
    reply.result(&wire::SubscribeResult { first_seq, next_seq: status.next_seq });
    context.peer.mailbox.order(Order::Follow(follow));
}

pub(crate) async fn unsubscribe(context: Context, params: wire::UnsubscribeParams, reply: Reply) {
    let process = params.process_id.as_str().to_owned();
    // The owner's own feed is not a subscription and stays.
    if let Some(session) = params.session_id.filter(|id| id.as_str() != &*context.session.id) {
        context.peer.mailbox.order(Order::Unfollow { session: session.as_str().into(), process });
    }
    reply.result(&Empty {});
}
