//! An allocator that counts the allocations of each thread; it applies to every program with this
//! module.
#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]
#![allow(dead_code, reason = "each program uses one of the counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// Octets allocated and not freed; negative if the thread frees another thread's memory.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged; counting uses a thread-local
// without allocation and without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + layout.size().cast_signed());
        // SAFETY: the caller guarantees the same conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size().cast_signed());
        // SAFETY: the caller guarantees the same conditions.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD.set(HELD.get() + size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller guarantees the same conditions.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of allocations and reallocations of this thread in `work`.
pub(crate) fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// The number of octets by which the memory of this thread grows in `work`.
pub(crate) fn held(work: impl FnOnce()) -> isize {
    let before = HELD.get();
    work();
    HELD.get() - before
}
