//! The chart's optional policy on a real API server: a Namespace that names a Network restricts its
//! pods to this Network, even if the pods request another one.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{Test, Verdict, cluster};
use crate::kube::Cluster;
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/tenancy",
    about: "a Namespace that names a Network restricts its pods to this Network and to those that it lists, whichever annotation or label of the pod names another one, at creation and at update",
    run: tenancy,
}];

const PATIENCE: Duration = Duration::from_secs(60);

const NAMESPACES: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: tenant, annotations: {networking.alibaba.com/specified-network: blue}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: labelled, labels: {networking.alibaba.com/specified-network: blue}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: free}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: further, annotations: {networking.alibaba.com/specified-network: blue, trunkline.io/allowed-networks: 'storage, red'}}}
";

type Pairs = &'static [(&'static str, &'static str)];

/// Annotations and labels of a pod, and whether a pod in a namespace of Network blue may have them.
const PODS: &[(Pairs, Pairs, bool)] = &[
    (&[], &[], true),
    (&[("ip-retain", "false")], &[], true),
    (&[("specified-network", "blue")], &[], true),
    (
        &[
            ("specified-network", "blue"),
            ("specified-subnet", "blue-v4"),
            ("network-type", "Underlay"),
            ("ip-family", "IPv4"),
        ],
        &[],
        true,
    ),
    (&[("specified-network", "red")], &[], false),
    (&[("specified-network", "")], &[], false),
    (&[("specified-subnet", "red-private")], &[], false),
    (&[("network-type", "GlobalBGP")], &[], false),
    (&[("ip-family", "IPv6")], &[], false),
    (&[], &[("specified-network", "red")], false),
    (&[], &[("specified-subnet", "red-private")], false),
    (&[], &[("network-type", "Overlay")], false),
    (&[("specified-network", "blue")], &[("specified-network", "red")], false),
    (&[("interfaces", r#"[{"name":"net1","network":"red","defaultRoute":true}]"#)], &[], false),
    (&[("interfaces", r#"[{"name":"net1","subnet":"red-private"}]"#)], &[], false),
    (&[("interfaces", "")], &[], true),
    (&[("ip-pool", "10.210.0.1")], &[], true),
];

/// Multus' annotation, with its whole name.
const MULTUS: &str = "k8s.v1.cni.cncf.io/networks";

/// Annotations of a pod, and whether a pod in a namespace of Network blue that allows storage and red
/// may have them. The controller compares the Networks of the interfaces.
const FURTHER: &[(Pairs, bool)] = &[
    (&[("specified-network", "red")], true),
    (&[("specified-network", "storage"), ("specified-subnet", "storage-v4")], true),
    (&[("specified-network", "green")], false),
    (&[("specified-subnet", "green-private")], false),
    (&[("network-type", "Overlay")], false),
    (&[("interfaces", r#"[{"name":"net1","network":"red"}]"#)], true),
];

fn named(pairs: &[(&str, &str)]) -> Value {
    pairs.iter().map(|(key, value)| (format!("networking.alibaba.com/{key}"), json!(value))).collect()
}

/// The API server's answer to such a pod in a dry run.
fn attempt(
    cluster: &Cluster,
    namespace: &str,
    annotations: Value,
    labels: Value,
    host: bool,
) -> Result<Option<String>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), namespace);
    let pod = json!({
        "metadata": { "name": "attempt", "annotations": annotations, "labels": labels },
        "spec": { "hostNetwork": host, "containers": [{ "name": "main", "image": "pretended" }] },
    });
    let params = PostParams { dry_run: true, ..PostParams::default() };
    refusal(cluster.wait(pods.create(&params, &serde_json::from_value(pod)?)))
}

fn refusal(answer: kube::Result<Pod>) -> Result<Option<String>> {
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(status.message)),
        Err(error) => bail!("{error}"),
    }
}

fn tenancy(context: &Lab) -> Result<Verdict> {
    cluster(context, "tenancy", |cluster| {
        cluster.apply(NAMESPACES)?;
        let change = |annotation: &str, value: &str| {
            let pods: Api<Pod> = Api::namespaced(cluster.client(), "tenant");
            let patch = json!({ "metadata": { "annotations": { annotation: value } } });
            refusal(cluster.wait(pods.patch("there", &PatchParams::default(), &Patch::Merge(&patch))))
        };
        let there = "{apiVersion: v1, kind: Pod, metadata: {name: there, namespace: tenant, annotations: {networking.alibaba.com/network-type: \
                     Overlay}}, spec: {containers: [{name: main, image: pretended}]}}";
        cluster.apply(there)?;
        for (annotations, labels, _) in PODS {
            let refused = attempt(cluster, "tenant", named(annotations), named(labels), false)?;
            ensure!(refused.is_none(), "refused without the policy: {refused:?}");
        }

        let file = cluster.repository().join("deploy/helm/trunkline/files/tenancy.yaml");
        cluster.apply(&std::fs::read_to_string(file)?)?;
        wait_for("the policy to be in force", PATIENCE, || {
            let refused =
                attempt(cluster, "tenant", named(&[("specified-network", "red")]), json!({}), false)?;
            Ok(Seen::when(refused.is_some(), || "admitted".to_owned()))
        })?;
        for namespace in ["tenant", "labelled", "free"] {
            for (annotations, labels, is_allowed) in PODS {
                let refused = attempt(cluster, namespace, named(annotations), named(labels), false)?;
                let pod = format!("{namespace}: {annotations:?} {labels:?}");
                match refused {
                    None => ensure!(*is_allowed || namespace == "free", "{pod} was admitted"),
                    Some(words) => {
                        ensure!(!is_allowed && namespace != "free", "{pod}: {words}");
                        ensure!(
                            words.contains("pods of this namespace are in Network blue"),
                            "{pod}: {words}"
                        );
                    }
                }
            }
        }
        for (namespace, is_allowed) in
            [("tenant", false), ("labelled", false), ("free", true), ("further", true)]
        {
            let refused = attempt(cluster, namespace, json!({ MULTUS: "red" }), json!({}), false)?;
            ensure!(refused.is_none() == is_allowed, "{namespace}, Multus: {refused:?}");
        }
        for (annotations, is_allowed) in FURTHER {
            let refused = attempt(cluster, "further", named(annotations), json!({}), false)?;
            ensure!(refused.is_none() == *is_allowed, "further: {annotations:?}: {refused:?}");
        }
        let red = || named(&[("specified-network", "red")]);
        ensure!(
            attempt(cluster, "tenant", red(), json!({}), true)?.is_none(),
            "a pod of the host's network has no address"
        );
        // The label that exempts a pod from the webhook does not exempt it from the policy.
        let ignored = json!({ "webhook.hybridnet.io/ignore": "true" });
        ensure!(
            attempt(cluster, "tenant", red(), ignored, false)?.is_some(),
            "a pod without the webhook was admitted"
        );

        // An earlier pod: other clients may still write it, but not move it to another Network.
        ensure!(
            change("cni.projectcalico.org/podIPs", "192.0.2.1/32")?.is_none(),
            "an old pod can no longer be written"
        );
        ensure!(change("networking.alibaba.com/specified-network", "red")?.is_some(), "an old pod was moved");
        for list in ["networking.alibaba.com/interfaces", MULTUS] {
            ensure!(change(list, "red")?.is_some(), "an old pod got {list}");
        }
        passed(format!("{} pods in three namespaces", PODS.len()))
    })
}
