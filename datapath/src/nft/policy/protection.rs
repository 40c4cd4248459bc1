//! The flags that protect the table from other programs (Linux 6.9).
//!
//! - `owner`: only the netlink socket that set the flag changes or deletes the table. `nft flush
//!   ruleset` of another program skips the table.
//! - `persist`: the table stays when the socket is closed, and has no owner then. The next run of the
//!   agent becomes its owner.

use std::io;

use super::transaction::{DELETE_TABLE, NEW_TABLE, TABLE, TABLE_FLAGS};
use crate::netlink::netfilter::{Connection, Messages, TransactionError, number, text};

/// `NFT_TABLE_F_OWNER` and `NFT_TABLE_F_PERSIST`.
const OWNER: u32 = 2;
const PERSIST: u32 = 4;

/// Whether and how the table is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protection {
    /// The administrator does not want it, or the kernel has no flag `persist`.
    #[default]
    Off,
    /// Wanted. The kernel has not been examined yet, or had no resources for the examination: the
    /// table is not protected until the next whole table.
    Wanted,
    /// In force.
    On,
}

impl Protection {
    /// Examines the kernel, if that is necessary.
    pub(super) fn examine(&mut self, connection: &mut Connection) {
        if *self == Protection::Wanted {
            *self = Protection::found(try_flags(connection));
        }
    }

    /// The result of an examination. Only an answer about the flags themselves means that the kernel
    /// lacks them. Other errors can pass: no memory, no permission, a failed socket.
    fn found(trial: Result<(), TransactionError>) -> Protection {
        match trial {
            Ok(()) => Protection::On,
            Err(TransactionError::Refused { error, .. }) if lacks_flags(&error) => {
                tracing::info!(%error, "the kernel cannot protect the table of network policies from other programs (Linux 6.9 can)");
                Protection::Off
            }
            Err(error) => {
                tracing::warn!(%error, "the table of network policies is not protected from other programs until the agent sends the whole table again");
                Protection::Wanted
            }
        }
    }

    /// The flags of the table.
    pub(super) const fn flags(self) -> u32 {
        match self {
            Protection::On => OWNER | PERSIST,
            Protection::Off | Protection::Wanted => 0,
        }
    }

    /// Whether a table with these flags can get the wanted flags without a replacement.
    pub(super) const fn can_adopt(self, flags: u32) -> bool {
        matches!(self, Protection::On) && flags == PERSIST
    }
}

/// The kernel answers unknown flags with EOPNOTSUPP, and before Linux 5.11 with EINVAL.
fn lacks_flags(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

/// Creates and deletes a table with the flags in one transaction.
fn try_flags(connection: &mut Connection) -> Result<(), TransactionError> {
    let mut messages = Messages::default();
    for kind in [NEW_TABLE, DELETE_TABLE] {
        messages.push(kind, netlink_packet_core::NLM_F_CREATE, libc::NFPROTO_INET, |message| {
            text(message, TABLE, "trunkline-trial");
            if kind == NEW_TABLE {
                number(message, TABLE_FLAGS, OWNER | PERSIST);
            }
        });
    }
    connection.transact(&messages)
}

/// Becomes the owner of an existing table that a closed socket left. Returns false if there is none.
pub(super) fn adopt(connection: &mut Connection) -> io::Result<bool> {
    let mut messages = Messages::default();
    // Without NLM_F_CREATE the kernel changes a table that exists, and makes none.
    messages.push(NEW_TABLE, 0, libc::NFPROTO_INET, |message| {
        text(message, TABLE, super::NAME);
        number(message, TABLE_FLAGS, OWNER | PERSIST);
    });
    match connection.transact(&messages) {
        Ok(()) => Ok(true),
        // No table, a table without the flags, or one of a process that has not ended yet.
        Err(TransactionError::Refused { error, .. })
            if error.kind() == io::ErrorKind::NotFound
                || lacks_flags(&error)
                || error.raw_os_error() == Some(libc::EPERM) =>
        {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unknown_flags_switch_the_protection_off() {
        let refused = |errno: i32| {
            let error = io::Error::from_raw_os_error(errno);
            Protection::found(Err(TransactionError::Refused { index: None, error, note: None }))
        };
        assert_eq!(Protection::found(Ok(())), Protection::On);
        for errno in [libc::EOPNOTSUPP, libc::EINVAL] {
            assert_eq!(refused(errno), Protection::Off, "errno {errno}");
        }
        for errno in [libc::ENOMEM, libc::ENOBUFS, libc::EPERM, libc::EAGAIN, libc::EEXIST, libc::EBUSY] {
            assert_eq!(refused(errno), Protection::Wanted, "errno {errno}");
        }
        let socket = TransactionError::Socket(io::Error::from_raw_os_error(libc::ENOBUFS));
        assert_eq!(Protection::found(Err(socket)), Protection::Wanted);
        // The next whole table examines the kernel again, and then has the flags.
        assert_eq!((Protection::Wanted.flags(), Protection::On.flags()), (0, OWNER | PERSIST));
    }
}
