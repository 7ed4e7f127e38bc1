//! The rare branches that the seeds of the suite must reach. They are counted from outside, by what a client receives or a child sees. The
//! product code has no instrumentation for this.

macro_rules! branches {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rare branch. Its name is used in reports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Branch {
            $($(#[$doc])* $name,)*
        }

        impl Branch {
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

branches! {
    /// A process was started together with the handshake.
    EarlyStart,
    /// A session was resumed.
    Resume,
    /// A resume took the session from a connection that was still open.
    Takeover,
    /// A resume without takeover succeeded because the old peer did not answer.
    HandedOver,
    /// A resume was refused because the old peer is alive.
    Refused,
    /// Two connections raced for the same session.
    Race,
    /// A superseded connection sent more requests.
    StaleSpoke,
    /// A gap was reported.
    Gap,
    /// A gap in the log of a process that drops its oldest output.
    DropOldestGap,
    /// A gap for a reader that the log does not wait for.
    ObserverGap,
    /// A child blocked because its log was full.
    Blocked,
    /// A server crashed and the next one adopted its sessions.
    Adoption,
    /// Events of a live process were replayed.
    ReplayWhileLive,
    /// A chunk arrived twice, after a resume.
    Duplicate,
    /// An unanswered write was sent again under its id.
    WriteRetry,
    /// A write that had already reached stdin was recognized by its id, by another server than the one that wrote it.
    SettledAfterCrash,
    /// A start was sent again, and the process had already been started.
    StartRetry,
    /// A process was terminated while it was starting.
    TerminateWhileStarting,
    /// A reference client got the answer to a read that had waited. From then on it polls.
    PollSwitch,
    /// A link was cut inside a frame.
    CutInside,
    /// A link was cut between frames.
    CutBetween,
    /// A link became half-open.
    HalfOpen,
    /// One direction of a link stalled for a while.
    Stall,
    /// The grace period of a child that ignores SIGTERM expired.
    GraceOver,
    /// A process was ended by its time limit.
    Timeout,
    /// A process was ended by its idle timeout.
    IdleTimeout,
    /// Output arrived after the exit.
    OutputAfterExit,
    /// A session expired.
    Expired,
    /// A session was ended by request while its processes ran.
    Ended,
    /// Output was read back from disk segments.
    Spill,
    /// The disk refused a segment.
    DiskFull,
    /// A holder died with its children.
    HolderDeath,
    /// The clock jumped.
    ClockJump,
    /// A first-generation client received the exit of a command.
    FirstGeneration,
    /// An invalid message was sent and answered.
    Nonsense,
    /// The real client reconnected.
    Mended,
    /// A write of the real client was accepted on another link than the one it was sent on first.
    WriteAcrossCut,
    /// The real client gave up, with a correct reason.
    GaveUp,
    /// A program with the real client restarted and attached to its processes at the position where it had stopped.
    TakenUp,
    /// A second cursor of the real client read from the beginning, including output that was already freed.
    LateCursor,
    /// The real client followed a process of another session to its end, with a hold on its output.
    Held,
    /// The real client followed a process of another session to its end, without a hold.
    Observed,
}
