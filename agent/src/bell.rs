//! That something has changed which `status`, `peers` or `pods` show: a bell, for who shows it live.
//!
//! Whoever owns a state rings when it changes; nothing is said but that. Ringing costs the same with and without listeners, and who
//! is slow hears the last ring only, so a full table that is learned rings as often as it likes.

use tokio::sync::watch;

/// The bell. Its clones are one.
#[derive(Clone, Debug, Default)]
pub struct Bell(watch::Sender<u64>);

impl Bell {
    /// Something has changed.
    pub fn ring(&self) {
        self.0.send_modify(|rings| *rings += 1);
    }

    /// How often it was rung, and when it is rung again.
    pub fn listen(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}
