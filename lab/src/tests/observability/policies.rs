//! Network policies in the lab of [`super::cluster`]: a list of pods that the agent may not read, a
//! table that the kernel does not let the agent change, an entry that cannot be read, packets that a
//! policy drops, packets that it audits, and a policy above its bound.

use std::io::Write as _;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use trunkline_api::names::{POLICY_MODE_AUDIT, annotation};

use super::cluster::{NAMESPACE, NODE, PATIENCE, plan, remove_right, replace};
use super::prometheus::Prometheus;
use crate::client;
use crate::cni::{self, Identity, Sandbox};
use crate::kube::nodes::Attached;
use crate::kube::pods::Pretended;
use crate::kube::rights::{WITHOUT_KEYS, can};
use crate::kube::{self, Cluster};
use crate::netns::Namespace;
use crate::shell::{Seen, cmd, wait_for};
use crate::tests::bed::Bed;

/// The API server accepts an IPv4 prefix in an IPv6 form, and no pod has such an address.
const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: closed, namespace: shop }
spec:
  podSelector: {}
  policyTypes: [Ingress]
  ingress:
  - from: [{ ipBlock: { cidr: '::ffff:10.0.0.0/104' } }]
";

/// Nothing selects it.
const IDLE: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: idle, namespace: shop }
spec: { podSelector: { matchLabels: { app: none } }, policyTypes: [Ingress] }
";

/// More than the bound of a policy in docs/limits.md.
const RULES: usize = 4_100;

pub(super) struct PolicySteps<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) bed: &'a Bed<'a>,
    pub(super) prometheus: &'a Prometheus,
}

impl PolicySteps<'_> {
    pub(super) fn test(&self, pod: &Attached) -> Result<()> {
        self.loading().context("a list of pods that the agent may not read")?;
        let address = pod.addresses[0].to_string();
        ensure!(self.answers(&address)?, "{address} does not answer before the first policy");
        // A table with an owner: the kernel refuses changes by others, and deletes it with its
        // owner's socket.
        let owner = Owner::start(&self.bed.node()?.ns)?;
        self.cluster.apply(POLICY)?;
        self.prometheus.wait_firing("TrunklinePolicyRefused", NODE)?;
        drop(owner);
        self.prometheus.wait_cleared("TrunklinePolicyRefused")?;
        self.prometheus.wait_firing("TrunklinePolicyFaulty", "")?;
        self.counted(&address, false, "trunkline_policy_dropped_total").context("dropped packets")?;
        let mode = format!("{}={POLICY_MODE_AUDIT}", annotation::POLICY_MODE);
        self.cluster.kubectl(["annotate", "namespace", NAMESPACE, &mode])?;
        self.counted(&address, true, "trunkline_policy_audited_total").context("audited packets")?;
        let mode = format!("{}-", annotation::POLICY_MODE);
        self.cluster.kubectl(["annotate", "namespace", NAMESPACE, &mode])?;
        self.cluster.kubectl(["delete", "networkpolicy", "closed", "-n", NAMESPACE])?;
        self.prometheus.wait_cleared("TrunklinePolicyFaulty")?;
        self.large()
    }

    /// A policy with more rules than a node accepts fails closed.
    fn large(&self) -> Result<()> {
        let rules: Vec<Value> = (1..=RULES)
            .map(|port| json!({ "ports": [{ "port": port }], "from": [{ "podSelector": {} }] }))
            .collect();
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": "large", "namespace": NAMESPACE },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": rules },
        });
        self.cluster.apply(&policy.to_string())?;
        self.prometheus.wait_firing("TrunklinePolicyFailedClosed", NODE)?;
        self.cluster.kubectl(["delete", "networkpolicy", "large", "-n", NAMESPACE])?;
        self.prometheus.wait_cleared("TrunklinePolicyFailedClosed")
    }

    /// The first policy starts the watch of pods, which the API server refuses. A new pod waits for its
    /// rules until its ADD fails.
    fn loading(&self) -> Result<()> {
        let (cluster, fabric) = (self.cluster, self.bed.fabric);
        let (account, _) = WITHOUT_KEYS;
        let whole = remove_right(cluster, account, "pods", "list")?;
        wait_for("the API server to apply the role", PATIENCE, || {
            let is = can(cluster, kube::NAMESPACE, account, "list", "pods", "")?;
            Ok(Seen::when(!is, || "the agent may list pods".to_owned()))
        })?;
        cluster.apply(IDLE)?;
        wait_for("the policy on the node", PATIENCE, || {
            let summary = client::status(self.bed.node()?)?.policies.context("the state of policies")?;
            Ok(Seen::when(summary.policies == 1, || format!("{summary:?}")))
        })?;
        let waiting = plan(NAMESPACE, "waiting");
        let uid = cluster.wait(Pretended::new(cluster.client()).create(&waiting))?;
        let mut sandbox = Sandbox::create(fabric, NODE, "waiting")?;
        sandbox.identity = Identity { namespace: waiting.namespace.clone(), name: waiting.name.clone(), uid };
        let error = cni::run(fabric, "ADD", &cni::trunkline(None), &sandbox)?.error();
        let text = error.context("ADD without the list of pods")?.text;
        ensure!(text.contains("the network policies are not known yet: pods"), "{text}");
        self.prometheus.wait_firing("TrunklinePolicyLoading", NODE)?;

        replace(cluster, &whole)?;
        self.prometheus.wait_cleared("TrunklinePolicyLoading")?;
        let addresses = cni::add(fabric, &cni::trunkline(None), &sandbox)?.addresses;
        Attached { plan: waiting, sandbox, addresses }.take_away(cluster, fabric)?;
        cluster.kubectl(["delete", "networkpolicy", "idle", "-n", NAMESPACE]).map(drop)
    }

    /// Sends pings until two scrapes have the counter, so that a rate has data.
    fn counted(&self, address: &str, passes: bool, counter: &str) -> Result<()> {
        wait_for("the policy", PATIENCE, || {
            Ok(Seen::when(self.answers(address)? == passes, || format!("{address} answers: {}", !passes)))
        })?;
        wait_for(counter, PATIENCE, || {
            self.answers(address)?;
            let now = self.prometheus.query(&format!("sum({counter})"))?;
            Ok(Seen::when(now.iter().any(|packets| *packets > 0.0), || format!("{now:?}")))
        })?;
        for _ in 0..3 {
            self.answers(address)?;
            self.prometheus.wait_scrape()?;
        }
        Ok(())
    }

    /// Whether the pod answers a host outside the fabric.
    fn answers(&self, address: &str) -> Result<bool> {
        self.bed.host("outside")?.ns.within(|| {
            let mut ping = cmd("ping", ["-c", "1", "-W", "1", address]);
            Ok(ping.output()?.status.success())
        })
    }
}

/// A process that owns the agent's table.
struct Owner(Child);

impl Owner {
    fn start(node: &Namespace) -> Result<Owner> {
        let mut child =
            node.within(|| Ok(cmd("nft", ["-i"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?))?;
        let input = child.stdin.as_mut().context("nft has no input")?;
        input.write_all(b"add table inet trunkline-policy { flags owner; }\n")?;
        input.flush()?;
        let owner = Owner(child);
        wait_for("the table", PATIENCE, || {
            let tables = node.within(|| Ok(cmd("nft", ["list", "tables"]).output()?))?;
            let tables = String::from_utf8_lossy(&tables.stdout).into_owned();
            Ok(Seen::when(tables.contains("inet trunkline-policy"), || tables.clone()))
        })?;
        Ok(owner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
