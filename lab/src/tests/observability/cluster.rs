//! A real Prometheus in a cluster: API server, two controllers that also serve admission, and a
//! node between two ToRs, with Services ([`super::services`]). Each alert about these components fires during its fault and clears
//! afterwards. In the end every panel about these components has had data.
//!
//! A certificate of the webhook is valid for only 90 s here. The controller stores the next one in
//! the API server, so an outage of the API server prevents the replacement.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::labs::{self, Lab};
use super::policies::PolicySteps;
use super::prometheus::{LAST_SECONDS, Prometheus, Target, hastened};
use super::remote;
use super::rules::RULES;
use super::services::{self, Services};
use crate::client;
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::{Plan, Pretended};
use crate::kube::rights::{Accounts, WITHOUT_KEYS, agent_on};
use crate::packages;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, lab};
use crate::tests::kube::{cluster, crds, webhook};
use crate::tests::{Context, Test, Verdict, passed};

pub(super) const TEST: Test = Test {
    name: Lab::Cluster.test(),
    about: "each alert about controller, webhook and API server fires during its fault and clears, every panel about these has data",
    run: observed,
};

pub(super) const PATIENCE: Duration = Duration::from_secs(120);
pub(super) const NODE: &str = "node1";
pub(super) const NAMESPACE: &str = "shop";
/// Namespace of a second IPInstance with the same address. Both have the address as their name, so
/// they need two namespaces.
const ELSEWHERE: &str = "warehouse";
/// A certificate is valid for 90 s. The controller replaces it after 60 s, when 30 s
/// (2 × [`LAST_SECONDS`]) are left. It serves the new certificate 3 s later.
const CERTIFICATES: [&str; 2] = ["--webhook-cert-lifetime-seconds=90", "--webhook-cert-overlap-seconds=3"];
/// Number of addresses in the subnet.
const ADDRESSES: usize = 20;

const OBJECTS: &str = "
apiVersion: networking.alibaba.com/v1
kind: Network
metadata: { name: rack1 }
spec:
  type: Underlay
  mode: BGP
  netID: 65101
  nodeSelector: { rack: '1' }
  config:
    bgpPeers:
      - { asn: 65001, address: 10.1.0.1, password: one-rack-lab-secret }
      - { asn: 65002, address: 10.2.0.1, password: one-rack-lab-secret }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v4 }
spec: { network: rack1, range: { version: '4', cidr: 10.201.0.0/16, start: 10.201.7.1, end: 10.201.7.20 } }
";

fn observed(context: &Context) -> Result<Verdict> {
    let program = context.controller()?;
    let rules = std::fs::read_to_string(context.place.repository.join(RULES))?;
    cluster(context, "observability", |cluster| {
        lab(context, "one-rack", |bed| {
            packages::need(["nftables"])?;
            let words = Observed { cluster, bed }.test(&program, &hastened(&rules)?, context)?;
            passed(words)
        })
    })
}

struct Observed<'a> {
    cluster: &'a mut Cluster,
    bed: &'a Bed<'a>,
}

impl Observed<'_> {
    fn test(mut self, program: &Path, rules: &str, context: &Context) -> Result<String> {
        let cluster = &*self.cluster;
        crds::install(cluster)?;
        cluster.apply(OBJECTS)?;
        services::configure(self.bed)?;
        for namespace in [NAMESPACE, ELSEWHERE] {
            cluster.wait(self.pretended().namespace(namespace))?;
        }
        let accounts = Accounts::create(cluster, &[WITHOUT_KEYS])?;
        let _doorways = nodes::join(cluster, self.bed.fabric, |node| agent_on(cluster, WITHOUT_KEYS, node))?;
        let mut replicas =
            Replicas::standing_by_as(cluster, &accounts.controller, program, 2, &CERTIFICATES)?;
        replicas.wait_leader(cluster)?;
        client::wait_established(self.bed.node()?, PATIENCE)?;

        let mut targets = vec![Target::Agent(self.bed.node()?)];
        let controllers: Vec<(String, u16)> =
            replicas.metrics().map(|(name, port)| (name.to_owned(), port)).collect();
        targets.extend(controllers.iter().map(|(name, port)| Target::Controller(name, *port)));
        let folder = self.bed.fabric.folder.join("prometheus");
        let prometheus = Prometheus::start(&folder, &targets, rules)?;

        // `rate` does not count the first event of a kind, because that event creates the series.
        let mut pods = Vec::new();
        for name in ["one", "two", "three"] {
            pods.push(self.attach(name)?);
            prometheus.wait_scrape()?;
        }
        say("Services");
        Services { cluster: self.cluster, bed: self.bed, prometheus: &prometheus }
            .test(&pods[0])
            .context("Services")?;
        say("network policies");
        PolicySteps { cluster: self.cluster, bed: self.bed, prometheus: &prometheus }
            .test(&pods[0])
            .context("network policies")?;
        say("remote clusters");
        remote::test(self.cluster, &prometheus, "10.201.0.0/16").context("remote clusters")?;
        // This step precedes the registration of the webhook. With the webhook, the API server
        // would refuse the second IPInstance while no controller runs.
        say("no controller");
        self.leaderless(&mut replicas, &prometheus, &pods[0]).context("no controller")?;
        let [one, other] = replicas.webhooks()[..] else { bail!("two replicas") };
        webhook::register(self.cluster, &mut replicas, one, other)?;
        say("a right that was removed from the controller");
        self.forbidden(&prometheus).context("a right that was removed from the controller")?;
        say("a network that is filled");
        self.filled(&prometheus).context("a network that is filled")?;
        say("an API server that is away");
        self.away(&prometheus).context("an API server that is away")?;
        prometheus.wait_all_cleared()?;

        replicas.still_running()?;
        let series: Vec<String> = targets
            .iter()
            .map(|target| Ok(labs::lint(&target.metrics()?)?.to_string()))
            .collect::<Result<_>>()?;
        let evaluated = labs::evaluate(Lab::Cluster, &prometheus, &context.place)?;
        Ok(format!("{} series of a node and two controllers, {evaluated}", series.join(", ")))
    }

    fn pretended(&self) -> Pretended {
        Pretended::new(self.cluster.client())
    }

    fn attach(&self, name: &str) -> Result<Attached> {
        nodes::attach(self.cluster, self.bed.fabric, plan(NAMESPACE, name), &[])
    }

    /// All replicas are killed. Meanwhile a second pod gets an IPInstance with the address of an
    /// existing pod, so that the leader finds the conflict when it returns. A running leader would
    /// allocate another address to the second pod at once.
    fn leaderless(&self, replicas: &mut Replicas, prometheus: &Prometheus, holder: &Attached) -> Result<()> {
        let cluster = &*self.cluster;
        let address = holder.addresses[0];
        let name = address.to_string().replace('.', "-");
        let held = cluster.kubectl(["get", "ipinstance", &name, "-n", NAMESPACE, "-o", "json"])?;
        replicas.kill_all()?;
        prometheus.wait_firing("TrunklineControllerWithoutLeader", "")?;

        let other = plan(ELSEWHERE, "other");
        let uid = cluster.wait(self.pretended().create(&other))?;
        cluster.apply(&also_of(&serde_json::from_str(&held)?, &other, &uid).to_string())?;
        cluster.wait(self.pretended().report(&other.namespace, &other.name, &[address]))?;

        replicas.start_all_again(cluster)?;
        replicas.wait_leader(cluster)?;
        prometheus.wait_cleared("TrunklineControllerWithoutLeader")?;
        prometheus.wait_firing("TrunklineAddressConflict", "")?;
        cluster.wait(self.pretended().delete(&other.namespace, &other.name))?;
        prometheus.wait_cleared("TrunklineAddressConflict")
    }

    /// Without the right to read Networks, the webhook cannot check pods that name a Network.
    fn forbidden(&self, prometheus: &Prometheus) -> Result<()> {
        let cluster = &*self.cluster;
        let whole = remove_right(cluster, "trunkline-controller", "networks", "get")?;
        wait_for("a pod to be admitted without a check", PATIENCE, || {
            Ok(Seen::when(!is_judged(cluster)?, || "the pod is refused".to_owned()))
        })?;
        for _ in 0..6 {
            prometheus.wait_scrape()?;
            ensure!(!is_judged(cluster)?, "the webhook checks a pod with objects that it may not read");
        }
        prometheus.wait_firing("TrunklineWebhookFailing", "")?;
        replace(cluster, &whole)?;
        wait_for("the pod to be judged", PATIENCE, || {
            Ok(Seen::when(is_judged(cluster)?, || "it passes".to_owned()))
        })?;
        prometheus.clear_later(&["TrunklineWebhookFailing"]);
        Ok(())
    }

    /// Pods use all addresses, and one pod waits.
    fn filled(&self, prometheus: &Prometheus) -> Result<()> {
        let cluster = &*self.cluster;
        let there = cluster.wait(self.pretended().all())?;
        // The agent's own pod is on the host's network, and has no address of a Subnet.
        let there = there.iter().filter(|pod| pod.metadata.namespace.as_deref() == Some(NAMESPACE)).count();
        let plans: Vec<Plan> = (there..=ADDRESSES).map(|n| plan(NAMESPACE, &format!("fill-{n}"))).collect();
        for plan in &plans {
            cluster.wait(self.pretended().create(plan))?;
        }
        prometheus.wait_firing("TrunklineNetworkNearlyEmpty", "")?;
        for (expr, wanted) in [
            ("sum(trunkline_controller_pods_waiting)", 1.0),
            ("sum(trunkline_subnet_addresses{state=\"free\"})", 0.0),
            ("sum(trunkline_controller_allocation_failures_total{reason=\"exhausted\"}) > bool 0", 1.0),
        ] {
            wait_for(&format!("{expr} to be {wanted}"), PATIENCE, || {
                let now = prometheus.query(expr)?;
                Ok(Seen::when(now == [wanted], || format!("{now:?}")))
            })?;
        }
        // The node also sees that no address is left, but only the controller reports it, once for
        // all nodes.
        prometheus.wait_scrape()?;
        let twice = prometheus.firing("TrunklinePoolNearlyEmpty")?;
        ensure!(twice.is_empty(), "TrunklinePoolNearlyEmpty fires in a cluster: {twice:?}");
        for plan in &plans {
            cluster.wait(self.pretended().delete(&plan.namespace, &plan.name))?;
        }
        prometheus.wait_cleared("TrunklineNetworkNearlyEmpty")
    }

    /// Stops the API server until the leader's Lease has expired and the webhook's certificate is
    /// about to expire.
    fn away(&mut self, prometheus: &Prometheus) -> Result<()> {
        self.cluster.stop_api()?;
        let alerts = [
            ("TrunklineApiServerUnreachable", NODE),
            ("TrunklineControllerWithoutLeader", ""),
            ("TrunklineWebhookCertificateEnds", ""),
        ];
        for (alert, of) in alerts {
            prometheus.wait_firing(alert, of)?;
        }
        let left =
            prometheus.query("min(trunkline_webhook_certificate_expires_timestamp_seconds) - time()")?;
        ensure!(
            left.iter().all(|left| *left < f64::from(LAST_SECONDS)),
            "the certificate is good for {left:?} s"
        );
        self.cluster.start_api()?;
        alerts.iter().try_for_each(|(alert, _)| prometheus.wait_cleared(alert))
    }
}

fn say(what: &str) {
    crate::progress::say(&format!("      {what}"));
}

pub(super) fn plan(namespace: &str, name: &str) -> Plan {
    Plan {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        node: NODE.to_owned(),
        family: "IPv4",
        stateful_set: None,
    }
}

/// An IPInstance with the same address, for another pod.
fn also_of(held: &Value, pod: &Plan, uid: &str) -> Value {
    let mut object = json!({
        "apiVersion": held["apiVersion"], "kind": held["kind"], "spec": held["spec"],
        "metadata": {
            "name": held["metadata"]["name"], "namespace": pod.namespace,
            "labels": held["metadata"]["labels"], "annotations": held["metadata"]["annotations"],
            "finalizers": held["metadata"]["finalizers"],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": uid, "controller": true},
            ],
        },
    });
    object["metadata"]["labels"]["networking.alibaba.com/pod"] = json!(pod.name);
    object["metadata"]["labels"]["networking.alibaba.com/pod-uid"] = json!(uid);
    object["spec"]["binding"] = json!({
        "nodeName": pod.node, "podName": pod.name, "podUID": uid,
        "referredObject": {"kind": "Pod", "name": pod.name, "uid": uid},
    });
    object
}

/// Removes a verb from the rules of a ClusterRole that contain this resource. Returns the former
/// role for [`replace`].
pub(super) fn remove_right(cluster: &Cluster, role: &str, resource: &str, verb: &str) -> Result<String> {
    let mut object: Value =
        serde_json::from_str(&cluster.kubectl(["get", "clusterrole", role, "-o", "json"])?)?;
    // The role is stored without the server's fields, to restore it unchanged.
    object["metadata"] = json!({"name": role});
    let whole = object.to_string();
    let has_resource =
        |rule: &Value| rule["resources"].as_array().is_some_and(|all| all.iter().any(|one| one == resource));
    if let Some(rules) = object["rules"].as_array_mut() {
        let of_resource = rules.iter_mut().filter(|rule| has_resource(rule));
        for verbs in of_resource.filter_map(|rule| rule["verbs"].as_array_mut()) {
            verbs.retain(|one| one != verb);
        }
        // A rule without verbs is invalid.
        rules.retain(|rule| rule["verbs"].as_array().is_some_and(|verbs| !verbs.is_empty()));
    }
    replace(cluster, &object.to_string())?;
    Ok(whole)
}

pub(super) fn replace(cluster: &Cluster, object: &str) -> Result<()> {
    crate::shell::run_with_input(&mut cluster.kubectl_command(&["replace", "-f", "-"]), object).map(drop)
}

/// Whether a pod in a missing Network is refused for that reason. If the webhook cannot check the
/// pod, it is admitted. This is a dry run, so no pod is created.
fn is_judged(cluster: &Cluster) -> Result<bool> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "nowhere", "namespace": NAMESPACE,
            "annotations": {"networking.alibaba.com/specified-network": "nowhere"},
        },
        "spec": {"containers": [{"name": "main", "image": "pretended"}]},
    });
    let mut create = cluster.kubectl_command(&["create", "--dry-run=server", "-f", "-"]);
    match crate::shell::run_with_input(&mut create, &pod.to_string()) {
        Ok(_) => Ok(false),
        Err(refused) if format!("{refused:#}").contains("Network nowhere") => Ok(true),
        Err(other) => Err(other),
    }
}
