//! `process/subscribe` and `process/unsubscribe`: additional readers of a process of another session of the same
//! principal.

use exec_server_protocol::{Empty, process as wire};

use super::RequestContext;
use crate::{
    error::Failure,
    pump::{FollowCommand, FollowRole, FollowStart, PumpCommand, Reply},
};

/// Pushes a process's events to this connection, too, after `afterSeq`. With `hold` its untaken output is kept like the
/// owner's.
pub(crate) async fn subscribe(context: RequestContext, params: wire::SubscribeParams, reply: Reply) {
    let process = match context.known_process(params.session_id.as_ref(), params.process_id.as_str()).await {
        Ok(process) => process,
        Err(failure) => return reply.fail(&failure),
    };
    if *process.session == *context.session.id {
        // This session's processes are already pushed to the connection. It could not distinguish two feeds of one
        // process.
        let reason = "a connection is pushed the processes of its own session without a subscription".to_owned();
        return reply.fail(&Failure::InvalidParams { reason });
    }
    let after = params.after_seq.unwrap_or(0);
    // A reader that subscribes again acknowledges immediately what it has taken, so its hold begins where it first
    // began.
    let hold = params.hold.then(|| process.hold(params.from_seq.unwrap_or(after).min(after)));
    let follow = FollowCommand {
        role: FollowRole::Observer { hold, _in_use: context.in_use(params.session_id.as_ref()) },
        start: FollowStart::AfterSeq(after),
        capabilities: context.peer.capabilities(),
        process,
    };
    let result = {
        let log = follow.process.log();
        wire::SubscribeResult { first_seq: log.first_seq(), next_seq: log.status().next_seq }
    };
    reply.result(&result);
    context.peer.outgoing.enqueue_command(PumpCommand::Follow(follow));
}

pub(crate) async fn unsubscribe(context: RequestContext, params: wire::UnsubscribeParams) -> Result<Empty, Failure> {
    // The owner's own feed is not a subscription, so it stays. A process that is gone has no feed.
    let other = params.session_id.filter(|id| id.as_str() != &*context.session.id);
    if let Some(session) = other
        && let Ok(Some(process)) = context.process(Some(&session), params.process_id.as_str()).await
    {
        context.peer.outgoing.enqueue_command(PumpCommand::Unfollow(process));
    }
    Ok(Empty {})
}
