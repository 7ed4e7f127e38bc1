//! The event log of a process: one writer (the holder), many readers, segments in shared memory or on disk.
//!
//! A log is a chain of segments. A segment is a 1 MiB memfd, or a file with the same bytes plus a checksum per record.
//! The holder appends through [`LogWriter`]. A reader maps the same memory read-only and walks it with a
//! [`SegmentChain`] and a [`Cursor`]. One [`ControlBlock`] per session carries the counters of every log and the flags
//! of the wake-up protocol.
//!
//! This crate does not depend on processes, sockets or the wire protocol. It does not own the eventfd either: when a
//! function returns true for "wake the reader", the caller writes the eventfd.
//!
//! ```text
//! holder   LogWriter ── room, commit ──▶ Segment (memfd) ── encode_for_disk ──▶ SLOT-ID.seg
//!             │                             │ the same memory                       │
//!        ControlBlock ◀─ shared counters    ▼                                       ▼
//! server      └── status, arm ──▶ SegmentChain: MappedSegment ────────────── LoadedSegment
//! ```
//!
//! Failure paths:
//!
//! - Shared memory with the wrong size, seals or layout is an [`OpenError`]. A segment file without a valid header is a
//!   [`RecoverError`].
//! - A corrupt record ends the readable part of its segment, and the reader gets a gap up to the next segment. In the
//!   last segment, the reader gets [`ReadStep::Damaged`] if that segment is in memory.
//! - A segment file is read up to its first incomplete or damaged record. The records after that are counted as lost.

#![expect(unsafe_code, reason = "the log lives in memory shared between two processes")]
#![cfg_attr(
    loom,
    allow(
        dead_code,
        unsafe_code,
        unfulfilled_lint_expectations,
        reason = "only the wake-up protocol is built under loom"
    )
)]

#[cfg(not(loom))]
mod imp;
mod wake;

#[cfg(not(loom))]
pub use imp::*;
