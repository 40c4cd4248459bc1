//! Rules that another program removes, an API server that does not answer, a policy with parts that
//! this version cannot read, and audit mode without the right to it.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::json;
use trunkline_api::control::{PoliciesView, PolicyState};

use super::audit::{self, Audited};
use super::table::{Cell, equal, wait_equal};
use super::tap::{Sender, Tap};
use super::traffic::{Port, Servers};
use super::world::{self, Channel, OUTSIDE, Plan, Running, SOON, World, of_family};
use super::{Context, Test, Verdict};
use crate::client;
use crate::cni;
use crate::demo::ms;
use crate::host::Host;
use crate::kube::agents;
use crate::shell::{Seen, cmd, run as run_command, wait_for};
use crate::tests::passed;

pub(super) const TEST: Test = Test {
    name: "policies/faults",
    about: "other programs cannot change the protected rules; without protection, removed rules are restored and counted; the API server stops and the agent dies: the rules hold; \
            an unreadable rule is named, and all others are in force; only a user of the Namespace object sets audit mode",
    run,
};

const NAMESPACE: &str = "faults";
const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: faults, labels: { team: faults } }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: closed, namespace: faults }
spec:
  podSelector: { matchLabels: { role: closed } }
  ingress: [{ from: [{ podSelector: { matchLabels: { role: friend } } }] }]
";

/// The first rule has a peer that only the experimental channel has.
const UNREADABLE: &str = "
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: { name: half-known }
spec:
  tier: Admin
  priority: 1
  subject: { namespaces: { matchLabels: { team: faults } } }
  egress:
    - { action: Accept, to: [{ nodes: { matchLabels: { any: label } } }] }
    - { action: Deny, to: [{ networks: [10.90.0.0/24, 'fd00:90::/64'] }] }
";

/// Changes by another program. The first one removes the rules of all programs.
const CHANGES: [&str; 4] = [
    "flush ruleset",
    "delete table inet trunkline-policy",
    "flush table inet trunkline-policy",
    "add chain inet trunkline-policy foreign",
];
/// A bound with a large margin: a busy machine starts the programs of the test slowly.
const RESTORED: Duration = Duration::from_secs(2);
/// Between two observations.
const POLL: Duration = Duration::from_millis(5);
const FAR: u16 = 1;

fn plan<'a>(name: &'a str, node: &'a str, labels: &'a [(&'a str, &'a str)]) -> Plan<'a> {
    Plan { namespace: NAMESPACE, name, node, labels }
}

fn run(context: &Context) -> Result<Verdict> {
    world::run(context, "policies-faults", Channel::Experimental, OBJECTS, |world| {
        let friend = world.attach(&plan("friend", "node2", &[("role", "friend")]))?;
        let far = world.attach(&plan("far", "node2", &[("role", "far")]))?;
        let closed = world.attach(&plan("closed", "node1", &[("role", "closed")]))?;
        let mut servers = vec![Servers::start(&closed.sandbox.ns)?];
        let outside = world.bed.host("outside")?.ns.clone();
        servers.push(Servers::start(&outside)?);
        let (open, refused) = (cells(&friend, &closed, true)?, cells(&far, &closed, false)?);
        let cells = [&open[..], &refused].concat();
        wait_equal(&cells, SOON)?;

        let audited = Audited {
            namespace: NAMESPACE,
            policy: "closed",
            pod: &closed,
            friend: &friend,
            open: &open,
            denied: &refused,
        };
        let audit = audit::test(world, &audited).context("audit mode")?;

        let protected = protection(world, &far, &closed).context("the protected table")?;
        protect(world, false)?;
        let restored = changes(world, &far, &closed)?;
        equal(&cells).context("after the changes by another program")?;
        protect(world, true)?;

        let without = outage(world, &cells, &far)?;

        world.cluster.apply(UNREADABLE)?;
        let mut denied = Vec::new();
        for to in OUTSIDE {
            denied.push(Cell {
                name: "friend → outside".to_owned(),
                from: friend.sandbox.ns.clone(),
                to: to.parse()?,
                port: Port::Tcp(80),
                open: false,
            });
        }
        wait_equal(&denied, SOON).context("the readable rule")?;
        equal(&cells).context("other policies")?;
        let node = world.bed.node()?;
        let view: PoliciesView = client::ask(node, &["policies"])?;
        let named = view.policies.iter().find(|policy| policy.name == "half-known");
        let faults = named.map(|policy| policy.faults.join("; ")).unwrap_or_default();
        ensure!(
            faults.contains("spec.egress[0].to[0]") && faults.contains("nodes"),
            "the fault is not named: {view:?}"
        );
        ensure!(metric(node, "trunkline_policy_faulty")? == 1, "the metric");
        passed(format!("{audit}; {protected}; {restored}; {without}; named: {faults}"))
    })
}

/// Connections of both families to a pod.
fn cells(from: &Running, to: &Running, open: bool) -> Result<Vec<Cell>> {
    let cell = |v4: bool| -> Result<Cell> {
        Ok(Cell {
            name: format!("{} → {}", from.name, to.name),
            from: from.sandbox.ns.clone(),
            to: of_family(&to.addresses, v4)?,
            port: Port::Tcp(80),
            open,
        })
    };
    Ok(vec![cell(true)?, cell(false)?])
}

fn metric(host: &Host, name: &str) -> Result<u64> {
    let metrics = client::metrics(host)?;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).with_context(|| format!("no metric {name}"))
}

/// The objects of the table without counters, sorted, or the error. The kernel lists sets in the
/// order of their creation. The calling thread is on the node.
fn rules() -> Vec<String> {
    let text = run_command(&mut cmd("nft", ["-s", "list", "table", "inet", "trunkline-policy"]))
        .unwrap_or_else(|error| error.to_string());
    let body = text.split_once('\n').map_or(&*text, |(_, body)| body.trim_end().trim_end_matches('}'));
    let mut objects: Vec<String> = body.split("\n\n").map(|object| object.trim().to_owned()).collect();
    objects.sort_unstable();
    objects
}

/// Sets `networkPolicies.protectTable` of node1 and restarts its agent.
fn protect(world: &World<'_>, protects: bool) -> Result<()> {
    let node = world.bed.node()?;
    let field = json!({ "protectTable": protects });
    agents::configure(world.bed.fabric, "node1", [("networkPolicies".to_owned(), field)])?;
    client::end_agent(node, Signal::TERM)?;
    client::start_agent(node)?;
    in_force(world)
}

fn in_force(world: &World<'_>) -> Result<()> {
    wait_for("the rules to be in force", SOON, || {
        let policies = client::status(world.bed.node()?)?.policies;
        let is_in_force = policies.as_ref().is_some_and(|it| it.state == PolicyState::InForce);
        Ok(Seen::when(is_in_force, || format!("{policies:?}")))
    })
}

/// No change by another program has an effect, if the kernel can protect the table.
fn protection(world: &World<'_>, far: &Running, closed: &Running) -> Result<String> {
    let node = world.bed.node()?;
    let before = node.within(|| Ok(rules()))?;
    if !before.iter().any(|object| object.starts_with("flags")) {
        return Ok("this kernel cannot protect the table".to_owned());
    }
    let tap = Tap::open(&closed.sandbox.ns)?;
    let _sender = Sender::start(&far.sandbox.ns, FAR, &closed.addresses)?;
    let repairs = metric(node, "trunkline_policy_repairs_total")?;
    for change in CHANGES {
        // A flush skips the table, and the kernel refuses the other changes.
        node.within(|| Ok(cmd("nft", change.split(' ')).output()?))?;
        let now = node.within(|| Ok(rules()))?;
        ensure!(now == before, "after {change:?} the rules are {now:?} instead of {before:?}");
    }
    let passed = tap.arrivals().len();
    ensure!(passed == 0, "{passed} datagrams passed");
    let now = metric(node, "trunkline_policy_repairs_total")?;
    ensure!(now == repairs, "{now} repairs of an unchanged table");
    Ok(format!("{} changes of a protected table had no effect", CHANGES.len()))
}

/// Each change by another program is reverted and counted. Returns the times.
fn changes(world: &World<'_>, far: &Running, closed: &Running) -> Result<String> {
    let node = world.bed.node()?;
    let before = node.within(|| Ok(rules()))?;
    ensure!(before.iter().any(|object| object.starts_with("chain")), "no rules: {before:?}");
    let to: Vec<IpAddr> = closed.addresses.clone();
    let tap = Tap::open(&closed.sandbox.ns)?;
    let _sender = Sender::start(&far.sandbox.ns, FAR, &to)?;
    let (mut words, mut repairs) = (Vec::new(), metric(node, "trunkline_policy_repairs_total")?);
    for change in CHANGES {
        drop(tap.arrivals());
        let took = node.within(|| {
            run_command(&mut cmd("nft", change.split(' ')))?;
            let began = Instant::now();
            loop {
                let now = rules();
                if now == before {
                    return Ok(began.elapsed());
                }
                if began.elapsed() > RESTORED {
                    bail!("after {change:?} the rules are {now:?} instead of {before:?}");
                }
                std::thread::sleep(POLL);
            }
        })?;
        wait_for("the repair in the metric", SOON, || {
            let now = metric(node, "trunkline_policy_repairs_total")?;
            Ok(Seen::when(now > repairs, || now.to_string()))
        })?;
        repairs = metric(node, "trunkline_policy_repairs_total")?;
        let passed = tap.arrivals().len();
        words.push(format!("{change:?} restored in {:.0} ms, {passed} datagrams passed", ms(took)));
    }
    Ok(words.join(", "))
}

/// The API server stops, and the agent is killed.
fn outage(world: &mut World<'_>, cells: &[Cell], far: &Running) -> Result<String> {
    let late = world.create(&plan("late", "node1", &[("role", "closed")]))?;
    for file in ["lib/cluster.json", "lib/policies.json"] {
        let cache = world.bed.node()?.folder.join(file);
        wait_for(&format!("the new pod in {file}"), SOON, || {
            let text = std::fs::read_to_string(&cache).unwrap_or_default();
            Ok(Seen::when(text.contains(&late.identity.uid), || format!("{} octets", text.len())))
        })?;
    }
    world.cluster.stop_api()?;
    let node = world.bed.node()?;
    wait_for("the outage to show", SOON, || {
        let cluster = client::status(node)?.cluster;
        let is_out = cluster.as_ref().is_some_and(|cluster| cluster.outage_seconds.is_some());
        Ok(Seen::when(is_out, || format!("{cluster:?}")))
    })?;
    equal(cells).context("without the API server")?;
    client::end_agent(node, Signal::KILL)?;
    equal(cells).context("without the API server and the agent")?;
    client::start_agent(node)?;
    equal(cells).context("after the start without the API server")?;
    let answer = cni::run(world.bed.fabric, "ADD", &cni::trunkline(None), &late)?;
    let (words, addresses) = match answer.outcome {
        Ok(result) => ("a new pod has its rules from the cache", Some(cni::addresses(&result)?)),
        Err(error) => {
            ensure!(error.text.contains("network policies are not known yet"), "{error}");
            ("a new pod is refused with the reason", None)
        }
    };
    let denied = |addresses: &[IpAddr]| -> Vec<Cell> {
        let cell = |to: &IpAddr| Cell {
            name: "far → late".to_owned(),
            from: far.sandbox.ns.clone(),
            to: *to,
            port: Port::Tcp(80),
            open: false,
        };
        addresses.iter().map(cell).collect()
    };
    let _servers = Servers::start(&late.ns)?;
    if let Some(addresses) = &addresses {
        equal(&denied(addresses)).context("the new pod without the API server")?;
    }
    world.cluster.start_api()?;
    in_force(world)?;
    let late = world.start(late)?;
    equal(&denied(&late.addresses)).context("the new pod")?;
    equal(cells).context("with the API server again")?;
    world.remove(late)?;
    Ok(format!("without the API server and after SIGKILL the rules held, {words}"))
}
