//! Pods with three interfaces in three Networks, listed in Trunkline's annotation or by Multus.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Test, Verdict, cluster, crds, webhook};
use crate::client;
use crate::cni::{self, Identity, Sandbox};
use crate::fabric::Fabric;
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::multus;
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::{Plan, Pretended};
use crate::kube::rights::{self, Accounts, WITHOUT_KEYS};
use crate::netns::Namespace;
use crate::pinger::{Flow, Pinger};
use crate::shell::{Seen, wait_for};
use crate::tests::{Context as Lab, passed};
use crate::topology::Image;

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/interfaces",
    about: "pods with three interfaces in three Networks, by annotation and by Multus: all addresses reach each \
            other, routes and DNS are as written, a kill loses no packet, DEL leaves nothing",
    run: interfaces,
}];

const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "mixed";

/// The annotation of pods with two further interfaces. The last one has the default route.
const LIST: &str = r#"[
  {"name": "net1", "network": "overlay", "ipFamily": "DualStack", "routes": ["10.80.0.0/12"]},
  {"name": "net2", "network": "global", "ipFamily": "IPv4", "defaultRoute": true}]"#;

/// Settings of the Subnets of `eth0` and `net1`.
const SETTINGS: [(&str, &str); 2] = [
    (
        "rack1-v4",
        r#"{"spec": {"config": {"dns": {"nameservers": ["10.61.0.53"], "search": ["rack1.example"]}}}}"#,
    ),
    ("overlay-v4", r#"{"spec": {"config": {"routes": ["192.0.2.0/24"]}}}"#),
];

/// The nodes of the pods.
const NODES: [&str; 2] = ["node1", "node3"];

fn interfaces(context: &Lab) -> Result<Verdict> {
    let (product, controller) = (context.product()?, context.controller()?);
    let multus = match multus::find(&context.place)? {
        Ok(folder) => folder,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    cluster(context, "interfaces", |cluster| {
        let fabric = Fabric::up(&context.place, "hybrid", &product)?;
        fabric.watched(|fabric| {
            for node in fabric.topology.with_image(Image::Node) {
                client::wait_answering(fabric.host(node)?)?;
            }
            run(cluster, fabric, &controller, &multus)
        })
    })
}

fn run(cluster: &Cluster, fabric: &Fabric, controller: &Path, multus: &Path) -> Result<Verdict> {
    crds::install(cluster)?;
    cluster.apply(multus::CRD)?;
    cluster.kubectl([
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "crd/network-attachment-definitions.k8s.cni.cncf.io",
    ])?;
    let accounts = Accounts::create(cluster, &[WITHOUT_KEYS])?;
    for file in ["networks", "subnets"] {
        let file = fabric.file(&format!("hybrid/manifests/{file}.yaml"));
        cluster.apply(&std::fs::read_to_string(&file).with_context(|| file.display().to_string())?)?;
    }
    for (subnet, patch) in SETTINGS {
        cluster.kubectl(["patch", "subnet", subnet, "--type=merge", "-p", patch])?;
    }
    cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))?;
    for (name, network) in [("tunnels", "overlay"), ("everywhere", "global")] {
        cluster.apply(&multus::definition(NAMESPACE, name, network).to_string())?;
    }
    let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, controller, 2, &[])?;
    replicas.wait_leader(cluster)?;
    let [one, other] = replicas.webhooks()[..] else { bail!("two replicas") };
    webhook::register(cluster, &mut replicas, one, other)?;
    let _doorways = nodes::join(cluster, fabric, |node| rights::agent_on(cluster, WITHOUT_KEYS, node))?;

    for node in fabric.topology.with_image(Image::Node) {
        wait_for(&format!("NodeInfo {node} to have an end of the tunnels"), PATIENCE, || {
            let args = ["get", "nodeinfo", node, "-o", "json", "--ignore-not-found"];
            let info: Value = serde_json::from_str(&cluster.kubectl(args)?).unwrap_or_default();
            let ip = info["spec"]["vtepInfo"]["ip"].as_str().is_some_and(|ip| !ip.is_empty());
            Ok(Seen::when(ip, || info["spec"].to_string()))
        })?;
    }
    refused(cluster)?;
    let lab = Interfaces { cluster, fabric, multus };
    let mut pods = Vec::new();
    for node in NODES {
        let list = [("networking.alibaba.com/interfaces", LIST)];
        let attached = nodes::attach(cluster, fabric, plan(&format!("listed-{node}"), node), &list)?;
        pods.push(lab.pod(attached, "net2")?);
    }
    for node in NODES {
        pods.push(lab.by_multus(node)?);
    }
    let plain = nodes::attach(cluster, fabric, plan("plain", "node2"), &[])?;
    lab.settings(&pods[0])?;
    let mut flows = Vec::new();
    for (n, from) in pods.iter().enumerate() {
        for to in pods.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, to)| to) {
            flows.extend(to.flows(&from.attached.plan.name, &from.attached.sandbox.ns));
        }
        flows.extend(from.flows("plain", &plain.sandbox.ns));
    }
    let count = flows.len();
    let mut pinger = Pinger::start(flows, Duration::from_millis(50))?;
    pinger.settle(PATIENCE)?;
    for node in NODES {
        let host = fabric.host(node)?;
        client::end_agent(host, Signal::KILL)?;
        client::start_agent(host)?;
        client::wait_answering(host)?;
    }
    pinger.wait_answers(20, PATIENCE)?;
    for flow in pinger.finish()? {
        ensure!(
            flow.lost.is_empty(),
            "{}: {} of {} lost after the kill",
            flow.name,
            flow.lost.len(),
            flow.sent
        );
    }
    lab.repeated(&pods[0])?;
    lab.delete(pods)?;
    replicas.still_running()?;
    passed(format!(
        "4 pods with three interfaces each: {count} flows between their addresses, 0 lost in two kills"
    ))
}

fn plan(name: &str, node: &str) -> Plan {
    Plan {
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        node: node.to_owned(),
        family: "DualStack",
        stateful_set: None,
    }
}

/// The webhook names the faults of a list.
fn refused(cluster: &Cluster) -> Result<()> {
    let pretended = Pretended::new(cluster.client());
    for (list, fault) in [
        (r#"[{"name": "net1", "network": "nowhere"}]"#, "interface net1: there is no Network nowhere"),
        (r#"[{"name": "eth0", "network": "overlay"}]"#, "`eth0` is in every pod"),
    ] {
        let annotation = [("networking.alibaba.com/interfaces", list)];
        let answer = cluster.wait(pretended.create_with(&plan("refused", "node1"), &annotation));
        let error = answer.err().with_context(|| format!("{list} was admitted"))?.to_string();
        ensure!(error.contains(fault), "{list}: {error}");
    }
    Ok(())
}

/// A pod, and the addresses of each interface by its IPInstances.
struct Pod {
    attached: Attached,
    addresses: BTreeMap<String, Vec<IpAddr>>,
}

impl Pod {
    /// Requests from a namespace to each address.
    fn flows(&self, from: &str, ns: &Namespace) -> Vec<Flow> {
        let name = &self.attached.plan.name;
        let flow = |ifname: &str, to: &IpAddr| Flow {
            name: format!("{from} to {ifname} of {name}, {to}"),
            from: ns.clone(),
            to: *to,
        };
        let all = self.addresses.iter().flat_map(|(ifname, all)| all.iter().map(move |to| (ifname, to)));
        all.map(|(ifname, to)| flow(ifname, to)).collect()
    }
}

struct Interfaces<'a> {
    cluster: &'a Cluster,
    fabric: &'a Fabric,
    multus: &'a Path,
}

impl Interfaces<'_> {
    /// Checks that each interface of the sandbox has the addresses of its IPInstances.
    fn pod(&self, attached: Attached, default: &str) -> Result<Pod> {
        let Attached { plan, sandbox, addresses: of_eth0 } = &attached;
        let selector = format!("networking.alibaba.com/pod-uid={}", sandbox.identity.uid);
        let text =
            self.cluster.kubectl(["get", "ipinstances", "-n", NAMESPACE, "-l", &selector, "-o", "json"])?;
        let mut addresses: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        let list: Value = serde_json::from_str(&text)?;
        for instance in list["items"].as_array().context("a list")? {
            let annotations = &instance["metadata"]["annotations"];
            let ifname = match annotations["trunkline.io/interface"].as_str() {
                None => "eth0".to_owned(),
                Some(text) => {
                    let settings: Value = serde_json::from_str(text)?;
                    settings["name"].as_str().context("a name")?.to_owned()
                }
            };
            let ip = instance["spec"]["address"]["ip"].as_str().unwrap_or_default();
            let ip = ip.split('/').next().unwrap_or_default();
            addresses.entry(ifname).or_default().push(ip.parse()?);
        }
        let name = &plan.name;
        ensure!(addresses.keys().eq(["eth0", "net1", "net2"]), "{name}: {addresses:?}");
        let mut eth0 = addresses["eth0"].clone();
        eth0.sort();
        ensure!(eth0 == *of_eth0, "{name}: ADD reported {of_eth0:?}, and the IPInstances {eth0:?}");
        let links: Value = serde_json::from_str(&sandbox.ns.ip(["-j", "address"])?)?;
        for (ifname, all) in &addresses {
            let link = links.as_array().into_iter().flatten().find(|link| link["ifname"] == ifname.as_str());
            let link = link.with_context(|| format!("{name} has no {ifname}"))?;
            for address in all {
                let text = address.to_string();
                let has = link["addr_info"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|it| it["local"] == text.as_str()));
                ensure!(has, "{ifname} of {name} has no {address}: {link}");
            }
        }
        let dev = self.device(&sandbox.ns, "203.0.113.1")?;
        ensure!(dev == default, "{name}: the default route is through {dev}");
        Ok(Pod { attached, addresses })
    }

    /// The interface through which a namespace sends to an address.
    fn device(&self, ns: &Namespace, to: &str) -> Result<String> {
        let route: Value = serde_json::from_str(&ns.ip(["-j", "route", "get", to])?)?;
        Ok(route[0]["dev"].as_str().unwrap_or_default().to_owned())
    }

    /// Routes and DNS of the first pod, which lists its interfaces.
    fn settings(&self, pod: &Pod) -> Result<()> {
        let ns = &pod.attached.sandbox.ns;
        for (to, ifname) in [("10.80.0.1", "net1"), ("192.0.2.1", "net1"), ("10.70.255.1", "net1")] {
            let dev = self.device(ns, to)?;
            ensure!(dev == ifname, "{to} is reached through {dev} and not {ifname}");
        }
        let answer = cni::add(self.fabric, &cni::trunkline(None), &pod.attached.sandbox)?;
        let dns = json!({"nameservers": ["10.61.0.53"], "search": ["rack1.example"]});
        ensure!(answer.result["dns"] == dns, "the result has {} for DNS", answer.result["dns"]);
        Ok(())
    }

    /// A pod whose interfaces Multus adds.
    fn by_multus(&self, node: &str) -> Result<Pod> {
        let plan = plan(&format!("multus-{node}"), node);
        let pretended = Pretended::new(self.cluster.client());
        let networks = [("k8s.v1.cni.cncf.io/networks", "tunnels,everywhere")];
        let uid = self.cluster.wait(pretended.create_with(&plan, &networks))?;
        let mut sandbox = Sandbox::create(self.fabric, node, &plan.name)?;
        sandbox.identity = Identity { namespace: NAMESPACE.to_owned(), name: plan.name.clone(), uid };
        let result = self.multus("ADD", &sandbox)?;
        let addresses = cni::addresses(&result)?;
        self.cluster.wait(pretended.report(NAMESPACE, &plan.name, &addresses))?;
        let pod = self.pod(Attached { plan, sandbox, addresses }, "eth0")?;
        let text =
            self.cluster.kubectl(["get", "pod", "-n", NAMESPACE, &pod.attached.plan.name, "-o", "json"])?;
        let object: Value = serde_json::from_str(&text)?;
        let status = object["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].as_str();
        let status: Vec<Value> = serde_json::from_str(status.context("Multus wrote no network-status")?)?;
        for (ifname, all) in &pod.addresses {
            let found = status.iter().find(|entry| entry["interface"] == ifname.as_str());
            let ips = found.map(|entry| entry["ips"].clone()).unwrap_or_default();
            let has = |address: &IpAddr| {
                ips.as_array().is_some_and(|ips| ips.iter().any(|ip| *ip == address.to_string()))
            };
            ensure!(all.iter().all(has), "Multus reports {ips} for {ifname}, and it has {all:?}");
        }
        Ok(pod)
    }

    /// Runs Multus with Trunkline as the cluster's default network.
    fn multus(&self, verb: &str, sandbox: &Sandbox) -> Result<Value> {
        let folder = self.cluster.folder().join("multus");
        let conf = json!({
            "cniVersion": "1.0.0", "name": "multus", "type": "multus",
            "kubeconfig": self.cluster.kubeconfig(), "cniDir": folder, "confDir": folder,
            "delegates": [cni::trunkline(None)],
        });
        let host = self.fabric.host(&sandbox.node)?;
        let mut path = vec![self.multus.to_owned()];
        path.extend(cni::plugin_path(host));
        let netns = sandbox.ns.path().display().to_string();
        let answer = host.within(|| cni::run_here(&path, verb, &conf, sandbox, &netns))?;
        answer.result().with_context(|| format!("{verb} of Multus for {}", sandbox.name))
    }

    /// Another ADD of a listed interface, as by Multus, has the same answer; one of an unlisted interface
    /// names the annotation. CHECK covers all interfaces.
    fn repeated(&self, pod: &Pod) -> Result<()> {
        let conf = cni::trunkline(None);
        let sandbox = &pod.attached.sandbox;
        let again = |ifname: &str| Sandbox { ifname: ifname.to_owned(), ..sandbox.clone() };
        let mut found = cni::add(self.fabric, &conf, &again("net1"))?.addresses;
        found.sort();
        let mut wanted = pod.addresses["net1"].clone();
        wanted.sort();
        ensure!(found == wanted, "ADD of net1 has {found:?} and not {wanted:?}");
        let error = cni::run(self.fabric, "ADD", &conf, &again("net9"))?.error()?;
        ensure!(error.text.contains("networking.alibaba.com/interfaces"), "{error}");
        let mut check = conf.clone();
        check["prevResult"] = cni::add(self.fabric, &conf, sandbox)?.result;
        cni::run(self.fabric, "CHECK", &check, sandbox)?.result()?;
        sandbox.ns.ip(["address", "flush", "dev", "net1", "scope", "global"])?;
        let error = cni::run(self.fabric, "CHECK", &check, sandbox)?.error()?;
        ensure!(error.text.contains("net1 has no "), "CHECK without the addresses of net1: {error}");
        Ok(())
    }

    /// DEL removes all interfaces, and the addresses are free when the pods are gone.
    fn delete(&self, pods: Vec<Pod>) -> Result<()> {
        let pretended = Pretended::new(self.cluster.client());
        for Pod { attached, .. } in pods {
            let Attached { plan, sandbox, .. } = attached;
            if plan.name.starts_with("multus") {
                self.multus("DEL", &sandbox)?;
            } else {
                cni::del(self.fabric, &cni::trunkline(None), &sandbox)?;
            }
            let links = sandbox.ns.ip(["-br", "link"])?;
            ensure!(!links.contains("net") && !links.contains("eth0"), "DEL left {links}");
            let host = self.fabric.host(&plan.node)?;
            let left: Vec<String> = client::pods(host)?
                .into_iter()
                .filter(|pod| pod.name == plan.name)
                .map(|pod| format!("{} {}", pod.name, pod.ifname))
                .collect();
            ensure!(left.is_empty(), "the agent has {left:?} after DEL");
            sandbox.ns.delete()?;
            self.cluster.wait(pretended.delete(NAMESPACE, &plan.name))?;
        }
        wait_for("the IPInstances of the deleted pods to be gone", PATIENCE, || {
            let left = self.cluster.kubectl(["get", "ipinstances", "-n", NAMESPACE, "-o", "name"])?;
            let left = left.lines().count();
            // The plain pod has two.
            Ok(Seen::when(left == 2, || format!("{left} IPInstances")))
        })
    }
}
