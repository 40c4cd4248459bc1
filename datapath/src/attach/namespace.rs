//! What a pod's network namespace should have, as a value.

use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;

use super::device::{DeviceSpec, HOST_MAC, gateways};
use crate::family::IpFamily;
use crate::netlink::Batch;
use crate::netlink::objects::{MAIN_TABLE, OnlinkRoute};
use crate::plan::{Ipvlan, Neighbour, OnLink, Rule, default_prefix};

/// Preference of the rules, between the local table and the main one; as on the host.
const PREFERENCE: u32 = 1100;

/// Addresses, neighbours and routes inside. Put in place by ADD, looked for by CHECK.
#[derive(Debug, Default)]
pub(super) struct NamespaceConfig {
    /// By index of the interface.
    pub(super) addresses: Vec<(u32, IpNet)>,
    /// Permanent ones.
    pub(super) neighbours: Vec<Neighbour>,
    /// In the main table, and in that of a second interface.
    pub(super) routes: Vec<OnlinkRoute>,
    /// Of a second interface: what is from its addresses takes its table.
    pub(super) rules: Vec<Rule>,
}

impl NamespaceConfig {
    /// A pod whose only link is the pair: everything goes to the host, so the addresses connect nobody else.
    pub(super) fn veth(spec: &DeviceSpec, ifindex: u32) -> NamespaceConfig {
        let mut inside = NamespaceConfig::default();
        inside.addresses.extend(spec.addresses.iter().map(|address| (ifindex, IpNet::from(*address))));
        for gateway in gateways(&spec.addresses) {
            inside.by_host(gateway, ifindex, default_route(gateway), None);
        }
        inside
    }

    /// A pod with a slave: its subnet and its gateway are there, and some destinations are the host's all the same. These leave by the
    /// pair from the slave's address, since the pair has none.
    pub(super) fn ipvlan(ipvlan: &Ipvlan, slave: u32, pair: u32) -> NamespaceConfig {
        let mut inside = NamespaceConfig::default();
        for OnLink { address, gateway } in &ipvlan.on_link {
            inside.addresses.push((slave, *address));
            inside.routes.push(OnlinkRoute {
                destination: default_route(*gateway),
                gateway: *gateway,
                ifindex: slave,
                source: None,
                table: MAIN_TABLE,
                metric: 0,
            });
            let same_family = |destination: &&IpNet| destination.addr().is_ipv4() == address.addr().is_ipv4();
            for gateway in gateways(&[address.addr()]) {
                for destination in ipvlan.by_host.iter().filter(same_family) {
                    inside.by_host(gateway, pair, *destination, Some(address.addr()));
                }
            }
        }
        inside
    }

    /// `destination` goes to the host, by the pair's end with this index. Its gateway is a permanent neighbour.
    fn by_host(&mut self, gateway: IpAddr, ifindex: u32, destination: IpNet, source: Option<IpAddr>) {
        let neighbour = Neighbour { ifindex, address: gateway, mac: HOST_MAC };
        if !self.neighbours.contains(&neighbour) {
            self.neighbours.push(neighbour);
        }
        self.routes.push(OnlinkRoute { destination, gateway, ifindex, source, table: MAIN_TABLE, metric: 0 });
    }

    /// The families of its addresses.
    pub(super) fn families(&self) -> impl Iterator<Item = IpFamily> + use<> {
        let mut families: Vec<IpFamily> =
            self.addresses.iter().map(|(_, address)| IpFamily::of(address)).collect();
        families.dedup();
        families.into_iter()
    }

    /// Destinations of the main table and their gateways.
    pub(super) fn main(&self) -> Vec<(IpNet, IpAddr)> {
        let main = self.routes.iter().filter(|route| route.table == MAIN_TABLE);
        main.map(|route| (route.destination, route.gateway)).collect()
    }

    /// Whether it is a further interface's.
    pub(super) fn is_second(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether one of its links has this index.
    pub(super) fn has(&self, ifindex: u32) -> bool {
        self.routes.iter().any(|route| route.ifindex == ifindex)
    }

    /// The same where another interface has the default route of these families: see [`super::second`].
    pub(super) fn second(
        mut self,
        families: &[IpFamily],
        table: u32,
        destinations: &[IpNet],
    ) -> NamespaceConfig {
        for route in std::mem::take(&mut self.routes) {
            let family = IpFamily::of(&route.destination);
            if !families.contains(&family) {
                self.routes.push(route);
                continue;
            }
            self.routes.push(OnlinkRoute { table, ..route });
            if route.destination.prefix_len() == 0 {
                let subnets = destinations.iter().filter(|subnet| IpFamily::of(subnet) == family);
                let to = |subnet: &IpNet| OnlinkRoute { destination: *subnet, metric: table, ..route };
                self.routes.extend(subnets.map(to));
            }
        }
        for (_, address) in &self.addresses {
            let family = IpFamily::of(address);
            if families.contains(&family) {
                self.rules.push(Rule::from_prefix(PREFERENCE, address.addr().into(), table));
            }
        }
        self
    }

    /// Adds the requests that put it in place, and says which of them may find what they ask for there already: rules are added,
    /// all else is replaced.
    pub(super) fn put(&self, batch: &mut Batch) -> Range<usize> {
        for (index, address) in &self.addresses {
            batch.put_address(*index, *address);
            // An IPv6 address gets its own local route only when a worker of the kernel has its turn; until then the pod would drop
            // what is sent to it.
            if let IpAddr::V6(address) = address.addr() {
                batch.put_local_route(address, *index);
            }
        }
        for neighbour in &self.neighbours {
            batch.put_neighbour(neighbour);
        }
        for route in &self.routes {
            batch.put_onlink_route(route);
        }
        let first = batch.len();
        for rule in &self.rules {
            batch.add_rule(rule);
        }
        first..batch.len()
    }
}

/// Everything of the gateway's family.
fn default_route(gateway: IpAddr) -> IpNet {
    default_prefix(IpFamily::of(&gateway.into()))
}
