//! `process/*`: start, read, signal, resize, terminate, forget, and `process/subscribe` and `process/unsubscribe` for
//! additional readers of a process of another session of the same principal. Lists are in `list`.

use std::{os::unix::ffi::OsStrExt, time::Duration};

use exec_server_holder::{
    TerminalSize,
    control::{CommandStatus, OverflowPolicy, StartSpec, ToHolder},
};
use exec_server_protocol::{
    Empty, limits,
    path::PathArg,
    process::{self as wire, EnvPolicy},
    signal as names,
};
use tokio::time::Instant;

use super::{RequestContext, permitted, sizes};
use crate::{
    audit::AuditRecord,
    compat::Dialect,
    environment::{check_names, child_environment},
    error::Failure,
    process::{Process, ProcessMeta, truncate_argv},
    pump::{FollowCommand, FollowRole, FollowStart, PumpCommand, ReadCommand, Reply},
    sandbox::Confinement,
    session::ProcessLaunch,
    trace, wall_clock,
};

/// The size of a terminal if the client named none.
pub(crate) const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// The parts of a start, before its path is resolved and its argv is checked.
pub(crate) struct StartParts {
    pub(crate) process_id: String,
    pub(crate) argv: Vec<String>,
    /// `None`: the principal's default directory.
    pub(crate) cwd: Option<PathArg>,
    pub(crate) dialect: Dialect,
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
    /// Forget the process without a request once it has closed and no reader needs it.
    pub(crate) auto_forget: bool,
    /// The requested sandbox.
    pub(crate) confinement: Option<Confinement>,
    /// Everything else. `launch` fills in argv, cwd and meta.
    pub(crate) spec: StartSpec,
}

/// Checks what can be checked before the id is reserved: the sandbox, the path, then argv, then whether another start
/// may be queued.
pub(crate) fn launch(context: &RequestContext, parts: StartParts) -> Result<ProcessLaunch, Failure> {
    let StartParts { process_id, argv, cwd, dialect, stdin, tty, auto_forget, confinement, mut spec } = parts;
    let confinement = permitted::sandbox(&context.grant, confinement)?;
    let path = match &cwd {
        Some(cwd) => cwd.resolve().map_err(|source| Failure::Path { path: cwd.as_str().to_owned(), source })?,
        None => permitted::default_directory(&context.grant, context.core.config.cwd.as_deref()),
    };
    let program = argv.first().map_or("", String::as_str);
    let path = permitted::directory(&context.grant, path, program)?;
    if argv.is_empty() {
        return Err(Failure::EmptyArgv);
    }
    sizes::check(&process_id, &argv, &spec)?;
    context.peer.outgoing.check_starts_waiting()?;
    spec.argv = argv.iter().map(|arg| arg.clone().into_bytes()).collect();
    spec.cwd = path.as_os_str().as_bytes().to_vec();
    let cwd = path.to_string_lossy().into_owned();
    let started_ms = wall_clock::now_ms();
    let (argv, argv_bytes) = truncate_argv(&argv, limits::KEPT_ARGV_BYTES);
    let meta =
        ProcessMeta { process_id, argv, argv_bytes, cwd, tty, stdin, dialect, started_ms, sandbox: None, auto_forget };
    spec.meta = serde_json::to_vec(&meta).expect("a record of strings and numbers serializes");
    Ok(ProcessLaunch { meta, spec, confinement, peer: context.peer.label.clone() })
}

/// `process/start`: reserves the id, and answers when the process runs or has failed to start.
pub(crate) async fn start(context: RequestContext, params: wire::StartParams, reply: Reply) {
    trace::record_process(params.process_id.as_str());
    // Wait for a pending start of the same id. Only its outcome decides whether the id is free.
    context.session.start_decided(params.process_id.as_str()).await;
    let launch = prepare(&context, params);
    reserve_and_start(context, launch, reply).await;
}

/// Reserves the id of a checked start and begins it, or refuses it.
pub(crate) async fn reserve_and_start(context: RequestContext, launch: Result<ProcessLaunch, Failure>, reply: Reply) {
    let reserved = launch.and_then(|launch| {
        let gate = context.session.reserve(&launch.meta.process_id, Instant::now(), &context.core.config)?;
        Ok((launch, gate))
    });
    match reserved {
        Ok((launch, gate)) => context.session.start(launch, gate, reply).await,
        Err(failure) => {
            context.record_if_forbidden(&failure);
            reply.fail(&failure);
        }
    }
}

fn prepare(context: &RequestContext, params: wire::StartParams) -> Result<ProcessLaunch, Failure> {
    if context.core.is_draining() {
        return Err(Failure::Draining);
    }
    let confinement = params.sandbox.as_ref().map(|asked| context.core.sandboxes.read(asked)).transpose()?.flatten();
    let unsupported = |what: &str| Err(Failure::NotEnforceable { what: what.to_owned() });
    if params.enforce_managed_network {
        return unsupported("`enforceManagedNetwork` needs a proxy of another product");
    }
    if params.network_proxy.is_some() {
        return unsupported("`networkProxy` needs a proxy of another product");
    }
    let has_snapshot = params.shell_snapshot.as_ref().is_some_and(|snapshot| snapshot.applies_to(&params.argv));
    if has_snapshot && params.env_policy.as_ref().is_some_and(wire::EnvPolicy::filters) {
        // This server ignores the snapshot and runs the command itself, a login shell. The shell would read the
        // profile and export variables that the policy filters out.
        return unsupported("`shellSnapshot` with an `envPolicy` that filters needs a captured shell state");
    }
    let env_policy = match (params.env_policy, &params.env) {
        // A request that says nothing about the environment gets the core variables of the server.
        (None, None) => Some(EnvPolicy::core()),
        (policy, _) => policy,
    };
    let mut env = params.env.unwrap_or_default();
    check_names(env_policy.as_ref(), &env)?;
    let config = &context.core.config;
    if let Some(term) = params.term.filter(|_| params.tty) {
        env.entry("TERM".to_owned()).or_insert(term);
    }
    permitted::variables(&context.grant, env_policy.as_ref(), &env)?;
    let size = params.size.map_or(DEFAULT_SIZE, |size| TerminalSize { rows: size.rows, cols: size.cols });
    launch(
        context,
        StartParts {
            process_id: params.process_id.as_str().to_owned(),
            argv: params.argv,
            cwd: params.cwd,
            dialect: Dialect::Process,
            stdin: params.tty || params.pipe_stdin,
            tty: params.tty,
            auto_forget: params.auto_forget,
            confinement,
            spec: StartSpec {
                arg0: params.arg0.map(String::into_bytes),
                env: child_environment(&config.environment, env_policy.as_ref(), &env),
                tty: params.tty.then_some(size),
                pipe_stdin: params.pipe_stdin,
                timeout_ms: params.timeout_ms,
                idle_timeout_ms: params.idle_timeout_ms,
                overflow: match params.overflow.unwrap_or(config.overflow) {
                    wire::Overflow::Block => OverflowPolicy::Block,
                    wire::Overflow::DropOldest => OverflowPolicy::DropOldest,
                },
                cap_bytes: if context.peer.capabilities().ack {
                    config.memory_cap_bytes
                } else {
                    config.unacked_cap_bytes()
                },
                ..StartSpec::default()
            },
        },
    )
}

/// `process/read`: passed to the pump, which answers it at send time.
pub(crate) async fn read(context: RequestContext, params: wire::ReadParams, reply: Reply) {
    match context.known_process(params.session_id.as_ref(), params.process_id.as_str()).await {
        Ok(process) => {
            let is_own = *process.session == *context.session.id;
            let after_seq = params.after_seq.unwrap_or(0);
            let wait = Duration::from_millis(params.wait_ms.unwrap_or(0));
            let from_seq = params.from_seq.filter(|_| !is_own);
            context.peer.outgoing.enqueue_command(PumpCommand::Read(ReadCommand {
                _poll: from_seq.map(|from| process.poll(from.min(after_seq), after_seq)),
                _in_use: context.in_use(params.session_id.as_ref()).filter(|_| !is_own && !wait.is_zero()),
                is_own,
                reply,
                process,
                after_seq,
                max_bytes: params.max_bytes,
                wait,
            }));
        }
        Err(failure) => reply.fail(&failure),
    }
}

/// `process/signal`: signals the process group, after a pending start. No effect on an unknown or exited process.
pub(crate) async fn signal(context: RequestContext, params: wire::SignalParams) -> Result<Empty, Failure> {
    let Some(signal) = names::number(&params.signal) else {
        // The text came from the peer and may be long.
        return Err(Failure::UnknownSignal { name: params.signal.chars().take(32).collect() });
    };
    if let Some(process) = context.process(params.session_id.as_ref(), params.process_id.as_str()).await? {
        let name = u8::try_from(signal).ok().map(|signal| names::name(signal).into_owned());
        let record = AuditRecord { pid: Some(process.pid), signal: name, ..AuditRecord::of("process.signal") };
        if let Ok(session) = context.session(params.session_id.as_ref()) {
            context.record(&session, Some(process.id()), record);
        }
        let slot = process.slot();
        // Ignore the status. Without a holder or a running process, there is nothing to signal. If `kill` failed, the
        // wire has no error for it.
        process.link().status(|req| ToHolder::Signal { req, slot, signal }).get().await;
    }
    Ok(Empty {})
}

/// `process/resize`: sets the terminal's size.
pub(crate) async fn resize(context: RequestContext, params: wire::ResizeParams) -> Result<Empty, Failure> {
    let process = context.known_process(params.session_id.as_ref(), params.process_id.as_str()).await?;
    if !process.meta.tty {
        return Err(Failure::NotATerminal { id: process.id().to_owned() });
    }
    let slot = process.slot();
    let wire::ResizeParams { rows, cols, .. } = params;
    match process.link().status(|req| ToHolder::Resize { req, slot, rows, cols }).get().await {
        Some(_) => Ok(Empty {}),
        // The process has closed, and its session is archived. A holder would accept a resize of a closed process, too.
        None if process.link().is_archive() => Ok(Empty {}),
        None => Err(context.session.holder_lost_failure()),
    }
}

/// `process/terminate`: at once, or with a grace period. A pending start completes first and is then terminated. It
/// still counts as started: a client that lost the answer in a disconnect and repeats the start must not start it a
/// second time.
pub(crate) async fn terminate(
    context: RequestContext,
    params: wire::TerminateParams,
) -> Result<wire::TerminateResult, Failure> {
    let nothing_runs = wire::TerminateResult { running: false, streams_held: false };
    let session = context.session(params.session_id.as_ref())?;
    let id = params.process_id.as_str();
    trace::record_process(id);
    let Some(process) = session.process(id).await else { return Ok(nothing_runs) };
    context.record(&session, Some(id), AuditRecord { pid: Some(process.pid), ..AuditRecord::of("process.terminate") });
    let ended = terminate_running(&process, params.grace_ms.map(Duration::from_millis)).await;
    // `None`: there is no holder.
    Ok(ended.unwrap_or(nothing_runs))
}

pub(crate) async fn terminate_running(process: &Process, grace: Option<Duration>) -> Option<wire::TerminateResult> {
    let slot = process.slot();
    let grace_ms = grace.map(|grace| u32::try_from(grace.as_millis()).unwrap_or(u32::MAX));
    let status = process.link().status(|req| ToHolder::Terminate { req, slot, grace_ms }).get().await?;
    Some(wire::TerminateResult {
        running: status == CommandStatus::Ok,
        streams_held: status == CommandStatus::StreamsHeld,
    })
}

/// `process/forget`: drops a closed process and its log.
pub(crate) async fn forget(context: RequestContext, params: wire::ForgetParams) -> Result<Empty, Failure> {
    let session = context.session(params.session_id.as_ref())?;
    let id = params.process_id.as_str();
    trace::record_process(id);
    let process = session.process(id).await.ok_or_else(|| Failure::UnknownProcess { id: id.to_owned() })?;
    if process.status().closed_seq.is_none() {
        return Err(Failure::NotClosed { id: id.to_owned() });
    }
    session.forget(&process);
    Ok(Empty {})
}

/// `process/subscribe`: pushes the events of another session's process after `afterSeq` to this connection, too. With
/// `hold`, output that this reader has not taken is kept as for the process's own session.
pub(crate) async fn subscribe(context: RequestContext, params: wire::SubscribeParams, reply: Reply) {
    let process = match context.known_process(params.session_id.as_ref(), params.process_id.as_str()).await {
        Ok(process) => process,
        Err(failure) => return reply.fail(&failure),
    };
    if *process.session == *context.session.id {
        // This session's processes are already pushed to the connection, which could not tell two feeds of one process
        // apart.
        let reason = "the processes of a connection's own session are pushed without a subscription".to_owned();
        return reply.fail(&Failure::InvalidParams { reason });
    }
    let after = params.after_seq.unwrap_or(0);
    // A reader that subscribes again begins its hold at `fromSeq`, where its first subscription began, and then
    // acknowledges at once what it has taken. A `fromSeq` after `afterSeq` counts as `afterSeq`.
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

/// `process/unsubscribe`: ends the subscription of this connection.
pub(crate) async fn unsubscribe(context: RequestContext, params: wire::UnsubscribeParams) -> Result<Empty, Failure> {
    // The feed of a process of this connection's own session is not a subscription, so it stays. A process that is gone
    // has no feed.
    let other = params.session_id.filter(|id| id.as_str() != &*context.session.id);
    if let Some(session) = other
        && let Ok(Some(process)) = context.process(Some(&session), params.process_id.as_str()).await
    {
        context.peer.outgoing.enqueue_command(PumpCommand::Unfollow(process));
    }
    Ok(Empty {})
}
