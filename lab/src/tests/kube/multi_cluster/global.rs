//! Services with endpoints in both clusters, behind a real kube-proxy.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::{NAMESPACE, PATIENCE, Side, json_of, pair};
use crate::greeter::{Greeter, heard};
use crate::kube::assets::Assets;
use crate::kube::endpoints::{Endpoint, slices};
use crate::kube::nodes::Attached;
use crate::kube::proxy::{self, Mode};
use crate::netns::Namespace;
use crate::progress::say;
use crate::shell::{Seen, wait_for};
use crate::tests::kube::Verdict;
use crate::tests::{Context as Lab, Test, passed};

pub(super) const TEST: Test = Test {
    name: "kube/global-service",
    about: "a Service with endpoints in two clusters, behind kube-proxy: all endpoints answer, or the local ones by annotation; \
            no connection fails without an API server and after kills; foreign addresses are refused; remote endpoints end \
            with the RemoteCluster",
    run: global_service,
};

const PORT: u16 = 8080;
const GLOBAL: &str = "networking.alibaba.com/global-service";
const AFFINITY: &str = "trunkline.io/global-service-affinity";
/// The time limit of a connection. No endpoint of kube-proxy is without a route in this test.
const BOUND: Duration = Duration::from_secs(3);
/// Number of connections after which kube-proxy has selected each of three endpoints.
const CONNECTIONS: usize = 60;
/// An address of neither a pod nor a node.
const FOREIGN: &str = "198.51.100.9";

fn global_service(context: &Lab) -> Result<Verdict> {
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    pair(context, "global", |fabric, [mut east, mut west]| {
        let (namespace, account) = proxy::ACCOUNT;
        let kubeconfig = east.cluster.service_account(namespace, account)?;
        east.cluster.create(proxy::RIGHTS)?;
        east.read(&west)?;
        west.read(&east)?;
        let client = east.attach(fabric, "overlay-client", "node1", None)?;
        let at_east = [east.attach(fabric, "overlay-web-east", "node2", None)?];
        let at_west = [
            west.attach(fabric, "overlay-web-west", "node3", None)?,
            west.attach(fabric, "bgp-web-west", "node4", None)?,
        ];
        let servers = at_east.iter().chain(&at_west);
        let _servers: Vec<Greeter> = servers
            .map(|pod| Greeter::named(&pod.sandbox.ns, PORT, &pod.plan.name))
            .collect::<Result<_>>()?;
        for (side, pods) in [(&east, &at_east[..]), (&west, &at_west[..])] {
            service(side)?;
            endpoints(side, "web", pods)?;
        }
        let host = fabric.host("node1")?;
        let mut proxy = proxy::start(east.cluster.folder(), host, &program, &kubeconfig, Mode::Nftables)?;
        proxy::wait_rules(&mut proxy, host, Mode::Nftables, NAMESPACE, &["web".to_owned()])?;
        let lab = Web { ns: client.sandbox.ns.clone(), addresses: addresses(&east)? };
        lab.answers("all endpoints", &["overlay-web-east", "overlay-web-west", "bgp-web-west"])?;

        foreign(&east, &west)?;
        let asked = lab.while_asking(|| {
            say("  the API server of west is stopped, and the programs of east are killed");
            west.cluster.stop_api()?;
            east.wait_state("Offline")?;
            east.kill_all(fabric)?;
            std::thread::sleep(Duration::from_secs(10));
            west.cluster.start_api()?;
            east.wait_state("Ready").map(drop)
        })?;
        lab.answers("all endpoints again", &["overlay-web-east", "overlay-web-west", "bgp-web-west"])?;

        annotate(&east, &format!("{AFFINITY}=local"))?;
        lab.answers("local endpoints first", &["overlay-web-east"])?;
        endpoints(&east, "web", &[])?;
        lab.answers("without local endpoints", &["overlay-web-west", "bgp-web-west"])?;
        endpoints(&east, "web", &at_east)?;
        lab.answers("local endpoints again", &["overlay-web-east"])?;
        annotate(&east, &format!("{AFFINITY}-"))?;
        lab.answers("without affinity", &["overlay-web-east", "overlay-web-west", "bgp-web-west"])?;

        annotate(&west, &format!("{GLOBAL}-"))?;
        lab.answers("not global in west", &["overlay-web-east"])?;
        annotate(&west, &format!("{GLOBAL}=true"))?;
        lab.answers("global in west again", &["overlay-web-east", "overlay-web-west", "bgp-web-west"])?;
        east.cluster.kubectl(["delete", "remotecluster", "west", "--wait=false"])?;
        lab.answers("without the RemoteCluster", &["overlay-web-east"])?;
        east.wait_mirrored(0, 0, PATIENCE)?;
        ensure!(bound(&east)?.is_empty(), "EndpointSlices are left: {:?}", bound(&east)?);
        east.replicas.still_running()?;
        west.replicas.still_running()?;
        passed(format!(
            "a Service with endpoints in two clusters, both families; {asked} connections without an API server and with kills, none failed"
        ))
    })
}

/// A global Service of this name in a cluster.
fn service(side: &Side<'_>) -> Result<()> {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": NAMESPACE, "annotations": {GLOBAL: "true"}},
        "spec": {"ipFamilyPolicy": "RequireDualStack", "ports": [{"port": PORT, "protocol": "TCP"}]},
    });
    side.cluster.apply(&service.to_string()).map(drop)
}

/// Writes the EndpointSlices of these pods, as Kubernetes' controller does.
fn endpoints(side: &Side<'_>, service: &str, pods: &[Attached]) -> Result<()> {
    let of = |pod: &'_ Attached| {
        let mut addresses = pod.addresses.clone();
        addresses.sort_by_key(|address| address.is_ipv6());
        addresses
    };
    let addresses: Vec<Vec<IpAddr>> = pods.iter().map(of).collect();
    let endpoints: Vec<Endpoint<'_>> = pods
        .iter()
        .zip(&addresses)
        .map(|(pod, addresses)| Endpoint { addresses, node: &pod.plan.node, is_ready: true })
        .collect();
    side.cluster.apply(&slices(NAMESPACE, service, PORT, &endpoints)).map(drop)
}

fn annotate(side: &Side<'_>, annotation: &str) -> Result<()> {
    side.cluster.kubectl(["annotate", "--overwrite", "-n", NAMESPACE, "service", "web", annotation]).map(drop)
}

/// The cluster's addresses of the Service.
fn addresses(side: &Side<'_>) -> Result<Vec<SocketAddr>> {
    let service = json_of(side.cluster, &["service", "-n", NAMESPACE, "web"])?;
    let all = service["spec"]["clusterIPs"].as_array().context("clusterIPs")?;
    all.iter().map(|ip| Ok((ip.as_str().unwrap_or_default().parse::<IpAddr>()?, PORT).into())).collect()
}

/// The EndpointSlices with endpoints of other clusters.
fn bound(side: &Side<'_>) -> Result<Vec<Value>> {
    let label = "endpointslice.kubernetes.io/managed-by=remote-endpointslice.hybridnet";
    let mut list = json_of(side.cluster, &["endpointslices", "-n", NAMESPACE, "-l", label])?;
    Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

/// An endpoint of west with an address of no pod and no node of west does not reach east.
fn foreign(east: &Side<'_>, west: &Side<'_>) -> Result<()> {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-foreign", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [{"addresses": [FOREIGN], "conditions": {"ready": true}}],
        "ports": [{"name": "", "port": PORT, "protocol": "TCP"}],
    });
    west.cluster.apply(&slice.to_string())?;
    east.wait_metric(
        "trunkline_controller_remote_cluster_objects{cluster=\"west\",kind=\"refused_endpoints\"} 1",
    )?;
    let all = bound(east)?;
    ensure!(
        !all.is_empty() && !json!(all).to_string().contains(FOREIGN),
        "{FOREIGN} is an endpoint: {all:?}"
    );
    west.cluster.kubectl(["delete", "endpointslice", "-n", NAMESPACE, "web-foreign"]).map(drop)
}

/// The Service, from a pod.
struct Web {
    ns: Namespace,
    addresses: Vec<SocketAddr>,
}

impl Web {
    /// Waits until exactly these endpoints answer, by both families.
    fn answers(&self, when: &str, wanted: &[&str]) -> Result<()> {
        let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        for address in &self.addresses {
            wait_for(&format!("{when}: {wanted:?} by {address}"), PATIENCE, || {
                let mut seen = BTreeSet::new();
                for _ in 0..CONNECTIONS {
                    match heard(&self.ns, *address, BOUND) {
                        Ok(name) => seen.insert(name),
                        Err(error) => seen.insert(format!("{error:#}")),
                    };
                }
                Ok(Seen::when(seen == wanted, || format!("{seen:?}")))
            })?;
        }
        Ok(())
    }

    /// Connects all the time while `work` runs. Returns the number of connections, none of which failed.
    fn while_asking(&self, work: impl FnOnce() -> Result<()>) -> Result<usize> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ns, addresses, stopped) = (self.ns.clone(), self.addresses.clone(), Arc::clone(&stop));
        let asking = std::thread::spawn(move || -> Result<usize> {
            let mut asked = 0;
            while !stopped.load(Ordering::Relaxed) {
                for address in &addresses {
                    heard(&ns, *address, BOUND)?;
                    asked += 1;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(asked)
        });
        let worked = work();
        stop.store(true, Ordering::Relaxed);
        let Ok(asked) = asking.join() else { bail!("the asking thread panicked") };
        worked?;
        asked
    }
}
