//! The kernel's side of the plan: what the kernel should have, and what was found there.
//!
//! Each part of the agent that wants something of the kernel is a source of these words: the networks, the
//! pods, learned routes, translated connections, the guard. One owner ([`crate::kernel`]) takes them.
//!
//! Everything is ordered (BTree), so that equal intents give equal plans and a difference of two plans is a walk.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

mod links;
mod nft_rules;
mod routes;

pub use links::*;
pub use nft_rules::*;
pub use routes::*;

use crate::family::IpFamily;

/// What the kernel should have besides the pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelPlan {
    /// By path below `/proc/sys`.
    pub sysctls: BTreeMap<String, Sysctl>,
    /// Links by name. Those that an earlier plan asked for and this one does not are deleted.
    pub links: BTreeMap<String, LinkPlan>,
    /// Permanent neighbours, besides the pods'.
    pub neighbours: BTreeSet<Neighbour>,
    /// Where VXLAN devices of the plan send to: these and nothing else.
    pub fdb: BTreeSet<FdbEntry>,
    /// Policy rules.
    pub rules: BTreeSet<Rule>,
    /// Routes that follow from the intent and the sessions; pods' and learned ones come by themselves.
    pub routes: BTreeMap<RouteKey, RouteTarget>,
    /// Masquerading.
    pub nat: NatRules,
    /// Marks of connections whose destination is translated on this node.
    pub translated: TranslatedRules,
    /// Limits of alternate paths.
    pub alternate: AlternateRules,
    /// Names of the uplinks that are probed.
    pub probed: BTreeSet<String>,
    /// Counts of what is for no pod here.
    pub unassigned: UnassignedRules,
    /// The guard.
    pub guard: GuardPlan,
    /// The table of learned routes; none where there are none.
    pub learned: Option<u32>,
    /// The table of the BGP network, whose default routes are reported ([`crate::kernel::KernelStatus::ways_out`]).
    pub way_out: Option<u32>,
}

impl KernelPlan {
    /// Settings of a device of ours that leads to pods: nobody there is a router of this host. Redirects are sent where the link's
    /// setting or that of `all` says so.
    pub fn close_device(&mut self, name: &str) {
        for setting in ["ipv6/conf/{}/accept_ra", "ipv6/conf/{}/accept_redirects"] {
            let path = format!("net/{}", setting.replace("{}", name));
            self.sysctls.insert(path, Sysctl::IfThere("0"));
        }
        for setting in ["accept_redirects", "send_redirects"] {
            self.sysctls.insert(format!("net/ipv4/conf/{name}/{setting}"), Sysctl::Exactly("0"));
        }
    }
}

/// What a sysctl should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sysctl {
    /// This value.
    Exactly(&'static str),
    /// This value, where the kernel has the setting at all: without IPv6 there is none of it to be switched off.
    IfThere(&'static str),
    /// For an interface's `rp_filter`: where the check is strict, by its own setting or by `all`'s, it becomes loose. Off stays off.
    LooseReversePath,
    /// For `rp_filter` of an interface without an address: off. There the kernel lets nothing pass a loose check that a strict one stops.
    NoReversePath,
}

/// What one pod needs on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodPlan {
    /// Host side of its veth pair: the pod's key.
    pub host_ifname: String,
    /// Index of that.
    pub host_ifindex: u32,
    /// One /32 or /128 in table 39999 for each address.
    pub routes: BTreeMap<RouteKey, RouteTarget>,
    /// Permanent neighbours on the host side.
    pub neighbours: BTreeSet<Neighbour>,
    /// Where this node answers ARP and neighbour solicitations for it.
    pub proxies: BTreeSet<Proxy>,
    /// Prefixes that it may send from besides its addresses: none is part of another.
    pub sources: BTreeSet<IpNet>,
}

impl PodPlan {
    /// Whether the two differ in nothing but [`PodPlan::sources`].
    pub fn is_same_but_sources(&self, other: &PodPlan) -> bool {
        PodPlan { sources: other.sources.clone(), ..self.clone() } == *other
    }
}

/// A route that peers advertise, as it should be now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedRoute {
    /// The destination.
    pub prefix: IpNet,
    /// The next hops; none: the route is gone.
    pub hops: Vec<LearnedHop>,
}

/// One next hop of a learned route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedHop {
    /// The router.
    pub gateway: IpAddr,
    /// Index of the interface that the router is on, where it is known.
    pub ifindex: Option<u32>,
    /// Where it is not known: the router is on the link whose connected prefix holds this address.
    pub beside: Option<IpAddr>,
}

/// The host as the kernel owner found it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelHost {
    /// Links of this network namespace; those of pods are left out, those that a plan had made are not.
    pub links: Vec<Link>,
    /// Why links of the plan that is in force are not there as it wants them, by name, in words.
    pub link_faults: BTreeMap<String, String>,
    /// The link of the default route; while there is no such route, the one that had it last and is still there.
    pub default_link: Option<u32>,
    /// Which table each subnet's own rule (`from <subnet> lookup T`) leads to. This is how a network finds its
    /// table again after a restart.
    pub tables: BTreeMap<IpNet, u32>,
    /// Tables that somebody else uses.
    pub used_tables: BTreeSet<u32>,
    /// Next hops of the default routes in the main table, each with its link.
    pub gateways: BTreeSet<(IpFamily, Hop)>,
    /// The number of each link that has a return table, by ifindex; read from the rules, like `tables`.
    pub link_numbers: BTreeMap<u32, u32>,
    /// Default routes of BGP networks that the agent's last run left in the kernel, each until the first route selection of its family
    /// is done.
    pub former: BTreeMap<RouteKey, RouteTarget>,
}
