//! Base64 with the standard alphabet and padding, strict when read. It must not know what the bytes are.

use base64_simd::STANDARD;

/// The text is not padded base64 of the standard alphabet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not padded base64 of the standard alphabet")]
pub struct InvalidBase64;

/// Length of the text for so many bytes.
#[must_use]
pub const fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

/// Appends the text of `bytes`.
pub fn encode_into(out: &mut Vec<u8>, bytes: &[u8]) {
    STANDARD.encode_append(bytes, out);
}

/// The text of `bytes`.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode_to_string(bytes)
}

/// The bytes of `text`; padding must be there and unused bits must be zero.
pub fn decode(text: &str) -> Result<Vec<u8>, InvalidBase64> {
    STANDARD.decode_to_vec(text).map_err(|_| InvalidBase64)
}
