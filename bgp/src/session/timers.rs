//! Timers as a table of deadlines, one entry for each kind. Jitter prevents timers of several peers
//! from expiring at the same time.
//!
//! A timer that does not run has no deadline. No function reads a clock: the owner passes `now` and
//! receives the expired timers.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

/// The kinds of timer of one table.
pub(crate) trait Kind: Copy + 'static {
    /// Every kind, each at its own index. At most [`CAPACITY`].
    const ALL: &'static [Self];

    /// The index in [`Kind::ALL`].
    fn index(self) -> usize;
}

/// The maximum number of kinds in a table.
pub(crate) const CAPACITY: usize = 8;

/// Deadlines by kind.
#[derive(Clone, Debug)]
pub(crate) struct Timers<K> {
    deadlines: [Option<Instant>; CAPACITY],
    kind: PhantomData<K>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Timers { deadlines: [None; CAPACITY], kind: PhantomData }
    }
}

impl<K: Kind> Timers<K> {
    /// Starts or restarts a timer.
    pub(crate) fn set(&mut self, kind: K, deadline: Instant) {
        self.deadlines[kind.index()] = Some(deadline);
    }

    /// Stops a timer.
    pub(crate) fn stop(&mut self, kind: K) {
        self.deadlines[kind.index()] = None;
    }

    /// The deadline of a timer, if it runs.
    pub(crate) fn get(&self, kind: K) -> Option<Instant> {
        self.deadlines[kind.index()]
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.deadlines.iter().flatten().min().copied()
    }

    /// Removes and returns the timer that expired first, if any.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<K> {
        let expired = |kind: &K| self.get(*kind).filter(|deadline| *deadline <= now);
        let kind = *K::ALL.iter().filter(|kind| expired(kind).is_some()).min_by_key(|kind| expired(kind))?;
        self.stop(kind);
        Some(kind)
    }
}

/// splitmix64: sufficient to spread timers; the same seed gives the same values.
#[derive(Clone, Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn new(seed: u64) -> Self {
        Jitter(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The duration times a factor from 0.75 to 1.0 (RFC 4271 §10).
    pub(crate) fn apply(&mut self, duration: Duration) -> Duration {
        let unit = (self.next() >> 40) as f64 / (1u64 << 24) as f64;
        duration.mul_f64(0.75 + 0.25 * unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Two {
        A,
        B,
    }

    impl Kind for Two {
        const ALL: &'static [Self] = &[Two::A, Two::B];
        fn index(self) -> usize {
            self as usize
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the origin")]
    fn timers_expire_in_the_order_of_their_deadlines() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timers = Timers::default();
        timers.set(Two::A, at(9));
        timers.set(Two::B, at(5));
        assert_eq!(timers.next(), Some(at(5)));
        assert_eq!(timers.take_expired(at(4)), None);
        assert_eq!(timers.take_expired(at(10)), Some(Two::B));
        assert_eq!(timers.take_expired(at(10)), Some(Two::A));
        assert_eq!(timers.take_expired(at(10)), None);
        timers.set(Two::A, at(11));
        timers.stop(Two::A);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn jitter_stays_between_three_quarters_and_one_and_spreads() {
        let mut jitter = Jitter::new(7);
        let minute = Duration::from_secs(60);
        let drawn: Vec<Duration> = (0..1000).map(|_| jitter.apply(minute)).collect();
        assert!(drawn.iter().all(|d| (Duration::from_secs(45)..=minute).contains(d)));
        let low = drawn.iter().filter(|d| **d < Duration::from_millis(52_500)).count();
        assert!((400..600).contains(&low), "{low} of 1000 in the lower half");
    }
}
