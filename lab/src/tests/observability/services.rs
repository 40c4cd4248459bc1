//! Services in the cluster of [`super::cluster`]: a ServicePool, Services with an endpoint on the
//! node, and each alert about them.
//!
//! The node's service proxy is pretended: an answer at `/healthz`, and kube-proxy's map of addresses
//! in nftables. Labs with the real kube-proxy are in [`crate::tests::service_addresses`].

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, ensure};
use rustix::net::{Shutdown, shutdown};
use serde_json::{Value, json};
use trunkline_api::control::ServiceView;

use super::cluster::{NAMESPACE, NODE, PATIENCE};
use super::prometheus::Prometheus;
use crate::kube::Cluster;
use crate::kube::nodes::Attached;
use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::Bed;

/// kube-proxy's port for `/healthz`.
const HEALTH: u16 = 10256;
/// The addresses of the pool.
const ADDRESSES: [&str; 4] = ["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"];

const POOL: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServicePool
metadata: { name: public }
spec: { addresses: [203.0.113.1-203.0.113.4] }
---
apiVersion: trunkline.io/v1alpha1
kind: ServiceAdvertisement
metadata: { name: all }
spec: { gracefulShutdownSeconds: 0 }
";

/// Lets the node withdraw a second after the end of its service proxy. Precedes the agent's start.
pub(super) fn configure(bed: &Bed<'_>) -> Result<()> {
    let file = bed.fabric.file(&format!("one-rack/{NODE}/agent.yaml"));
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut config: BTreeMap<String, Value> =
        serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
    config.insert("services".to_owned(), json!({ "proxy": { "restartSeconds": 1 } }));
    // The file is overwritten in place, because the node has mounted this file.
    Ok(std::fs::write(&file, serde_json::to_string_pretty(&config)?)?)
}

pub(super) struct Services<'a> {
    pub cluster: &'a Cluster,
    pub bed: &'a Bed<'a>,
    pub prometheus: &'a Prometheus,
}

impl Services<'_> {
    pub(super) fn test(&self, pod: &Attached) -> Result<()> {
        let node = &self.bed.node()?.ns;
        self.write_rules()?;
        self.cluster.apply(POOL)?;
        let proxy = PretendedProxy::start(node)?;
        for (number, name) in ["web", "api"].into_iter().enumerate() {
            self.create(name)?;
            self.endpoint(name, Some(pod))?;
            self.advertised(number + 1)?;
            self.prometheus.wait_scrape()?;
        }
        self.nodes_of("web", &[NODE])?;
        self.claims(1, "NodesAdvertise")?;

        // The service proxy ends: the node withdraws, and no other node is there.
        drop(proxy);
        self.prometheus.wait_firing("TrunklineServiceProxyDown", NODE)?;
        self.prometheus.wait_firing("TrunklineServiceUnadvertised", "")?;
        self.claims(0, "NoNode")?;
        self.nodes_of("web", &[])?;
        let _proxy = PretendedProxy::start(node)?;
        self.advertised(2)?;
        self.prometheus.wait_cleared("TrunklineServiceProxyDown")?;
        self.prometheus.wait_cleared("TrunklineServiceUnadvertised")?;

        for name in ["web", "api"] {
            self.endpoint(name, None)?;
        }
        self.prometheus.wait_firing("TrunklineServiceWithoutEndpoint", "")?;
        self.claims(0, "NoEndpoint")?;
        self.silent("TrunklineServiceUnadvertised")?;
        for name in ["web", "api"] {
            self.endpoint(name, Some(pod))?;
        }
        self.advertised(2)?;
        self.prometheus.wait_cleared("TrunklineServiceWithoutEndpoint")?;

        self.conflict()?;

        // One Service more than the pool has addresses.
        let more = ["fill-1", "fill-2", "fill-3"];
        for name in more {
            self.create(name)?;
        }
        self.prometheus.wait_firing("TrunklineServicePoolNearlyFull", "")?;
        let waiting = "max(trunkline_controller_services{state=\"waiting\"})";
        wait_for("one waiting Service", PATIENCE, || {
            let now = self.prometheus.query(waiting)?;
            Ok(Seen::when(now == [1.0], || format!("{now:?}")))
        })?;
        for name in more.into_iter().chain(["web", "api"]) {
            self.cluster.kubectl(["delete", "service", name, "-n", NAMESPACE])?;
        }
        self.prometheus.wait_cleared("TrunklineServicePoolNearlyFull")?;
        // The new Services had no endpoint.
        self.prometheus.wait_cleared("TrunklineServiceWithoutEndpoint")
    }

    /// Another program writes the address of `api` into the status of `web`, and the API server
    /// refuses the controller's correction.
    fn conflict(&self) -> Result<()> {
        let address = |name| {
            let path = "jsonpath={.status.loadBalancer.ingress[0].ip}";
            self.cluster.kubectl(["get", "service", name, "-n", NAMESPACE, "-o", path])
        };
        let (web, api) = (address("web")?, address("api")?);
        let write = |address: &str, dry_run: &str| {
            let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": address }] } } });
            self.cluster.kubectl([
                "patch",
                "service",
                "web",
                "-n",
                NAMESPACE,
                "--subresource=status",
                "--type=merge",
                dry_run,
                "-p",
                &status.to_string(),
            ])
        };
        self.cluster.apply(&policy(&api))?;
        wait_for("a refused status", PATIENCE, || {
            Ok(match write(&web, "--dry-run=server") {
                Ok(text) => Seen::NotYet(text),
                Err(_) => Seen::Yes(()),
            })
        })?;
        write(&api, "--dry-run=none")?;
        self.prometheus.wait_firing("TrunklineServiceConflict", "")?;
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            self.cluster.kubectl(["delete", kind, "keep-conflict"])?;
        }
        wait_for("the corrected status", PATIENCE, || {
            let now = address("web")?;
            Ok(Seen::when(now == web, || now.clone()))
        })?;
        self.prometheus.wait_cleared("TrunklineServiceConflict")
    }

    /// kube-proxy's rules for every address of the pool, as far as the agent reads them.
    fn write_rules(&self) -> Result<()> {
        let elements =
            ADDRESSES.map(|address| format!("{address} . tcp . 80 : goto external-web")).join(", ");
        let kinds = "type ipv4_addr . inet_proto . inet_service : verdict;";
        let script = format!(
            "add table ip kube-proxy\n\
             add chain ip kube-proxy services\n\
             add chain ip kube-proxy external-web\n\
             add map ip kube-proxy service-ips {{ {kinds} }}\n\
             add map ip kube-proxy no-endpoint-services {{ {kinds} }}\n\
             add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips\n\
             add element ip kube-proxy service-ips {{ {elements} }}\n"
        );
        self.bed.node()?.sh(&format!("nft -f - <<'END'\n{script}END")).map(drop)
    }

    fn create(&self, name: &str) -> Result<()> {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "trunkline.io/load-balancer",
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "ports": [{ "port": 80 }],
            },
        });
        self.cluster.create(&service.to_string()).map(drop)
    }

    /// Sets the endpoint of a Service.
    fn endpoint(&self, service: &str, pod: Option<&Attached>) -> Result<()> {
        let endpoint = |pod: &Attached| json!({ "addresses": [pod.addresses[0]], "nodeName": NODE, "conditions": { "ready": true } });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": service, "namespace": NAMESPACE, "labels": { "kubernetes.io/service-name": service },
            },
            "addressType": "IPv4", "endpoints": pod.iter().map(|pod| endpoint(pod)).collect::<Vec<_>>(),
            "ports": [{ "name": "", "port": 80, "protocol": "TCP" }],
        });
        self.cluster.apply(&slice.to_string()).map(drop)
    }

    /// Waits until the node advertises this number of addresses.
    fn advertised(&self, number: usize) -> Result<()> {
        let host = self.bed.node()?;
        wait_for(&format!("{number} advertised addresses"), PATIENCE, || {
            let text = host.sh("trunkline services -o json")?;
            let views: Vec<ServiceView> = serde_json::from_str(&text).with_context(|| text.clone())?;
            let advertised = views.iter().filter(|view| view.state.name() == "advertised").count();
            Ok(Seen::when(advertised == number, || text))
        })
    }

    /// Waits until `trunkline services NAME` shows these nodes.
    fn nodes_of(&self, name: &str, nodes: &[&str]) -> Result<()> {
        let host = self.bed.node()?;
        wait_for(&format!("{nodes:?} to advertise {name}"), PATIENCE, || {
            let text = host.sh(&format!("trunkline services {name} -o json"))?;
            let views: Vec<ServiceView> = serde_json::from_str(&text).with_context(|| text.clone())?;
            let is = views.len() == 1 && views[0].nodes.as_ref().is_some_and(|shown| shown == nodes);
            Ok(Seen::when(is, || text))
        })
    }

    /// Waits until both claims have this number of nodes, and this reason of the condition.
    fn claims(&self, nodes: u64, reason: &str) -> Result<()> {
        wait_for(&format!("claims with {reason}"), PATIENCE, || {
            let text = self.cluster.kubectl(["get", "serviceaddresses", "-o", "json"])?;
            let list: Value = serde_json::from_str(&text)?;
            let is = |claim: &Value| {
                let status = &claim["status"];
                status["nodes"] == nodes && status["conditions"][0]["reason"] == reason
            };
            let items = list["items"].as_array().context("no items")?;
            Ok(Seen::when(items.len() == 2 && items.iter().all(is), || text.clone()))
        })
    }

    fn silent(&self, alert: &str) -> Result<()> {
        let firing = self.prometheus.firing(alert)?;
        ensure!(firing.is_empty(), "{alert} fires: {firing:?}");
        Ok(())
    }
}

/// An admission policy that refuses a status of `web` without this address.
fn policy(address: &str) -> String {
    let expression = format!(
        "object.metadata.name != 'web' || object.status.loadBalancer.ingress.exists(one, one.ip == '{address}')"
    );
    let services = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["services/status"],
    });
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "keep-conflict" },
        "spec": {
            "matchConstraints": { "resourceRules": [services] },
            "validations": [{ "expression": expression }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "keep-conflict" },
        "spec": { "policyName": "keep-conflict", "validationActions": ["Deny"] },
    });
    format!("{policy}\n---\n{binding}")
}

/// A service proxy that is healthy until this value is dropped.
struct PretendedProxy {
    listener: TcpListener,
    held: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
}

impl PretendedProxy {
    fn start(node: &Namespace) -> Result<Self> {
        let listener = node.within(|| Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, HEALTH))?))?;
        let (accepted, held) = (listener.try_clone()?, Arc::new(Mutex::new(Vec::new())));
        let all = Arc::clone(&held);
        let thread = std::thread::spawn(move || {
            while let Ok((connection, _)) = accepted.accept() {
                if let Ok(own) = connection.try_clone() {
                    all.lock().unwrap_or_else(PoisonError::into_inner).push(own);
                    std::thread::spawn(move || answer(connection));
                }
            }
        });
        Ok(Self { listener, held, thread: Some(thread) })
    }
}

impl Drop for PretendedProxy {
    fn drop(&mut self) {
        // Ends `accept`, then each connection.
        let _ended = shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
        for connection in self.held.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ended = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Answers each request of a connection, as kube-proxy does.
fn answer(connection: TcpStream) {
    let Ok(mut answers) = connection.try_clone() else { return };
    let body = r#"{"lastUpdated":"2026-01-01T00:00:00Z","nodeEligible":true}"#;
    let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for line in BufReader::new(connection).lines() {
        // An empty line ends a request.
        match line {
            Ok(line) if line.is_empty() => {
                if answers.write_all(text.as_bytes()).is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}
