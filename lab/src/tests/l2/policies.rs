//! Network policies for pods in a VLAN. Packets of a pod with `attachment: veth` pass the node, and
//! its policies apply to packets from the VLAN and from other pods of the node. Packets of an IPVLAN
//! slave do not pass the node: a pod that a policy selects is refused, and a running one is
//! reported.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{RACKS, Rack};
use crate::client;
use crate::cni::{self, Sandbox};
use crate::netns::Namespace;
use crate::pinger::{Flow, unreachable};
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::matrix::reachable;
use crate::tests::{Context, Test, Verdict, passed};

pub(in crate::tests) const TESTS: &[Test] = &[Test {
    name: "l2/policies",
    about: "network policies of pods in a VLAN: enforced for a veth pair, also between two pods of one \
            node; refused and reported for an IPVLAN slave",
    run,
}];

/// The time after which a flow without an answer counts as dropped.
const DROPPED: Duration = Duration::from_secs(1);

/// No connection to the pod `closed` of a node is allowed.
pub(in crate::tests) fn policy(node: &str) -> String {
    format!(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{ name: closed, namespace: lab }}
spec:
  podSelector: {{ matchLabels: {{ networking.alibaba.com/pod: {node}-closed }} }}
  policyTypes: [Ingress]
"
    )
}

fn run(context: &Context) -> Result<Verdict> {
    lab(context, "l2", |bed| {
        let [by_veth, by_ipvlan] = &RACKS;
        let flows = enforced(bed, by_veth).context("veth")?;
        let error = refused(bed, by_ipvlan).context("ipvlan")?;
        passed(format!("{flows} flows to a pod with a veth pair; {error}"))
    })
}

/// Waits until this number of policies selects pods of the node.
fn wait_policies(bed: &Bed<'_>, node: &str, count: usize) -> Result<()> {
    wait_for(&format!("{count} policies on {node}"), PATIENCE, || {
        let summary = client::status(bed.host(node)?)?.policies.context("the state of policies")?;
        Ok(Seen::when(summary.policies == count, || format!("{summary:?}")))
    })
}

fn enforced(bed: &Bed<'_>, rack: &Rack) -> Result<usize> {
    let [node, other] = rack.nodes;
    let (closed, attached) = rack.attach(bed, node, "closed")?;
    let (near, _) = rack.attach(bed, node, "near")?;
    let (far, _) = rack.attach(bed, other, "far")?;
    let host = bed.host(rack.host)?;
    let flow = |name: &str, from: &Namespace| {
        let flow = |to| Flow { name: format!("{name} to {to}"), from: from.clone(), to };
        attached.addresses.iter().copied().map(flow).collect::<Vec<_>>()
    };
    let senders = || {
        [
            ("a pod of the node", &near.ns),
            ("a pod of another node", &far.ns),
            ("a host of the VLAN", &host.ns),
        ]
    };
    let flows = || senders().into_iter().flat_map(|(name, from)| flow(name, from)).collect::<Vec<_>>();
    reachable(flows()).context("without a policy")?;

    let manifest = bed.manifest_of(node, "policies.yaml");
    manifest.write(&policy(node))?;
    wait_policies(bed, node, 1)?;
    let dropped = unreachable(flows(), DROPPED)?;
    ensure!(dropped.len() == flows().len(), "only these flows were dropped: {dropped:?}");
    // The pod opens connections itself; the kubelet's probes come from the node.
    let opposite =
        Flow { name: "the pod to a host".to_owned(), from: closed.ns.clone(), to: rack.gateways[0].parse()? };
    reachable(vec![opposite]).context("from the selected pod")?;
    reachable(flow("the node", &bed.host(node)?.ns)).context("from the node")?;

    manifest.write("# no policy\n")?;
    wait_policies(bed, node, 0)?;
    reachable(flows()).context("after the policy")?;
    Ok(flows().len())
}

fn refused(bed: &Bed<'_>, rack: &Rack) -> Result<String> {
    let node = bed.host(rack.nodes[0])?;
    let manifest = bed.manifest_of(&node.name, "policies.yaml");
    manifest.write(&policy(&node.name))?;
    wait_policies(bed, &node.name, 1)?;
    let closed = Sandbox::create(bed.fabric, &node.name, "closed")?;
    let error = rack.refused(bed, &closed)?;
    for part in ["lab/closed", "ipvlan"] {
        ensure!(error.contains(part), "the error has no {part}: {error}");
    }
    let devices = closed.ns.ip(["-o", "link", "show"])?;
    ensure!(!devices.contains("eth0"), "the refused pod has an interface: {devices}");
    let status = client::status(node)?;
    ensure!(status.attachments == 0, "the refused pod has a record: {status:?}");

    manifest.write("# no policy\n")?;
    wait_policies(bed, &node.name, 0)?;
    cni::add(bed.fabric, &rack.conf(), &closed).context("after the policy")?;
    manifest.write(&policy(&node.name))?;
    wait_for("the report of a running pod without protection", PATIENCE, || {
        let summary = client::status(node)?.policies.context("the state of policies")?;
        Ok(Seen::when(summary.unenforced == 1, || format!("{summary:?}")))
    })?;
    let found = node.command("trunkline", ["doctor"]).output()?;
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    ensure!(found.contains("ipvlan"), "doctor reports no pod without protection: {found}");
    Ok(error)
}
