//! What a live view in a terminal shows: asked for again and again, and answered when the bell has rung since.
//!
//! The agent keeps no list of who looks, as with events: the question says what is known already. An answer that says nothing new
//! comes too, now and then, for an agent that hangs looks like one to which nothing happens.

use tokio::time::timeout;
use trunkline_api::attach::Failure;
use trunkline_api::control::Snapshot;

use super::{Observer, stopping};
use crate::bell::Bell;

impl Observer {
    /// How things stand, once the bell has rung more than `after` times in the run of that number.
    pub async fn snapshot(&self, bell: &Bell, after: u64, run: Option<u64>) -> Result<Snapshot, Failure> {
        let (this, _) = self.history.newest();
        let mut rings = bell.listen();
        if run == Some(this) {
            tokio::select! {
                // Rung, or nothing happened for so long: both are an answer.
                _ = timeout(Snapshot::SILENCE, rings.wait_for(|rings| *rings > after)) => {}
                () = self.history.closed() => return Err(stopping()),
            }
        }
        // What rings while the owners are asked is worth another answer.
        let number = *rings.borrow_and_update();
        let standing = self.standing().await?;
        Ok(Snapshot {
            run: this,
            number,
            agent: standing.agent,
            peers: standing.peers,
            pods: self.pods().await?,
        })
    }
}
