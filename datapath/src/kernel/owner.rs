//! The owner thread: it compares the wanted objects with the installed ones, and changes the kernel
//! accordingly.
//!
//! Routes have three sources: the plan, the pods, and the fabric (learned routes).
//! [`Owner::wanted`] combines plan and fabric for a key. [`Owner::settle`] compares the result with
//! the installed route and adds requests for the difference to the batch. [`Owner::flush`] sends
//! the batch and records only the requests that the kernel did not refuse. All changes take this
//! path, repairs included.
//!
//! **Routes found at start** stay in `found` until a source wants them (they are then recorded as
//! installed without a request) or until they may be swept. Only inside `settle` can a key be both
//! wanted and found.
//!
//! **A link that goes down** loses its routes; for IPv4 the kernel sends no notification. The owner
//! forgets the routes that were installed over such a link, and installs them again when the link
//! or its address is back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::io::unix::{AsyncFd, AsyncFdReadyMutGuard};
use tokio::sync::{mpsc, watch};

use self::links::LinkPass;
use self::policies::PolicyKeeper;
use self::reason::Reason;
use self::repairs::{RepairKind, Repairs};
use self::routes::WantedRoutes;
use super::scan::{self, Neighbours, Routes, Scan};
use super::topology::{self, Topology};
use super::{
    Applied, Command, Forwarding, GuardStatus, KernelConfig, KernelError, KernelStatus, OwnDevice, PodFault,
    Urgent,
};
use crate::family::IpFamily;
use crate::netlink::events::{Events, ReadResult};
use crate::netlink::objects;
use crate::netlink::{Batch, Connection, NetlinkError, Refusal};
use crate::nft::guard::Guard;
use crate::nft::{self, OwnTable, nat, probes};
use crate::plan::{
    ArpSubnet, DROP_TABLE, Hop, KernelHost, Neighbour, POD_TABLE, PodPlan, Proxy, RouteKey, RouteTarget,
    Rule, SUBNET_RULE, SharedPlan,
};
use crate::sysctl::{self, PodSettings};

mod addresses;
mod arp_sender;
mod filter;
mod learned;
mod links;
mod notifications;
mod pod_routes;
mod policies;
mod reason;
pub(super) mod repairs;
mod routes;
mod ways_out;

/// Maximum number of requests in one `send`. With more, a pod would wait longer; with fewer, each
/// request would cost more.
const BATCH: usize = 512;

/// The channels for the owner's events and status.
pub(super) struct OwnerChannels {
    pub(super) host_changed: watch::Sender<u64>,
    pub(super) device_gone: mpsc::UnboundedSender<String>,
    pub(super) limits_touched: mpsc::UnboundedSender<String>,
    pub(super) policies_touched: watch::Sender<u64>,
    pub(super) status: Arc<Mutex<KernelStatus>>,
    pub(super) repairs: watch::Sender<Repairs>,
}

/// The kind of a request in the batch; it interprets the answer.
enum Request {
    Put(RouteKey),
    DeleteRoute,
    AddRule(Rule),
    DeleteRule,
    Neighbour(IpAddr),
    DeleteNeighbour,
    Link(u32),
    Address(IpAddr),
    DeleteAddress(IpAddr),
}

pub(super) struct Owner {
    connection: Connection,
    events: Option<Events>,
    /// A new nftables listener, until [`Owner::run`] takes it.
    nftables: Option<Events>,
    /// Whether another program has, or had, a NAT chain.
    translates: bool,
    pod_settings: PodSettings,
    nat: nft::Table,
    probes: nft::Table,
    arp_table: nft::Table,
    /// The chosen senders of ARP requests.
    arp_senders: BTreeMap<ArpSubnet, Ipv4Addr>,
    guard: Guard,
    guard_fault: Option<String>,
    guard_repairs: u64,
    policies: PolicyKeeper,
    /// Whether the guard is on by configuration.
    guards: bool,
    /// Whether the listener for nftables is open.
    listens: bool,
    channels: OwnerChannels,
    topology: Topology,
    used_tables: BTreeSet<u32>,

    plan: SharedPlan,
    /// A plan was received.
    planned: bool,
    /// Whether a plan was processed completely. Then routes and rules that are not in the plan may
    /// be swept.
    settled: bool,
    pods: HashMap<String, PodPlan>,
    /// All pods were received.
    populated: bool,
    pod_names: FxHashMap<u32, String>,
    learned: FxHashMap<RouteKey, Arc<RouteTarget>>,
    /// The learned routes of a former speaker that the new speaker has not sent yet.
    retained: FxHashSet<RouteKey>,
    hold: BTreeSet<IpFamily>,

    routes: WantedRoutes,
    /// Equal targets share one allocation: a table of 100,000 routes has only a few different
    /// targets.
    targets: HashMap<RouteTarget, Arc<RouteTarget>>,
    rules: BTreeSet<Rule>,
    found: Routes,
    found_rules: BTreeSet<Rule>,
    found_neighbours: Neighbours,
    /// Faults of the plan's links, as text, by name.
    link_faults: BTreeMap<String, String>,
    link_pass: LinkPass,
    default_link: Option<u32>,
    reach: BTreeSet<IpAddr>,
    /// Whether notifications about all routes pass the socket's filter.
    routes_pass: bool,
    reached: BTreeMap<IpAddr, u32>,
    /// Next hops of the default routes in the main table, with their links.
    gateways: BTreeSet<(IpFamily, Hop)>,
    /// Wanted routes that others changed, until all pending notifications are read.
    broken: BTreeSet<RouteKey>,
    /// Gateways that are on no connected network, with the next hop from the kernel's tables.
    farther: HashMap<IpAddr, Option<Hop>>,

    batch: Batch,
    requests: Vec<Request>,
    changed: usize,
    repairs: Repairs,
    forwarding: Forwarding,
    rescans: u64,
    faults: Vec<String>,
    last_error: Option<String>,
    errors: BTreeMap<&'static str, u64>,
    /// Whether answers or notifications were lost. Then a scan is necessary.
    unsure: bool,
}

impl Owner {
    pub(super) fn open(config: KernelConfig, channels: OwnerChannels) -> Result<Owner, KernelError> {
        let mut connection = Connection::open()?;
        // The listener is opened before the scan, so no change between the two is missed.
        let events = Events::open(connection.port(), !config.reach.is_empty()).map_err(NetlinkError::Io)?;
        let Scan { mut topology, routes, rules, neighbours, used_tables, gateways } =
            scan::scan(&mut connection, true)?;
        topology.claim(&config.addresses);
        Ok(Owner {
            connection,
            events: Some(events),
            nftables: None,
            translates: false,
            pod_settings: PodSettings::default(),
            nat: nat::TABLE,
            probes: probes::TABLE,
            arp_table: nft::arp_sender::TABLE,
            arp_senders: BTreeMap::new(),
            guard: Guard::new(),
            guard_fault: None,
            guard_repairs: 0,
            policies: PolicyKeeper::new(config.protects_policies),
            listens: false,
            guards: config.guard,
            channels,
            topology,
            used_tables,
            plan: SharedPlan::default(),
            planned: false,
            settled: false,
            pods: HashMap::new(),
            populated: false,
            pod_names: FxHashMap::default(),
            learned: FxHashMap::default(),
            retained: FxHashSet::default(),
            hold: config.hold,
            routes: WantedRoutes::default(),
            targets: HashMap::new(),
            rules: BTreeSet::new(),
            found: routes,
            found_rules: rules,
            found_neighbours: neighbours,
            link_faults: BTreeMap::new(),
            link_pass: LinkPass::default(),
            default_link: None,
            routes_pass: !config.reach.is_empty(),
            reach: config.reach,
            reached: BTreeMap::new(),
            gateways,
            broken: BTreeSet::new(),
            farther: HashMap::new(),
            batch: Batch::new(),
            requests: Vec::new(),
            changed: 0,
            repairs: Repairs::default(),
            forwarding: Forwarding::default(),
            rescans: 0,
            faults: Vec::new(),
            last_error: None,
            errors: BTreeMap::new(),
            unsure: false,
        })
    }

    /// Runs until the last handle is dropped.
    pub(super) fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<Command>,
        mut urgent: mpsc::UnboundedReceiver<Urgent>,
    ) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "the kernel thread has no runtime"),
        };
        runtime.block_on(async {
            let mut events = match self.events.take().map(Events::register) {
                Some(Ok(events)) => events,
                Some(Err(error)) => return tracing::error!(%error, "the kernel's notifications cannot be read"),
                None => return,
            };
            self.keep_last_run();
            let (mut nftables, mut tables_changed, mut translates) = (None, false, false);
            let mut policies_changed = false;
            loop {
                if !self.has_tables() {
                    nftables = None;
                    self.listens = false;
                } else if let Some(fresh) = self.nftables.take() {
                    let fresh = fresh.register();
                    nftables = fresh
                        .map_err(|error| self.fault(Reason::Nftables, format!("nftables: {error}")))
                        .ok();
                    self.listens = nftables.is_some();
                }
                tokio::select! {
                    biased;
                    command = urgent.recv() => match command {
                        Some(command) => self.handle_urgent(command),
                        None => return,
                    },
                    ready = events.readable_mut() => match ready {
                        Ok(mut ready) => match ready.get_inner_mut().read() {
                            Ok(ReadResult::Message) => self.handle_notifications(ready.get_inner()),
                            Ok(ReadResult::WouldBlock) => {
                                ready.clear_ready();
                                self.settle_broken();
                            }
                            Ok(ReadResult::Overrun) => self.unsure = true,
                            Err(error) => {
                                self.fault(Reason::Netlink, format!("notifications: {error}"));
                                ready.clear_ready();
                                self.unsure = true;
                            }
                        },
                        Err(error) => return tracing::error!(%error, "the kernel's notifications cannot be read"),
                    },
                    Some(ready) = readable(&mut nftables) => match ready {
                        Ok(mut ready) => match ready.get_inner_mut().read() {
                            Ok(ReadResult::Message) => {
                                let messages = || ready.get_inner().messages();
                                let names = |table| messages().any(|message| nft::own_table(&message) == Some(table));
                                tables_changed |= names(OwnTable::Planned);
                                policies_changed |= names(OwnTable::Policies);
                                translates |= messages().any(|message| nft::is_foreign_nat(&message));
                            }
                            Ok(ReadResult::Overrun) => {
                                (tables_changed, policies_changed, translates) = (true, true, nft::has_nat());
                            }
                            Ok(ReadResult::WouldBlock) => {
                                ready.clear_ready();
                                if std::mem::take(&mut translates) {
                                    self.follow_translation();
                                }
                                if std::mem::take(&mut tables_changed) {
                                    self.repair_tables();
                                }
                                if std::mem::take(&mut policies_changed) {
                                    self.policies_disturbed();
                                }
                            }
                            Err(error) => {
                                self.fault(Reason::Nftables, format!("nftables' notifications: {error}"));
                                nftables = None;
                                self.listens = false;
                            }
                        },
                        Err(error) => {
                            self.fault(Reason::Nftables, format!("nftables' notifications: {error}"));
                            nftables = None;
                            self.listens = false;
                        }
                    },
                    command = commands.recv() => match command {
                        Some(command) => self.handle_command(command, &mut urgent),
                        None => return,
                    },
                }
                self.filter_routes(events.get_ref());
                if self.unsure
                    && let Err(error) = self.rescan()
                {
                    self.fault(Reason::of(&error), format!("rescan: {error}"));
                }
                self.report();
            }
        });
    }

    fn handle_urgent(&mut self, command: Urgent) {
        match command {
            Urgent::AddPod(pod, reply) => {
                let name = pod.host_ifname.clone();
                let result = self.need_guard().and_then(|()| self.add_pod(pod));
                self.report();
                let is_added = result.is_ok();
                let _ = reply.send(result);
                if is_added {
                    self.add_pod_addresses(&name);
                }
            }
            Urgent::RemovePod(host_ifname, reply) => {
                let result = self.remove_pod(&host_ifname);
                self.report();
                let _ = reply.send(result);
            }
            Urgent::ChangePolicies(change, reply) => {
                let result = self.change_policies(&change);
                self.report();
                let _ = reply.send(result);
            }
        }
    }

    // A command is executed even if its caller no longer waits; the reply is then dropped.
    fn handle_command(&mut self, command: Command, urgent: &mut mpsc::UnboundedReceiver<Urgent>) {
        match command {
            Command::Host(reply) => {
                let _ = reply.send(self.host());
            }
            Command::Reach(reach, reply) => {
                self.set_reach(reach);
                let _ = reply.send(());
            }
            Command::SetPlan(plan, reply) => {
                let result = self.set_plan(plan);
                self.report();
                let _ = reply.send(result);
            }
            Command::SetPods(pods, reply) => {
                let result = self.set_pods(pods);
                self.report();
                let _ = reply.send(result);
            }
            Command::Learned(changes, reply) => {
                let result = self.handle_learned(changes, urgent);
                self.report();
                let _ = reply.send(result);
            }
            Command::RetainLearned(reply) => {
                self.retain_learned();
                let _ = reply.send(());
            }
            Command::Release(family, reply) => {
                self.hold.remove(&family);
                let result = self.remove_retained(family).and_then(|()| self.sweep());
                self.report();
                let _ = reply.send(result);
            }
            Command::Devices(reply) => {
                let own = self.topology.links.values().filter(|link| topology::is_pods(&link.info));
                let on = |ifindex: u32| {
                    let found = self.found_neighbours.permanent.iter();
                    found.filter(|neighbour| neighbour.ifindex == ifindex).copied().collect()
                };
                let mut devices: Vec<OwnDevice> = own
                    .map(|link| OwnDevice {
                        ifname: link.info.name.clone(),
                        ifindex: link.info.index,
                        alias: link.info.alias.clone().unwrap_or_default(),
                        addresses: Vec::new(),
                        neighbours: on(link.info.index),
                    })
                    .collect();
                for (key, (target, _)) in self.found.iter().filter(|(key, _)| key.table == POD_TABLE) {
                    let Some(RouteTarget::Via(hops)) = target else { continue };
                    let leads_to =
                        |device: &&mut OwnDevice| hops.iter().any(|hop| hop.ifindex == Some(device.ifindex));
                    if let Some(device) = devices.iter_mut().find(leads_to) {
                        device.addresses.push(key.prefix.addr());
                    }
                }
                let _ = reply.send(devices);
            }
            Command::Nat(reply) => {
                let _ = reply.send(self.plan.nat.clone());
            }
            Command::Resync(reply) => {
                let result = self.rescan();
                self.report();
                let _ = reply.send(result);
            }
            Command::SetPolicies(table, reply) => {
                let result = self.set_policies(&table);
                self.report();
                let _ = reply.send(result);
            }
        }
    }

    fn host(&mut self) -> KernelHost {
        let default_link = self.default_link();
        self.look_up_reached();
        let own_rules = self.found_rules.iter().chain(&self.rules);
        let subnet_rules = own_rules.filter(|rule| rule.priority == SUBNET_RULE);
        KernelHost {
            links: self.topology.links(),
            link_faults: self.link_faults.clone(),
            default_link,
            reached: self.reached.clone(),
            link_numbers: self.link_numbers(),
            gateways: self.gateways.clone(),
            tables: subnet_rules
                .filter(|rule| rule.to.is_none())
                .filter_map(|rule| Some((rule.from?, rule.table)))
                .collect(),
            used_tables: self.used_tables.clone(),
            former: self.found_defaults(),
        }
    }

    fn set_plan(&mut self, plan: SharedPlan) -> Result<Applied, KernelError> {
        let before = self.changed;
        self.faults.clear();
        if plan.sysctls.contains_key(sysctl::FORWARDING_V6) {
            self.keep_router_advertisements();
        }
        for (path, wanted) in &plan.sysctls {
            match sysctl::apply(path, wanted) {
                Ok(changed) => self.changed += usize::from(changed),
                Err(error) => self.fault(Reason::Sysctl, error),
            }
        }
        self.settle_tables(&plan);

        let relearn = plan.learned != self.plan.learned;
        let old = std::mem::replace(&mut self.plan, plan.clone());
        if plan.route_localnet && !old.route_localnet {
            self.open_route_localnet_of_all();
        }
        if !self.planned || plan.arp_senders != old.arp_senders {
            self.settle_arp_senders();
        }
        self.planned = true;
        self.settle_links()?;
        self.settle_addresses();
        self.settle_neighbours(&old.neighbours);
        self.settle_proxies(&old.proxies);
        self.settle_fdb()?;
        let learned: Vec<RouteKey> =
            if relearn { self.learned.drain().map(|(key, _)| key).collect() } else { Vec::new() };
        // Routes come before rules, because with a rule for an empty table, packets would use the
        // main table. New routes come before deletions, because packets would use a shorter prefix.
        let gone = old.routes.keys().chain(&learned).filter(|key| !plan.routes.contains_key(key));
        for key in plan.routes.keys().chain(gone) {
            self.settle(*key)?;
        }
        let rules = std::mem::take(&mut self.rules);
        for rule in plan.rules.difference(&rules) {
            if !self.found_rules.remove(rule) {
                self.batch.add_rule(rule);
                self.requests.push(Request::AddRule(rule.clone()));
            }
        }
        for rule in rules.difference(&plan.rules) {
            self.batch.delete_rule(rule);
            self.requests.push(Request::DeleteRule);
        }
        self.rules.clone_from(&plan.rules);
        self.flush()?;
        // Set only here: after an error above, some wanted routes are not recorded yet.
        self.settled = true;
        self.sweep()?;
        Ok(Applied {
            changed: self.changed - before,
            relearn,
            unguarded: self.guard_missing().is_some(),
            faults: self.faults.clone(),
        })
    }

    fn set_pods(&mut self, pods: Vec<PodPlan>) -> Result<Vec<PodFault>, KernelError> {
        let mut faults = Vec::new();
        for pod in pods {
            let (host_ifname, ifindex) = (pod.host_ifname.clone(), pod.host_ifindex);
            if let Err(error) = self.put_pod(pod) {
                let gone = !self.topology.links.contains_key(&ifindex);
                if gone {
                    self.remove_pod(&host_ifname)?;
                }
                faults.push(PodFault { host_ifname, error, gone });
            }
        }
        self.populated = true;
        if !self.plan.arp_senders.is_empty() {
            self.settle_arp_senders();
        }
        let applied = self.guard.apply(&self.plan.guard, self.pods.values(), true);
        self.note_guard(applied, false);
        self.sweep_neighbours();
        self.sweep()?;
        Ok(faults)
    }

    /// Adds the pod of an ADD completely, or not at all.
    fn add_pod(&mut self, pod: PodPlan) -> Result<(), KernelError> {
        let name = pod.host_ifname.clone();
        let outcome = self.put_pod(pod);
        if let Err(KernelError::Pod { .. }) = &outcome {
            self.remove_pod(&name)?;
        }
        outcome
    }

    fn put_pod(&mut self, pod: PodPlan) -> Result<(), KernelError> {
        self.flush()?;
        self.faults.clear();
        let name = pod.host_ifname.clone();
        if let Some(old) = self.pods.get(&name)
            && *old != pod
        {
            if old.is_same_but_sources(&pod) {
                let old = old.clone();
                self.change_sources(&old, &pod);
                self.pods.insert(name, pod);
                return Ok(());
            }
            if old.is_same_but_routes(&pod) {
                return self.change_routes(&name, pod);
            }
            self.remove_pod(&name)?;
        }
        let found = std::mem::take(&mut self.found_neighbours);
        for neighbour in pod.neighbours.iter().filter(|neighbour| !found.permanent.contains(neighbour)) {
            self.put_neighbour(neighbour);
        }
        for proxy in pod.proxies.iter().filter(|proxy| !found.proxies.contains(proxy)) {
            self.put_proxy(proxy);
        }
        self.found_neighbours = found;
        self.pod_names.insert(pod.host_ifindex, name.clone());
        self.guard_pod(&pod);
        let routes = pod.routes.clone();
        self.pods.insert(name.clone(), pod);
        self.add_arp_sender(&name);
        self.put_routes(name, routes)
    }

    fn remove_pod(&mut self, host_ifname: &str) -> Result<(), KernelError> {
        let Some(pod) = self.pods.remove(host_ifname) else { return Ok(()) };
        self.pod_names.remove(&pod.host_ifindex);
        self.unguard_pod(&pod);
        self.remove_arp_sender(&pod);
        self.remove_routes(&pod, |_| true)?;
        pod.neighbours.iter().for_each(|neighbour| self.delete_neighbour(neighbour));
        pod.proxies.iter().for_each(|proxy| self.delete_proxy(proxy));
        self.flush()?;
        Ok(())
    }

    fn intern(&mut self, target: RouteTarget) -> Arc<RouteTarget> {
        if let Some(target) = self.targets.get(&target) {
            return Arc::clone(target);
        }
        // Removes unused targets if the map is large.
        if self.targets.len() > 1024 {
            self.targets.retain(|_, target| Arc::strong_count(target) > 1);
        }
        let shared = Arc::new(target.clone());
        self.targets.insert(target, Arc::clone(&shared));
        shared
    }

    /// The target for a key from plan and fabric. Keys of pods are in their own table and are
    /// handled separately.
    fn wanted(&mut self, key: &RouteKey) -> Option<Arc<RouteTarget>> {
        if let Some(target) = self.learned.get(key) {
            return Some(Arc::clone(target));
        }
        let target = self.plan.routes.get(key)?.clone();
        Some(self.intern(target))
    }

    fn settle(&mut self, key: RouteKey) -> Result<(), KernelError> {
        let wanted = self.wanted(&key);
        self.settle_to(key, wanted)
    }

    /// Adds the request that changes the installed route into the wanted one.
    fn settle_to(&mut self, key: RouteKey, wanted: Option<Arc<RouteTarget>>) -> Result<(), KernelError> {
        let Some(wanted) = wanted else {
            if self.routes.remove(&key).is_some() {
                self.batch.delete_route(&key, 0);
                self.requests.push(Request::DeleteRoute);
            }
            return self.flush_if_full();
        };
        let resolved = self.resolve(&wanted);
        let installed = self.routes.take_installed(&key);
        let installed = match (resolved, installed) {
            // There is no usable next hop, so the installed route is deleted. Otherwise packets
            // would use a next hop that no longer exists.
            (None, Some(_)) => {
                self.batch.delete_route(&key, 0);
                self.requests.push(Request::DeleteRoute);
                None
            }
            (None, None) => None,
            (Some(resolved), Some(installed)) if resolved == installed => Some(installed),
            (Some(resolved), _) => match self.found.remove(&key) {
                Some((Some(there), 0)) if there == *resolved => Some(resolved),
                _ => {
                    self.batch.put_route(&key, &resolved);
                    self.requests.push(Request::Put(key));
                    Some(resolved)
                }
            },
        };
        self.routes.insert(key, wanted, installed);
        self.flush_if_full()
    }

    fn resolve(&mut self, wanted: &Arc<RouteTarget>) -> Option<Arc<RouteTarget>> {
        let complete = match &**wanted {
            RouteTarget::Blackhole | RouteTarget::Unreachable | RouteTarget::Throw => true,
            RouteTarget::Via(hops) => hops.iter().all(|hop| {
                hop.gateway.is_none() && hop.ifindex.is_some_and(|index| self.topology.may_carry(index))
            }),
        };
        if complete {
            return Some(Arc::clone(wanted));
        }
        let Owner { topology, connection, farther, .. } = self;
        let resolved = topology.resolve(wanted, |gateway| {
            *farther.entry(gateway).or_insert_with(|| look_up(connection, gateway))
        })?;
        Some(self.intern(resolved))
    }

    fn flush_if_full(&mut self) -> Result<(), KernelError> {
        if self.requests.len() >= BATCH {
            self.flush()?;
            // A large table takes seconds; the status must show the progress.
            self.report();
        }
        Ok(())
    }

    /// Sends the batch. Returns the first failed request as text, with its refusal.
    fn flush(&mut self) -> Result<Option<(String, Refusal)>, KernelError> {
        let requests = std::mem::take(&mut self.requests);
        let outcome = self.connection.run(&mut self.batch);
        self.batch.clear();
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                self.unsure = true;
                return Err(error.into());
            }
        };
        self.changed += requests.len() - outcome.refusals.len();
        let mut first = None;
        for refusal in outcome.refusals {
            let Some(request) = requests.get(refusal.index) else { continue };
            let what = match (request, refusal.errno) {
                // The object is already deleted.
                (Request::DeleteRoute | Request::DeleteRule | Request::DeleteNeighbour, _) => continue,
                (Request::AddRule(_), libc::EEXIST) => continue,
                (Request::AddRule(rule), _) => {
                    self.rules.remove(rule);
                    format!("rule {} to table {}", rule.priority, rule.table)
                }
                (Request::Put(key), _) => {
                    self.routes.take_installed(key);
                    format!("route {} in table {}", key.prefix, key.table)
                }
                (Request::Neighbour(address), _) => format!("neighbour {address}"),
                (Request::Link(index), _) => format!("link {index}"),
                // The address is already deleted.
                (Request::DeleteAddress(_), libc::EADDRNOTAVAIL) => continue,
                (Request::DeleteAddress(address), _) => format!("deletion of address {address}"),
                (Request::Address(address), _) => {
                    if let Some(link) = self.topology.loopback() {
                        link.own.remove(address);
                    }
                    format!("address {address}")
                }
            };
            self.fault(Reason::Errno(refusal.errno), format!("{what}: {refusal}"));
            first.get_or_insert((what, refusal));
        }
        self.requests = requests;
        self.requests.clear();
        Ok(first)
    }

    /// Removes unwanted objects of the last run, limited to the sources that have sent their state.
    fn sweep(&mut self) -> Result<(), KernelError> {
        self.flush()?;
        let (settled, populated, hold) = (self.settled, self.populated, self.hold.clone());
        let may = |key: &RouteKey| match key.table {
            POD_TABLE => populated,
            DROP_TABLE => settled,
            _ => settled && !hold.contains(&IpFamily::of(&key.prefix)),
        };
        let stale: Vec<(RouteKey, u32)> =
            self.found.iter().filter(|(key, _)| may(key)).map(|(key, (_, metric))| (*key, *metric)).collect();
        for (key, metric) in stale {
            self.found.remove(&key);
            // A wanted route with the same key and the default metric stays: the metric selects the
            // other route.
            if metric != 0 || !self.routes.is_installed(&key) {
                self.batch.delete_route(&key, metric);
                self.requests.push(Request::DeleteRoute);
                self.flush_if_full()?;
            }
        }
        // After a restart, the map had all routes of the last run.
        self.found.shrink_to_fit();
        if settled {
            let stale: Vec<Rule> =
                self.found_rules.iter().filter(|rule| !hold.contains(&rule.family)).cloned().collect();
            for rule in stale {
                self.found_rules.remove(&rule);
                self.batch.delete_rule(&rule);
                self.requests.push(Request::DeleteRule);
            }
        }
        self.flush()?;
        Ok(())
    }

    /// Scans, compares and repairs. Returns the number of repairs.
    fn rescan(&mut self) -> Result<usize, KernelError> {
        self.unsure = false;
        self.rescans += 1;
        self.flush()?;
        let Scan { topology, routes: mut there, rules, neighbours, gateways, .. } =
            scan::scan(&mut self.connection, true)?;
        let gateways_changed = std::mem::replace(&mut self.gateways, gateways.clone()) != gateways;
        let links = self.topology.links();
        let known = self.topology.loopback().map(|link| std::mem::take(&mut link.own)).unwrap_or_default();
        let planned = std::mem::replace(&mut self.topology, topology).planned;
        self.topology.planned.extend(planned.iter().filter(|index| self.topology.links.contains_key(index)));
        self.topology.claim(&known);
        self.farther.clear();
        let gone: Vec<String> = self
            .pod_names
            .iter()
            .filter(|(index, _)| !self.topology.links.contains_key(index))
            .map(|(_, name)| name.clone())
            .collect();
        for name in gone {
            self.device_gone(&name);
        }

        let before = self.repairs.total();
        let keys: Vec<RouteKey> = self.routes.iter().map(|(key, _)| *key).collect();
        for key in keys {
            let actual = match there.remove(&key) {
                Some((Some(actual), 0)) => Some(actual),
                Some((actual, metric)) => {
                    there.insert(key, (actual, metric));
                    None
                }
                None => None,
            };
            let Some(entry) = self.routes.get(&key) else { continue };
            let wanted = Arc::clone(entry.wanted());
            if entry.installed() != actual.as_ref() {
                let was_installed = self.routes.take_installed(&key).is_some();
                self.repaired(RepairKind::Route, u64::from(was_installed), key);
            }
            self.settle_to(key, Some(wanted))?;
        }
        self.found = there;
        for rule in self.rules.difference(&rules) {
            self.repairs.add(RepairKind::Rule, 1, format_args!("priority {}", rule.priority));
            self.batch.add_rule(rule);
            self.requests.push(Request::AddRule(rule.clone()));
        }
        self.found_rules = rules.difference(&self.rules).cloned().collect();
        let missing: Vec<Neighbour> = self
            .wanted_neighbours()
            .filter(|neighbour| !neighbours.permanent.contains(neighbour))
            .copied()
            .collect();
        let unanswered: Vec<Proxy> =
            self.wanted_proxies().filter(|proxy| !neighbours.proxies.contains(proxy)).copied().collect();
        for (ifindex, address) in missing.iter().map(|neighbour| (neighbour.ifindex, neighbour.address)) {
            self.repaired(RepairKind::Neighbour, 1, format_args!("{address} on {}", self.link_name(ifindex)));
        }
        for proxy in &unanswered {
            self.repaired(RepairKind::Neighbour, 1, format_args!("{} (proxy)", proxy.address));
        }
        missing.iter().for_each(|neighbour| self.put_neighbour(neighbour));
        unanswered.iter().for_each(|proxy| self.put_proxy(proxy));
        self.found_neighbours = neighbours;
        self.sweep_neighbours();
        for address in self.settle_addresses() {
            self.repaired(RepairKind::Address, u64::from(known.contains(&address)), address);
        }
        let forwarding = self.settle_fdb()? as u64;
        self.repaired(RepairKind::Forwarding, forwarding, "found by a scan");
        self.forwarding.repairs += forwarding;
        let pods: Vec<u32> = self.pod_names.keys().copied().collect();
        for index in pods {
            self.repair_device(index);
        }
        self.sweep()?;
        if gateways_changed || links != self.topology.links() {
            self.host_changed();
            self.settle_links()?;
        }
        Ok((self.repairs.total() - before) as usize)
    }
}

/// Waits until the listener is readable; waits for ever without a listener.
async fn readable(
    events: &mut Option<AsyncFd<Events>>,
) -> Option<io::Result<AsyncFdReadyMutGuard<'_, Events>>> {
    match events {
        Some(events) => Some(events.readable_mut().await),
        None => std::future::pending().await,
    }
}

/// The next hop for a gateway in the kernel's tables.
fn look_up(connection: &mut Connection, gateway: IpAddr) -> Option<Hop> {
    let mut batch = Batch::new();
    batch.get_route(gateway);
    let outcome = connection.run(&mut batch).ok()?;
    let route = outcome.replies.iter().find_map(|(_, _, body)| objects::read_route(body))?;
    match route.target? {
        RouteTarget::Via(hops) => {
            let hop = *hops.first()?;
            Some(Hop { gateway: hop.gateway.or(Some(gateway)), ..hop })
        }
        RouteTarget::Blackhole | RouteTarget::Unreachable | RouteTarget::Throw => None,
    }
}
