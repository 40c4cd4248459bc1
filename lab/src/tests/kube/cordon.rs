//! `drain.followCordon`: effects of `kubectl cordon`, `drain` and `uncordon` on a node's sessions.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline_api::control::{CordonStatus, DrainCause, DrainPhase, DrainStatus, Events};

use super::agent::{KEY, Node, PATIENCE, on_a_node};
use super::{Test, Verdict};
use crate::client;
use crate::cni::{self, Sandbox};
use crate::shell::{Seen, wait_for};
use crate::tests::bed::lost_nothing;
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/cordon",
    about: "a cordoned node is drained once its pods are gone, and undrained after the uncordon; \
            never without the API server, never against an operator's command",
    run: cordon,
}];

const SETTINGS: &str = "drain: {followCordon: true, settleSeconds: 5}";
/// A wrong drain would begin within this time: on an empty node the agent waits one second.
const LONG: Duration = Duration::from_secs(4);
const NAMESPACE: &str = "lab";

impl Node<'_> {
    /// Creates a pod in the API server, with an owner of this kind, a sandbox and an address.
    fn place(&self, name: &str, owner: &str, address: &str) -> Result<(Sandbox, Vec<IpAddr>)> {
        let mut pod = self.bed.pod(name)?;
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": pod.name, "namespace": NAMESPACE,
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": owner, "name": name, "uid": "uid-of-it", "controller": true,
                }],
            },
            "spec": {"nodeName": "node1", "containers": [{"name": "main", "image": "pretended"}]},
        });
        self.cluster.apply(&object.to_string())?;
        pod.identity.uid = self.cluster.kubectl([
            "-n",
            NAMESPACE,
            "get",
            "pod",
            &pod.name,
            "-o",
            "jsonpath={.metadata.uid}",
        ])?;
        self.give(&pod, address, "IPv4", "node1")?;
        let addresses = self.add(&pod)?;
        Ok((pod, addresses))
    }

    fn drain(&self) -> Result<DrainStatus> {
        Ok(client::status(self.bed.node()?)?.drain)
    }

    fn wait_drain(&self, what: &str, is: impl Fn(&DrainStatus) -> bool) -> Result<DrainStatus> {
        wait_for(what, PATIENCE, || {
            let drain = self.drain()?;
            Ok(if is(&drain) { Seen::Yes(drain) } else { Seen::NotYet(format!("{drain:?}")) })
        })
    }

    fn wait_phase(&self, phase: DrainPhase) -> Result<DrainStatus> {
        self.wait_drain(phase.name(), |drain| drain.phase == phase)
    }

    /// Asserts that the phase does not change.
    fn stays(&self, phase: DrainPhase) -> Result<DrainStatus> {
        std::thread::sleep(LONG);
        let drain = self.drain()?;
        ensure!(drain.phase == phase, "the stage should stay {}: {drain:?}", phase.name());
        Ok(drain)
    }

    fn restart(&self, signal: Signal) -> Result<()> {
        client::end_agent(self.bed.node()?, signal)?;
        client::start_agent(self.bed.node()?)?;
        client::wait_answering(self.bed.node()?)
    }

    fn kubectl(&self, verb: &str) -> Result<()> {
        self.cluster.kubectl([verb, "node1"]).map(drop)
    }

    /// Creates the Node again as a new object.
    fn register(&self, object: &str) -> Result<()> {
        let mut object: Value = serde_json::from_str(object)?;
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            object["metadata"].as_object_mut().map(|metadata| metadata.remove(field));
        }
        self.cluster.apply(&object.to_string()).map(drop)
    }
}

fn is_cordoned(drain: &DrainStatus, pods_left: u64, overruled: bool) -> bool {
    drain.cordon == Some(CordonStatus { pods_left, overruled })
}

fn cordon(context: &Context) -> Result<Verdict> {
    on_a_node(context, "cordon", KEY, SETTINGS, |node| {
        let bed = node.bed;
        bed.established()?;
        let (web, of_web) = node.place("web", "ReplicaSet", "10.201.7.1")?;
        let (_log, of_log) = node.place("log", "DaemonSet", "10.201.7.2")?;
        let (web_pings, log_pings) = (bed.pings("outside", &of_web)?, bed.pings("outside", &of_log)?);

        // A cordon alone changes nothing: pods stay reachable, and no route is changed.
        node.kubectl("cordon")?;
        node.wait_drain("the pod that must leave", |drain| is_cordoned(drain, 1, false))?;
        let drain = node.stays(DrainPhase::Undrained)?;
        ensure!(drain.cause.is_none() && is_cordoned(&drain, 1, false), "{drain:?}");
        let status = client::status(bed.node()?)?;
        ensure!(
            status.ready && status.bgp.is_some_and(|bgp| !bgp.graceful_shutdown),
            "{:?}",
            status.not_ready
        );
        let answered = lost_nothing(web_pings)?;

        // The pod is deleted during an outage, when the state of the cordon is unknown: nothing
        // happens.
        node.cluster.stop_api()?;
        node.wait_source("the outage to show", |source| source.outage_seconds.is_some())?;
        cni::del(bed.fabric, &cni::trunkline(None), &web)?;
        node.stays(DrainPhase::Undrained)?;
        node.cluster.start_api()?;
        node.wait_source("the API server to answer again", |source| source.connected)?;
        // The pod's object exists until the kubelet has confirmed the deletion.
        node.stays(DrainPhase::Undrained)?;
        node.cluster.kubectl(["-n", NAMESPACE, "delete", "pod", &web.name, "--grace-period=0", "--force"])?;
        node.cluster.kubectl(["-n", NAMESPACE, "delete", "ipinstance", "10-201-7-1"])?;

        // Only the DaemonSet's pod is left. It stays reachable until the fabric has moved its
        // traffic.
        node.wait_phase(DrainPhase::Announcing)?;
        let announced = lost_nothing(log_pings)?;
        let drain = node.wait_phase(DrainPhase::Drained)?;
        ensure!(
            drain.cause == Some(DrainCause::Cordon)
                && is_cordoned(&drain, 0, false)
                && drain.faults.is_empty(),
            "{drain:?}"
        );
        bed.tor_has_only("tor1", &[])?;
        let events: Events = client::ask(bed.node()?, &["events"])?;
        let said = |words: &str| events.events.iter().any(|event| event.text.contains(words));
        ensure!(said("it is cordoned in Kubernetes, and its pods are gone"), "{:?}", events.events);

        // The drain persists over a kill, without the API server, and when the Node itself is gone.
        node.restart(Signal::KILL)?;
        node.wait_drain("the cordon to be seen again", |drain| is_cordoned(drain, 0, false))?;
        node.cluster.stop_api()?;
        node.restart(Signal::TERM)?;
        let drain = node.stays(DrainPhase::Drained)?;
        ensure!(drain.cause == Some(DrainCause::Cordon) && drain.cordon.is_none(), "{drain:?}");
        node.cluster.start_api()?;
        node.wait_drain("the cordon to be seen again", |drain| is_cordoned(drain, 0, false))?;
        let object = node.cluster.kubectl(["get", "node", "node1", "-o", "json"])?;
        node.cluster.kubectl(["delete", "node", "node1"])?;
        node.wait_drain("the Node to be gone", |drain| drain.cordon.is_none())?;
        node.stays(DrainPhase::Drained)?;
        node.register(&object)?;
        node.wait_drain("the cordon to be seen again", |drain| is_cordoned(drain, 0, false))?;

        // Undrained.
        node.kubectl("uncordon")?;
        let drain = node.wait_phase(DrainPhase::Undrained)?;
        ensure!(drain.cause.is_none() && drain.cordon.is_none(), "{drain:?}");
        bed.established()?;
        let back = lost_nothing(bed.pings("outside", &of_log)?)?;

        // If an operator undrains the node, it stays undrained until the cordon ends.
        node.kubectl("cordon")?;
        node.wait_phase(DrainPhase::Announcing)?;
        client::ask::<DrainStatus>(bed.node()?, &["undrain"])?;
        let drain = node.stays(DrainPhase::Undrained)?;
        ensure!(is_cordoned(&drain, 0, true), "{drain:?}");
        node.restart(Signal::KILL)?;
        node.wait_drain("the cordon to be seen again", |drain| is_cordoned(drain, 0, true))?;
        node.stays(DrainPhase::Undrained)?;
        node.kubectl("uncordon")?;
        node.wait_drain("the cordon to be gone", |drain| drain.cordon.is_none())?;
        node.kubectl("cordon")?;
        node.wait_phase(DrainPhase::Drained)?;

        // If an operator also drains the node, no uncordon ends the drain.
        let drain: DrainStatus = client::ask(bed.node()?, &["drain"])?;
        ensure!(drain.cause == Some(DrainCause::Operator), "{drain:?}");
        node.kubectl("uncordon")?;
        node.wait_drain("the cordon to be gone", |drain| drain.cordon.is_none())?;
        let drain = node.stays(DrainPhase::Drained)?;
        ensure!(drain.cause == Some(DrainCause::Operator), "{drain:?}");
        client::ask::<DrainStatus>(bed.node()?, &["undrain"])?;
        bed.established()?;
        bed.pings("outside", &of_log)?.finish()?;
        passed(format!(
            "cordoned {answered} pings, announcing {announced}, back {back}, none lost; kept over \
             kill, outage and a deleted Node; an operator's command takes precedence"
        ))
    })
}
