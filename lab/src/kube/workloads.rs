//! Simulates the part of Kubernetes between `helm install` and the kubelets, for a fabric's nodes:
//! controllers of DaemonSets, Deployments and StatefulSets, the scheduler, and garbage collection.
//!
//! In a loop, a thread reads the API server and does the pending work. It creates and deletes pods
//! of workloads (a new pod for a new generation, none on nodes that are not selected), and selects
//! nodes for pods without a node. It runs the kubelets ([`Kubelet::sync`]) and writes statuses
//! (`kubectl rollout status` waits for them). It also updates disruption budgets (for `kubectl
//! drain`), deletes the pods of deleted workloads, and sets the backend of each Service
//! ([`super::egress`]). There are no ReplicaSets: a Deployment owns its pods itself. It has at most
//! one pod on a node, because its pods use the node's ports.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, PodTemplateSpec, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde_json::{Value, json};

use super::Cluster;
use super::egress::{Backend, Egress, Routes};
use super::kubelet::{Image, Kubelet, Observer, port_of};
use crate::cni::Sandbox;
use crate::fabric::Fabric;
use crate::shell::quoted;
use crate::shell::{Seen, wait_for};

/// Time limit of one iteration.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two iterations.
const PAUSE: Duration = Duration::from_millis(200);
/// Annotation with the generation of a pod's workload.
const GENERATION: &str = "lab/generation";

/// A fabric's nodes with running kubelets.
pub(crate) struct Nodes<'a> {
    cluster: &'a Cluster,
    egress: Egress,
    kubelets: Mutex<BTreeMap<String, Kubelet<'a>>>,
    /// The error of the last iteration.
    trouble: Mutex<Option<String>>,
}

/// Runs `work` while the nodes of a fabric are nodes of the cluster.
pub(crate) fn with_nodes<'a, T>(
    cluster: &'a Cluster,
    fabric: &'a Fabric,
    names: &[&str],
    image: &'a Image,
    work: impl FnOnce(&Nodes<'a>) -> Result<T>,
) -> Result<T> {
    let register = |name: &&str| Ok(((*name).to_owned(), Kubelet::register(cluster, fabric, name, image)?));
    let kubelets = names.iter().map(register).collect::<Result<_>>()?;
    let nodes = Nodes {
        cluster,
        egress: cluster.egress()?,
        kubelets: Mutex::new(kubelets),
        trouble: Mutex::new(None),
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The thread ends on every return from this function.
        let _end = OnDrop(|| stop.store(true, Ordering::Relaxed));
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let trouble = nodes.look().err().map(|e| format!("{e:#}"));
                *nodes.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
                std::thread::sleep(PAUSE);
            }
        });
        work(&nodes).map_err(|e| match nodes.trouble() {
            Some(trouble) => e.context(format!("on the nodes: {trouble}")),
            None => e,
        })
    })
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A workload, which owns pods.
struct Workload {
    kind: Kind,
    metadata: ObjectMeta,
    template: PodTemplateSpec,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One pod on each selected node.
    DaemonSet,
    /// This number of pods, on different nodes.
    Deployment(usize),
    /// This number of pods, each with its own name, on any node.
    StatefulSet(usize),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::DaemonSet => "DaemonSet",
            Self::Deployment(_) => "Deployment",
            Self::StatefulSet(_) => "StatefulSet",
        }
    }
}

impl Workload {
    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn generation(&self) -> String {
        self.metadata.generation.unwrap_or_default().to_string()
    }

    fn owns(&self, pod: &Pod) -> bool {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        owners.any(|owner| Some(&owner.uid) == self.metadata.uid.as_ref())
    }

    fn spec(&self) -> Result<&PodSpec> {
        self.template.spec.as_ref().with_context(|| format!("{}: a template without spec", self.name()))
    }

    /// A pod of the workload.
    fn pod(&self, name: &str, node: Option<&str>) -> Result<Pod> {
        let template = self.template.metadata.clone().unwrap_or_default();
        let mut labels = template.labels.unwrap_or_default();
        labels.insert(GENERATION.to_owned(), self.generation());
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": self.namespace(), "labels": labels, "annotations": template.annotations,
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": self.kind.name(), "name": self.name(), "uid": self.metadata.uid,
                    "controller": true, "blockOwnerDeletion": true }],
            },
            "spec": PodSpec { node_name: node.map(str::to_owned), ..self.spec()?.clone() },
        }))?)
    }
}

impl<'a> Nodes<'a> {
    fn look(&self) -> Result<()> {
        for kubelet in self.kubelets().values_mut() {
            kubelet.reboot_if_requested()?;
        }
        let client = self.cluster.client();
        let everything = ListParams::default();
        let (sets, deployments, stateful, nodes, pods, services, budgets) = self.cluster.wait(async {
            let stateful = Api::<StatefulSet>::all(client.clone()).list(&everything).await?.items;
            let sets = Api::<DaemonSet>::all(client.clone()).list(&everything).await?.items;
            let deployments = Api::<Deployment>::all(client.clone()).list(&everything).await?.items;
            let nodes = Api::<Node>::all(client.clone()).list(&everything).await?.items;
            let pods = Api::<Pod>::all(client.clone()).list(&everything).await?.items;
            let services = Api::<Service>::all(client.clone()).list(&everything).await?.items;
            let budgets = Api::<PodDisruptionBudget>::all(client.clone()).list(&everything).await?.items;
            anyhow::Ok((sets, deployments, stateful, nodes, pods, services, budgets))
        })?;
        let mut workloads = Vec::new();
        for set in sets {
            let template = set.spec.context("a DaemonSet without spec")?.template;
            workloads.push(Workload { kind: Kind::DaemonSet, metadata: set.metadata, template });
        }
        for deployment in deployments {
            let spec = deployment.spec.context("a Deployment without spec")?;
            let kind = Kind::Deployment(usize::try_from(spec.replicas.unwrap_or(1))?);
            workloads.push(Workload { kind, metadata: deployment.metadata, template: spec.template });
        }
        for set in stateful {
            let spec = set.spec.context("a StatefulSet without spec")?;
            let kind = Kind::StatefulSet(usize::try_from(spec.replicas.unwrap_or(1))?);
            workloads.push(Workload { kind, metadata: set.metadata, template: spec.template });
        }
        for workload in &workloads {
            self.populate(workload, &nodes, &pods)?;
            self.count(workload, &nodes, &pods)?;
        }
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            // Pods of virtual machines belong to KubeVirt.
            let mut owners = pod.metadata.owner_references.iter().flatten();
            let of_workload = owners.any(|owner| owner.api_version == "apps/v1");
            if of_workload && !workloads.iter().any(|workload| workload.owns(pod)) {
                self.delete(pod)?;
            }
        }
        for pod in pods.iter().filter(|pod| node_of(pod).is_empty()) {
            self.schedule(pod, &nodes)?;
        }
        for budget in &budgets {
            self.allow_disruption(budget, &pods)?;
        }
        self.egress.set(routes(&services, &pods, &self.kubelets())?);
        // All kubelets are synchronized, even if one of them fails.
        let outcomes: Vec<Result<()>> =
            self.kubelets().values_mut().map(|kubelet| kubelet.sync(&pods)).collect();
        outcomes.into_iter().collect()
    }

    /// Creates the missing pods of a workload, and deletes the superfluous ones.
    fn populate(&self, workload: &Workload, nodes: &[Node], pods: &[Pod]) -> Result<()> {
        let mine: Vec<&Pod> = pods.iter().filter(|pod| workload.owns(pod)).collect();
        let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
        if let Kind::StatefulSet(replicas) = workload.kind {
            let wanted = (0..replicas).map(|n| format!("{}-{n}", workload.name()));
            let missing = wanted.filter(|wanted| !mine.iter().any(|pod| name(pod) == *wanted));
            return missing.into_iter().try_for_each(|name| self.create(&workload.pod(&name, None)?));
        }
        let (bound, takes_new) = match workload.kind {
            Kind::Deployment(replicas) => (replicas, false),
            _ => (usize::MAX, true),
        };
        let (spec, generation) = (workload.spec()?, workload.generation());
        let selected: Vec<&str> = nodes
            .iter()
            .filter(|node| selects(spec, node) && (takes_new || !unschedulable(node)))
            .filter_map(|node| node.metadata.name.as_deref())
            .collect();
        let stays = |pod: &Pod| {
            let is_new = pod.metadata.labels.as_ref().and_then(|l| l.get(GENERATION)) == Some(&generation);
            // A Deployment's pod stays on a node that accepts no more pods.
            is_new
                && (!takes_new || selected.contains(&node_of(pod)))
                && pod.metadata.deletion_timestamp.is_none()
        };
        let kept: Vec<String> =
            mine.iter().filter(|pod| stays(pod)).take(bound).map(|pod| name(pod)).collect();
        for pod in
            mine.iter().filter(|pod| !kept.contains(&name(pod)) && pod.metadata.deletion_timestamp.is_none())
        {
            self.delete(pod)?;
        }
        // The pod uses the node's ports, so the previous pod must be gone.
        let free = selected.iter().filter(|node| !mine.iter().any(|pod| node_of(pod) == **node));
        for node in free.take(bound.saturating_sub(kept.len())) {
            self.create(&workload.pod(&format!("{}-{node}-{generation}", workload.name()), Some(node))?)?;
        }
        Ok(())
    }

    fn create(&self, pod: &Pod) -> Result<()> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.cluster.client(), namespace);
        self.cluster.wait(api.create(&PostParams::default(), pod))?;
        Ok(())
    }

    /// Binds a pod to a suitable node, as the scheduler does. If there is no suitable node, the pod
    /// waits.
    fn schedule(&self, pod: &Pod, nodes: &[Node]) -> Result<()> {
        let spec = pod.spec.as_ref().context("a pod without spec")?;
        let Some(node) = nodes.iter().find(|node| selects(spec, node) && !unschedulable(node)) else {
            return Ok(());
        };
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node.metadata.name } });
        let api: Api<Pod> =
            Api::namespaced(self.cluster.client(), pod.metadata.namespace.as_deref().unwrap_or_default());
        let parameters = PostParams::default();
        let bound = self
            .cluster
            .wait(async { api.create_subresource::<_, Value>("binding", name, &parameters, &binding).await });
        bound.with_context(|| format!("binding {name}"))?;
        Ok(())
    }

    /// Writes the status for `kubectl rollout status`.
    fn count(&self, workload: &Workload, nodes: &[Node], pods: &[Pod]) -> Result<()> {
        let (spec, generation) = (workload.spec()?, workload.generation());
        let mine: Vec<&Pod> = pods.iter().filter(|pod| workload.owns(pod)).collect();
        let new =
            |pod: &&&Pod| pod.metadata.labels.as_ref().and_then(|l| l.get(GENERATION)) == Some(&generation);
        let updated: Vec<&Pod> = mine.iter().filter(new).copied().collect();
        let ready = updated.iter().filter(|pod| is_ready(pod)).count();
        let observed = workload.metadata.generation;
        let status = if workload.kind == Kind::DaemonSet {
            let desired = nodes.iter().filter(|node| selects(spec, node)).count();
            json!({ "observedGeneration": observed, "desiredNumberScheduled": desired, "currentNumberScheduled": mine.len(),
                "updatedNumberScheduled": updated.len(), "numberReady": ready, "numberAvailable": ready, "numberMisscheduled": 0 })
        } else {
            json!({ "observedGeneration": observed, "replicas": mine.len(), "updatedReplicas": updated.len(),
                "readyReplicas": ready, "availableReplicas": ready })
        };
        self.write_status(workload.kind.name(), &workload.metadata, status)
    }

    fn write_status(&self, kind: &str, metadata: &ObjectMeta, status: Value) -> Result<()> {
        let (name, namespace) =
            (metadata.name.as_deref().unwrap_or_default(), metadata.namespace.as_deref().unwrap_or_default());
        let patch = Patch::Merge(json!({ "status": status }));
        let client = self.cluster.client();
        self.cluster.wait(async {
            match kind {
                "DaemonSet" => patch_status::<DaemonSet>(client, namespace, name, &patch).await,
                "Deployment" => patch_status::<Deployment>(client, namespace, name, &patch).await,
                "StatefulSet" => patch_status::<StatefulSet>(client, namespace, name, &patch).await,
                _ => patch_status::<PodDisruptionBudget>(client, namespace, name, &patch).await,
            }
        })
    }

    /// Allows the disruption of one pod while all pods are ready.
    fn allow_disruption(&self, budget: &PodDisruptionBudget, pods: &[Pod]) -> Result<()> {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let mine: Vec<&Pod> = pods.iter().filter(|pod| selector.is_some_and(|s| matches(s, pod))).collect();
        let healthy = mine.iter().filter(|pod| is_ready(pod)).count();
        let allowed = usize::from(!mine.is_empty() && healthy == mine.len());
        let status = json!({ "observedGeneration": budget.metadata.generation, "disruptionsAllowed": allowed, "currentHealthy": healthy,
            "desiredHealthy": mine.len().saturating_sub(1), "expectedPods": mine.len() });
        self.write_status("PodDisruptionBudget", &budget.metadata, status)
    }

    fn delete(&self, pod: &Pod) -> Result<()> {
        let api: Api<Pod> =
            Api::namespaced(self.cluster.client(), pod.metadata.namespace.as_deref().unwrap_or_default());
        match self
            .cluster
            .wait(api.delete(pod.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::default()))
        {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    fn kubelets(&self) -> MutexGuard<'_, BTreeMap<String, Kubelet<'a>>> {
        self.kubelets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes programs into a folder for commands that need a kubelet or a shell on a node:
    /// `kubectl exec`, and `ssh`.
    pub(crate) fn write_programs(&self, into: &Path, kubectl: &Path) -> Result<()> {
        let mut exec = String::new();
        let mut ssh = String::new();
        for kubelet in self.kubelets().values() {
            exec.push_str(&kubelet.exec_script());
            ssh.push_str(&kubelet.ssh_script());
        }
        let kubectl = quoted(&kubectl.display().to_string());
        write_program(
            &into.join("kubectl"),
            &format!(
                "case \" $* \" in *\" exec ds/\"*) ;; *) exec {kubectl} \"$@\";; esac\n\
             while [ \"$1\" != exec ]; do shift; done\nset=${{2#ds/}}\nwhile [ \"$1\" != -- ]; do shift; done\nshift\n\
             {exec}echo \"no container of $set runs\" >&2; exit 1\n"
            ),
        )?;
        write_program(
            &into.join("ssh"),
            &format!("node=$1; shift\ncase $node in\n{ssh}*) echo \"no host $node\" >&2; exit 255;; esac\n"),
        )
    }

    /// Runs Felix beside the stand-in of hybridnet's daemon. A running daemon continues without.
    pub(crate) fn run_felix(&self, program: &Path) {
        self.kubelets().values_mut().for_each(|kubelet| kubelet.felix = Some(program.to_owned()));
    }

    /// Passes the starts and ends of sandboxes on to an observer.
    pub(crate) fn observe(&self, observer: &Arc<dyn Observer>) {
        self.kubelets().values_mut().for_each(|kubelet| kubelet.observer = Some(Arc::clone(observer)));
    }

    /// Waits until a pod of the API server is attached on its node.
    pub(crate) fn attached(&self, node: &str, pod: &str) -> Result<Sandbox> {
        wait_for(&format!("pod {pod} to be attached on {node}"), PATIENCE, || {
            if let Some(trouble) = self.trouble() {
                return Ok(Seen::NotYet(trouble));
            }
            let kubelets = self.kubelets();
            let sandbox = kubelets.get(node).with_context(|| format!("no node {node}"))?.sandbox(pod);
            Ok(match sandbox {
                Ok(sandbox) => Seen::Yes(sandbox),
                Err(e) => Seen::NotYet(format!("{e:#}")),
            })
        })
    }
}

/// Writes a shell script.
pub(crate) fn write_program(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, format!("#!/bin/sh\nset -eu\n{text}"))
        .with_context(|| path.display().to_string())?;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

async fn patch_status<K>(
    client: kube::Client,
    namespace: &str,
    name: &str,
    patch: &Patch<Value>,
) -> Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    match Api::<K>::namespaced(client, namespace).patch_status(name, &PatchParams::default(), patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// Each Service's address, with a ready pod as its backend.
fn routes(services: &[Service], pods: &[Pod], kubelets: &BTreeMap<String, Kubelet<'_>>) -> Result<Routes> {
    let mut routes = Routes::new();
    for service in services {
        let spec = service.spec.as_ref().context("a Service without spec")?;
        let (Some(address), Some(selector)) = (&spec.cluster_ip, &spec.selector) else { continue };
        let selector = LabelSelector { match_labels: Some(selector.clone()), match_expressions: None };
        let behind = pods.iter().find(|pod| {
            pod.metadata.namespace == service.metadata.namespace && matches(&selector, pod) && is_ready(pod)
        });
        let Some(pod) = behind else { continue };
        let container = &pod.spec.as_ref().context("a pod without spec")?.containers[0];
        let Some(kubelet) = kubelets.get(node_of(pod)) else { continue };
        for port in spec.ports.iter().flatten() {
            let target = port.target_port.as_ref().context("a port without targetPort")?;
            let backend = Backend { node: kubelet.namespace(), port: port_of(container, target)? };
            routes.insert(format!("{address}:{}", port.port), backend);
        }
    }
    Ok(routes)
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    pod.metadata.deletion_timestamp.is_none() && ready.any(|condition| condition.status == "True")
}

fn unschedulable(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

fn matches(selector: &LabelSelector, pod: &Pod) -> bool {
    let none = BTreeMap::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&none);
    selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether a node matches a pod's nodeSelector and required node affinity.
fn selects(spec: &PodSpec, node: &Node) -> bool {
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let by_selector = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    by_selector
        && required.is_none_or(|required| {
            required.node_selector_terms.iter().any(|term| {
                term.match_expressions.iter().flatten().all(|expression| {
                    let value = labels.get(&expression.key);
                    let is_in =
                        value.is_some_and(|v| expression.values.iter().flatten().any(|wanted| wanted == v));
                    match expression.operator.as_str() {
                        "In" => is_in,
                        "NotIn" => !is_in,
                        "Exists" => value.is_some(),
                        _ => value.is_none(),
                    }
                })
            })
        })
}
