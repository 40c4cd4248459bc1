//! The flags that protect the table from other programs (Linux 6.9).
//!
//! - `owner`: only the netlink socket that set the flag changes or deletes the table. `nft flush
//!   ruleset` of another program skips the table.
//! - `persist`: the table stays when the socket is closed, and has no owner then. The next run of the
//!   agent becomes its owner.

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
    /// Wanted. The kernel has not been examined yet.
    Wanted,
    /// In force.
    On,
}

impl Protection {
    /// Examines the kernel, if that is necessary.
    pub(super) fn examine(&mut self, connection: &mut Connection) {
        if *self == Protection::Wanted {
            match try_flags(connection) {
                Ok(()) => *self = Protection::On,
                Err(TransactionError::Refused { error, .. }) => {
                    tracing::info!(%error, "the kernel cannot protect the table of network policies from other programs (Linux 6.9 can)");
                    *self = Protection::Off;
                }
                // The socket failed: the transaction of the table reports it.
                Err(TransactionError::Socket(_)) => {}
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
