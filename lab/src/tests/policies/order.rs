//! Packets while pods start, the agent dies and policies change. Senders flood the pods from before
//! their start, and a sender in each pod starts before its ADD. Taps record what passes the rules:
//! one in each pod for ingress; for egress one in the ToR, one in a pod of the same node, and a
//! socket of the node itself.
//!
//! A tap on the host's device of a pod would see packets before the rules of egress, and the taps
//! here do not.
//!
//! - Ingress: no datagram of a denied sender arrives in a pod, not even before the answer of ADD.
//! - Egress: no denied datagram that a pod sends after the answer of ADD leaves it. Processes of a
//!   pod start after this answer.
//! - Edits: after the first datagram of the newly allowed sender, none of the former one arrives if
//!   it was sent later. Other senders never arrive.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use rustix::process::Signal;
use serde_json::json;

use super::tap::{Arrival, Sender, Tap};
use super::world::{self, Channel, NODE1, Plan, Running, SOON, World};
use super::{Context, Test, Verdict};
use crate::client;
use crate::demo::ms;
use crate::shell::{Seen, wait_for};
use crate::stats::percentile;
use crate::tests::passed;

pub(super) const TEST: Test = Test {
    name: "policies/order",
    about: "floods during pod starts, SIGKILL of the agent and edits of a policy: taps see no packet that a policy denies",
    run,
};

const NAMESPACE: &str = "order";
const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: order }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: closed, namespace: order }
spec:
  podSelector: { matchLabels: { role: closed } }
  policyTypes: [Ingress, Egress]
  ingress: [{ from: [{ podSelector: { matchLabels: { role: friend } } }] }]
  egress: [{ to: [{ podSelector: { matchLabels: { role: friend } } }] }]
";

/// The numbers of the senders.
const FRIEND: u16 = 1;
const FAR: u16 = 2;
const NEAR: u16 = 3;
const OUTSIDE: u16 = 4;
const POD: u16 = 100;

/// Pods that run while the agent dies and policies change.
const LASTING: usize = 2;
/// The time for which traffic goes on after an event.
const REST: Duration = Duration::from_millis(60);
/// The time without an agent.
const ABSENCE: Duration = Duration::from_millis(300);

fn plan<'a>(name: &'a str, node: &'a str, labels: &'a [(&'a str, &'a str)]) -> Plan<'a> {
    Plan { namespace: NAMESPACE, name, node, labels }
}

fn run(context: &Context) -> Result<Verdict> {
    world::run(context, "policies-order", Channel::Standard, OBJECTS, |world| {
        let scene = Scene::set(world)?;
        let starts = context.rounds(30, 1_000);
        let (mut early, mut adds) = (0, Vec::new());
        for number in 0..starts {
            let (start, pod) = scene.start(&format!("start-{number}"))?;
            early += start.early;
            adds.push(ms(start.took));
            scene.remove(pod)?;
        }
        let mut lasting = Vec::new();
        for number in 0..LASTING {
            lasting.push(scene.start(&format!("lasting-{number}"))?.1);
        }
        let kills = context.rounds(3, 20);
        let mut gap = Duration::ZERO;
        for round in 0..kills {
            gap = gap.max(scene.kill(&lasting).with_context(|| format!("SIGKILL {round}"))?);
        }
        let edits = context.rounds(20, 200);
        let mut times = Vec::new();
        for round in 0..edits {
            let (new, old) = if round % 2 == 0 { (FAR, FRIEND) } else { (FRIEND, FAR) };
            // One edit is made while no agent runs.
            let is_dead = round == edits / 2;
            let took = scene.edit(&lasting, new, old, is_dead).with_context(|| format!("edit {round}"))?;
            if !is_dead {
                times.push(ms(took));
            }
        }
        scene.without_policy(&lasting).context("without the policy")?;
        let sent: u64 = scene.senders.iter().map(Sender::sent).sum();
        passed(format!(
            "{starts} starts (ADD p50 {:.0} ms; {early} datagrams left pods before the answer of ADD), {kills} SIGKILLs \
             (longest gap of an allowed sender {:.0} ms), {edits} edits (in force after p50 {:.0} ms, most {:.0} ms); \
             {sent} datagrams, none of a denied sender arrived",
            percentile(&adds, 50.0),
            ms(gap),
            percentile(&times, 50.0),
            percentile(&times, 100.0),
        ))
    })
}

/// A pod under test with its tap, and with its sender.
struct Tapped {
    pod: Running,
    tap: Tap,
    _sender: Sender,
}

/// The start of a pod.
struct Start {
    /// Denied datagrams that left the pod and that it sent before the answer of ADD.
    early: usize,
    took: Duration,
}

struct Scene<'a, 'b> {
    world: &'a World<'b>,
    friend: Running,
    far: Running,
    near: Running,
    /// Friend, far, near, outside.
    senders: [Sender; 4],
    /// What leaves node1; what a pod of node1 receives; what node1 itself receives.
    beyond: Vec<Tap>,
}

impl<'a, 'b> Scene<'a, 'b> {
    fn set(world: &'a World<'b>) -> Result<Self> {
        let friend = world.attach(&plan("friend", "node2", &[("role", "friend")]))?;
        let far = world.attach(&plan("far", "node2", &[("role", "far")]))?;
        let near = world.attach(&plan("near", "node1", &[("role", "near")]))?;
        let outside = &world.bed.host("outside")?.ns;
        let node1 = &world.bed.host("node1")?.ns;
        let senders = [
            Sender::start(&friend.sandbox.ns, FRIEND, &[])?,
            Sender::start(&far.sandbox.ns, FAR, &[])?,
            Sender::start(&near.sandbox.ns, NEAR, &[])?,
            Sender::start(outside, OUTSIDE, &[])?,
        ];
        let mut beyond = vec![Tap::open(&world.bed.host("tor1")?.ns)?, Tap::open(&near.sandbox.ns)?];
        for address in NODE1 {
            beyond.push(Tap::listen(node1, address.parse()?)?);
        }
        Ok(Self { world, friend, far, near, senders, beyond })
    }

    fn aim(&self, targets: &[IpAddr]) {
        self.senders.iter().for_each(|sender| sender.aim(targets));
    }

    /// The addresses that the controller has allocated to a pod that is not attached yet.
    fn allocated(&self, pod: &str) -> Result<Vec<IpAddr>> {
        let gvk = GroupVersionKind::gvk("networking.alibaba.com", "v1", "IPInstance");
        let instances: Api<DynamicObject> =
            Api::namespaced_with(self.world.cluster.client(), NAMESPACE, &ApiResource::from_gvk(&gvk));
        wait_for(&format!("the addresses of {pod}"), SOON, || {
            let list = self.world.cluster.wait(instances.list(&ListParams::default()))?;
            let of = list.items.iter().filter(|one| one.data["spec"]["binding"]["podName"] == pod);
            let texts = of.filter_map(|one| one.data["spec"]["address"]["ip"].as_str());
            let addresses: Vec<IpAddr> =
                texts.filter_map(|text| text.split('/').next()?.parse().ok()).collect();
            Ok(if addresses.len() == 2 {
                Seen::Yes(addresses)
            } else {
                Seen::NotYet(format!("{addresses:?}"))
            })
        })
    }

    /// Starts a pod under floods in both directions.
    fn start(&self, name: &str) -> Result<(Start, Tapped)> {
        crate::interrupt::check()?;
        let sandbox = self.world.create(&plan(name, "node1", &[("role", "closed")]))?;
        let tap = Tap::open(&sandbox.ns)?;
        let addresses = self.allocated(name)?;
        self.beyond.iter().for_each(|tap| drop(tap.arrivals()));
        self.aim(&addresses);
        let mut targets: Vec<IpAddr> =
            [&self.friend, &self.far, &self.near].into_iter().flat_map(|pod| pod.addresses.clone()).collect();
        for address in NODE1 {
            targets.push(address.parse()?);
        }
        let sender = Sender::start(&sandbox.ns, POD, &targets)?;
        let began = Instant::now();
        let pod = self.world.start(sandbox)?;
        let answered = Instant::now();
        ensure!(
            pod.addresses.iter().collect::<BTreeSet<_>>() == addresses.iter().collect(),
            "{name} has {:?}, not {addresses:?}",
            pod.addresses
        );
        let (mut inward, mut outward) = (Vec::new(), Vec::new());
        wait_for(&format!("allowed datagrams of {name} in both directions and families"), SOON, || {
            inward.extend(tap.arrivals());
            outward.extend(self.beyond.iter().flat_map(Tap::arrivals));
            let into = |to: &IpAddr| inward.iter().any(|a| a.sender == FRIEND && a.destination == *to);
            let out = |to: &IpAddr| {
                outward.iter().any(|a| a.sender == POD && a.destination == *to && a.sent >= answered)
            };
            let missing: Vec<&IpAddr> = pod
                .addresses
                .iter()
                .filter(|to| !into(to))
                .chain(self.friend.addresses.iter().filter(|to| !out(to)))
                .collect();
            Ok(Seen::when(missing.is_empty(), || format!("none to {missing:?}")))
        })?;
        std::thread::sleep(REST);
        inward.extend(tap.arrivals());
        outward.extend(self.beyond.iter().flat_map(Tap::arrivals));
        self.only(&inward, &addresses, &[FRIEND]).with_context(|| name.to_owned())?;
        let early = self.leaves(&outward, &addresses, answered).with_context(|| name.to_owned())?;
        Ok((Start { early, took: answered - began }, Tapped { pod, tap, _sender: sender }))
    }

    fn remove(&self, pod: Tapped) -> Result<()> {
        self.aim(&[]);
        let Tapped { pod, tap, _sender: sender } = pod;
        drop(sender);
        drop(tap.end());
        self.world.remove(pod)
    }

    /// Fails if a datagram of another sender arrived.
    fn only(&self, arrivals: &[Arrival], at: &[IpAddr], allowed: &[u16]) -> Result<()> {
        let wrong: Vec<&Arrival> = arrivals
            .iter()
            .filter(|a| at.contains(&a.destination) && a.sender != POD && !allowed.contains(&a.sender))
            .collect();
        ensure!(wrong.is_empty(), "{} denied datagrams arrived, the first: {:?}", wrong.len(), wrong[0]);
        Ok(())
    }

    /// Fails if a denied datagram left a pod and was sent after `since`; returns the number of those
    /// that were sent before.
    fn leaves(&self, arrivals: &[Arrival], from: &[IpAddr], since: Instant) -> Result<usize> {
        let denied = arrivals
            .iter()
            .filter(|a| from.contains(&a.source) && a.sender == POD)
            .filter(|a| !self.friend.addresses.contains(&a.destination));
        let (late, early): (Vec<&Arrival>, Vec<&Arrival>) = denied.partition(|a| a.sent >= since);
        if let Some(first) = late.first() {
            bail!(
                "{} denied datagrams left the pod, the first {:?} after the answer of ADD: {first:?}",
                late.len(),
                first.sent - since
            );
        }
        Ok(early.len())
    }

    /// Deletes the policy: every datagram arrives now. This proves that the taps see what the policy
    /// denied before.
    fn without_policy(&self, pods: &[Tapped]) -> Result<()> {
        self.settle(pods);
        self.world.replace_policies("")?;
        let (mut inward, mut outward) = (Vec::new(), Vec::new());
        let mut targets: Vec<IpAddr> =
            [&self.friend, &self.far, &self.near].into_iter().flat_map(|pod| pod.addresses.clone()).collect();
        for address in NODE1 {
            targets.push(address.parse()?);
        }
        wait_for("datagrams of all senders to all destinations", SOON, || {
            inward.extend(pods.iter().flat_map(|one| one.tap.arrivals()));
            outward.extend(self.beyond.iter().flat_map(Tap::arrivals));
            let mut missing = Vec::new();
            for to in pods.iter().flat_map(|one| &one.pod.addresses) {
                for from in [FRIEND, FAR, NEAR, OUTSIDE] {
                    if !inward.iter().any(|a| a.sender == from && a.destination == *to) {
                        missing.push(format!("{from} → {to}"));
                    }
                }
            }
            for to in &targets {
                if !outward.iter().any(|a| a.sender == POD && a.destination == *to) {
                    missing.push(format!("pod → {to}"));
                }
            }
            Ok(Seen::when(missing.is_empty(), || format!("none of {missing:?}")))
        })
    }

    /// Aims all senders at the pods, and forgets former arrivals.
    fn settle(&self, pods: &[Tapped]) -> Vec<IpAddr> {
        let addresses: Vec<IpAddr> = pods.iter().flat_map(|one| one.pod.addresses.clone()).collect();
        self.aim(&addresses);
        std::thread::sleep(REST);
        pods.iter().map(|one| &one.tap).chain(&self.beyond).for_each(|tap| drop(tap.arrivals()));
        addresses
    }

    /// Kills the agent and starts it. Returns the longest time without an arrival of the allowed
    /// sender.
    fn kill(&self, pods: &[Tapped]) -> Result<Duration> {
        let addresses = self.settle(pods);
        let (node, began) = (self.world.bed.node()?, Instant::now());
        client::end_agent(node, Signal::KILL)?;
        std::thread::sleep(ABSENCE);
        client::start_agent(node)?;
        wait_for("the rules to be in force", SOON, || {
            let metrics = client::metrics(node)?;
            let line = metrics.lines().find(|line| line.starts_with("trunkline_policy_state "));
            Ok(Seen::when(line == Some("trunkline_policy_state 1"), || format!("{line:?}")))
        })?;
        std::thread::sleep(ABSENCE);
        let mut longest = Duration::ZERO;
        for one in pods {
            let arrivals = one.tap.arrivals();
            self.only(&arrivals, &addresses, &[FRIEND])?;
            let mut last = began;
            for arrival in arrivals.iter().filter(|a| a.sender == FRIEND) {
                longest = longest.max(arrival.at.saturating_duration_since(last));
                last = arrival.at;
            }
            longest = longest.max(last.elapsed().saturating_sub(REST));
        }
        let outward: Vec<Arrival> = self.beyond.iter().flat_map(Tap::arrivals).collect();
        self.leaves(&outward, &addresses, began)?;
        Ok(longest)
    }

    /// Allows another sender instead of the former one. Returns the time until its first arrival.
    fn edit(&self, pods: &[Tapped], new: u16, old: u16, dead: bool) -> Result<Duration> {
        let addresses = self.settle(pods);
        let node = self.world.bed.node()?;
        let began = Instant::now();
        if dead {
            client::end_agent(node, Signal::KILL)?;
        }
        let role = if new == FRIEND { "friend" } else { "far" };
        let ingress = json!([{ "from": [{ "podSelector": { "matchLabels": { "role": role } } }] }]);
        let policies: Api<NetworkPolicy> = Api::namespaced(self.world.cluster.client(), NAMESPACE);
        let patch = Patch::Merge(json!({ "spec": { "ingress": ingress } }));
        let edited = Instant::now();
        self.world.cluster.wait(policies.patch("closed", &PatchParams::default(), &patch))?;
        if dead {
            std::thread::sleep(ABSENCE);
            client::start_agent(node)?;
        }
        let mut all: Vec<Vec<Arrival>> = vec![Vec::new(); pods.len()];
        wait_for("datagrams of the allowed sender", SOON, || {
            for (arrivals, one) in all.iter_mut().zip(pods) {
                arrivals.extend(one.tap.arrivals());
            }
            let without = all.iter().filter(|arrivals| !arrivals.iter().any(|a| a.sender == new)).count();
            Ok(Seen::when(without == 0, || format!("{without} pods without")))
        })?;
        std::thread::sleep(REST);
        let mut first = edited;
        for (mut arrivals, one) in all.into_iter().zip(pods) {
            arrivals.extend(one.tap.arrivals());
            self.only(&arrivals, &addresses, &[new, old])?;
            let since = arrivals.iter().find(|a| a.sender == new).context("an arrival")?.at;
            let late = arrivals.iter().find(|a| a.sender == old && a.sent >= since);
            ensure!(
                late.is_none(),
                "a datagram of the former sender arrived: {late:?}, switched at {since:?}"
            );
            let before = arrivals.iter().find(|a| a.sender == new && a.sent < edited);
            ensure!(before.is_none(), "a datagram arrived before the edit: {before:?}");
            first = first.max(since);
        }
        let outward: Vec<Arrival> = self.beyond.iter().flat_map(Tap::arrivals).collect();
        self.leaves(&outward, &addresses, began)?;
        Ok(first - edited)
    }
}
