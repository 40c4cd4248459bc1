//! The clock and the I/O of probes.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep, timeout_at};
use trunkline_api::control::{EventKind, ProbeStatus};
use trunkline_bgp::speaker::ExportStanding;
use trunkline_bgp::types::{Family, PeerKey};

use super::packet::{Kind, Mac, Packet};
use super::schedule::{Probe, ProbeSchedule, Settings};
use super::socket::{self, Uplink};
use crate::change_notifier::ChangeNotifier;
use crate::family::ip_family;
use crate::history::History;
use crate::plan::ProbePlan;
use crate::reconcile::{Advertised, Reconcile};

/// A probe that has not returned after this time is lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// The state of the probes. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    shown: Arc<Mutex<Option<ProbeStatus>>>,
}

impl Probes {
    /// The status after the last round; none if the agent sends no probes.
    pub fn status(&self) -> Option<ProbeStatus> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn show(&self, status: Option<ProbeStatus>) {
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// Unpredictable numbers, so no other host can forge an answer: SipHash of a counter, with a key
/// from the operating system. `fastrand` derives its seed from the time, so it is predictable.
struct NonceGenerator {
    key: RandomState,
    count: u64,
}

impl NonceGenerator {
    fn draw(&mut self) -> u64 {
        self.count += 1;
        self.key.hash_one(self.count)
    }
}

/// Sends probes until the reconcile task ends.
pub fn spawn(settings: Settings, reconcile: Reconcile, history: History, notifier: ChangeNotifier) -> Probes {
    let probes = Probes::default();
    if settings.enabled {
        let mut numbers = NonceGenerator { key: RandomState::new(), count: 0 };
        let task = Task {
            cookie: numbers.draw() as u32,
            schedule: ProbeSchedule::new(settings),
            numbers,
            reconcile,
            history,
            notifier,
            probes: probes.clone(),
            left_out: BTreeSet::new(),
            unprobed: BTreeSet::new(),
        };
        tokio::spawn(task.run());
    }
    probes
}

struct Task {
    schedule: ProbeSchedule,
    cookie: u32,
    numbers: NonceGenerator,
    reconcile: Reconcile,
    history: History,
    notifier: ChangeNotifier,
    probes: Probes,
    left_out: BTreeSet<PeerKey>,
    /// Uplinks without a socket in the last round, each with the reason.
    unprobed: BTreeSet<String>,
}

impl Task {
    async fn run(mut self) {
        let mut plans = self.reconcile.plan();
        loop {
            // Without a router no probe is possible.
            let has_routers =
                plans.wait_for(|plan| plan.as_ref().is_some_and(|plan| !plan.probes.routers.is_empty()));
            let plan = match has_routers.await {
                Ok(plan) => plan.as_ref().map(|plan| plan.probes.clone()).unwrap_or_default(),
                Err(_) => return,
            };
            let Some(Advertised { pods, speaker }) = self.reconcile.advertised().await else { return };
            let now = Instant::now();
            let numbers = &mut self.numbers;
            let mut round = self.schedule.plan(&plan, &pods, now, || numbers.draw());
            // A router cannot know a pod that the export policy rejects for it.
            let mut withheld: HashMap<IpAddr, BTreeSet<PeerKey>> = HashMap::new();
            for pod in self.schedule.subjects() {
                let Some(speaker) = &speaker else { break };
                let Ok(explained) = speaker.explain(pod.into()).await else { continue };
                let others =
                    explained.peers.iter().filter(|peer| peer.standing != ExportStanding::Advertised);
                withheld.insert(pod, others.map(|peer| peer.peer).collect());
            }
            round.retain(|probe| {
                let of = |pod| withheld.get(pod).is_some_and(|peers| peers.contains(&probe.router.0));
                !of(&probe.source) && !of(&probe.destination)
            });
            let results = self.send(&plan, round).await;
            let changes = self.schedule.handle(&results, Instant::now());
            let changed = !changes.is_empty();
            for change in changes {
                let kind = match change.begun {
                    true => {
                        tracing::warn!(peer = change.peer, "{}", change.text);
                        EventKind::ProbeFailing
                    }
                    false => {
                        tracing::info!(peer = change.peer, "{}", change.text);
                        EventKind::ProbeGood
                    }
                };
                self.history.record(kind, Some(change.peer), None, change.text);
            }
            let mut status = self.schedule.status(Instant::now());
            status.notes.extend(self.unprobed.iter().cloned());
            self.probes.show(Some(status));
            let left_out = self.schedule.left_out();
            if left_out != self.left_out {
                self.reconcile.leave_out(left_out.clone()).await;
                self.left_out = left_out;
            }
            if changed {
                self.notifier.notify();
            }
            // Nodes that start together must not probe together: the pause is up to a tenth
            // shorter.
            let pause = self.schedule.pause();
            let jitter = pause.mul_f64(0.1 * (self.numbers.draw() >> 11) as f64 / (1_u64 << 53) as f64);
            sleep(pause - jitter).await;
        }
    }

    /// Sends a round and waits for returned probes.
    async fn send(&mut self, plan: &ProbePlan, round: Vec<Probe>) -> Vec<(Probe, bool)> {
        // A next hop of the other family may have no neighbour entry yet. It is the same router.
        let hops: Vec<(u32, IpAddr)> = plan
            .routers
            .iter()
            .flat_map(|router| [router.gateway, router.peer.address()].map(|hop| (router.ifindex, hop)))
            .collect();
        let requested = hops.clone();
        let macs =
            tokio::task::spawn_blocking(move || socket::neighbours(&requested)).await.unwrap_or_default();
        let macs: HashMap<(u32, IpAddr), Mac> =
            hops.into_iter().zip(macs).filter_map(|(hop, mac)| Some((hop, mac?))).collect();
        let mac_of = |probe: &Probe| {
            let of = |address| macs.get(&(probe.ifindex, address)).copied();
            of(probe.gateway).or_else(|| of(probe.router.0.address()))
        };
        self.unprobed.clear();
        let mut uplinks: HashMap<(u32, Family), Uplink> = HashMap::new();
        for probe in &round {
            let key = (probe.ifindex, probe.router.1);
            if let std::collections::hash_map::Entry::Vacant(entry) = uplinks.entry(key) {
                match Uplink::open(key.0, ip_family(key.1), self.cookie) {
                    Ok(uplink) => drop(entry.insert(uplink)),
                    Err(error) => {
                        let named = plan.routers.iter().find(|router| router.ifindex == key.0);
                        let name = named.map_or("?", |router| router.link.as_str());
                        self.unprobed.insert(format!("{name} cannot be probed: {error}"));
                    }
                }
            }
        }
        // A packet that this kind of link cannot send is no loss.
        let mut results: Vec<(Probe, bool)> = Vec::new();
        let mut sent: HashMap<u64, (usize, Packet)> = HashMap::new();
        for probe in round {
            let Some(uplink) = uplinks.get(&(probe.ifindex, probe.router.1)) else { continue };
            let packet = Packet {
                kind: probe.kind,
                source: probe.source,
                destination: probe.destination,
                hops: probe.hops,
                length: probe.length,
                cookie: self.cookie,
                number: self.numbers.draw(),
            };
            if let Some(mac) = mac_of(&probe)
                && uplink.send(&packet.frame(uplink.mac(), mac)).await.is_ok()
            {
                sent.insert(packet.number, (results.len(), packet));
            }
            results.push((probe, false));
        }
        let deadline = Instant::now() + PATIENCE;
        let listen = |key: (u32, Family), uplink| async move { (key, Uplink::receive(uplink).await) };
        let mut waiting: FuturesUnordered<_> =
            uplinks.iter().map(|(key, uplink)| listen(*key, uplink)).collect();
        while !sent.is_empty() {
            let Ok(Some((key, returned))) = timeout_at(deadline, waiting.next()).await else { break };
            let Ok(returned) = returned else { continue };
            if let Some(uplink) = uplinks.get(&key) {
                waiting.push(listen(key, uplink));
            }
            let Some((index, packet)) = sent.get(&returned.number) else { continue };
            // A router forwards a probe back on the uplink of its arrival. Another node's answer
            // may arrive on any uplink.
            let by_its_uplink = results[*index].0.ifindex == key.0 || matches!(packet.kind, Kind::Echo);
            if packet.is_answered_by(&returned) && by_its_uplink {
                results[*index].1 = true;
                sent.remove(&returned.number);
            }
        }
        results
    }
}
