//! NetworkPolicies of a cluster that migrates, and datagrams between all of its pods. Each pod sends to all addresses
//! of its Subnet from before its ADD until its end. A tap in each pod records what passes the rules of
//! both nodes.
//!
//! | role | isolated | allowed |
//! |---|---|---|
//! | `db` | yes | from `web` |
//! | `web` | yes | to `db` |
//! | `guard`, of a DaemonSet | yes | nothing |
//! | `open`, of a DaemonSet | no | `open` |
//!
//! Between `open` and the other roles one node decides alone: the node of the isolated pod.
//!
//! hybridnet attaches pods before Felix is ready. So after a boot of a node with hybridnet, pods of
//! DaemonSets have no rules at first. Such datagrams are counted as *unenforced*. Other pods return to the
//! node only when Felix is ready, as the page says.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;

use crate::cni::Sandbox;
use crate::kube::kubelet::{Observer, Plugin};
use crate::shell::{Seen, wait_for};
use crate::tests::policies::tap::{Arrival, Sender, Tap};

const PATIENCE: Duration = Duration::from_secs(60);
/// Between two datagrams of a pod to one address.
const PAUSE: Duration = Duration::from_millis(30);
/// The last octets of the addresses to which pods send.
const TARGETS: std::ops::RangeInclusive<u8> = 1..=16;

/// A default deny and the allowed directions. The host `outside` reaches each pod.
pub(super) const POLICIES: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: default-deny, namespace: default }
spec: { podSelector: {}, policyTypes: [Ingress, Egress] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: db-from-web, namespace: default }
spec:
  podSelector: { matchLabels: { app: db } }
  policyTypes: [Ingress]
  ingress: [{ from: [{ podSelector: { matchLabels: { app: web } } }] }]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: web-to-db, namespace: default }
spec:
  podSelector: { matchLabels: { app: web } }
  policyTypes: [Egress]
  egress: [{ to: [{ podSelector: { matchLabels: { app: db } } }] }]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: from-outside, namespace: default }
spec:
  podSelector: {}
  policyTypes: [Ingress]
  ingress: [{ from: [{ ipBlock: { cidr: 192.0.2.10/32 } }] }]
";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Db,
    Web,
    Guard,
    Open,
}

impl Role {
    fn of(pod: &Pod) -> Result<Self> {
        let app = pod.metadata.labels.as_ref().and_then(|labels| labels.get("app"));
        Ok(match app.map(String::as_str) {
            Some("db") => Self::Db,
            Some("web") => Self::Web,
            Some("guard") => Self::Guard,
            Some("open") => Self::Open,
            other => bail!("a pod with the label app: {other:?}"),
        })
    }

    fn is_isolated(self) -> bool {
        self != Self::Open
    }
}

fn is_allowed(from: Role, to: Role) -> bool {
    matches!((from, to), (Role::Web, Role::Db) | (Role::Open, Role::Open))
}

/// A pod that runs or has run.
struct Sandboxed {
    name: String,
    node: String,
    role: Role,
    plugin: Plugin,
    /// The time from which its node enforces policies for it.
    enforced: Option<Instant>,
    ended: bool,
}

/// The traffic of a running pod.
struct Traffic {
    uid: String,
    number: u16,
    tap: Tap,
    sender: Sender,
}

#[derive(Default)]
struct State {
    /// All pods, by the number of their sender.
    pods: BTreeMap<u16, Sandboxed>,
    running: Vec<Traffic>,
    /// The newest arrival of each pair.
    arrived: BTreeMap<(u16, u16), Instant>,
    denied: Vec<String>,
    /// Denied datagrams that no node had to drop.
    unenforced: usize,
    /// Datagrams of pods that have ended.
    sent: u64,
}

/// The traffic of all pods.
pub(super) struct Flows {
    state: Mutex<State>,
    /// Whether nodes with hybridnet enforce policies.
    has_felix: bool,
}

impl Flows {
    pub(super) fn new(has_felix: bool) -> Self {
        Self { state: Mutex::default(), has_felix }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until new datagrams of each allowed pair have arrived. Fails if a denied datagram has
    /// arrived since the start.
    pub(super) fn check(&self, when: &str) -> Result<()> {
        let since = Instant::now();
        wait_for(&format!("datagrams of allowed pairs, {when}"), PATIENCE, || {
            let mut state = self.state();
            state.read();
            if let Err(denied) = state.denied(when) {
                return Ok(Seen::Yes(Err(denied)));
            }
            let missing = state.missing(since);
            Ok(if missing.is_empty() {
                Seen::Yes(Ok(()))
            } else {
                Seen::NotYet(format!("none from {}", missing.join(", ")))
            })
        })?
    }

    /// The number of datagrams, for the test's result.
    pub(super) fn finish(&self, when: &str) -> Result<String> {
        self.check(when)?;
        let state = self.state();
        let sent = state.sent + state.running.iter().map(|traffic| traffic.sender.sent()).sum::<u64>();
        Ok(format!(
            "{sent} datagrams between pods, no denied one arrived where a node enforces ({} elsewhere)",
            state.unenforced
        ))
    }
}

impl State {
    /// Judges the arrivals since the last call.
    fn read(&mut self) {
        let running = std::mem::take(&mut self.running);
        for traffic in &running {
            self.judge(traffic.number, &traffic.tap.arrivals());
        }
        self.running = running;
    }

    fn judge(&mut self, receiver: u16, arrivals: &[Arrival]) {
        for arrival in arrivals.iter().filter(|arrival| arrival.sender != receiver) {
            let (Some(from), Some(to)) = (self.pods.get(&arrival.sender), self.pods.get(&receiver)) else {
                continue;
            };
            if is_allowed(from.role, to.role) {
                self.arrived.insert((arrival.sender, receiver), arrival.sent);
                continue;
            }
            let is_enforced = |pod: &Sandboxed, at: Instant| {
                pod.role.is_isolated() && pod.enforced.is_some_and(|since| at >= since)
            };
            if !is_enforced(from, arrival.sent) && !is_enforced(to, arrival.at) {
                self.unenforced += 1;
                continue;
            }
            self.denied.push(format!(
                "from {} ({}, {:?}) to {} ({}, {:?})",
                from.name, from.node, from.plugin, to.name, to.node, to.plugin
            ));
        }
    }

    fn denied(&self, when: &str) -> Result<()> {
        let first = self.denied.first();
        ensure!(
            first.is_none(),
            "{} denied datagrams arrived, {when}, the first {}",
            self.denied.len(),
            first.map_or("", String::as_str)
        );
        Ok(())
    }

    /// The allowed pairs of running pods without an arrival since then.
    fn missing(&self, since: Instant) -> Vec<String> {
        let mut missing = Vec::new();
        for (from, to) in self.running.iter().flat_map(|from| self.running.iter().map(move |to| (from, to))) {
            let (source, destination) = (&self.pods[&from.number], &self.pods[&to.number]);
            let arrived = self.arrived.get(&(from.number, to.number));
            if from.number != to.number
                && is_allowed(source.role, destination.role)
                && arrived.is_none_or(|sent| *sent < since)
            {
                missing.push(format!(
                    "{} ({}) to {} ({})",
                    source.name, source.node, destination.name, destination.node
                ));
            }
        }
        missing
    }
}

impl Observer for Flows {
    fn created(&self, pod: &Pod, sandbox: &Sandbox, plugin: Plugin) -> Result<()> {
        let mut state = self.state();
        let number = u16::try_from(state.pods.len() + 1).context("a number of a sender")?;
        let role = Role::of(pod)?;
        let is_enforced = match plugin {
            Plugin::Trunkline => true,
            Plugin::Hybridnet { felix_ready } => self.has_felix && (felix_ready || role != Role::Guard),
        };
        let targets: Vec<IpAddr> = TARGETS.map(|last| Ipv4Addr::new(100, 64, 1, last).into()).collect();
        let tap = Tap::open(&sandbox.ns)?;
        let sender = Sender::start_with_pause(&sandbox.ns, number, &targets, PAUSE)?;
        let pod = Sandboxed {
            name: sandbox.identity.name.clone(),
            node: sandbox.node.clone(),
            role,
            plugin,
            enforced: is_enforced.then(Instant::now),
            ended: false,
        };
        state.pods.insert(number, pod);
        state.running.push(Traffic { uid: sandbox.identity.uid.clone(), number, tap, sender });
        Ok(())
    }

    fn ended(&self, uid: &str) {
        let mut state = self.state();
        let Some(at) = state.running.iter().position(|traffic| traffic.uid == uid) else { return };
        let Traffic { number, tap, sender, .. } = state.running.swap_remove(at);
        state.sent += sender.sent();
        drop(sender);
        state.judge(number, &tap.end());
        if let Some(pod) = state.pods.get_mut(&number) {
            pod.ended = true;
        }
    }

    fn felix_ready(&self, node: &str) {
        let mut state = self.state();
        for pod in state.pods.values_mut() {
            if self.has_felix && pod.node == node && !pod.ended {
                pod.enforced.get_or_insert_with(Instant::now);
            }
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn state(from: Option<Instant>, to: Option<Instant>, roles: (Role, Role)) -> State {
        let pod = |name: &str, role, enforced| Sandboxed {
            name: name.to_owned(),
            node: "node".to_owned(),
            role,
            plugin: Plugin::Trunkline,
            enforced,
            ended: false,
        };
        let pods = BTreeMap::from([(1, pod("a", roles.0, from)), (2, pod("b", roles.1, to))]);
        State { pods, ..State::default() }
    }

    #[test]
    fn a_denied_datagram_counts_where_a_node_enforces() {
        let now = Instant::now();
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let arrival = Arrival { sender: 1, source: address, destination: address, sent: now, at: now };
        for (from, to, roles, denied, unenforced) in [
            (Some(now), Some(now), (Role::Web, Role::Db), 0, 0),
            (Some(now), None, (Role::Db, Role::Open), 1, 0),
            (None, Some(now), (Role::Db, Role::Open), 0, 1),
            (None, Some(now), (Role::Open, Role::Guard), 1, 0),
            (None, Some(now), (Role::Db, Role::Web), 1, 0),
            (None, None, (Role::Db, Role::Web), 0, 1),
        ] {
            let mut state = state(from, to, roles);
            state.judge(2, &[arrival]);
            assert_eq!((state.denied.len(), state.unenforced), (denied, unenforced), "{roles:?}");
        }
    }
}
