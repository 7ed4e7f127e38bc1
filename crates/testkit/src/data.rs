//! Test data: seeded pseudo-random bytes and their comparison.

/// The next number of a seeded stream (SplitMix64): the same seed gives the same stream.
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Bytes without a period, so that any loss, repetition or reordering is detected.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random(&mut state).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Compares many bytes; on a difference reports its position instead of printing the bytes.
pub fn assert_same(what: &str, got: &[u8], expected: &[u8]) {
    if got == expected {
        return;
    }
    let at = got.iter().zip(expected).take_while(|(got, expected)| got == expected).count();
    panic!("{what}: {} bytes where {} are expected, alike up to byte {at}", got.len(), expected.len());
}
