//! The choice of a Subnet, and retained addresses with a time, with webhook and two replicas: several
//! Subnets in order of preference, disabled Subnets, Subnets for some Namespaces, and a leader that is
//! killed while the clock of a retained address runs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::step::Deed::Goes;
use super::step::Step::{Apply, Change, Delete, Free, HasEvent, HasNone, Kept, Pod, Refused, Shows, Still};
use super::step::{Step, World, has, has_again, namespace_says, pod};
use super::{STATEFUL_SETS, crds};
use crate::kube::auditor::AddressAuditor;
use crate::kube::controller::Replicas;
use crate::shell::{Seen, wait_for};
use crate::tests::kube::{Verdict, cluster, webhook};
use crate::tests::{Context as Lab, passed};

const FAIL: &str = "IPAllocationFail";
const SET: &str = "StatefulSet";

/// The time for which Subnet `mine` retains addresses.
const RETENTION: Duration = Duration::from_secs(8);
/// The next leader must wait for the end of the killed one's Lease (3 s) before it releases an
/// address.
const LATE: Duration = Duration::from_secs(8);

const SUBNETS: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: first }
spec:
  network: rack1
  range: { version: '4', cidr: 10.11.0.0/24, start: 10.11.0.10, end: 10.11.0.10 }
  config: { private: true }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: second }
spec:
  network: rack1
  range: { version: '4', cidr: 10.12.0.0/24, start: 10.12.0.10, end: 10.12.0.11 }
  config: { private: true }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: team }
spec:
  network: rack1
  range: { version: '4', cidr: 10.13.0.0/24, start: 10.13.0.10, end: 10.13.0.19 }
  config: { private: true, allowedNamespaces: [team, other-team] }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: mine }
spec:
  network: rack1
  range: { version: '4', cidr: 10.14.0.0/24, start: 10.14.0.10, end: 10.14.0.19 }
  config: { private: true, allowedNamespaces: [team, shop] }
";

fn subnet(pod: super::step::Pod, names: &'static str) -> super::step::Pod {
    pod.with("specified-subnet", names)
}

fn set_mine(config: Value) -> Step {
    Change("Subnet", "mine", json!({"spec": {"config": config}}))
}

fn selection() -> Vec<Step> {
    vec![
        Apply(SUBNETS),
        Shows("Network", "rack1", json!({"status": {"statistics": {"total": 33}}})),
        // In order of preference, with both families.
        subnet(pod("a"), "first,second").made(),
        has("a", &["10.11.0.10"]),
        subnet(pod("b"), "first,second").made(),
        has("b", &["10.12.0.10"]),
        subnet(pod("c").with("ip-family", "DualStack"), "first,second/rack1-v6").made(),
        has("c", &["10.12.0.11", "fd00:1::10"]),
        subnet(pod("d"), "first,second").made(),
        HasEvent("d", FAIL, "subnet first has 1 of 1 in use, subnet second has 2 of 2 in use"),
        Pod("a", Goes),
        has("d", &["10.11.0.10"]),
        Refused(Box::new(subnet(pod("e"), "first,nowhere").made()), "there is no Subnet nowhere"),
        // A Subnet for other Namespaces: the webhook refuses the pod, and so does the controller for
        // a pod that the webhook has not seen.
        namespace_says("specified-subnet", json!("team,mine")),
        pod("f").made(),
        has("f", &["10.14.0.10"]),
        namespace_says("specified-subnet", Value::Null),
        Refused(
            Box::new(subnet(pod("g"), "team").made()),
            "Subnet team is only for Namespaces team, other-team, and not for shop",
        ),
        subnet(pod("g").unseen_by_webhook(), "team").made(),
        HasEvent(
            "g",
            FAIL,
            "subnet team is only for Namespaces team, other-team, and not for shop: name another one",
        ),
        HasNone("g"),
        // A disabled Subnet: its addresses stay, and retained ones go to their next pods.
        subnet(pod("db-0").of(SET), "mine").made(),
        has("db-0", &["10.14.0.11"]),
        set_mine(json!({"disabled": true})),
        Shows(
            "Network",
            "rack1",
            json!({"status": {"statistics": {"total": 33, "used": 5, "available": 20}}}),
        ),
        Refused(Box::new(subnet(pod("h"), "mine").made()), "Subnet mine is disabled"),
        Still("f", &["10.14.0.10"]),
        Pod("db-0", Goes),
        Kept("db-0", &["10.14.0.11"]),
        subnet(pod("db-0").of(SET).on("n2"), "mine").made(),
        has_again("db-0", &["10.14.0.11"]),
        Refused(
            Box::new(set_mine(json!({"retention": "soon"}))),
            "retention is neither a time nor `never`: write a time such as 30m, 72h or 30d",
        ),
        // A retention that begins while a pod has the address: the IPInstance outlives the workload.
        set_mine(json!({"disabled": false, "retention": format!("{}s", RETENTION.as_secs())})),
        Shows(
            "IPInstance",
            "10.14.0.11",
            json!({"metadata": {
                "ownerReferences": null,
                "annotations": {"trunkline.io/workload-api-version": "apps/v1"},
            }}),
        ),
        subnet(pod("db-1").of(SET).annotated("trunkline.io/ip-retention", "never"), "mine").made(),
        has("db-1", &["10.14.0.12"]),
        Pod("db-1", Goes),
        Kept("db-1", &["10.14.0.12"]),
        Pod("db-0", Goes),
        Kept("db-0", &["10.14.0.11"]),
    ]
}

/// After the retention of db-0's address.
fn released() -> Vec<Step> {
    vec![
        Kept("db-1", &["10.14.0.12"]),
        // The released address is an address like any other. The pod names it, because round robin
        // would allocate it last.
        subnet(pod("web-0").of(SET).with("ip-pool", "10.14.0.11"), "mine").made(),
        has("web-0", &["10.14.0.11"]),
        subnet(pod("db-0").of(SET), "mine").made(),
        has("db-0", &["10.14.0.13"]),
        subnet(pod("db-1").of(SET), "mine").made(),
        has_again("db-1", &["10.14.0.12"]),
        Pod("db-1", Goes),
        Kept("db-1", &["10.14.0.12"]),
        Delete("IPInstance", "10.14.0.12"),
        Free(&["10.14.0.12"]),
    ]
}

pub(super) fn run(context: &Lab) -> Result<Verdict> {
    let program = context.controller()?;
    cluster(context, "subnets", |cluster| {
        crds::install(cluster)?;
        let flags = ["--status-interval-milliseconds=50"];
        let mut replicas = Replicas::standing_by(cluster, &program, 2, &flags)?;
        let leader = replicas.wait_leader(cluster)?;
        let ports = replicas.webhooks();
        let [one, other] = *ports.as_slice() else { anyhow::bail!("two replicas") };
        webhook::register(cluster, &mut replicas, one, other)?;
        let auditor = AddressAuditor::open(cluster)?;
        let mut world = World::furnish(cluster, "shop", STATEFUL_SETS)?;
        take(&mut world, &selection())?;

        let end = retained_since(&world, "10.14.0.11")? + RETENTION;
        replicas.kill(cluster, leader)?;
        let gone = wait_for("the retained address to be released", RETENTION + LATE, || {
            let there = world.get("IPInstance", "10.14.0.11")?;
            Ok(match there {
                Some(_) => Seen::NotYet("it is retained".to_owned()),
                None => Seen::Yes(Timestamp::now()),
            })
        })?;
        ensure!(gone >= end, "released at {gone}, and its time ends at {end}");
        let late = gone.duration_since(end);
        take(&mut world, &released())?;
        let state = auditor.now();
        ensure!(state.twice.is_empty(), "addresses held twice: {:?}", state.twice);
        ensure!(state.faults.is_empty(), "{:?}", state.faults);
        drop(state);
        world.clear(true)?;
        passed(format!("a killed leader's clock ended {} ms late", late.as_millis()))
    })
}

fn take(world: &mut World<'_>, steps: &[Step]) -> Result<()> {
    for (index, step) in steps.iter().enumerate() {
        world.take(step).with_context(|| format!("step {} ({step})", index + 1))?;
    }
    Ok(())
}

fn retained_since(world: &World<'_>, address: &str) -> Result<Timestamp> {
    let instance = world.get("IPInstance", address)?.context("there is no IPInstance")?;
    let annotations = instance.metadata.annotations.unwrap_or_default();
    let since = annotations.get("trunkline.io/retained-since").context("it has no clock")?;
    Ok(since.parse()?)
}
