//! Whether the host's clock is synchronised.

/// Whether a program such as chrony or systemd-timesyncd has recently set the kernel's clock. None
/// if the kernel does not report it.
#[expect(unsafe_code, reason = "no safe crate has adjtimex")]
pub(crate) fn is_synchronised() -> Option<bool> {
    // SAFETY: a timex has only numbers, and zero is valid for each of them. If `modes` is 0,
    // nothing is changed.
    let mut question: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer refers to a timex that lives as long as the call.
    let state = unsafe { libc::adjtimex(&raw mut question) };
    (state >= 0).then_some(question.status & libc::STA_UNSYNC == 0)
}
