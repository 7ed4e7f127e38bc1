//! The rare branches that the suite of seeds must reach. They are counted from outside, by what a client is told or a child sees: the
//! product carries no marks.

macro_rules! branches {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A rare branch, by the name under which it is reported.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Branch {
            $($(#[$doc])* $name,)*
        }

        impl Branch {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

branches! {
    /// A session was resumed.
    Resume,
    /// A resume took the session from a connection that was still open.
    Takeover,
    /// A resume without takeover was granted because the old peer was silent: eviction by silence.
    HandedOver,
    /// A resume was refused because the old peer lives.
    Refused,
    /// A second connection raced for the same session.
    Race,
    /// A superseded connection went on speaking.
    StaleSpoke,
    /// A gap was reported.
    Gap,
    /// A gap of a log that drops its oldest.
    DropOldestGap,
    /// A gap for a reader that nobody waits for.
    ObserverGap,
    /// A child blocked on the cap of its log.
    Blocked,
    /// A server ended without a word and another adopted its sessions.
    Adoption,
    /// A process was alive when its events were replayed.
    ReplayWhileLive,
    /// A chunk came twice, after a resume.
    Duplicate,
    /// An unanswered write was sent again under its id.
    WriteRetry,
    /// A write whose bytes were in already was settled by its id, by another server than the one that wrote them.
    SettledAfterCrash,
    /// A start was sent again and turned out to have happened.
    StartRetry,
    /// A process was terminated while it was being started.
    TerminateWhileStarting,
    /// A reference client was answered a read that had waited: from there on it polls.
    PollSwitch,
    /// A link was cut inside a frame.
    CutInside,
    /// A link was cut between frames.
    CutBetween,
    /// A link became half-open.
    HalfOpen,
    /// One direction of a link stalled for a while.
    Stall,
    /// A grace period ran out on a child that ignores SIGTERM.
    GraceOver,
    /// A process was ended by its time limit.
    Timeout,
    /// A process was ended because it wrote nothing.
    IdleTimeout,
    /// Output came after the exit.
    OutputAfterExit,
    /// A session's time ran out.
    Expired,
    /// A session was ended by command while its processes ran.
    Ended,
    /// A process was read back from disk segments.
    Spill,
    /// A disk refused a segment.
    DiskFull,
    /// A holder died, and its children with it.
    HolderDeath,
    /// The clock jumped.
    ClockJump,
    /// A process of the first generation was heard to its end.
    FirstGeneration,
    /// Something senseless was said, and answered.
    Nonsense,
    /// The real client mended its link.
    Mended,
    /// A write of the real client was accepted on another link than it was made on.
    WriteAcrossCut,
    /// The real client gave up, with a true reason.
    GaveUp,
    /// A program with the real client began again and took up its processes where it had left them.
    TakenUp,
    /// A second cursor of the real client read from the beginning, what was let go included.
    LateCursor,
    /// The real client followed a process of another session to its end, held for it.
    Held,
    /// The same without holding it.
    Observed,
}
