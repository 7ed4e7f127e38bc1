//! The numeric codes of stages, statuses and policies in control messages.
//!
//! A code is never reused for another meaning. Decoding an unknown code is an error.

use super::{CommandStatus, DecodeError, OverflowPolicy, StartStage, WriteStatus};

impl StartStage {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Input => 1,
            Self::Resources => 2,
            Self::Cwd => 3,
            Self::Exec => 4,
            Self::Sandbox => 5,
        }
    }

    pub(super) fn from_code(code: u8) -> Result<Self, DecodeError> {
        match code {
            1 => Ok(Self::Input),
            2 => Ok(Self::Resources),
            3 => Ok(Self::Cwd),
            4 => Ok(Self::Exec),
            5 => Ok(Self::Sandbox),
            _ => Err(DecodeError::Value("stage")),
        }
    }
}

impl WriteStatus {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Accepted => 1,
            Self::StdinClosed => 2,
            Self::UnknownProcess => 3,
            Self::Mismatch => 4,
            Self::Busy => 5,
            Self::Cut => 6,
        }
    }

    pub(super) fn from_code(code: u8) -> Result<Self, DecodeError> {
        match code {
            1 => Ok(Self::Accepted),
            2 => Ok(Self::StdinClosed),
            3 => Ok(Self::UnknownProcess),
            4 => Ok(Self::Mismatch),
            5 => Ok(Self::Busy),
            6 => Ok(Self::Cut),
            _ => Err(DecodeError::Value("write status")),
        }
    }
}

impl CommandStatus {
    pub(super) fn code(self) -> (u8, i32) {
        match self {
            Self::Ok => (1, 0),
            Self::NotRunning => (2, 0),
            Self::StreamsHeld => (3, 0),
            Self::UnknownProcess => (4, 0),
            Self::NotATerminal => (5, 0),
            Self::StdinClosed => (6, 0),
            Self::RawMode => (7, 0),
            Self::NotClosed => (8, 0),
            Self::Failed(errno) => (9, errno),
        }
    }

    pub(super) fn from_code(code: u8, errno: i32) -> Result<Self, DecodeError> {
        match code {
            1 => Ok(Self::Ok),
            2 => Ok(Self::NotRunning),
            3 => Ok(Self::StreamsHeld),
            4 => Ok(Self::UnknownProcess),
            5 => Ok(Self::NotATerminal),
            6 => Ok(Self::StdinClosed),
            7 => Ok(Self::RawMode),
            8 => Ok(Self::NotClosed),
            9 => Ok(Self::Failed(errno)),
            _ => Err(DecodeError::Value("status")),
        }
    }
}

impl OverflowPolicy {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Block => 0,
            Self::DropOldest => 1,
        }
    }

    pub(super) fn from_code(code: u8) -> Result<Self, DecodeError> {
        match code {
            0 => Ok(Self::Block),
            1 => Ok(Self::DropOldest),
            _ => Err(DecodeError::Value("overflow")),
        }
    }
}
