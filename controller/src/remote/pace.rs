//! The pace of the writes for a remote cluster: token buckets of writes and octets, and one for each
//! object. No I/O, no clock.
//!
//! The remote cluster decides how often its objects change, and this cluster's etcd has each change
//! as a write. Ordinary changes are written at once: the buckets are full then. Deletions are not
//! counted, because a write precedes each of them.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Writes in a second, while more are due.
pub const WRITES: u32 = 50;
/// Writes of full buckets: all objects of a remote cluster at its limits, once.
const BURST_WRITES: u32 = 112_000;
/// Octets in a second, while more are due.
pub const OCTETS: u32 = 1 << 20;
/// Octets of full buckets: a remote cluster with 2,000 nodes, 100,000 pods and 20,000 EndpointSlices
/// has about 40 MiB.
const BURST_OCTETS: u32 = 128 << 20;
/// The time between two writes of an object that changes again and again.
const AGAIN: Duration = Duration::from_secs(3);
/// Writes of an object without this time between them, after a longer rest.
const BURST_OBJECT: u32 = 20;
/// The time between two reports: a status of the RemoteCluster with the events of a plan.
const REPORTS: Duration = Duration::from_secs(5);
/// The shortest wait: fewer plans have more writes.
const PAUSE: Duration = Duration::from_secs(1);

/// A bucket, by the time at which it is full.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    full: Instant,
}

impl Bucket {
    /// The bucket after a write that takes `cost` to refill.
    ///
    /// # Errors
    /// It has too few tokens: the time at which it has enough.
    fn after(self, cost: Duration, burst: Duration, now: Instant) -> Result<Bucket, Instant> {
        let full = self.full.max(now) + cost;
        match full.checked_sub(burst) {
            Some(enough) if enough > now => Err(enough),
            _ => Ok(Bucket { full }),
        }
    }
}

/// A write is not due yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The object changes again and again. The time of its next write.
    Object(Instant),
    /// All objects together change too fast. The time of the next write.
    Cluster(Instant),
}

impl Wait {
    /// The time of the next attempt.
    pub fn until(self) -> Instant {
        match self {
            Wait::Object(at) | Wait::Cluster(at) => at,
        }
    }
}

/// The pace of the writes for a remote cluster.
#[derive(Debug)]
pub struct Pace {
    writes: Bucket,
    octets: Bucket,
    /// The objects that were written a short time ago, by kind and name.
    objects: HashMap<(&'static str, String), Bucket>,
    /// The time of the next report.
    report: Instant,
}

impl Pace {
    /// Full buckets.
    pub fn new(now: Instant) -> Pace {
        let full = Bucket { full: now };
        Pace { writes: full, octets: full, objects: HashMap::new(), report: now }
    }

    /// Accounts for the write of an object.
    ///
    /// # Errors
    /// The write is not due yet.
    pub fn admit(
        &mut self,
        object: (&'static str, String),
        octets: impl FnOnce() -> usize,
        now: Instant,
    ) -> Result<(), Wait> {
        let later = |at: Instant| Wait::Cluster(at.max(now + PAUSE));
        let object_later = |at: Instant| Wait::Object(at.max(now + PAUSE));
        let known = self.objects.get(&object).copied().unwrap_or(Bucket { full: now });
        let known = known.after(AGAIN, AGAIN * BURST_OBJECT, now).map_err(object_later)?;
        let each = Duration::from_secs(1) / WRITES;
        let writes = self.writes.after(each, each * BURST_WRITES, now).map_err(later)?;
        // A larger write would never be due.
        let octets = u32::try_from(octets()).unwrap_or(u32::MAX).min(BURST_OCTETS);
        let time_of = |octets: u32| Duration::from_secs(octets.into()) / OCTETS;
        let octets = self.octets.after(time_of(octets), time_of(BURST_OCTETS), now).map_err(later)?;
        (self.writes, self.octets) = (writes, octets);
        self.objects.insert(object, known);
        Ok(())
    }

    /// Accounts for a report.
    ///
    /// # Errors
    /// It is not due yet: its time.
    pub fn report(&mut self, now: Instant) -> Result<(), Instant> {
        if now < self.report {
            return Err(self.report);
        }
        self.report = now + REPORTS;
        Ok(())
    }

    /// Forgets the objects without a recent write.
    pub fn sweep(&mut self, now: Instant) {
        self.objects.retain(|_, bucket| bucket.full > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn admit(pace: &mut Pace, name: usize, octets: usize, now: Instant) -> Result<(), Wait> {
        pace.admit(("RemoteVtep", format!("n{name}")), || octets, now)
    }

    #[test]
    fn objects_that_change_without_end_cost_a_bounded_number_of_octets() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let (size, mut octets, mut writes) = (512 << 10, 0, 0);
        // 1,000 large objects change in each second of an hour.
        for _ in 0..3_600 {
            for name in 0..1_000 {
                if admit(&mut pace, name, size, now).is_ok() {
                    (octets, writes) = (octets + size, writes + 1);
                }
            }
            pace.sweep(now);
            now += SECOND;
        }
        let bound = BURST_OCTETS as usize + 3_600 * OCTETS as usize;
        assert!(octets <= bound, "{octets} octets in {writes} writes");
        assert!(octets > bound / 2, "the rate is used: {octets}");
    }

    #[test]
    fn small_objects_of_changing_names_cost_a_bounded_number_of_writes() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let (mut writes, mut names) = (0, 0);
        for _ in 0..600 {
            for _ in 0..1_000 {
                names += 1;
                writes += usize::from(admit(&mut pace, names, 200, now).is_ok());
            }
            pace.sweep(now);
            now += SECOND;
        }
        assert!(writes <= (BURST_WRITES + 600 * WRITES) as usize, "{writes}");
        let recent = pace.objects.len();
        assert!(recent <= 1_000 * AGAIN.as_secs() as usize, "{recent} objects are remembered");
    }

    #[test]
    fn an_object_that_changes_again_and_again_is_written_rarely() {
        let began = Instant::now();
        let (mut pace, mut writes, mut now) = (Pace::new(began), 0, began);
        // A change in each 50 ms of a minute.
        while now < began + 60 * SECOND {
            match admit(&mut pace, 0, 1_000, now) {
                Ok(()) => writes += 1,
                Err(wait) => assert!(matches!(wait, Wait::Object(at) if at > now && at <= now + AGAIN)),
            }
            now += Duration::from_millis(50);
        }
        assert_eq!(writes, 20 + 60 / 3 - 1);
        assert_eq!(admit(&mut pace, 1, 1_000, now), Ok(()), "another object does not wait");
        // After a rest, it is written at once again.
        now += 60 * SECOND;
        pace.sweep(now);
        assert!(pace.objects.is_empty());
        for _ in 0..20 {
            assert_eq!(admit(&mut pace, 0, 1_000, now), Ok(()));
        }
    }

    #[test]
    fn a_cluster_at_its_limits_is_copied_at_once() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        for name in 0..112_000 {
            assert_eq!(admit(&mut pace, name, 1_000, now), Ok(()), "{name}");
        }
        assert!(matches!(admit(&mut pace, 112_000, 1_000, now), Err(Wait::Cluster(at)) if at == now + PAUSE));
        assert_eq!(admit(&mut pace, 112_000, 1_000, now + SECOND), Ok(()));
    }
}
