//! The end of the connections of addresses that left their holders.
//!
//! An established connection passes without a rule. So the next holder of an address could continue
//! the connections of the former one, on every node that tracks them. The deletion follows when the
//! kernel's sets no longer have the address as the former holder's. It lists the whole table of
//! connections, so addresses are collected: one list runs at a time, and users who replace their pods
//! again and again do not keep nodes busy. Addresses of a list that fails are in the next one.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use trunkline_datapath::kernel::{KernelError, KernelHandle};

/// The shortest pause between two lists.
const PACE: Duration = Duration::from_secs(1);
/// The pause after a list that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(10);
/// The pause between two lists, in units of the last one's duration: a node lists for a 21st of the
/// time at most.
const SHARE: u32 = 20;

/// A deletion of connections. Returns their number.
type Deletion = Pin<Box<dyn Future<Output = Result<usize, KernelError>> + Send>>;

/// Deletes the connections of addresses.
type Delete = dyn Fn(Vec<IpAddr>) -> Deletion + Send + Sync;

/// Addresses of which the connections must end.
pub(super) struct FormerHolders {
    delete: Arc<Delete>,
    addresses: BTreeSet<IpAddr>,
    /// The list that runs, with the pause after it. Returns the addresses of a list that failed.
    running: Option<JoinHandle<BTreeSet<IpAddr>>>,
    /// Whether the last list failed, and the log has it.
    failing: bool,
}

impl FormerHolders {
    pub(super) fn new(kernel: KernelHandle) -> FormerHolders {
        FormerHolders::with(move |addresses| {
            let kernel = kernel.clone();
            Box::pin(async move { kernel.forget_connections(addresses).await })
        })
    }

    fn with(delete: impl Fn(Vec<IpAddr>) -> Deletion + Send + Sync + 'static) -> FormerHolders {
        FormerHolders { delete: Arc::new(delete), addresses: BTreeSet::new(), running: None, failing: false }
    }

    pub(super) fn add(&mut self, addresses: BTreeSet<IpAddr>) {
        self.addresses.extend(addresses);
    }

    /// Begins a list when there are addresses and the pause after the last one is over. It runs on
    /// another thread. Returns after each beginning and end. A dropped future loses nothing.
    pub(super) async fn run(&mut self) {
        if let Some(running) = &mut self.running {
            let failed = running.await.unwrap_or_default();
            self.running = None;
            self.failing = !failed.is_empty();
            self.addresses.extend(failed);
        } else if self.addresses.is_empty() {
            std::future::pending::<()>().await;
        } else {
            let addresses = std::mem::take(&mut self.addresses);
            self.running = Some(tokio::spawn(list(Arc::clone(&self.delete), addresses, self.failing)));
        }
    }
}

/// Deletes the connections, and waits. Returns the addresses of which connections may be left.
async fn list(delete: Arc<Delete>, addresses: BTreeSet<IpAddr>, was_failing: bool) -> BTreeSet<IpAddr> {
    let began = Instant::now();
    let result = delete(addresses.iter().copied().collect()).await;
    let pause = PACE.max(SHARE * began.elapsed());
    let count = addresses.len();
    let (failed, pause) = match result {
        Ok(connections) => {
            tracing::debug!(addresses = count, connections, "connections of former holders have ended");
            (BTreeSet::new(), pause)
        }
        Err(error) => {
            if !was_failing {
                tracing::warn!(
                    addresses = count,
                    %error,
                    "connections of released addresses may continue to their next holders: the deletion is tried again"
                );
            }
            (addresses, pause.max(FAILED_PAUSE))
        }
    };
    tokio::time::sleep(pause).await;
    failed
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn address(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    /// Holders whose lists take a time and have results, and the addresses of each list.
    fn holders(
        takes: Duration,
        fails: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) -> (FormerHolders, Arc<Mutex<Vec<usize>>>) {
        let lists = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&lists);
        let holders = FormerHolders::with(move |addresses| {
            all.lock().unwrap().push(addresses.len());
            let is_failure = fails(all.lock().unwrap().len());
            Box::pin(async move {
                tokio::time::sleep(takes).await;
                if is_failure { Err(KernelError::Gone) } else { Ok(1) }
            })
        });
        (holders, lists)
    }

    /// An address leaves its holder in each second.
    async fn replace_pods(holders: &mut FormerHolders, seconds: u8) {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        let mut number = 0;
        while number < seconds {
            tokio::select! {
                biased;
                _ = second.tick() => {
                    holders.add([address(number)].into());
                    number += 1;
                }
                () = holders.run() => {}
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn long_lists_are_rare() {
        let (mut holders, lists) = holders(Duration::from_secs(2), |_| false);
        replace_pods(&mut holders, 100).await;
        // A list takes 2 s, and a pause of 40 s follows.
        assert_eq!(*lists.lock().unwrap(), [1, 42, 42]);
        let (mut holders, lists) = self::holders(Duration::ZERO, |_| false);
        replace_pods(&mut holders, 100).await;
        assert!(lists.lock().unwrap().len() > 90, "short lists need no long pauses");
    }

    #[tokio::test(start_paused = true)]
    async fn the_addresses_of_a_failed_list_are_in_the_next_one() {
        let (mut holders, lists) = holders(Duration::ZERO, |list| list < 3);
        holders.add([address(1), address(2)].into());
        let _ = tokio::time::timeout(Duration::from_secs(15), async {
            loop {
                holders.run().await;
            }
        })
        .await;
        holders.add([address(3)].into());
        let _ = tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                holders.run().await;
            }
        })
        .await;
        assert_eq!(*lists.lock().unwrap(), [2, 2, 3]);
    }
}
