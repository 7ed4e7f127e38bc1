//! The log itself. A build under loom leaves this module out and contains only the wake-up protocol (`crate::wake`).

mod chain;
mod control;
mod event;
#[doc(hidden)]
pub mod failpoint;
mod layout;
mod loaded;
mod mapping;
mod memory;
mod recover;
mod segment;
mod writer;

pub use chain::{Cursor, ReadStep, SegmentChain};
pub use control::{ControlBlock, LogStatus};
pub use event::{BlockReason, Exit, ExitCause, LimitsHit, LogEvent, LogRecord, OutputStream};
pub use layout::{EVENT_OVERHEAD, RECORD_MAX, ROOM_MIN, SEGMENT_BYTES, SLOTS};
pub use loaded::{LoadedSegment, RecoverError};
pub use mapping::MappedSegment;
pub use memory::OpenError;
pub use recover::{RecoveredLog, disk_name, load, recover, survey};
pub use segment::{Segment, SegmentInfo, SegmentLocation, SegmentPool, memfd_of};
pub use writer::{DroppedSegment, LogWriter, RecordRoom, ReleasedSegment};
