//! A test of the fixture itself. It creates a custom object, and watches it from a namespace. The
//! object still exists after each disturbance that a test may cause.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::{ApiResource, DynamicObject, PatchParams, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt as _};

use super::{Test, Verdict, cluster};
use crate::kube::Cluster;
use crate::kube::daemon::Daemon;
use crate::netns::{Namespace, Temporary};
use crate::shell::{Seen, cmd, wait_for};
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/api-server",
    about: "a real API server: objects, watches, tokens, stop and start, an older snapshot of etcd",
    run: api_server,
}];

const KIND: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: cables.lab.example }
spec:
  group: lab.example
  scope: Cluster
  names: { kind: Cable, plural: cables, singular: cable }
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties: { metres: { type: integer, minimum: 1 } }
";

fn cable(name: &str, metres: i64) -> String {
    format!(
        "{{apiVersion: lab.example/v1, kind: Cable, metadata: {{name: {name}}}, spec: {{metres: {metres}}}}}"
    )
}

const PATIENCE: Duration = Duration::from_secs(60);

fn api_server(context: &Lab) -> Result<Verdict> {
    cluster(context, "api-server", |cluster| {
        let inside = Temporary::create(&format!("tl-kube-{}", std::process::id()))?;
        let _doorway = cluster.doorway(&inside.ns)?;
        cluster.apply(KIND)?;
        cluster.kubectl([
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "crd/cables.lab.example",
        ])?;
        let refused = cluster.apply(&cable("short", 0)).err().context("an invalid object was accepted")?;
        ensure!(format!("{refused:#}").contains("spec.metres"), "refused for another reason: {refused:#}");

        cluster.apply(&cable("one", 1))?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("lab.example", "v1", "Cable"));
        let cables: Api<DynamicObject> = Api::all_with(cluster.client(), &resource);
        let one = cluster.wait(cables.get("one"))?;
        let mut watcher = watch_from(cluster, &inside.ns)?;
        wait_for_line(&mut watcher, "1")?;
        let snapshot = cluster.snapshot("with-one")?;
        let seen = cluster.wait(async {
            use futures_util::{StreamExt as _, TryStreamExt as _};
            let since = one.resource_version().context("a resource version")?;
            let watch = cables.watch(&WatchParams::default().timeout(60), &since).await?;
            let longer = serde_json::json!({ "spec": { "metres": 7 } });
            cables.patch("one", &PatchParams::default(), &kube::api::Patch::Merge(&longer)).await?;
            watch.boxed().try_next().await?.context("the watch ended")
        })?;
        let WatchEvent::Modified(seen) = seen else { anyhow::bail!("the watch reported {seen:?}") };
        ensure!(seen.data["spec"]["metres"] == 7, "the watch saw {:?}", seen.data);

        wait_for_line(&mut watcher, "7")?;
        watcher.stop()?;

        no_rights(cluster, &resource)?;

        cluster.stop_api()?;
        let while_stopped = cluster.wait(cables.get("one"));
        ensure!(while_stopped.is_err(), "a stopped server answered");
        cluster.start_api()?;
        let again = cluster.wait(cables.get("one"))?;
        ensure!(again.data["spec"]["metres"] == 7, "after the restart the object is {:?}", again.data);

        cluster.restore(&snapshot)?;
        let before = wait_for("the restored kinds to be served", PATIENCE, || {
            let asked = cluster.wait(cables.get_opt("one"))?;
            Ok(asked.map_or_else(|| Seen::NotYet("no such cable".to_owned()), Seen::Yes))
        })?;
        ensure!(before.data["spec"]["metres"] == 1, "the snapshot had 1, the object is {:?}", before.data);
        passed("created, refused, watched, restarted, restored")
    })
}

/// Runs kubectl in a namespace; kubectl prints the length of each changed object of the kind Cable.
fn watch_from(cluster: &Cluster, ns: &Namespace) -> Result<Daemon> {
    let kubectl =
        cluster.kubectl_command(&["get", "cables", "--watch", "-o", "jsonpath={.spec.metres}{'\\n'}"]);
    let mut command = cmd("ip", ["netns", "exec", ns.name()]);
    command.arg(kubectl.get_program()).args(kubectl.get_args()).env("KUBECONFIG", cluster.kubeconfig());
    cluster.daemon("watcher", command)
}

fn wait_for_line(watcher: &mut Daemon, wanted: &str) -> Result<()> {
    let log = watcher.log().to_owned();
    watcher.wait_while_running(&format!("the watch in the namespace to print {wanted}"), PATIENCE, || {
        let printed = std::fs::read_to_string(&log)?;
        Ok(Seen::when(printed.lines().any(|l| l == wanted), || printed))
    })
}

/// The API server authenticates a service account's kubeconfig, and the account has no rights.
fn no_rights(cluster: &Cluster, resource: &ApiResource) -> Result<()> {
    let file = cluster.service_account("default", "nobody")?;
    let nobody = cluster.client_of(&file)?;
    let cables: Api<DynamicObject> = Api::all_with(nobody, resource);
    match cluster.wait(cables.get("one")) {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let said = &status.message;
            ensure!(
                said.contains("system:serviceaccount:default:nobody"),
                "identified as another account: {said}"
            );
            Ok(())
        }
        other => anyhow::bail!("an account without rights was answered {other:?}"),
    }
}
