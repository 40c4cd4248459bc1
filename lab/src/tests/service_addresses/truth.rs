//! Rows of the truth table in FRR and BIRD, each with the reason that the agent reports: endpoints,
//! policies, node states, selection, and a drain. Then restarts and an API server that is away:
//! nothing true is withdrawn, and the death of a local pod is still noticed.
//!
//! The rows with a service proxy are in [`super::proxy`]. A row with GRACEFUL_SHUTDOWN lasts until
//! its reason ends: the test sees it with a long `gracefulShutdownSeconds`, and the withdrawal with
//! a short one. So no observation depends on a time.

mod rows;

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline_api::control::{AdvertisementState, DrainPhase, DrainStatus, ServiceView};

use self::rows::{Row, SeenRows, State};
use super::advertise::{
    Advertise, NAMESPACE, NODES, OBJECTS, POOL, PORT, SERVICE_PORT, configure, host, write_objects,
};
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
    about: "rows of the truth table in FRR and BIRD, with the agents' reasons: endpoints, policies, exclusion, \
            cordon, selectors, pools, External, drain; restarts and an absent API server withdraw nothing that \
            is true",
    run,
};

/// A `gracefulShutdownSeconds`, and the name of its ServiceAdvertisement.
#[derive(Clone, Copy, PartialEq)]
struct Time {
    name: &'static str,
    seconds: u32,
}

/// No graceful shutdown ends during the test.
const LONG: Time = Time { name: "long", seconds: 3600 };
const SHORT: Time = Time { name: "short", seconds: 1 };

/// GRACEFUL_SHUTDOWN (RFC 8326) as FRR and as BIRD show it.
const COMMUNITY: [&str; 2] = ["graceful-shutdown", "65535:0"];

/// The Services: one with the policy Cluster, one with Local.
const WEB: u8 = 1;
const API: u8 = 2;

/// External addresses in the allowed prefixes, and outside of them.
const EXTERNAL: [&str; 2] = ["198.51.100.7", "2001:db8:100::7"];
const FOREIGN: [&str; 2] = ["192.0.2.77", "2001:db8:2::77"];

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

/// A Service, and its addresses of both families.
#[derive(Clone)]
struct Addresses {
    service: &'static str,
    prefixes: [IpNet; 2],
}

fn web() -> Addresses {
    Addresses { service: "web", prefixes: POOL.map(|pool| host(pool, WEB)) }
}

fn api() -> Addresses {
    Addresses { service: "api", prefixes: POOL.map(|pool| host(pool, API)) }
}

fn old(addresses: [&str; 2]) -> Result<Addresses> {
    let [v4, v6] = addresses.map(str::parse::<IpAddr>);
    Ok(Addresses { service: "old", prefixes: [v4?.into(), v6?.into()] })
}

fn run(context: &Context) -> Result<Verdict> {
    let controller = context.controller()?;
    cluster(context, "service-truth", |cluster| {
        lab(context, "hybrid", |bed| {
            write_objects(cluster, bed)?;
            let _controller = Replicas::start(cluster, &controller, 1)?;
            for node in NODES {
                configure(bed, node, &json!({ "kind": "none" }))?;
            }
            let _doorways = nodes::join(cluster, bed.fabric, |_| Ok(cluster.kubeconfig()))?;
            hybrid::ready(bed)?;
            let seen = SeenRows::default();
            let test = Truth { inner: Advertise { cluster, bed }, seen: &seen };
            let pods = NODES.iter().map(|node| test.inner.attach(node)).collect::<Result<Vec<_>>>()?;
            test.cluster_endpoints(&pods)?;
            test.local_endpoints(&pods)?;
            test.policy(&pods)?;
            test.node_states()?;
            test.selection(&pods)?;
            test.drain()?;
            absent_api_server(cluster, bed, pods, &seen)?;
            let count = seen.count()?;
            passed(format!(
                "{count} rows, each in FRR and BIRD, in both families and with the agent's reason; kills and an \
                 absent API server withdrew nothing true"
            ))
        })
    })
}

struct Truth<'a> {
    inner: Advertise<'a>,
    seen: &'a SeenRows,
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

    /// Writes the ServiceAdvertisement of this time.
    fn advertise(&self, time: Time, mut spec: Value) -> Result<()> {
        spec["gracefulShutdownSeconds"] = time.seconds.into();
        let object = json!({
            "apiVersion": "trunkline.io/v1alpha1", "kind": "ServiceAdvertisement",
            "metadata": { "name": time.name }, "spec": spec,
        });
        self.inner.cluster.apply(&object.to_string()).map(drop)
    }

    /// Replaces the ServiceAdvertisement of the other time, and waits until the agents apply the new
    /// one. All nodes advertise `web`.
    fn replace(&self, time: Time, spec: &Value) -> Result<()> {
        let other = if time == LONG { SHORT } else { LONG };
        self.advertise(time, spec.clone())?;
        self.wait_applied(&[LONG.name, SHORT.name])?;
        self.inner.cluster.kubectl(["delete", "serviceadvertisement", other.name])?;
        self.wait_applied(&[time.name])
    }

    /// Waits until each node advertises `web` by these ServiceAdvertisements.
    fn wait_applied(&self, names: &[&str]) -> Result<()> {
        wait_for(&format!("the agents to apply {names:?}"), PATIENCE, || {
            let mut others = Vec::new();
            for node in NODES {
                let views = self.views(node, "web")?;
                let applied = |view: &ServiceView| {
                    view.prefixes.iter().any(|of| of.advertisements == names) && view.prefixes.len() == 1
                };
                if views.len() != POOL.len() || !views.iter().all(applied) {
                    others.push(format!("{node}: {views:?}"));
                }
            }
            Ok(Seen::when(others.is_empty(), || others.join(", ")))
        })
    }

    /// The addresses of a Service, as a node's agent reports them.
    fn views(&self, node: &str, service: &str) -> Result<Vec<ServiceView>> {
        let host = self.inner.bed.host(node)?;
        let text = host.sh(&format!("trunkline services {service} -o json || echo '[]'"))?;
        serde_json::from_str(&text).with_context(|| text.clone())
    }

    /// Waits until routers and agents show the row of each node, and records these rows.
    fn see(&self, of: &Addresses, rows: [&Row; 3]) -> Result<()> {
        let names = rows.map(|row| row.name);
        wait_for(&format!("{}: {names:?}", of.service), PATIENCE, || {
            let mut others = Vec::new();
            for prefix in &of.prefixes {
                let routed = self.routed(prefix)?;
                for ((node, row), routed) in NODES.into_iter().zip(rows).zip(routed) {
                    if routed != row.state.routed() {
                        others.push(format!("{prefix} of {node} is {routed:?} in its router"));
                    }
                }
            }
            for (node, row) in NODES.into_iter().zip(rows) {
                others.extend(self.reported(node, of, row.state)?);
            }
            Ok(Seen::when(others.is_empty(), || others.join(", ")))
        })?;
        self.seen.add(rows);
        Ok(())
    }

    /// Waits until the routers show this state on all nodes. The agents report no addresses of a kind
    /// that no ServiceAdvertisement has.
    fn wait_routed(&self, of: &Addresses, wanted: AdvertisementState) -> Result<()> {
        wait_for(&format!("{}: {wanted:?} in the routers", of.service), PATIENCE, || {
            let seen = of.prefixes.iter().map(|prefix| self.routed(prefix)).collect::<Result<Vec<_>>>()?;
            Ok(Seen::when(seen.iter().flatten().all(|state| *state == wanted), || format!("{seen:?}")))
        })
    }

    /// The state of a prefix on each node, as the node's router has it.
    fn routed(&self, prefix: &IpNet) -> Result<[AdvertisementState; 3]> {
        let paths = self.inner.paths(prefix)?;
        Ok(NODES.map(|node| match paths.get(node) {
            None => AdvertisementState::Withheld,
            Some(path) if path.communities.iter().any(|one| COMMUNITY.contains(&one.as_str())) => {
                AdvertisementState::ShuttingDown
            }
            Some(_) => AdvertisementState::Advertised,
        }))
    }

    /// The addresses whose state or reason on a node is another one.
    fn reported(&self, node: &str, of: &Addresses, wanted: State) -> Result<Vec<String>> {
        let views = self.views(node, of.service)?;
        let view = |prefix: &IpNet| views.iter().find(|view| view.address == prefix.addr());
        let shown = of.prefixes.iter().map(|prefix| match view(prefix) {
            Some(view) if view.state == wanted.reported() && view.reason == wanted.reason() => None,
            Some(view) => Some(format!("{prefix} on {node}: {:?}, {:?}", view.state, view.reason)),
            None => Some(format!("no {prefix} on {node}")),
        });
        Ok(shown.flatten().collect())
    }

    fn cluster_endpoints(&self, pods: &[Attached]) -> Result<()> {
        let [one, _, three] = pods else { anyhow::bail!("three pods") };
        self.advertise(LONG, json!({}))?;
        self.inner.service("web", WEB, "Cluster")?;
        self.slices("web", &[ready(one)?])?;
        self.see(&web(), [&rows::HERE, &rows::ELSEWHERE, &rows::ELSEWHERE])?;
        self.wait_applied(&[LONG.name])?;
        self.slices("web", &[])?;
        self.see(&web(), [&rows::NONE_READY; 3])?;
        self.slices("web", &[terminating(one)?])?;
        self.see(&web(), [&rows::ALL_TERMINATE; 3])?;
        self.slices("web", &[not_ready(one)?])?;
        self.see(&web(), [&rows::NONE_READY; 3])?;
        self.slices("web", &[ready(three)?])?;
        self.see(&web(), [&rows::ELSEWHERE, &rows::ELSEWHERE, &rows::HERE])
    }

    fn local_endpoints(&self, pods: &[Attached]) -> Result<()> {
        let [one, two, three] = pods else { anyhow::bail!("three pods") };
        self.inner.service("api", API, "Local")?;
        self.slices("api", &[ready(one)?, ready(two)?])?;
        self.see(&api(), [&rows::LOCAL, &rows::LOCAL, &rows::LOCAL_ELSEWHERE])?;
        self.slices("api", &[not_ready(one)?, ready(two)?, ready(three)?])?;
        self.see(&api(), [&rows::LOCAL_ELSEWHERE, &rows::LOCAL, &rows::LOCAL])?;
        // The endpoints return while they are announced as leaving, and then they do not.
        self.slices("api", &[ready(one)?, terminating(two)?, terminating(three)?])?;
        self.see(&api(), [&rows::LOCAL, &rows::LOCAL_LAST, &rows::LOCAL_LAST])?;
        self.slices("api", &[ready(one)?, ready(two)?, ready(three)?])?;
        self.see(&api(), [&rows::LOCAL, &rows::RETURNED, &rows::RETURNED])?;
        self.replace(SHORT, &json!({}))?;
        self.slices("api", &[ready(one)?, terminating(two)?, terminating(three)?])?;
        self.see(&api(), [&rows::LOCAL, &rows::LOCAL_LEFT, &rows::LOCAL_LEFT])?;
        let own = |node: &str, addresses: [&str; 2]| -> Result<Endpoint> {
            let [v4, v6] = addresses.map(str::parse);
            let conditions = json!({ "ready": true, "serving": true, "terminating": false });
            Ok(Endpoint { addresses: [v4?, v6?], node: node.to_owned(), conditions })
        };
        let first = own("node1", ["10.51.0.11", "fd00:51::11"])?;
        let third = own("node3", ["10.52.0.13", "fd00:52::13"])?;
        self.slices("api", &[first, third])?;
        self.see(&api(), [&rows::LOCAL_NODE, &rows::LOCAL_ELSEWHERE, &rows::LOCAL_NODE])?;
        self.slices("api", &[ready(one)?, ready(two)?, ready(three)?])?;
        self.see(&api(), [&rows::LOCAL; 3])
    }

    /// The policy changes from Cluster to Local and back, with an endpoint on node2.
    fn policy(&self, pods: &[Attached]) -> Result<()> {
        let change = |policy: &str| -> Result<()> {
            let patch = json!({ "spec": { "externalTrafficPolicy": policy } }).to_string();
            let args = ["patch", "service", "web", "-n", NAMESPACE, "--type=merge", "-p", &patch];
            self.inner.cluster.kubectl(args).map(drop)
        };
        self.replace(LONG, &json!({}))?;
        self.slices("web", &[ready(&pods[1])?])?;
        self.see(&web(), [&rows::ELSEWHERE, &rows::HERE, &rows::ELSEWHERE])?;
        let kept = ["tor1", "tor2"].map(|tor| RouteMonitor::start(&self.inner.bed.host(tor)?.ns));
        let kept = kept.into_iter().collect::<Result<Vec<_>>>()?;
        change("Local")?;
        self.see(&web(), [&rows::NOW_LOCAL, &rows::LOCAL, &rows::NOW_LOCAL])?;
        change("Cluster")?;
        self.see(&web(), [&rows::RETURNED, &rows::HERE, &rows::RETURNED])?;
        self.replace(SHORT, &json!({}))?;
        change("Local")?;
        self.see(&web(), [&rows::NOW_LOCAL_LEFT, &rows::LOCAL, &rows::NOW_LOCAL_LEFT])?;
        change("Cluster")?;
        self.see(&web(), [&rows::ELSEWHERE, &rows::HERE, &rows::ELSEWHERE])?;
        // The node with the endpoint advertises it throughout, so each router always has a route. A
        // router changes an IPv6 route by a removal and an addition.
        let removed: Vec<IpNet> = kept.iter().flat_map(|one| one.removed(&web().prefixes[..1])).collect();
        ensure!(removed.is_empty(), "{removed:?} was withdrawn");
        Ok(())
    }

    /// A soft reason of node1 and node3 begins and ends: first during the graceful shutdown, then
    /// after it. `spec` is the ServiceAdvertisement's. The endpoint of `web` is on node2.
    fn soft(
        &self,
        spec: &Value,
        set: &dyn Fn(bool) -> Result<()>,
        leaving: &Row,
        withheld: &Row,
    ) -> Result<()> {
        self.replace(LONG, spec)?;
        set(true)?;
        self.see(&web(), [leaving, &rows::HERE, leaving])?;
        self.see(&api(), [leaving, &rows::LOCAL, leaving])?;
        set(false)?;
        self.see(&web(), [&rows::RETURNED, &rows::HERE, &rows::RETURNED])?;
        self.see(&api(), [&rows::RETURNED, &rows::LOCAL, &rows::RETURNED])?;
        self.replace(SHORT, spec)?;
        set(true)?;
        self.see(&web(), [withheld, &rows::HERE, withheld])?;
        self.see(&api(), [withheld, &rows::LOCAL, withheld])
    }

    fn node_states(&self) -> Result<()> {
        const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
        let kubectl = self.inner.cluster;
        let label = |name: &str, value: &str, set: bool| -> Result<()> {
            let text = if set { format!("{name}={value}") } else { format!("{name}-") };
            kubectl.kubectl(["label", "node", "node1", "node3", "--overwrite", &text]).map(drop)
        };
        let exclude = |set: bool| label(EXCLUDE, "", set);
        self.soft(&json!({}), &exclude, &rows::EXCLUDED, &rows::EXCLUDED_LEFT)?;
        self.advertise(SHORT, json!({ "excludedNodes": "Advertise" }))?;
        let advertised = &rows::EXCLUDED_ADVERTISES;
        self.see(&web(), [advertised, &rows::HERE, advertised])?;
        exclude(false)?;

        let cordon = |set: bool| {
            let verb = if set { "cordon" } else { "uncordon" };
            kubectl.kubectl([verb, "node1", "node3"]).map(drop)
        };
        let withdraw = json!({ "cordonedNodes": "Withdraw" });
        self.soft(&withdraw, &cordon, &rows::CORDONED, &rows::CORDONED_LEFT)?;
        self.advertise(SHORT, json!({ "cordonedNodes": "Advertise" }))?;
        let advertised = &rows::CORDONED_ADVERTISES;
        self.see(&web(), [advertised, &rows::HERE, advertised])?;
        cordon(false)?;

        kubectl.kubectl(["label", "node", "node2", "edge=yes"])?;
        let edge = |set: bool| label("edge", "yes", !set);
        edge(false)?;
        let selector = json!({ "nodeSelector": { "matchLabels": { "edge": "yes" } } });
        self.soft(&selector, &edge, &rows::NOT_SELECTED_NODE, &rows::NOT_SELECTED_NODE_LEFT)?;
        self.advertise(SHORT, json!({}))?;
        self.see(&web(), [&rows::ELSEWHERE, &rows::HERE, &rows::ELSEWHERE])
    }

    /// Selectors, pools, and External addresses. The endpoints of `web` and `old` are on node2.
    fn selection(&self, pods: &[Attached]) -> Result<()> {
        let kubectl = self.inner.cluster;
        self.advertise(SHORT, json!({ "serviceSelector": { "matchLabels": { "app": "api" } } }))?;
        self.see(&web(), [&rows::NOT_SELECTED; 3])?;
        self.see(&api(), [&rows::LOCAL; 3])?;
        self.advertise(SHORT, json!({}))?;
        kubectl.kubectl(["delete", "servicepool", "public"])?;
        self.see(&web(), [&rows::NOT_IN_POOL; 3])?;
        self.see(&api(), [&rows::NOT_IN_POOL; 3])?;
        kubectl.apply(OBJECTS)?;
        self.see(&api(), [&rows::LOCAL; 3])?;

        let addresses = [EXTERNAL, FOREIGN].concat();
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "old", "namespace": NAMESPACE },
            "spec": {
                "externalIPs": addresses, "ipFamilyPolicy": "RequireDualStack",
                "ports": [{ "port": SERVICE_PORT, "targetPort": PORT }],
            },
        });
        kubectl.create(&service.to_string())?;
        self.slices("old", &[ready(&pods[1])?])?;
        let (external, foreign) = (old(EXTERNAL)?, old(FOREIGN)?);
        self.wait_routed(&external, AdvertisementState::Withheld)?;
        let prefixes = ["198.51.100.0/24", "2001:db8:100::/64"];
        let kinds = json!({ "addresses": ["LoadBalancer", "External"], "externalCIDRs": prefixes });
        self.advertise(SHORT, kinds)?;
        self.see(&external, [&rows::ALLOWED; 3])?;
        self.see(&foreign, [&rows::NOT_ALLOWED; 3])?;
        self.advertise(SHORT, json!({}))?;
        self.wait_routed(&external, AdvertisementState::Withheld)?;
        // Without any ServiceAdvertisement, the default advertises the addresses of the pools.
        kubectl.kubectl(["delete", "serviceadvertisement", SHORT.name])?;
        self.wait_routed(&external, AdvertisementState::Withheld)?;
        self.see(&web(), [&rows::ELSEWHERE, &rows::HERE, &rows::ELSEWHERE])
    }

    fn drain(&self) -> Result<()> {
        for node in ["node2", "node3"] {
            let drained: DrainStatus = client::ask(self.inner.bed.host(node)?, &["drain", "--wait"])?;
            ensure!(drained.phase == DrainPhase::Drained, "{drained:?}");
        }
        self.see(&web(), [&rows::ELSEWHERE, &rows::DRAINED, &rows::DRAINED])?;
        self.see(&api(), [&rows::LOCAL, &rows::DRAINED, &rows::DRAINED])?;
        for node in ["node2", "node3"] {
            client::ask::<DrainStatus>(self.inner.bed.host(node)?, &["undrain"])?;
        }
        self.see(&web(), [&rows::ELSEWHERE, &rows::HERE, &rows::ELSEWHERE])?;
        self.see(&api(), [&rows::LOCAL; 3])
    }
}

/// Restarts with and without the API server. Then pods end that the API server still names. The
/// endpoint of `web` is on node2.
fn absent_api_server(
    cluster: &mut Cluster,
    bed: &Bed<'_>,
    pods: Vec<Attached>,
    seen: &SeenRows,
) -> Result<()> {
    let kept = [web().prefixes, api().prefixes].concat();
    let monitor = RouteMonitor::start(&bed.host("tor1")?.ns)?;
    let restart = |signals: &[Signal]| -> Result<()> {
        for node in NODES {
            let host = bed.host(node)?;
            for signal in signals {
                client::end_agent(host, *signal)?;
                client::start_agent(host)?;
            }
        }
        NODES.iter().try_for_each(|node| client::wait_established(bed.host(node)?, PATIENCE))
    };
    let check = |cluster: &Cluster, what: &str, web_rows: [&Row; 3], api_rows: [&Row; 3]| -> Result<()> {
        let test = Truth { inner: Advertise { cluster, bed }, seen };
        test.see(&web(), web_rows).context(what.to_owned())?;
        test.see(&api(), api_rows).context(what.to_owned())?;
        let removed = monitor.removed(&kept);
        ensure!(removed.is_empty(), "{what}: {removed:?} was withdrawn");
        Ok(())
    };
    let usual = [&rows::ELSEWHERE, &rows::HERE, &rows::ELSEWHERE];
    let local = [&rows::LOCAL; 3];
    restart(&[Signal::TERM])?;
    check(cluster, "a restart", usual, local)?;
    // The second SIGKILL comes before the first start is complete.
    restart(&[Signal::KILL, Signal::KILL])?;
    check(cluster, "two SIGKILLs", usual, local)?;

    cluster.stop_api()?;
    check(cluster, "the API server is away", usual, local)?;
    restart(&[Signal::KILL])?;
    let as_before = [&rows::KEPT; 3];
    check(cluster, "a SIGKILL while the API server is away", as_before, as_before)?;
    for lost in pods.iter().filter(|pod| pod.plan.node != "node2") {
        cni::del(bed.fabric, &cni::trunkline(None), &lost.sandbox)?;
    }
    let gone = |other| [&rows::LOCAL_NO_ROUTE, other, &rows::LOCAL_NO_ROUTE];
    let test = Truth { inner: Advertise { cluster, bed }, seen };
    test.see(&api(), gone(&rows::KEPT)).context("two pods are gone, and the API server is away")?;
    test.see(&web(), as_before)?;
    cluster.start_api()?;
    let test = Truth { inner: Advertise { cluster, bed }, seen };
    test.see(&api(), gone(&rows::LOCAL)).context("the API server is back, and still names the endpoints")?;
    test.see(&web(), usual)
}
