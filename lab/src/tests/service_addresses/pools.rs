//! Allocation of service addresses on a real API server: pools, requests, sharing, families, faults
//! with their texts, leaders that are stopped and killed, and admission. The controllers have the
//! rights of the Helm chart, and its policies are in force.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::super::kube::{cluster, crds, webhook};
use super::super::{Context, Test, Verdict, passed};
use super::world::{PATIENCE, World, both, ports, service};
use crate::kube::controller::Replicas;
use crate::kube::rights::Accounts;
use crate::kube::service_auditor::ServiceAuditor;
use crate::shell::{Seen, cmd, run, wait_for};

pub(super) const TESTS: &[Test] = &[Test {
    name: "service-addresses/pools",
    about: "Services get addresses: automatic, requested, shared, both families; each fault with its text; leaders \
            are stopped and killed; overlaps are refused",
    run: pools,
}];

pub(super) const ADDRESSES: &str = "trunkline.io/addresses";
pub(super) const POOL: &str = "trunkline.io/pool";
pub(super) const KEY: &str = "trunkline.io/sharing-key";

/// Nodes, Networks, Subnets and pools. The pool `usual` allocates for every Service.
const OBJECTS: &str = r#"
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {rack: '1'}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: shop}}}
---
{apiVersion: networking.alibaba.com/v1, kind: Network, metadata: {name: rack1},
 spec: {mode: BGP, netID: 65101, nodeSelector: {rack: '1'}, config: {
   bgpPeers: [{asn: 65001, address: 10.1.0.0}, {asn: 65002, prefix: 192.0.2.0/24}], extraPrefixes: [10.77.0.0/16]}}}
---
{apiVersion: networking.alibaba.com/v1, kind: Network, metadata: {name: vlan}, spec: {netID: 10, nodeSelector: {rack: '2'}}}
---
{apiVersion: networking.alibaba.com/v1, kind: Subnet, metadata: {name: rack1-v4},
 spec: {network: rack1, range: {version: '4', cidr: 10.10.0.0/24}}}
---
{apiVersion: networking.alibaba.com/v1, kind: Subnet, metadata: {name: vlan-v4},
 spec: {network: vlan, range: {version: '4', cidr: 10.20.0.0/24, start: 10.20.0.10, end: 10.20.0.99, gateway: 10.20.0.1}}}
---
{apiVersion: trunkline.io/v1alpha1, kind: ServicePool, metadata: {name: usual},
 spec: {addresses: [10.60.0.0/26, 'fd00:60::/120'], priority: 10}}
---
{apiVersion: trunkline.io/v1alpha1, kind: ServicePool, metadata: {name: later}, spec: {addresses: [10.61.0.0/28], priority: 20}}
---
{apiVersion: trunkline.io/v1alpha1, kind: ServicePool, metadata: {name: small},
 spec: {addresses: [10.62.0.1-10.62.0.2], autoAssign: false}}
---
{apiVersion: trunkline.io/v1alpha1, kind: ServicePool, metadata: {name: shop},
 spec: {addresses: [10.63.0.0/28], autoAssign: false, namespaceSelectors: [{matchLabels: {team: shop}}]}}
---
{apiVersion: trunkline.io/v1alpha1, kind: ServicePool, metadata: {name: gold},
 spec: {addresses: [10.64.0.0/28], autoAssign: false, serviceSelectors: [{matchLabels: {tier: gold}}]}}
"#;

fn pools(context: &Context) -> Result<Verdict> {
    cluster(context, "service-addresses", |cluster| {
        let program = context.controller()?;
        crds::install(cluster)?;
        let accounts = Accounts::create(cluster, &[])?;
        cluster.apply(OBJECTS)?;
        cluster.kubectl([
            "patch",
            "node",
            "n1",
            "--subresource=status",
            "--type=merge",
            "--patch",
            r#"{"status": {"addresses": [{"type": "InternalIP", "address": "172.16.0.1"}]}}"#,
        ])?;
        let auditor = ServiceAuditor::open(cluster)?;
        let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, &program, 2, &[])?;
        replicas.wait_leader(cluster)?;
        let world = World { cluster };
        let given = world.given()?;
        let kept = world.changes()?;
        let faults = world.faults()?;
        world.foreign()?;
        world.views(replicas.metrics().map(|(_, port)| port).collect())?;
        let killed = world.killed(&mut replicas)?;
        world.given_back()?;
        let [one, other] = replicas.webhooks()[..] else { bail!("two replicas") };
        webhook::register(cluster, &mut replicas, one, other)?;
        let refused = world.admission()?;
        world.others_claims()?;
        replicas.still_running()?;
        drop(replicas);
        // With the flag, Services without a class are Trunkline's.
        let flags = &["--webhook=false", "--default-load-balancer-class"];
        let mut replicas = Replicas::standing_by_as(cluster, &accounts.controller, &program, 1, flags)?;
        replicas.wait_leader(cluster)?;
        world.wait("classless", "10.60.0.")?;
        replicas.still_running()?;
        let violations = auditor.now().violations();
        ensure!(violations.is_empty(), "{violations:#?}");
        accounts.check(cluster, &[], &[])?;
        passed(format!(
            "{given} Services with addresses, {kept} changes, {faults} faults with their texts, {killed} Services over \
             killed leaders, {refused} objects refused; no address twice or without a claim; no request refused by the API server"
        ))
    })
}

impl World<'_> {
    /// Automatic, requested, of a pool, shared, and of both families.
    fn given(&self) -> Result<usize> {
        let none = || json!({});
        let gold = |mut service: Value| {
            service["metadata"]["labels"] = json!({"tier": "gold"});
            service
        };
        let services = [
            ("auto", service("auto", none(), none()), "10.60.0."),
            ("named", service("named", json!({ADDRESSES: "10.61.0.5"}), none()), "10.61.0.5"),
            ("field", service("field", none(), json!({"loadBalancerIP": "10.61.0.6"})), "10.61.0.6"),
            (
                "metallb",
                service("metallb", json!({"metallb.io/loadBalancerIPs": "10.61.0.7"}), none()),
                "10.61.0.7",
            ),
            ("in-pool", service("in-pool", json!({POOL: "later"}), none()), "10.61.0."),
            ("shop/mine", service("shop/mine", json!({POOL: "shop"}), none()), "10.63.0."),
            ("golden", gold(service("golden", json!({POOL: "gold"}), none())), "10.64.0."),
            ("dual", service("dual", none(), both()), "10.60.0."),
            ("six", service("six", none(), json!({"ipFamilies": ["IPv6"]})), "fd00:60::"),
            (
                "prefers",
                service(
                    "prefers",
                    json!({POOL: "later"}),
                    json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"}),
                ),
                "10.61.0.",
            ),
            ("share-1", service("share-1", json!({KEY: "k", ADDRESSES: "10.60.0.60"}), none()), "10.60.0.60"),
            (
                "share-2",
                service("share-2", json!({KEY: "k", ADDRESSES: "10.60.0.60"}), json!({"ports": ports(81)})),
                "10.60.0.60",
            ),
            (
                "share-3",
                service("share-3", json!({"metallb.io/allow-shared-ip": "k"}), json!({"ports": ports(82)})),
                "10.60.0.60",
            ),
        ];
        // The Service that others share with comes first.
        for part in [&services[..11], &services[11..12], &services[12..]] {
            if part.len() == 1 {
                // The age of a Service has a resolution of a second, and a later case compares ages.
                std::thread::sleep(Duration::from_millis(1100));
            }
            self.apply(&part.iter().map(|(_, service, _)| service.clone()).collect::<Vec<_>>())?;
            for (name, _, start) in part {
                self.wait(name, start)?;
            }
        }
        let dual = self.addresses("dual")?;
        ensure!(dual.split(',').count() == 2 && dual.contains(",fd00:60::"), "dual stack: {dual}");
        let prefers = self.condition("prefers")?;
        ensure!(prefers["reason"] == "FamilyMissing", "a part of the families: {prefers}");
        let claim = self.claim("10.60.0.60")?.context("a claim")?;
        let shared: Vec<&str> = claim["spec"]["services"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|service| service["name"].as_str())
            .collect();
        ensure!(shared == ["share-1", "share-2", "share-3"], "{claim}");
        ensure!(claim["spec"]["pool"] == "usual" && claim["spec"]["sharingKey"] == "k", "{claim}");
        let events = self.events("named")?;
        ensure!(events == ["AddressAllocated 10.61.0.5 of ServicePool later"], "{events:?}");
        Ok(services.len())
    }

    /// Changes of Services that have addresses.
    fn changes(&self) -> Result<usize> {
        let none = || json!({});
        // Another address, another pool, one family more, one less.
        for (name, annotations, spec, start) in [
            ("named", json!({ADDRESSES: "10.61.0.9"}), none(), "10.61.0.9"),
            ("in-pool", json!({POOL: "usual"}), none(), "10.60.0."),
            ("auto", none(), both(), "10.60.0."),
            ("dual", none(), none(), "10.60.0."),
        ] {
            let before = self.addresses(name)?;
            self.apply(&[service(name, annotations, spec)])?;
            let after = self.wait(name, start)?;
            wait_for(&format!("{name} to leave {before}"), PATIENCE, || {
                let after = self.addresses(name)?;
                let left = before.split(',').filter(|address| !after.split(',').any(|one| one == *address));
                let mut claims = Vec::new();
                for address in left {
                    claims.extend(self.claim(address)?);
                }
                let families = after.split(',').count() == if name == "auto" { 2 } else { 1 };
                Ok(Seen::when(claims.is_empty() && families, || format!("{after}: {claims:?}")))
            })?;
            if name == "auto" || name == "dual" {
                let first = |text: &str| text.split(',').next().unwrap_or_default().to_owned();
                ensure!(first(&before) == first(&after), "{name}: {before} became {after}");
            }
        }
        // An impossible request never costs the address.
        let before = self.addresses("named")?;
        self.apply(&[service("named", json!({ADDRESSES: "10.99.0.1"}), none())])?;
        self.wait_fault(
            "named",
            "NotInPool",
            "10.99.0.1 cannot be given to default/named: no ServicePool has it",
        )?;
        ensure!(self.addresses("named")? == before, "the address is lost: {before}");
        // Two annotations of one meaning.
        self.apply(&[service(
            "field",
            json!({ADDRESSES: "10.61.0.6", "metallb.io/loadBalancerIPs": "10.61.0.8"}),
            none(),
        )])?;
        wait_for("an event about the annotations", PATIENCE, || {
            let events = self.events("field")?;
            let text = "differ, and trunkline.io/addresses counts: remove one of the two";
            let is = events
                .iter()
                .any(|event| event.starts_with("ConflictingAnnotations") && event.contains(text));
            Ok(Seen::when(is, || format!("{events:?}")))
        })?;
        ensure!(self.addresses("field")? == "10.61.0.6", "ours counts");
        Ok(6)
    }

    /// Services of another class, or without a class, are left alone.
    fn foreign(&self) -> Result<()> {
        let mut classless = service("classless", json!({}), json!({}));
        if let Some(spec) = classless["spec"].as_object_mut() {
            spec.remove("loadBalancerClass");
        }
        let other = service("other", json!({}), json!({"loadBalancerClass": "example.com/other"}));
        let last = service("last", json!({}), json!({}));
        self.apply(&[classless, other, last])?;
        // The one that comes last is served, so the others were seen before.
        self.wait("last", "10.60.0.")?;
        for name in ["classless", "other"] {
            let service = self.get(name)?;
            ensure!(service["status"] == json!({"loadBalancer": {}}), "{name}: {}", service["status"]);
            let events = self.events(name)?;
            ensure!(events.is_empty(), "{name}: {events:?}");
        }
        Ok(())
    }

    /// The status of pools, and the metrics of the leader.
    fn views(&self, metrics: Vec<u16>) -> Result<()> {
        let pool = |name: &str| -> Result<Value> {
            let text = self.cluster.kubectl(["get", "servicepool", name, "-o", "json"])?;
            Ok(serde_json::from_str::<Value>(&text)?["status"].clone())
        };
        let claims = |start: &str| -> Result<usize> {
            let text = self.cluster.kubectl([
                "get",
                "serviceaddresses",
                "-o",
                "jsonpath={.items[*].spec.address}",
            ])?;
            Ok(text.split_whitespace().filter(|address| address.starts_with(start)).count())
        };
        wait_for("the status of pool later", PATIENCE, || {
            let status = pool("later")?;
            let used = claims("10.61.")?;
            let wanted = json!({"total": 16, "used": used, "available": 16 - used});
            let is = status["ipv4"] == wanted && status["total"] == 16 && status["allocated"] == used;
            Ok(Seen::when(is, || format!("{status}, {used} claims")))
        })?;
        wait_for("the conditions of a pool", PATIENCE, || {
            let conditions = pool("small")?["conditions"].clone();
            let is = |kind: &str, status: &str| {
                conditions
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|one| one["type"] == kind && one["status"] == status)
            };
            Ok(Seen::when(is("Ready", "True") && is("Full", "False"), || conditions.to_string()))
        })?;
        wait_for("the metrics", PATIENCE, || {
            let mut all = String::new();
            for port in &metrics {
                let url = format!("http://127.0.0.1:{port}/metrics");
                all += &run(&mut cmd("curl", ["--silent", "--show-error", &url]))?;
            }
            let lines = [
                "service_addresses{pool=\"later\",family=\"ipv4\",state=\"total\"} 16",
                "service_conflicts 0",
            ];
            let is = lines.iter().all(|line| all.contains(line)) && all.contains("reason=\"PortTaken\"");
            Ok(Seen::when(is, || {
                all.lines().filter(|line| line.contains("_service")).collect::<Vec<_>>().join("\n")
            }))
        })
    }
}
