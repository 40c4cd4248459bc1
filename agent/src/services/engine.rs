//! The state of the services task, without I/O: inputs with a time, and changes as output.
//!
//! An input changes rows and marks the addresses that it may concern. [`Engine::advance`] decides
//! these addresses anew, and those with a deadline that is over. So the cost of a change depends on
//! the addresses of one Service, and not on the number of Services.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use smallvec::SmallVec;
use tokio::time::Instant;
use trunkline_api::control::{AdvertisementState, ProxyRulesState, WithheldReason};
use trunkline_api::kept::BoundedLabels;
use trunkline_api::resources::ServiceAdvertisementSpec;
use trunkline_api::service::{AddressKind, PortKey};

use super::advertisements;
use super::cache::CachedAddress;
use super::endpoints::Reachable;
use super::l2::{Candidacy, Candidates, Holders};
use super::prefixes::PrefixTable;
use super::rows::{Rows, Touched};
use super::{
    LocalPods, NodeInput, NodeStage, PortRules, ProxyHealth, ProxyState, ServiceKey, ServicePrefixes,
    ServicesPlan, Settings,
};

mod evaluate;
mod facts;
mod inputs;
mod row;

pub(super) use facts::Collected;
pub(super) use row::{AddressRow, State};

/// Retained addresses that nothing contradicts are advertised this long before the other prefixes.
const BEFORE_DEFERRAL: Duration = Duration::from_secs(1);

/// The last run's addresses.
#[derive(Debug)]
pub(super) enum Former {
    /// There was no last run since the boot, or it advertised nothing.
    None,
    /// It advertised these addresses.
    Addresses(BTreeMap<IpAddr, CachedAddress>),
    /// It is not known.
    Unreadable,
}

/// All state.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) settings: Settings,
    pub(super) rows: Rows,
    namespaces: Option<HashMap<Arc<str>, BoundedLabels>>,
    services_listed: bool,
    slices_listed: bool,
    pub(super) plan: Arc<ServicesPlan>,
    /// A plan that waits for the labels of Namespaces.
    waiting_plan: Option<Arc<ServicesPlan>>,
    /// Whether any plan has arrived.
    has_plan: bool,
    kinds: BTreeSet<AddressKind>,
    pub(super) node: Option<NodeInput>,
    stage: NodeStage,
    pub(super) proxy: ProxyState,
    up_since: Instant,
    /// The rules of each address, by port.
    rules: BTreeMap<IpAddr, SmallVec<[(PortKey, PortRules); 2]>>,
    pub(super) reachable: Reachable,
    /// Services with changed endpoints while the service proxy is away, with the local endpoints
    /// that its rules know.
    stale: HashMap<ServiceKey, HashSet<IpAddr>>,
    pub(super) known: bool,
    /// The last run's addresses, until everything is known.
    former: BTreeMap<IpAddr, CachedAddress>,
    /// Whether the last run's addresses may be advertised: the kernel confirms them.
    confirmed: bool,
    /// The time until which the first decisions wait for the service proxy, or for the Services;
    /// none once it is over.
    patience: Option<Instant>,
    ready: bool,
    pub(super) addresses: BTreeMap<IpAddr, AddressRow>,
    touched: BTreeSet<IpAddr>,
    touched_all: bool,
    /// The effects of the pages of a list that is not complete. A decision between two pages could
    /// miss an endpoint that moves from one slice to another one.
    services_in_list: Touched,
    slices_in_list: Touched,
    deadlines: BTreeSet<(Instant, IpAddr)>,
    /// Addresses with rules that differ from the endpoints, with the start of this state.
    late: BTreeSet<(Instant, IpAddr)>,
    pub(super) table: PrefixTable,
    interest: Vec<IpNet>,
    counts: Counts,
    /// Whether [`Self::candidates`] may have changed.
    l2_changed: bool,
    /// The holders of addresses of L2 pools.
    pub(super) holders: Holders,
    output: Output,
}

/// A change of the state of an address.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Transition {
    pub(super) address: IpAddr,
    /// The new state; none: the address is no Service's any more.
    pub(super) state: Option<State>,
    /// Address, Service and state as text.
    pub(super) text: String,
}

/// The results of [`Engine::advance`].
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Changes for the reconcile task; the last one of a prefix counts.
    pub(super) prefixes: ServicePrefixes,
    /// Changed states of advertised addresses.
    pub(super) transitions: Vec<Transition>,
    /// Changes of the cache.
    pub(super) cache: BTreeMap<IpAddr, Option<CachedAddress>>,
    /// New prefixes of which the rules are needed.
    pub(super) interest: Option<Vec<IpNet>>,
    /// Whether the service proxy's health is requested.
    pub(super) check_proxy: bool,
    /// The addresses of L2 pools that this node can serve, if they have changed.
    pub(super) candidates: Option<Candidates>,
    /// Whether a view has changed.
    pub(super) changed: bool,
    /// A prefix that was not advertised before.
    pub(super) added: Option<IpNet>,
    /// Whether the last run's addresses are confirmed, or everything is known for the first time.
    pub(super) settled: bool,
}

/// Numbers for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Addresses by state, and whether they are IPv6.
    pub addresses: BTreeMap<(AdvertisementState, bool), u64>,
    /// Withheld addresses by reason.
    pub withheld: BTreeMap<WithheldReason, u64>,
}

impl Engine {
    pub(super) fn new(
        settings: Settings,
        former: Former,
        local: LocalPods,
        stage: NodeStage,
        now: Instant,
    ) -> Engine {
        let mut reachable = Reachable::default();
        reachable.set(local);
        let (ready, former) = match former {
            Former::None => (true, BTreeMap::new()),
            Former::Addresses(addresses) => (addresses.is_empty(), addresses),
            Former::Unreadable => (false, BTreeMap::new()),
        };
        let mut engine = Engine {
            patience: Some(now + settings.deferral.saturating_sub(BEFORE_DEFERRAL)),
            settings,
            rows: Rows::default(),
            namespaces: None,
            services_listed: false,
            slices_listed: false,
            plan: Arc::default(),
            waiting_plan: None,
            has_plan: false,
            kinds: BTreeSet::new(),
            node: None,
            stage,
            proxy: ProxyState { health: ProxyHealth::Unknown, rules: None },
            up_since: now,
            rules: BTreeMap::new(),
            reachable,
            stale: HashMap::new(),
            known: false,
            former,
            confirmed: false,
            ready,
            addresses: BTreeMap::new(),
            touched: BTreeSet::new(),
            touched_all: false,
            services_in_list: Touched::default(),
            slices_in_list: Touched::default(),
            deadlines: BTreeSet::new(),
            late: BTreeSet::new(),
            table: PrefixTable::default(),
            interest: Vec::new(),
            counts: Counts::default(),
            l2_changed: true,
            holders: Holders::default(),
            output: Output::default(),
        };
        engine.retain_former(now);
        engine.set_interest();
        engine
    }

    /// The last run's addresses begin as they were. A graceful shutdown begins anew.
    fn retain_former(&mut self, now: Instant) {
        let seconds = ServiceAdvertisementSpec::DEFAULT_GRACEFUL_SHUTDOWN;
        let withdraw_at = now + Duration::from_secs(seconds.into());
        let row = |cached: &CachedAddress, counts: &mut Counts| {
            let state = match cached.shutting_down {
                false => State::Advertised,
                true => State::ShuttingDown { reason: WithheldReason::NotKnown, withdraw_at },
            };
            let ports = cached.members.iter().flat_map(|member| member.ports.iter().map(|port| port.key));
            let mut forwarded: SmallVec<[PortKey; 2]> = ports.collect();
            forwarded.sort_unstable();
            let counted = Some((AdvertisementState::Retained, state.reason()));
            counts.replace(cached.address, None, counted);
            AddressRow {
                state,
                counted,
                is_l2: cached.l2,
                names: cached.advertisements.iter().map(|name| Arc::from(name.as_str())).collect(),
                forwarded,
                cached: Some(cached.digest()),
                ..AddressRow::new(now)
            }
        };
        let rows = self.former.values().map(|cached| (cached.address, row(cached, &mut self.counts)));
        // A map that is built at once has full nodes.
        self.addresses = rows.collect();
    }

    // ---- decisions

    /// Decides every address that an input or a deadline concerns.
    pub(super) fn advance(&mut self, now: Instant) -> Output {
        self.look_around(now);
        let over = self.deadlines.iter().take_while(|(at, _)| *at <= now);
        self.touched.extend(over.map(|(_, address)| *address));
        if std::mem::take(&mut self.touched_all) {
            self.touched.extend(self.rows.addresses());
            self.touched.extend(self.addresses.keys());
        }
        for address in std::mem::take(&mut self.touched) {
            self.evaluate(address, now);
        }
        self.reachable.sweep(now);
        self.ready |= self.known || (self.confirmed && !self.former.is_empty());
        if self.known && !self.former.is_empty() {
            self.former.clear();
            self.set_interest();
        }
        self.output.prefixes.ready = self.ready;
        if std::mem::take(&mut self.l2_changed) {
            self.output.candidates = Some(self.candidates());
        }
        std::mem::take(&mut self.output)
    }

    /// The addresses of L2 pools that this node can serve.
    pub(super) fn candidates(&self) -> Candidates {
        let candidacy = |row: &AddressRow| match row.state {
            State::Advertised => Some(Candidacy::Ready),
            State::ShuttingDown { .. } => Some(Candidacy::Leaving),
            State::Withheld(_) => None,
        };
        let of_l2 = self.addresses.iter().filter(|(_, row)| row.is_l2);
        of_l2.filter_map(|(address, row)| Some((*address, candidacy(row)?))).collect()
    }

    /// Gives large tables full nodes: half of the memory of nodes that have grown.
    pub(super) fn compact(&mut self) {
        self.addresses = std::mem::take(&mut self.addresses).into_iter().collect();
        self.table.compact();
    }

    /// The next time at which [`Self::advance`] has work without an input.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let first = self.deadlines.first().map(|(at, _)| *at);
        [first, self.patience.filter(|_| !self.known)].into_iter().flatten().min()
    }

    /// Whether there are so many rows that their memory matters.
    pub(super) fn are_many(&self) -> bool {
        self.rows.are_many() || self.addresses.len() >= Rows::MANY
    }

    /// The numbers for metrics.
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The time since which rules of the service proxy differ from the endpoints.
    pub(super) fn late_since(&self) -> Option<Instant> {
        self.late.first().map(|(since, _)| *since)
    }

    /// Whether the rules of the service proxy can be seen.
    pub(super) fn rules_are_visible(&self) -> bool {
        use ProxyRulesState::{Absent, Iptables, Nftables};
        self.proxy.health != ProxyHealth::NotChecked
            && matches!(self.proxy.rules, Some(Nftables | Iptables | Absent))
    }

    /// Finds out whether the former addresses are confirmed, and whether everything is known.
    fn look_around(&mut self, now: Instant) {
        if self.known {
            return;
        }
        self.patience = self.patience.filter(|until| *until > now);
        let proxy_answered = self.proxy.rules.is_some() && self.proxy.health != ProxyHealth::Unknown;
        let proxy_known =
            proxy_answered || self.proxy.health == ProxyHealth::NotChecked || self.patience.is_none();
        let namespaces_known = self.namespaces.is_some() || !advertisements::needs_namespaces(&self.plan);
        let listed = self.services_listed && self.slices_listed && namespaces_known && self.node.is_some();
        if listed && proxy_known && self.has_plan && self.plan.complete {
            (self.known, self.touched_all, self.output.changed) = (true, true, true);
            self.output.settled = true;
        } else if !self.confirmed
            && self.has_plan
            && (self.patience.is_none()
                || (proxy_answered && self.rules_are_visible())
                // Without a service proxy, no rules can contradict the last run's addresses.
                || self.proxy.health == ProxyHealth::NotChecked)
        {
            (self.confirmed, self.output.settled) = (true, true);
            self.touched.extend(self.former.keys());
        }
    }
}

/// A counted state with its reason.
type Counted = (AdvertisementState, Option<WithheldReason>);

impl Counts {
    fn replace(&mut self, address: IpAddr, before: Option<Counted>, after: Option<Counted>) {
        for (counted, add) in [(before, false), (after, true)] {
            let Some((state, reason)) = counted else { continue };
            let step = |number: &mut u64| *number = if add { *number + 1 } else { number.saturating_sub(1) };
            step(self.addresses.entry((state, address.is_ipv6())).or_default());
            if let Some(reason) = reason.filter(|_| state == AdvertisementState::Withheld) {
                step(self.withheld.entry(reason).or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests;
