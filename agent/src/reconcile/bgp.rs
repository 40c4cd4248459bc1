//! Applies a plan to the speaker: peers and prefixes as differences between the applied and the
//! wanted state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::IpNet;
use trunkline_bgp::bfd::HostLink;
use trunkline_bgp::config::{PeerConfig, PeerRange};
use trunkline_bgp::net::{CommandError, SpeakerHandle, Stopped};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::Change;
use trunkline_bgp::types::{Asn, PeerKey};
use trunkline_datapath::plan::{KernelHost, Link};

use super::originated::OriginatedPrefixes;
use crate::history::History;
use crate::plan::{BgpPlan, RefusedRange};

/// Prefixes with their path attributes.
pub(super) type Prefixes = BTreeMap<IpNet, Origination>;

/// A running speaker and its applied part of the plan.
pub(super) struct AppliedBgp {
    pub(super) handle: SpeakerHandle,
    pub(super) local_as: Asn,
    pub(super) router_id: Ipv4Addr,
    peers: BTreeMap<PeerKey, PeerConfig>,
    ranges: BTreeMap<IpNet, PeerRange>,
    refused_ranges: BTreeMap<IpNet, RefusedRange>,
    links: Option<Vec<HostLink>>,
    prefixes: OriginatedPrefixes,
    complete: bool,
    history: History,
}

/// The changes from one set of peers to another.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PeerChanges {
    pub(super) remove: Vec<PeerKey>,
    pub(super) update: Vec<PeerConfig>,
    pub(super) add: Vec<PeerConfig>,
}

/// The changes from one set of prefixes to another.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PrefixChanges {
    pub(super) withdraw: Vec<IpNet>,
    pub(super) originate: Vec<(IpNet, Origination)>,
}

/// The links of the host for BFD and for the causes of lost sessions. [`KernelHost::links`]
/// excludes pods' links. The agent's own devices (VLAN, VXLAN) carry pods, and reach only peers in
/// their connected network.
pub(super) fn host_links(host: &KernelHost) -> Vec<HostLink> {
    let link = |link: &Link| {
        Some(HostLink {
            // The kernel's names are valid.
            name: link.name.parse().ok()?,
            index: link.index,
            addresses: link.addresses.clone(),
            carrier: link.up && link.running,
            uplink: !link.own && link.name != "lo",
        })
    };
    host.links.iter().filter_map(link).collect()
}

pub(super) fn peer_changes(
    applied: &BTreeMap<PeerKey, PeerConfig>,
    wanted: &BTreeMap<PeerKey, PeerConfig>,
) -> PeerChanges {
    PeerChanges {
        remove: applied.keys().filter(|address| !wanted.contains_key(address)).copied().collect(),
        update: wanted
            .iter()
            .filter(|(address, peer)| applied.get(address).is_some_and(|applied| applied != *peer))
            .map(|(_, peer)| peer.clone())
            .collect(),
        add: wanted
            .iter()
            .filter(|(address, _)| !applied.contains_key(address))
            .map(|(_, peer)| peer.clone())
            .collect(),
    }
}

pub(super) fn prefix_changes(applied: &OriginatedPrefixes, wanted: &Prefixes) -> PrefixChanges {
    PrefixChanges {
        withdraw: applied.iter().map(|(prefix, _)| *prefix).filter(|of| !wanted.contains_key(of)).collect(),
        originate: wanted
            .iter()
            .filter(|(prefix, origination)| applied.get(prefix) != Some(origination))
            .map(|(prefix, origination)| (*prefix, origination.clone()))
            .collect(),
    }
}

impl AppliedBgp {
    pub(super) fn new(handle: SpeakerHandle, plan: &BgpPlan, history: History) -> AppliedBgp {
        AppliedBgp {
            handle,
            local_as: plan.local_as,
            router_id: plan.router_id,
            peers: BTreeMap::new(),
            ranges: BTreeMap::new(),
            refused_ranges: BTreeMap::new(),
            links: None,
            prefixes: OriginatedPrefixes::default(),
            complete: false,
            history,
        }
    }

    /// Whether a speaker with this identity can apply the plan.
    pub(super) fn is_for(&self, plan: &BgpPlan) -> bool {
        (self.local_as, self.router_id) == (plan.local_as, plan.router_id)
    }

    /// Sets the links of the host, if they changed.
    pub(super) async fn set_links(&mut self, links: &[HostLink]) -> Result<(), Stopped> {
        if self.links.as_deref() != Some(links) {
            self.handle.set_links(links.to_vec()).await?;
            self.links = Some(links.to_vec());
        }
        Ok(())
    }

    /// Applies the differences: first removals, then additions, and peers before prefixes. Returns
    /// the errors for rejected peers. `all_peers`: the plan has every peer that the first selection
    /// waits for.
    pub(super) async fn apply(
        &mut self,
        plan: &BgpPlan,
        prefixes: Prefixes,
        all_peers: bool,
    ) -> Result<Vec<String>, Stopped> {
        let mut faults = Vec::new();
        let changes = peer_changes(&self.peers, &plan.peers);
        for key in changes.remove {
            match self.handle.remove_peer(key).await {
                Err(CommandError::Stopped(stopped)) => return Err(stopped),
                // If the peer is unknown, it is already removed.
                Ok(()) | Err(_) => drop(self.peers.remove(&key)),
            }
            tracing::info!(peer = %key, "peer removed");
        }
        for peer in changes.update {
            match self.handle.update_peer(peer.clone()).await {
                Ok(change) => {
                    if change != Change::Unchanged {
                        let reset = change == Change::Reset;
                        tracing::info!(peer = %peer.key(), reset, "peer changed");
                    }
                    self.peers.insert(peer.key(), peer);
                }
                Err(CommandError::Stopped(stopped)) => return Err(stopped),
                Err(error) => faults.push(error.to_string()),
            }
        }
        for peer in changes.add {
            match self.handle.add_peer(peer.clone()).await {
                Ok(_) => {
                    tracing::info!(peer = %peer.key(), remote_as = %peer.remote_as, "peer added");
                    self.peers.insert(peer.key(), peer);
                }
                Err(CommandError::Stopped(stopped)) => return Err(stopped),
                Err(error) => faults.push(error.to_string()),
            }
        }
        if self.refused_ranges != plan.refused_ranges {
            for range in plan.refused_ranges.values() {
                tracing::error!(fault = %range.fault, "no dynamic neighbours are accepted from a prefix");
            }
            self.refused_ranges.clone_from(&plan.refused_ranges);
        }
        // The ranges follow the peers, so a dynamic neighbour that is now configured as a peer
        // keeps its session.
        if self.ranges != plan.ranges {
            match self.handle.set_ranges(plan.ranges.values().cloned().collect()).await {
                Ok(()) => {
                    let prefixes: Vec<String> = plan.ranges.keys().map(IpNet::to_string).collect();
                    tracing::info!(prefixes = prefixes.join(","), "dynamic neighbours are accepted");
                    self.ranges.clone_from(&plan.ranges);
                }
                Err(CommandError::Stopped(stopped)) => return Err(stopped),
                Err(error) => faults.push(error.to_string()),
            }
        }
        let changes = prefix_changes(&self.prefixes, &prefixes);
        self.history.withdrawn(changes.withdraw.iter().copied());
        if !changes.withdraw.is_empty() {
            self.handle.withdraw_all(changes.withdraw).await?;
        }
        self.history.originated(changes.originate.iter().map(|(prefix, _)| *prefix));
        if !changes.originate.is_empty() {
            self.handle.originate_all(changes.originate).await?;
        }
        self.prefixes = OriginatedPrefixes::from(&prefixes);
        if all_peers && !std::mem::replace(&mut self.complete, true) {
            self.handle.originations_complete().await?;
        }
        Ok(faults)
    }

    /// Adds one pod's prefixes.
    pub(super) async fn add(&mut self, prefixes: &Prefixes) -> Result<(), Stopped> {
        let new: Vec<_> = prefixes
            .iter()
            .filter(|(prefix, origination)| self.prefixes.get(prefix) != Some(origination))
            .map(|(prefix, origination)| (*prefix, origination.clone()))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        new.iter().for_each(|(prefix, origination)| self.prefixes.insert(*prefix, origination));
        self.history.originated(new.iter().map(|(prefix, _)| *prefix));
        self.handle.originate_all(new).await
    }

    /// Removes one pod's prefixes.
    pub(super) async fn remove(&mut self, prefixes: &BTreeSet<IpNet>) -> Result<(), Stopped> {
        let gone: Vec<IpNet> =
            prefixes.iter().filter(|prefix| self.prefixes.remove(prefix)).copied().collect();
        self.history.withdrawn(gone.iter().copied());
        if gone.is_empty() {
            return Ok(());
        }
        self.handle.withdraw_all(gone).await
    }
}

#[cfg(test)]
mod tests {
    use trunkline_bgp::types::Community;

    use super::*;

    fn peer(address: &str, asn: u32) -> (PeerKey, PeerConfig) {
        let config = PeerConfig::new(address.parse().unwrap(), Asn(asn));
        (config.key(), config)
    }

    #[test]
    fn only_changed_peers_are_sent() {
        let applied = BTreeMap::from([peer("10.0.0.1", 1), peer("10.0.0.2", 2), peer("10.0.0.3", 3)]);
        let wanted = BTreeMap::from([peer("10.0.0.1", 1), peer("10.0.0.2", 22), peer("10.0.0.4", 4)]);
        let changes = peer_changes(&applied, &wanted);
        assert_eq!(changes.remove, ["10.0.0.3".parse::<PeerKey>().unwrap()]);
        assert_eq!(changes.update, [peer("10.0.0.2", 22).1]);
        assert_eq!(changes.add, [peer("10.0.0.4", 4).1]);
        assert_eq!(peer_changes(&wanted, &wanted), PeerChanges::default());
    }

    #[test]
    fn only_changed_prefixes_are_sent() {
        let prefix = |text: &str| text.parse::<IpNet>().unwrap();
        let plain = Origination::default();
        let tagged = Origination { communities: vec![Community::NO_EXPORT], ..plain.clone() };
        let applied = Prefixes::from([
            (prefix("10.0.0.1/32"), plain.clone()),
            (prefix("10.0.0.2/32"), plain.clone()),
            (prefix("10.0.0.3/32"), plain.clone()),
        ]);
        let wanted = Prefixes::from([
            (prefix("10.0.0.1/32"), plain.clone()),
            (prefix("10.0.0.2/32"), tagged.clone()),
            (prefix("10.0.0.4/32"), plain.clone()),
        ]);
        let changes = prefix_changes(&OriginatedPrefixes::from(&applied), &wanted);
        assert_eq!(changes.withdraw, [prefix("10.0.0.3/32")]);
        assert_eq!(changes.originate, [(prefix("10.0.0.2/32"), tagged), (prefix("10.0.0.4/32"), plain)]);
        let same = prefix_changes(&OriginatedPrefixes::from(&wanted), &wanted);
        assert_eq!(same, PrefixChanges::default());
    }

    #[test]
    fn peers_behind_a_router_are_on_no_link_that_carries_pods() {
        let link = |index, name: &str, own| Link {
            index,
            name: name.to_owned(),
            mac: None,
            addresses: vec!["192.0.2.2/24".parse().unwrap()],
            up: true,
            running: true,
            mtu: 1500,
            kind: None,
            own,
        };
        let links = vec![
            link(1, "lo", false),
            link(2, "eth0", false),
            link(3, "vxlan4", true),
            link(4, "eth0.10", false),
        ];
        let links = host_links(&KernelHost { links, ..KernelHost::default() });
        let uplinks: Vec<u32> = links.iter().filter(|link| link.uplink).map(|link| link.index).collect();
        assert_eq!((links.len(), uplinks), (4, vec![2, 4]));
        assert_eq!(links[1].addresses, ["192.0.2.2/24".parse().unwrap()]);
    }
}
