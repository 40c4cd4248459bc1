//! The content of a live view in a terminal. The client requests it again and again; the answer comes with the notifier's next change.
//!
//! The agent keeps no list of who looks, as with events: the question says what is known already. An answer that says nothing new
//! comes too, now and then, for an agent that hangs looks like one to which nothing happens.

use tokio::time::timeout;
use trunkline_api::attach::Failure;
use trunkline_api::control::Snapshot;

use super::{Observer, stopping};
use crate::change_notifier::ChangeNotifier;

impl Observer {
    /// How things stand, once the notifier has counted more than `after` changes in the run of that number.
    pub async fn snapshot(
        &self,
        notifier: &ChangeNotifier,
        after: u64,
        run: Option<u64>,
    ) -> Result<Snapshot, Failure> {
        let (this, _) = self.history.newest();
        let mut changes = notifier.subscribe();
        if run == Some(this) {
            tokio::select! {
                // A change, or nothing happened for so long: both are an answer.
                _ = timeout(Snapshot::SILENCE, changes.wait_for(|changes| *changes > after)) => {}
                () = self.history.closed() => return Err(stopping()),
            }
        }
        // A change while the owners are asked is worth another answer.
        let number = *changes.borrow_and_update();
        let data = self.scrape_data().await?;
        Ok(Snapshot { run: this, number, agent: data.agent, peers: data.peers, pods: self.pods().await? })
    }
}
