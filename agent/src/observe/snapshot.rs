//! The content of a live view in a terminal. The client repeats its request, and the agent answers
//! at the notifier's next change.
//!
//! The agent keeps no list of clients, as with events: the request contains the last known number.
//! The agent also answers from time to time without a change. Otherwise a client could not
//! distinguish a hanging agent from a quiet one.

use tokio::time::timeout;
use trunkline_api::attach::Failure;
use trunkline_api::control::Snapshot;

use super::{Observer, stopping};
use crate::change_notifier::ChangeNotifier;

impl Observer {
    /// The state, once the notifier has counted more than `after` changes in the run with that
    /// number.
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
                // The agent answers after a change, and also after the timeout.
                _ = timeout(Snapshot::SILENCE, changes.wait_for(|changes| *changes > after)) => {}
                () = self.history.closed() => return Err(stopping()),
            }
        }
        // A change during the reads causes another answer.
        let number = *changes.borrow_and_update();
        let data = self.scrape_data().await?;
        let mut services = match &self.services {
            Some(services) => services.view(None).await,
            None => Vec::new(),
        };
        let service_count = services.len();
        services.truncate(Snapshot::SERVICES);
        Ok(Snapshot {
            run: this,
            number,
            agent: data.agent,
            peers: data.peers,
            pods: self.pods().await?,
            services,
            service_count,
        })
    }
}
