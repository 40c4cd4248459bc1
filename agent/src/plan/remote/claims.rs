//! The owners of prefixes, addresses and MACs: this cluster first, then the remote clusters, the
//! oldest object first. Each has one owner.
//!
//! A compromised node of this cluster claims any address in its NodeInfo. Such a claim takes this
//! address from remote clusters, and never a whole object with other addresses:
//!
//! - An address of another node in the range of a RemoteSubnet counts like an entry of its
//!   `excludeIPs`. The remote cluster could exclude it too, so this gives it no new address.
//! - An entry of a node's `localIPs` can be the address of a RemoteVtep. Packets for pods of the
//!   remote node go to this very address. Packets of overlay pods for the address itself go to the
//!   node that lists it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use trunkline_api::resources::{NetworkType, ParsedRange, Subnet, Vtep};
use trunkline_api::validate::overlaps;
use trunkline_datapath::mac::show_mac;

use super::{RemoteFault, RemoteLimits};
use crate::plan::node_claims::AcceptedNodes;
use crate::plan::reserved::Reserved;
use crate::plan::{Host, Intent};

/// The addresses of a subnet that pods can have.
#[derive(Clone)]
pub(in crate::plan) struct PodRange {
    pub(super) range: ParsedRange,
    excluded: BTreeSet<IpAddr>,
}

impl PodRange {
    fn of(range: ParsedRange) -> PodRange {
        let excluded = range.excluded.iter().chain(&range.gateway).copied().collect();
        PodRange { range, excluded }
    }

    /// The range of a remote subnet. Its addresses must be in its prefix: an address outside of the
    /// prefix would change routes to other prefixes.
    pub(super) fn of_remote(range: ParsedRange) -> Result<PodRange, RemoteFault> {
        let ParsedRange { cidr: prefix, first, last, gateway, excluded, reserved: _ } = &range;
        // By default the range begins after the network address.
        if prefix.prefix_len() == prefix.max_prefix_len() && !prefix.contains(first) {
            return Err(RemoteFault::TooSmall { prefix: *prefix });
        }
        for address in [first, last].into_iter().chain(gateway).chain(excluded) {
            if !prefix.contains(address) {
                return Err(RemoteFault::Outside { address: *address, prefix: *prefix });
            }
        }
        if first > last {
            return Err(RemoteFault::Reversed { first: *first, last: *last });
        }
        Ok(PodRange::of(range))
    }

    /// The range of a subnet of this cluster. In files, `start` and `end` of a manifest limit only
    /// the node's own allocation.
    pub(in crate::plan) fn of_this_cluster(subnet: &Subnet, intent: &Intent) -> Option<PodRange> {
        let mut range = subnet.spec.range.parse().ok()?;
        if !intent.in_cluster {
            (range.first, range.last) = (range.cidr.network(), range.cidr.broadcast());
        }
        Some(PodRange::of(range))
    }

    pub(in crate::plan) fn holds(&self, address: IpAddr) -> bool {
        let (first, last) = (self.range.first, self.range.last);
        address.is_ipv4() == first.is_ipv4()
            && (first..=last).contains(&address)
            && !self.excluded.contains(&address)
    }

    /// Removes an address.
    fn exclude(&mut self, address: IpAddr) {
        if self.excluded.insert(address) {
            self.range.excluded.push(address);
        }
    }

    fn is_disjoint(&self, other: &PodRange) -> bool {
        self.range.last < other.range.first || other.range.last < self.range.first
    }
}

/// A claimed prefix of pods.
struct ClaimedSubnet {
    pods: PodRange,
    overlay: bool,
    owner: String,
}

impl ClaimedSubnet {
    fn prefix(&self) -> IpNet {
        self.pods.range.cidr
    }

    /// Whether both can exist. As in hybridnet, Subnets of several clusters can divide one prefix,
    /// for example that of a VLAN in both clusters.
    fn allows(&self, pods: &PodRange, overlay: bool) -> bool {
        let (own, other) = (self.prefix(), pods.range.cidr);
        !overlaps(&own, &other) || (own == other && self.overlay == overlay && self.pods.is_disjoint(pods))
    }
}

/// The prefixes, addresses and MACs with an owner.
pub(super) struct Claims {
    limits: RemoteLimits,
    subnets: Vec<ClaimedSubnet>,
    /// `serviceCIDRs`.
    services: Vec<(IpNet, String)>,
    /// Addresses of this cluster outside of the pods' subnets. The prefix of a remote overlay has none of
    /// them: packets for its whole prefix go through tunnels, those of this host too.
    reserved: Vec<(IpNet, String)>,
    /// Addresses of this host.
    own: BTreeSet<IpAddr>,
    /// The prefixes of this host's links.
    connected: BTreeSet<IpNet>,
    /// VTEPs, the addresses of this host, and local addresses of RemoteVteps.
    addresses: HashMap<IpAddr, String>,
    /// Entries of `localIPs` of the nodes of this cluster.
    listed: HashMap<IpAddr, String>,
    macs: HashMap<[u8; 6], String>,
}

impl Claims {
    pub(super) fn of_this_cluster(intent: &Intent, host: &Host, nodes: &AcceptedNodes) -> Claims {
        let mut claims = Claims {
            limits: intent.remote_limits.clone(),
            subnets: Vec::new(),
            services: intent
                .service_cidrs
                .iter()
                .map(|prefix| (*prefix, "the Services".to_owned()))
                .collect(),
            reserved: Reserved::of(intent, host).into_prefixes(),
            own: BTreeSet::new(),
            connected: BTreeSet::new(),
            addresses: HashMap::new(),
            listed: HashMap::new(),
            macs: HashMap::new(),
        };
        let overlay = intent.networks.iter().find(|one| one.network_type() == NetworkType::Overlay);
        for subnet in &intent.subnets {
            if let Some(pods) = PodRange::of_this_cluster(subnet, intent) {
                claims.subnets.push(ClaimedSubnet {
                    pods,
                    overlay: overlay.is_some_and(|overlay| overlay.name() == subnet.spec.network),
                    owner: format!("Subnet {}", subnet.name()),
                });
            }
        }
        claims.listed.extend(nodes.shared().map(|address| (address, "several nodes".to_owned())));
        for (name, vtep) in nodes.iter() {
            let owner = format!("node {name}");
            claims.listed.extend(vtep.local.iter().map(|address| (*address, owner.clone())));
            claims.addresses.insert(vtep.ip, owner.clone());
            claims.macs.insert(vtep.mac, owner);
        }
        let own = format!("node {}", intent.node.name);
        let vtep = intent.own_info().and_then(|node| node.vtep().ok().flatten());
        claims.own.extend(vtep.iter().flat_map(|vtep| &vtep.local));
        claims.macs.extend(vtep.map(|vtep| (vtep.mac, own.clone())));
        for link in host.kernel.links.iter().filter(|link| !link.own) {
            claims.connected.extend(link.addresses.iter().map(IpNet::trunc));
            for address in link.addresses.iter().map(IpNet::addr) {
                claims.own.insert(address);
                claims.macs.insert(Vtep::default_mac(address), own.clone());
            }
        }
        claims.addresses.extend(claims.own.iter().map(|address| (*address, own.clone())));
        claims
    }

    /// Claims a prefix for remote pods. Removes the addresses of other nodes from the range, and
    /// returns one of them with the number of all.
    pub(super) fn claim_subnet(
        &mut self,
        name: &str,
        overlay: bool,
        pods: &mut PodRange,
    ) -> Result<Option<RemoteFault>, RemoteFault> {
        let prefix = pods.range.cidr;
        if !is_unicast(&prefix) {
            return Err(RemoteFault::NoUnicast { prefix });
        }
        if !self.limits.subnets.iter().any(|limit| limit.contains(&prefix)) {
            return Err(RemoteFault::Limit { prefix, field: "subnetCIDRs" });
        }
        let reserved = self.reserved.iter().filter(|_| overlay);
        if let Some((other, owner)) =
            self.services.iter().chain(reserved).find(|(other, _)| overlaps(other, &prefix))
        {
            return Err(RemoteFault::Overlap { prefix, other: *other, owner: owner.clone() });
        }
        if let Some(other) = self.subnets.iter().find(|other| !other.allows(pods, overlay)) {
            let (other, owner) = (other.prefix(), other.owner.clone());
            return Err(RemoteFault::Overlap { prefix, other, owner });
        }
        // The lowest address: the text is the same in each plan.
        if let Some(address) = self.own.iter().find(|address| pods.holds(**address)) {
            let owner = self.addresses.get(address).cloned().unwrap_or_default();
            return Err(RemoteFault::NodeInside { address: *address, owner });
        }
        let taken = self.addresses.iter().chain(&self.listed).filter(|(address, _)| pods.holds(**address));
        let taken: BTreeMap<IpAddr, String> =
            taken.map(|(address, owner)| (*address, owner.clone())).collect();
        for address in taken.keys() {
            pods.exclude(*address);
        }
        let number = taken.len();
        let excluded = taken.into_iter().next();
        let excluded = excluded.map(|(address, owner)| RemoteFault::Excluded { number, address, owner });
        self.subnets.push(ClaimedSubnet {
            pods: pods.clone(),
            overlay,
            owner: format!("RemoteSubnet {name}"),
        });
        Ok(excluded)
    }

    /// Claims the address and the MAC of a remote VTEP. An error has the field's name.
    pub(super) fn claim_vtep(
        &mut self,
        ip: IpAddr,
        mac: [u8; 6],
        owner: impl Fn() -> String,
    ) -> Result<(), (&'static str, RemoteFault)> {
        self.check_address(ip).map_err(|fault| ("ip", fault))?;
        // The first octet's lowest bit marks a group (IEEE 802).
        if mac[0] & 1 == 1 || mac == [0; 6] {
            return Err(("mac", RemoteFault::NoMac { mac: show_mac(&mac) }));
        }
        if let Some(other) = self.macs.get(&mac) {
            return Err(("mac", RemoteFault::Mac { mac: show_mac(&mac), owner: other.clone() }));
        }
        self.addresses.insert(ip, owner());
        self.macs.insert(mac, owner());
        Ok(())
    }

    /// Claims an address of a remote node.
    pub(super) fn claim_address(
        &mut self,
        address: IpAddr,
        owner: impl Fn() -> String,
    ) -> Result<(), RemoteFault> {
        self.check_address(address)?;
        if let Some(owner) = self.listed.get(&address).or_else(|| self.reserved_for(address)) {
            return Err(RemoteFault::Taken { address, owner: owner.clone() });
        }
        self.addresses.insert(address, owner());
        Ok(())
    }

    /// Whether overlay pods reach the address outside of the tunnels, or through another node's: a node
    /// of this cluster lists it in `localIPs`, or it is reserved. The API server can be on a remote node.
    pub(super) fn is_elsewhere(&self, address: IpAddr) -> bool {
        self.listed.contains_key(&address) || self.reserved_for(address).is_some()
    }

    /// The reserved prefixes that overlap a range: no remote pod can have their addresses. Only a
    /// RemoteSubnet outside of the overlay has any.
    pub(super) fn reserved_in(&self, ranges: &[PodRange]) -> Vec<IpNet> {
        let all = self.services.iter().chain(&self.reserved).map(|(prefix, _)| *prefix);
        all.filter(|prefix| ranges.iter().any(|pods| overlaps(&pods.range.cidr, prefix))).collect()
    }

    fn reserved_for(&self, address: IpAddr) -> Option<&String> {
        let mut owners = self.services.iter().chain(&self.reserved);
        owners.find(|(prefix, _)| prefix.contains(&address)).map(|(_, owner)| owner)
    }

    fn check_address(&self, address: IpAddr) -> Result<(), RemoteFault> {
        let prefix = IpNet::from(address);
        if !is_unicast(&prefix) || self.connected.iter().any(|it| is_broadcast(it, address)) {
            return Err(RemoteFault::NoUnicast { prefix });
        }
        if !self.limits.vteps.iter().any(|limit| limit.contains(&address)) {
            return Err(RemoteFault::Limit { prefix, field: "vtepCIDRs" });
        }
        if let Some(other) = self.addresses.get(&address) {
            return Err(RemoteFault::Taken { address, owner: other.clone() });
        }
        if let Some(subnet) = self.subnets.iter().find(|subnet| subnet.pods.holds(address)) {
            let (prefix, owner) = (subnet.prefix(), subnet.owner.clone());
            return Err(RemoteFault::InSubnet { address, prefix, owner });
        }
        Ok(())
    }
}

/// Whether the address is the broadcast address of a link's prefix.
pub(in crate::plan) fn is_broadcast(prefix: &IpNet, address: IpAddr) -> bool {
    matches!(prefix, IpNet::V4(prefix) if prefix.prefix_len() < 31 && IpAddr::V4(prefix.broadcast()) == address)
}

/// Whether hosts in the fabric can have all addresses of the prefix. Loopback, link-local and
/// multicast addresses have another meaning on each link, and a default route is no subnet.
pub(in crate::plan) fn is_unicast(prefix: &IpNet) -> bool {
    let special: &[&str] = match prefix {
        IpNet::V4(_) => &["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"],
        IpNet::V6(_) => &["::/8", "fe80::/10", "ff00::/8"],
    };
    let special = special.iter().filter_map(|text| text.parse::<IpNet>().ok());
    !special.into_iter().any(|special| overlaps(&special, prefix))
}
