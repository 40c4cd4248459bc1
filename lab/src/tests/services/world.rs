//! A topology with the matrix' pods and kube-proxy on each node, and the connections.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::advertised::Advertised;
use super::cells::{Cell, Client};
use super::plan::{Ask, BACKEND_PORT, Plan, Pod};
use crate::cni::{self, Sandbox};
use crate::kube::Cluster;
use crate::kube::proxy::{self, Mode};
use crate::netns::Namespace;
use crate::packages;
use crate::progress::{say, seconds, table};
use crate::tests::bed::Bed;
use crate::tests::greeter::{Greeter, greeted_within};
use crate::tests::{Verdict, passed};

/// The packages of portmap, and of the programs with which portmap and kube-proxy write rules.
pub(super) const PACKAGES: [&str; 3] = ["containernetworking-plugins", "iptables", "nftables"];

/// Time limits of a connection that must succeed, and of a connection that must fail. Within both
/// limits a lost SYN is retransmitted.
const ANSWERED: Duration = Duration::from_secs(5);
const REFUSED: Duration = Duration::from_secs(2);

/// Number of concurrent connections. Connections that must fail need most of the time.
const AT_ONCE: usize = 48;

/// Number of cells that an error names.
const NAMED: usize = 6;

/// Requirements of kube-proxy.
pub(super) struct Proxies<'a> {
    /// The folder for logs.
    pub folder: &'a Path,
    pub program: &'a Path,
    pub kubeconfig: &'a Path,
    pub mode: Mode,
}

/// Writes all objects for kube-proxy; returns its kubeconfig.
pub(super) fn prepare(cluster: &Cluster, plan: &Plan) -> Result<PathBuf> {
    let (namespace, account) = proxy::ACCOUNT;
    let kubeconfig = cluster.service_account(namespace, account)?;
    cluster.create(proxy::RIGHTS)?;
    cluster.create(&plan.objects()?)?;
    if !plan.by_bgp {
        write_statuses(cluster, plan.statuses())?;
    }
    Ok(kubeconfig)
}

/// Writes Services' statuses, as the controller of a load balancer does.
pub(super) fn write_statuses(
    cluster: &Cluster,
    statuses: impl IntoIterator<Item = (String, Value)>,
) -> Result<()> {
    let services: Api<Service> = Api::default_namespaced(cluster.client());
    cluster.wait(async {
        for (name, status) in statuses {
            services.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        }
        Ok(())
    })
}

/// An EndpointSlice with one backend of a Service.
pub(super) fn endpoints(service: &str, family: &str, address: &str, port: u16, node: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-{}", family.to_lowercase()),
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": family,
        "ports": [{ "name": "", "port": port, "protocol": "TCP" }],
        "endpoints": [{ "addresses": [address], "conditions": { "ready": true }, "nodeName": node }],
    })
}

/// A connection to make, with the source that the backend must see, or `None` if there must be no
/// connection.
struct Wanted<'a> {
    ask: Ask,
    source: Option<IpAddr>,
    from: &'a Namespace,
}

/// Attaches the pods, starts kube-proxy on each node, and makes every connection of the matrix.
pub(super) fn run(
    bed: &Bed<'_>,
    plan: &Plan,
    of: &Proxies<'_>,
    advertised: Option<&Advertised<'_>>,
    patience: Duration,
) -> Result<Verdict> {
    packages::need(PACKAGES)?;
    let mut proxies = Vec::new();
    for node in &plan.nodes {
        let host = bed.host(node.name)?;
        proxies.push((proxy::start(of.folder, host, of.program, of.kubeconfig, of.mode)?, host));
    }
    let pods = plan.pods()?;
    let attach = |pod: &Pod| match advertised {
        Some(advertised) => advertised.attach(bed, plan, pod),
        None => attach(bed, plan, pod),
    };
    let attached: Vec<Namespace> = pods.iter().map(attach).collect::<Result<_>>()?;
    let _servers: Vec<Greeter> =
        attached.iter().map(|ns| Greeter::listen(ns, BACKEND_PORT)).collect::<Result<_>>()?;
    for (proxy, host) in &mut proxies {
        proxy::wait_rules(proxy, host, of.mode, &plan.services())?;
    }
    reaches(bed, plan, &pods, patience)?;
    match advertised {
        Some(advertised) => advertised.by_target(bed, plan)?,
        None => bed.host(plan.router)?.sh(&plan.routes()).map(drop)?,
    }

    let namespaces: BTreeMap<&str, &Namespace> =
        pods.iter().map(|pod| pod.name.as_str()).zip(&attached).collect();
    let mut wanted = Vec::new();
    for ask in plan.asks() {
        let from = match ask.cell.client {
            Client::Outside => &bed.host("outside")?.ns,
            Client::Node => &bed.host(plan.nodes[0].name)?.ns,
            Client::Pod => namespaces[plan.pod(ask.kind, None)?.name.as_str()],
            Client::Backend => namespaces[plan.pod(ask.kind, Some(ask.cell.backend))?.name.as_str()],
        };
        wanted.push(Wanted { ask, source: plan.source(ask)?, from });
    }
    let mut words = check(plan, &wanted)?;
    if let Some(advertised) = advertised {
        advertised.by_all(bed, plan)?;
        let from = &bed.host("outside")?.ns;
        let wanted = plan.local_asks().into_iter().map(|ask| {
            let source = Some(plan.outside[usize::from(!ask.v4)].parse()?);
            Ok(Wanted { ask, source, from })
        });
        let reached = check(plan, &wanted.collect::<Result<Vec<_>>>()?)?;
        words += &format!("; Local from the nodes of the backends: {reached}");
    }
    for (proxy, _) in &mut proxies {
        proxy.still_running()?;
    }
    passed(words)
}

fn attach(bed: &Bed<'_>, plan: &Plan, pod: &Pod) -> Result<Namespace> {
    let mut sandbox = Sandbox::create(bed.fabric, plan.nodes[pod.node].name, &pod.name)?;
    let [v4, v6] = pod.addresses;
    sandbox.args = format!("IP={v4},{v6}");
    add(bed, Some(plan.kinds[pod.kind].networks[pod.node]), pod, sandbox)
}

/// Attaches a pod in this network, or in the one that the API server names.
pub(super) fn add(bed: &Bed<'_>, network: Option<&str>, pod: &Pod, sandbox: Sandbox) -> Result<Namespace> {
    let mut chain = vec![cni::trunkline(network)];
    if let Some(port) = pod.host_port {
        chain.push(json!({
            "cniVersion": "1.0.0", "name": "lab", "type": "portmap", "capabilities": { "portMappings": true },
            "runtimeConfig": {
                "portMappings": [{ "hostPort": port, "containerPort": BACKEND_PORT, "protocol": "tcp" }],
            },
        }));
    }
    let result = cni::run_chain(bed.fabric, "ADD", &chain, &sandbox)?;
    let addresses = cni::addresses(&result)?;
    ensure!(addresses == pod.addresses, "{} has {addresses:?}", pod.name);
    Ok(sandbox.ns)
}

/// Waits until every pod is reachable without a Service: from outside, or from its node if the pod
/// is in an overlay. Then a later failure is due to the Service.
fn reaches(bed: &Bed<'_>, plan: &Plan, pods: &[Pod], patience: Duration) -> Result<()> {
    for pod in pods {
        let node = bed.host(plan.nodes[0].name)?;
        for address in pod.addresses {
            crate::shell::wait_for(&format!("{} at {address}", pod.name), patience, || {
                let to = (address, BACKEND_PORT).into();
                greeted_within(&node.ns, to, ANSWERED).map(crate::shell::Seen::Yes)
            })?;
        }
    }
    Ok(())
}

/// Makes these connections, and fails if one is not as promised. Returns the result in words.
fn check(plan: &Plan, wanted: &[Wanted<'_>]) -> Result<String> {
    let start = Instant::now();
    let answers = connect(plan, wanted)?;
    judge(plan, &answers, start.elapsed())
}

/// A connection with its result.
type Answer<'a> = (&'a Wanted<'a>, Result<IpAddr>);

fn connect<'a>(plan: &Plan, wanted: &'a [Wanted<'a>]) -> Result<Vec<Answer<'a>>> {
    let (next, answers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        while let Some(one) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            crate::interrupt::check()?;
            let bound = if one.source.is_some() { ANSWERED } else { REFUSED };
            let answer = greeted_within(one.from, plan.target(one.ask)?, bound);
            answers.lock().unwrap_or_else(|e| e.into_inner()).push((one, answer));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    Ok(answers.into_inner().unwrap_or_else(|e| e.into_inner()))
}

/// Prints the cells that break their promise, and fails if there are any.
fn judge(plan: &Plan, answers: &[Answer<'_>], took: Duration) -> Result<String> {
    let mut wrong: BTreeMap<Cell, Vec<String>> = BTreeMap::new();
    let mut count = 0;
    for (Wanted { ask, source, .. }, answer) in answers {
        let right = match (*source, answer) {
            (Some(wanted), Ok(seen)) => wanted == *seen,
            (None, Err(_)) => true,
            _ => false,
        };
        if !right {
            count += 1;
            let seen = answer.as_ref().map_or_else(|e| e.root_cause().to_string(), ToString::to_string);
            let seen = if seen.starts_with("connection timed out") { "no answer".to_owned() } else { seen };
            let family = if ask.v4 { "IPv4" } else { "IPv6" };
            let words = format!("{} {family}: {seen}", plan.kinds[ask.kind].name);
            wrong.entry(ask.cell).or_default().push(words);
        }
    }
    if wrong.is_empty() {
        let refused = answers.iter().filter(|(_, answer)| answer.is_err()).count();
        return Ok(format!(
            "{} connections in {}: {} with the promised source, {refused} refused as promised",
            answers.len(),
            seconds(took.as_secs_f64()),
            answers.len() - refused,
        ));
    }
    let rows: Vec<_> = wrong
        .iter()
        .map(|(cell, seen)| vec![cell.to_string(), cell.promise().to_string(), seen.join("; ")])
        .collect();
    say(&table(&rows));
    let named: Vec<String> =
        wrong.iter().take(NAMED).map(|(cell, seen)| format!("{cell} ({})", seen.join("; "))).collect();
    let all = answers.len();
    bail!(
        "{count} of {all} connections are not as promised: {} cells, such as {}",
        wrong.len(),
        named.join(" | ")
    )
}
