//! The connections of a listener, and the choice of the one to evict. No I/O; the caller passes the
//! time.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use super::{Account, Limits, Reason, SLOW, Source};

/// No complete request head yet.
const OPENING: u8 = 0;
/// A request is under way.
const BUSY: u8 = 1;
/// The response is complete, but not yet on the wire.
const DRAINING: u8 = 2;
/// Between two requests.
const IDLE: u8 = 3;

/// One connection.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) source: Source,
    pub(super) account: Arc<Account>,
    opened: Instant,
    state: AtomicU8,
    /// Start of the current state, in microseconds since `opened`.
    since: AtomicU64,
    reason: OnceLock<Reason>,
    evict: Notify,
}

impl Entry {
    /// A request head is complete.
    pub(super) fn begin(&self) {
        self.set(BUSY);
    }

    /// The response is complete.
    pub(super) fn finish(&self) {
        // Keep the start time of the request.
        self.state.store(DRAINING, Ordering::Release);
    }

    /// The kernel has all written octets.
    pub(super) fn flushed(&self) {
        if self.state.load(Ordering::Acquire) == DRAINING {
            self.set(IDLE);
        }
    }

    fn set(&self, state: u8) {
        let micros = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.since.store(micros, Ordering::Relaxed);
        self.state.store(state, Ordering::Release);
    }

    pub(super) fn is_opening(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPENING
    }

    /// The listener's reason to close the connection, if any.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.reason.get().copied()
    }

    /// Waits until it is evicted.
    pub(super) async fn evicted(&self) {
        self.evict.notified().await;
    }

    fn class(&self, now: Instant) -> (Class, Instant) {
        let state = self.state.load(Ordering::Acquire);
        let since = self.opened + std::time::Duration::from_micros(self.since.load(Ordering::Relaxed));
        let class = match state {
            OPENING => Class::Opening,
            IDLE => Class::Idle,
            _ if now.saturating_duration_since(since) > SLOW => Class::Slow,
            _ => Class::Busy,
        };
        (class, since)
    }
}

/// Classes in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Opening,
    Idle,
    Slow,
    Busy,
}

/// Decision about a new connection.
#[derive(Debug)]
pub(super) enum Admission {
    /// Admit it.
    Admit,
    /// Admit the new connection, and evict this connection.
    Evict(Arc<Entry>),
    /// Refuse it.
    Refuse(Reason),
}

/// The connections of one listener.
#[derive(Debug)]
pub(super) struct Registry {
    limits: Limits,
    sources: HashMap<Source, Vec<Arc<Entry>>>,
    /// Number of connections in `sources`.
    total: usize,
    /// Number of connections that are evicted and not closed yet.
    closing: usize,
}

impl Registry {
    pub(super) fn new(limits: Limits) -> Self {
        Registry { limits, sources: HashMap::new(), total: 0, closing: 0 }
    }

    /// Decides on a new connection of a source.
    pub(super) fn admission(&self, source: Source, now: Instant) -> Admission {
        let own = self.sources.get(&source).map_or(&[][..], Vec::as_slice);
        let (victim, reason) = if own.len() >= self.limits.per_source {
            (oldest([own].into_iter(), now, Class::Slow), Reason::SourceLimit)
        } else if self.total >= self.limits.total {
            let larger = self.sources.values().map(Vec::as_slice).filter(|entries| entries.len() > own.len());
            let theirs = oldest(larger, now, Class::Busy);
            // A request of the same source is evicted only if it is slow.
            (theirs.or_else(|| oldest([own].into_iter(), now, Class::Slow)), Reason::TotalLimit)
        } else {
            return Admission::Admit;
        };
        victim.map_or(Admission::Refuse(reason), Admission::Evict)
    }

    /// The connection to evict for another descriptor of the process. Requests that are answered in
    /// time are exempt.
    pub(super) fn victim(&self, now: Instant) -> Option<Arc<Entry>> {
        oldest(self.sources.values().map(Vec::as_slice), now, Class::Slow)
    }

    pub(super) fn insert(&mut self, source: Source) -> Arc<Entry> {
        let entries = self.sources.entry(source).or_default();
        let account = entries.first().map(|entry| Arc::clone(&entry.account));
        let account = account.unwrap_or_else(|| {
            let work = Arc::new(Semaphore::new(self.limits.work_per_source));
            Arc::new(Account { octets: AtomicUsize::new(0), work })
        });
        let entry = Arc::new(Entry {
            source,
            account,
            opened: Instant::now(),
            state: AtomicU8::new(OPENING),
            since: AtomicU64::new(0),
            reason: OnceLock::new(),
            evict: Notify::new(),
        });
        entries.push(Arc::clone(&entry));
        self.total += 1;
        entry
    }

    /// Asks a connection's task to drop the connection. The connection's place is free at once. The
    /// call has no effect on a connection that is closed or evicted.
    pub(super) fn evict(&mut self, entry: &Arc<Entry>, reason: Reason) {
        if self.forget(entry) {
            let _ = entry.reason.set(reason);
            self.closing += 1;
            entry.evict.notify_one();
        }
    }

    /// Removes a closed connection.
    pub(super) fn closed(&mut self, entry: &Arc<Entry>) {
        if !self.forget(entry) {
            self.closing -= 1;
        }
    }

    /// Removes a connection. False if it was removed before.
    fn forget(&mut self, entry: &Arc<Entry>) -> bool {
        let Some(entries) = self.sources.get_mut(&entry.source) else { return false };
        let Some(place) = entries.iter().position(|other| Arc::ptr_eq(other, entry)) else { return false };
        entries.remove(place);
        self.total -= 1;
        if entries.is_empty() {
            self.sources.remove(&entry.source);
        }
        true
    }

    pub(super) fn closing(&self) -> usize {
        self.closing
    }

    pub(super) fn is_empty(&self) -> bool {
        self.total + self.closing == 0
    }
}

/// In the first class that has connections, up to the class `last`: the oldest connection of the
/// source with the most connections.
fn oldest<'a>(
    sources: impl Iterator<Item = &'a [Arc<Entry>]>,
    now: Instant,
    last: Class,
) -> Option<Arc<Entry>> {
    let entries = sources.flat_map(|entries| entries.iter().map(move |entry| (entries.len(), entry)));
    let ranked = entries.map(|(count, entry)| {
        let (class, since) = entry.class(now);
        ((class, Reverse(count), since), entry)
    });
    ranked
        .filter(|((class, ..), _)| *class <= last)
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, entry)| Arc::clone(entry))
}
