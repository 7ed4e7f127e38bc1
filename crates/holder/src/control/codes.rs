//! The numeric codes of stages, statuses and policies in control messages.
//!
//! A code is never reused for another meaning. Decoding an unknown code is an error.

use super::codec::{Field, FieldReader};
use super::{CommandStatus, DecodeError, OverflowPolicy, StartStage, WriteStatus};

/// Implements [`Field`] for enums that are encoded as one byte. The text names the enum in an error.
macro_rules! codes {
    ($($name:ident, $text:literal { $($variant:ident = $code:literal),+ })+) => {$(
        impl Field<'_> for $name {
            fn write(&self, out: &mut Vec<u8>) {
                out.push(match self {
                    $(Self::$variant => $code,)+
                });
            }

            fn read(from: &mut FieldReader<'_>, _name: &'static str) -> Result<Self, DecodeError> {
                match u8::read(from, "code")? {
                    $($code => Ok(Self::$variant),)+
                    _unknown => Err(DecodeError::Value($text)),
                }
            }
        }
    )+};
}

codes! {
    StartStage, "stage" { Input = 1, Resources = 2, Cwd = 3, Exec = 4, Sandbox = 5 }
    WriteStatus, "write status" {
        Accepted = 1, StdinClosed = 2, UnknownProcess = 3, Mismatch = 4, Busy = 5, Cut = 6
    }
    OverflowPolicy, "overflow" { Block = 0, DropOldest = 1 }
}

impl Field<'_> for CommandStatus {
    fn write(&self, out: &mut Vec<u8>) {
        let (code, errno): (u8, i32) = match self {
            Self::Ok => (1, 0),
            Self::NotRunning => (2, 0),
            Self::StreamsHeld => (3, 0),
            Self::UnknownProcess => (4, 0),
            Self::NotATerminal => (5, 0),
            Self::StdinClosed => (6, 0),
            Self::RawMode => (7, 0),
            Self::NotClosed => (8, 0),
            Self::Failed(errno) => (9, *errno),
        };
        code.write(out);
        errno.write(out);
    }

    fn read(from: &mut FieldReader<'_>, _name: &'static str) -> Result<Self, DecodeError> {
        let code: u8 = from.read("code")?;
        let errno = from.read("errno")?;
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
