//! Addresses of a ServicePool of mode L2: one node of the VLAN answers ARP requests and Neighbour
//! Solicitations for each. The real kube-proxy runs on each node; a host in the VLAN and a host
//! behind its gateway connect.
//!
//! The agents have the rights of the chart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use trunkline_controller::ipam::instance_name;

use super::advertise::{Advertise, NAMESPACE, NODES, PORT, SERVICE_PORT, configure};
use super::{Context, Test, Verdict};
use crate::client;
use crate::connections::{Attempt, Connections, Outcome};
use crate::kube::Cluster;
use crate::kube::assets::Assets;
use crate::kube::controller::Replicas;
use crate::kube::daemon::Daemon;
use crate::kube::nodes::{self, Attached};
use crate::kube::pods::Pretended;
use crate::kube::proxy::{self, Mode};
use crate::kube::rights::{Accounts, WITHOUT_KEYS, agent_on};
use crate::packages;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, PATIENCE, lab};
use crate::tests::greeter::{Greeter, greeted};
use crate::tests::kube::{cluster, crds};
use crate::tests::passed;

pub(super) const TEST: Test = Test {
    name: "service-addresses/l2",
    about: "one node of a VLAN answers for each address of an L2 pool: clients inside and outside of the VLAN connect; \
            SIGKILL of the agent and an absent API server move nothing; a dead node is replaced; Local follows its endpoint",
    run,
};

const POOL: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServicePool
metadata: { name: vlan }
spec: { addresses: [10.12.0.200-10.12.0.215, 'fd00:12::c8-fd00:12::d7'], mode: L2, l2: { network: rack1 } }
";

/// Each family's address of a Service.
const WEB: [&str; 2] = ["10.12.0.200", "fd00:12::c8"];
const API: [&str; 2] = ["10.12.0.201", "fd00:12::c9"];
const NAMESPACE_OF_LEASES: &str = "kube-system";
const PAUSE: Duration = Duration::from_millis(10);
/// The time without an agent.
const DOWN: Duration = Duration::from_secs(1);
/// The least time for which the API server is absent, and for which nothing may move.
const AWAY: Duration = Duration::from_secs(12);

fn run(context: &Context) -> Result<Verdict> {
    let program = match Assets::proxy(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    let controller = context.controller()?;
    cluster(context, "service-l2", |cluster| {
        lab(context, "services-l2", |bed| {
            packages::need(["nftables"])?;
            crds::install(cluster)?;
            for file in ["networks", "subnets"] {
                let file = bed.fabric.file(&format!("{}/manifests/{file}.yaml", bed.fabric.topology.name));
                let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
                cluster.apply(&text)?;
            }
            cluster.apply(POOL)?;
            cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))?;
            let accounts = Accounts::create(cluster, &[WITHOUT_KEYS])?;
            let mut controllers = Replicas::standing_by_as(
                cluster,
                &accounts.controller,
                &controller,
                1,
                &["--webhook=false"],
            )?;
            controllers.wait_leader(cluster)?;
            for node in NODES {
                configure(bed, node, &json!({ "kind": "auto" }))?;
            }
            let _doorways = nodes::join(cluster, bed.fabric, |node| agent_on(cluster, WITHOUT_KEYS, node))?;
            let (namespace, account) = proxy::ACCOUNT;
            let kubeconfig = cluster.service_account(namespace, account)?;
            cluster.create(proxy::RIGHTS)?;
            let mut proxies: Vec<Daemon> = Vec::new();
            for node in NODES {
                let host = bed.host(node)?;
                proxies.push(proxy::start(cluster.folder(), host, &program, &kubeconfig, Mode::Nftables)?);
            }
            let vlan = Vlan { test: Advertise { cluster, bed } };
            let pods = NODES.iter().map(|node| vlan.test.attach(node)).collect::<Result<Vec<_>>>()?;
            let _servers =
                pods.iter().map(|pod| Greeter::listen(&pod.sandbox.ns, PORT)).collect::<Result<Vec<_>>>()?;
            vlan.service("web", WEB, "Cluster")?;
            vlan.service("api", API, "Local")?;
            for (node, proxy) in NODES.into_iter().zip(&mut proxies) {
                let services = ["web".to_owned(), "api".to_owned()];
                proxy::wait_rules(proxy, bed.host(node)?, Mode::Nftables, NAMESPACE, &services)?;
            }
            vlan.serves(&pods)?;
            vlan.local_follows(&pods)?;
            let killed = vlan.agent_is_killed()?;
            let before = vlan.wait_holder(WEB, |_| true)?;
            api_server_is_away(cluster, bed, before)?;
            let vlan = Vlan { test: Advertise { cluster, bed } };
            let after = vlan.wait_holder(WEB, |_| true)?;
            ensure!(after == before, "the addresses moved from {before:?} to {after:?}");
            let lost = vlan.node_dies(&pods)?;
            proxies.iter_mut().try_for_each(Daemon::still_running)?;
            passed(format!(
                "4 addresses, each with one holder; {killed} connections over a SIGKILL of the holder's agent, none lost; \
                 a dead node is replaced after {:.1} s",
                lost.as_secs_f64()
            ))
        })
    })
}

struct Vlan<'a> {
    test: Advertise<'a>,
}

fn targets(addresses: [&str; 2]) -> Result<Vec<SocketAddr>> {
    let target = |address: &str| Ok(SocketAddr::new(address.parse::<IpAddr>()?, SERVICE_PORT));
    addresses.into_iter().map(target).collect()
}

fn lost(attempts: &[Attempt]) -> Vec<&Attempt> {
    attempts.iter().filter(|attempt| attempt.outcome != Outcome::Served).collect()
}

/// The nodes whose kernel answers for an address.
fn answering(bed: &Bed<'_>, address: &str) -> Result<BTreeSet<&'static str>> {
    let mut found = BTreeSet::new();
    for node in NODES {
        let text = bed.host(node)?.sh("ip neigh show proxy; ip -6 neigh show proxy")?;
        if text.lines().any(|line| line.split_whitespace().next() == Some(address)) {
            found.insert(node);
        }
    }
    Ok(found)
}

/// Clients in the VLAN and behind its gateway.
fn clients(bed: &Bed<'_>) -> Result<Vec<Connections>> {
    let hosts = ["inside", "outside"].into_iter();
    hosts.map(|from| Connections::start(&bed.host(from)?.ns, &targets(WEB)?, 2, PAUSE)).collect()
}

/// The API server is away for longer than a node may be silent, and comes back: the same nodes
/// answer.
fn api_server_is_away(cluster: &mut Cluster, bed: &Bed<'_>, before: [&str; 2]) -> Result<()> {
    let clients = clients(bed)?;
    let stays = || {
        let began = Instant::now();
        while began.elapsed() < AWAY {
            for (address, holder) in WEB.into_iter().zip(before) {
                let answering = answering(bed, address)?;
                ensure!(answering == BTreeSet::from([holder]), "{address}: {answering:?} and not {holder}");
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    };
    cluster.stop_api()?;
    stays().context("the API server is away")?;
    cluster.start_api()?;
    stays().context("the API server is back")?;
    let attempts: Vec<Attempt> = clients.into_iter().flat_map(Connections::end).collect();
    ensure!(lost(&attempts).is_empty(), "lost: {:?}", lost(&attempts));
    Ok(())
}

impl Vlan<'_> {
    fn service(&self, name: &str, addresses: [&str; 2], policy: &str) -> Result<()> {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "annotations": { "trunkline.io/addresses": addresses.join(",") },
            },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "trunkline.io/load-balancer",
                "externalTrafficPolicy": policy, "ipFamilyPolicy": "RequireDualStack",
                "ports": [{ "port": SERVICE_PORT, "targetPort": PORT }],
            },
        });
        self.test.cluster.create(&service.to_string()).map(drop)
    }

    /// The node in the Lease of an address.
    fn holder(&self, address: &str) -> Result<String> {
        let name = format!("trunkline-l2-{}", instance_name(address.parse()?));
        let args = ["get", "lease", &name, "-n", NAMESPACE_OF_LEASES, "--ignore-not-found", "-o", "json"];
        let text = self.test.cluster.kubectl(args)?;
        if text.trim().is_empty() {
            return Ok(String::new());
        }
        let lease: Value = serde_json::from_str(&text)?;
        Ok(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until one node answers for an address of each family, as its Lease says.
    fn wait_holder(
        &self,
        addresses: [&str; 2],
        is_right: impl Fn(&str) -> bool,
    ) -> Result<[&'static str; 2]> {
        let mut found = Vec::new();
        for address in addresses {
            found.push(wait_for(&format!("one node for {address}"), PATIENCE, || {
                let (holder, answering) = (self.holder(address)?, answering(self.test.bed, address)?);
                let one = answering
                    .first()
                    .copied()
                    .filter(|one| answering.len() == 1 && **one == *holder && is_right(one));
                Ok(one.map_or_else(
                    || Seen::NotYet(format!("the Lease has {holder:?}, and {answering:?} answer")),
                    Seen::Yes,
                ))
            })?);
        }
        let [v4, v6] = found[..] else { bail!("two families") };
        Ok([v4, v6])
    }

    /// Clients in the VLAN and behind the gateway reach the Service; the neighbours have the MAC of
    /// the holder; no packet for an unused port loops.
    fn serves(&self, pods: &[Attached]) -> Result<()> {
        let [one, two, _] = pods else { bail!("three pods") };
        let bed = self.test.bed;
        ensure!(answering(self.test.bed, WEB[0])?.is_empty(), "a node answers without an endpoint");
        self.test.endpoints("web", &[(one, true), (two, true)])?;
        let holders = self.wait_holder(WEB, |_| true)?;
        for from in ["inside", "outside"] {
            for to in targets(WEB)? {
                wait_for(&format!("{to} from {from}"), PATIENCE, || {
                    Ok(match greeted(&bed.host(from)?.ns, to) {
                        Ok(_) => Seen::Yes(()),
                        Err(error) => Seen::NotYet(format!("{error:#}")),
                    })
                })?;
            }
        }
        for (address, holder) in WEB.into_iter().zip(holders) {
            let mac = bed.host(holder)?.sh("cat /sys/class/net/eth1/address")?;
            let entry = bed.host("inside")?.sh(&format!("ip neigh show {address}"))?;
            ensure!(entry.contains(mac.trim()), "{address} is {entry:?} and not {mac:?} of {holder}");
            let standby = NODES.into_iter().find(|node| *node != holder).context("another node")?;
            let text = bed.host(standby)?.sh("trunkline services shop/web")?;
            let words = format!("{holder} answers for the address");
            ensure!(text.contains(&words), "{standby} does not say {words:?}: {text}");
            let text =
                bed.host("outside")?.sh(&format!("ping -n -c 3 -i 0.2 -W 1 {address} || [ $? -lt 2 ]"))?;
            ensure!(!text.to_lowercase().contains("exceeded"), "a loop: {text}");
        }
        Ok(())
    }

    /// The holder of a Local address is the node with the endpoint, and the backend sees the client.
    fn local_follows(&self, pods: &[Attached]) -> Result<()> {
        for pod in pods {
            let node = pod.plan.node.as_str();
            self.test.endpoints("api", &[(pod, true)])?;
            self.wait_holder(API, |holder| holder == node)?;
            for (from, addresses) in
                [("inside", ["10.12.0.2", "fd00:12::2"]), ("outside", ["10.90.0.2", "fd00:90::2"])]
            {
                for (to, source) in targets(API)?.into_iter().zip(addresses) {
                    let source: IpAddr = source.parse()?;
                    wait_for(&format!("{to} on {node} from {from}"), PATIENCE, || {
                        Ok(match greeted(&self.test.bed.host(from)?.ns, to) {
                            Ok(seen) => Seen::when(seen == source, || format!("the backend sees {seen}")),
                            Err(error) => Seen::NotYet(format!("{error:#}")),
                        })
                    })?;
                }
            }
        }
        self.test.endpoints("api", &[])?;
        for address in API {
            wait_for(&format!("no node for {address}"), PATIENCE, || {
                let answering = answering(self.test.bed, address)?;
                Ok(Seen::when(answering.is_empty(), || format!("{answering:?}")))
            })?;
        }
        Ok(())
    }

    /// The agent of the holder is killed, and starts again. Returns the connections.
    fn agent_is_killed(&self) -> Result<usize> {
        let before = self.wait_holder(WEB, |_| true)?;
        let clients = clients(self.test.bed)?;
        for client in &clients {
            client.wait_count(50, PATIENCE)?;
        }
        for holder in BTreeSet::from(before) {
            let host = self.test.bed.host(holder)?;
            client::end_agent(host, Signal::KILL)?;
            std::thread::sleep(DOWN);
            client::start_agent(host)?;
            client::wait_answering(host)?;
        }
        for client in &clients {
            client.wait_more(400, PATIENCE)?;
        }
        let attempts: Vec<Attempt> = clients.into_iter().flat_map(Connections::end).collect();
        ensure!(lost(&attempts).is_empty(), "lost: {:?}", lost(&attempts));
        ensure!(self.wait_holder(WEB, |_| true)? == before, "the addresses moved from {before:?}");
        Ok(attempts.len())
    }

    /// Every process of the IPv4 holder stops, and its link carries no packet. Returns the time for
    /// which its address was not served.
    fn node_dies(&self, pods: &[Attached]) -> Result<Duration> {
        let [dead, _] = self.wait_holder(WEB, |_| true)?;
        let left: Vec<(&Attached, bool)> =
            pods.iter().filter(|pod| pod.plan.node != dead).map(|pod| (pod, true)).collect();
        self.test.endpoints("web", &left)?;
        let client = Connections::start(&self.test.bed.host("inside")?.ns, &targets(WEB)?[..1], 1, PAUSE)?;
        client.wait_count(50, PATIENCE)?;
        let node = self.test.bed.host(dead)?;
        node.sh("nft 'table netdev silence { chain in { type filter hook ingress device eth1 priority -500; policy drop; }; }'")?;
        self.test.bed.host("sw")?.sh(&format!("ip link set eth{} nomaster", &dead[4..]))?;
        let stopped = node.ns.pids();
        let signal = |signal, pid| match kill_process(pid, signal) {
            // It has ended since.
            Err(Errno::SRCH) => Ok(()),
            other => other.with_context(|| format!("{dead}: {signal:?} of {pid:?}")),
        };
        stopped.iter().try_for_each(|pid| signal(Signal::STOP, *pid))?;
        let died = Instant::now();
        wait_for(&format!("another node than {dead}"), PATIENCE, || {
            let holder = self.holder(WEB[0])?;
            Ok(Seen::when(holder != dead && !holder.is_empty(), || holder.clone()))
        })?;
        client.wait_more(100, PATIENCE)?;
        let attempts = client.end();
        let last = lost(&attempts).iter().map(|attempt| attempt.ended).max();
        let outage = last.map_or(Duration::ZERO, |last| last.saturating_duration_since(died));

        // The node is back: it takes nothing back.
        stopped.iter().try_for_each(|pid| signal(Signal::CONT, *pid))?;
        node.sh("nft delete table netdev silence")?;
        self.test.bed.host("sw")?.sh(&format!("ip link set eth{} master br0", &dead[4..]))?;
        let [holder, _] = self.wait_holder(WEB, |holder| holder != dead)?;
        let served: BTreeMap<&str, bool> = ["inside", "outside"]
            .into_iter()
            .map(|from| Ok((from, greeted(&self.test.bed.host(from)?.ns, targets(WEB)?[0]).is_ok())))
            .collect::<Result<_>>()?;
        ensure!(served.values().all(|served| *served), "{holder} holds {}: {served:?}", WEB[0]);
        Ok(outage)
    }
}
