//! Frames of the dialect `binary`: the input and output of processes as raw bytes behind a short fixed header, without JSON and base64.
//!
//! The first byte distinguishes a frame from a JSON message. All integers are little-endian.

use crate::process::Stream;

/// Name of the dialect. It consists of the frames of this module and all of [`ATTACHED`](crate::message::ATTACHED).
pub const BINARY: &str = "binary";

/// First byte of an output frame.
pub const OUTPUT_MARK: u8 = 0x81;

/// First byte of an input frame.
pub const WRITE_MARK: u8 = 0x82;

/// Length of the header of an output frame. The output bytes follow it.
pub const OUTPUT_HEADER: usize = 24;

/// Length of the header of an input frame. The write id follows it, then the input bytes.
pub const WRITE_HEADER: usize = 16;

/// Returns whether a message is a frame of this module, by its first byte.
#[must_use]
pub fn is_frame(message: &[u8]) -> bool {
    matches!(message.first(), Some(&(OUTPUT_MARK | WRITE_MARK)))
}

/// Why a message is not a valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first byte is not the mark of this kind of frame.
    #[error("the first byte {found:#04x} is not the mark of this kind of frame")]
    Mark {
        /// The first byte of the message.
        found: u8,
    },
    /// The message is shorter than the header, or shorter than header and write id.
    #[error("a frame of {found} bytes ends within its header or write id")]
    Short {
        /// Length of the message in bytes.
        found: usize,
    },
    /// The stream number is unknown.
    #[error("no stream has the number {found}")]
    Stream {
        /// The stream number.
        found: u8,
    },
    /// A reserved byte is not zero.
    #[error("bytes of the header that are not used must be zero")]
    Reserved,
    /// The write id is not UTF-8.
    #[error("the write id is not UTF-8")]
    WriteId,
}

/// Header of an output frame, sent by the server in place of `process/output`. The output bytes follow, up to the end of the message.
///
/// ```text
/// 0     1       2         4          8      16      24
/// 81 | stream | 00 00 | channel | seq | offset | bytes
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputFrame {
    /// The process, as the channel number that `process/channel` assigned to it on this connection.
    pub channel: u32,
    /// The stream that the process wrote to: 0 is stdout, 1 is stderr, 2 is a terminal.
    pub stream: Stream,
    /// Sequence number of this event.
    pub seq: u64,
    /// Number of output bytes of this process before this frame.
    pub offset: u64,
}

impl OutputFrame {
    /// Encodes the header. The caller appends the output bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; OUTPUT_HEADER] {
        let mut header = [0; OUTPUT_HEADER];
        header[0] = OUTPUT_MARK;
        header[1] = match self.stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
            Stream::Pty => 2,
        };
        header[4..8].copy_from_slice(&self.channel.to_le_bytes());
        header[8..16].copy_from_slice(&self.seq.to_le_bytes());
        header[16..].copy_from_slice(&self.offset.to_le_bytes());
        header
    }

    /// Decodes a frame. Returns the header and the output bytes.
    pub fn decode(message: &[u8]) -> Result<(Self, &[u8]), FrameError> {
        let short = FrameError::Short { found: message.len() };
        let (header, bytes) = message.split_first_chunk::<OUTPUT_HEADER>().ok_or(short)?;
        let &[mark, stream, a, b, c0, c1, c2, c3, ref rest @ ..] = header;
        if mark != OUTPUT_MARK {
            return Err(FrameError::Mark { found: mark });
        }
        let stream = match stream {
            0 => Stream::Stdout,
            1 => Stream::Stderr,
            2 => Stream::Pty,
            found => return Err(FrameError::Stream { found }),
        };
        if [a, b] != [0, 0] {
            return Err(FrameError::Reserved);
        }
        // Always two: 16 bytes of the header are left.
        let &[seq, offset] = rest.as_chunks::<8>().0 else { return Err(short) };
        let channel = u32::from_le_bytes([c0, c1, c2, c3]);
        Ok((Self { channel, stream, seq: u64::from_le_bytes(seq), offset: u64::from_le_bytes(offset) }, bytes))
    }
}

/// Header of an input frame, sent by the client in place of `process/write`. The server answers it under `id`, like a `process/write`. The
/// input bytes follow, up to the end of the message.
///
/// ```text
/// 0    1    2                        4          8    16
/// 82 | 00 | length of the write id | channel | id | write id | bytes
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteFrame<'a> {
    /// The process, as the channel number that `process/channel` assigned to it on this connection.
    pub channel: u32,
    /// Id of the request.
    pub id: i64,
    /// Id of the write, as `writeId` of `process/write`. Empty means none.
    pub write_id: &'a str,
}

impl<'a> WriteFrame<'a> {
    /// Appends the header and the write id. If the write id is longer than 65,535 bytes, appends nothing and returns false.
    #[must_use]
    pub fn encode(&self, out: &mut Vec<u8>) -> bool {
        let Ok(len) = u16::try_from(self.write_id.len()) else { return false };
        out.extend_from_slice(&[WRITE_MARK, 0]);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&self.channel.to_le_bytes());
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(self.write_id.as_bytes());
        true
    }

    /// Decodes a frame. Returns the header and the input bytes.
    pub fn decode(message: &'a [u8]) -> Result<(Self, &'a [u8]), FrameError> {
        let short = FrameError::Short { found: message.len() };
        let (header, rest) = message.split_first_chunk::<WRITE_HEADER>().ok_or(short)?;
        let &[mark, zero, l0, l1, c0, c1, c2, c3, id @ ..] = header;
        if mark != WRITE_MARK {
            return Err(FrameError::Mark { found: mark });
        }
        if zero != 0 {
            return Err(FrameError::Reserved);
        }
        let (write_id, bytes) = rest.split_at_checked(usize::from(u16::from_le_bytes([l0, l1]))).ok_or(short)?;
        let write_id = std::str::from_utf8(write_id).map_err(|_| FrameError::WriteId)?;
        let channel = u32::from_le_bytes([c0, c1, c2, c3]);
        Ok((Self { channel, id: i64::from_le_bytes(id), write_id }, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example frames of PROTOCOL.md, byte for byte.
    #[test]
    fn frames_match_the_examples_of_the_specification() {
        let output = OutputFrame { channel: 7, stream: Stream::Stderr, seq: 3, offset: 65_536 };
        let golden = [
            0x81, 1, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, //
            b'h', b'i', b'\n',
        ];
        assert_eq!([&output.encode()[..], b"hi\n"].concat(), golden);
        assert_eq!(OutputFrame::decode(&golden), Ok((output, &b"hi\n"[..])));

        let write = WriteFrame { channel: 7, id: 12, write_id: "w1" };
        let golden = [0x82, 0, 2, 0, 7, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, b'w', b'1', b'h', b'i', b'\n'];
        let mut written = Vec::new();
        assert!(write.encode(&mut written));
        written.extend_from_slice(b"hi\n");
        assert_eq!(written, golden);
        assert_eq!(WriteFrame::decode(&golden), Ok((write, &b"hi\n"[..])));
    }

    #[test]
    fn frames_with_extreme_values_round_trip() {
        for stream in [Stream::Stdout, Stream::Stderr, Stream::Pty] {
            let frame = OutputFrame { channel: u32::MAX, stream, seq: u64::MAX, offset: u64::MAX };
            assert_eq!(OutputFrame::decode(&frame.encode()), Ok((frame, &[][..])));
        }
        let long = "é".repeat(usize::from(u16::MAX / 2));
        let frame = WriteFrame { channel: 0, id: i64::MIN, write_id: &long };
        let mut out = Vec::new();
        assert!(frame.encode(&mut out));
        assert_eq!(WriteFrame::decode(&out), Ok((frame, &[][..])));
        let longer = WriteFrame { write_id: &"x".repeat(usize::from(u16::MAX) + 1), ..frame };
        let before = out.clone();
        assert!(!longer.encode(&mut out));
        assert_eq!(out, before);
    }

    #[test]
    fn an_invalid_frame_is_refused() {
        let good = OutputFrame { channel: 1, stream: Stream::Stdout, seq: 1, offset: 0 }.encode();
        for len in 0..OUTPUT_HEADER {
            assert_eq!(OutputFrame::decode(&good[..len]), Err(FrameError::Short { found: len }));
        }
        let with = |at: usize, byte: u8| {
            let mut frame = good;
            frame[at] = byte;
            OutputFrame::decode(&frame).map(|(frame, _)| frame)
        };
        assert_eq!(with(0, b'{'), Err(FrameError::Mark { found: b'{' }));
        assert_eq!(with(1, 3), Err(FrameError::Stream { found: 3 }));
        assert_eq!(with(3, 1), Err(FrameError::Reserved));

        let mut out = Vec::new();
        assert!(WriteFrame { channel: 1, id: 1, write_id: "abc" }.encode(&mut out));
        for len in 0..out.len() {
            assert_eq!(WriteFrame::decode(&out[..len]), Err(FrameError::Short { found: len }));
        }
        out[16] = 0xff;
        assert_eq!(WriteFrame::decode(&out), Err(FrameError::WriteId));
        out[1] = 1;
        assert_eq!(WriteFrame::decode(&out), Err(FrameError::Reserved));
        assert!(!is_frame(b"{}") && !is_frame(b"") && is_frame(&out) && is_frame(&good));
    }
}
