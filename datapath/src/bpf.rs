//! Classic BPF for socket filters: the few instructions that the agent's filters use.
//!
//! A filter runs in the kernel. A frame that it drops wakes no process and fills no buffer. Loads
//! are in network byte order. A load beyond the end of the frame drops the frame. Jumps are relative
//! to the next instruction, at most 255 instructions forward.

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

/// Sets the index register X to this number.
pub const fn set_index(number: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LDX | libc::BPF_IMM) as u16, 0, 0, number)
}

/// Loads the 32 bits at X and this offset.
pub const fn load_word_at_index(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_W | libc::BPF_IND) as u16, 0, 0, offset)
}

/// Loads the 16 bits at X and this offset.
pub const fn load_half_at_index(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16, 0, 0, offset)
}

/// Loads the octet at X and this offset.
pub const fn load_octet_at_index(offset: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_IND) as u16, 0, 0, offset)
}

/// Stores the loaded value in a cell of the scratch memory.
pub const fn store(cell: u32) -> SockFilter {
    SockFilter::new(libc::BPF_ST as u16, 0, 0, cell)
}

/// Stores X in a cell of the scratch memory.
pub const fn store_index(cell: u32) -> SockFilter {
    SockFilter::new(libc::BPF_STX as u16, 0, 0, cell)
}

/// Sets X to a cell of the scratch memory.
pub const fn restore_index(cell: u32) -> SockFilter {
    SockFilter::new((libc::BPF_LDX | libc::BPF_MEM) as u16, 0, 0, cell)
}

/// Sets X to the loaded value.
pub const INDEX_IS_VALUE: SockFilter = SockFilter::new((libc::BPF_MISC | libc::BPF_TAX) as u16, 0, 0, 0);
/// Adds X to the loaded value.
pub const ADD_INDEX: SockFilter =
    SockFilter::new((libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16, 0, 0, 0);
/// Sets the bits of X in the loaded value.
pub const OR_INDEX: SockFilter =
    SockFilter::new((libc::BPF_ALU | libc::BPF_OR | libc::BPF_X) as u16, 0, 0, 0);

/// Shifts the loaded value to the left.
pub const fn shift_left(bits: u32) -> SockFilter {
    SockFilter::new((libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K) as u16, 0, 0, bits)
}

/// Adds a number to the loaded value.
pub const fn add(number: u32) -> SockFilter {
    SockFilter::new((libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16, 0, 0, number)
}

/// Keeps these bits of the loaded value.
pub const fn mask(bits: u32) -> SockFilter {
    SockFilter::new((libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16, 0, 0, bits)
}

/// Delivers the frame to the socket.
pub const KEEP: SockFilter = answer(u32::MAX);
/// Drops the frame.
pub const DROP: SockFilter = answer(0);

const fn answer(octets: u32) -> SockFilter {
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, octets)
}
