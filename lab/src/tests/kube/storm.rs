//! A cluster under change: Network and Subnets of two racks, and pods that are created and deleted
//! in three namespaces all the time. These invariants must hold at the end, after any disturbance
//! of the controllers and the API server:
//!
//! - no address was held twice at any moment ([`AddressAuditor`]);
//! - every pod has its addresses, and every IPInstance has its pod or, for a StatefulSet, a future
//!   pod;
//! - a StatefulSet's pod had the same addresses each time it was recreated;
//! - nothing leaked, in the API server or in the leader's memory: at the end all addresses of the
//!   subnets can be allocated.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::crds;
use crate::kube::Cluster;
use crate::kube::auditor::AddressAuditor;
use crate::kube::controller::Replicas;
use crate::kube::pods::{Plan, Pretended};
use crate::stats::percentile;

/// Time limit until a pod has its addresses. It includes the election of a new leader, and an
/// outage of the API server of one minute.
const PATIENCE: Duration = Duration::from_secs(150);

/// Addresses of each family.
const ADDRESSES: usize = 120;
const NAMESPACES: [&str; 3] = ["storm-a", "storm-b", "storm-c"];
const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// Number of pods created at once in each round; the disturbance happens meanwhile.
pub(super) const BURST: usize = 12;
const COMING_AND_GOING: usize = 5;
const STATEFUL: usize = 3;

const NETWORK: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: rack1 }
spec:
  type: Underlay
  mode: BGP
  netID: 65101
  nodeSelector: { rack: '1' }
  config: { bgpPeers: [{ asn: 65001, address: 10.1.0.0 }] }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v4 }
spec: { network: rack1, range: { version: '4', cidr: 100.64.1.0/24, start: 100.64.1.10, end: 100.64.1.129 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v6 }
spec: { network: rack1, range: { version: '6', cidr: 'fd00:1::/64', start: 'fd00:1::10', end: 'fd00:1::87' } }
";

/// Everything except the disturbance.
pub(super) struct Storm {
    pub auditor: Arc<AddressAuditor>,
    pretended: Pretended,
    rounds: Vec<Round>,
    tasks: Vec<tokio::task::JoinHandle<Result<()>>>,
    stop: Arc<AtomicBool>,
    came: Arc<AtomicU64>,
}

/// Result of one round.
struct Round {
    /// Addresses of the burst that were allocated before the disturbance.
    given_before: usize,
    /// Seconds from the disturbance until all pods of the burst had their addresses.
    all_after: f64,
}

/// Objects in a new cluster before the first pod.
pub(super) fn furnish(cluster: &Cluster) -> Result<Pretended> {
    crds::install(cluster)?;
    cluster.apply(NETWORK)?;
    let pretended = Pretended::new(cluster.client());
    cluster.wait(async {
        for namespace in NAMESPACES {
            pretended.namespace(namespace).await?;
        }
        for node in NODES {
            pretended.node(node, &[("rack", "1")]).await?;
        }
        anyhow::Ok(())
    })?;
    Ok(pretended)
}

impl Storm {
    /// Starts to create and delete pods.
    pub(super) fn begin(cluster: &Cluster, pretended: Pretended) -> Result<Self> {
        let auditor = Arc::new(AddressAuditor::open(cluster)?);
        let (stop, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let walker = |n: usize| Walker {
            n,
            pretended: pretended.clone(),
            auditor: Arc::clone(&auditor),
            stop: Arc::clone(&stop),
            came: Arc::clone(&came),
        };
        let mut tasks: Vec<_> =
            (0..COMING_AND_GOING).map(|n| cluster.spawn(walker(n).come_and_go())).collect();
        tasks.extend((0..STATEFUL).map(|n| cluster.spawn(walker(n).come_back())));
        Ok(Self { auditor, pretended, rounds: Vec::new(), tasks, stop, came })
    }

    /// Creates a burst of pods, runs the disturbance once some of them have their addresses, and
    /// waits until all have them. Then they are deleted.
    pub(super) fn round(
        &mut self,
        cluster: &mut Cluster,
        disturb: impl FnOnce(&mut Cluster) -> Result<Instant>,
    ) -> Result<()> {
        let number = self.rounds.len();
        let plans: Vec<Plan> =
            (0..BURST).map(|n| plan(&format!("burst-{number}-{n}"), n, n % 3 == 0)).collect();
        let uids = cluster
            .wait(futures_util::future::try_join_all(plans.iter().map(|plan| self.pretended.create(plan))))?;
        // The disturbance comes at another moment in each round: before the first address, during
        // the allocations, or after the last address.
        let until = number % BURST;
        let given = |state: &crate::kube::auditor::State| {
            uids.iter().filter(|uid| !state.of_pod(uid).is_empty()).count()
        };
        let what = format!("{until} pods of burst {number} to have addresses");
        let given_before = cluster.wait(
            self.auditor.until(&what, PATIENCE, |state| Some(given(state)).filter(|given| *given >= until)),
        )?;
        let disturbed = disturb(cluster)?;
        cluster.wait(async {
            for (plan, uid) in plans.iter().zip(&uids) {
                wait_addresses(&self.auditor, plan, uid).await?;
            }
            anyhow::Ok(())
        })?;
        self.rounds.push(Round { given_before, all_after: disturbed.elapsed().as_secs_f64() });
        cluster.wait(futures_util::future::try_join_all(
            plans.iter().map(|plan| self.pretended.delete(&plan.namespace, &plan.name)),
        ))?;
        let audit = self.auditor.now();
        ensure!(audit.twice.is_empty(), "round {number}: addresses held twice: {:?}", audit.twice);
        ensure!(audit.faults.is_empty(), "round {number}: {:?}", audit.faults);
        Ok(())
    }

    /// Stops the background changes, and checks all invariants. Returns a text with the counts.
    pub(super) fn end(mut self, cluster: &Cluster, replicas: &mut Replicas) -> Result<String> {
        self.stop.store(true, Ordering::SeqCst);
        for task in std::mem::take(&mut self.tasks) {
            cluster.wait(task)??;
        }
        replicas.still_running()?;
        let leaked = self.settle(cluster)?;
        self.fill(cluster)?;
        let audit = self.auditor.now();
        ensure!(audit.twice.is_empty(), "addresses held twice: {:?}", audit.twice);
        let in_the_middle = self.rounds.iter().filter(|r| (1..BURST).contains(&r.given_before)).count();
        let after: Vec<f64> = self.rounds.iter().map(|r| r.all_after).collect();
        Ok(format!(
            "{} rounds, {in_the_middle} of them during a burst; {} pods, {} IPInstances: {} \
             addresses twice, {leaked} leaked, all {} of the subnets allocated in the end; a burst \
             complete after p50 {:.1} s, at most {:.1} s",
            self.rounds.len(),
            self.came.load(Ordering::Relaxed) + (self.rounds.len() * BURST) as u64,
            audit.made,
            audit.twice.len(),
            2 * ADDRESSES,
            percentile(&after, 50.0),
            percentile(&after, 100.0),
        ))
    }

    /// Waits until only the retained IPInstances of the StatefulSets' pods are left. Returns the
    /// number of leaked IPInstances, which is 0.
    fn settle(&self, cluster: &Cluster) -> Result<usize> {
        let left = cluster.wait(self.pretended.all())?;
        ensure!(left.is_empty(), "{} pods are left of the test itself", left.len());
        let kept = 2 * STATEFUL;
        let settled =
            cluster.wait(self.auditor.until("only retained addresses to be left", PATIENCE, |state| {
                let all_kept = state
                    .instances
                    .values()
                    .all(|held| held.owner == "StatefulSet" && held.pod_uid.is_empty());
                (all_kept && state.instances.len() == kept).then_some(0)
            }));
        settled.map_err(|e| {
            let left: Vec<String> =
                self.auditor.now().instances.iter().map(|(key, held)| format!("{key:?} {held:?}")).collect();
            anyhow::anyhow!("{e:#}; leaked: {left:#?}")
        })
    }

    /// Allocates every address. An address that has leaked in the leader's memory would be missing.
    fn fill(&self, cluster: &Cluster) -> Result<()> {
        let free = ADDRESSES - STATEFUL;
        let plans: Vec<Plan> = (0..free).map(|n| plan(&format!("fill-{n}"), n, true)).collect();
        cluster.wait(async {
            for plan in &plans {
                let uid = self.pretended.create(plan).await?;
                // The pods are checked one after the other, to identify the pod that fails.
                wait_addresses(&self.auditor, plan, &uid)
                    .await
                    .with_context(|| format!("{} of {free} had theirs: the rest leaked", plan.name))?;
            }
            anyhow::Ok(())
        })?;
        let state = self.auditor.now();
        ensure!(
            state.instances.len() == 2 * ADDRESSES,
            "{} IPInstances, but {} addresses",
            state.instances.len(),
            2 * ADDRESSES
        );
        Ok(())
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

pub(super) fn plan(name: &str, n: usize, dual: bool) -> Plan {
    Plan {
        namespace: NAMESPACES[n % NAMESPACES.len()].to_owned(),
        name: name.to_owned(),
        node: NODES[n % NODES.len()].to_owned(),
        family: if dual { "DualStack" } else { "IPv4" },
        stateful_set: None,
    }
}

pub(super) async fn wait_addresses(auditor: &AddressAuditor, plan: &Plan, uid: &str) -> Result<Vec<IpAddr>> {
    let wanted = if plan.family == "DualStack" { 2 } else { 1 };
    let what = format!("{}/{} ({uid}) to have its addresses", plan.namespace, plan.name);
    let found = auditor
        .until(&what, PATIENCE, |state| Some(state.of_pod(uid)).filter(|addresses| addresses.len() == wanted))
        .await;
    match found {
        Ok(addresses) => Ok(addresses),
        Err(e) => bail!("{e:#}; {}", auditor.stored(&plan.namespace, &plan.name).await),
    }
}

/// One place in the cluster where pods are created and deleted.
struct Walker {
    n: usize,
    pretended: Pretended,
    auditor: Arc<AddressAuditor>,
    stop: Arc<AtomicBool>,
    came: Arc<AtomicU64>,
}

impl Walker {
    /// Creates and deletes pods of a Deployment. Each pod has its own name. Every third pod is
    /// deleted before it can have an address.
    async fn come_and_go(self) -> Result<()> {
        for count in 0_u64.. {
            if self.stop.load(Ordering::SeqCst) {
                break;
            }
            let plan = plan(&format!("web-{}-{count}", self.n), self.n + count as usize, count % 2 == 0);
            let uid = self.create(&plan).await?;
            if count % 3 != 0 {
                wait_addresses(&self.auditor, &plan, &uid).await?;
            }
            self.delete(&plan).await?;
        }
        Ok(())
    }

    /// Creates and deletes the only pod of a StatefulSet. Each time it is on another node, and has
    /// the same addresses.
    async fn come_back(self) -> Result<()> {
        let mut had: Option<Vec<IpAddr>> = None;
        for count in 0.. {
            if self.stop.load(Ordering::SeqCst) && had.is_some() {
                break;
            }
            let mut plan = plan("db-0", self.n, true);
            plan.node = NODES[count % NODES.len()].to_owned();
            plan.stateful_set = Some("db");
            let uid = self.create(&plan).await?;
            let mut has = wait_addresses(&self.auditor, &plan, &uid).await?;
            has.sort_unstable();
            if let Some(had) = had.as_ref().filter(|had| **had != has) {
                bail!("{}/db-0 had {had:?}, and has {has:?} after it was created again", plan.namespace);
            }
            had = Some(has);
            self.delete(&plan).await?;
        }
        Ok(())
    }

    async fn create(&self, plan: &Plan) -> Result<String> {
        self.came.fetch_add(1, Ordering::Relaxed);
        again(|| async {
            match self.pretended.create(plan).await {
                // The answer to an earlier attempt was lost with the API server.
                Err(e) if is_there_already(&e) => {
                    let pods = self.pretended.all().await?;
                    let same = pods.into_iter().map(|p| p.metadata).find(|meta| {
                        meta.name.as_ref() == Some(&plan.name)
                            && meta.namespace.as_ref() == Some(&plan.namespace)
                    });
                    same.and_then(|meta| meta.uid)
                        .context("the API server reports that the pod exists, and does not list it")
                }
                other => other,
            }
        })
        .await
    }

    async fn delete(&self, plan: &Plan) -> Result<()> {
        again(|| self.pretended.delete(&plan.namespace, &plan.name)).await
    }
}

fn is_there_already(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 409)
}

/// Retries until the API server answers.
async fn again<T, F: Future<Output = Result<T>>>(mut work: impl FnMut() -> F) -> Result<T> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(50);
    loop {
        match work().await {
            Ok(value) => return Ok(value),
            Err(e) if begun.elapsed() > PATIENCE => return Err(e),
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
