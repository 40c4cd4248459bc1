//! Content of the Lease, and the time at which it is free to take; no I/O.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use tokio::time::Instant;

/// Another holder's Lease, and the time at which its last change was seen.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) lease: Lease,
    at: Instant,
}

impl Observed {
    /// Applies the Lease from the watch. The same version again is not a renewal by its holder.
    pub(super) fn update(observed: &mut Option<Observed>, lease: Lease, now: Instant) {
        let same = |seen: &Observed| seen.lease.metadata.resource_version == lease.metadata.resource_version;
        if !observed.as_ref().is_some_and(same) {
            *observed = Some(Observed { lease, at: now });
        }
    }

    /// The time from which this process may take the Lease. Its own Lease, if no other process took
    /// it meanwhile, is free at once.
    pub(super) fn free_for(&self, claim: &Claim) -> Instant {
        let seconds = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        match holder(&self.lease) {
            "" => self.at,
            _ if claim.holds(&self.lease) => self.at,
            _ => self.at + Duration::from_secs(seconds.max(0).unsigned_abs().into()),
        }
    }
}

/// The holder of a Lease; empty if there is none.
pub(super) fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// This process's claim to the Lease.
#[derive(Debug)]
pub(super) struct Claim {
    /// The Lease's name.
    pub(super) name: String,
    /// The identity of this process.
    pub(super) holder: String,
    /// In seconds.
    pub(super) duration: i32,
}

impl Claim {
    pub(super) fn holds(&self, lease: &Lease) -> bool {
        holder(lease) == self.holder
    }

    /// The observed Lease with this process as its holder, or a new Lease. If the previous holder
    /// takes it again, the transitions and the acquire time stay, as in client-go.
    pub(super) fn taking(&self, seen: Option<&Lease>, now: Timestamp) -> Lease {
        if let Some(own) = seen.filter(|lease| self.holds(lease)) {
            return self.renewing(own, now);
        }
        let before = seen.and_then(|lease| lease.spec.as_ref()).and_then(|spec| spec.lease_transitions);
        let metadata = seen
            .map(|lease| lease.metadata.clone())
            .unwrap_or_else(|| ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() });
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.clone()),
                lease_duration_seconds: Some(self.duration),
                acquire_time: Some(MicroTime(now)),
                renew_time: Some(MicroTime(now)),
                lease_transitions: Some(before.map_or(0, |before| before.saturating_add(1))),
                ..LeaseSpec::default()
            }),
        }
    }

    /// The renewed Lease.
    pub(super) fn renewing(&self, held: &Lease, now: Timestamp) -> Lease {
        let mut lease = held.clone();
        if let Some(spec) = &mut lease.spec {
            spec.renew_time = Some(MicroTime(now));
            spec.lease_duration_seconds = Some(self.duration);
        }
        lease
    }

    /// The Lease without a holder, as client-go leaves it.
    pub(super) fn releasing(&self, held: &Lease, now: Timestamp) -> Lease {
        let mut lease = self.renewing(held, now);
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
        }
        lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(holder: &str) -> Claim {
        Claim { name: "l".to_owned(), holder: holder.to_owned(), duration: 15 }
    }

    fn at_version(mut lease: Lease, version: &str) -> Lease {
        lease.metadata.resource_version = Some(version.to_owned());
        lease
    }

    #[test]
    fn lease_expires_by_the_observers_clock() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        // The holder's clock is a year behind: only the time of observation counts.
        let year_ago = Timestamp::now() - jiff::SignedDuration::from_hours(24 * 365);
        let lease = claim("a").taking(None, year_ago);
        let free = |observed: &Option<Observed>| observed.as_ref().map(|seen| seen.free_for(&claim("b")));
        let mut observed = None;
        Observed::update(&mut observed, at_version(lease.clone(), "1"), now);
        Observed::update(&mut observed, at_version(lease.clone(), "1"), now + 9 * second);
        assert_eq!(free(&observed), Some(now + 15 * second), "a relist is no renewal");
        Observed::update(&mut observed, at_version(lease.clone(), "2"), now + 9 * second);
        assert_eq!(free(&observed), Some(now + 24 * second));
        let released = claim("a").releasing(&lease, year_ago);
        Observed::update(&mut observed, at_version(released, "3"), now + 10 * second);
        assert_eq!(free(&observed), Some(now + 10 * second), "at once");
    }

    #[test]
    fn own_lease_is_free_at_once_without_a_transition() {
        let (now, then) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let taken = claim("a").taking(Some(&claim("z").taking(None, then)), then);
        let mut observed = None;
        Observed::update(&mut observed, at_version(taken.clone(), "3"), now);
        let free = |who| observed.as_ref().map(|seen| seen.free_for(&claim(who)));
        assert_eq!(free("a"), Some(now));
        // Another process of the same name is another holder.
        assert_eq!(free("a_1"), Some(now + Duration::from_secs(15)));
        let later = then + jiff::SignedDuration::from_secs(60);
        let again = claim("a").taking(Some(&at_version(taken.clone(), "3")), later);
        assert_eq!(again.metadata.resource_version.as_deref(), Some("3"));
        let (before, after) = (taken.spec.unwrap(), again.spec.unwrap());
        assert_eq!(after.lease_transitions, Some(1));
        assert_eq!(after.acquire_time, before.acquire_time);
        assert_eq!(after.renew_time, Some(MicroTime(later)));
    }

    #[test]
    fn writes_carry_the_observed_version() {
        let now = Timestamp::UNIX_EPOCH;
        let made = at_version(claim("a").taking(None, now), "7");
        let taken = claim("b").taking(Some(&made), now);
        assert_eq!(taken.metadata.resource_version.as_deref(), Some("7"));
        assert!(claim("b").holds(&taken) && !claim("a").holds(&taken));
        assert_eq!(taken.spec.as_ref().and_then(|spec| spec.lease_transitions), Some(1));
        let renewed = claim("b").renewing(&taken, now + jiff::SignedDuration::from_secs(2));
        assert_eq!(renewed.metadata.resource_version.as_deref(), Some("7"));
        assert_ne!(renewed.spec, taken.spec);
        assert_eq!(holder(&claim("b").releasing(&renewed, now)), "");
    }
}
