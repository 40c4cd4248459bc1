#![allow(unsafe_code)] // it stands in for a C function
//! `LD_PRELOAD` for `linux.uml`: a `ptrace` that sets the extended register state (NT_X86_XSTATE) whole.
//!
//! A user-mode kernel before 6.13 keeps 2,696 octets of it for each of its processes: everything up to PKRU. The
//! kernel below takes it back only in its full size, and on a processor with AMX that is 11,008 octets: it answers EFAULT, and the
//! user-mode kernel panics at its first process. What is past the 2,696 octets is AMX's tiles alone. No process has them without
//! asking the kernel by `arch_prctl`, which the user-mode kernel does not pass on, so zeroes in their place lose nothing.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_long, c_void};
use std::sync::OnceLock;

const PTRACE_GETREGSET: c_long = 0x4204;
const PTRACE_SETREGSET: c_long = 0x4205;
const NT_X86_XSTATE: usize = 0x202;
const RTLD_NEXT: isize = -1;

/// More than any processor has.
const MOST: usize = 64 << 10;

type Ptrace = extern "C" fn(c_long, c_long, *mut c_void, *mut c_void) -> c_long;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

#[repr(C)]
struct IoVec {
    base: *mut u8,
    length: usize,
}

/// On the heap of nobody and on no stack: a user-mode kernel's stacks have 16 KiB.
struct Area(UnsafeCell<[u8; MOST]>);

// SAFETY: only the thread that traces a process may set its registers, and a user-mode kernel has one such thread.
unsafe impl Sync for Area {}

static AREA: Area = Area(UnsafeCell::new([0; MOST]));

/// Stands in for ptrace(2).
///
/// # Safety
/// As of ptrace(2): with PTRACE_SETREGSET, `data` points to an `iovec`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(
    request: c_long,
    pid: c_long,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    static REAL: OnceLock<Ptrace> = OnceLock::new();
    let real = REAL.get_or_init(|| {
        // SAFETY: the C library's ptrace, which `linux.uml` is linked with, so there is one. It is variadic, and on x86-64
        // a variadic function takes integers and pointers where any other does.
        unsafe {
            std::mem::transmute::<*mut c_void, Ptrace>(dlsym(RTLD_NEXT as *mut c_void, c"ptrace".as_ptr()))
        }
    });
    // The request is an int; what is above it in the register is not specified.
    let sets_state = request & 0xffff_ffff == PTRACE_SETREGSET && address as usize == NT_X86_XSTATE;
    if !sets_state {
        return real(request, pid, address, data);
    }
    static FULL: OnceLock<usize> = OnceLock::new();
    let area: *mut u8 = AREA.0.get().cast();
    let full = *FULL.get_or_init(|| {
        let mut all = IoVec { base: area, length: MOST };
        let got = real(PTRACE_GETREGSET, pid, address, (&raw mut all).cast());
        // SAFETY: the area has this size, and is nobody else's (see `Area`).
        unsafe { area.write_bytes(0, MOST) };
        if got == 0 { all.length } else { 0 }
    });
    // SAFETY: the caller's promise.
    let given = unsafe { &*data.cast::<IoVec>() };
    if full <= given.length {
        return real(request, pid, address, data);
    }
    // SAFETY: the caller's octets are fewer than `full`, and the kernel wrote `full` octets into the area before.
    unsafe { area.copy_from_nonoverlapping(given.base, given.length) };
    let mut all = IoVec { base: area, length: full };
    real(request, pid, address, (&raw mut all).cast())
}
