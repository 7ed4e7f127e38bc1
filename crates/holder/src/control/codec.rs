//! Encodes and decodes control messages.
//!
//! Every read is bounds-checked, and every count is bounded by the bytes that are left. So no input can cause a panic,
//! or an allocation larger than the message (times a small constant).

use exec_server_process::TerminalSize;

use super::{
    AnnouncedSegment, CommandStatus, FromHolder, OLDEST_VERSION, OverflowPolicy, ProcessInfo, StartSpec, StartStage,
    ToHolder, VERSION, WriteStatus,
};

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
    #[error("control message has layout `{0}`")]
    Layout(u8),
    /// The kind of message is unknown.
    #[error("control message of kind `{0}`")]
    Kind(u8),
    /// The value of a field is outside its range.
    #[error("control message with bad value in `{0}`")]
    Value(&'static str),
}

/// Kind byte of an envelope, whose message is in the memfd that comes with it.
pub(super) const LARGE: u8 = 255;

/// Bytes before the fields: layout and kind.
pub(super) const HEADER: usize = 2;

impl ToHolder<'_> {
    /// Appends the encoded message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut w = FieldWriter(out);
        match self {
            Self::Hello { version, secret, epoch } => w.kind(1).u32(*version).raw(secret).u64(*epoch),
            Self::Attach => w.kind(2),
            Self::Detach { ttl_ms } => w.kind(3).u64(*ttl_ms),
            Self::SetTtl { ttl_ms } => w.kind(4).u64(*ttl_ms),
            Self::Start { req, spec } => w.kind(5).u32(*req).spec(spec),
            Self::Write { req, slot, key, digest, total, offset, data } => {
                w.kind(if digest.is_some() { 17 } else { 6 });
                w.u32(*req).u32(*slot).u8(u8::from(key.is_some())).raw(&key.unwrap_or_default());
                if let Some(digest) = digest {
                    w.u32(*digest);
                }
                w.u64(*total).u64(*offset).bytes(data)
            }
            Self::CloseStdin { req, slot } => w.kind(7).u32(*req).u32(*slot),
            Self::Signal { req, slot, signal } => w.kind(8).u32(*req).u32(*slot).i32(*signal),
            Self::Resize { req, slot, rows, cols } => w.kind(9).u32(*req).u32(*slot).u16(*rows).u16(*cols),
            Self::Terminate { req, slot, grace_ms } => w.kind(10).u32(*req).u32(*slot).option(grace_ms.map(u64::from)),
            Self::Cap { slot, bytes } => w.kind(11).u32(*slot).u64(*bytes),
            Self::Release { slot, segment } => w.kind(12).u32(*slot).u64(*segment),
            Self::Return { segment } => w.kind(13).u64(*segment),
            Self::Forget { req, slot } => w.kind(14).u32(*req).u32(*slot),
            Self::End { req } => w.kind(15).u32(*req),
            Self::StartConfined { req, kit, spec } => w.kind(16).u32(*req).u8(*kit).spec(spec),
            Self::Followed { slot, seq } => w.kind(22).u32(*slot).u64(*seq),
            Self::Used { is_going_on } => w.kind(18).u8(u8::from(*is_going_on)),
            Self::Withdraw { req } => w.kind(19).u32(*req),
            Self::AllowArchive => w.kind(20),
            Self::SetOrphanTtl { ttl_ms } => w.kind(23).u64(*ttl_ms),
            Self::Leave => w.kind(21),
        };
    }
}

impl<'a> ToHolder<'a> {
    /// Decodes one complete message.
    pub fn decode(message: &'a [u8]) -> Result<Self, DecodeError> {
        let (kind, mut r) = FieldReader::open(message)?;
        let decoded = match kind {
            1 => Self::Hello { version: r.u32()?, secret: r.array()?, epoch: r.u64()? },
            2 => Self::Attach,
            3 => Self::Detach { ttl_ms: r.u64()? },
            4 => Self::SetTtl { ttl_ms: r.u64()? },
            5 => Self::Start { req: r.u32()?, spec: r.spec()? },
            6 | 17 => {
                let (req, slot, keyed, key) = (r.u32()?, r.u32()?, r.bool("key")?, r.array()?);
                Self::Write {
                    req,
                    slot,
                    key: keyed.then_some(key),
                    digest: (kind == 17).then(|| r.u32()).transpose()?,
                    total: r.u64()?,
                    offset: r.u64()?,
                    data: r.bytes()?,
                }
            }
            7 => Self::CloseStdin { req: r.u32()?, slot: r.u32()? },
            8 => Self::Signal { req: r.u32()?, slot: r.u32()?, signal: r.i32()? },
            9 => Self::Resize { req: r.u32()?, slot: r.u32()?, rows: r.u16()?, cols: r.u16()? },
            10 => {
                let (req, slot, grace) = (r.u32()?, r.u32()?, r.option()?);
                let grace_ms =
                    grace.map(|ms| u32::try_from(ms).map_err(|_| DecodeError::Value("grace_ms"))).transpose()?;
                Self::Terminate { req, slot, grace_ms }
            }
            11 => Self::Cap { slot: r.u32()?, bytes: r.u64()? },
            12 => Self::Release { slot: r.u32()?, segment: r.u64()? },
            13 => Self::Return { segment: r.u64()? },
            14 => Self::Forget { req: r.u32()?, slot: r.u32()? },
            15 => Self::End { req: r.u32()? },
            16 => Self::StartConfined { req: r.u32()?, kit: r.u8()?, spec: r.spec()? },
            22 => Self::Followed { slot: r.u32()?, seq: r.u64()? },
            23 => Self::SetOrphanTtl { ttl_ms: r.u64()? },
            18 => Self::Used { is_going_on: r.bool("is_going_on")? },
            19 => Self::Withdraw { req: r.u32()? },
            20 => Self::AllowArchive,
            21 => Self::Leave,
            other => return Err(DecodeError::Kind(other)),
        };
        r.end(decoded)
    }
}

impl FromHolder {
    /// Appends the encoded message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut w = FieldWriter(out);
        match self {
            Self::Welcome { version, epoch, ttl_ms, detached_ms, info } => {
                w.kind(1).u32(*version).u64(*epoch).u64(*ttl_ms).u64(*detached_ms).bytes(info)
            }
            Self::Refused { version, epoch } => w.kind(2).u32(*version).u64(*epoch),
            Self::Process(process) => w.kind(3).process(process),
            Self::Segment(segment) => w.kind(4).segment(segment),
            Self::Ready => w.kind(5),
            Self::Started { req, slot, pid } => w.kind(6).u32(*req).u32(*slot).u32(*pid),
            Self::StartFailed { req, stage, errno, detail } => {
                w.kind(7).u32(*req).u8(stage.code()).i32(*errno).bytes(detail)
            }
            Self::Written { req, status, done } => w.kind(8).u32(*req).u8(status.code()).u64(*done),
            Self::Done { req, status } => {
                let (code, errno) = status.code();
                w.kind(9).u32(*req).u8(code).i32(errno)
            }
            Self::Spilled { slot, segment } => w.kind(10).u32(*slot).u64(*segment),
            Self::Dropped { slot, segment } => w.kind(11).u32(*slot).u64(*segment),
            Self::Expired => w.kind(12),
            Self::Retired { segment } => w.kind(13).u64(*segment),
            Self::Archived => w.kind(20),
            Self::Staying => w.kind(21),
        };
    }

    /// Decodes one complete message.
    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut r) = FieldReader::open(message)?;
        let decoded = match kind {
            1 => Self::Welcome {
                version: r.u32()?,
                epoch: r.u64()?,
                ttl_ms: r.u64()?,
                detached_ms: r.u64()?,
                info: r.bytes()?.to_vec(),
            },
            2 => Self::Refused { version: r.u32()?, epoch: r.u64()? },
            3 => Self::Process(Box::new(r.process()?)),
            4 => Self::Segment(r.segment()?),
            5 => Self::Ready,
            6 => Self::Started { req: r.u32()?, slot: r.u32()?, pid: r.u32()? },
            7 => Self::StartFailed {
                req: r.u32()?,
                stage: StartStage::from_code(r.u8()?)?,
                errno: r.i32()?,
                detail: r.bytes()?.to_vec(),
            },
            8 => Self::Written { req: r.u32()?, status: WriteStatus::from_code(r.u8()?)?, done: r.u64()? },
            9 => Self::Done { req: r.u32()?, status: CommandStatus::from_code(r.u8()?, r.i32()?)? },
            10 => Self::Spilled { slot: r.u32()?, segment: r.u64()? },
            11 => Self::Dropped { slot: r.u32()?, segment: r.u64()? },
            12 => Self::Expired,
            13 => Self::Retired { segment: r.u64()? },
            20 => Self::Archived,
            21 => Self::Staying,
            other => return Err(DecodeError::Kind(other)),
        };
        r.end(decoded)
    }
}

/// Writes fields. Each method returns the writer, so that an encoder reads like the layout.
struct FieldWriter<'a>(&'a mut Vec<u8>);

impl FieldWriter<'_> {
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn kind(&mut self, kind: u8) -> &mut Self {
        #[expect(clippy::cast_possible_truncation, reason = "layout numbers are small")]
        self.raw(&[VERSION as u8, kind])
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn i32(&mut self, value: i32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn option(&mut self, value: Option<u64>) -> &mut Self {
        self.u8(u8::from(value.is_some())).u64(value.unwrap_or_default())
    }

    /// Writes a count. One that does not fit is replaced by the largest value: `send` refuses such a message anyway.
    fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).raw(bytes)
    }

    fn list(&mut self, items: &[Vec<u8>]) -> &mut Self {
        self.count(items.len());
        for item in items {
            self.bytes(item);
        }
        self
    }

    fn spec(&mut self, spec: &StartSpec) -> &mut Self {
        let size = spec.tty.map_or((0, 0), |size| (size.rows, size.cols));
        self.list(&spec.argv).u8(u8::from(spec.arg0.is_some())).bytes(spec.arg0.as_deref().unwrap_or_default());
        self.list(&spec.env).bytes(&spec.cwd).u8(u8::from(spec.tty.is_some())).u16(size.0).u16(size.1);
        self.u8(u8::from(spec.pipe_stdin)).option(spec.timeout_ms).option(spec.idle_timeout_ms);
        self.u8(spec.overflow.code()).u64(spec.cap_bytes).bytes(&spec.meta)
    }

    fn process(&mut self, process: &ProcessInfo) -> &mut Self {
        self.u32(process.slot).u32(process.pid).u8(u8::from(process.tty)).u8(u8::from(process.stdin_open));
        self.u8(u8::from(process.running)).u64(process.cap_bytes).u8(process.overflow.code()).bytes(&process.meta)
    }

    fn segment(&mut self, segment: &AnnouncedSegment) -> &mut Self {
        self.u32(segment.slot).u64(segment.id).u64(segment.base_seq).u64(segment.base_offset);
        self.u8(u8::from(segment.on_disk)).u8(u8::from(segment.sealed))
    }
}

/// Reads fields from the front of a message.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn open(message: &'a [u8]) -> Result<(u8, Self), DecodeError> {
        let &[layout, kind, ref fields @ ..] = message else { return Err(DecodeError::Short) };
        if !(OLDEST_VERSION..=VERSION).contains(&u32::from(layout)) {
            return Err(DecodeError::Layout(layout));
        }
        Ok((kind, Self(fields)))
    }

    fn end<T>(&self, decoded: T) -> Result<T, DecodeError> {
        if self.0.is_empty() { Ok(decoded) } else { Err(DecodeError::Trailing(self.0.len())) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value(field)),
        }
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn option(&mut self) -> Result<Option<u64>, DecodeError> {
        let some = self.bool("option")?;
        let value = self.u64()?;
        Ok(some.then_some(value))
    }

    fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.u32()?).map_err(|_| DecodeError::Short)?;
        let (first, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.0 = rest;
        Ok(first)
    }

    fn list(&mut self) -> Result<Vec<Vec<u8>>, DecodeError> {
        let count = usize::try_from(self.u32()?).map_err(|_| DecodeError::Short)?;
        // Each item has a length field of four bytes. A larger count is invalid and must not size an allocation.
        if count > self.0.len() / 4 {
            return Err(DecodeError::Short);
        }
        (0..count).map(|_| self.bytes().map(<[u8]>::to_vec)).collect()
    }

    fn spec(&mut self) -> Result<StartSpec, DecodeError> {
        let argv = self.list()?;
        let (has_arg0, arg0) = (self.bool("arg0")?, self.bytes()?);
        let (env, cwd) = (self.list()?, self.bytes()?.to_vec());
        let (tty, rows, cols) = (self.bool("tty")?, self.u16()?, self.u16()?);
        Ok(StartSpec {
            argv,
            arg0: has_arg0.then(|| arg0.to_vec()),
            env,
            cwd,
            tty: tty.then_some(TerminalSize { rows, cols }),
            pipe_stdin: self.bool("pipe_stdin")?,
            timeout_ms: self.option()?,
            idle_timeout_ms: self.option()?,
            overflow: OverflowPolicy::from_code(self.u8()?)?,
            cap_bytes: self.u64()?,
            meta: self.bytes()?.to_vec(),
        })
    }

    fn process(&mut self) -> Result<ProcessInfo, DecodeError> {
        Ok(ProcessInfo {
            slot: self.u32()?,
            pid: self.u32()?,
            tty: self.bool("tty")?,
            stdin_open: self.bool("stdin_open")?,
            running: self.bool("running")?,
            cap_bytes: self.u64()?,
            overflow: OverflowPolicy::from_code(self.u8()?)?,
            meta: self.bytes()?.to_vec(),
        })
    }

    fn segment(&mut self) -> Result<AnnouncedSegment, DecodeError> {
        Ok(AnnouncedSegment {
            slot: self.u32()?,
            id: self.u64()?,
            base_seq: self.u64()?,
            base_offset: self.u64()?,
            on_disk: self.bool("on_disk")?,
            sealed: self.bool("sealed")?,
        })
    }
}
