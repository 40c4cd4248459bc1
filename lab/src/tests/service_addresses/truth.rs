//! Rows of the truth table in FRR and BIRD: endpoints, node states, and a drain. Then restarts and an
//! API server that is away: nothing true is withdrawn, and the death of a local pod is still noticed.
//!
//! The rows with a service proxy are in [`super::proxy`].

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline_api::control::{DrainPhase, DrainStatus};

use super::advertise::{Advertise, NAMESPACE, NODES, POOL, PORT, configure, host, write_objects};
use super::{Context, Test, Verdict};
use crate::client;
use crate::cni;
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::nodes::{self, Attached};
use crate::routes::RouteMonitor;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::kube::cluster;
use crate::tests::{hybrid, passed};

pub(super) const TEST: Test = Test {
    name: "service-addresses/truth",
    about: "rows of the truth table in FRR and BIRD: endpoints, exclusion, cordon, drain; restarts and an \
            absent API server withdraw nothing that is true",
    run,
};

/// Time for which a soft reason is announced before the withdrawal.
const SHUTDOWN: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServiceAdvertisement
metadata: { name: all }
spec: { gracefulShutdownSeconds: 4, cordonedNodes: CORDONED }
";

/// GRACEFUL_SHUTDOWN (RFC 8326) as FRR and as BIRD show it.
const COMMUNITY: [&str; 2] = ["graceful-shutdown", "65535:0"];

/// The Services: one with the policy Cluster, one with Local.
const WEB: u8 = 1;
const API: u8 = 2;

/// An address on one node, as the node's router has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Advertised,
    /// With GRACEFUL_SHUTDOWN.
    Leaving,
}

use State::{Absent, Advertised, Leaving};

const EVERYWHERE: [State; 3] = [Advertised; 3];
const NOWHERE: [State; 3] = [Absent; 3];

/// An endpoint: each family's address, its node, and its conditions.
struct Endpoint {
    addresses: [IpAddr; 2],
    node: String,
    conditions: Value,
}

fn endpoint(pod: &Attached, conditions: Value) -> Result<Endpoint> {
    let addresses = pod.addresses[..].try_into().context("an address of each family")?;
    Ok(Endpoint { addresses, node: pod.plan.node.clone(), conditions })
}

fn ready(pod: &Attached) -> Result<Endpoint> {
    endpoint(pod, json!({ "ready": true, "serving": true, "terminating": false }))
}

fn not_ready(pod: &Attached) -> Result<Endpoint> {
    endpoint(pod, json!({ "ready": false, "serving": false, "terminating": false }))
}

fn terminating(pod: &Attached) -> Result<Endpoint> {
    endpoint(pod, json!({ "ready": false, "serving": true, "terminating": true }))
}

fn run(context: &Context) -> Result<Verdict> {
    let controller = context.controller()?;
    cluster(context, "service-truth", |cluster| {
        lab(context, "hybrid", |bed| {
            write_objects(cluster, bed)?;
            cluster.apply(&SHUTDOWN.replace("CORDONED", "Withdraw"))?;
            let _controller = Replicas::start(cluster, &controller, 1)?;
            for node in NODES {
                configure(bed, node, &json!({ "kind": "none" }))?;
            }
            let _doorways = nodes::join(cluster, bed.fabric, |_| Ok(cluster.kubeconfig()))?;
            hybrid::ready(bed)?;
            let test = Truth { inner: Advertise { cluster, bed } };
            let pods = NODES.iter().map(|node| test.inner.attach(node)).collect::<Result<Vec<_>>>()?;
            test.endpoints(&pods)?;
            test.node_states(&pods)?;
            test.drain()?;
            absent_api_server(cluster, bed, pods)?;
            passed(
                "15 rows in FRR and BIRD, both families; kills and an absent API server withdrew nothing true",
            )
        })
    })
}

struct Truth<'a> {
    inner: Advertise<'a>,
}

impl Truth<'_> {
    /// Writes a Service's EndpointSlices.
    fn slices(&self, service: &str, endpoints: &[Endpoint]) -> Result<()> {
        for (index, family) in ["IPv4", "IPv6"].into_iter().enumerate() {
            let endpoints: Vec<Value> = endpoints
                .iter()
                .map(|one| {
                    json!({
                        "addresses": [one.addresses[index]], "nodeName": one.node, "conditions": one.conditions,
                    })
                })
                .collect();
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{service}-{}", family.to_lowercase()), "namespace": NAMESPACE,
                    "labels": { "kubernetes.io/service-name": service },
                },
                "addressType": family, "endpoints": endpoints,
                "ports": [{ "name": "", "port": PORT, "protocol": "TCP" }],
            });
            self.inner.cluster.apply(&slice.to_string())?;
        }
        Ok(())
    }

    /// Waits for the state of a Service's addresses on each node.
    fn wait(&self, row: &str, number: u8, wanted: [State; 3]) -> Result<()> {
        for pool in POOL {
            let prefix = host(pool, number);
            wait_for(&format!("{row}: {prefix}: {wanted:?}"), PATIENCE, || {
                let paths = self.inner.paths(&prefix)?;
                let states = NODES.map(|node| match paths.get(node) {
                    None => Absent,
                    Some(path) if path.communities.iter().any(|one| COMMUNITY.contains(&one.as_str())) => {
                        Leaving
                    }
                    Some(_) => Advertised,
                });
                Ok(Seen::when(states == wanted, || format!("{states:?}")))
            })?;
        }
        Ok(())
    }

    fn endpoints(&self, pods: &[Attached]) -> Result<()> {
        let [one, two, _] = pods else { anyhow::bail!("three pods") };
        self.inner.service("web", WEB, "Cluster")?;
        self.inner.service("api", API, "Local")?;
        self.slices("web", &[ready(one)?])?;
        self.wait("1, 2: Cluster, one endpoint is ready", WEB, EVERYWHERE)?;
        self.slices("web", &[])?;
        self.wait("3: Cluster, no endpoint", WEB, NOWHERE)?;
        self.slices("web", &[terminating(one)?])?;
        self.wait("4: Cluster, every endpoint terminates", WEB, EVERYWHERE)?;
        self.slices("web", &[not_ready(one)?])?;
        self.wait("3: Cluster, no endpoint is ready", WEB, NOWHERE)?;
        self.slices("web", &[ready(two)?])?;
        self.wait("1, 2: Cluster again", WEB, EVERYWHERE)?;

        self.slices("api", &[ready(one)?, ready(two)?])?;
        self.wait("5, 6: Local, ready here, ready elsewhere", API, [Advertised, Advertised, Absent])?;
        self.slices("api", &[terminating(one)?, ready(two)?])?;
        self.wait("7: Local, the last endpoint terminates", API, [Leaving, Advertised, Absent])?;
        self.wait("7: Local, 4 s later", API, [Absent, Advertised, Absent])?;
        self.slices("api", &[not_ready(one)?, ready(two)?])?;
        self.wait("8: Local, not ready here", API, [Absent, Advertised, Absent])?;
        // The endpoint returns while it is announced as leaving.
        self.slices("api", &[ready(one)?, terminating(two)?])?;
        self.wait("7: Local, another node", API, [Advertised, Leaving, Absent])?;
        self.slices("api", &[ready(one)?, ready(two)?])?;
        self.wait("5: Local, ready again", API, [Advertised, Advertised, Absent])?;
        let own = Endpoint {
            addresses: ["10.51.0.11".parse()?, "fd00:51::11".parse()?],
            node: "node1".to_owned(),
            conditions: json!({ "ready": true, "serving": true, "terminating": false }),
        };
        self.slices("api", &[own])?;
        self.wait("10: Local, an endpoint with the node's address", API, [Advertised, Absent, Absent])
    }

    fn node_states(&self, pods: &[Attached]) -> Result<()> {
        const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
        let kubectl = self.inner.cluster;
        self.slices("api", &[ready(&pods[0])?, ready(&pods[1])?])?;
        self.wait("5: Local, ready here", API, [Advertised, Advertised, Absent])?;
        kubectl.kubectl(["label", "node", "node1", &format!("{EXCLUDE}=")])?;
        self.wait("11: an excluded node", WEB, [Leaving, Advertised, Advertised])?;
        self.wait("11: 4 s later", WEB, [Absent, Advertised, Advertised])?;
        self.wait("11: Local", API, [Absent, Advertised, Absent])?;
        kubectl.kubectl(["label", "node", "node1", &format!("{EXCLUDE}-")])?;
        self.wait("11: not excluded any more", WEB, EVERYWHERE)?;

        kubectl.kubectl(["cordon", "node3"])?;
        self.wait("12: a cordoned node, Withdraw", WEB, [Advertised, Advertised, Leaving])?;
        self.wait("12: 4 s later", WEB, [Advertised, Advertised, Absent])?;
        kubectl.apply(&SHUTDOWN.replace("CORDONED", "Advertise"))?;
        self.wait("13: a cordoned node, Advertise", WEB, EVERYWHERE)?;
        kubectl.kubectl(["uncordon", "node3"])?;
        Ok(())
    }

    fn drain(&self) -> Result<()> {
        let node = self.inner.bed.host("node2")?;
        let drained: DrainStatus = client::ask(node, &["drain", "--wait"])?;
        ensure!(drained.phase == DrainPhase::Drained, "{drained:?}");
        self.wait("15: a drained node", WEB, [Advertised, Absent, Advertised])?;
        self.wait("15: Local", API, [Advertised, Absent, Absent])?;
        client::ask::<DrainStatus>(node, &["undrain"])?;
        self.wait("15: undrained", WEB, EVERYWHERE)?;
        self.wait("15: undrained, Local", API, [Advertised, Advertised, Absent])
    }
}

/// Restarts with and without the API server. Then a pod dies that the API server still names.
fn absent_api_server(cluster: &mut Cluster, bed: &Bed<'_>, pods: Vec<Attached>) -> Result<()> {
    let kept =
        [(POOL[0], WEB), (POOL[1], WEB), (POOL[0], API), (POOL[1], API)].map(|(pool, n)| host(pool, n));
    let monitor = RouteMonitor::start(&bed.host("tor1")?.ns)?;
    let restart = |signals: &[Signal]| -> Result<()> {
        for node in ["node1", "node2"] {
            let host = bed.host(node)?;
            for signal in signals {
                client::end_agent(host, *signal)?;
                client::start_agent(host)?;
            }
        }
        ["node1", "node2"].iter().try_for_each(|node| client::wait_established(bed.host(node)?, PATIENCE))
    };
    let check = |cluster: &Cluster, what: &str| -> Result<()> {
        let test = Truth { inner: Advertise { cluster, bed } };
        test.wait(what, WEB, EVERYWHERE)?;
        test.wait(what, API, [Advertised, Advertised, Absent])?;
        let removed = monitor.removed(&kept);
        ensure!(removed.is_empty(), "{what}: {removed:?} was withdrawn");
        Ok(())
    };
    restart(&[Signal::TERM])?;
    check(cluster, "a restart")?;
    // The second SIGKILL comes before the first start is complete.
    restart(&[Signal::KILL, Signal::KILL])?;
    check(cluster, "two SIGKILLs")?;

    cluster.stop_api()?;
    check(cluster, "the API server is away")?;
    restart(&[Signal::KILL])?;
    check(cluster, "a SIGKILL while the API server is away")?;
    let lost = pods.into_iter().find(|pod| pod.plan.node == "node2").context("the pod of node2")?;
    cni::del(bed.fabric, &cni::trunkline(None), &lost.sandbox)?;
    let test = Truth { inner: Advertise { cluster, bed } };
    test.wait("9: the pod is gone, and the API server is away", API, [Advertised, Absent, Absent])?;
    test.wait("9: Cluster", WEB, EVERYWHERE)?;
    cluster.start_api()?;
    let test = Truth { inner: Advertise { cluster, bed } };
    test.wait("9: the API server is back, and still names the endpoint", API, [Advertised, Absent, Absent])?;
    test.wait("9: Cluster", WEB, EVERYWHERE)
}
