//! The end of the connections of addresses that left their holders.
//!
//! An established connection passes without a rule. So the next holder of an address could continue
//! the connections of the former one, on every node that tracks them. The deletion follows when the
//! kernel's sets no longer have the address as the former holder's. It lists the whole table of
//! connections, so addresses are collected: at most one list runs at a time, and one begins in a
//! second.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use trunkline_datapath::kernel::KernelHandle;

/// The shortest time between two lists.
const PACE: Duration = Duration::from_secs(1);

/// Addresses of which the connections must end.
pub(super) struct FormerHolders {
    kernel: KernelHandle,
    addresses: BTreeSet<IpAddr>,
    /// The time of the next list; none without an address.
    pub(super) due: Option<Instant>,
    /// No list begins before this time.
    free_at: Instant,
    running: Option<JoinHandle<()>>,
}

impl FormerHolders {
    pub(super) fn new(kernel: KernelHandle) -> FormerHolders {
        FormerHolders {
            kernel,
            addresses: BTreeSet::new(),
            due: None,
            free_at: Instant::now(),
            running: None,
        }
    }

    pub(super) fn add(&mut self, addresses: BTreeSet<IpAddr>) {
        if !addresses.is_empty() {
            self.addresses.extend(addresses);
            self.due.get_or_insert(self.free_at.max(Instant::now()));
        }
    }

    /// Deletes the connections, on another thread.
    pub(super) fn forget(&mut self) {
        self.free_at = Instant::now() + PACE;
        if self.running.as_ref().is_some_and(|running| !running.is_finished()) {
            self.due = Some(self.free_at);
            return;
        }
        self.due = None;
        let addresses: Vec<IpAddr> = std::mem::take(&mut self.addresses).into_iter().collect();
        let kernel = self.kernel.clone();
        self.running = Some(tokio::spawn(async move {
            let count = addresses.len();
            match kernel.forget_connections(addresses).await {
                Ok(connections) => {
                    tracing::debug!(
                        addresses = count,
                        connections,
                        "connections of former holders have ended"
                    );
                }
                Err(error) => tracing::warn!(
                    addresses = count,
                    %error,
                    "connections of released addresses may continue to their next holders"
                ),
            }
        }));
    }
}
