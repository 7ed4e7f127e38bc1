//! Encodes and decodes control messages.
//!
//! The tables below are the layout: each row has the kind of a message and its fields in order. The encoder and the
//! decoder are generated from the same row. Every read is bounds-checked, and every count is bounded by the bytes that
//! are left. So no input can cause a panic, or an allocation larger than the message (times a small constant).

use exec_server_process::TerminalSize;

use super::{AnnouncedSegment, FromHolder, OLDEST_VERSION, ProcessInfo, StartSpec, ToHolder, VERSION};

/// Why a message could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message has fewer bytes than its fields need.
    #[error("control message ends early")]
    Short,
    /// The message has more bytes than its fields need.
    #[error("control message has `{0}` bytes too many")]
    Trailing(usize),
    /// This build does not support the layout.
    #[error("control message has unsupported layout `{0}`")]
    Layout(u8),
    /// The kind of message is unknown.
    #[error("control message of unknown kind `{0}`")]
    Kind(u8),
    /// The value of a field is outside its range.
    #[error("control message has an invalid value in `{0}`")]
    Value(&'static str),
}

/// Kind byte of an envelope, whose message is in the memfd that comes with it.
pub(super) const LARGE: u8 = 255;

/// Bytes before the fields: layout and kind.
pub(super) const HEADER: usize = 2;

/// Generates `encode` and `decode` for the messages of one direction. A row is `KIND Variant { fields in order }`. A
/// message with more than one layout names its kinds and the functions that write and read it.
macro_rules! messages {
    ($message:ty, $bytes:ty $(, $lifetime:lifetime)? {
        $($kind:literal $variant:ident $(($inner:ident))? $({ $($field:ident),+ })?;)+
        $($special:ident: $special_kinds:pat => $write:ident, $read:ident;)?
    }) => {
        impl $(<$lifetime>)? $message {
            /// Appends the encoded message to `out`.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($inner))? $({ $($field),+ })? => {
                        write_header($kind, out);
                        $($inner.write(out);)?
                        $($($field.write(out);)+)?
                    })+
                    $(Self::$special { .. } => $write(self, out),)?
                }
            }

            /// Decodes one complete message.
            pub fn decode(message: $bytes) -> Result<Self, DecodeError> {
                let (kind, mut from) = FieldReader::open(message)?;
                let decoded = match kind {
                    $($kind => Self::$variant
                        $((from.read(stringify!($inner))?))?
                        $({ $($field: from.read(stringify!($field))?),+ })?,)+
                    $($special_kinds => $read(kind, &mut from)?,)?
                    other => return Err(DecodeError::Kind(other)),
                };
                from.end()?;
                Ok(decoded)
            }
        }
    };
}

/// Implements [`Field`] for structs: a row is `Struct { fields in order }`.
macro_rules! structs {
    ($($name:ident { $($field:ident),+ })+) => {$(
        impl Field<'_> for $name {
            fn write(&self, out: &mut Vec<u8>) {
                $(self.$field.write(out);)+
            }

            fn read(from: &mut FieldReader<'_>, _name: &'static str) -> Result<Self, DecodeError> {
                Ok(Self { $($field: from.read(stringify!($field))?),+ })
            }
        }
    )+};
}

/// Implements [`Field`] for integers in little-endian order.
macro_rules! integers {
    ($($integer:ty),+) => {$(
        impl Field<'_> for $integer {
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn read(from: &mut FieldReader<'_>, _name: &'static str) -> Result<Self, DecodeError> {
                from.array().map(Self::from_le_bytes)
            }
        }
    )+};
}

/// Implements [`Field`] for optional values: a flag, then the value. The value after `=` stands for an absent one.
macro_rules! options {
    ($($value:ty = $absent:expr),+) => {$(
        impl Field<'_> for Option<$value> {
            fn write(&self, out: &mut Vec<u8>) {
                self.is_some().write(out);
                self.as_ref().unwrap_or(&$absent).write(out);
            }

            fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, DecodeError> {
                let is_present: bool = from.read(name)?;
                let value = from.read(name)?;
                Ok(is_present.then_some(value))
            }
        }
    )+};
}

messages! {
    ToHolder<'a>, &'a [u8], 'a {
        1 Hello { version, secret, epoch };
        2 Attach;
        3 Detach { ttl_ms };
        4 SetTtl { ttl_ms };
        5 Start { req, spec };
        7 CloseStdin { req, slot };
        8 Signal { req, slot, signal };
        9 Resize { req, slot, rows, cols };
        10 Terminate { req, slot, grace_ms };
        11 Cap { slot, bytes };
        12 Release { slot, segment };
        13 Return { segment };
        14 Forget { req, slot };
        15 End { req };
        16 StartConfined { req, kit, spec };
        18 Used { is_going_on };
        19 Withdraw { req };
        20 AllowArchive;
        21 Leave;
        22 Followed { slot, seq };
        23 SetOrphanTtl { ttl_ms };
        Write: WRITE | WRITE_WITH_DIGEST => encode_write, decode_write;
    }
}

messages! {
    FromHolder, &[u8] {
        1 Welcome { version, epoch, ttl_ms, detached_ms, info };
        2 Refused { version, epoch };
        3 Process(process);
        4 Segment(segment);
        5 Ready;
        6 Started { req, slot, pid };
        7 StartFailed { req, stage, errno, detail };
        8 Written { req, status, done };
        9 Done { req, status };
        10 Spilled { slot, segment };
        11 Dropped { slot, segment };
        12 Expired;
        13 Retired { segment };
        20 Archived;
        21 Staying;
    }
}

structs! {
    StartSpec { argv, arg0, env, cwd, tty, pipe_stdin, timeout_ms, idle_timeout_ms, overflow, cap_bytes, meta }
    ProcessInfo { slot, pid, tty, stdin_open, running, cap_bytes, overflow, meta }
    AnnouncedSegment { slot, id, base_seq, base_offset, on_disk, sealed }
    TerminalSize { rows, cols }
}

integers!(u8, u16, u32, i32, u64);

options!(u64 = 0, [u8; 16] = [0; 16], Vec<u8> = Vec::new(), TerminalSize = TerminalSize { rows: 0, cols: 0 });

/// Kinds of `ToHolder::Write` without and with a digest.
const WRITE: u8 = 6;
const WRITE_WITH_DIGEST: u8 = 17;

fn encode_write(message: &ToHolder<'_>, out: &mut Vec<u8>) {
    let ToHolder::Write { req, slot, key, digest, total, offset, data } = message else { return };
    write_header(if digest.is_some() { WRITE_WITH_DIGEST } else { WRITE }, out);
    req.write(out);
    slot.write(out);
    key.write(out);
    if let Some(digest) = digest {
        digest.write(out);
    }
    total.write(out);
    offset.write(out);
    data.write(out);
}

fn decode_write<'a>(kind: u8, from: &mut FieldReader<'a>) -> Result<ToHolder<'a>, DecodeError> {
    Ok(ToHolder::Write {
        req: from.read("req")?,
        slot: from.read("slot")?,
        key: from.read("key")?,
        digest: (kind == WRITE_WITH_DIGEST).then(|| from.read("digest")).transpose()?,
        total: from.read("total")?,
        offset: from.read("offset")?,
        data: from.read("data")?,
    })
}

pub(super) fn write_header(kind: u8, out: &mut Vec<u8>) {
    let [layout, ..] = VERSION.to_le_bytes();
    out.extend_from_slice(&[layout, kind]);
}

/// Writes a count. A count that does not fit becomes the largest value: the message is then so large that `send`
/// refuses it anyway.
pub(crate) fn write_count(count: usize, out: &mut Vec<u8>) {
    u32::try_from(count).unwrap_or(u32::MAX).write(out);
}

/// A value that a message can contain.
pub(crate) trait Field<'a>: Sized {
    fn write(&self, out: &mut Vec<u8>);

    /// Reads the value from the front of the rest of a message. An error about the value contains `name`.
    fn read(from: &mut FieldReader<'a>, name: &'static str) -> Result<Self, DecodeError>;
}

impl<const N: usize> Field<'_> for [u8; N] {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn read(from: &mut FieldReader<'_>, _name: &'static str) -> Result<Self, DecodeError> {
        from.array()
    }
}

impl Field<'_> for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        match from.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(DecodeError::Value(name)),
        }
    }
}

/// Encoded like `Option<u64>`.
impl Field<'_> for Option<u32> {
    fn write(&self, out: &mut Vec<u8>) {
        self.map(u64::from).write(out);
    }

    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        let value: Option<u64> = from.read(name)?;
        value.map(|value| u32::try_from(value).map_err(|_| DecodeError::Value(name))).transpose()
    }
}

impl<'a> Field<'a> for &'a [u8] {
    fn write(&self, out: &mut Vec<u8>) {
        write_count(self.len(), out);
        out.extend_from_slice(self);
    }

    fn read(from: &mut FieldReader<'a>, _name: &'static str) -> Result<Self, DecodeError> {
        let len = from.count()?;
        let (first, rest) = from.0.split_at_checked(len).ok_or(DecodeError::Short)?;
        from.0 = rest;
        Ok(first)
    }
}

impl Field<'_> for Vec<u8> {
    fn write(&self, out: &mut Vec<u8>) {
        self.as_slice().write(out);
    }

    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        <&[u8]>::read(from, name).map(<[u8]>::to_vec)
    }
}

impl Field<'_> for Vec<Vec<u8>> {
    fn write(&self, out: &mut Vec<u8>) {
        write_count(self.len(), out);
        self.iter().for_each(|item| item.write(out));
    }

    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, DecodeError> {
        let count = from.count()?;
        // Each item has a length field of four bytes. A larger count is invalid and must not size an allocation.
        if count > from.0.len() / 4 {
            return Err(DecodeError::Short);
        }
        (0..count).map(|_| from.read(name)).collect()
    }
}

impl<'a, T: Field<'a>> Field<'a> for Box<T> {
    fn write(&self, out: &mut Vec<u8>) {
        T::write(self, out);
    }

    fn read(from: &mut FieldReader<'a>, name: &'static str) -> Result<Self, DecodeError> {
        from.read(name).map(Self::new)
    }
}

/// Reads fields from the front of a message.
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

impl<'a> FieldReader<'a> {
    fn open(message: &'a [u8]) -> Result<(u8, Self), DecodeError> {
        let &[layout, kind, ref fields @ ..] = message else { return Err(DecodeError::Short) };
        if !(OLDEST_VERSION..=VERSION).contains(&u32::from(layout)) {
            return Err(DecodeError::Layout(layout));
        }
        Ok((kind, Self(fields)))
    }

    /// Checks that the whole message was read.
    fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.0.len())) }
    }

    pub(crate) fn read<T: Field<'a>>(&mut self, name: &'static str) -> Result<T, DecodeError> {
        T::read(self, name)
    }

    pub(crate) fn count(&mut self) -> Result<usize, DecodeError> {
        usize::try_from(u32::read(self, "count")?).map_err(|_| DecodeError::Short)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*first)
    }
}
