//! A seeded random number generator, so that a run can be reproduced from its seed. Not for secrets.

/// SplitMix64: tiny, and good enough to choose the places of cuts and kills.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent generator for one part of a run, so that the parts do not affect each other's numbers.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    #[expect(clippy::should_implement_trait, reason = "a stream without an end is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `low..high`.
    ///
    /// # Panics
    ///
    /// Panics if the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    /// True with probability 1/`n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}
