//! Measures the peak memory of a piece of code, with an allocator that counts per thread.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct CountingAllocator;

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

thread_local! {
    /// Bytes that this thread allocated minus bytes that it freed. It may be negative, because a thread can free memory of other threads.
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn note(change: isize) {
    // The counters of a thread that is ending are already gone. Nothing is measured then.
    let now = NOW.try_with(|now| {
        now.set(now.get() + change);
        now.get()
    });
    if let Ok(now) = now {
        MOST.try_with(|most| most.set(most.get().max(now))).ok();
    }
}

// SAFETY: every call is forwarded to the system allocator with unchanged arguments. Counting does not touch the caller's memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `alloc`, which is passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `alloc_zeroed`, which is passed on unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `realloc`, which is passed on unchanged.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        note(-layout.size().cast_signed());
        // SAFETY: the caller upholds the contract of `dealloc`, which is passed on unchanged.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Runs `code`, and panics if it holds more than `limit` bytes at any time, in addition to what was allocated before.
pub(crate) fn within<T>(limit: usize, code: impl FnOnce() -> T) -> T {
    let before = NOW.get();
    MOST.set(before);
    let result = code();
    let held = MOST.get() - before;
    assert!(held <= limit.cast_signed(), "held {held} bytes at once, allowed are {limit}");
    result
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn peak_memory_is_measured() {
        within(5000, || {
            for _ in 0..100 {
                drop(std::hint::black_box(vec![1_u8; 4000]));
            }
        });
        let too_much = std::panic::catch_unwind(|| within(5000, || std::hint::black_box(vec![1_u8; 6000])));
        assert!(too_much.is_err());
    }
}
