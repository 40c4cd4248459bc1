//! What IPInstances of other nodes cost a node's agent. They come in while it runs, which is when a watch that is too wide would show;
//! beside it stands the same agent while as many ConfigMaps come in, which it cannot see: the machine has as much to do.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use rustix::process::Pid;
use serde::Serialize;
use trunkline_api::kube::IPInstanceObject;

use super::super::{Bound, memory::megabytes};
use super::server::{flood, instance};
use crate::client;
use crate::fabric::{Fabric, Place};
use crate::kube::assets::Assets;
use crate::kube::pods::Pretended;
use crate::kube::{Cluster, nodes};
use crate::progress::step;
use crate::stats::round;
use crate::tests::kube::crds;

const OBJECTS: usize = 10_000;
const NAMESPACE: &str = "elsewhere";

#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    objects: usize,
    /// The agent's processor time in milliseconds a second, while ConfigMaps and while IPInstances came in.
    cpu_without: f64,
    cpu_with: f64,
    cpu_ratio: f64,
    /// Its proportional set size afterwards, in megabytes of 1,000,000 octets.
    pss_without_mb: f64,
    pss_with_mb: f64,
    pss_ratio: f64,
}

pub(super) fn measure(place: &Place, assets: &Assets, product: &Path) -> Result<Figures> {
    Cluster::with(place, "bench-agent", assets, |cluster| {
        crds::install(cluster)?;
        let fabric = Fabric::up(place, "one-rack", product)?;
        fabric.watched(|fabric| measure_on(cluster, fabric))
    })
}

fn measure_on(cluster: &Cluster, fabric: &Fabric) -> Result<Figures> {
    let networks = fabric.file("one-rack/node1/manifests/networks.yaml");
    cluster.apply(&std::fs::read_to_string(&networks).with_context(|| networks.display().to_string())?)?;
    cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))?;
    let node = fabric.host("node1")?;
    client::wait_answering(node)?;
    let _doorways = nodes::join(cluster, fabric, &cluster.kubeconfig())?;
    client::wait_established(node, Duration::from_secs(60))?;
    let agent = client::agent(node)?;

    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), NAMESPACE);
    let cpu_without = step(&format!("{OBJECTS} ConfigMaps"), || {
        cpu_during(agent, || {
            flood(cluster, OBJECTS, move |n| {
                let maps = maps.clone();
                async move {
                    let metadata = ObjectMeta { name: Some(format!("map-{n}")), ..ObjectMeta::default() };
                    maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() })
                        .await?;
                    Ok(())
                }
            })
        })
    })?;
    let pss_without = megabytes(agent, "smaps_rollup", "Pss")?;

    let instances: Api<IPInstanceObject> = Api::namespaced(cluster.client(), NAMESPACE);
    let cpu_with = step(&format!("{OBJECTS} IPInstances of other nodes"), || {
        cpu_during(agent, || {
            flood(cluster, OBJECTS, move |n| {
                let instances = instances.clone();
                async move {
                    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 65, 0, 1)) + n as u32);
                    let one = instance(NAMESPACE, n, &format!("uid-{n}"), address);
                    instances.create(&PostParams::default(), &serde_json::from_value(one)?).await?;
                    Ok(())
                }
            })
        })
    })?;
    let pss_with = megabytes(agent, "smaps_rollup", "Pss")?;
    Ok(Figures {
        objects: OBJECTS,
        cpu_without: round(cpu_without),
        cpu_with: round(cpu_with),
        cpu_ratio: round(cpu_with / cpu_without),
        pss_without_mb: round(pss_without),
        pss_with_mb: round(pss_with),
        pss_ratio: round(pss_with / pss_without),
    })
}

/// Milliseconds of processor time that a process takes in a second of the work.
fn cpu_during<T>(pid: Pid, work: impl FnOnce() -> Result<T>) -> Result<f64> {
    let (before, begun) = (cpu(pid)?, Instant::now());
    work()?;
    Ok((cpu(pid)? - before).as_secs_f64() * 1e3 / begun.elapsed().as_secs_f64())
}

/// What all threads of a process have run so far, by the scheduler's own count.
fn cpu(pid: Pid) -> Result<Duration> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanoseconds))
}

impl Figures {
    pub(super) fn bounds(&self) -> Vec<Bound> {
        vec![
            Bound::at_most(
                "the agent's processor time with others' IPInstances, of that without",
                self.cpu_ratio,
                1.05,
            ),
            Bound::at_most("the agent's memory with them, of that without", self.pss_ratio, 1.05),
        ]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "agent: while {} IPInstances of other nodes came, {:.2} ms of processor time a second, {:.2} while as many ConfigMaps did (ratio \
             {:.2}); memory {:.1} and {:.1} MB (ratio {:.2})",
            self.objects,
            self.cpu_with,
            self.cpu_without,
            self.cpu_ratio,
            self.pss_with_mb,
            self.pss_without_mb,
            self.pss_ratio
        )
    }
}
