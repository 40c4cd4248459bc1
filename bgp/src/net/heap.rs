//! What the C library's allocator keeps of memory that was given back to it.
//!
//! A full table is a few large vectors and many small attribute sets, and a session that flaps frees and fills both. With
//! glibc's defaults a process grows by that: each thread allocates from a heap (arena) of its own, and what one thread
//! frees another does not find; and once a large block has been freed, blocks up to that size no longer get pages of their
//! own (`M_MMAP_THRESHOLD` is dynamic), so that what a vector leaves behind when it grows stays in the heap. After three
//! tables of a million prefixes that were 165 MB in place of 95.
//!
//! What remains are the small blocks: one that lives holds all free ones below it. So when many attribute sets have gone,
//! the owner has whole pages among them given back ([`Trim`]).

use std::sync::atomic::{AtomicBool, Ordering};

/// [`compact_heap`] was called.
static COMPACT: AtomicBool = AtomicBool::new(false);

/// Attribute sets that have to go before it is worth looking: 100,000 are some 10 MB.
const MANY: usize = 100_000;

/// Keeps this process's memory near what its tables need: one heap for all threads, and pages of its own for every block
/// of 128 KiB and more, which go back to the kernel when it is freed, and are moved instead of copied when it grows.
///
/// Optional, for the whole process, and of use only before other threads run: call it first in `main`. Does nothing where
/// the C library is not glibc. A program with an allocator of its own (`#[global_allocator]`) does not need it.
pub fn compact_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 128 * 1024)] {
        #[expect(unsafe_code, reason = "the parameters of malloc have no other interface")]
        // SAFETY: mallopt takes two integers by value, locks what it changes, and refuses what it does not know.
        let taken = unsafe { libc::mallopt(parameter, value) };
        debug_assert_eq!(taken, 1, "glibc knows malloc's parameter {parameter}");
    }
    COMPACT.store(true, Ordering::Relaxed);
}

/// Knows when it is worth giving pages back.
#[derive(Debug, Default)]
pub(super) struct Trim {
    /// The most attribute sets that there were since the last time.
    most: usize,
}

impl Trim {
    /// Gives free pages back if most of many attribute sets have gone; `sets` is how many there are.
    #[inline]
    pub(super) fn turn(&mut self, sets: usize) {
        if self.is_due(sets) && COMPACT.load(Ordering::Relaxed) {
            give_back();
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

fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[expect(unsafe_code, reason = "malloc_trim has no other interface")]
        // SAFETY: malloc_trim takes an integer by value and locks the heap while it looks at free blocks.
        unsafe {
            libc::malloc_trim(0)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_back_once_when_most_of_many_sets_have_gone() {
        let mut trim = Trim::default();
        let due: Vec<bool> =
            [MANY - 1, 0, MANY * 8, MANY + 1, MANY, 0, 0].map(|sets| trim.is_due(sets)).to_vec();
        assert_eq!(due, [false, false, false, false, true, true, false]);
    }
}
