//! Requests for one attachment run one after another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ipam::AttachmentKey;

/// One lock for each attachment.
#[derive(Clone, Debug, Default)]
pub struct AttachmentLocks {
    locks: Arc<Mutex<HashMap<AttachmentKey, Arc<tokio::sync::Mutex<()>>>>>,
}

/// A locked attachment; dropping it releases the lock.
pub struct AttachmentGuard {
    locks: AttachmentLocks,
    key: AttachmentKey,
    held: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl AttachmentLocks {
    /// Waits until no other request holds the lock of this attachment.
    pub async fn lock(&self, key: &AttachmentKey) -> AttachmentGuard {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(locks.entry(key.clone()).or_default())
        };
        let mut guard = AttachmentGuard { locks: self.clone(), key: key.clone(), held: None };
        guard.held = Some(lock.lock_owned().await);
        guard
    }
}

impl Drop for AttachmentGuard {
    fn drop(&mut self) {
        self.held = None;
        let mut locks = self.locks.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // If only the map has a reference, no request holds the lock or waits for it.
        if locks.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn locks_of_one_attachment_exclude_each_other_and_leave_nothing() {
        let locks = AttachmentLocks::default();
        let key = |id: &str| AttachmentKey { container_id: id.to_owned(), ifname: "eth0".to_owned() };
        let first = locks.lock(&key("a")).await;
        let _other = locks.lock(&key("b")).await;
        let waiting = tokio::time::timeout(Duration::from_millis(10), locks.lock(&key("a"))).await;
        assert!(waiting.is_err());
        let second = tokio::spawn({
            let (locks, key) = (locks.clone(), key("a"));
            async move { drop(locks.lock(&key).await) }
        });
        drop(first);
        second.await.unwrap();
        assert_eq!(locks.locks.lock().unwrap().len(), 1, "only b's");
    }
}
