//! Classic BPF for socket filters: the few instructions that the agent's filters are written in.
//!
//! A filter runs in the kernel on what a socket would get; what it refuses wakes nobody and fills no buffer. Loads are in network
//! order, jumps are relative to the next instruction and reach 255 instructions forward.

use socket2::SockFilter;

/// The 32 bits at this offset.
pub const fn load_word(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, offset)
}

/// The 16 bits at this offset.
pub const fn load_half(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16, 0, 0, offset)
}

/// The octet at this offset.
pub const fn load_octet(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, offset)
}

/// Goes on `yes` instructions further if what was loaded is `value`, else `no`.
pub const fn equal(value: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, yes, no, value)
}

/// Goes on `yes` instructions further if what was loaded is `value` or more, else `no`.
pub const fn at_least(value: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16, yes, no, value)
}

/// Goes on `yes` instructions further if what was loaded has a bit of `mask`, else `no`.
pub const fn any_bit(mask: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, yes, no, mask)
}

/// The socket gets it.
pub const KEEP: SockFilter = answer(u32::MAX);
/// The socket does not.
pub const DROP: SockFilter = answer(0);

const fn answer(octets: u32) -> SockFilter {
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, octets)
}
