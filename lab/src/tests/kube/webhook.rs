//! The admission webhook on a real API server: every rule with an accepted and a refused object,
//! requests while the webhook is down, and certificates that are rotated during requests.
//!
//! Two replicas of the controller run. The API server uses one for validation and the other for
//! mutation. So both must serve certificates that the configurations trust. Neither replica leads,
//! because the Lease names another holder. So the test shows the work of every replica, and no
//! leader changes the objects.

mod cases;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use trunkline_controller::webhook::configuration::{Address, NAME, configurations};

use super::{Test, Verdict, api, cluster};
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "kube/webhook",
        about: "each admission rule accepted and refused through a real API server; pods stamped by precedence",
        run: rules,
    },
    Test {
        name: "kube/webhook-life",
        about: "without an answer of the webhook, pods are admitted and resources are denied; \
                certificates are rotated and restored, no request fails",
        run: life,
    },
];

const PATIENCE: Duration = Duration::from_secs(120);
/// Flags for several rotations in a short time: a certificate is replaced after 12 s, and the new
/// certificate is served 3 s after its creation.
const SHORT: [&str; 2] = ["--webhook-cert-lifetime-seconds=18", "--webhook-cert-overlap-seconds=3"];
/// Number of rotations during the requests.
const ROTATIONS: usize = 3;

fn rules(context: &Lab) -> Result<Verdict> {
    let program = context.controller()?;
    cluster(context, "webhook", |cluster| {
        let mut replicas = start(cluster, &program, &[])?;
        let text = cases::run(cluster)?;
        replicas.still_running()?;
        passed(text)
    })
}

/// Creates the CRDs, a Lease of another holder, two replicas, and two configurations. Each
/// configuration calls one replica. Waits until the API server trusts both.
pub(super) fn start(cluster: &Cluster, program: &std::path::Path, flags: &[&str]) -> Result<Replicas> {
    super::crds::install(cluster)?;
    cluster.apply(LEASE)?;
    let mut replicas = Replicas::standing_by(cluster, program, 2, flags)?;
    let [one, other] = replicas.webhooks()[..] else { bail!("two replicas") };
    register(cluster, &mut replicas, one, other)?;
    Ok(replicas)
}

/// Registers one port for validation and one for mutation, and waits until the API server calls
/// them.
pub(in crate::tests) fn register(
    cluster: &Cluster,
    replicas: &mut Replicas,
    validating: u16,
    mutating: u16,
) -> Result<()> {
    let configured =
        |port: u16| configurations(&Address::Url(format!("https://127.0.0.1:{port}")), "kube-system");
    let (validating, mutating) = (configured(validating).0, configured(mutating).1);
    cluster.wait(async {
        Api::all(cluster.client()).create(&PostParams::default(), &validating).await?;
        Api::all(cluster.client()).create(&PostParams::default(), &mutating).await
    })?;
    await_verdicts(cluster, replicas)
}

/// A Lease of an absent holder, for one day.
const LEASE: &str = "
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: { name: trunkline-controller, namespace: kube-system }
spec:
  holderIdentity: somebody-else
  leaseDurationSeconds: 86400
  acquireTime: \"2026-01-01T00:00:00.000000Z\"
  renewTime: \"2026-01-01T00:00:00.000000Z\"
";

/// Waits until both webhooks answer the API server: the validating webhook accepts a Network, and
/// the other mutates a pod.
fn await_verdicts(cluster: &Cluster, replicas: &mut Replicas) -> Result<()> {
    wait_for("the webhooks to answer", PATIENCE, || {
        if let Err(ended) = replicas.still_running() {
            return Ok(Seen::Yes(Err(ended)));
        }
        create(cluster, &network("probe", "probe"), true)?;
        let stamped = create(cluster, &pod("probe", json!({})), true)?;
        let annotations = stamped.metadata.annotations.unwrap_or_default();
        let is_stamped = annotations.contains_key("networking.alibaba.com/handled-by-webhook");
        Ok(if is_stamped { Seen::Yes(Ok(())) } else { Seen::NotYet("the pod is not stamped".to_owned()) })
    })?
}

pub(super) fn network(name: &str, rack: &str) -> Value {
    json!({"apiVersion": "networking.alibaba.com/v1", "kind": "Network", "metadata": {"name": name},
           "spec": {"nodeSelector": {"network": rack}, "netID": 100}})
}

pub(super) fn pod(name: &str, metadata: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    });
    for (key, value) in metadata.as_object().into_iter().flatten() {
        pod["metadata"][key] = value.clone();
    }
    pod
}

pub(super) fn create(cluster: &Cluster, object: &Value, dry_run: bool) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    let kind = object.types.as_ref().context("a kind")?.kind.clone();
    let api = api(cluster, &kind, object.metadata.namespace.as_deref());
    let parameters = PostParams { dry_run, ..PostParams::default() };
    Ok(cluster.wait(api.create(&parameters, &object))?)
}

fn life(context: &Lab) -> Result<Verdict> {
    let program = context.controller()?;
    cluster(context, "webhook-life", |cluster| {
        let mut replicas = start(cluster, &program, &SHORT)?;
        let rotated = rotations(cluster)?;
        put_back(cluster, &mut replicas)?;
        nobody_answers(cluster, &mut replicas)?;
        passed(rotated)
    })
}

/// The served certificate, from the Secret.
pub(super) fn serving(cluster: &Cluster) -> Result<Vec<u8>> {
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), "kube-system");
    let secret = cluster.wait(secrets.get(NAME))?;
    let data = secret.data.unwrap_or_default();
    Ok(data.get("tls.crt").context("tls.crt in the Secret")?.0.clone())
}

/// Requests of four clients continue while the certificates are replaced.
fn rotations(cluster: &Cluster) -> Result<String> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicU32::new(0));
    let began = Instant::now();
    let askers: Vec<_> = (0..4)
        .map(|number| {
            let (client, stop, asked) = (cluster.client(), Arc::clone(&stop), Arc::clone(&asked));
            let object = network(&format!("asked-{number}"), &format!("asked-{number}"));
            cluster.spawn(async move {
                let resource =
                    ApiResource::from_gvk(&GroupVersionKind::gvk("networking.alibaba.com", "v1", "Network"));
                let networks: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
                let pods: Api<Pod> = Api::namespaced(client, "default");
                let object: DynamicObject = serde_json::from_value(object)?;
                let pod: Pod = serde_json::from_value(pod(&format!("asked-{number}"), json!({})))?;
                let dry_run = PostParams { dry_run: true, ..PostParams::default() };
                while !stop.load(Ordering::Relaxed) {
                    networks.create(&dry_run, &object).await.context("a Network, which fails closed")?;
                    let stamped = pods.create(&dry_run, &pod).await.context("a pod")?;
                    let annotations = stamped.metadata.annotations.unwrap_or_default();
                    ensure!(
                        annotations.contains_key("networking.alibaba.com/handled-by-webhook"),
                        "a pod passed unstamped"
                    );
                    asked.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            })
        })
        .collect();
    let mut last = serving(cluster)?;
    for rotation in 1..=ROTATIONS {
        last = wait_for(&format!("rotation {rotation} of the certificate"), PATIENCE, || {
            if let Some(ended) = askers.iter().position(|asker| asker.is_finished()) {
                bail!("requests of client {ended} failed");
            }
            let now = serving(cluster)?;
            Ok(if now == last {
                Seen::NotYet("the certificate is unchanged".to_owned())
            } else {
                Seen::Yes(now)
            })
        })?;
    }
    // The last requests use the current certificate.
    let so_far = asked.load(Ordering::Relaxed);
    wait_for("requests after the last rotation", PATIENCE, || {
        Ok(Seen::when(asked.load(Ordering::Relaxed) > so_far + 100, || "none".to_owned()))
    })?;
    stop.store(true, Ordering::Relaxed);
    for asker in askers {
        cluster.wait(asker)??;
    }
    Ok(format!(
        "{ROTATIONS} rotations in {:.0} s under {} requests, none failed",
        began.elapsed().as_secs_f64(),
        2 * asked.load(Ordering::Relaxed)
    ))
}

/// The Secret is deleted, and then the `caBundle` is emptied: both are restored, with the trusted
/// certificate.
fn put_back(cluster: &Cluster, replicas: &mut Replicas) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), "kube-system");
    cluster.wait(secrets.delete(NAME, &kube::api::DeleteParams::default()))?;
    wait_for("the Secret to be restored", PATIENCE, || serving(cluster).map(Seen::Yes))?;
    let empty = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration");
    let configurations: Api<DynamicObject> = Api::all_with(cluster.client(), &ApiResource::from_gvk(&kind));
    let patch = Patch::<()>::Json(serde_json::from_value(empty)?);
    cluster.wait(configurations.patch(NAME, &PatchParams::default(), &patch))?;
    wait_for("the trust to be restored", PATIENCE, || {
        let now = cluster.wait(configurations.get(NAME))?;
        let bundle = &now.data["webhooks"][0]["clientConfig"]["caBundle"];
        Ok(Seen::when(bundle.is_string(), || "no caBundle".to_owned()))
    })?;
    await_verdicts(cluster, replicas)
}

/// All replicas are killed.
fn nobody_answers(cluster: &Cluster, replicas: &mut Replicas) -> Result<()> {
    replicas.kill_all()?;
    let passed =
        create(cluster, &pod("passes", json!({})), false).context("a pod is denied without a webhook")?;
    ensure!(
        passed
            .metadata
            .annotations
            .is_none_or(|all| !all.contains_key("networking.alibaba.com/handled-by-webhook")),
        "the pod is stamped without a webhook"
    );
    let refused = create(cluster, &network("unasked", "unasked"), false);
    let refused = refused.err().context("a Network was admitted without a webhook")?;
    let said = format!("{refused:#}");
    ensure!(said.contains("failed calling webhook"), "refused for another reason: {said}");
    Ok(())
}
