//! The Helm chart on a real API server: it renders, every object is accepted, and its service
//! accounts have exactly the rights that the programs need.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use serde_json::{Value, json};
use trunkline_agent::config::Config as AgentConfig;
use trunkline_cli::migrate::{Migrate, convert};
use trunkline_controller::config::Config as ControllerConfig;

use super::{Test, Verdict, cluster, crds};
use crate::kube::assets::Assets;
use crate::kube::rights::can;
use crate::shell::{cmd, run, run_with_input};
use crate::tests::{Context as Lab, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/chart",
    about: "the Helm chart: rendered, accepted by a real API server, with minimal rights of its accounts",
    run: chart,
}];

const NAMESPACE: &str = "trunkline-system";

/// Rights of an account: account, verb, resource, and the expected answer. `kube/racks` checks that
/// the rights are minimal. This table protects the rights against an accidental change.
const RIGHTS: &[(&str, &str, &str, bool)] = &[
    ("agent", "watch", "networks.networking.alibaba.com", true),
    ("agent", "watch", "ipinstances.networking.alibaba.com", true),
    ("agent", "patch", "ipinstances.networking.alibaba.com/status", true),
    ("agent", "patch", "nodeinfoes.networking.alibaba.com", true),
    ("agent", "patch", "nodeinfoes.networking.alibaba.com/status", true),
    ("agent", "get", "pods", true),
    ("agent", "watch", "secrets", false),
    ("agent", "list", "secrets", false),
    ("agent", "get", "secrets", false),
    ("agent", "delete", "ipinstances.networking.alibaba.com", false),
    ("agent", "patch", "ipinstances.networking.alibaba.com", false),
    ("agent", "patch", "networks.networking.alibaba.com", false),
    ("agent", "list", "pods", true),
    ("agent", "watch", "pods", true),
    ("agent", "watch", "networkpolicies.networking.k8s.io", true),
    // Not ClusterNetworkPolicies: kubectl answers only for kinds that the server has.
    ("agent", "patch", "networkpolicies.networking.k8s.io", false),
    ("agent", "patch", "namespaces", false),
    ("agent", "patch", "pods", false),
    ("agent", "patch", "nodes", false),
    ("agent", "patch", "nodes/status", true),
    ("agent", "create", "leases.coordination.k8s.io", true),
    ("agent", "update", "leases.coordination.k8s.io", true),
    ("agent", "delete", "leases.coordination.k8s.io", false),
    ("agent", "get", "serviceaddresses.trunkline.io", true),
    ("agent", "watch", "services", true),
    ("agent", "watch", "endpointslices.discovery.k8s.io", true),
    ("agent", "watch", "namespaces", true),
    ("agent", "watch", "serviceadvertisements.trunkline.io", true),
    ("agent", "patch", "services", false),
    ("agent", "patch", "services/status", false),
    ("agent", "patch", "servicepools.trunkline.io", false),
    ("agent", "create", "serviceadvertisements.trunkline.io", false),
    ("agent", "patch", "nodeservices.trunkline.io", true),
    ("agent", "patch", "nodeservices.trunkline.io/status", true),
    ("agent", "watch", "nodeservices.trunkline.io", false),
    ("agent", "delete", "nodeservices.trunkline.io", false),
    ("agent", "watch", "agentsettings.trunkline.io", true),
    ("agent", "create", "agentsettings.trunkline.io", false),
    ("agent", "patch", "agentsettings.trunkline.io", false),
    ("agent", "update", "agentsettings.trunkline.io", false),
    ("controller", "list", "agentsettings.trunkline.io", true),
    ("controller", "patch", "agentsettings.trunkline.io", false),
    ("controller", "create", "ipinstances.networking.alibaba.com", true),
    ("controller", "delete", "ipinstances.networking.alibaba.com", true),
    ("controller", "patch", "subnets.networking.alibaba.com/status", true),
    ("controller", "patch", "nodes", true),
    ("controller", "patch", "pods", true),
    ("controller", "watch", "networkpolicies.networking.k8s.io", true),
    ("controller", "patch", "networkpolicies.networking.k8s.io", false),
    ("controller", "watch", "services", true),
    ("controller", "patch", "services", false),
    ("controller", "patch", "services/status", true),
    ("controller", "watch", "servicepools.trunkline.io", true),
    ("controller", "create", "servicepools.trunkline.io", false),
    ("controller", "patch", "servicepools.trunkline.io", false),
    ("controller", "patch", "servicepools.trunkline.io/status", true),
    ("controller", "create", "serviceaddresses.trunkline.io", true),
    ("controller", "delete", "serviceaddresses.trunkline.io", true),
    ("controller", "patch", "serviceaddresses.trunkline.io/status", true),
    ("controller", "watch", "nodeservices.trunkline.io", true),
    ("controller", "delete", "nodeservices.trunkline.io", true),
    ("controller", "patch", "nodeservices.trunkline.io", false),
    ("controller", "watch", "endpointslices.discovery.k8s.io", true),
    ("agent", "create", "serviceaddresses.trunkline.io", false),
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

/// Secrets of the namespace: account, Secret, and whether the account may read it.
const SECRETS: &[(&str, &str, bool)] = &[
    ("agent", "tor-keys", true),
    ("agent", "trunkline-webhook", false),
    ("agent-rack1", "rack1-keys", true),
    ("agent-rack1", "rack2-keys", false),
    ("agent-rack1", "tor-keys", false),
    ("agent-rack1", "trunkline-webhook", false),
    ("agent-rack1", "", false),
    ("agent-rack2", "rack2-keys", false),
    ("controller", "trunkline-webhook", true),
    ("controller", "tor-keys", false),
];

/// Two racks, the second without keys.
const RACKS: &[&str] = &[
    "--set",
    "agent.racks[0].name=rack1,agent.racks[0].nodeSelector.rack=rack1,agent.racks[0].keySecrets={rack1-keys}",
    "--set",
    "agent.racks[1].name=rack2,agent.racks[1].nodeSelector.rack=rack2",
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
        (&["--set", "podLabelSelector=cni=trunkline"], "--pod-label-selector=cni=trunkline"),
        (&["--set", "vmIPRetain=true"], "--vm-ip-retain=true"),
        (&["--set", "podLabelSelector=cni=trunkline"], "podLabelSelector: \"cni=trunkline\""),
        (&["--set", "serviceMonitor.enabled=true"], "httpAddress: \"[::]:9473\""),
        (&["--set", "serviceMonitor.enabled=true"], "__meta_kubernetes_pod_node_name"),
        (&["--set", "serviceMonitor.enabled=true"], "publishNotReadyAddresses: true"),
        (&["--set", "agent.config.drain.followCordon=true"], "followCordon: true"),
        (
            &["--set", "prometheusRule.enabled=true,prometheusRule.runbooks=https://runbooks.example/alerts"],
            "runbook_url: https://runbooks.example/alerts#trunklinepeerdown",
        ),
        (&["--set", "agent.config.vlanInterfaces={bond0,eth0}"], "vlanInterfaces:"),
        (&["--set", "uninstall=true"], "uninstall-cni"),
        (&["--set", "services.defaultClass=true"], "--default-load-balancer-class"),
        (&["--set", "services.enabled=false"], "--service-addresses=false"),
        (&["--set", "services.denyExternalIPsOfPools=true"], "name: trunkline-external-ips"),
        (&["--set", "networkPolicies.enabled=false"], "networkPolicies: {enabled: false}"),
        (&["--set", "tenancy.enabled=true"], "name: trunkline-tenancy"),
        (&["--set", "tenancy.enabled=true"], "--tenancy=true"),
        (&["--set-string", "cni.conflist=x"], "--conflist=/etc/trunkline/conflist"),
    ] {
        ensure!(!usual.contains(words), "{words:?} is rendered without its setting");
        ensure!(render(values)?.contains(words), "{values:?} should render {words:?}");
    }
    controller(&usual)?;
    client_ca(&render)?;
    let first_network = first_network(&render)?;
    pod_expressions(&render)?;
    probe(&usual, &render(&["--set", "agent.config.socket=/run/trunkline/other.sock"])?)?;
    let without = render(&["--set", "webhook.enabled=false"])?;
    ensure!(!without.contains("WebhookConfiguration"), "webhooks although they are off");
    let everywhere = render(&["--set", "agent.ownNodeOnly=false"])?;
    ensure!(
        usual.contains("ValidatingAdmissionPolicy") && !everywhere.contains("ValidatingAdmissionPolicy"),
        "agent.ownNodeOnly does not control the policies"
    );
    racks(&render)?;
    converted_values(&context.place.repository, &render)?;
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
        // Strict: an unknown field is an error, not a warning.
        let taken = apply(&["--dry-run=server", "--validate=strict"], &usual)?;
        let objects = taken.lines().count();
        apply(&["--validate=strict"], &first_network)?;
        apply(&["--validate=strict"], &usual)?;
        let again = apply(&["--validate=strict"], &usual)?;
        ensure!(again.lines().count() == objects, "a second apply has other objects: {again}");
        let named = SECRETS.iter().map(|&(account, name, is)| (account, "watch", "secrets", name, is));
        let all = RIGHTS.iter().map(|&(account, verb, resource, is)| (account, verb, resource, "", is));
        apply(&["--validate=strict"], &render(RACKS)?)?;
        for (account, verb, resource, name, is_allowed) in all.chain(named) {
            let allowed = can(cluster, NAMESPACE, &format!("trunkline-{account}"), verb, resource, name)?;
            ensure!(
                allowed == is_allowed,
                "trunkline-{account} {} {verb} {resource} {name}",
                if allowed { "may" } else { "may not" }
            );
        }
        passed(format!("{objects} objects, {} rights", RIGHTS.len() + SECRETS.len()))
    })
}

/// Each rack has its own agents, on nodes that belong to no other rack.
fn racks(render: &impl Fn(&[&str]) -> Result<String>) -> Result<()> {
    let racks = render(RACKS)?;
    for words in
        ["name: trunkline-agent-rack1\n", "serviceAccountName: trunkline-agent-rack2\n", "rack: rack2\n"]
    {
        ensure!(racks.contains(words), "agent.racks should render {words:?}");
    }
    ensure!(!racks.contains("serviceAccountName: trunkline-agent\n"), "racks, and agents of no rack");
    let mut same = RACKS.to_vec();
    same.extend(["--set", "agent.racks[1].nodeSelector.rack=rack1"]);
    let refused = render(&same).err().context("two racks with the same nodes were accepted")?;
    ensure!(format!("{refused:#}").contains("rack1 and rack2 may select the same node"), "{refused:#}");
    Ok(())
}

/// The chart accepts the values that `trunkline migrate hybridnet` prints, and the programs accept
/// what the chart makes of them.
fn converted_values(repository: &Path, render: &impl Fn(&[&str]) -> Result<String>) -> Result<()> {
    for (name, network_type, annotation, policies) in
        [("defaults", "Overlay", true, true), ("changed", "Underlay", false, false)]
    {
        let values = repository.join(format!("cli/tests/hybridnet-values/{name}.yaml"));
        let converted = convert(&Migrate::Hybridnet { values })?;
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), &converted.values)?;
        let rendered = render(&["--values", &file.path().display().to_string()])
            .with_context(|| format!("{name}: {}", converted.values))?;
        let deployment = object(&rendered, "Deployment")?;
        let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
        let args = args.into_iter().flatten().filter_map(Value::as_str);
        let flags = ControllerConfig::try_parse_from(["trunkline-controller"].into_iter().chain(args))?;
        ensure!(
            format!("{:?}", flags.default_network_type) == network_type
                && flags.patch_calico_pod_ips_annotation == annotation,
            "{name}: the controller's flags are {flags:?}"
        );
        let config = object(&rendered, "ConfigMap")?["data"]["agent.yaml"].take();
        let config = config.as_str().context("no agent.yaml")?;
        let agent = AgentConfig::parse(config, Path::new("agent.yaml"))?;
        ensure!(
            agent.has_policies() == policies
                && agent.vxlan_port == 8472
                && agent.update_ip_instance_status == policies,
            "{name}: the agent's configuration is {config}"
        );
    }
    Ok(())
}

/// The agent's readiness is queried through its socket, without an open port.
fn probe(usual: &str, elsewhere: &str) -> Result<()> {
    let agent = |text: &str| -> Result<Value> {
        let mut object = object(text, "DaemonSet")?;
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

/// Returns the only object of a kind with these words in its text.
fn object(text: &str, kind: &str) -> Result<Value> {
    let objects = text.split("\n---").filter(|object| object.contains(&format!("kind: {kind}\n")));
    let object = objects.last().with_context(|| format!("no {kind}"))?;
    Ok(serde_saphyr::from_str(object)?)
}

/// The controller can be rolled out on as many nodes as it has replicas, and its probes are on
/// loopback.
fn controller(usual: &str) -> Result<()> {
    let mut deployment = object(usual, "Deployment")?;
    let strategy = deployment["spec"]["strategy"].take();
    let wanted = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}});
    ensure!(strategy == wanted, "the controller's strategy: {strategy}");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let args: Vec<&str> =
        container["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    ensure!(args.contains(&"--probe-address=127.0.0.1:9898"), "the controller's flags: {args:?}");
    let port = |name: &str| {
        let ports = container["ports"].as_array().into_iter().flatten();
        ports.filter(|port| port["name"] == name).map(|port| &port["containerPort"]).next_back()
    };
    ensure!(port("probes") == Some(&json!(9898)), "the controller's ports: {}", container["ports"]);
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let get = &container[probe]["httpGet"];
        ensure!(*get == json!({"host": "127.0.0.1", "path": path, "port": "probes"}), "{probe}: {get}");
    }
    Ok(())
}

/// The webhook's client CA comes from a Secret, if one is named.
fn client_ca(render: &impl Fn(&[&str]) -> Result<String>) -> Result<()> {
    const FLAG: &str = "--webhook-client-ca=/etc/trunkline/client-ca/ca.crt";
    ensure!(!render(&[])?.contains("client-ca"), "a client CA without its setting");
    let deployment = object(&render(&["--set", "webhook.clientCA.secretName=api-server-ca"])?, "Deployment")?;
    let pod = &deployment["spec"]["template"]["spec"];
    ensure!(pod["volumes"][0]["secret"]["secretName"] == "api-server-ca", "its volumes: {}", pod["volumes"]);
    let container = &pod["containers"][0];
    ensure!(
        container["volumeMounts"][0]["mountPath"] == "/etc/trunkline/client-ca",
        "its mounts: {}",
        container["volumeMounts"]
    );
    let has_flag = container["args"].as_array().is_some_and(|args| args.iter().any(|arg| arg == FLAG));
    ensure!(has_flag, "its flags: {}", container["args"]);
    Ok(())
}

/// The Network and the Subnet `init`: created before the webhook, by an installation only. Returns
/// both.
fn first_network(render: &impl Fn(&[&str]) -> Result<String>) -> Result<String> {
    ensure!(!render(&[])?.contains("name: init\n"), "a Network without its setting");
    let all =
        render(&["--set", "init.cidr=fd00:64::/64,init.vxlanID=0", "--set-string", "init.ipVersion=6"])?;
    let (network, subnet) = (object(&all, "Network")?, object(&all, "Subnet")?);
    for object in [&network, &subnet] {
        let annotations = &object["metadata"]["annotations"];
        ensure!(
            annotations["helm.sh/hook"] == "pre-install"
                && annotations["helm.sh/hook-delete-policy"] == "hook-failed",
            "the hook would replace an existing object: {annotations}"
        );
    }
    ensure!(network["spec"] == json!({"type": "Overlay", "mode": "VXLAN", "netID": 0}), "{network}");
    let range = json!({"cidr": "fd00:64::/64", "version": "6"});
    ensure!(subnet["spec"]["range"] == range, "{subnet}");
    let all = render(&["--set", "init.cidr=100.64.0.0/16"])?;
    let (network, subnet) = (object(&all, "Network")?, object(&all, "Subnet")?);
    ensure!(network["spec"]["netID"] == 4 && subnet["spec"]["range"]["version"] == "4", "{network} {subnet}");
    Ok(format!("{network}\n---\n{subnet}\n"))
}

/// Further expressions apply to pods only.
fn pod_expressions(render: &impl Fn(&[&str]) -> Result<String>) -> Result<()> {
    const EXPRESSIONS: &str =
        r#"[{"key":"app","operator":"NotIn","values":["kube-proxy"]},{"key":"tenant","operator":"Exists"}]"#;
    let text = render(&["--set-json", &format!("webhook.additionalPodMatchExpressions={EXPRESSIONS}")])?;
    let more: Value = serde_json::from_str(EXPRESSIONS)?;
    for (kind, pods) in [("ValidatingWebhookConfiguration", 1), ("MutatingWebhookConfiguration", 0)] {
        let objects = text.split("\n---").filter(|object| object.contains(&format!("\"kind\": \"{kind}\"")));
        let object: Value = serde_saphyr::from_str(objects.last().with_context(|| format!("no {kind}"))?)?;
        let webhooks = object["webhooks"].as_array().context("no webhooks")?;
        for (index, webhook) in webhooks.iter().enumerate() {
            let expressions = webhook["objectSelector"]["matchExpressions"].as_array();
            let added = expressions.map(|all| json!(all.get(1..).unwrap_or_default()));
            let wanted = (index == pods).then(|| more.clone());
            ensure!(added == wanted, "{kind}: the selector of webhook {index}: {webhook}");
        }
    }
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
        ("agent.keySecrets={}", "keySecrets"),
        ("networkPolicies.enabled=no-policies", "networkPolicies"),
        ("init.vxlanID=4", "cidr"),
        ("init.cidr=all", "cidr"),
        ("init.cidr=100.64.0.0/16,init.vxlanID=16777216", "vxlanID"),
        ("webhook.additionalPodMatchExpressions[0].key=app", "operator"),
        ("agent.racks[0].name=Rack_1,agent.racks[0].nodeSelector.rack=1", "name"),
    ] {
        let refused = render(&["--set", value]).err().with_context(|| format!("{value} was accepted"))?;
        ensure!(format!("{refused:#}").contains(words), "{value}: {refused:#}");
    }
    Ok(())
}
