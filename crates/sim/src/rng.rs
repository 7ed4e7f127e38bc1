//! A small seeded generator, so that a world is a function of its seed. Knows nothing of what is decided with it.

use std::ops::Range;

/// Xorshift64* with a mixed seed. Good enough to explore with, and nothing else.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for a seed; neighbouring seeds give unrelated sequences.
    pub fn new(seed: u64) -> Self {
        // One round of splitmix64: a plain small seed would begin with a long run of small numbers.
        let mut mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number of the range, which must not be empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        let span = range.end.checked_sub(range.start).filter(|span| *span > 0).expect("the range is not empty");
        range.start + self.draw() % span
    }

    /// The same for sizes and indices.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0..len as u64)).expect("below a usize")
    }

    /// True `percent` times out of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    /// One of the choices, which must not be empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// A generator of its own for a part of the world, so that the part does not shift the rest.
    pub fn fork(&mut self) -> Self {
        Self::new(self.draw())
    }
}
