//! The audit mode of a Namespace opens its pods, and belongs to the right to change the Namespace. A
//! user with rights on the objects in the Namespace tries to set it: the API server refuses each
//! request about the Namespace, and the annotation on any other object has no effect. The user with
//! the right sets it: packets pass, are counted and logged.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use trunkline_api::control::PoliciesView;
use trunkline_api::names::{POLICY_MODE_AUDIT, annotation};

use super::table::{Cell, equal, wait_equal};
use super::world::{Running, SOON, World};
use crate::client;
use crate::kube::rights::can;
use crate::shell::{Seen, run, run_with_input, wait_for};

/// The user of the objects in the Namespace, and the user of the Namespace.
const TENANT: &str = "tenant";
const OWNER: &str = "owner";

/// The words of the agent's log about a packet that passes in audit mode.
const LOGGED: &str = "a network policy would drop a packet";
const COUNTER: &str = "trunkline_policy_audited_total";

/// A Namespace with a policy, and the effect of the policy.
pub(super) struct Audited<'a> {
    pub namespace: &'a str,
    pub policy: &'a str,
    /// A pod on node1 that the policy selects.
    pub pod: &'a Running,
    /// A pod that the policy allows by its label `role`.
    pub friend: &'a Running,
    /// Connections from the friend and from another pod.
    pub open: &'a [Cell],
    pub denied: &'a [Cell],
}

/// Tests both users; returns a text.
pub(super) fn test(world: &World<'_>, audited: &Audited<'_>) -> Result<String> {
    let node = world.bed.node()?;
    let log = || Ok::<_, anyhow::Error>(std::fs::read_to_string(node.logs().join("agent.log"))?);
    let (tenant, owner) = users(world, audited.namespace)?;
    let refused = refused(world, audited, &tenant).context("requests about the Namespace")?;
    equal(audited.denied).context("after requests about the Namespace")?;
    annotated(world, audited, &tenant).context("annotations of other objects")?;
    ensure!(client::metrics(node)?.lines().all(|line| !line.starts_with(COUNTER)), "packets were audited");
    ensure!(!log()?.contains(LOGGED), "an audited packet was logged");

    let namespaces: Api<Namespace> = Api::all(world.cluster.client_of(&owner)?);
    let set = |mode: Value| {
        let patch = Patch::Merge(with_mode(mode));
        world.cluster.wait(namespaces.patch(audited.namespace, &PatchParams::default(), &patch))
    };
    set(json!(POLICY_MODE_AUDIT))?;
    let passing: Vec<Cell> = audited.denied.iter().map(|cell| Cell { open: true, ..cell.clone() }).collect();
    wait_equal(&passing, SOON).context("in audit mode")?;
    let policy = format!("policy=\"NetworkPolicy {}/{}\"", audited.namespace, audited.policy);
    wait_for("audited packets of the policy", SOON, || {
        let metrics = client::metrics(node)?;
        let lines: Vec<&str> = metrics.lines().filter(|line| line.starts_with(COUNTER)).collect();
        let is = |line: &&&str| {
            let count = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok());
            line.contains(&policy) && count.is_some_and(|count| count > 0.0)
        };
        Ok(Seen::when(lines.iter().filter(is).count() == 1 && lines.len() == 1, || format!("{lines:?}")))
    })?;
    let line = wait_for("the log line of an audited packet", SOON, || {
        let log = log()?;
        let line = log.lines().find(|line| line.contains(LOGGED));
        Ok(line.map_or_else(|| Seen::NotYet("none".to_owned()), |line| Seen::Yes(line.to_owned())))
    })?;
    let policy = format!("{}/{}", audited.namespace, audited.policy);
    let has_pod = audited.pod.addresses.iter().any(|address| line.contains(&address.to_string()));
    ensure!(
        line.contains(&policy) && has_pod,
        "the log line has no {policy} or no address of its pod: {line}"
    );
    equal(audited.open).context("allowed connections in audit mode")?;
    set(Value::Null)?;
    wait_equal(audited.denied, SOON).context("after audit mode")?;
    Ok(format!("audit mode: {refused} requests refused"))
}

/// Metadata with the mode; null removes it.
fn with_mode(mode: Value) -> Value {
    json!({ "metadata": { "annotations": { annotation::POLICY_MODE: mode } } })
}

/// Creates both users; returns their kubeconfigs.
fn users(world: &World<'_>, namespace: &str) -> Result<(std::path::PathBuf, std::path::PathBuf)> {
    let cluster = &*world.cluster;
    let files = (cluster.service_account(namespace, TENANT)?, cluster.service_account(namespace, OWNER)?);
    cluster.apply(&format!(
        "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{ name: {TENANT}, namespace: {namespace} }}
rules:
  - {{ apiGroups: [''], resources: [pods, configmaps], verbs: ['*'] }}
  - {{ apiGroups: [apps], resources: [deployments], verbs: ['*'] }}
  - {{ apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [get, list, watch] }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{ name: {TENANT}, namespace: {namespace} }}
roleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: Role, name: {TENANT} }}
subjects: [{{ kind: ServiceAccount, name: {TENANT}, namespace: {namespace} }}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{ name: {OWNER}-of-{namespace} }}
rules:
  - {{ apiGroups: [''], resources: [namespaces], resourceNames: [{namespace}], verbs: [get, patch] }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{ name: {OWNER}-of-{namespace} }}
roleRef: {{ apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {OWNER}-of-{namespace} }}
subjects: [{{ kind: ServiceAccount, name: {OWNER}, namespace: {namespace} }}]
"
    ))?;
    let rights = [
        (TENANT, "patch", "pods", ""),
        (TENANT, "get", "networkpolicies.networking.k8s.io", ""),
        (OWNER, "patch", "namespaces", namespace),
    ];
    for (account, verb, resource, name) in rights {
        wait_for(&format!("{account} to {verb} {resource}"), SOON, || {
            let is = can(cluster, namespace, account, verb, resource, name)?;
            Ok(Seen::when(is, || "not yet".to_owned()))
        })?;
    }
    Ok(files)
}

/// The tenant's requests about the Namespace: by each verb, each subresource, and as another user.
/// Returns their number.
fn refused(world: &World<'_>, audited: &Audited<'_>, tenant: &Path) -> Result<usize> {
    let (cluster, name) = (&*world.cluster, audited.namespace);
    let of_admin: Api<Namespace> = Api::all(cluster.client());
    let mut object = cluster.wait(of_admin.get(name))?;
    let mode = (annotation::POLICY_MODE.to_owned(), POLICY_MODE_AUDIT.to_owned());
    object.metadata.annotations.get_or_insert_default().extend([mode]);
    let namespaces: Api<Namespace> = Api::all(cluster.client_of(tenant)?);
    let (post, patch) = (PostParams::default(), PatchParams::default());
    let mut apply = with_mode(json!(POLICY_MODE_AUDIT));
    apply["apiVersion"] = json!("v1");
    apply["kind"] = json!("Namespace");
    let merge = Patch::Merge(with_mode(json!(POLICY_MODE_AUDIT)));
    let forced = PatchParams::apply(TENANT).force();
    let answers = [
        ("PATCH", cluster.wait(namespaces.patch(name, &patch, &merge)).map(drop)),
        ("strategic PATCH", {
            let strategic = Patch::Strategic(with_mode(json!(POLICY_MODE_AUDIT)));
            cluster.wait(namespaces.patch(name, &patch, &strategic)).map(drop)
        }),
        ("apply", cluster.wait(namespaces.patch(name, &forced, &Patch::Apply(&apply))).map(drop)),
        ("PUT", cluster.wait(namespaces.replace(name, &post, &object)).map(drop)),
        ("PATCH of the status", cluster.wait(namespaces.patch_status(name, &patch, &merge)).map(drop)),
        ("PUT of the status", cluster.wait(namespaces.replace_status(name, &post, &object)).map(drop)),
        ("DELETE", cluster.wait(namespaces.delete(name, &DeleteParams::default())).map(drop)),
        ("POST", cluster.wait(namespaces.create(&post, &object)).map(drop)),
    ];
    for (request, answer) in &answers {
        is_forbidden(answer).with_context(|| (*request).to_owned())?;
    }

    let path = format!("/api/v1/namespaces/{name}/finalize");
    let mut finalize = cluster.kubectl_command(&["replace", "--raw", &path, "-f", "-"]);
    let finalize = run_with_input(finalize.env("KUBECONFIG", tenant), &serde_json::to_string(&object)?);
    let annotation = format!("{}={POLICY_MODE_AUDIT}", annotation::POLICY_MODE);
    let owner = format!("--as=system:serviceaccount:{name}:{OWNER}");
    let mut other = cluster.kubectl_command(&["annotate", "namespace", name, &annotation, &owner]);
    let other = run(other.env("KUBECONFIG", tenant));
    let texts = [(finalize, "namespaces/finalize"), (other, "cannot impersonate")];
    for (answer, words) in &texts {
        match answer {
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains("Forbidden") || text.contains("forbidden"), "{text}");
                ensure!(text.contains(words), "the refusal has no {words:?}: {text}");
            }
            Ok(text) => bail!("{words}: the API server accepted the request: {text}"),
        }
    }
    let annotations = cluster.wait(of_admin.get(name))?.metadata.annotations.unwrap_or_default();
    ensure!(!annotations.contains_key(annotation::POLICY_MODE), "the mode was set: {annotations:?}");
    Ok(answers.len() + texts.len())
}

fn is_forbidden<T>(answer: &kube::Result<T>) -> Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => bail!("refused for another reason: {error}"),
        Ok(_) => bail!("the API server accepted the request"),
    }
}

/// The annotation on a pod, a ConfigMap and a Deployment, which the tenant may change, and on the
/// policy, which only the administrator may change. Later changes of the same kinds show that the agent has
/// received them.
fn annotated(world: &World<'_>, audited: &Audited<'_>, tenant: &Path) -> Result<()> {
    let (cluster, namespace) = (&*world.cluster, audited.namespace);
    let (params, mode) = (PatchParams::default(), Patch::Merge(with_mode(json!(POLICY_MODE_AUDIT))));
    let of_tenant = cluster.client_of(tenant)?;
    let pods: Api<Pod> = Api::namespaced(of_tenant.clone(), namespace);
    cluster.wait(pods.patch(&audited.pod.name, &params, &mode))?;
    let mut map = with_mode(json!(POLICY_MODE_AUDIT));
    map["metadata"]["name"] = json!("trunkline");
    map["data"] = json!({ "policy-mode": POLICY_MODE_AUDIT });
    let maps: Api<ConfigMap> = Api::namespaced(of_tenant.clone(), namespace);
    cluster.wait(maps.create(&PostParams::default(), &serde_json::from_value(map)?))?;
    let mut deployment = with_mode(json!(POLICY_MODE_AUDIT));
    deployment["metadata"]["name"] = json!("trunkline");
    let mut template = with_mode(json!(POLICY_MODE_AUDIT));
    template["metadata"]["labels"] = json!({ "role": "copy" });
    template["spec"] = json!({ "containers": [{ "name": "main", "image": "pretended" }] });
    deployment["spec"] = json!({ "selector": { "matchLabels": { "role": "copy" } }, "template": template });
    let deployments: Api<Deployment> = Api::namespaced(of_tenant.clone(), namespace);
    cluster.wait(deployments.create(&PostParams::default(), &serde_json::from_value(deployment)?))?;
    let policies = |client: Client| -> Api<NetworkPolicy> { Api::namespaced(client, namespace) };
    is_forbidden(&cluster.wait(policies(of_tenant).patch(audited.policy, &params, &mode)))?;
    cluster.wait(policies(cluster.client()).patch(audited.policy, &params, &mode))?;

    // A watch has its changes in order.
    let closed: Vec<Cell> = audited.open.iter().map(|cell| Cell { open: false, ..cell.clone() }).collect();
    world.label(audited.friend, &json!({ "role": "stranger" }))?;
    wait_equal(&closed, SOON).context("a pod without the label")?;
    world.label(audited.friend, &json!({ "role": "friend" }))?;
    wait_equal(audited.open, SOON).context("a pod with the label again")?;
    cluster.apply(&format!(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{ name: later, namespace: {namespace} }}
spec: {{ podSelector: {{ matchLabels: {{ role: nobody }} }} }}
"
    ))?;
    wait_for("the later policy", SOON, || {
        let view: PoliciesView = client::ask(world.bed.node()?, &["policies"])?;
        let names: Vec<&str> = view.policies.iter().map(|policy| policy.name.as_str()).collect();
        Ok(Seen::when(names.iter().any(|name| name.ends_with("later")), || format!("{names:?}")))
    })?;
    equal(audited.denied)?;
    cluster.kubectl(["delete", "networkpolicy", "later", "-n", namespace]).map(drop)
}
