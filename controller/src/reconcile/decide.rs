//! What is to be done about a pod's addresses: a pure function of the pod, its IPInstances and the policy.
//!
//! Everything that has effects is elsewhere ([`super::pod`]); here is the whole of hybridnet's semantics, so that it can be
//! read and tested as a table:
//!
//! | pod | stateful | not stateful |
//! |---|---|---|
//! | gone | its addresses are kept for the next of its name | given back |
//! | terminating | as when gone, once no container runs | untouched: the kubelet still needs them |
//! | evicted, completed | likewise | given back |
//! | not scheduled, or with the node's network | nothing | nothing |
//! | scheduled | see below | its own, else new ones; those of an earlier pod of its name are given back |
//!
//! A scheduled stateful pod has, first match: the entry of its ordinal in `ip-pool`, and gives back what it had besides; new ones
//! if `ip-retain` is false; those that are kept for it; new ones.
//!
//! What a pod once has is never changed while it lives, whatever is written on it or its namespace: there are sockets on it. If one of a
//! pair is missing, because whoever gave them died in between, it is made up for.

use std::net::IpAddr;
use std::sync::Arc;

use trunkline_api::pod::{IpFamily, Pools, ordinal, retains};

use crate::cluster::{InstanceRow, Key, Life, PodRow};
use crate::selection::Policy;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Nothing,
    /// These IPInstances are given back.
    GiveBack(Vec<Key>),
    /// The pod has no use for its addresses any more: `keep` is kept for the next of its name.
    Leave {
        /// IPInstances that are bound to it.
        keep: Vec<Key>,
        /// The pod has hybridnet's finalizer, which is to be taken away.
        unblock: bool,
    },
    /// The pod gets addresses.
    Give(Give),
}

/// How a pod gets its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Give {
    /// The pod's node.
    pub node: Arc<str>,
    /// IPInstances that are given back first.
    pub give_back: Vec<Key>,
    /// IPInstances that are bound to the pod from now on.
    pub bind: Vec<Key>,
    /// What is new.
    pub new: New,
    /// A MAC address that the pod asks for.
    pub mac: Option<[u8; 6]>,
    /// Whether its pod is stateful.
    pub stateful: bool,
}

/// New addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum New {
    /// None.
    None,
    /// As the pod, its namespace or the defaults say.
    Any,
    /// One of this family beside one that is there, in the same network.
    Missing(IpFamily),
    /// These, and no others.
    These(Vec<IpAddr>),
    /// These, which the kubelet reports the pod to have though nothing records them; any others would not be what it uses.
    Recover(Vec<IpAddr>),
}

/// Decides. `instances` are those of the pod's name, deleted ones too. An error says what of the pod's annotations is wrong.
pub fn decide(
    key: &Key,
    pod: Option<&PodRow>,
    instances: &[(&Key, &InstanceRow)],
    policy: &Policy,
) -> Result<Decision, String> {
    let all = |wanted: &dyn Fn(&InstanceRow) -> bool| -> Vec<Key> {
        let rows = instances.iter().filter(|(_, row)| !row.deleting && wanted(row));
        rows.map(|(key, _)| (*key).clone()).collect()
    };
    let kept = |row: &InstanceRow| policy.is_stateful(row.owner.as_ref());
    let Some(pod) = pod else {
        let given_back = all(&|row| !kept(row));
        return Ok(match given_back.as_slice() {
            [] => leave(all(&|row| kept(row) && !row.is_reserved()), false),
            _ => Decision::GiveBack(given_back),
        });
    };
    if pod.host_network {
        return Ok(Decision::Nothing);
    }
    let own = |row: &InstanceRow| row.pod_uid == pod.uid;
    // An orphan (its StatefulSet was deleted without it) is known by its addresses' owner.
    let stateful =
        policy.is_stateful(pod.owner.as_ref()) || pod.owner.is_none() && instances.iter().any(|(_, row)| kept(row));
    match pod.life {
        Life::Terminating | Life::Over if stateful && pod.running => return Ok(Decision::Nothing),
        Life::Terminating | Life::Over if stateful => {
            return Ok(leave(all(&|row| own(row) && !row.is_reserved()), pod.finalizer));
        }
        Life::Terminating => return Ok(leave(Vec::new(), pod.finalizer)),
        Life::Over => {
            let given_back = all(&own);
            return Ok(match given_back.as_slice() {
                [] => leave(Vec::new(), pod.finalizer),
                _ => Decision::GiveBack(given_back),
            });
        }
        Life::Alive => {}
    }
    let Some(node) = &pod.node else { return Ok(Decision::Nothing) };
    let mut give = Give {
        node: Arc::clone(node),
        give_back: Vec::new(),
        bind: Vec::new(),
        new: New::None,
        mac: None,
        stateful,
    };
    if let [(_, first), rest @ ..] = mine(instances, pod).as_slice() {
        if first.family == Some(IpFamily::DualStack) && rest.is_empty() {
            let missing = if first.address.is_ipv6() { IpFamily::V4 } else { IpFamily::V6 };
            give.new = New::Missing(missing);
            give.mac = first.mac;
            return Ok(Decision::Give(give));
        }
        return Ok(Decision::Nothing);
    }
    if !stateful {
        give.give_back = all(&|_| true);
        give.new = if pod.addresses.is_empty() { New::Any } else { New::Recover(pod.addresses.clone()) };
        return Ok(Decision::Give(give));
    }
    let pools = Pools::read(&key.name, &pod.said.annotations)
        .map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let ordinal = ordinal(&key.name);
    let entry = |kind: &str, len: usize| {
        format!(
            "{kind} has {len} entries and none for {}: write one for each ordinal, from 0 on",
            ordinal.map_or_else(|| "a pod without an ordinal".to_owned(), |ordinal| format!("ordinal {ordinal}"))
        )
    };
    if !pools.macs.is_empty() {
        give.mac = Some(pools.mac(ordinal).ok_or_else(|| entry("mac-pool", pools.macs.len()))?);
    }
    if !pools.addresses.is_empty() {
        let wanted = pools.addresses(ordinal).ok_or_else(|| entry("ip-pool", pools.addresses.len()))?;
        give.give_back = all(&|row| !wanted.contains(&row.address));
        give.bind = all(&|row| wanted.contains(&row.address));
        let there = |address: &IpAddr| instances.iter().any(|(_, row)| !row.deleting && row.address == *address);
        let new: Vec<IpAddr> = wanted.iter().filter(|address| !there(address)).copied().collect();
        give.new = if new.is_empty() { New::None } else { New::These(new) };
    } else if !retains(&pod.said.annotations, policy.retain) {
        give.give_back = all(&|_| true);
        give.new = New::Any;
    } else {
        give.bind = all(&|_| true);
        give.new = match (give.bind.is_empty(), pod.addresses.is_empty()) {
            (false, _) => New::None,
            (true, true) => New::Any,
            (true, false) => New::Recover(pod.addresses.clone()),
        };
    }
    Ok(Decision::Give(give))
}

/// What this very pod has. What is being deleted under it counts: it goes on using it.
fn mine<'a>(instances: &[(&'a Key, &'a InstanceRow)], pod: &PodRow) -> Vec<(&'a Key, &'a InstanceRow)> {
    instances.iter().filter(|(_, row)| row.pod_uid == pod.uid && row.node == pod.node).copied().collect()
}

fn leave(keep: Vec<Key>, unblock: bool) -> Decision {
    if keep.is_empty() && !unblock { Decision::Nothing } else { Decision::Leave { keep, unblock } }
}

/// Whether an IPInstance that was deleted still has to wait: its pod may be using the address. `pod` is the one that it is bound to by
/// name.
pub fn is_held(row: &InstanceRow, pod: Option<&PodRow>) -> bool {
    !row.is_reserved()
        && pod.is_some_and(|pod| pod.uid == row.pod_uid && pod.life != Life::Over && !pod.host_network)
}
