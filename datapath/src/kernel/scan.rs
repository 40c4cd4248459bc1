//! Lists of the kernel's objects.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rustc_hash::FxHashMap;

use super::topology::{LinkState, Topology};
use crate::family::IpFamily;
use crate::netlink::objects::{self, AddressInfo, LinkInfo, NeighbourEntry, NeighbourInfo, PROTOCOL};
use crate::netlink::{Batch, Connection, NetlinkError};
use crate::plan::{Hop, LOOPBACK, MAIN_TABLE, Neighbour, Proxy, RouteKey, RouteTarget, Rule};

/// Trunkline's routes with target and metric (0: the family's default).
pub(super) type Routes = FxHashMap<RouteKey, (Option<RouteTarget>, u32)>;

/// Neighbour entries.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// Permanent entries, also of other programs.
    pub(super) permanent: HashSet<Neighbour>,
    /// Trunkline's permanent entries.
    pub(super) own: HashSet<Neighbour>,
    /// Trunkline's proxy entries.
    pub(super) proxies: HashSet<Proxy>,
}

impl Neighbours {
    fn take(&mut self, found: NeighbourInfo) {
        let own = found.protocol == PROTOCOL;
        match found.entry {
            NeighbourEntry::Permanent(neighbour) => {
                self.permanent.insert(neighbour);
                self.own.extend(own.then_some(neighbour));
            }
            NeighbourEntry::Proxy(proxy) => self.proxies.extend(own.then_some(proxy)),
        }
    }
}

/// All objects that the owner compares.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) topology: Topology,
    /// Trunkline's routes in all tables.
    pub(super) routes: Routes,
    /// Own rules.
    pub(super) rules: BTreeSet<Rule>,
    /// Neighbours.
    pub(super) neighbours: Neighbours,
    /// Tables that rules, routes or VRFs of other programs use.
    pub(super) used_tables: BTreeSet<u32>,
    /// Next hops of the default routes in the main table, with their links; only if foreign routes
    /// were listed.
    pub(super) gateways: BTreeSet<(IpFamily, Hop)>,
}

/// Whether a plan of this or an earlier run added the address.
pub(super) fn is_own(address: &AddressInfo, link: &LinkInfo) -> bool {
    address.protocol == PROTOCOL
        && link.name == LOOPBACK
        && address.prefix.prefix_len() == address.prefix.max_prefix_len()
}

/// The routers of a default route in the main table, with their links.
pub(super) fn gateways(route: &objects::RouteInfo) -> impl Iterator<Item = (IpFamily, Hop)> {
    let is_default = route.key.table == MAIN_TABLE && route.key.prefix.prefix_len() == 0;
    let hops = route.target.as_ref().filter(|_| is_default).map_or(&[][..], RouteTarget::hops);
    let of_link = hops.iter().filter(|hop| hop.gateway.is_some() && hop.ifindex.is_some());
    of_link.map(|hop| (IpFamily::of(&route.key.prefix), Hop { source: None, ..*hop }))
}

/// Lists all objects. With `foreign`, also the tables of other programs' routes.
pub(super) fn scan(connection: &mut Connection, foreign: bool) -> Result<Scan, NetlinkError> {
    let mut scan = Scan::default();
    let links = connection.list(Batch::dump_links, objects::read_link)?;
    scan.used_tables.extend(links.iter().filter_map(|link: &LinkInfo| link.vrf_table));
    scan.topology.links =
        links.into_iter().map(|info| (info.index, LinkState { info, ..LinkState::default() })).collect();
    let planned: Vec<u32> = scan
        .topology
        .links
        .values()
        .filter(|link| scan.topology.is_planned(&link.info))
        .map(|link| link.info.index)
        .collect();
    scan.topology.planned.extend(planned);
    for family in IpFamily::ALL {
        let addresses = connection.list(|batch| batch.dump_addresses(family), objects::read_address)?;
        for address in addresses {
            if let Some(link) = scan.topology.links.get_mut(&address.ifindex) {
                if is_own(&address, &link.info) {
                    link.own.insert(address.prefix.addr());
                } else {
                    link.addresses.push(address.prefix);
                }
            }
        }
        for rule in connection.list(|batch| batch.dump_rules(family), objects::read_rule)? {
            if rule.protocol == PROTOCOL {
                scan.rules.insert(rule.rule);
            } else {
                scan.used_tables.insert(rule.rule.table);
            }
        }
        for ask in [Batch::dump_neighbours as fn(&mut Batch, IpFamily), Batch::dump_proxies] {
            for found in connection.list(|batch| ask(batch, family), objects::read_neighbour)? {
                scan.neighbours.take(found);
            }
        }
        routes(connection, family, foreign, &mut scan)?;
    }
    Ok(scan)
}

fn routes(
    connection: &mut Connection,
    family: IpFamily,
    foreign: bool,
    scan: &mut Scan,
) -> Result<(), NetlinkError> {
    // This code does not use `list`: only the number of foreign routes is needed, and a full table
    // would fill the memory.
    let found = std::cell::RefCell::new((Routes::default(), BTreeMap::<u32, ()>::new(), BTreeSet::new()));
    // Routes with equal targets share one list of next hops.
    let mut targets = HashSet::new();
    let mut batch = Batch::new();
    batch.dump_routes(family, !foreign);
    connection.dump(
        &mut batch,
        || {
            let mut found = found.borrow_mut();
            found.0.clear();
            found.1.clear();
            found.2.clear();
        },
        |_, body| {
            let Some(route) = objects::read_route(body) else { return };
            let mut found = found.borrow_mut();
            if route.protocol == PROTOCOL {
                let target = route.target.map(|target| shared(target, &mut targets));
                found.0.insert(route.key, (target, route.metric));
            } else {
                found.2.extend(gateways(&route));
                found.1.insert(route.key.table, ());
            }
        },
    )?;
    let (own, others, gateways) = found.into_inner();
    scan.routes.extend(own);
    scan.gateways.extend(gateways);
    scan.used_tables.extend(others.into_keys());
    Ok(())
}

fn shared(target: RouteTarget, known: &mut HashSet<RouteTarget>) -> RouteTarget {
    match known.get(&target) {
        Some(known) => known.clone(),
        None => {
            known.insert(target.clone());
            target
        }
    }
}
