//! Whether somebody keeps the host's clock.

/// Whether the kernel was told lately what time it is, by chrony, systemd-timesyncd or whoever does it. None where it does not say.
#[expect(unsafe_code, reason = "no safe crate has adjtimex")]
pub(crate) fn is_synchronised() -> Option<bool> {
    // SAFETY: a timex is numbers alone, of which zero is one; modes 0 is "change nothing".
    let mut question: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a timex that lives as long as the call.
    let state = unsafe { libc::adjtimex(&raw mut question) };
    (state >= 0).then_some(question.status & libc::STA_UNSYNC == 0)
}
