//! Address allocation for pods on a real API server.
//!
//! The reference is the minimum of work. The same clients create the same pods, and each client
//! also creates its pod's IPInstance, with the next address. Both runs write the same objects with
//! the same number of concurrent requests to the same server. So the ratio of their times is the
//! cost of the watches, the selection and the controller's state.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kube::Api;
use kube::api::PostParams;
use serde::Serialize;
use serde_json::json;
use trunkline_api::kube::IPInstanceObject;

use super::super::{Bound, memory::megabytes};
use crate::fabric::Place;
use crate::kube::Cluster;
use crate::kube::assets::Assets;
use crate::kube::auditor::AddressAuditor;
use crate::kube::controller::Replicas;
use crate::kube::pods::{Plan, Pretended};
use crate::progress::step;
use crate::shell::{Seen, wait_for};
use crate::stats::{percentile, round};
use crate::tests::kube::crds;

const PODS: usize = 2_000;
/// Concurrent requests of the clients, equal to the controller's number of workers.
const AT_A_TIME: usize = 64;
const NODES: usize = 40;
const PATIENCE: Duration = Duration::from_secs(300);

const NETWORK: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: bench }
spec:
  type: Underlay
  mode: BGP
  netID: 65101
  nodeSelector: { rack: '1' }
  config: { bgpPeers: [{ asn: 65001, address: 10.1.0.0 }] }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: bench-v4 }
spec: { network: bench, range: { version: '4', cidr: 10.64.0.0/16 } }
";

#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    pods: usize,
    requests_at_a_time: usize,
    /// Time until the clients alone had created the last pod and its IPInstance, in seconds.
    bare_seconds: f64,
    /// Time until the last pod had its IPInstance from the controller, in seconds.
    seconds: f64,
    /// Time from the API server's answer to a pod's creation until its IPInstance is in a watch, in
    /// seconds.
    p50_seconds: f64,
    p99_seconds: f64,
    /// Reference divided by controller: 1 is the API server's own limit for creates.
    ratio: f64,
    /// The leading controller's memory at the end, in megabytes of 1,000,000 octets.
    controller_rss_mb: f64,
}

pub(super) fn measure(place: &Place, assets: &Assets, controller: &Path) -> Result<Figures> {
    Cluster::with(place, "bench-ipam", assets, |cluster| measure_on(cluster, controller))
}

impl Figures {
    pub(super) fn bounds(&self) -> Vec<Bound> {
        vec![
            // If the watch shows the address before the answer to the pod's creation, the wait is
            // zero. A bound treats zero as a missing measurement, so the value has a minimum.
            Bound::at_most(
                "p99 from a pod's creation to its address, in s",
                self.p99_seconds.max(0.001),
                5.0,
            ),
            Bound::at_most(
                "time, relative to a bare create loop",
                self.seconds / self.bare_seconds,
                1.0 / 0.7,
            ),
        ]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "API server: {} pods at once, {} requests at a time: address after p50 {:.2} s, p99 {:.2} s; all after {:.1} s, a bare loop needs \
             {:.1} s (ratio {:.2}); the controller's memory {:.1} MB",
            self.pods,
            self.requests_at_a_time,
            self.p50_seconds,
            self.p99_seconds,
            self.seconds,
            self.bare_seconds,
            self.ratio,
            self.controller_rss_mb
        )
    }
}

fn measure_on(cluster: &mut Cluster, controller: &Path) -> Result<Figures> {
    crds::install(cluster)?;
    let pretended = Pretended::new(cluster.client());
    cluster.wait(async {
        for namespace in ["warm", "bare", "bench"] {
            pretended.namespace(namespace).await?;
        }
        for node in 0..NODES {
            pretended.node(&format!("n{node}"), &[("rack", "1")]).await?;
        }
        anyhow::Ok(())
    })?;
    let auditor = AddressAuditor::open(cluster)?;
    // The first thousand objects of API server and etcd are slower than the rest.
    step("the API server warms up", || {
        bare(cluster, &pretended, &auditor, "warm", Ipv4Addr::new(10, 66, 0, 0))
    })?;
    let bare_seconds = step(&format!("{PODS} pods and IPInstances, bare"), || {
        bare(cluster, &pretended, &auditor, "bare", Ipv4Addr::new(10, 65, 0, 0))
    })?;
    cluster.apply(NETWORK)?;
    let replicas = step("the controller", || {
        let replicas = Replicas::start(cluster, controller, 1)?;
        // The controller has the Lease before it has read the existing objects; its first write
        // afterwards is the Subnet's status.
        wait_for("the controller to serve", PATIENCE, || {
            let text = cluster.kubectl(["get", "subnet", "bench-v4", "-o", "jsonpath={.status.total}"])?;
            Ok(Seen::when(!text.is_empty(), || "no status of Subnet bench-v4".to_owned()))
        })?;
        Ok(replicas)
    })?;
    let begun = Instant::now();
    let (made, seconds) = step(&format!("{PODS} pods, addresses by the controller"), || {
        let made = together(cluster, &pretended, "bench", |_, _| async { Ok(()) })?;
        cluster.wait(auditor.until("each pod to have its address", PATIENCE, |state| {
            made.iter().all(|pod| state.first_seen(&pod.uid).is_some()).then_some(())
        }))?;
        Ok((made, begun.elapsed().as_secs_f64()))
    })?;
    let state = auditor.now();
    let waits: Vec<f64> = made
        .iter()
        .filter_map(|pod| Some(state.first_seen(&pod.uid)?.saturating_duration_since(pod.at).as_secs_f64()))
        .collect();
    anyhow::ensure!(state.twice.is_empty(), "addresses held twice: {:?}", state.twice);
    let leader = replicas.first().context("no controller")?;
    Ok(Figures {
        pods: PODS,
        requests_at_a_time: AT_A_TIME,
        bare_seconds: round(bare_seconds),
        seconds: round(seconds),
        p50_seconds: round(percentile(&waits, 50.0)),
        p99_seconds: round(percentile(&waits, 99.0)),
        ratio: round(bare_seconds / seconds),
        controller_rss_mb: round(megabytes(leader, "status", "VmRSS")?),
    })
}

/// A created pod, and the time of its creation.
struct Made {
    uid: String,
    at: Instant,
}

/// Creates all pods. After each creation, the same client runs `and_then`.
fn together<F: Future<Output = Result<()>> + Send>(
    cluster: &Cluster,
    pretended: &Pretended,
    namespace: &str,
    and_then: impl Fn(usize, String) -> F + Clone + Send + Sync + 'static,
) -> Result<Vec<Made>> {
    let (pretended, namespace) = (pretended.clone(), namespace.to_owned());
    flood(cluster, PODS, move |n| {
        let (pretended, and_then) = (pretended.clone(), and_then.clone());
        let plan = Plan {
            namespace: namespace.clone(),
            name: format!("pod-{n}"),
            node: format!("n{}", n % NODES),
            family: "IPv4",
            stateful_set: None,
        };
        async move {
            let uid = pretended.create(&plan).await?;
            let made = Made { uid: uid.clone(), at: Instant::now() };
            and_then(n, uid).await?;
            Ok(made)
        }
    })
}

/// Runs a job a number of times, [`AT_A_TIME`] concurrently.
pub(in crate::bench) fn flood<T, F>(
    cluster: &Cluster,
    count: usize,
    one: impl Fn(usize) -> F + Clone + Send + Sync + 'static,
) -> Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..AT_A_TIME)
        .map(|_| {
            let (next, one) = (Arc::clone(&next), one.clone());
            cluster.spawn(async move {
                let mut done = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return anyhow::Ok(done);
                    }
                    done.push(one(n).await?);
                }
            })
        })
        .collect();
    let mut all = Vec::with_capacity(count);
    for worker in workers {
        all.extend(cluster.wait(worker)??);
    }
    Ok(all)
}

/// The clients alone create pods and their IPInstances. Returns the time until a watch has shown
/// the last one.
fn bare(
    cluster: &Cluster,
    pretended: &Pretended,
    auditor: &AddressAuditor,
    namespace: &'static str,
    net: Ipv4Addr,
) -> Result<f64> {
    let begun = Instant::now();
    let api: Api<IPInstanceObject> = Api::namespaced(cluster.client(), namespace);
    let made = together(cluster, pretended, namespace, move |n, uid| {
        let api = api.clone();
        let instance = instance(namespace, n, &uid, Ipv4Addr::from(u32::from(net) + 1 + n as u32));
        async move {
            api.create(&PostParams::default(), &serde_json::from_value(instance)?).await?;
            Ok(())
        }
    })?;
    cluster.wait(auditor.until("each bare IPInstance", PATIENCE, |state| {
        made.iter().all(|pod| state.first_seen(&pod.uid).is_some()).then_some(())
    }))?;
    Ok(begun.elapsed().as_secs_f64())
}

/// An IPInstance as the controller creates it.
pub(super) fn instance(namespace: &str, n: usize, uid: &str, address: Ipv4Addr) -> serde_json::Value {
    let (pod, node) = (format!("pod-{n}"), format!("n{}", n % NODES));
    let [_, _, _, d] = address.octets();
    json!({
        "apiVersion": "networking.alibaba.com/v1",
        "kind": "IPInstance",
        "metadata": {
            "name": address.to_string().replace('.', "-"),
            "namespace": namespace,
            "finalizers": ["networking.alibaba.com/ip-allocated"],
            "labels": {
                "networking.alibaba.com/network": "bench",
                "networking.alibaba.com/subnet": "bench-v4",
                "networking.alibaba.com/node": node,
                "networking.alibaba.com/pod": pod,
                "networking.alibaba.com/pod-uid": uid,
            },
            "annotations": { "networking.alibaba.com/ip-family": "IPv4" },
        },
        "spec": {
            "network": "bench",
            "subnet": "bench-v4",
            "address": { "version": "4", "ip": format!("{address}/16"), "mac": format!("02:12:34:00:{:02x}:{d:02x}", n / 256) },
            "binding": {
                "referredObject": { "kind": "Pod", "name": pod, "uid": uid },
                "nodeName": node, "podUID": uid, "podName": pod,
            },
        },
    })
}
