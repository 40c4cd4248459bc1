//! The programs' accounts with the rights in the Helm chart, and a check that these are minimal.
//! The API server's audit log has the requests of each account. The chart's `files/rights.yaml` has
//! the rights of each account. No request may be refused, and no right may be unused. The chart's
//! policies that restrict an agent to its node (`files/own-node.yaml`) are in force, and each agent
//! has the token of a pod.
//!
//! A test only sees the rights that it exercises. The test's table lists each other right with the
//! reason. So the check finds a right without a reason.
//!
//! A difficulty: server-side apply of an object that does not exist is a `patch` in the audit log,
//! but also needs `create`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Cluster;
use crate::shell::{Seen, run_with_input, wait_for};

/// Time limit until the API server applies a role.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) use super::NAMESPACE;

/// An account for which the policies must refuse all writes.
const PROBE: &str = "trunkline-agent-probe";

const NO_NODE: &str = "token has no node";

/// One object for each policy, and words of its refusal.
const PROBES: [(&str, &str); 7] = [
    ("{apiVersion: networking.alibaba.com/v1, kind: NodeInfo, metadata: {name: probe}, spec: {}}", NO_NODE),
    (
        "{apiVersion: networking.alibaba.com/v1, kind: IPInstance, metadata: {name: probe, namespace: default}, spec: \
         {network: probe, subnet: probe, address: {version: '4', ip: 192.0.2.1/24, mac: '02:00:00:00:00:01'}}}",
        NO_NODE,
    ),
    ("{apiVersion: v1, kind: Node, metadata: {name: probe}}", NO_NODE),
    (
        "{apiVersion: events.k8s.io/v1, kind: Event, metadata: {name: probe, namespace: default}, eventTime: '2026-01-01T00:00:00.000000Z', \
         action: Probe, reason: Probe, type: Normal, reportingController: probe, reportingInstance: probe, regarding: {kind: Node, name: probe}}",
        NO_NODE,
    ),
    (
        "{apiVersion: trunkline.io/v1alpha1, kind: ServiceAddress, metadata: {name: 192-0-2-1}, spec: {address: 192.0.2.1, pool: probe, \
         services: [{namespace: default, name: probe, uid: probe}]}}",
        "only Trunkline's controller",
    ),
    ("{apiVersion: trunkline.io/v1alpha1, kind: NodeServices, metadata: {name: probe}}", NO_NODE),
    (
        "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: trunkline-l2-probe, namespace: kube-system}}",
        NO_NODE,
    ),
];

/// kubectl's words about a kind that the API server does not have.
const NO_KIND: &str = "no matches for kind";

/// Program, verb, resource (with its group and its subresource), and the reason why the test does
/// not use this right.
pub(crate) type Unseen = (&'static str, &'static str, &'static str, &'static str);

/// The agents' rights for network policies, in a test without a policy and without the CRD of
/// ClusterNetworkPolicies.
pub(crate) const POLICIES: [Unseen; 3] = {
    const WHY: &str = "there is no network policy, and no CRD of ClusterNetworkPolicies: policies/kube";
    [
        ("agent", "list", "pods", WHY),
        ("agent", "watch", "pods", WHY),
        ("agent", "watch", "clusternetworkpolicies.policy.networking.k8s.io", WHY),
    ]
};

/// The controller's rights for virtual machines, in a test without `--vm-ip-retain`.
pub(crate) const VMS: [Unseen; 7] = {
    const WHY: &str = "without --vm-ip-retain: kube/vms";
    const INSTANCES: &str = "virtualmachineinstances.kubevirt.io";
    const MIGRATIONS: &str = "virtualmachineinstancemigrations.kubevirt.io";
    [
        ("controller", "get", "virtualmachines.kubevirt.io", WHY),
        ("controller", "list", "virtualmachines.kubevirt.io", WHY),
        ("controller", "watch", "virtualmachines.kubevirt.io", WHY),
        ("controller", "list", INSTANCES, WHY),
        ("controller", "watch", INSTANCES, WHY),
        ("controller", "list", MIGRATIONS, WHY),
        ("controller", "watch", MIGRATIONS, WHY),
    ]
};

/// The agents' rights for service addresses in VLANs.
pub(crate) const L2: [Unseen; 6] = {
    const LEASES: &str = "leases.coordination.k8s.io";
    const WHY: &str = "a ServicePool of mode L2: service-addresses/l2";
    [
        ("agent", "get", LEASES, WHY),
        ("agent", "list", LEASES, WHY),
        ("agent", "watch", LEASES, WHY),
        ("agent", "create", LEASES, WHY),
        ("agent", "update", LEASES, WHY),
        ("agent", "get", "serviceaddresses.trunkline.io", WHY),
    ]
};

/// The account of a rack's agents, and the Secrets that they may read.
pub(crate) type Rack = (&'static str, &'static [&'static str]);

/// The agents in tests without peers' keys.
pub(crate) const WITHOUT_KEYS: Rack = ("trunkline-agent", &[]);

/// The accounts with their bindings.
pub(crate) struct Accounts {
    /// The kubeconfig of the controller.
    pub controller: PathBuf,
    granted: BTreeSet<Right>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    account: String,
    resource: String,
    verb: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.account, self.verb, self.resource)
    }
}

/// The chart's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    agent: Rules,
    controller: Rules,
    webhook: Rules,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    cluster: Vec<PolicyRule>,
    namespace: Vec<PolicyRule>,
}

/// A line of the audit log.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    verb: String,
    user: User,
    /// Absent for paths that are no resources, such as `/version`.
    object_ref: Option<Reference>,
    response_status: Option<Status>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Reference {
    api_group: String,
    resource: String,
    subresource: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

impl Accounts {
    /// Creates the accounts as the chart does: one account for each rack's agents, with access to
    /// these Secrets.
    pub(crate) fn create(cluster: &Cluster, racks: &[Rack]) -> Result<Self> {
        let path = cluster.repository().join("deploy/helm/trunkline/files/rights.yaml");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let File { agent, mut controller, webhook } =
            serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
        controller.cluster.extend(webhook.cluster);
        controller.namespace.extend(webhook.namespace);
        let mut accounts = vec![("trunkline-controller", controller)];
        for &(name, secrets) in racks {
            let names: Vec<String> = secrets.iter().map(|&name| name.to_owned()).collect();
            // A rule without names would apply to all Secrets.
            let is_secrets =
                |rule: &&PolicyRule| rule.resources.iter().flatten().any(|name| name == "secrets");
            let rules = agent.namespace.iter().filter(|rule| !is_secrets(rule) || !names.is_empty());
            let named = |rule: &PolicyRule| match is_secrets(&rule) {
                true => PolicyRule { resource_names: Some(names.clone()), ..rule.clone() },
                false => rule.clone(),
            };
            accounts.push((
                name,
                Rules { cluster: agent.cluster.clone(), namespace: rules.map(named).collect() },
            ));
        }
        let mut granted = BTreeSet::new();
        for (name, rules) in accounts {
            cluster.service_account(NAMESPACE, name)?;
            for (kind, namespace, rules) in
                [("ClusterRole", None, rules.cluster), ("Role", Some(NAMESPACE), rules.namespace)]
            {
                if rules.is_empty() {
                    continue;
                }
                granted.extend(rules.iter().flat_map(|rule| rights(program(name), rule)));
                for object in bound(kind, namespace, name, &rules) {
                    cluster.apply(&object.to_string())?;
                }
                in_force(cluster, name, &rules)?;
            }
        }
        own_node_only(cluster)?;
        Ok(Self { controller: cluster.service_account(NAMESPACE, "trunkline-controller")?, granted })
    }

    /// Fails if a request was refused, or if a right was neither used nor is in `unseen`. Returns a
    /// text with the number of used rights.
    pub(crate) fn check(&self, cluster: &Cluster, accounts: &[&str], unseen: &[Unseen]) -> Result<String> {
        let RecordedRequests { allowed, refused } = requests(cluster)?;
        if !refused.is_empty() {
            bail!("the chart's rights are too few, the API server refused: {}", list(&refused));
        }
        let granted: BTreeSet<&Right> =
            self.granted.iter().filter(|right| accounts.contains(&&*right.account)).collect();
        let unseen: BTreeMap<Right, &str> = unseen
            .iter()
            .map(|&(account, verb, resource, why)| {
                let [account, verb, resource] = [account, verb, resource].map(str::to_owned);
                (Right { account, resource, verb }, why)
            })
            .collect();
        if let Some(stale) = unseen.keys().find(|right| !granted.contains(right)) {
            bail!("the test's table names {stale}, which the chart does not grant: remove it");
        }
        let mut report = String::new();
        for right in &granted {
            let said = match (allowed.contains(*right), unseen.get(*right)) {
                (true, _) => "used",
                (false, why) => why.unwrap_or(&"NOT USED"),
            };
            writeln!(report, "{right}: {said}")?;
        }
        std::fs::write(cluster.folder().join("log/rights.txt"), &report)?;
        let idle: BTreeSet<Right> = granted
            .iter()
            .filter(|right| !allowed.contains(**right) && !unseen.contains_key(**right))
            .map(|right| (*right).clone())
            .collect();
        if !idle.is_empty() {
            bail!("the chart grants unused rights: {}", list(&idle));
        }
        let used = granted.iter().filter(|right| allowed.contains(**right)).count();
        Ok(format!("{used} of {} granted rights used, nothing refused", granted.len()))
    }
}

/// Creates the pod of an agent on a node, and a kubeconfig with the token of that pod.
pub(crate) fn agent_on(cluster: &Cluster, (account, _): Rack, node: &str) -> Result<PathBuf> {
    let name = format!("{account}-{node}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "nodeName": node, "serviceAccountName": account, "hostNetwork": true,
            "containers": [{ "name": "agent", "image": "pretended" }],
        },
    });
    cluster.apply(&pod.to_string())?;
    cluster.pod_account(NAMESPACE, account, &name)
}

/// Installs the chart's policies, and waits until they are in force for each resource.
pub(crate) fn own_node_only(cluster: &Cluster) -> Result<()> {
    let path = cluster.repository().join("deploy/helm/trunkline/files/own-node.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    cluster.apply(&text.replace("{{ .Release.Namespace }}", NAMESPACE))?;
    // This account may do everything, but its token has no node: the policies refuse each write.
    let kubeconfig = cluster.service_account(NAMESPACE, PROBE)?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": PROBE },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": PROBE, "namespace": NAMESPACE }],
    });
    cluster.apply(&binding.to_string())?;
    for (object, words) in PROBES {
        wait_for(&format!("the policy to refuse {object}"), PATIENCE, || {
            let mut command = cluster.kubectl_command(&["create", "--dry-run=server", "-f", "-"]);
            let refused = run_with_input(command.env("KUBECONFIG", &kubeconfig), object).err();
            let text = refused.map_or_else(|| "taken".to_owned(), |error| format!("{error:#}"));
            Ok(Seen::when(text.contains(words) || text.contains(NO_KIND), || text))
        })?;
    }
    Ok(())
}

fn list(rights: &BTreeSet<Right>) -> String {
    rights.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Waits until the API server applies a new role.
fn in_force(cluster: &Cluster, account: &str, rules: &[PolicyRule]) -> Result<()> {
    let rule = rules.iter().find(|rule| rule.resource_names.is_none()).or(rules.first());
    let rule = rule.with_context(|| format!("{account} has a role without rules"))?;
    let right =
        rights(account, rule).into_iter().next().with_context(|| format!("{account}: an empty rule"))?;
    let name = rule.resource_names.iter().flatten().next().map_or("", String::as_str);
    wait_for(&format!("the right {right} {name}"), PATIENCE, || {
        let is = can(cluster, NAMESPACE, account, &right.verb, &right.resource, name)?;
        Ok(Seen::when(is, || "not yet".to_owned()))
    })
}

/// Whether an account of this namespace has a right in the namespace, for the object of this name
/// or for all objects.
pub(crate) fn can(
    cluster: &Cluster,
    namespace: &str,
    account: &str,
    verb: &str,
    resource: &str,
    name: &str,
) -> Result<bool> {
    let user = format!("--as=system:serviceaccount:{namespace}:{account}");
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let subresource = format!("--subresource={subresource}");
    let what = if name.is_empty() { resource.to_owned() } else { format!("{resource}/{name}") };
    let mut command =
        cluster.kubectl_command(&["auth", "can-i", verb, &what, &subresource, "-n", namespace, &user]);
    // The command's exit status is part of its answer.
    let output = command.output()?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "yes" => Ok(true),
        "no" => Ok(false),
        other => {
            bail!("kubectl auth can-i {verb} {what}: {other} {}", String::from_utf8_lossy(&output.stderr))
        }
    }
}

/// The program of an account. The accounts of all racks belong to the agent.
fn program(account: &str) -> &str {
    if account.starts_with("trunkline-agent") { "agent" } else { "controller" }
}

/// A role and its binding.
fn bound(kind: &str, namespace: Option<&str>, name: &str, rules: &[PolicyRule]) -> [Value; 2] {
    let api_version = "rbac.authorization.k8s.io/v1";
    let metadata = json!({ "name": name, "namespace": namespace });
    let role = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "rules": rules });
    let binding = json!({
        "apiVersion": api_version, "kind": format!("{kind}Binding"), "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }],
    });
    [role, binding]
}

/// All rights of a rule, one by one.
fn rights(account: &str, rule: &PolicyRule) -> Vec<Right> {
    let none = Vec::new();
    let mut all = Vec::new();
    for group in rule.api_groups.as_ref().unwrap_or(&none) {
        for resource in rule.resources.as_ref().unwrap_or(&none) {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let resource = name(group, resource, subresource);
            all.extend(rule.verbs.iter().map(|verb| Right {
                account: account.to_owned(),
                resource: resource.clone(),
                verb: verb.clone(),
            }));
        }
    }
    all
}

/// kubectl's name of a resource.
fn name(group: &str, resource: &str, subresource: &str) -> String {
    let mut name = resource.to_owned();
    for (separator, part) in [('.', group), ('/', subresource)] {
        if !part.is_empty() {
            name.push(separator);
            name.push_str(part);
        }
    }
    name
}

#[derive(Default)]
struct RecordedRequests {
    allowed: BTreeSet<Right>,
    refused: BTreeSet<Right>,
}

/// The requests of the accounts so far.
fn requests(cluster: &Cluster) -> Result<RecordedRequests> {
    let path = cluster.audit_log();
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    // The last line may be incomplete.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut requests = RecordedRequests::default();
    for line in whole.lines() {
        take(&mut requests, serde_json::from_str(line).with_context(|| format!("the audit log: {line}"))?);
    }
    Ok(requests)
}

fn take(requests: &mut RecordedRequests, line: Line) {
    let start = format!("system:serviceaccount:{NAMESPACE}:trunkline-");
    if !line.user.username.starts_with(&start) || line.user.username.ends_with(PROBE) {
        return;
    }
    let account = program(&line.user.username[start.len() - "trunkline-".len()..]);
    let Some(Reference { api_group, resource, subresource }) = line.object_ref else { return };
    let right = Right {
        account: account.to_owned(),
        resource: name(&api_group, &resource, &subresource),
        verb: line.verb,
    };
    match line.response_status.map_or(0, |status| status.code) {
        // A request without a valid token has no account.
        401 => {}
        403 => drop(requests.refused.insert(right)),
        code => {
            if code == 201 && right.verb == "patch" {
                requests.allowed.insert(Right { verb: "create".to_owned(), ..right.clone() });
            }
            requests.allowed.insert(right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_from_the_audit_log() {
        let line = |user: &str, verb: &str, object: Value, code: u16| -> Line {
            serde_json::from_value(json!({
                "verb": verb, "user": { "username": user }, "objectRef": object, "responseStatus": { "code": code },
            }))
            .expect("a line")
        };
        let agent = "system:serviceaccount:kube-system:trunkline-agent";
        let status = json!({ "apiGroup": "networking.alibaba.com", "resource": "nodeinfoes", "subresource": "status" });
        let mut requests = RecordedRequests::default();
        take(&mut requests, line(agent, "patch", status, 200));
        take(&mut requests, line(agent, "patch", json!({ "apiGroup": "g", "resource": "r" }), 201));
        take(&mut requests, line(agent, "get", json!({ "resource": "secrets" }), 403));
        take(&mut requests, line("system:admin", "delete", json!({ "resource": "secrets" }), 200));
        assert_eq!(
            list(&requests.allowed),
            "agent patch nodeinfoes.networking.alibaba.com/status, agent create r.g, agent patch r.g"
        );
        assert_eq!(list(&requests.refused), "agent get secrets");
    }

    #[test]
    fn a_rule_grants_each_verb_on_each_resource() {
        let rule =
            json!({ "apiGroups": ["", "g"], "resources": ["a", "b/status"], "verbs": ["get", "patch"] });
        let rule: PolicyRule = serde_json::from_value(rule).expect("a rule");
        let all: BTreeSet<Right> = rights("agent", &rule).into_iter().collect();
        assert_eq!(
            list(&all),
            "agent get a, agent patch a, agent get a.g, agent patch a.g, agent get b.g/status, agent patch b.g/status, \
             agent get b/status, agent patch b/status"
        );
    }
}
