//! A work queue of keys: objects that have changed and must be reconciled.
//!
//! A key identifies an object, not an event. A key that is added several times while it waits is
//! worked on once. No key is worked on twice at the same time. A key that is added during its work
//! is worked on once more afterwards. Failed work is repeated after a delay with jitter that
//! doubles up to a minute. A new event about the key ends its delay, as it may have removed the
//! cause; the end of an outage ends the delays of all keys. The next delay is the shortest one again,
//! also for a key whose work was under way at that time.
//!
//! A queue can have a *gap*: a key rests for that time after its work, and later events wait for
//! the end of the rest. So a status that changes a thousand times a second is written once a
//! second.
//!
//! [`Queue::add_after`] adds a key at a later time. A key has one such timer.
//!
//! [`Queue::work`] runs a bounded number of jobs at once in the caller's task. They wait for the
//! API server nearly all of the time; their computation takes microseconds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Delay before the first repetition of failed work.
const FIRST_DELAY: Duration = Duration::from_millis(200);
/// Longest delay between repetitions of failed work.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Longest time of a timer of [`Queue::add_after`]: the work then starts another one.
const LONGEST_TIMER: Duration = Duration::from_secs(365 * 86_400);
/// A timer that ends this much earlier or later than another one makes no difference.
const TIMER_TOLERANCE: Duration = Duration::from_millis(100);

/// Keys that need work.
pub struct Queue<K> {
    inner: Mutex<Inner<K>>,
    wake: Notify,
    gap: Duration,
}

struct Inner<K> {
    ready: VecDeque<K>,
    entries: HashMap<K, Entry>,
    timers: BinaryHeap<Reverse<Timer<K>>>,
    /// The timers of [`Queue::add_after`], by serial.
    later: HashMap<K, (u64, Instant)>,
    /// Distinguishes timers of the same instant, and a timer from its replacement.
    serial: u64,
}

struct Entry {
    state: State,
    /// Present while the last work failed.
    backoff: Option<ExponentialBackoff>,
}

enum State {
    Ready,
    Working {
        again: bool,
    },
    /// After a failure, until the timer with this serial.
    BackingOff(u64),
    /// In the gap, until the timer with this serial.
    Resting {
        timer: u64,
        again: bool,
    },
}

struct Timer<K> {
    at: Instant,
    serial: u64,
    key: K,
}

impl<K> PartialEq for Timer<K> {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}
impl<K> Eq for Timer<K> {}
impl<K> PartialOrd for Timer<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Timer<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Creates an empty queue whose keys rest for `gap` after their work.
    pub fn new(gap: Duration) -> Self {
        Queue {
            inner: Mutex::new(Inner {
                ready: VecDeque::new(),
                entries: HashMap::new(),
                timers: BinaryHeap::new(),
                later: HashMap::new(),
                serial: 0,
            }),
            wake: Notify::new(),
            gap,
        }
    }

    /// Adds a key.
    pub fn add(&self, key: K) {
        if self.lock().add(key) {
            self.wake.notify_one();
        }
    }

    /// Adds a key after a delay. If a timer of this key ends earlier, only that one counts: its work
    /// can start the next one.
    pub fn add_after(&self, key: K, delay: Duration) {
        let mut inner = self.lock();
        let at = Instant::now() + delay.min(LONGEST_TIMER);
        if inner.later.get(&key).is_some_and(|(_, earlier)| *earlier <= at + TIMER_TOLERANCE) {
            return;
        }
        let serial = inner.start_timer(at, key.clone());
        inner.later.insert(key, (serial, at));
        drop(inner);
        self.wake.notify_one();
    }

    /// Ends the backoff of all failed work, after an outage of the API server.
    pub fn retry(&self) {
        let mut inner = self.lock();
        let Inner { ready, entries, .. } = &mut *inner;
        for (key, entry) in entries {
            if entry.backoff.is_some() {
                entry.backoff = Some(backoff());
            }
            if matches!(entry.state, State::BackingOff(_)) {
                entry.state = State::Ready;
                ready.push_back(key.clone());
            }
        }
        drop(inner);
        self.wake.notify_one();
    }

    /// Number of keys ready to be worked on, without those that back off or rest.
    pub fn depth(&self) -> usize {
        self.lock().ready.len()
    }

    /// Number of keys whose last work failed.
    pub fn failing(&self) -> usize {
        self.lock().entries.values().filter(|entry| entry.backoff.is_some()).count()
    }

    /// Works on keys, `at_once` at a time, while the future is polled. Failed work is repeated
    /// after a delay. A drop cancels the jobs under way.
    pub async fn work<F, Job, E>(&self, at_once: usize, mut job: F) -> Infallible
    where
        F: FnMut(K) -> Job,
        Job: Future<Output = Result<(), E>>,
    {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some((key, outcome)) = running.next() => self.finish(key, outcome),
                key = self.next(), if running.len() < at_once => {
                    let work = job(key.clone());
                    running.push(async move { (key, work.await) });
                }
            }
        }
    }

    /// Waits for a key. No other caller gets it until it is finished.
    async fn next(&self) -> K {
        loop {
            let deadline = {
                let mut inner = self.lock();
                inner.fire(Instant::now());
                if let Some(key) = inner.ready.pop_front() {
                    if let Some(entry) = inner.entries.get_mut(&key) {
                        entry.state = State::Working { again: false };
                    }
                    return key;
                }
                inner.timers.peek().map(|Reverse(timer)| timer.at)
            };
            match deadline {
                None => self.wake.notified().await,
                Some(deadline) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = sleep_until(deadline) => {}
                },
            }
        }
    }

    fn finish<E>(&self, key: K, outcome: Result<(), E>) {
        let mut inner = self.lock();
        let Some(entry) = inner.entries.get_mut(&key) else { return };
        let again = matches!(entry.state, State::Working { again: true });
        match outcome {
            Ok(()) => {
                entry.backoff = None;
                if !self.gap.is_zero() {
                    let timer = inner.start_timer(Instant::now() + self.gap, key.clone());
                    inner.set(&key, State::Resting { timer, again });
                } else if again {
                    inner.set(&key, State::Ready);
                    inner.ready.push_back(key);
                } else {
                    inner.entries.remove(&key);
                }
            }
            Err(_) if again => {
                // The change may have removed the cause.
                entry.state = State::Ready;
                inner.ready.push_back(key);
            }
            Err(_) => {
                let delay = entry.backoff.get_or_insert_with(backoff).next().unwrap_or(LONGEST_DELAY);
                let timer = inner.start_timer(Instant::now() + delay, key.clone());
                inner.set(&key, State::BackingOff(timer));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        // No code under this lock panics in the middle of a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> Inner<K> {
    /// Adds a key. Returns whether it became ready.
    fn add(&mut self, key: K) -> bool {
        match self.entries.get_mut(&key) {
            None => {
                self.entries.insert(key.clone(), Entry { state: State::Ready, backoff: None });
            }
            Some(entry) => match &mut entry.state {
                State::Ready => return false,
                State::Working { again } | State::Resting { again, .. } => {
                    *again = true;
                    return false;
                }
                State::BackingOff(_) => {
                    entry.state = State::Ready;
                    entry.backoff = Some(backoff());
                }
            },
        }
        self.ready.push_back(key);
        true
    }

    fn start_timer(&mut self, at: Instant, key: K) -> u64 {
        self.serial += 1;
        self.timers.push(Reverse(Timer { at, serial: self.serial, key }));
        self.serial
    }

    fn set(&mut self, key: &K, state: State) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.state = state;
        }
    }

    /// Ends expired waits. Ignores timers superseded by a newer state.
    fn fire(&mut self, now: Instant) {
        while self.timers.peek().is_some_and(|Reverse(timer)| timer.at <= now) {
            let Some(Reverse(timer)) = self.timers.pop() else { return };
            if self.later.get(&timer.key).is_some_and(|(serial, _)| *serial == timer.serial) {
                self.later.remove(&timer.key);
                self.add(timer.key);
                continue;
            }
            let Some(entry) = self.entries.get_mut(&timer.key) else { continue };
            match entry.state {
                State::BackingOff(serial) if serial == timer.serial => {}
                State::Resting { timer: serial, again: true } if serial == timer.serial => {}
                State::Resting { timer: serial, again: false } if serial == timer.serial => {
                    self.entries.remove(&timer.key);
                    continue;
                }
                _ => continue,
            }
            entry.state = State::Ready;
            self.ready.push_back(timer.key);
        }
    }
}

fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(FIRST_DELAY)
        .with_max_delay(LONGEST_DELAY)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::timeout;

    use super::*;

    const DONE: Result<(), ()> = Ok(());
    const FAILED: Result<(), ()> = Err(());

    async fn none_left(queue: &Queue<u32>) -> bool {
        timeout(Duration::from_millis(1), queue.next()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn key_added_repeatedly_is_processed_once() {
        let queue = Queue::new(Duration::ZERO);
        for key in [1, 2, 1, 1] {
            queue.add(key);
        }
        assert_eq!(queue.depth(), 2);
        assert_eq!((queue.next().await, queue.next().await), (1, 2));
        assert!(none_left(&queue).await);
        // A key that is added during its work is worked on once more afterwards, and not at the
        // same time.
        queue.add(1);
        assert!(none_left(&queue).await);
        queue.finish(1, DONE);
        assert_eq!(queue.next().await, 1);
        queue.finish(1, DONE);
        queue.finish(2, DONE);
        assert!(none_left(&queue).await);
        assert!(queue.lock().entries.is_empty(), "finished keys leave no entry");
    }

    #[tokio::test(start_paused = true)]
    async fn failed_work_backs_off_until_an_event() {
        let queue = Queue::new(Duration::ZERO);
        queue.add(7);
        let mut waits = Vec::new();
        for _ in 0..14 {
            let began = Instant::now();
            assert_eq!(queue.next().await, 7);
            waits.push(began.elapsed());
            queue.finish(7, FAILED);
            assert_eq!(queue.failing(), 1);
        }
        assert!(waits[1] >= FIRST_DELAY && waits[1] <= FIRST_DELAY * 3, "{waits:?}");
        assert!(waits[13] >= LONGEST_DELAY / 2 && waits[13] <= LONGEST_DELAY * 3, "{waits:?}");
        let began = Instant::now();
        queue.add(7);
        assert_eq!(queue.next().await, 7);
        assert_eq!(began.elapsed(), Duration::ZERO);
        queue.finish(7, DONE);
        assert_eq!(queue.failing(), 0);
        // The end of an outage also ends the delay, and only for failed keys.
        queue.add(7);
        assert_eq!(queue.next().await, 7);
        queue.finish(7, FAILED);
        queue.add(8);
        assert_eq!(queue.next().await, 8);
        let began = Instant::now();
        queue.retry();
        assert_eq!(queue.next().await, 7);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(none_left(&queue).await);
        queue.finish(7, DONE);
        queue.finish(8, DONE);
        // Work that was under way at the end of the outage has failed too: it is repeated soon. The same
        // holds for an event during a delay.
        for ended_by_event in [false, true] {
            queue.add(9);
            for _ in 0..10 {
                assert_eq!(queue.next().await, 9);
                queue.finish(9, FAILED);
            }
            match ended_by_event {
                true => queue.add(9),
                false => queue.retry(),
            }
            assert_eq!(queue.next().await, 9);
            if !ended_by_event {
                queue.finish(9, FAILED);
                tokio::time::advance(LONGEST_DELAY * 3).await;
                assert_eq!(queue.next().await, 9);
                queue.retry();
            }
            queue.finish(9, FAILED);
            let began = Instant::now();
            assert_eq!(queue.next().await, 9);
            assert!(began.elapsed() <= FIRST_DELAY * 3, "{:?}", began.elapsed());
            queue.finish(9, DONE);
        }
        // A superseded timer wakes no task.
        tokio::time::advance(LONGEST_DELAY * 4).await;
        assert!(none_left(&queue).await);
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_key_is_added_once_at_the_earliest_time() {
        let queue = Queue::new(Duration::ZERO);
        let began = Instant::now();
        for seconds in [7200, 3600, 3600, 9000] {
            queue.add_after(1, Duration::from_secs(seconds));
        }
        queue.add_after(2, Duration::from_secs(u64::MAX));
        assert!(none_left(&queue).await);
        // An event about the key does not end its timer.
        queue.add(1);
        assert_eq!(queue.next().await, 1);
        queue.finish(1, DONE);
        assert_eq!(queue.next().await, 1);
        assert_eq!(began.elapsed().as_secs(), 3600);
        queue.finish(1, DONE);
        // The superseded timer adds nothing, and a new one may follow.
        tokio::time::advance(Duration::from_secs(7200)).await;
        assert!(none_left(&queue).await);
        queue.add_after(1, Duration::from_secs(5));
        assert_eq!(queue.next().await, 1);
        queue.finish(1, DONE);
        // A timer that ends during the work repeats the work.
        queue.add(1);
        assert_eq!(queue.next().await, 1);
        queue.add_after(1, Duration::from_secs(1));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(none_left(&queue).await);
        queue.finish(1, DONE);
        assert_eq!(queue.next().await, 1);
        queue.finish(1, DONE);
        let inner = queue.lock();
        assert_eq!((inner.entries.len(), inner.later.len(), inner.timers.len()), (0, 1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn events_in_a_gap_are_coalesced() {
        let gap = Duration::from_secs(1);
        let queue = Queue::new(gap);
        queue.add(1);
        assert_eq!(queue.next().await, 1);
        queue.finish(1, DONE);
        let rested = Instant::now();
        for _ in 0..1000 {
            queue.add(1);
        }
        assert_eq!(queue.next().await, 1);
        assert_eq!(rested.elapsed(), gap);
        queue.finish(1, DONE);
        tokio::time::advance(gap).await;
        assert!(none_left(&queue).await);
        assert!(queue.lock().entries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn concurrency_is_bounded() {
        let queue = Queue::new(Duration::ZERO);
        for key in 0..10 {
            queue.add(key);
        }
        let (now, most, done) = (RefCell::new(0), RefCell::new(0), RefCell::new(0));
        let stop = Notify::new();
        let work = queue.work(3, |_| {
            *now.borrow_mut() += 1;
            let running = *now.borrow();
            let highest = *most.borrow();
            *most.borrow_mut() = running.max(highest);
            let (now, done, stop) = (&now, &done, &stop);
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                *now.borrow_mut() -= 1;
                *done.borrow_mut() += 1;
                if *done.borrow() == 10 {
                    stop.notify_one();
                }
                DONE
            }
        });
        tokio::select! {
            never = work => match never {},
            () = stop.notified() => {}
        }
        assert_eq!((*most.borrow(), *done.borrow()), (3, 10));
    }
}
