//! Cost of other nodes' IPInstances for a node's agent. The bench creates them while the agent
//! runs, so it would reveal a watch that is too wide. For comparison it creates the same number of
//! ConfigMaps. The agent does not watch ConfigMaps, and the load on the machine is the same. The
//! two alternate, so other load affects both. An idle agent uses a tenth of a millisecond per
//! second, and much of this time is random wake-ups. So any value below [`RESOLUTION`] counts as
//! [`RESOLUTION`]. Decoding other nodes' IPInstances would take tens of times as long.

use std::collections::HashMap;
use std::ffi::OsString;
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
/// Resolution in milliseconds of processor time per second: a thousandth of a processor.
const RESOLUTION: f64 = 1.0;
/// Rounds of each kind.
const TURNS: usize = 10;
const NAMESPACE: &str = "elsewhere";

#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    objects: usize,
    /// The agent's processor time in milliseconds per second, during the creation of ConfigMaps and
    /// of IPInstances.
    cpu_without: f64,
    cpu_with: f64,
    /// Ratio of the two, with [`RESOLUTION`] as the minimum of each.
    cpu_ratio: f64,
    /// The agent's proportional set size before and afterwards, in megabytes of 1,000,000 octets.
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
    let _doorways = nodes::join(cluster, fabric, |_| Ok(cluster.kubeconfig()))?;
    client::wait_established(node, Duration::from_secs(60))?;
    let agent = client::agent(node)?;

    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(), NAMESPACE);
    let instances: Api<IPInstanceObject> = Api::namespaced(cluster.client(), NAMESPACE);
    let each = OBJECTS / TURNS;
    let (mut without, mut with) = (Spent::default(), Spent::default());
    // The first objects of each kind are created more slowly than the others, and the agent has
    // just started. So these objects are not measured.
    make_maps(cluster, &maps, each)?;
    let pss_without = megabytes(agent, "smaps_rollup", "Pss")?;
    step(&format!("{OBJECTS} IPInstances of other nodes, and as many ConfigMaps"), || {
        for turn in 0..TURNS {
            without.during(agent, || make_maps(cluster, &maps, each))?;
            with.during(agent, || make_instances(cluster, &instances, turn * each, each))?;
        }
        Ok(())
    })?;
    let (cpu_without, cpu_with) = (without.milliseconds_a_second(), with.milliseconds_a_second());
    let pss_with = megabytes(agent, "smaps_rollup", "Pss")?;
    Ok(Figures {
        objects: OBJECTS,
        cpu_without: round(cpu_without),
        cpu_with: round(cpu_with),
        cpu_ratio: round(cpu_with.max(RESOLUTION) / cpu_without.max(RESOLUTION)),
        pss_without_mb: round(pss_without),
        pss_with_mb: round(pss_with),
        pss_ratio: round(pss_with / pss_without),
    })
}

fn make_maps(cluster: &Cluster, maps: &Api<ConfigMap>, count: usize) -> Result<()> {
    let maps = maps.clone();
    flood(cluster, count, move |_| {
        let maps = maps.clone();
        async move {
            let metadata = ObjectMeta { generate_name: Some("map-".to_owned()), ..ObjectMeta::default() };
            maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await?;
            Ok(())
        }
    })
    .map(drop)
}

fn make_instances(
    cluster: &Cluster,
    instances: &Api<IPInstanceObject>,
    first: usize,
    count: usize,
) -> Result<()> {
    let instances = instances.clone();
    flood(cluster, count, move |n| {
        let (instances, n) = (instances.clone(), first + n);
        async move {
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 65, 0, 1)) + n as u32);
            let one = instance(NAMESPACE, n, &format!("uid-{n}"), address);
            instances.create(&PostParams::default(), &serde_json::from_value(one)?).await?;
            Ok(())
        }
    })
    .map(drop)
}

/// Resources that a process used during other work.
#[derive(Default)]
struct Spent {
    cpu: Duration,
    time: Duration,
}

impl Spent {
    fn during(&mut self, pid: Pid, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let (before, begun) = (threads(pid)?, Instant::now());
        work()?;
        self.time += begun.elapsed();
        for (thread, nanoseconds) in threads(pid)? {
            let already = before.get(&thread).copied().unwrap_or_default();
            self.cpu += Duration::from_nanos(nanoseconds.saturating_sub(already));
        }
        Ok(())
    }

    fn milliseconds_a_second(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / self.time.as_secs_f64()
    }
}

/// Run time of each thread of a process so far in nanoseconds, by the scheduler's own count.
fn threads(pid: Pid) -> Result<HashMap<OsString, u64>> {
    let mut threads = HashMap::new();
    for task in std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()))? {
        let task = task?;
        // Ignore a thread that ends meanwhile.
        let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
        let ran = text.split_whitespace().next().and_then(|n| n.parse().ok());
        threads.insert(task.file_name(), ran.unwrap_or(0));
    }
    Ok(threads)
}

impl Figures {
    pub(super) fn bounds(&self) -> Vec<Bound> {
        vec![
            Bound::at_most(
                "the agent's processor time with other nodes' IPInstances, relative to the time without",
                self.cpu_ratio,
                1.05,
            ),
            Bound::at_most(
                "the agent's memory with other nodes' IPInstances, relative to the memory without",
                self.pss_ratio,
                1.05,
            ),
        ]
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "agent: during the creation of {} IPInstances of other nodes {:.2} ms of processor \
             time per second, during the creation of as many ConfigMaps {:.2} ms (ratio {:.2}); \
             memory {:.1} and {:.1} MB (ratio {:.2})",
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
