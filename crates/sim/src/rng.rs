//! A small seeded generator, so that a world is a function of its seed.

use std::ops::Range;

/// Xorshift64* with a mixed seed. Good enough for exploration only.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for a seed. Adjacent seeds give unrelated sequences.
    pub fn new(seed: u64) -> Self {
        // One round of splitmix64. An unmixed small seed would begin with a long run of small numbers.
        let mut mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number in the range, which must not be empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        let span = range.end.checked_sub(range.start).filter(|span| *span > 0).expect("the range is not empty");
        range.start + self.draw() % span
    }

    /// An index below `len`, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0..len as u64)).expect("below a usize")
    }

    /// True with a probability of `percent` percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    /// One of the choices, which must not be empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// A separate generator for a part of the world, so that this part does not change the sequence of the rest.
    pub fn fork(&mut self) -> Self {
        Self::new(self.draw())
    }
}
