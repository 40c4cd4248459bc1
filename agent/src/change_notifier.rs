//! Notifies live views when the output of `status`, `peers` or `pods` changes.
//!
//! The owner of a state notifies after each change; a notification carries no data. Its cost does
//! not depend on the number of subscribers. A slow subscriber receives only the last notification,
//! so the rate of notifications has no limit, for example during the import of a full table.

use tokio::sync::watch;

/// Counts changes. All clones share one counter.
#[derive(Clone, Debug, Default)]
pub struct ChangeNotifier(watch::Sender<u64>);

impl ChangeNotifier {
    /// Reports a change.
    pub fn notify(&self) {
        self.0.send_modify(|changes| *changes += 1);
    }

    /// A receiver with the number of changes, which notifies about each further change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}
