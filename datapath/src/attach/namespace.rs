//! The wanted configuration of a pod's network namespace, as a value.

use std::net::IpAddr;
use std::ops::Range;

use ipnet::IpNet;

use super::device::{DeviceSpec, HOST_MAC, gateways};
use crate::family::IpFamily;
use crate::netlink::Batch;
use crate::netlink::objects::{MAIN_TABLE, OnlinkRoute};
use crate::plan::{Ipvlan, Neighbour, OnLink, Rule, default_prefix};

/// Preference of the rules, between the local and the main table; the same as on the host.
const PREFERENCE: u32 = 1100;

/// Addresses, neighbour entries, routes and rules in the pod. ADD installs them, and CHECK looks
/// for them.
#[derive(Debug, Default)]
pub(super) struct NamespaceConfig {
    /// Addresses with the index of their interface.
    pub(super) addresses: Vec<(u32, IpNet)>,
    /// Permanent neighbour entries.
    pub(super) neighbours: Vec<Neighbour>,
    /// Routes in the main table, and in the table of a second interface.
    pub(super) routes: Vec<OnlinkRoute>,
    /// Rules of one of several interfaces: packets from its addresses use its table.
    pub(super) rules: Vec<Rule>,
}

impl NamespaceConfig {
    /// A pod that has only the veth pair: all packets go to the host, so the addresses have no
    /// connected prefix.
    pub(super) fn veth(spec: &DeviceSpec, ifindex: u32) -> NamespaceConfig {
        let mut inside = NamespaceConfig::default();
        inside.addresses.extend(spec.addresses.iter().map(|address| (ifindex, IpNet::from(*address))));
        for gateway in gateways(&spec.addresses) {
            inside.by_host(gateway, ifindex, default_route(gateway), None);
        }
        inside
    }

    /// A pod with a slave: its subnet and its gateway are on the slave's link, but the destinations
    /// `by_host` use the host. Packets to these leave by the pair with the slave's address, because
    /// the pair has no address.
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

    /// Adds a route for `destination` through the host, by the pod interface of the pair with this
    /// index. The gateway is a permanent neighbour entry.
    fn by_host(&mut self, gateway: IpAddr, ifindex: u32, destination: IpNet, source: Option<IpAddr>) {
        let neighbour = Neighbour { ifindex, address: gateway, mac: HOST_MAC };
        if !self.neighbours.contains(&neighbour) {
            self.neighbours.push(neighbour);
        }
        self.routes.push(OnlinkRoute { destination, gateway, ifindex, source, table: MAIN_TABLE, metric: 0 });
    }

    /// The IP families of the addresses.
    pub(super) fn families(&self) -> impl Iterator<Item = IpFamily> + use<> {
        let mut families: Vec<IpFamily> =
            self.addresses.iter().map(|(_, address)| IpFamily::of(address)).collect();
        families.dedup();
        families.into_iter()
    }

    /// Destinations and gateways of the routes in the main table.
    pub(super) fn main(&self) -> Vec<(IpNet, IpAddr)> {
        let main = self.routes.iter().filter(|route| route.table == MAIN_TABLE);
        main.map(|route| (route.destination, route.gateway)).collect()
    }

    /// Whether this configuration has rules, which the kernel does not delete with the interface.
    pub(super) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Whether a route uses the link with this index.
    pub(super) fn has(&self, ifindex: u32) -> bool {
        self.routes.iter().any(|route| route.ifindex == ifindex)
    }

    /// The configuration if another interface has the default routes of these families: see
    /// [`super::second`].
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

    /// The configuration of the first of several interfaces, for these families: its routes are in its
    /// own table too, for packets from its addresses.
    pub(super) fn first(mut self, families: &[IpFamily], table: u32) -> NamespaceConfig {
        let own: Vec<OnlinkRoute> = self
            .routes
            .iter()
            .filter(|route| route.table == MAIN_TABLE && route.metric == 0)
            .filter(|route| families.contains(&IpFamily::of(&route.destination)))
            .map(|route| OnlinkRoute { table, ..*route })
            .collect();
        self.routes.extend(own);
        for (_, address) in &self.addresses {
            if families.contains(&IpFamily::of(address)) {
                self.rules.push(Rule::from_prefix(PREFERENCE, address.addr().into(), table));
            }
        }
        self
    }

    /// Adds the requests that install the configuration. Returns the range of the rule requests,
    /// which fail if the rule exists; all other requests replace.
    pub(super) fn put(&self, batch: &mut Batch) -> Range<usize> {
        for (index, address) in &self.addresses {
            batch.put_address(*index, *address);
            // The kernel adds the local route of an IPv6 address in a worker, later. Until then the
            // pod would drop received packets. So this code adds the route itself.
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

/// The default route of the gateway's family.
fn default_route(gateway: IpAddr) -> IpNet {
    default_prefix(IpFamily::of(&gateway.into()))
}
