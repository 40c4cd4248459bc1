//! The values of hybridnet's chart v0.8.9, and their counterparts in Trunkline's chart.
//!
//! [`VALUES`] has each value of hybridnet's chart: [`Fate::Mapped`], or the reason why there is no
//! counterpart. [`settings`] maps the former. A mapped value is always printed, even if it is
//! Trunkline's default: the two charts' defaults differ, and Trunkline's may change.

use anyhow::{Context as _, ensure};
use ipnet::IpNet;
use serde_json::{Value, json};
use trunkline_api::pod::{IpFamily, read_network_type};

use super::Converted;
use super::output::{Setting, yaml};
use super::values::{Values, is_set};

const HEAD: &str = "\
# Values of Trunkline's chart, printed by `trunkline migrate hybridnet`.
# The comment beside each value names the value of hybridnet's chart that it comes from.
";

/// What happens to a value of hybridnet.
enum Fate {
    Mapped,
    /// Reported if it is set.
    Reported(&'static str),
    /// The text depends on the value.
    Special(fn(&Values, &Value) -> Option<&'static str>),
}

use Fate::{Mapped, Reported, Special};

const RESOURCES: &str =
    "the figures are those of another program: set controller.resources if the chart's defaults do not fit";
const CLIENT: &str = "the controller limits no requests of its own, the API server's priority and fairness does: nothing to do";

/// Each value of hybridnet's chart. Values below a path belong to it.
const VALUES: &[(&str, Fate)] = &[
    ("images.hybridnet.image", Reported("Trunkline has its own image: set image.repository")),
    (
        "images.hybridnet.tag",
        Reported("Trunkline has its own image: set image.tag, or leave the chart's version"),
    ),
    ("images.hybridnet.imagePullPolicy", Mapped),
    (
        "images.registryURL",
        Reported("image.repository includes the registry: set it to your copy of Trunkline's image"),
    ),
    (
        "init",
        Reported(
            "the Network and the Subnet `init` are in the API server already and stay there: nothing to do, but do not run `helm uninstall` for hybridnet, which deletes them",
        ),
    ),
    ("manager.replicas", Mapped),
    ("manager.resources", Reported(RESOURCES)),
    (
        "manager.controllerConcurrency",
        Reported(
            "the controller handles 64 pods at the same time: nothing to do; --pod-workers in controller.extraArgs changes the number",
        ),
    ),
    ("manager.kubeClientQPS", Reported(CLIENT)),
    ("manager.kubeClientBurst", Reported(CLIENT)),
    ("manager.metricsPort", Mapped),
    ("manager.nodeSelector", Mapped),
    ("webhook.additionalPodMatchExpressions", Mapped),
    ("webhook.replicas", Mapped),
    ("webhook.resources", Reported(RESOURCES)),
    ("webhook.nodeSelector", Special(webhook_nodes)),
    ("daemon.enableFelixPolicy", Mapped),
    (
        "daemon.cleanFelixRulesWhilePolicyDisabled",
        Reported("the reboot of a node removes the rules of Felix: nothing to do beside the page's step 4"),
    ),
    ("daemon.preferVxlanInterfaces", Mapped),
    ("daemon.preferVlanInterfaces", Mapped),
    (
        "daemon.preferBGPInterfaces",
        Reported(
            "the kernel's route to each peer selects the interface of its session: check `ip route get PEER` on a node; set sourceAddress of the peer if another address must be used",
        ),
    ),
    ("daemon.enableVlanARPEnhancement", Mapped),
    ("daemon.vtepAddressCIDRs", Mapped),
    ("daemon.neededCommunityCNIPlugins", Special(plugins)),
    (
        "daemon.cniConfName",
        Reported(
            "it is hybridnet's own file, which step 4 of the page deletes: nothing to do; Trunkline's file is cni.confName",
        ),
    ),
    (
        "daemon.checkPodConnectivityFromHost",
        Reported(
            "Trunkline does not ping a new pod: its ADD ends when the addresses are advertised, or the VLAN's gateway answers: nothing to do",
        ),
    ),
    ("daemon.updateIPInstanceStatus", Mapped),
    (
        "daemon.resources",
        Reported(
            "the figures are those of another program: set agent.resources if the chart's defaults do not fit",
        ),
    ),
    (
        "daemon.felix.resources",
        Reported(
            "the agent itself enforces network policies: nothing to do; its figures are agent.resources",
        ),
    ),
    (
        "daemon.livenessProbe",
        Reported("the chart has a readiness probe of the agent, and no liveness probe: nothing to do"),
    ),
    (
        "typha",
        Reported(
            "agents watch network policies at the API server: nothing to do beside the page's step 5, which deletes Typha",
        ),
    ),
    ("defaultIPRetain", Mapped),
    ("defaultNetworkType", Mapped),
    (
        "multiCluster",
        Reported(
            "this feature is always on, and has no effect without RemoteClusters: give the user of each RemoteCluster the rights in docs/multi-cluster.md#credentials",
        ),
    ),
    ("defaultIPFamily", Mapped),
    ("vmIPRetain", Mapped),
];

/// Converts the text of the values.
pub(super) fn convert(text: &str) -> anyhow::Result<Converted> {
    let values = Values::parse(text)?;
    let known: Vec<&str> = VALUES.iter().map(|(path, _)| *path).collect();
    let unknown = values.unknown(&known);
    let top = unknown.iter().filter(|path| !path.contains('.')).count();
    ensure!(
        values.is_empty() || top < values.keys(),
        "no value of hybridnet's chart is here, but {}: pass the values of hybridnet's release (`helm list -A`)",
        unknown.join(", ")
    );
    let settings = settings(&values)?;
    let mut notes = Vec::new();
    for (path, fate) in VALUES {
        let Some(value) = values.get(path) else { continue };
        let why = match fate {
            Mapped => None,
            Reported(why) => is_set(value).then_some(*why),
            Special(why) => why(&values, value),
        };
        notes.extend(why.map(|why| format!("no counterpart: {path}: {why}")));
    }
    notes.extend(unknown.iter().map(|path| {
        format!(
            "unknown: {path}: hybridnet's chart v0.8.9 has no such value: look in the templates of your chart what it sets, and \
             in docs/install.md for a counterpart"
        )
    }));
    if values.labels("manager.nodeSelector")?.is_empty() {
        notes.push(
            "no counterpart: manager.nodeSelector: it is empty, and hybridnet's manager then runs on nodes with the label \
             node-role.kubernetes.io/master, which current clusters lack: the controller runs on every Linux node; set \
             controller.nodeSelector to restrict it"
                .to_owned(),
        );
    }
    Ok(Converted { values: format!("{HEAD}{}", yaml(&settings)), notes })
}

fn settings(values: &Values) -> anyhow::Result<Vec<Setting>> {
    let mut settings = Vec::new();
    let mut set = |path: &[&'static str], value: Value, comment: String| {
        settings.push(Setting { path: path.to_vec(), value, comment });
    };
    let origin = |path: &str| match values.get(path) {
        Some(_) => path.to_owned(),
        None => format!("{path}, hybridnet's default"),
    };

    let path = "images.hybridnet.imagePullPolicy";
    let policy = values.text(path)?.unwrap_or("IfNotPresent");
    ensure!(
        ["Always", "IfNotPresent", "Never"].contains(&policy),
        "{path}: {policy:?} is no pull policy: write Always, IfNotPresent or Never"
    );
    set(&["image", "pullPolicy"], json!(policy), origin(path));

    let path = "defaultIPFamily";
    let text = values.text(path)?.unwrap_or("IPv4");
    let family = match IpFamily::read(text) {
        Some(IpFamily::V4) => "IPv4",
        Some(IpFamily::V6) => "IPv6",
        Some(IpFamily::DualStack) => "DualStack",
        None => anyhow::bail!("{path}: {text:?} is no address family: write IPv4, IPv6 or DualStack"),
    };
    set(&[path], json!(family), origin(path));

    let path = "defaultNetworkType";
    let text = values.text(path)?.unwrap_or("Overlay");
    let network_type = read_network_type(text).with_context(|| {
        format!("{path}: {text:?} is no type of Networks: write Underlay, Overlay or GlobalBGP")
    })?;
    set(
        &[path],
        json!(network_type),
        format!("{}; the default of Trunkline's chart is Underlay", origin(path)),
    );

    let path = "vmIPRetain";
    let retains = values.switch(path)?.unwrap_or(false);
    set(&[path], json!(retains), origin(path));

    controller(values, &mut set, &origin)?;

    let path = "webhook.additionalPodMatchExpressions";
    let expressions = match values.get(path) {
        None => json!([{"key": "app", "operator": "NotIn", "values": ["kube-proxy"]}]),
        Some(list) if list.is_array() => list.clone(),
        Some(other) => anyhow::bail!("{path}: {other} is no list: write a list of expressions"),
    };
    set(&["webhook", "additionalPodMatchExpressions"], expressions, origin(path));

    let path = "daemon.enableFelixPolicy";
    let policies = values.switch(path)?.unwrap_or(true);
    let comment = if policies {
        origin(path)
    } else {
        format!(
            "{}; before you set true, look at the policies that come into force (docs/network-policies.md)",
            origin(path)
        )
    };
    set(&["networkPolicies", "enabled"], json!(policies), comment);

    for (path, field) in [
        ("daemon.preferVlanInterfaces", "vlanInterfaces"),
        ("daemon.preferVxlanInterfaces", "vxlanInterfaces"),
    ] {
        let names = values.list(path)?;
        let comment = if names.is_empty() {
            format!("{}: the link of the default route", origin(path))
        } else {
            origin(path)
        };
        set(&["agent", "config", field], json!(names), comment);
    }
    set(
        &["agent", "config", "vxlanPort"],
        json!(8472),
        "--vxlan-udp-port of hybridnet's daemon, which its chart leaves at the default".to_owned(),
    );
    let path = "daemon.vtepAddressCIDRs";
    let mut prefixes = Vec::new();
    for text in values.list(path)? {
        let prefix: IpNet = text
            .parse()
            .ok()
            .with_context(|| format!("{path}: {text:?} is no prefix: write prefixes such as 10.1.0.0/16"))?;
        prefixes.push(prefix.trunc().to_string());
    }
    if prefixes.is_empty() {
        prefixes.extend(["0.0.0.0/0", "::/0"].map(str::to_owned));
    }
    set(&["agent", "config", "vtepAddressCIDRs"], json!(prefixes), origin(path));
    let path = "daemon.enableVlanARPEnhancement";
    let sender = if values.switch(path)?.unwrap_or(true) { "pod" } else { "node" };
    set(&["agent", "config", "vlanARPSender"], json!(sender), origin(path));
    let path = "daemon.updateIPInstanceStatus";
    let updates = values.switch(path)?.unwrap_or(true);
    set(&["agent", "config", "updateIPInstanceStatus"], json!(updates), origin(path));
    Ok(settings)
}

/// The values of the controller, which is hybridnet's manager and webhook in one.
fn controller(
    values: &Values,
    set: &mut impl FnMut(&[&'static str], Value, String),
    origin: &impl Fn(&str) -> String,
) -> anyhow::Result<()> {
    let (manager, webhook) = ("manager.replicas", "webhook.replicas");
    let replicas = |path| Ok::<_, anyhow::Error>(values.number(path, 0, 1000)?.unwrap_or(3));
    let (managers, webhooks) = (replicas(manager)?, replicas(webhook)?);
    let most = managers.max(webhooks).max(1);
    let comment = format!("the larger of {} and {}", origin(manager), origin(webhook));
    set(&["controller", "replicas"], json!(most), comment);

    let path = "manager.metricsPort";
    // The chart leaves out 0, and the manager then has its default.
    let port = match values.number(path, 0, u16::MAX.into())? {
        None | Some(0) => 9899,
        Some(port) => port,
    };
    set(&["controller", "httpPort"], json!(port), origin(path));

    let path = "defaultIPRetain";
    let retain = values.switch(path)?.unwrap_or(true);
    let flags = ["controller", "extraArgs", ""];
    set(&flags, json!(format!("--default-ip-retain={retain}")), origin(path));
    let path = "daemon.enableFelixPolicy";
    if values.switch(path)?.unwrap_or(true) {
        let comment = format!(
            "{}; Felix on nodes with hybridnet needs it: delete it after the last node",
            origin(path)
        );
        set(&flags, json!("--patch-calico-pod-ips-annotation"), comment);
    }

    let path = "manager.nodeSelector";
    let labels = values.labels(path)?;
    if !labels.is_empty() {
        let labels: serde_json::Map<String, Value> =
            labels.into_iter().map(|(key, value)| (key, value.into())).collect();
        set(&["controller", "nodeSelector"], labels.into(), origin(path));
        let comment = "hybridnet's manager accepts each taint of this effect".to_owned();
        set(&["controller", "tolerations"], json!([{"operator": "Exists", "effect": "NoSchedule"}]), comment);
    }
    Ok(())
}

fn webhook_nodes(values: &Values, value: &Value) -> Option<&'static str> {
    let differs = Some(value) != values.get("manager.nodeSelector");
    (is_set(value) && differs).then_some(
        "the controller is manager and webhook in one, and has the manager's nodes: set controller.nodeSelector if these are wrong",
    )
}

fn plugins(_: &Values, value: &Value) -> Option<&'static str> {
    let others = value.as_str().is_some_and(|text| {
        text.split(',').any(|name| !["", "loopback", "bandwidth", "portmap"].contains(&name.trim()))
    });
    if others {
        Some(
            "Trunkline installs loopback and portmap where they are missing: install the others on each node, and name the ones that pods need in cni.conflist",
        )
    } else {
        is_set(value).then_some(
            "Trunkline installs loopback and portmap where they are missing, and limits of bandwidth are part of its plugin: nothing to do",
        )
    }
}

#[cfg(test)]
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    VALUES.iter().map(|(path, _)| *path)
}
