//! Classic BPF for socket filters: the few instructions that the agent's filters use.
//!
//! A filter runs in the kernel. A frame that it drops wakes no process and fills no buffer. Loads
//! are in network byte order. Jumps are relative to the next instruction, at most 255 instructions
//! forward.

use socket2::SockFilter;

/// Loads the 32 bits at this offset.
pub const fn load_word(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, offset)
}

/// Loads the 16 bits at this offset.
pub const fn load_half(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16, 0, 0, offset)
}

/// Loads the octet at this offset.
pub const fn load_octet(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, offset)
}

/// Jumps `yes` instructions forward if the loaded value equals `value`, otherwise `no`.
pub const fn equal(value: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, yes, no, value)
}

/// Jumps `yes` instructions forward if the loaded value is at least `value`, otherwise `no`.
pub const fn at_least(value: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16, yes, no, value)
}

/// Jumps `yes` instructions forward if the loaded value has a bit of `mask`, otherwise `no`.
pub const fn any_bit(mask: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new((libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, yes, no, mask)
}

/// Delivers the frame to the socket.
pub const KEEP: SockFilter = answer(u32::MAX);
/// Drops the frame.
pub const DROP: SockFilter = answer(0);

const fn answer(octets: u32) -> SockFilter {
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, octets)
}
