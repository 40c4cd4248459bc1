//! Addresses with an owner outside of the pods' subnets: routers, BGP peers, Service addresses, and the
//! API server. Claims of other nodes ([`super::node_claims`]) and of remote clusters
//! ([`super::remote`]) are compared with them.

use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_api::resources::{AddressBlock, parse_address};

use super::{Host, Intent};

/// Each address or block with its owner's name.
#[derive(Default)]
pub(super) struct Reserved {
    /// The gateways of this host's default routes.
    pub(super) routers: Vec<(IpAddr, String)>,
    /// BGP peers with an address.
    pub(super) peers: Vec<(IpAddr, String)>,
    /// The blocks of ServicePools.
    pub(super) blocks: Vec<(AddressBlock, String)>,
    pub(super) anycast: Vec<(IpAddr, String)>,
    /// The addresses of the API server. It can be a node.
    pub(super) servers: Vec<(IpAddr, String)>,
}

impl Reserved {
    pub(super) fn of(intent: &Intent, host: &Host) -> Reserved {
        let routers = host.kernel.gateways.iter().filter_map(|(_, hop)| hop.gateway);
        let mut reserved = Reserved {
            routers: routers.map(|gateway| (gateway, "a router of this host".to_owned())).collect(),
            ..Reserved::default()
        };
        for network in &intent.networks {
            let owner = format!("a BGP peer of Network {}", network.name());
            let peers = network.peers().iter().filter_map(|peer| parse_address(&peer.address).ok());
            reserved.peers.extend(peers.map(|peer| (peer, owner.clone())));
        }
        for pool in &intent.services.pools {
            let owner = format!("ServicePool {}", pool.name());
            let blocks = pool.spec.blocks().unwrap_or_default().into_iter();
            reserved.blocks.extend(blocks.map(|block| (block, owner.clone())));
        }
        for anycast in &intent.services.anycast {
            let owner = format!("AnycastAddress {}", anycast.name());
            let addresses = anycast.spec.addresses.iter().filter_map(|text| parse_address(text).ok());
            reserved.anycast.extend(addresses.map(|address| (address, owner.clone())));
        }
        let servers = intent.api_servers.iter();
        reserved.servers.extend(servers.map(|address| (*address, "the API server".to_owned())));
        reserved
    }

    /// All of them as prefixes.
    pub(super) fn into_prefixes(self) -> Vec<(IpNet, String)> {
        let Reserved { routers, peers, blocks, anycast, servers } = self;
        let addresses = [servers, routers, peers, anycast].into_iter().flatten();
        let addresses = addresses.map(|(address, owner)| (IpNet::from(address), owner));
        let blocks = blocks.into_iter().flat_map(|(block, owner)| {
            block.to_prefixes().into_iter().map(move |prefix| (prefix, owner.clone()))
        });
        addresses.chain(blocks).collect()
    }
}
