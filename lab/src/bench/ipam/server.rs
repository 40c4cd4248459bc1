//! Giving addresses to pods on a real API server.
//!
//! What it is compared with is the least that anybody could do: the same clients make the same pods, and each makes its pod's
//! IPInstance itself, with the address counted up: a controller without a thought. Both runs write the same objects at the same
//! number of requests at a time to the same server, so the ratio of their times says what watching, choosing and the books cost.

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
use crate::kube::books::Books;
use crate::kube::controller::Replicas;
use crate::kube::pods::{Plan, Pretended};
use crate::progress::step;
use crate::shell::{Seen, wait_for};
use crate::stats::{percentile, round};
use crate::tests::kube::crds;

const PODS: usize = 2_000;
/// Requests that the clients have under way, which is what the controller has workers.
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
    /// Until the last pod and its IPInstance were made by the clients themselves, in seconds.
    bare_seconds: f64,
    /// Until the last pod had its IPInstance from the controller, in seconds.
    seconds: f64,
    /// From the API server's answer to the pod's creation to its IPInstance in a watch, in seconds.
    p50_seconds: f64,
    p99_seconds: f64,
    /// Bare to controller: 1 is as fast as the API server lets creates through.
    ratio: f64,
    /// The leading controller's memory afterwards, in megabytes of 1,000,000 octets.
    controller_rss_mb: f64,
}

pub(super) fn measure(place: &Place, assets: &Assets, controller: &Path) -> Result<Figures> {
    Cluster::with(place, "bench-ipam", assets, |cluster| measure_on(cluster, controller))
}

impl Figures {
    pub(super) fn bounds(&self) -> Vec<Bound> {
        vec![
            // An address seen before the answer to the pod's creation was a wait of nothing.
            Bound::at_most(
                "p99 from a pod's creation to its address, in s",
                self.p99_seconds.max(0.001),
                5.0,
            ),
            Bound::at_most("time, of a bare create loop's", self.seconds / self.bare_seconds, 1.0 / 0.7),
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
    let books = Books::open(cluster)?;
    // The API server's and etcd's first thousand objects are slower than the rest.
    step("the API server warms up", || {
        bare(cluster, &pretended, &books, "warm", Ipv4Addr::new(10, 66, 0, 0))
    })?;
    let bare_seconds = step(&format!("{PODS} pods and IPInstances, bare"), || {
        bare(cluster, &pretended, &books, "bare", Ipv4Addr::new(10, 65, 0, 0))
    })?;
    cluster.apply(NETWORK)?;
    let replicas = step("the controller", || {
        let replicas = Replicas::start(cluster, controller, 1)?;
        // It has the Lease before it has read what there is; the Subnet's status is the first that it writes afterwards.
        wait_for("the controller to serve", PATIENCE, || {
            let text = cluster.kubectl(["get", "subnet", "bench-v4", "-o", "jsonpath={.status.total}"])?;
            Ok(Seen::when(!text.is_empty(), || "no status of Subnet bench-v4".to_owned()))
        })?;
        Ok(replicas)
    })?;
    let begun = Instant::now();
    let (made, seconds) = step(&format!("{PODS} pods, addresses by the controller"), || {
        let made = together(cluster, &pretended, "bench", |_, _| async { Ok(()) })?;
        cluster.wait(books.until("each pod to have its address", PATIENCE, |state| {
            made.iter().all(|pod| state.first_seen(&pod.uid).is_some()).then_some(())
        }))?;
        Ok((made, begun.elapsed().as_secs_f64()))
    })?;
    let state = books.now();
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

/// A pod that was made, and when.
struct Made {
    uid: String,
    at: Instant,
}

/// Makes all the pods; `and_then` is done after each by whoever made it.
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

/// Does something a number of times, [`AT_A_TIME`] at a time.
pub(super) fn flood<T, F>(
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

/// Pods and their IPInstances by the clients alone; returns how long that took until the last was seen.
fn bare(
    cluster: &Cluster,
    pretended: &Pretended,
    books: &Books,
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
    cluster.wait(books.until("each bare IPInstance", PATIENCE, |state| {
        made.iter().all(|pod| state.first_seen(&pod.uid).is_some()).then_some(())
    }))?;
    Ok(begun.elapsed().as_secs_f64())
}

/// As the controller makes it.
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
