//! The packets of a round, and the conclusions from the results. No I/O: [`super::task`] sends.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;
use trunkline_api::control::ProbedRouter as Shown;
use trunkline_api::control::{ProbeCheck, ProbeFault, ProbeFaultKind, ProbeState, ProbeStatus};
use trunkline_bgp::types::{Family, PeerKey};

use super::faults::{self, FaultSubject};
use super::packet::Kind;
use super::state::{Check, State};
use crate::plan::{ProbePlan, ProbedRouter};

/// For this time after a session comes up or a pod is attached, losses are ignored, because the
/// router needs time to install the routes.
const GRACE: Duration = Duration::from_secs(10);
/// Time between rounds while a check is in doubt.
const IN_DOUBT: Duration = Duration::from_secs(1);
/// Maximum number of probes on one uplink per second.
const RATE: u32 = 10;
/// Source ports of probes that a router returns.
const FIRST_PORT: u16 = 49_152;

/// The checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CheckName {
    /// The router answers an echo request.
    Peer,
    /// The router forwards packets to a pod of this node.
    ToPods,
    /// The router accepts packets from a pod of this node.
    FromPods,
    /// The router accepts packets of the maximum size of a pod's link from a pod of this node.
    Size,
    /// Another node answers a pod of this node.
    Target,
    /// Another node answers packets of the maximum size from a pod of this node.
    TargetSize,
}

impl CheckName {
    pub(super) fn name(self) -> &'static str {
        match self {
            CheckName::Peer => "peer",
            CheckName::ToPods => "toPods",
            CheckName::FromPods => "fromPods",
            CheckName::Size => "size",
            CheckName::Target => "target",
            CheckName::TargetSize => "targetSize",
        }
    }

    /// The check with small packets that is the reference for this check.
    fn small(self, loops: bool) -> Option<CheckName> {
        match self {
            // Routers may also limit the size of their answers.
            CheckName::Size => loops.then_some(CheckName::ToPods),
            CheckName::TargetSize => Some(CheckName::Target),
            _ => None,
        }
    }
}

/// A router in one family.
pub(super) type RouterKey = (PeerKey, Family);

/// One packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) router: RouterKey,
    pub(super) check: CheckName,
    pub(super) ifindex: u32,
    pub(super) gateway: IpAddr,
    pub(super) kind: Kind,
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) hops: u8,
    pub(super) length: usize,
}

/// Settings from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether the agent sends probes.
    pub enabled: bool,
    /// Time between rounds.
    pub interval: Duration,
    /// Octets of a large probe, if not the pods' MTU.
    pub size: Option<u16>,
    /// Whether a router with a fault is excluded from the pods' next hops.
    pub failover: bool,
}

/// A change of a router's faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) peer: String,
    pub(super) begun: bool,
    pub(super) text: String,
}

#[derive(Debug)]
struct Router {
    began: Instant,
    planned: ProbedRouter,
    /// The pod of the probes, and their source port.
    subject: Option<(IpAddr, u16)>,
    checks: BTreeMap<CheckName, Check>,
    /// Large probes are forwarded back, not answered.
    loops: bool,
    faults: BTreeMap<ProbeFaultKind, ProbeFault>,
}

/// All routers and their checks.
#[derive(Debug)]
pub(super) struct ProbeSchedule {
    settings: Settings,
    routers: BTreeMap<RouterKey, Router>,
    /// The known pods, each with the time when it appeared.
    pods: BTreeMap<IpAddr, Instant>,
    targets: BTreeSet<IpAddr>,
    size: usize,
    /// Number of probes in the last round on the busiest uplink.
    busiest: u32,
}

impl ProbeSchedule {
    pub(super) fn new(settings: Settings) -> ProbeSchedule {
        ProbeSchedule {
            settings,
            routers: BTreeMap::new(),
            pods: BTreeMap::new(),
            targets: BTreeSet::new(),
            size: 0,
            busiest: 0,
        }
    }

    /// The probes of the next round. `advertised`: the pods' addresses that each peer has received.
    /// `random` returns random numbers.
    pub(super) fn plan(
        &mut self,
        plan: &ProbePlan,
        pods: &[IpAddr],
        now: Instant,
        mut random: impl FnMut() -> u64,
    ) -> Vec<Probe> {
        self.pods.retain(|pod, _| pods.contains(pod));
        for pod in pods {
            self.pods.entry(*pod).or_insert(now);
        }
        let old: Vec<IpAddr> = self
            .pods
            .iter()
            .filter(|(_, since)| now.duration_since(**since) >= GRACE)
            .map(|(pod, _)| *pod)
            .collect();
        self.targets.clone_from(&plan.targets);
        self.size = self.settings.size.map_or(plan.mtu as usize, usize::from);
        let routers: BTreeMap<RouterKey, &ProbedRouter> =
            plan.routers.iter().map(|router| ((router.peer, router.family), router)).collect();
        self.routers
            .retain(|key, router| routers.get(key).is_some_and(|planned| **planned == router.planned));
        let mut probes = Vec::new();
        for (key, planned) in routers {
            let router = self.routers.entry(key).or_insert_with(|| Router {
                began: now,
                planned: planned.clone(),
                subject: None,
                checks: BTreeMap::new(),
                loops: false,
                faults: BTreeMap::new(),
            });
            let of_family: Vec<IpAddr> =
                old.iter().filter(|pod| Family::of(&(**pod).into()) == key.1).copied().collect();
            router.choose(&of_family, &mut random);
            probes.extend(router.probes(key, &of_family, &plan.targets, self.size));
        }
        let mut uplinks: BTreeMap<u32, u32> = BTreeMap::new();
        probes.iter().for_each(|probe| *uplinks.entry(probe.ifindex).or_default() += 1);
        self.busiest = uplinks.values().copied().max().unwrap_or(0);
        probes
    }

    /// The pods of the probes. The caller determines the peers that have received these pods'
    /// routes.
    pub(super) fn subjects(&self) -> BTreeSet<IpAddr> {
        self.routers.values().filter_map(|router| Some(router.subject?.0)).collect()
    }

    /// Handles the results of a round: each probe, and whether it returned.
    pub(super) fn handle(&mut self, results: &[(Probe, bool)], now: Instant) -> Vec<Change> {
        // The check passes if one of several targets answers.
        let mut outcome: BTreeMap<(RouterKey, CheckName), bool> = BTreeMap::new();
        for (probe, answered) in results {
            *outcome.entry((probe.router, probe.check)).or_default() |= answered;
        }
        let good: BTreeSet<(RouterKey, CheckName)> = self
            .routers
            .iter()
            .flat_map(|(key, router)| {
                router.checks.iter().map(move |(name, check)| (*key, *name, check.state))
            })
            .filter(|(_, _, state)| *state == State::Good)
            .map(|(key, name, _)| (key, name))
            .chain(outcome.iter().filter(|(_, answered)| **answered).map(|(key, _)| *key))
            .collect();
        for ((key, name), answered) in &outcome {
            let Some(router) = self.routers.get_mut(key) else { continue };
            if !answered && now.duration_since(router.began) < GRACE {
                continue;
            }
            let elsewhere = good.iter().any(|(other, of)| of == name && other.1 == key.1 && other.0 != key.0);
            let small = name.small(router.loops).and_then(|small| outcome.get(&(*key, small)));
            let expected = elsewhere || small == Some(&true);
            router.checks.entry(*name).or_insert_with(|| Check::new(now)).handle(*answered, expected, now);
        }
        // Checks without a probe in this round are forgotten.
        for (key, router) in &mut self.routers {
            router.checks.retain(|name, _| outcome.contains_key(&(*key, *name)));
        }
        self.judge()
    }

    /// Computes the current faults, and returns the new and the ended ones.
    fn judge(&mut self) -> Vec<Change> {
        let states: BTreeMap<RouterKey, BTreeMap<CheckName, State>> = self
            .routers
            .iter()
            .map(|(key, router)| {
                (*key, router.checks.iter().map(|(name, check)| (*name, check.state)).collect())
            })
            .collect();
        let mut changes = Vec::new();
        for (key, router) in &mut self.routers {
            let others = || states.iter().filter(|(other, _)| other.1 == key.1 && other.0 != key.0);
            let reach = others().any(|(_, checks)| checks.get(&CheckName::Target) == Some(&State::Good));
            let kinds = faults::kinds(&states[key], others().next().is_none(), reach);
            let (peer, family) = (key.0.to_string(), key.1.to_string());
            let about = FaultSubject {
                peer: &peer,
                family: &family,
                link: &router.planned.link,
                pod: router.subject.map(|(pod, _)| pod),
                size: self.size,
                gateway: router.planned.gateway,
            };
            for kind in router.faults.keys().copied().collect::<Vec<_>>() {
                if !kinds.contains(&kind) {
                    router.faults.remove(&kind);
                    let text = format!(
                        "probes through peer {peer} ({family}): the check `{}` passes again",
                        kind.name()
                    );
                    changes.push(Change { peer: peer.clone(), begun: false, text });
                }
            }
            for kind in kinds {
                if let Entry::Vacant(entry) = router.faults.entry(kind) {
                    let fault = entry.insert(faults::words(kind, &about));
                    changes.push(Change { peer: peer.clone(), begun: true, text: fault.text.clone() });
                }
            }
        }
        changes
    }

    /// The time until the next round.
    pub(super) fn pause(&self) -> Duration {
        let in_doubt = self.routers.values().any(|router| router.checks.values().any(Check::is_in_doubt));
        let wanted = if in_doubt { IN_DOUBT } else { self.settings.interval };
        wanted.max(Duration::from_secs(1) * self.busiest / RATE)
    }

    /// Peers with a fault, if `probes.failover` excludes them; never all peers.
    pub(super) fn left_out(&self) -> BTreeSet<PeerKey> {
        let all: BTreeSet<PeerKey> = self.routers.keys().map(|(peer, _)| *peer).collect();
        let faulty: BTreeSet<PeerKey> = (self.routers.iter())
            .filter(|(_, router)| !router.faults.is_empty())
            .map(|((peer, _), _)| *peer)
            .collect();
        if self.settings.failover && faulty.len() < all.len() { faulty } else { BTreeSet::new() }
    }

    /// The status for operators.
    pub(super) fn status(&self, now: Instant) -> ProbeStatus {
        let left_out = self.left_out();
        let mut notes = Vec::new();
        if !self.routers.is_empty() && self.routers.values().all(|router| router.subject.is_none()) {
            notes.push(
                "no pod with an advertised address has been here for 10 s: routers are probed with this node's own address"
                    .to_owned(),
            );
        }
        if self.targets.is_empty() && !self.routers.is_empty() {
            notes.push(
                "no other node is known: only the routers are probed; write `probes.targets`".to_owned(),
            );
        }
        let shown = |((peer, family), router): (&RouterKey, &Router)| Shown {
            peer: peer.to_string(),
            family: family.to_string(),
            link: router.planned.link.clone(),
            left_out: left_out.contains(peer),
            checks: router
                .checks
                .iter()
                .map(|(name, check)| ProbeCheck {
                    name: name.name().to_owned(),
                    state: match check.state {
                        State::Unproven => ProbeState::Unproven,
                        State::Good => ProbeState::Good,
                        State::Failing => ProbeState::Failing,
                    },
                    seconds: now.duration_since(check.since).as_secs(),
                    sent: check.sent,
                    lost: check.lost,
                })
                .collect(),
            faults: router.faults.values().cloned().collect(),
        };
        ProbeStatus {
            interval_milliseconds: self.settings.interval.as_millis() as u64,
            failover: self.settings.failover,
            targets: self.targets.iter().copied().collect(),
            notes,
            routers: self.routers.iter().map(shown).collect(),
        }
    }
}

impl Router {
    /// Selects the pod and the port. While a check is in doubt or fails, both stay, because another
    /// packet could take another path.
    fn choose(&mut self, pods: &[IpAddr], mut random: impl FnMut() -> u64) {
        let settled = |check: &Check| check.state != State::Failing && !check.is_in_doubt();
        let stays = self.subject.is_some_and(|(pod, _)| pods.contains(&pod));
        if stays && !self.checks.values().all(settled) {
            return;
        }
        let number = random();
        let port = FIRST_PORT + (number >> 32) as u16 % (u16::MAX - FIRST_PORT);
        self.subject = pods.get(number as u32 as usize % pods.len().max(1)).map(|pod| (*pod, port));
    }

    fn probes(
        &mut self,
        key: RouterKey,
        pods: &[IpAddr],
        targets: &BTreeSet<IpAddr>,
        size: usize,
    ) -> Vec<Probe> {
        let ProbedRouter { gateway, ifindex, own, .. } = self.planned;
        let echo = |check, source, destination, length| Probe {
            router: key,
            check,
            ifindex,
            gateway,
            kind: Kind::Echo,
            source,
            destination,
            hops: 64,
            length,
        };
        let mut probes = Vec::new();
        let answers = own.filter(|own| own.is_ipv4() == gateway.is_ipv4());
        probes.extend(answers.map(|own| echo(CheckName::Peer, own, gateway, 0)));
        let loops = self.subject.is_some();
        if loops != self.loops {
            self.checks.remove(&CheckName::Size);
            self.loops = loops;
        }
        let Some((pod, port)) = self.subject else {
            probes.extend(answers.map(|own| echo(CheckName::Size, own, gateway, size)));
            return probes;
        };
        let other = own.or_else(|| pods.iter().find(|other| **other != pod).copied());
        if let Some(other) = other {
            // The TTL is enough for one router. If the router sends the packet to another host,
            // that host drops it, so no pod receives it.
            let back = |check, source, destination, length| Probe {
                kind: Kind::Loop { port },
                hops: 2,
                ..echo(check, source, destination, length)
            };
            probes.push(back(CheckName::ToPods, other, pod, 0));
            probes.push(back(CheckName::FromPods, pod, other, 0));
            probes.push(back(CheckName::Size, other, pod, size));
        }
        for target in targets.iter().filter(|target| target.is_ipv4() == pod.is_ipv4()).take(2) {
            probes.push(echo(CheckName::Target, pod, *target, 0));
            probes.push(echo(CheckName::TargetSize, pod, *target, size));
        }
        probes
    }
}
