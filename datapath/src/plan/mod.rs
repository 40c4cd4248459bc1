//! The kernel's part of the plan: the wanted kernel state, and the found state.
//!
//! Each part of the agent that needs kernel objects provides values of these types: networks, pods,
//! learned routes, translated connections, the guard. One owner ([`crate::kernel`]) receives them.
//!
//! All collections are ordered (BTree). So equal intents give equal plans, and two plans can be
//! compared in one pass.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

mod links;
mod nft_rules;
pub mod policy;
mod routes;
mod shared;

pub use links::*;
pub use nft_rules::*;
pub use routes::*;
pub use shared::SharedPlan;

use crate::family::IpFamily;

/// The wanted kernel objects, except pods' objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelPlan {
    /// Sysctls by path below `/proc/sys`.
    pub sysctls: BTreeMap<String, Sysctl>,
    /// Whether pods' host interfaces get `route_localnet` 1. False changes nothing.
    pub route_localnet: bool,
    /// Subnets whose ARP requests have the address of a local pod as sender.
    pub arp_senders: BTreeSet<ArpSubnet>,
    /// Links by name. A link of the previous plan that is not in this plan is deleted.
    pub links: BTreeMap<String, LinkPlan>,
    /// Addresses of the host on its loopback interface. None: they are not known yet, and those of
    /// the last run stay.
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// Permanent neighbour entries, except pods' entries.
    pub neighbours: BTreeSet<Neighbour>,
    /// Proxy entries of service addresses: the links on which this node answers for them.
    pub proxies: BTreeSet<Proxy>,
    /// All FDB entries of the plan's VXLAN devices.
    pub fdb: BTreeSet<FdbEntry>,
    /// Policy rules.
    pub rules: BTreeSet<Rule>,
    /// Routes that depend on intent and sessions. Routes of pods and learned routes arrive
    /// separately.
    pub routes: BTreeMap<RouteKey, RouteTarget>,
    /// Masquerading.
    pub nat: NatRules,
    /// Marks of connections whose destination is translated on this node.
    pub translated: TranslatedRules,
    /// Limits of alternate paths.
    pub alternate: AlternateRules,
    /// Names of the uplinks that are probed.
    pub probed: BTreeSet<String>,
    /// Counters of packets to unassigned addresses.
    pub unassigned: UnassignedRules,
    /// The guard.
    pub guard: GuardPlan,
    /// The table of learned routes; none if the agent learns no routes.
    pub learned: Option<u32>,
    /// The table of the BGP network. Its default routes are reported
    /// ([`crate::kernel::KernelStatus::ways_out`]).
    pub way_out: Option<u32>,
}

impl KernelPlan {
    /// Adds the settings of a Trunkline device that connects pods and no router. The kernel sends
    /// redirects if the setting of the link or of `all` enables them.
    pub fn add_device_sysctls(&mut self, name: &str) {
        for setting in ["ipv6/conf/{}/accept_ra", "ipv6/conf/{}/accept_redirects"] {
            let path = format!("net/{}", setting.replace("{}", name));
            self.sysctls.insert(path, Sysctl::IfThere("0"));
        }
        for setting in ["accept_redirects", "send_redirects"] {
            self.sysctls.insert(format!("net/ipv4/conf/{name}/{setting}"), Sysctl::Exactly("0"));
        }
    }
}

/// The wanted value of a sysctl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sysctl {
    /// Exactly this value.
    Exactly(&'static str),
    /// This value, if the kernel has the setting. A kernel without IPv6 lacks the IPv6 settings.
    IfThere(&'static str),
    /// At least this value, if the kernel has the setting. A greater value stays.
    AtLeast(u32),
    /// For an interface's `rp_filter`: a strict check, by the interface's setting or by `all`,
    /// becomes loose. Off stays off.
    LooseReversePath,
    /// For `rp_filter` of an interface without an address: off. On such an interface, a loose check
    /// drops the same packets as a strict check.
    NoReversePath,
}

/// The objects of one pod on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPlan {
    /// Name of the pod's host interface: the pod's key.
    pub host_ifname: String,
    /// Index of the host interface.
    pub host_ifindex: u32,
    /// One /32 or /128 route in table 39999 for each address; none while another node's pod has the
    /// addresses, in a live migration.
    pub routes: BTreeMap<RouteKey, RouteTarget>,
    /// Permanent neighbour entries on the host interface.
    pub neighbours: BTreeSet<Neighbour>,
    /// Proxy entries: the links on which this node answers ARP and Neighbour Solicitations for the
    /// pod.
    pub proxies: BTreeSet<Proxy>,
    /// Allowed source prefixes besides the pod's addresses. None is part of another.
    pub sources: BTreeSet<IpNet>,
}

impl PodPlan {
    /// Whether the two plans differ at most in [`PodPlan::sources`].
    pub fn is_same_but_sources(&self, other: &PodPlan) -> bool {
        PodPlan { sources: other.sources.clone(), ..self.clone() } == *other
    }

    /// Whether the two plans differ at most in [`PodPlan::routes`].
    pub fn is_same_but_routes(&self, other: &PodPlan) -> bool {
        PodPlan { routes: other.routes.clone(), ..self.clone() } == *other
    }
}

/// The current state of a route that peers advertise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedRoute {
    /// The destination.
    pub prefix: IpNet,
    /// The next hops; empty: the route was withdrawn.
    pub hops: Vec<LearnedHop>,
}

/// One next hop of a learned route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedHop {
    /// The router.
    pub gateway: IpAddr,
    /// Index of the router's interface, if it is known.
    pub ifindex: Option<u32>,
    /// If `ifindex` is not known: the router is on the link with a connected prefix that contains
    /// this address.
    pub beside: Option<IpAddr>,
}

/// The state of the host as the kernel owner found it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelHost {
    /// Links of this network namespace: without pods' links and the plan's addresses, but with the
    /// links of a plan.
    pub links: Vec<Link>,
    /// Faults of the links of the current plan, as text, by name of the link.
    pub link_faults: BTreeMap<String, String>,
    /// The link of the default route. While there is no default route, this is the last such link,
    /// if it still exists.
    pub default_link: Option<u32>,
    /// The link of the kernel's route to each address of `KernelConfig::reach`. While there is no
    /// route, this is the last such link, if it still exists.
    pub reached: BTreeMap<IpAddr, u32>,
    /// The table of each subnet's own rule (`from <subnet> lookup T`). By this rule, a network gets
    /// the same table again after a restart.
    pub tables: BTreeMap<IpNet, u32>,
    /// Tables that other programs use.
    pub used_tables: BTreeSet<u32>,
    /// Next hops of the default routes in the main table, with their links.
    pub gateways: BTreeSet<(IpFamily, Hop)>,
    /// The number of each link with a return table, by ifindex; read from the rules, like `tables`.
    pub link_numbers: BTreeMap<u32, u32>,
    /// Default routes of BGP networks from the agent's last run. Each is retained until the first
    /// route selection of its family is done.
    pub former: BTreeMap<RouteKey, RouteTarget>,
}
