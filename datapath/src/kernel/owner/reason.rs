//! The reason of a refused change, from a short list: a label of `trunkline_kernel_errors_total`.

use super::KernelError;
use crate::netlink::NetlinkError;

/// The origin of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The kernel refused a request.
    Errno(i32),
    /// A file under /proc/sys.
    Sysctl,
    /// `nft`, or the notifications of nftables.
    Nftables,
    /// A device of the plan cannot be created or changed; the log has the reason.
    Link,
    /// The netlink socket failed.
    Netlink,
}

impl Reason {
    pub(super) fn of(error: &KernelError) -> Reason {
        match error {
            KernelError::Netlink(NetlinkError::Refused(refusal))
            | KernelError::Pod { error: refusal, .. } => Reason::Errno(refusal.errno),
            _ => Reason::Netlink,
        }
    }

    /// The label value. Error numbers that rtnetlink returns for these requests have their names.
    /// All others share one value, which limits the number of label values.
    pub(super) fn word(self) -> &'static str {
        match self {
            Reason::Errno(libc::EPERM) => "EPERM",
            Reason::Errno(libc::ENOENT) => "ENOENT",
            Reason::Errno(libc::ESRCH) => "ESRCH",
            Reason::Errno(libc::ENOMEM) => "ENOMEM",
            Reason::Errno(libc::EACCES) => "EACCES",
            Reason::Errno(libc::EBUSY) => "EBUSY",
            Reason::Errno(libc::EEXIST) => "EEXIST",
            Reason::Errno(libc::ENODEV) => "ENODEV",
            Reason::Errno(libc::EINVAL) => "EINVAL",
            Reason::Errno(libc::ENOSPC) => "ENOSPC",
            Reason::Errno(libc::ERANGE) => "ERANGE",
            Reason::Errno(libc::EOPNOTSUPP) => "EOPNOTSUPP",
            Reason::Errno(libc::EAFNOSUPPORT) => "EAFNOSUPPORT",
            Reason::Errno(libc::EADDRNOTAVAIL) => "EADDRNOTAVAIL",
            Reason::Errno(libc::ENETDOWN) => "ENETDOWN",
            Reason::Errno(libc::ENETUNREACH) => "ENETUNREACH",
            Reason::Errno(libc::ENOBUFS) => "ENOBUFS",
            Reason::Errno(libc::EHOSTUNREACH) => "EHOSTUNREACH",
            Reason::Errno(_) => "other",
            Reason::Sysctl => "sysctl",
            Reason::Nftables => "nftables",
            Reason::Link => "link",
            Reason::Netlink => "netlink",
        }
    }
}
