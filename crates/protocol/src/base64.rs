//! Base64 with the standard alphabet and padding. Decoding is strict.

use base64_simd::STANDARD;

/// The text is not valid base64 with the standard alphabet and padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not padded base64 of the standard alphabet")]
pub struct InvalidBase64;

/// Length of the base64 text that encodes `bytes` bytes.
#[must_use]
pub const fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

/// Appends the base64 text of `bytes` to `out`.
pub fn encode_into(out: &mut Vec<u8>, bytes: &[u8]) {
    STANDARD.encode_append(bytes, out);
}

/// Encodes `bytes` as base64 text.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode_to_string(bytes)
}

/// Decodes `text`. Missing padding and nonzero unused bits are errors.
pub fn decode(text: &str) -> Result<Vec<u8>, InvalidBase64> {
    STANDARD.decode_to_vec(text).map_err(|_| InvalidBase64)
}

/// Like [`decode`], into the memory of the text.
pub fn decode_owned(text: String) -> Result<Vec<u8>, InvalidBase64> {
    let mut bytes = text.into_bytes();
    let len = STANDARD.decode_inplace(&mut bytes).map_err(|_| InvalidBase64)?.len();
    bytes.truncate(len);
    Ok(bytes)
}
