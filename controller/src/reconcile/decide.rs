//! The decision about a pod's addresses: a pure function of the pod, its IPInstances and the
//! policy.
//!
//! All effects are elsewhere ([`super::pod`]). This module has all of hybridnet's semantics, and
//! can be read and tested as a table:
//!
//! | pod | stateful | not stateful |
//! |---|---|---|
//! | gone | its addresses are retained for the next pod of its name | released |
//! | terminating | as when gone, once no container runs | unchanged: the kubelet needs them |
//! | evicted, completed | likewise | released |
//! | not scheduled, or with the node's network | nothing | nothing |
//! | not selected (`--pod-label-selector`), without an address | as when gone | as when gone |
//! | scheduled | see below | its own, else new ones; an earlier pod's are released, and those of a stateful one stay |
//!
//! A scheduled stateful pod gets the first of these that applies: the entry of its ordinal in
//! `ip-pool` (its other addresses are released); new addresses if `ip-retain` is false; its
//! retained addresses; new addresses.
//!
//! Each interface of a pod has its own decision. For another interface than `eth0`, the pod's row has
//! the requests of the interface ([`PodRow::for_interface`]), and its `addresses` count for every
//! pod, since they are written for this pod.
//!
//! A pod's addresses never change during its life, whatever its annotations or its namespace
//! contain, because the pod has sockets with these addresses. If one of a pair is missing, because
//! the controller died between the two writes, it is added later. The address in `ip-pool`, or a
//! retained address, is preferred to a new one.

use std::net::IpAddr;
use std::sync::Arc;

use trunkline_api::kept;
use trunkline_api::pod::{IpFamily, Pools, ordinal, retains};
use trunkline_api::validate::Fault;

use crate::cluster::{InstanceRow, Key, PodLifecycle, PodRow};
use crate::selection::Policy;

/// The decision for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Nothing,
    /// Release these IPInstances.
    Release(Vec<Key>),
    /// The pod no longer needs its addresses: retain `keep` for the next pod of its name.
    Retain {
        /// IPInstances bound to it.
        keep: Vec<Key>,
        /// Whether the pod has hybridnet's finalizer, which must be removed.
        remove_finalizer: bool,
    },
    /// Allocate addresses for the pod.
    Assign(AssignDecision),
}

/// The allocation for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignDecision {
    /// The pod's node.
    pub node: Arc<str>,
    /// IPInstances to release first.
    pub release: Vec<Key>,
    /// The requested addresses.
    pub selector: AddressSelector,
    /// The MAC address that the pod names.
    pub mac: Option<[u8; 6]>,
    /// Whether the pod is stateful.
    pub stateful: bool,
}

/// The addresses that a pod gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressSelector {
    /// Any address that the selection by the pod, its namespace or the defaults allows.
    Any,
    /// These retained addresses, in their network. `family` determines how many there must be.
    Kept {
        /// The addresses.
        addresses: Vec<IpAddr>,
        /// Their network.
        network: Arc<str>,
        /// The families decided at the first allocation.
        family: IpFamily,
    },
    /// The addresses in its `ip-pool`.
    Named(Vec<IpAddr>),
    /// An address of this family in addition to the existing address, in the same network and with
    /// the same MAC address.
    Missing {
        /// The missing family.
        family: IpFamily,
        /// The network of the existing address.
        network: Arc<str>,
    },
    /// The addresses that the kubelet reports although no IPInstance records them: the pod uses
    /// exactly these.
    Recover(Vec<IpAddr>),
}

impl AddressSelector {
    /// Whether both addresses of a pair are retained.
    pub(super) fn is_pair(&self) -> bool {
        matches!(self, AddressSelector::Kept { addresses, .. } if addresses.len() > 1)
    }
}

/// A fault in the annotations of a stateful pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecideError {
    /// Entries of a pool cannot be read.
    #[error("{}", joined(.0))]
    Pools(Vec<Fault>),
    /// A pool has no entry for the pod.
    #[error("{pool} has {entries} entries and none for {}: write one for each ordinal, from 0 on", shown(*.ordinal))]
    NoEntry {
        /// `ip-pool` or `mac-pool`.
        pool: &'static str,
        /// The number of its entries.
        entries: usize,
        /// The pod's ordinal.
        ordinal: Option<usize>,
    },
}

fn shown(ordinal: Option<usize>) -> String {
    ordinal.map_or_else(|| "a pod without an ordinal".to_owned(), |ordinal| format!("ordinal {ordinal}"))
}

/// Most octets of the text about a pod. An event has at most 1024.
const MAX_TEXT: usize = 1000;

/// The texts of faults, within a bound: an annotation can have thousands of faults.
pub(super) fn joined(faults: &[Fault]) -> String {
    kept::join(&faults.iter().map(ToString::to_string).collect::<Vec<_>>(), MAX_TEXT)
}

/// Decides for an interface of a pod. `instances` are the IPInstances of the interface and of the pod's
/// name, including those with a deletion timestamp.
///
/// # Errors
/// The pod's annotations have a fault.
pub fn decide(
    key: &Key,
    pod: Option<&PodRow>,
    instances: &[(&Key, &InstanceRow)],
    policy: &Policy,
) -> Result<Decision, DecideError> {
    let all = |wanted: &dyn Fn(&InstanceRow) -> bool| -> Vec<Key> {
        let rows = instances.iter().filter(|(_, row)| !row.deleting && wanted(row));
        rows.map(|(key, _)| (*key).clone()).collect()
    };
    let kept = |row: &InstanceRow| policy.is_stateful(row.owner.as_ref());
    // A pod of another CNI plugin is no pod here, unless it got an address before its labels or the
    // selector changed.
    let pod = pod.filter(|pod| pod.selected || instances.iter().any(|(_, row)| row.pod_uid == pod.uid));
    let Some(pod) = pod else {
        let to_release = all(&|row| !kept(row));
        return Ok(match to_release.as_slice() {
            [] => leave(all(&|row| kept(row) && !row.is_reserved()), false),
            _ => Decision::Release(to_release),
        });
    };
    if pod.host_network {
        return Ok(Decision::Nothing);
    }
    let own = |row: &InstanceRow| row.pod_uid == pod.uid;
    // A pod has no owner if its StatefulSet was deleted without it. Then the owner that its
    // IPInstances record shows whether the pod is stateful.
    let stateful = policy.is_stateful(pod.owner.as_ref())
        || pod.owner.is_none() && instances.iter().any(|(_, row)| kept(row));
    match pod.life {
        PodLifecycle::Terminating | PodLifecycle::Over if stateful && pod.running => {
            return Ok(Decision::Nothing);
        }
        PodLifecycle::Terminating | PodLifecycle::Over if stateful => {
            return Ok(leave(all(&|row| own(row) && !row.is_reserved()), pod.finalizer));
        }
        PodLifecycle::Terminating => return Ok(leave(Vec::new(), pod.finalizer)),
        PodLifecycle::Over => {
            let to_release = all(&own);
            return Ok(match to_release.as_slice() {
                [] => leave(Vec::new(), pod.finalizer),
                _ => Decision::Release(to_release),
            });
        }
        PodLifecycle::Alive => {}
    }
    let Some(node) = &pod.node else { return Ok(Decision::Nothing) };
    let mut decision = AssignDecision {
        node: Arc::clone(node),
        release: Vec::new(),
        selector: if pod.addresses.is_empty() {
            AddressSelector::Any
        } else {
            AddressSelector::Recover(pod.addresses.clone())
        },
        mac: None,
        stateful,
    };
    let half = match mine(instances, pod).as_slice() {
        [] => false,
        [(_, first)] if first.family == Some(IpFamily::DualStack) && !first.deleting => {
            let family = if first.address.is_ipv6() { IpFamily::V4 } else { IpFamily::V6 };
            decision.selector = AddressSelector::Missing { family, network: Arc::clone(&first.network) };
            decision.mac = first.mac;
            true
        }
        _ if stateful => return Ok(Decision::Nothing),
        // The sandbox of an earlier pod can outlast the assignment.
        _ => {
            return Ok(match all(&|row| !own(row) && !kept(row)) {
                earlier if earlier.is_empty() => Decision::Nothing,
                earlier => Decision::Release(earlier),
            });
        }
    };
    if half && !stateful {
        return Ok(Decision::Assign(decision));
    }
    if !stateful && pod.interface.is_none() {
        // A pod of another kind with the name of a StatefulSet's pod, such as a mirror pod, which the
        // kubelet of any node can create, does not end the retention.
        decision.release = all(&|row| !kept(row));
        return Ok(Decision::Assign(decision));
    }
    let pools = Pools::read(&key.name, &pod.networking.annotations).map_err(DecideError::Pools)?;
    let ordinal = ordinal(&key.name);
    let entry = |pool, entries| DecideError::NoEntry { pool, entries, ordinal };
    if !pools.macs.is_empty() {
        decision.mac = Some(pools.mac(ordinal).ok_or_else(|| entry("mac-pool", pools.macs.len()))?);
    }
    if !pools.addresses.is_empty() {
        let wanted = pools.addresses(ordinal).ok_or_else(|| entry("ip-pool", pools.addresses.len()))?;
        decision.release = all(&|row| !wanted.contains(&row.address));
        decision.selector = AddressSelector::Named(wanted.to_vec());
    } else if !stateful || !retains(&pod.networking.annotations, policy.retain) {
        if !half {
            decision.release = all(&|_| true);
        }
    } else if let Some(kept) = kept_for(instances).filter(|kept| !half || kept.is_pair()) {
        decision.selector = kept;
    }
    Ok(Decision::Assign(decision))
}

/// The addresses retained for pods of this name, or for this virtual machine.
pub(super) fn kept_for(instances: &[(&Key, &InstanceRow)]) -> Option<AddressSelector> {
    let rows: Vec<&InstanceRow> = instances.iter().map(|(_, row)| *row).filter(|row| !row.deleting).collect();
    let network = Arc::clone(&rows.first()?.network);
    let pair = rows.len() > 1 || rows.iter().any(|row| row.family == Some(IpFamily::DualStack));
    let family = match rows.first()?.address {
        _ if pair => IpFamily::DualStack,
        IpAddr::V4(_) => IpFamily::V4,
        IpAddr::V6(_) => IpFamily::V6,
    };
    Some(AddressSelector::Kept { addresses: rows.iter().map(|row| row.address).collect(), network, family })
}

/// The IPInstances of this very pod. Those with a deletion timestamp count: the pod still uses
/// them.
fn mine<'a>(instances: &[(&'a Key, &'a InstanceRow)], pod: &PodRow) -> Vec<(&'a Key, &'a InstanceRow)> {
    instances.iter().filter(|(_, row)| row.pod_uid == pod.uid && row.node == pod.node).copied().collect()
}

pub(super) fn leave(keep: Vec<Key>, remove_finalizer: bool) -> Decision {
    if keep.is_empty() && !remove_finalizer {
        Decision::Nothing
    } else {
        Decision::Retain { keep, remove_finalizer }
    }
}

/// Whether an IPInstance with a deletion timestamp must wait, because its pod may use the address.
/// `pod` is the pod in its binding.
pub fn is_held(row: &InstanceRow, pod: Option<&PodRow>) -> bool {
    !row.is_reserved()
        && pod
            .is_some_and(|pod| pod.uid == row.pod_uid && pod.life != PodLifecycle::Over && !pod.host_network)
}

#[cfg(test)]
mod tests {
    use trunkline_api::names::annotation;

    use super::*;
    use crate::cluster::{NetworkingMetadata, Owner};
    use crate::testing::policy;

    fn owner(kind: &str) -> Option<Owner> {
        Some(Owner { api_version: "v1".into(), kind: kind.into(), name: "web".into(), uid: "o".into() })
    }

    /// A pod with UID `new`, scheduled to `n1`.
    fn pod(kind: &str, annotations: &[(&str, &str)]) -> PodRow {
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        PodRow {
            uid: "new".into(),
            node: Some("n1".into()),
            host_network: false,
            selected: true,
            interface: None,
            owner: owner(kind),
            networking: NetworkingMetadata {
                annotations: annotations.collect(),
                ..NetworkingMetadata::default()
            },
            life: PodLifecycle::Alive,
            running: false,
            started: false,
            failed: false,
            finalizer: false,
            addresses: Vec::new(),
        }
    }

    /// An IPInstance of `web-1`, bound to the pod with this UID, or retained.
    fn instance(address: &str, kind: &str, pod_uid: &str) -> (Key, InstanceRow) {
        let row = InstanceRow {
            uid: "i".into(),
            version: 1,
            network: "net".into(),
            subnet: "sub".into(),
            address: address.parse().unwrap(),
            mac: Some([2, 0, 0, 0, 0, 1]),
            node: (!pod_uid.is_empty()).then(|| "n1".into()),
            attached: None,
            pod: Some("web-1".into()),
            pod_uid: pod_uid.into(),
            owner: owner(kind),
            family: None,
            outlives_owner: false,
            of_vm: false,
            target: None,
            source_pod: None,
            retention: None,
            retained_since: None,
            interface: None,
            other_interfaces: [].into(),
            deleting: false,
            finalizer: Some(0),
        };
        (key_of(address), row)
    }

    fn key_of(address: &str) -> Key {
        Key::new("default", address.replace(['.', ':'], "-"))
    }

    fn run(pod: Option<&PodRow>, instances: &[(Key, InstanceRow)]) -> Result<Decision, DecideError> {
        let rows: Vec<_> = instances.iter().map(|(key, row)| (key, row)).collect();
        decide(&Key::new("default", "web-1"), pod, &rows, &policy())
    }

    fn back(addresses: &[&str]) -> Decision {
        Decision::Release(addresses.iter().map(|address| key_of(address)).collect())
    }

    fn left(addresses: &[&str], remove_finalizer: bool) -> Decision {
        Decision::Retain { keep: addresses.iter().map(|address| key_of(address)).collect(), remove_finalizer }
    }

    fn given(decision: Result<Decision, DecideError>) -> (Vec<Key>, AddressSelector, Option<[u8; 6]>) {
        match decision {
            Ok(Decision::Assign(decision)) => (decision.release, decision.selector, decision.mac),
            other => panic!("{other:?}"),
        }
    }

    const A: &str = "10.0.0.1";
    const B: &str = "10.0.0.2";
    const SIX: &str = "fd00::1";

    fn kept(addresses: &[&str], family: IpFamily) -> AddressSelector {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        AddressSelector::Kept { addresses, network: "net".into(), family }
    }

    fn named(addresses: &[&str]) -> AddressSelector {
        AddressSelector::Named(addresses.iter().map(|address| address.parse().unwrap()).collect())
    }

    #[test]
    fn addresses_of_deleted_and_terminating_pods() {
        let plain = [instance(A, "Pod", "new")];
        let set = [instance(A, "StatefulSet", "new")];
        let reserved = [instance(A, "StatefulSet", "")];
        let with = |kind: &str, life, running, finalizer| {
            Some(PodRow { life, running, finalizer, ..pod(kind, &[]) })
        };
        for (case, pod, instances, decision) in [
            ("plain, gone", None, &plain, back(&[A])),
            ("stateful, gone", None, &set, left(&[A], false)),
            ("stateful, gone, already retained", None, &reserved, Decision::Nothing),
            (
                "plain, terminating",
                with("ReplicaSet", PodLifecycle::Terminating, true, false),
                &plain,
                Decision::Nothing,
            ),
            (
                "plain, not yet gone",
                with("ReplicaSet", PodLifecycle::Terminating, false, false),
                &plain,
                Decision::Nothing,
            ),
            ("plain, over", with("ReplicaSet", PodLifecycle::Over, false, false), &plain, back(&[A])),
            (
                "stateful, terminating, runs",
                with("StatefulSet", PodLifecycle::Terminating, true, true),
                &set,
                Decision::Nothing,
            ),
            (
                "stateful, terminating",
                with("StatefulSet", PodLifecycle::Terminating, false, true),
                &set,
                left(&[A], true),
            ),
            (
                "stateful, terminating, retained",
                with("StatefulSet", PodLifecycle::Terminating, false, true),
                &reserved,
                left(&[], true),
            ),
            (
                "stateful, over",
                with("StatefulSet", PodLifecycle::Over, false, false),
                &set,
                left(&[A], false),
            ),
            (
                "orphan, terminating",
                with("", PodLifecycle::Terminating, false, false).map(|pod| PodRow { owner: None, ..pod }),
                &set,
                left(&[A], false),
            ),
        ] {
            assert_eq!(run(pod.as_ref(), instances), Ok(decision), "{case}");
        }
    }

    #[test]
    fn a_pod_of_another_kind_does_not_end_a_retention() {
        let retained = [instance(A, "StatefulSet", "")];
        let forced = [instance(A, "StatefulSet", "old")];
        for kind in ["Node", "ReplicaSet"] {
            for instances in [&retained, &forced] {
                let (release, selector, _) = given(run(Some(&pod(kind, &[])), instances));
                assert_eq!((release, selector), (Vec::new(), AddressSelector::Any), "{kind}");
            }
            let both = [instance(B, "Pod", "new"), instance(A, "StatefulSet", "")];
            assert_eq!(run(Some(&pod(kind, &[])), &both), Ok(Decision::Nothing), "{kind}");
        }
    }

    #[test]
    fn pod_keeps_its_addresses_while_it_lives() {
        for annotations in [
            &[][..],
            &[(annotation::IP_POOL, "10.0.0.8,10.0.0.9")],
            &[(annotation::IP_RETAIN, "false")],
            &[(annotation::IP_FAMILY, "DualStack")],
        ] {
            for kind in ["ReplicaSet", "StatefulSet"] {
                let outcome = run(Some(&pod(kind, annotations)), &[instance(A, kind, "new")]);
                assert_eq!(outcome, Ok(Decision::Nothing), "{kind} {annotations:?}");
            }
        }
        // The pod's IPInstance was deleted, but the pod lives and still uses the address.
        let (key, row) = instance(A, "Pod", "new");
        let deleted = [(key, InstanceRow { deleting: true, ..row })];
        assert_eq!(run(Some(&pod("ReplicaSet", &[])), &deleted), Ok(Decision::Nothing));
        assert!(is_held(&deleted[0].1, Some(&pod("ReplicaSet", &[]))));
        assert!(!is_held(&deleted[0].1, None));
        assert!(!is_held(&deleted[0].1, Some(&PodRow { uid: "other".into(), ..pod("ReplicaSet", &[]) })));
        assert!(!is_held(
            &deleted[0].1,
            Some(&PodRow { life: PodLifecycle::Over, ..pod("ReplicaSet", &[]) })
        ));
    }

    #[test]
    fn pod_of_another_plugin_gets_no_address() {
        let other = |kind: &str| PodRow { selected: false, ..pod(kind, &[]) };
        for (case, pod, instances, decision) in [
            ("no address", other("ReplicaSet"), vec![], Decision::Nothing),
            ("an earlier pod's", other("ReplicaSet"), vec![instance(A, "Pod", "old")], back(&[A])),
            (
                "a set's earlier pod's",
                other("StatefulSet"),
                vec![instance(A, "StatefulSet", "old")],
                left(&[A], false),
            ),
            ("a retained one", other("StatefulSet"), vec![instance(A, "StatefulSet", "")], Decision::Nothing),
            ("its own", other("ReplicaSet"), vec![instance(A, "Pod", "new")], Decision::Nothing),
            (
                "its own, over",
                PodRow { life: PodLifecycle::Over, ..other("ReplicaSet") },
                vec![instance(A, "Pod", "new")],
                back(&[A]),
            ),
            (
                "reported by the kubelet",
                PodRow { addresses: vec![A.parse().unwrap()], started: true, ..other("ReplicaSet") },
                vec![],
                Decision::Nothing,
            ),
        ] {
            assert_eq!(run(Some(&pod), &instances), Ok(decision), "{case}");
        }
    }

    #[test]
    fn no_addresses_without_a_node_or_with_host_network() {
        let unscheduled = PodRow { node: None, ..pod("ReplicaSet", &[]) };
        let host = PodRow { host_network: true, ..pod("ReplicaSet", &[]) };
        for pod in [unscheduled, host] {
            assert_eq!(run(Some(&pod), &[]), Ok(Decision::Nothing));
        }
    }

    #[test]
    fn a_scheduled_pod_gets_addresses() {
        let pool = &[(annotation::IP_POOL, "10.0.0.9,10.0.0.1/fd00::1")][..];
        let pair = |address, kind, uid| {
            let (key, row) = instance(address, kind, uid);
            (key, InstanceRow { family: Some(IpFamily::DualStack), ..row })
        };
        let mac_pool = &[(annotation::MAC_POOL, "02:00:00:00:00:0a,02:00:00:00:00:0b")][..];
        let mac = Some([2, 0, 0, 0, 0, 0xb]);
        let none = None;
        for (case, kind, annotations, instances, release, want, mac) in [
            ("plain", "ReplicaSet", &[][..], vec![], &[][..], AddressSelector::Any, none),
            (
                "plain, an earlier pod's",
                "Pod",
                &[],
                vec![instance(A, "Pod", "old")],
                &[A],
                AddressSelector::Any,
                none,
            ),
            ("plain ignores pools", "ReplicaSet", pool, vec![], &[], AddressSelector::Any, none),
            ("stateful, first time", "StatefulSet", &[], vec![], &[], AddressSelector::Any, none),
            (
                "kept",
                "StatefulSet",
                &[],
                vec![instance(A, "StatefulSet", "")],
                &[],
                kept(&[A], IpFamily::V4),
                none,
            ),
            (
                "kept pair",
                "StatefulSet",
                &[],
                vec![instance(A, "StatefulSet", ""), instance(SIX, "StatefulSet", "")],
                &[],
                kept(&[A, SIX], IpFamily::DualStack),
                none,
            ),
            (
                "half of a retained pair",
                "StatefulSet",
                &[],
                vec![pair(SIX, "StatefulSet", "")],
                &[],
                kept(&[SIX], IpFamily::DualStack),
                none,
            ),
            (
                "bound to the pod before",
                "StatefulSet",
                &[],
                vec![instance(A, "StatefulSet", "old")],
                &[],
                kept(&[A], IpFamily::V4),
                none,
            ),
            (
                "not retained",
                "StatefulSet",
                &[(annotation::IP_RETAIN, "false")],
                vec![instance(A, "StatefulSet", "")],
                &[A],
                AddressSelector::Any,
                none,
            ),
            ("pool", "StatefulSet", pool, vec![], &[], named(&[A, SIX]), none),
            (
                "changed pool: only the removed addresses are released",
                "StatefulSet",
                pool,
                vec![instance(A, "StatefulSet", ""), instance(B, "StatefulSet", "")],
                &[B],
                named(&[A, SIX]),
                none,
            ),
            (
                "pool before ip-retain",
                "StatefulSet",
                &[(annotation::IP_POOL, "10.0.0.9,10.0.0.1"), (annotation::IP_RETAIN, "false")],
                vec![instance(A, "StatefulSet", "")],
                &[],
                named(&[A]),
                none,
            ),
            ("MAC pool", "StatefulSet", mac_pool, vec![], &[], AddressSelector::Any, mac),
            (
                "MAC pool with a retained address",
                "StatefulSet",
                mac_pool,
                vec![instance(A, "StatefulSet", "")],
                &[],
                kept(&[A], IpFamily::V4),
                mac,
            ),
            (
                "half bound, the other retained",
                "StatefulSet",
                &[],
                vec![pair(A, "StatefulSet", "new"), pair(SIX, "StatefulSet", "")],
                &[],
                kept(&[A, SIX], IpFamily::DualStack),
                Some([2, 0, 0, 0, 0, 1]),
            ),
            (
                "half bound, the other in the pool",
                "StatefulSet",
                pool,
                vec![pair(A, "StatefulSet", "new")],
                &[],
                named(&[A, SIX]),
                Some([2, 0, 0, 0, 0, 1]),
            ),
            (
                "half bound, no retained address, none in the pool",
                "StatefulSet",
                &[(annotation::IP_RETAIN, "false")],
                vec![pair(A, "StatefulSet", "new")],
                &[],
                AddressSelector::Missing { family: IpFamily::V6, network: "net".into() },
                Some([2, 0, 0, 0, 0, 1]),
            ),
            (
                "the other address of a pair",
                "ReplicaSet",
                &[],
                vec![pair(A, "Pod", "new")],
                &[],
                AddressSelector::Missing { family: IpFamily::V6, network: "net".into() },
                Some([2, 0, 0, 0, 0, 1]),
            ),
        ] {
            let release: Vec<Key> = release.iter().map(|address| key_of(address)).collect();
            assert_eq!(given(run(Some(&pod(kind, annotations)), &instances)), (release, want, mac), "{case}");
        }
        // The kubelet reports an address that no IPInstance records (etcd was restored from an old
        // snapshot).
        for kind in ["ReplicaSet", "StatefulSet"] {
            let pod = PodRow { addresses: vec![A.parse().unwrap()], ..pod(kind, &[]) };
            assert_eq!(given(run(Some(&pod), &[])).1, AddressSelector::Recover(vec![A.parse().unwrap()]));
        }
    }

    #[test]
    fn missing_or_bad_pool_entry_is_reported() {
        for (annotations, text) in [
            ((annotation::IP_POOL, "10.0.0.1"), "ip-pool has 1 entries and none for ordinal 1"),
            ((annotation::MAC_POOL, "02:00:00:00:00:01"), "mac-pool has 1 entries"),
            ((annotation::IP_POOL, "10.0.0.1,10.0.0.300"), "ip-pool][1]"),
        ] {
            let error = run(Some(&pod("StatefulSet", &[annotations])), &[]).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
