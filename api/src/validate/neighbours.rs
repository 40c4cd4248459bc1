//! A prefix of dynamic neighbours overlaps no Subnet. Otherwise a pod opens a BGP session from its
//! own address, without any privilege, and the node uses the pod's routes.

use ipnet::IpNet;

use super::subnet::overlaps;
use crate::fault::Fault;
use crate::resources::{Endpoint, Network, Subnet};

/// A peer of a Network accepts dynamic neighbours from a prefix that overlaps a Subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourOverlap {
    /// The Network's name.
    pub network: String,
    /// The peer's index in `spec.config.bgpPeers`.
    pub index: usize,
    /// The peer's prefix.
    pub prefix: IpNet,
    /// The Subnet's name.
    pub subnet: String,
    /// The Subnet's prefix.
    pub cidr: IpNet,
}

impl NeighbourOverlap {
    /// The overlap as a fault of the Network.
    pub fn network_fault(&self) -> Fault {
        let NeighbourOverlap { network, index, prefix, subnet, cidr } = self;
        Fault {
            kind: "Network",
            name: network.clone(),
            field: format!("spec.config.bgpPeers[{index}].prefix"),
            message: format!(
                "{prefix} overlaps {cidr} of Subnet {subnet}, and a pod of that Subnet would be a BGP peer: \
                 write a prefix that holds routers only"
            ),
        }
    }

    /// The overlap as a fault of the Subnet.
    pub fn subnet_fault(&self) -> Fault {
        let NeighbourOverlap { network, index, prefix, subnet, cidr } = self;
        Fault {
            kind: "Subnet",
            name: subnet.clone(),
            field: "spec.range.cidr".to_owned(),
            message: format!(
                "{cidr} overlaps {prefix}, from which Network {network} accepts BGP peers \
                 (spec.config.bgpPeers[{index}].prefix), and a pod would be a peer: write prefixes that do not overlap"
            ),
        }
    }
}

/// The prefixes of dynamic neighbours that overlap a Subnet of any Network, each with the first
/// such Subnet.
pub fn neighbour_overlaps(networks: &[Network], subnets: &[Subnet]) -> Vec<NeighbourOverlap> {
    let placed: Vec<(&Subnet, IpNet)> =
        subnets.iter().filter_map(|subnet| Some((subnet, subnet.spec.range.cidr().ok()?))).collect();
    let mut found = Vec::new();
    for network in networks {
        for (index, peer) in network.peers().iter().enumerate() {
            let Ok(Endpoint::Prefix(prefix)) = peer.endpoint() else { continue };
            if let Some((subnet, cidr)) = placed.iter().find(|(_, cidr)| overlaps(&prefix, cidr)) {
                found.push(NeighbourOverlap {
                    network: network.name().to_owned(),
                    index,
                    prefix,
                    subnet: subnet.name().to_owned(),
                    cidr: *cidr,
                });
            }
        }
    }
    found
}
