//! The free memory that the C library's allocator keeps.
//!
//! A full table is a few large vectors and many small attribute sets. A session that flaps frees
//! and allocates both. With glibc's defaults this makes a process grow. Each thread allocates from
//! its own heap (arena), and memory that one thread frees is not available to another. After a
//! large block is freed, blocks up to that size no longer get pages of their own
//! (`M_MMAP_THRESHOLD` is dynamic). So the old memory of a growing vector stays in the heap. After
//! three tables of a million prefixes this was 165 MB instead of 95.
//!
//! The small blocks remain: one block in use retains all free ones below it. So when many attribute
//! sets are gone, the owner releases the whole free pages among them ([`Trim`]).

use std::sync::atomic::{AtomicBool, Ordering};

/// Set by [`compact_heap`].
static COMPACT: AtomicBool = AtomicBool::new(false);

/// The minimum number of attribute sets for a release: 100,000 are some 10 MB.
const MANY: usize = 100_000;

/// Keeps this process's memory near the size that its tables need. All threads share one heap.
/// Every block of 128 KiB and more has its own pages. When the block is freed, the kernel gets the
/// pages back. When the block grows, the kernel moves the pages instead of copying them.
///
/// This call is optional. It applies to the whole process and only works before other threads run,
/// so call it first in `main`. Does nothing if the C library is not glibc. A program with its own
/// allocator (`#[global_allocator]`) does not need it.
pub fn compact_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 128 * 1024)] {
        #[expect(unsafe_code, reason = "the parameters of malloc have no other interface")]
        // SAFETY: mallopt takes two integers by value, locks what it changes, and rejects unknown
        // parameters.
        let taken = unsafe { libc::mallopt(parameter, value) };
        debug_assert_eq!(taken, 1, "glibc knows malloc's parameter {parameter}");
    }
    COMPACT.store(true, Ordering::Relaxed);
}

/// Decides when to release pages.
#[derive(Debug, Default)]
pub(super) struct Trim {
    /// The maximum number of attribute sets since the last release.
    most: usize,
}

impl Trim {
    /// Releases free pages if most of many attribute sets are gone; `sets` is the current number.
    #[inline]
    pub(super) fn turn(&mut self, sets: usize) {
        if self.is_due(sets) {
            release_free_memory();
        }
    }

    fn is_due(&mut self, sets: usize) -> bool {
        self.most = self.most.max(sets);
        let due = self.most >= MANY && sets <= self.most / 8;
        if due {
            self.most = sets;
        }
        due
    }
}

/// Returns free pages of the heap to the kernel. For a caller that has just freed much memory in
/// small blocks, for example the objects of a long list. Other threads wait for milliseconds if they
/// allocate meanwhile. Does nothing without [`compact_heap`].
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if COMPACT.load(Ordering::Relaxed) {
        #[expect(unsafe_code, reason = "malloc_trim has no other interface")]
        // SAFETY: malloc_trim takes an integer by value and locks the heap while it examines free
        // blocks.
        unsafe {
            libc::malloc_trim(0)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_released_once_when_most_of_many_sets_are_gone() {
        let mut trim = Trim::default();
        let due: Vec<bool> =
            [MANY - 1, 0, MANY * 8, MANY + 1, MANY, 0, 0].map(|sets| trim.is_due(sets)).to_vec();
        assert_eq!(due, [false, false, false, false, true, true, false]);
    }
}
