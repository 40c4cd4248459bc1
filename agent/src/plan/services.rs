//! Service addresses: what the plan knows about them. Services and EndpointSlices are not part of
//! the plan. The services task ([`crate::services`]) decides which addresses this node advertises,
//! and sends their prefixes to the reconcile task.
//!
//! **Attributes are export policy.** A prefix has the tags of its ServiceAdvertisements, and each
//! peer's export policy has a rule for each ServiceAdvertisement that names the peer. So a new
//! Service changes one origination and no policy. A change of a policy exports all prefixes to the
//! peer again.
//!
//! | rule of a peer | matches | effect |
//! |---|---|---|
//! | `ServiceAdvertisement NAME`, in reverse order of names | the tag of NAME | sets the attributes |
//! | `ServiceAdvertisement NAME, AS_PATH` | the tag of NAME, and no earlier one that prepends | prepends |
//! | `ServiceAdvertisements for other peers` | any tag in use, and none of this peer's | rejects |
//! | the operator's rules | | have the last word |
//!
//! Communities of several advertisements are joined. LOCAL_PREF and the number of prepended AS
//! numbers are those of the first advertisement by name that has them.
//!
//! **Tags** ([`ServiceTags`]) are numbers of one process, and a number never has a second name. A
//! rule exists once a prefix with its tag exists. So a node without service addresses keeps its
//! policies, and a route reflector its fast export. The last rule matches the tags of deleted
//! advertisements too: until the services task has changed a prefix, no peer receives it without
//! the attributes that it should have.
//!
//! **No loops.** A service address is on no interface. A packet for a port without a Service, or
//! for an unused address of an aggregate, is not translated. By the default route the node would
//! send it back to the fabric. So each block of a pool is a blackhole for packets from the fabric
//! ([`DROP_TABLE`]), like the Subnets. It is no Subnet for `plan::unassigned`, so it does not
//! count as a missing pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use trunkline_api::resources::{
    AddressKind, NodeAction, PoolMode, ServiceAdvertisement, ServiceAdvertisementSpec, ServicePool,
    ServicePoolSpec, ValueError, Weights, parse_address,
};
use trunkline_bgp::policy::{Actions, Conditions, Edit, Members, PolicyResult, Rule};
use trunkline_bgp::types::{InterfaceName, Tag};
use trunkline_datapath::plan::{DROP_TABLE, Hop, Proxy, RETURN_TABLE, RouteKey, RouteTarget};

use super::{Host, Intent, Mode, Plan, SubnetPlan, policy};
use crate::services::{PlannedAdvertisement, PlannedPool, ServicesPlan};

/// The tags of ServiceAdvertisements in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceTags {
    numbers: BTreeMap<Arc<str>, Tag>,
    /// Tags of prefixes that this node originates or has originated.
    used: BTreeSet<Tag>,
}

impl ServiceTags {
    /// Gives each of these ServiceAdvertisements a tag, if it has none yet. The number of a deleted
    /// one stays its own. After 65,535 names there is no number left.
    pub fn name<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            let next = u16::try_from(self.numbers.len() + 1).ok().map(Tag);
            if let Some(next) = next.filter(|_| !self.numbers.contains_key(name)) {
                self.numbers.insert(Arc::from(name), next);
            }
        }
    }

    /// Records that prefixes have these tags. Returns whether one of them is new.
    pub fn use_tags<'a>(&mut self, tags: impl IntoIterator<Item = &'a Tag>) -> bool {
        let before = self.used.len();
        self.used.extend(tags);
        self.used.len() > before
    }
}

/// A peer in a ServiceAdvertisement, as a Network's `bgpPeers` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PeerName {
    /// A configured address, with the interface of a link-local one.
    Address(IpAddr, Option<InterfaceName>),
    /// The interface of an unnumbered peer.
    Interface(InterfaceName),
    /// A prefix of dynamic neighbours.
    Prefix(IpNet),
}

impl PeerName {
    pub(super) fn parse(text: &str) -> Option<PeerName> {
        if text.contains('/') {
            return text.parse::<IpNet>().ok().map(|prefix| PeerName::Prefix(prefix.trunc()));
        }
        match text.split_once('%') {
            Some((address, interface)) => {
                Some(PeerName::Address(parse_address(address).ok()?, Some(interface.parse().ok()?)))
            }
            None => match parse_address(text) {
                Ok(address) => Some(PeerName::Address(address, None)),
                Err(_) => text.parse().ok().map(PeerName::Interface),
            },
        }
    }
}

/// The attributes that a ServiceAdvertisement sets, and its peers.
struct ExportOf {
    name: Arc<str>,
    tag: Tag,
    /// Empty: all.
    peers: Vec<PeerName>,
    set: Actions,
}

/// The ServiceAdvertisements with rules in the peers' policies, by name.
#[derive(Default)]
pub(super) struct Exports {
    advertisements: Vec<ExportOf>,
    used: BTreeSet<Tag>,
}

impl Exports {
    /// The rules before those of the operator, for a peer with this name.
    pub(super) fn rules(&self, is_named: impl Fn(&PeerName) -> bool) -> Vec<Rule> {
        let mine: Vec<&ExportOf> = self
            .advertisements
            .iter()
            .filter(|export| export.peers.is_empty() || export.peers.iter().any(&is_named))
            .collect();
        let mut rules = Vec::new();
        // The last rule that sets LOCAL_PREF wins.
        for (index, export) in mine.iter().enumerate().rev() {
            let name = format!("ServiceAdvertisement {}", export.name);
            let earlier = || mine[..index].iter().filter(|earlier| earlier.set.prepend > 0);
            let mut set = export.set.clone();
            // Each rule that prepends makes AS_PATH longer.
            if set.prepend > 0 && earlier().next().is_some() {
                let none_of = earlier().map(|earlier| earlier.tag).collect();
                let tags = Members { any_of: vec![export.tag], none_of, ..Members::default() };
                let prepend = std::mem::take(&mut set.prepend);
                rules.push(rule(
                    format!("{name}, AS_PATH"),
                    tags,
                    Actions { prepend, ..Actions::default() },
                    None,
                ));
            }
            if set != Actions::default() {
                let tags = Members { any_of: vec![export.tag], ..Members::default() };
                rules.push(rule(name, tags, set, None));
            }
        }
        let none_of: Vec<Tag> = mine.iter().map(|export| export.tag).collect();
        let any_of: Vec<Tag> = self.used.iter().filter(|tag| !none_of.contains(tag)).copied().collect();
        if !any_of.is_empty() {
            let tags = Members { any_of, none_of, ..Members::default() };
            let name = "ServiceAdvertisements for other peers".to_owned();
            rules.push(rule(name, tags, Actions::default(), Some(PolicyResult::Reject)));
        }
        rules
    }
}

fn rule(name: String, tags: Members<Tag>, set: Actions, verdict: Option<PolicyResult>) -> Rule {
    let when = Conditions { tags, originated: Some(true), ..Conditions::default() };
    Rule { name: Some(name), when, set, verdict }
}

/// The ServiceAdvertisements of which a prefix exists, for the peers' policies.
pub(super) fn exports(intent: &Intent) -> Exports {
    let tags = &intent.service_tags;
    let export = |advertisement: &ServiceAdvertisement| {
        let (name, tag) = tags.numbers.get_key_value(advertisement.name())?;
        let spec = &advertisement.spec;
        Some(ExportOf {
            name: Arc::clone(name),
            tag: *tags.used.get(tag)?,
            // A name that no peer can have excludes all peers, and is not left out.
            peers: spec.peers.iter().filter_map(|text| PeerName::parse(text)).collect(),
            set: actions(spec).ok()?,
        })
        .filter(|export| export.peers.len() == spec.peers.len())
    };
    let mut advertisements: Vec<ExportOf> =
        intent.services.advertisements.iter().filter_map(export).collect();
    advertisements.sort_by(|a, b| a.name.cmp(&b.name));
    Exports { advertisements, used: tags.used.clone() }
}

fn actions(spec: &ServiceAdvertisementSpec) -> Result<Actions, ValueError> {
    Ok(Actions {
        local_pref: spec.local_preference,
        med: None,
        prepend: spec.prepend,
        communities: Edit::add(policy::communities(&spec.communities)?),
        large_communities: Edit::add(policy::large_communities(&spec.large_communities)?),
        extended_communities: Edit::add(policy::extended_communities(&spec.extended_communities)?),
    })
}

/// Adds the services' part to the plan. The BGP network must already be planned.
pub(super) fn plan(intent: &Intent, host: &Host, plan: &mut Plan) {
    let objects = &intent.services;
    let exports = exports(intent);
    plan.service_tags = exports.advertisements.iter().map(|export| export.tag).collect();
    let advertisement = |written: &ServiceAdvertisement| {
        let (name, tag) = intent.service_tags.numbers.get_key_value(written.name())?;
        Some((Arc::clone(name), advertisement(&written.spec, *tag)?))
    };
    plan.services = ServicesPlan {
        complete: objects.complete,
        bgp: plan.bgp.is_some(),
        pools: objects.pools.iter().filter_map(|written| pool(written, plan)).collect(),
        advertisements: objects.advertisements.iter().filter_map(advertisement).collect(),
        default_advertisement: objects.advertisements.is_empty() && !objects.faulty_advertisements,
    };
    plan_l2(intent, host, plan);
    // Without BGP no router sends packets for service addresses to this node.
    if !plan.services.bgp {
        return;
    }
    let blocks = plan.services.pools.iter().filter(|pool| pool.bgp).flat_map(|pool| &pool.blocks);
    let mut drops: BTreeSet<IpNet> = blocks.flat_map(|block| block.to_prefixes()).collect();
    for advertisement in plan.services.advertisements.values() {
        if advertisement.kinds.contains(&AddressKind::External) {
            drops.extend(&advertisement.external_cidrs);
        }
        if advertisement.kinds.contains(&AddressKind::Cluster) {
            drops.extend(&intent.service_cidrs);
        }
    }
    for prefix in drops {
        plan.kernel.routes.entry(RouteKey { table: DROP_TABLE, prefix }).or_insert(RouteTarget::Blackhole);
    }
}

/// A pool with all its blocks. Validation prevents faults in them.
fn pool(pool: &ServicePool, plan: &Plan) -> Option<PlannedPool> {
    let links = l2_links(&pool.spec, plan);
    Some(PlannedPool {
        links: links.into_iter().map(|(prefix, _)| prefix).collect(),
        name: Arc::from(pool.name()),
        blocks: pool.spec.blocks().ok()?,
        bgp: pool.spec.mode == PoolMode::BGP,
    })
}

/// The Subnets of an L2 pool's Network with an existing device on this node, each with the ifindex
/// of its device. Empty for a pool of mode BGP.
fn l2_links(spec: &ServicePoolSpec, plan: &Plan) -> Vec<(IpNet, u32)> {
    let name = spec.l2.as_ref().filter(|_| spec.mode == PoolMode::L2).map(|l2| l2.network.as_str());
    let network = name.and_then(|name| plan.networks.get(name));
    let network = network.filter(|network| network.mode == Mode::Vlan && network.refused.is_none());
    let subnets = network.into_iter().flat_map(|network| network.subnets.values());
    // A device without a carrier cannot answer, and another node can.
    let device =
        |subnet: &SubnetPlan| subnet.device.as_ref().filter(|device| device.fault.is_none())?.ifindex;
    subnets.filter_map(|subnet| Some((subnet.prefix, device(subnet)?))).collect()
}

/// Adds the proxy entries of the addresses for which this node answers, and the way back to the
/// clients in the same VLAN: the device has no address, so [`super::translated`] has no connected
/// prefix for its replies.
fn plan_l2(intent: &Intent, host: &Host, plan: &mut Plan) {
    let of_l2 = |spec: &&ServicePoolSpec| spec.mode == PoolMode::L2;
    for spec in intent.services.pools.iter().map(|pool| &pool.spec).filter(of_l2) {
        let Ok(blocks) = spec.blocks() else { continue };
        for (prefix, ifindex) in l2_links(spec, plan) {
            let has = |address: &&IpAddr| {
                prefix.contains(*address) && blocks.iter().any(|block| block.contains(**address))
            };
            let held = host.held.iter().filter(has).map(|address| Proxy { ifindex, address: *address });
            plan.kernel.proxies.extend(held);
            let table = RETURN_TABLE + ifindex;
            if plan.kernel.rules.iter().any(|rule| rule.table == table) {
                let key = RouteKey { table, prefix };
                plan.kernel.routes.insert(key, RouteTarget::via(vec![Hop::link(ifindex)]));
            }
        }
    }
}

/// The part of a ServiceAdvertisement for the services task. Validation prevents faults in it.
fn advertisement(spec: &ServiceAdvertisementSpec, tag: Tag) -> Option<PlannedAdvertisement> {
    Some(PlannedAdvertisement {
        tag,
        services: spec.service_selector.clone(),
        namespaces: spec.namespace_selector.clone(),
        nodes: spec.node_selector.clone(),
        peers: spec.peers.clone(),
        pools: spec.pools.iter().map(|name| Arc::from(name.as_str())).collect(),
        kinds: spec.address_kinds(),
        external_cidrs: spec.external_prefixes().ok()?,
        withdraw_cordoned: spec.on_cordoned_nodes() == NodeAction::Withdraw,
        withdraw_excluded: spec.on_excluded_nodes() == NodeAction::Withdraw,
        aggregation: spec.aggregation_length,
        weights: spec.weights == Weights::LocalEndpoints,
        graceful_shutdown: spec.graceful_shutdown(),
    })
}
