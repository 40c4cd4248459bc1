//! The leader's right to write, with its expiry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// The leader's right to write. It ends when the Lease is lost, or when the Lease is not renewed in
/// time.
///
/// Check it before each write, not once: the process may have been suspended meanwhile. Writes that
/// began while it was valid are counted. So a leader that resigns can wait for their answers, and
/// its successor's list contains these writes.
#[derive(Clone, Debug)]
pub struct Fence {
    lost: CancellationToken,
    writes: TaskTracker,
    since: Instant,
    /// Milliseconds after `since`.
    until: Arc<AtomicU64>,
    patience: Duration,
}

impl Fence {
    pub(crate) fn new(until: Instant, patience: Duration) -> Fence {
        let fence = Fence {
            lost: CancellationToken::new(),
            writes: TaskTracker::new(),
            since: Instant::now(),
            until: Arc::default(),
            patience,
        };
        fence.extend(until);
        fence
    }

    pub(super) fn extend(&self, until: Instant) {
        let milliseconds = until.saturating_duration_since(self.since).as_millis();
        self.until.store(u64::try_from(milliseconds).unwrap_or(u64::MAX), Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.lost.cancel();
    }

    pub(crate) fn holds(&self) -> bool {
        let until = Duration::from_millis(self.until.load(Ordering::Acquire));
        !self.lost.is_cancelled() && self.since.elapsed() < until
    }

    /// Begins a write, which is under way until the token is dropped; none if this process may not
    /// write now.
    pub fn begin_write(&self) -> Option<TaskTrackerToken> {
        self.holds().then(|| self.writes.token())
    }

    /// Waits until this process may write no more, and all its writes are complete.
    pub async fn ended(&self) {
        self.lost.cancelled().await;
        self.writes.close();
        self.writes.wait().await;
    }

    /// The time limit of a write that is sent while the fence is valid. After it the caller must
    /// not wait for the answer.
    pub fn patience(&self) -> Duration {
        self.patience
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn fence_expires_permanently() {
        let second = Duration::from_secs(1);
        let fence = Fence::new(Instant::now() + 10 * second, 5 * second);
        tokio::time::advance(9 * second).await;
        assert!(fence.holds());
        fence.extend(Instant::now() + 10 * second);
        tokio::time::advance(9 * second).await;
        assert!(fence.holds());
        tokio::time::advance(second).await;
        assert!(!fence.holds(), "the fence expires without a renewal");
        fence.extend(Instant::now() + 10 * second);
        assert!(fence.holds());
        let writing = fence.begin_write().expect("it holds");
        fence.end();
        assert!(!fence.holds() && fence.begin_write().is_none());
        assert!(timeout(second, fence.ended()).await.is_err(), "a write is under way");
        drop(writing);
        fence.ended().await;
    }
}
