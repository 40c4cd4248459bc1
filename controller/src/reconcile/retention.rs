//! Retention: the time for which the address of a stateful pod is retained after the pod has ended.
//!
//! | retention | the address is released | owner of the IPInstance |
//! |---|---|---|
//! | none | when the workload is deleted (by the garbage collector) | the workload |
//! | a time | when this time has passed without a pod | none |
//! | `never` | when its IPInstance is deleted | none |
//!
//! The pod's annotation has precedence over the Subnet's field; the IPInstance records the pod's.
//! The clock is in the IPInstance too (`retained-since`), and is written with the request that
//! unbinds the pod. So it survives a restart and a change of the leader. An IPInstance that was
//! retained before it had a retention gets its clock when the controller first sees it.
//!
//! The garbage collector would delete an IPInstance with its workload. So an IPInstance with a
//! retention has no owner: its binding and an annotation have the workload ([`Owner`] of the row).
//! If the retention is removed, the owner is restored.
//!
//! **An address is never released while a pod gets it.** The work on a pod's name is serial, so the
//! release of its retained addresses and the binding of its next pod exclude each other. A pod of
//! another name can request the address by `ip-pool`: [`Ipam::expire`](crate::ipam::Ipam::expire)
//! excludes that. The deletion carries the version of the IPInstance: if another write came first,
//! or if a deletion without an answer arrives late, the API server refuses it.

use jiff::{SignedDuration, Timestamp};
use trunkline_api::resources::{Retention, Subnet};

use super::plan::{Existing, Plan};
use crate::cluster::{InstanceRow, Key, Owner};
use crate::selection::Policy;
use crate::state::ControllerState;

/// The state of an address's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    /// A pod has the address, or no time applies.
    Stopped,
    /// A time applies, and the IPInstance has no clock yet.
    Unset,
    /// The address is retained until then.
    Until(Timestamp),
    /// The time has passed.
    Over,
}

impl Clock {
    fn of(row: &InstanceRow, retention: Option<Retention>, now: Timestamp) -> Clock {
        let Some(Retention::For(time)) = retention.filter(|_| row.is_reserved()) else {
            return Clock::Stopped;
        };
        let Some(since) = row.retained_since else { return Clock::Unset };
        let end = SignedDuration::try_from(time).ok().and_then(|time| since.checked_add(time).ok());
        match end {
            Some(end) if end <= now => Clock::Over,
            Some(end) => Clock::Until(end),
            // The end of time.
            None => Clock::Stopped,
        }
    }
}

/// A change of an IPInstance that leaves address and pod alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amendment {
    /// The IPInstance.
    pub instance: Existing,
    /// Whether its clock starts.
    pub starts_clock: bool,
    /// The place of its owner, if it changes.
    pub ownership: Option<Ownership>,
}

/// The place of an IPInstance's workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// In its binding only: it outlives the workload.
    Recorded(Owner),
    /// It belongs to the workload.
    Owned(Owner),
}

/// An IPInstance whose retention is over, with the version in which this was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The IPInstance.
    pub instance: Existing,
    /// Its resourceVersion; 0 if the API server's versions are no numbers.
    pub version: u64,
}

/// The retention of an address of a Subnet, for a pod with this annotation.
pub fn effective(pod: Option<Retention>, subnet: Option<&Subnet>) -> Option<Retention> {
    pod.or_else(|| subnet?.retention())
}

impl ControllerState {
    /// Plans the retention of the addresses of a pod's name, and starts the timer for the next end.
    pub(super) fn plan_retention(&mut self, pod: &Key, policy: &Policy, now: Timestamp) -> Plan {
        let Some(term) = &mut self.term else { return Plan::Nothing };
        let (mut expired, mut amendments, mut next) = (Vec::new(), Vec::new(), None::<Timestamp>);
        for (key, row) in self.cluster.instances_of(pod) {
            let owner = row.owner.as_ref().filter(|owner| policy.is_stateful(Some(owner)));
            let Some(owner) = owner.filter(|_| !row.deleting) else { continue };
            let subnet = self.cluster.subnet(&row.subnet).map(AsRef::as_ref);
            if row.retention.is_none() && subnet.is_none() {
                // The retention is unknown, and an owner could cost the IPInstance its life.
                continue;
            }
            let retention = effective(row.retention, subnet);
            let clock = Clock::of(row, retention, now);
            let instance = Existing { key: key.clone(), uid: row.uid.clone() };
            match clock {
                Clock::Over if term.ipam.expire(row.address, &key.namespace) => {
                    expired.push(Expired { instance, version: row.version });
                    continue;
                }
                Clock::Until(end) => next = Some(next.map_or(end, |next| next.min(end))),
                // A pod of another name is about to get the address.
                Clock::Over | Clock::Stopped | Clock::Unset => {}
            }
            let ownership = match (retention.is_some(), row.outlives_owner) {
                (true, false) => Some(Ownership::Recorded(owner.clone())),
                (false, true) => Some(Ownership::Owned(owner.clone())),
                _ => None,
            };
            let starts_clock = clock == Clock::Unset;
            if starts_clock || ownership.is_some() {
                amendments.push(Amendment { instance, starts_clock, ownership });
            }
        }
        if let Some(end) = next {
            let delay = end.duration_since(now).try_into().unwrap_or_default();
            term.queues.pods.add_after(pod.clone(), delay);
        }
        if !expired.is_empty() {
            Plan::Expire(expired)
        } else if !amendments.is_empty() {
            Plan::Amend(amendments)
        } else {
            Plan::Nothing
        }
    }

    /// Makes addresses available again whose release for the pod's name was planned, but not done.
    pub(super) fn resume_expired(&mut self, pod: &Key) {
        let Some(term) = &mut self.term else { return };
        for (key, row) in self.cluster.instances_of(pod) {
            term.ipam.resume(row.address, &key.namespace);
        }
    }
}
