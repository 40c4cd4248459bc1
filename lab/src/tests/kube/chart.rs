//! The Helm chart on a real API server: it renders, every object is taken, and its service accounts may do what the programs ask of the API server and
//! no more.

use anyhow::{Context as _, Result, ensure};

use serde_json::{Value, json};

use super::{Test, Verdict, cluster, crds};
use crate::kube::assets::Assets;
use crate::kube::rights::can;
use crate::shell::{cmd, run, run_with_input};
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/chart",
    about: "the Helm chart: rendered, taken by a real API server, its accounts' rights as few as are needed",
    run: chart,
}];

const NAMESPACE: &str = "trunkline-system";

/// What an account may do: who, verb, resource, and whether it must be so. That the rights are as few as can be is for `kube/racks` to see,
/// which runs with them; these are the ones that nobody may slip in.
const RIGHTS: &[(&str, &str, &str, bool)] = &[
    ("agent", "watch", "networks.networking.alibaba.com", true),
    ("agent", "watch", "ipinstances.networking.alibaba.com", true),
    ("agent", "patch", "ipinstances.networking.alibaba.com/status", true),
    ("agent", "patch", "nodeinfoes.networking.alibaba.com", true),
    ("agent", "patch", "nodeinfoes.networking.alibaba.com/status", true),
    ("agent", "get", "pods", true),
    ("agent", "watch", "secrets", true),
    ("agent", "delete", "ipinstances.networking.alibaba.com", false),
    ("agent", "patch", "ipinstances.networking.alibaba.com", false),
    ("agent", "patch", "networks.networking.alibaba.com", false),
    ("agent", "list", "pods", false),
    ("agent", "patch", "pods", false),
    ("agent", "patch", "nodes", false),
    ("agent", "patch", "nodes/status", true),
    ("agent", "create", "leases.coordination.k8s.io", false),
    ("controller", "create", "ipinstances.networking.alibaba.com", true),
    ("controller", "delete", "ipinstances.networking.alibaba.com", true),
    ("controller", "patch", "subnets.networking.alibaba.com/status", true),
    ("controller", "patch", "nodes", true),
    ("controller", "patch", "pods", true),
    ("controller", "update", "leases.coordination.k8s.io", true),
    ("controller", "create", "secrets", true),
    ("controller", "get", "secrets", false),
    ("controller", "list", "secrets", false),
    ("controller", "delete", "pods", false),
    ("controller", "create", "networks.networking.alibaba.com", false),
    ("controller", "delete", "networks.networking.alibaba.com", false),
    ("controller", "delete", "nodes", false),
    ("controller", "create", "validatingwebhookconfigurations.admissionregistration.k8s.io", false),
    ("controller", "patch", "validatingwebhookconfigurations.admissionregistration.k8s.io", false),
];

fn chart(context: &Lab) -> Result<Verdict> {
    let helm = match Assets::helm(&context.place)? {
        Ok(helm) => helm,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let folder = context.place.repository.join("deploy/helm/trunkline");
    let folder = folder.to_str().context("the repository's path is not text")?;
    let render = |values: &[&str]| {
        let mut command =
            cmd(&helm.display().to_string(), ["template", "trunkline", folder, "--namespace", NAMESPACE]);
        run(command.args(["--kube-version", "1.33.0"]).args(values))
    };
    run(&mut cmd(&helm.display().to_string(), ["lint", "--strict", folder]))?;
    refused_values(&render)?;

    let usual = render(&[])?;
    for (values, words) in [
        (&["--set", "serviceMonitor.enabled=true"][..], "kind: ServiceMonitor"),
        (&["--set", "serviceMonitor.enabled=true"], "httpAddress: \"0.0.0.0:9473\""),
        (&["--set", "serviceMonitor.enabled=true"], "__meta_kubernetes_pod_node_name"),
        (&["--set", "serviceMonitor.enabled=true"], "publishNotReadyAddresses: true"),
        (&["--set", "agent.config.drain.followCordon=true"], "followCordon: true"),
        (
            &["--set", "prometheusRule.enabled=true,prometheusRule.runbooks=https://runbooks.example/alerts"],
            "runbook_url: https://runbooks.example/alerts#trunklinepeerdown",
        ),
        (&["--set", "agent.config.vlanInterfaces={bond0,eth0}"], "vlanInterfaces:"),
        (&["--set", "uninstall=true"], "uninstall-cni"),
        (&["--set-string", "cni.conflist=x"], "--conflist=/etc/trunkline/conflist"),
    ] {
        ensure!(!usual.contains(words), "{words:?} is there without being asked for");
        ensure!(render(values)?.contains(words), "{values:?} should make {words:?}");
    }
    probe(&usual, &render(&["--set", "agent.config.socket=/run/trunkline/other.sock"])?)?;
    let without = render(&["--set", "webhook.enabled=false"])?;
    ensure!(!without.contains("WebhookConfiguration"), "webhooks although they are off");
    for never in
        ["privileged: true", "hostPID", "allowPrivilegeEscalation: true", "readOnlyRootFilesystem: false"]
    {
        ensure!(!usual.contains(never), "{never:?} is in the chart");
    }

    cluster(context, "chart", |cluster| {
        crds::install(cluster)?;
        cluster.kubectl(["create", "namespace", NAMESPACE])?;
        let apply = |flags: &[&str], text: &str| {
            let flags = [&["apply", "--server-side", "-f", "-"], flags].concat();
            run_with_input(&mut cluster.kubectl_command(&flags), text)
        };
        // Strict: an unknown field is an error and not a warning.
        let taken = apply(&["--dry-run=server", "--validate=strict"], &usual)?;
        let objects = taken.lines().count();
        apply(&["--validate=strict"], &usual)?;
        let again = apply(&["--validate=strict"], &usual)?;
        ensure!(again.lines().count() == objects, "applied again there are others: {again}");
        for &(account, verb, resource, is_allowed) in RIGHTS {
            let allowed = can(cluster, NAMESPACE, account, verb, resource)?;
            ensure!(
                allowed == is_allowed,
                "trunkline-{account} {} {verb} {resource}",
                if allowed { "may" } else { "may not" }
            );
        }
        passed(format!("{objects} objects, {} rights", RIGHTS.len()))
    })
}

/// The agent is asked by its socket whether it is ready; no port is opened for that.
fn probe(usual: &str, elsewhere: &str) -> Result<()> {
    let agent = |text: &str| -> Result<Value> {
        let objects = text.split("\n---").filter(|object| object.contains("kind: DaemonSet"));
        let object = objects.last().context("no DaemonSet")?;
        let mut object: Value = serde_saphyr::from_str(object)?;
        Ok(object["spec"]["template"]["spec"]["containers"][0].take())
    };
    let usual = agent(usual)?;
    let command = &usual["readinessProbe"]["exec"]["command"];
    ensure!(*command == json!(["/usr/bin/trunkline", "status", "--probe"]), "the agent's probe: {command}");
    ensure!(usual["ports"].is_null(), "the agent opens {}", usual["ports"]);
    let command = agent(elsewhere)?["readinessProbe"]["exec"]["command"].take();
    ensure!(command[3] == "--socket=/run/trunkline/other.sock", "the probe of another socket: {command}");
    Ok(())
}

/// Values that the schema refuses.
fn refused_values(render: &impl Fn(&[&str]) -> Result<String>) -> Result<()> {
    for (value, words) in [
        ("defaultIPFamily=v4", "defaultIPFamily"),
        ("controller.replicas=0", "replicas"),
        ("controler.replicas=2", "controler"),
        ("agent.config.source=manifests", "config"),
        ("cni.confName=a/b.conflist", "confName"),
    ] {
        let refused = render(&["--set", value]).err().with_context(|| format!("{value} was taken"))?;
        ensure!(format!("{refused:#}").contains(words), "{value}: {refused:#}");
    }
    Ok(())
}
