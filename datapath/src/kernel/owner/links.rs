//! Links of the plan: created, taken over from the last run, repaired, deleted.
//!
//! ```text
//!  plan 1: eth0.10 wanted ──► created ──► HostChanged ──► plan 2: eth0.10 has index 7: routes over it
//! ```
//!
//! [`Owner::settle_links`] compares the plan with the recorded links. It runs after each plan and
//! after each change of a link. So it restores links that another program deleted or set down, and
//! it tries failed creations again. Faults are stored by link name
//! ([`KernelHost::link_faults`](crate::plan::KernelHost::link_faults)); the planner forwards them
//! to the pods that wait for the link.
//!
//! **The owner of a link** is in its alias. Links that this process created or took over are also
//! known by their index. Any other link with the wanted name belongs to another program and is not
//! changed.
//!
//! **A tunnel waits for the guard.** It is not created or set up while the guard is enabled and not
//! in force. [`Applied::unguarded`](super::super::Applied::unguarded) requests another try.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::super::scan::Neighbours;
use super::super::topology::LinkState;
use super::{KernelError, Owner, Reason, Request};
use crate::netlink::events::Events;
use crate::netlink::objects::{self, LinkInfo};
use crate::netlink::vxlan::{self, VxlanInfo};
use crate::netlink::{Batch, BatchResult, Refusal};
use crate::plan::{FdbEntry, LinkKind, LinkPlan, Neighbour, Proxy};

/// The reason why a link does not match the plan.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    /// The parent link of a new VLAN device is deleted.
    #[error("{0} cannot be created: its parent link does not exist")]
    NoParent(String),
    /// The kernel lacks the driver.
    #[error(
        "{name} cannot be created: {refusal}: the kernel has no driver for this link: `modprobe {driver}`, or build it with {option}"
    )]
    NoDriver { name: String, refusal: Refusal, driver: &'static str, option: &'static str },
    /// Another program's device has the same parameters.
    #[error("{name} cannot be created: {what} is used by {by}, which is not Trunkline's: delete it")]
    Used { name: String, what: String, by: String },
    /// Another program's device has the name.
    #[error(
        "{name} exists and is not Trunkline's ({owner}): Trunkline does not change it: rename or delete it"
    )]
    Foreign { name: String, owner: String },
    /// A tunnel would accept packets that the guard drops.
    #[error("{name} does not come up: {guard}")]
    Unguarded { name: String, guard: KernelError },
    /// Another program deleted it.
    #[error("{0} cannot be created: it disappeared at once")]
    Disappeared(String),
    /// The kernel refused a request.
    #[error("{name} cannot be {action}: {refusal}")]
    Refused { name: String, action: &'static str, refusal: Refusal },
    /// The kernel did not answer.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// The temporary name of a new link.
const TEMPORARY_NAME: &str = "trunkline-new";

/// Whether a comparison of the links with the plan is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LinkPass {
    /// None is under way.
    #[default]
    Idle,
    /// One is under way, and some of its new links may not be recorded yet.
    Running,
    /// A link changed during the comparison, so another one follows.
    Repeated,
}

impl Owner {
    /// Brings the links to the plan. A record of a changed link calls this function again: the
    /// comparison then follows after all changed links are recorded. Otherwise it would create the
    /// new links that are not recorded yet a second time.
    pub(super) fn settle_links(&mut self) -> Result<(), KernelError> {
        if self.link_pass != LinkPass::Idle {
            self.link_pass = LinkPass::Repeated;
            return Ok(());
        }
        let outcome = loop {
            self.link_pass = LinkPass::Running;
            let outcome = self.compare_links();
            if outcome.is_err() || self.link_pass != LinkPass::Repeated {
                break outcome;
            }
        };
        self.link_pass = LinkPass::Idle;
        outcome
    }

    fn compare_links(&mut self) -> Result<(), KernelError> {
        if !self.planned {
            return Ok(());
        }
        self.flush()?;
        let plan = self.plan.clone();
        let wanted = &plan.links;
        let is_wanted = |link: &LinkInfo| {
            wanted.get(&link.name).is_some_and(|plan| link.planned_kind() == Some(plan.kind))
        };
        let own = self.topology.links.values().map(|link| &link.info);
        let surplus: Vec<LinkInfo> =
            own.filter(|link| self.topology.is_planned(link) && !is_wanted(link)).cloned().collect();
        let before = std::mem::take(&mut self.link_faults);
        for link in surplus {
            if let Err(fault) = self.delete_link(&link) {
                self.link_faults.insert(link.name, fault.to_string());
            }
        }
        let mut changed = Vec::new();
        for (name, plan) in wanted {
            let settled = match (self.topology.named(name).cloned(), self.unguarded(name, plan.kind)) {
                (None, Some(fault)) => Err(fault),
                (Some(link), Some(fault)) if self.topology.is_planned(&link) && !link.is_up() => Err(fault),
                (None, None) => self.create_link(name, plan).map(Some),
                (Some(link), _) if self.topology.is_planned(&link) => self.repair_link(&link, plan),
                (Some(link), _) => Err(LinkError::Foreign {
                    name: name.clone(),
                    owner: link.alias.or(link.kind).unwrap_or_else(|| "a device".to_owned()),
                }),
            };
            match settled {
                Ok(info) => changed.extend(info),
                Err(fault) => drop(self.link_faults.insert(name.clone(), fault.to_string())),
            }
        }
        let faults = self.link_faults.clone();
        for (_, fault) in faults.iter().filter(|(name, fault)| before.get(*name) != Some(fault)) {
            self.fault(Reason::Link, fault);
        }
        if before != self.link_faults {
            self.host_changed();
        }
        changed.into_iter().try_for_each(|info| self.handle_link(info))
    }

    /// The fault of a tunnel while the guard is enabled and not in force: before the guard, the node
    /// accepts packets of the overlay from any host. A tunnel of the last run that is up stays, with
    /// the tables of that run.
    fn unguarded(&self, name: &str, kind: LinkKind) -> Option<LinkError> {
        let is_tunnel = matches!(kind, LinkKind::Vxlan { .. });
        let guard = self.guard_missing().filter(|_| is_tunnel)?;
        Some(LinkError::Unguarded { name: name.to_owned(), guard })
    }

    /// Creates a link. Returns its state.
    fn create_link(&mut self, name: &str, plan: &LinkPlan) -> Result<LinkInfo, LinkError> {
        let Some(may_be_up) = self.may_be_up(plan.kind) else {
            return Err(LinkError::NoParent(name.to_owned()));
        };
        let mut batch = Batch::new();
        match plan.kind {
            LinkKind::Vlan { parent, id } => batch.create_vlan(TEMPORARY_NAME, parent, id, plan.mtu),
            LinkKind::Vxlan { vni, local, port, mac } => {
                batch.create_vxlan(TEMPORARY_NAME, &VxlanInfo { vni, local, port }, mac, plan.mtu);
            }
            LinkKind::Sink => batch.create_ifb(TEMPORARY_NAME),
        }
        batch.mark_link(TEMPORARY_NAME, &plan.alias);
        batch.get_link(TEMPORARY_NAME);
        let outcome = self.request(&mut batch)?;
        if let Some(refusal) = outcome.refusal(0) {
            return Err(self.why_not(name, plan, refusal));
        }
        let made = first_link(&outcome).ok_or_else(|| LinkError::Disappeared(name.to_owned()))?;

        batch.clear();
        batch.name_link(made.index, name);
        if made.mtu != plan.mtu {
            batch.set_link(made.index, &plan.alias, plan.mtu);
        }
        if may_be_up {
            batch.set_up(made.index);
        }
        batch.get_link_at(made.index);
        let outcome = self.request(&mut batch)?;
        if let Some(refusal) = outcome.refusal(0) {
            let refusal = refusal.clone();
            self.delete_link(&made)?;
            return Err(LinkError::Refused { name: name.to_owned(), action: "renamed", refusal });
        }
        let info = first_link(&outcome).unwrap_or(made);
        tracing::info!(link = name, index = info.index, "link created");
        self.changed += 1;
        self.topology.planned.insert(info.index);
        match outcome.refusals.first() {
            Some(refusal) => {
                let refusal = refusal.clone();
                Err(LinkError::Refused { name: name.to_owned(), action: "set up", refusal })
            }
            None => Ok(info),
        }
    }

    /// Whether a link of this kind can be up now: a VLAN device can be up only if its parent is up,
    /// and comes up with the parent. None: the parent is deleted. The function requests the parent
    /// from the kernel, as `is_up_now` does, because the kernel reports the deletion of VLAN
    /// devices before the deletion of their parent.
    fn may_be_up(&mut self, kind: LinkKind) -> Option<bool> {
        match kind {
            LinkKind::Vlan { parent, .. } => self.is_up_now(parent),
            LinkKind::Vxlan { .. } | LinkKind::Sink => Some(true),
        }
    }

    fn why_not(&self, name: &str, plan: &LinkPlan, refusal: &Refusal) -> LinkError {
        let (driver, option, what) = match plan.kind {
            LinkKind::Vlan { id, .. } => ("8021q", "CONFIG_VLAN_8021Q", format!("VLAN {id}")),
            LinkKind::Vxlan { vni, port, .. } => {
                ("vxlan", "CONFIG_VXLAN", format!("VNI {vni} on UDP port {port}"))
            }
            LinkKind::Sink => ("ifb", "CONFIG_IFB", "the device".to_owned()),
        };
        let same = |link: &&LinkState| match (link.info.planned_kind(), plan.kind) {
            (Some(LinkKind::Vxlan { vni, port, .. }), LinkKind::Vxlan { vni: ours, port: our_port, .. }) => {
                (vni, port) == (ours, our_port)
            }
            (kind, wanted) => kind == Some(wanted),
        };
        let (name, refusal) = (name.to_owned(), refusal.clone());
        match (refusal.errno, self.topology.links.values().find(same)) {
            (libc::EOPNOTSUPP, _) => LinkError::NoDriver { name, refusal, driver, option },
            (libc::EEXIST, Some(other)) => LinkError::Used { name, what, by: other.info.name.clone() },
            _ => LinkError::Refused { name, action: "created", refusal },
        }
    }

    /// Repairs the differences of a Trunkline link. Returns its new state, if something changed.
    fn repair_link(&mut self, link: &LinkInfo, plan: &LinkPlan) -> Result<Option<LinkInfo>, LinkError> {
        self.topology.planned.insert(link.index);
        let differs = link.alias.as_deref() != Some(&plan.alias) || link.mtu != plan.mtu;
        let down = !link.is_up() && self.may_be_up(plan.kind) == Some(true);
        if !differs && !down {
            return Ok(None);
        }
        let mut batch = Batch::new();
        if differs {
            batch.set_link(link.index, &plan.alias, plan.mtu);
        }
        if down {
            batch.set_up(link.index);
        }
        batch.get_link_at(link.index);
        let outcome = self.request(&mut batch)?;
        tracing::info!(link = link.name, mtu = plan.mtu, down, "link repaired");
        self.changed += 1;
        match outcome.refusals.first() {
            Some(refusal) => Err(refused(link, "repaired", refusal.clone())),
            None => Ok(first_link(&outcome)),
        }
    }

    fn delete_link(&mut self, link: &LinkInfo) -> Result<(), LinkError> {
        let mut batch = Batch::new();
        batch.delete_link(link.index);
        let outcome = self.request(&mut batch)?.check(&[libc::ENODEV]);
        outcome.map_err(|refusal| refused(link, "deleted", refusal))?;
        tracing::info!(link = link.name, "link deleted: it is no longer in the plan");
        self.changed += 1;
        Ok(self.handle_link_gone(link.index)?)
    }

    fn request(&mut self, batch: &mut Batch) -> Result<BatchResult, KernelError> {
        self.connection.run(batch).map_err(|error| {
            self.unsure = true;
            error.into()
        })
    }

    /// Adds requests for the entries that the kernel deletes when a link goes down: neighbour and
    /// proxy entries.
    pub(super) fn restore_neighbours(&mut self, index: u32) {
        let neighbours: Vec<Neighbour> =
            self.plan.neighbours.iter().filter(|neighbour| neighbour.ifindex == index).copied().collect();
        let proxies: Vec<Proxy> =
            self.wanted_proxies().filter(|proxy| proxy.ifindex == index).copied().collect();
        neighbours.iter().for_each(|neighbour| self.put_neighbour(neighbour));
        proxies.iter().for_each(|proxy| self.put_proxy(proxy));
    }

    /// Adds a pod's proxy entries on its link again. The kernel deletes them when the pod sets its
    /// interface down, and sends no notification of it.
    pub(super) fn restore_proxies(&mut self, index: u32) -> Result<(), KernelError> {
        let pod = self.pod_names.get(&index).and_then(|name| self.pods.get(name));
        let proxies = pod.into_iter().flat_map(|pod| &pod.proxies);
        let lost: Vec<Proxy> = proxies.filter(|proxy| proxy.ifindex == index).copied().collect();
        if !lost.is_empty() {
            lost.iter().for_each(|proxy| self.put_proxy(proxy));
            self.flush()?;
        }
        Ok(())
    }

    pub(super) fn put_neighbour(&mut self, neighbour: &Neighbour) {
        self.batch.put_neighbour(neighbour);
        self.requests.push(Request::Neighbour(neighbour.address));
    }

    pub(super) fn put_proxy(&mut self, proxy: &Proxy) {
        self.batch.put_proxy(proxy);
        self.requests.push(Request::Neighbour(proxy.address));
    }

    pub(super) fn delete_proxy(&mut self, proxy: &Proxy) {
        self.batch.delete_proxy(proxy);
        self.requests.push(Request::DeleteNeighbour);
    }

    pub(super) fn delete_neighbour(&mut self, neighbour: &Neighbour) {
        self.batch.delete_neighbour(neighbour.ifindex, neighbour.address);
        self.requests.push(Request::DeleteNeighbour);
    }

    /// Replaces the neighbour entries of the old plan by the entries of the current plan.
    pub(super) fn settle_neighbours(&mut self, old: &BTreeSet<Neighbour>) {
        let plan = self.plan.clone();
        let wanted = &plan.neighbours;
        old.difference(wanted).for_each(|neighbour| self.delete_neighbour(neighbour));
        for neighbour in wanted.difference(old) {
            if !self.found_neighbours.permanent.contains(neighbour) {
                self.put_neighbour(neighbour);
            }
        }
    }

    /// Replaces the proxy entries of the old plan by the entries of the current plan.
    pub(super) fn settle_proxies(&mut self, old: &BTreeSet<Proxy>) {
        let plan = self.plan.clone();
        let gone: Vec<Proxy> = {
            let all: HashSet<&Proxy> = self.wanted_proxies().collect();
            old.iter().filter(|proxy| !all.contains(proxy)).copied().collect()
        };
        gone.iter().for_each(|proxy| self.delete_proxy(proxy));
        for proxy in plan.proxies.difference(old) {
            if !self.found_neighbours.proxies.contains(proxy) {
                self.put_proxy(proxy);
            }
        }
    }

    /// Brings the FDB entries of Trunkline's VXLAN devices to the plan. Entries that are not in the
    /// plan are deleted, even if another program added them. Returns the number of changes.
    pub(super) fn settle_fdb(&mut self) -> Result<usize, KernelError> {
        self.flush()?;
        let is_vxlan = |link: &&LinkState| matches!(link.info.planned_kind(), Some(LinkKind::Vxlan { .. }));
        let own =
            self.topology.links.values().filter(is_vxlan).filter(|link| self.topology.is_planned(&link.info));
        let devices: Vec<u32> = own.map(|link| link.info.index).collect();
        let mut there = BTreeSet::new();
        for ifindex in &devices {
            there.extend(self.connection.list(|batch| batch.dump_fdb(*ifindex), vxlan::read_fdb)?);
        }
        // An entry for a deleted device waits for the next plan.
        let wanted: BTreeSet<FdbEntry> =
            self.plan.fdb.iter().filter(|entry| devices.contains(&entry.ifindex)).copied().collect();
        for entry in there.difference(&wanted) {
            self.batch.delete_fdb(entry);
            self.requests.push(Request::DeleteNeighbour);
        }
        for entry in wanted.difference(&there) {
            self.batch.put_fdb(entry);
            self.requests.push(Request::Neighbour(entry.vtep));
        }
        self.flush()?;
        // New entries are counted after their notification, when this function runs again.
        self.forwarding.wanted = self.plan.fdb.len();
        self.forwarding.installed = there.intersection(&wanted).count();
        Ok(there.symmetric_difference(&wanted).count())
    }

    /// Removes Trunkline's neighbour entries that no source wants, after plan and pods were
    /// received.
    pub(super) fn sweep_neighbours(&mut self) {
        if !self.planned || !self.populated {
            return;
        }
        let Neighbours { own, proxies, .. } = std::mem::take(&mut self.found_neighbours);
        let wanted: HashSet<Neighbour> = self.wanted_neighbours().copied().collect();
        own.difference(&wanted).for_each(|neighbour| self.delete_neighbour(neighbour));
        let wanted: HashSet<Proxy> = self.wanted_proxies().copied().collect();
        proxies.difference(&wanted).for_each(|proxy| self.delete_proxy(proxy));
    }

    pub(super) fn wanted_neighbours(&self) -> impl Iterator<Item = &Neighbour> {
        self.plan.neighbours.iter().chain(self.pods.values().flat_map(|pod| &pod.neighbours))
    }

    pub(super) fn wanted_proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.plan.proxies.iter().chain(self.pods.values().flat_map(|pod| &pod.proxies))
    }

    /// The link of the current default route, or the last known one.
    pub(super) fn default_link(&mut self) -> Option<u32> {
        let mut batch = Batch::new();
        // Addresses that only a default route matches: reserved (RFC 1112) and not assigned by
        // IANA.
        for address in ["240.0.0.1", "4000::1"] {
            batch.get_route(address.parse().ok()?);
        }
        let outcome = self.connection.run(&mut batch).ok()?;
        let routes = outcome.replies.iter().filter_map(|(_, _, body)| objects::read_route(body));
        let mut defaults = routes.filter(|route| route.key.prefix.prefix_len() == 0);
        let link = defaults.find_map(|route| route.target?.hops().first()?.ifindex);
        self.default_link = link.or(self.default_link).filter(|link| self.topology.links.contains_key(link));
        self.default_link
    }

    /// Looks up the links of the configured addresses.
    pub(super) fn look_up_reached(&mut self) {
        let found: Vec<(IpAddr, u32)> = self
            .reach
            .iter()
            .filter_map(|address| {
                let mut batch = Batch::new();
                batch.get_route(*address);
                let outcome = self.connection.run(&mut batch).ok()?;
                let route = outcome.replies.iter().find_map(|(_, _, body)| objects::read_route(body))?;
                Some((*address, route.target?.hops().first()?.ifindex?))
            })
            .collect();
        self.reached.extend(found);
        let links = &self.topology.links;
        self.reached.retain(|_, link| links.contains_key(link));
    }

    /// Replaces the configured addresses. The next [`Owner::host`] looks up their links.
    pub(super) fn set_reach(&mut self, reach: BTreeSet<IpAddr>) {
        self.reached.retain(|address, _| reach.contains(address));
        self.reach = reach;
    }

    /// Adapts the filter of the notifications: all routes pass while there are configured addresses.
    pub(super) fn filter_routes(&mut self, events: &Events) {
        let wanted = !self.reach.is_empty();
        if std::mem::replace(&mut self.routes_pass, wanted) != wanted
            && let Err(error) = events.filter_routes(self.connection.port(), wanted)
        {
            self.fault(Reason::Netlink, format!("the filter of notifications: {error}"));
        }
    }

    /// Reports a route of another program that moved a configured address to another link.
    pub(super) fn handle_reaching_route(&mut self, prefix: &IpNet) {
        if self.reach.iter().any(|address| prefix.contains(address)) {
            let before = self.reached.clone();
            self.look_up_reached();
            if self.reached != before {
                self.host_changed();
            }
        }
    }
}

fn refused(link: &LinkInfo, action: &'static str, refusal: Refusal) -> LinkError {
    LinkError::Refused { name: link.name.clone(), action, refusal }
}

fn first_link(outcome: &BatchResult) -> Option<LinkInfo> {
    outcome.replies.iter().find_map(|(_, _, body)| objects::read_link(body))
}
