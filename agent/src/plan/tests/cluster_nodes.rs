//! NodeInfos from the API server to the plan: a node that writes its own NodeInfo harms no other
//! node, whatever its age, on a running agent and on one without a cache.

use std::sync::Arc;

use serde_json::json;
use trunkline_api::resources::NodeInfo;

use super::node_claims::{cluster, node};
use super::*;
use crate::plan::intent::Snapshot;
use crate::plan::node_claims::accept;
use crate::source::kube::assemble::{Assembled, Objects, assemble};

const OLD: &str = "2026-01-01T00:00:00Z";
const MIDDLE: &str = "2026-01-02T00:00:00Z";
const YOUNG: &str = "2026-01-03T00:00:00Z";

fn by_name<T>(all: Vec<T>, name: impl Fn(&T) -> &str) -> BTreeMap<String, T> {
    all.into_iter().map(|one| (name(&one).to_owned(), one)).collect()
}

fn objects(nodes: Vec<NodeInfo>) -> Objects {
    let (intent, _) = cluster();
    let mut subnets = intent.subnets;
    subnets.push(subnet("o4", "overlay", "10.200.0.0/16", json!({})));
    Objects {
        labels: intent.node.labels,
        networks: by_name(intent.networks, Network::name),
        subnets: by_name(subnets, Subnet::name),
        nodes: by_name(nodes, NodeInfo::name),
        overlay_pods: Some(Arc::default()),
        ..Objects::default()
    }
}

/// A snapshot, with the texts of all faults.
struct Looked {
    snapshot: Snapshot,
    faults: Vec<String>,
}

fn assembled(objects: &Objects, running: Option<&Snapshot>) -> Looked {
    let Assembled { snapshot, faults } = assemble(objects, running, "kube-system", &|_, _| false);
    Looked { snapshot, faults: faults.into_values().flatten().collect() }
}

/// The accepted addresses of each node, and the reasons for which others are ignored.
fn accepted(snapshot: &Snapshot) -> (BTreeMap<String, Vec<String>>, Vec<String>) {
    let (intent, host) = cluster();
    let intent = Intent {
        networks: snapshot.networks.clone(),
        subnets: snapshot.subnets.clone(),
        nodes: snapshot.nodes.clone(),
        overlay_pods: snapshot.overlay_pods.clone(),
        ..intent
    };
    let accepted = accept(&intent, &host);
    let texts = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect();
    let nodes = accepted.iter().map(|(name, vtep)| (name.clone(), texts(&vtep.local))).collect();
    (nodes, accepted.ignored.faults.iter().map(ToString::to_string).collect())
}

/// The result after `before` on a running agent. An agent without a cache has the same.
fn after(before: Vec<NodeInfo>, now: Vec<NodeInfo>) -> (BTreeMap<String, Vec<String>>, Vec<String>) {
    let running = assembled(&objects(before), None).snapshot;
    let now = objects(now);
    let found = assembled(&now, Some(&running));
    let fresh = assembled(&now, None);
    assert_eq!(found.faults, fresh.faults);
    assert_eq!(accepted(&found.snapshot), accepted(&fresh.snapshot), "without a cache");
    accepted(&found.snapshot)
}

#[test]
fn a_change_of_the_family_leaves_out_only_its_node() {
    let others = |number: u8| -> Vec<NodeInfo> {
        let all = (0..number)
            .map(|index| node(&format!("n{index}"), YOUNG, &format!("10.1.0.{}", 20 + index), "", &[]));
        all.collect()
    };
    let evil = |ip: &str| node("evil", OLD, ip, "", &[]);
    // The last node joins after the change.
    let before = others(39).into_iter().chain([evil("10.1.0.12")]).collect();
    let now = others(40).into_iter().chain([evil("2001:db8:1::66")]).collect();
    let (nodes, faults) = after(before, now);
    assert_eq!(nodes.len(), 40);
    assert!(!nodes.contains_key("evil") && nodes.contains_key("n39"));
    assert_eq!(
        faults,
        [
            "NodeInfo evil: spec.vtepInfo.ip: 2001:db8:1::66 cannot be reached from 10.1.0.11, this node's VTEP: \
          write addresses of one family for all nodes"
        ]
    );
}

#[test]
fn an_address_claimed_in_advance_belongs_to_the_joining_node() {
    let unused: Vec<String> = (20..60).map(|last| format!("10.1.0.{last}")).collect();
    let unused: Vec<&str> = unused.iter().map(String::as_str).collect();
    let evil = || node("evil", OLD, "10.1.0.12", "", &unused);
    let (nodes, _) = after(vec![evil()], vec![evil()]);
    assert_eq!(nodes["evil"].len(), 41, "nobody else has them");
    let (nodes, faults) = after(vec![evil()], vec![evil(), node("new", YOUNG, "10.1.0.33", "", &[])]);
    assert_eq!(nodes["new"], ["10.1.0.33"]);
    assert!(!nodes["evil"].contains(&"10.1.0.33".to_owned()) && nodes["evil"].len() == 40);
    assert!(faults[0].contains("10.1.0.33 belongs to node new"), "{faults:?}");
}

#[test]
fn age_decides_about_a_vtep_and_not_the_version_in_force() {
    let evil = || node("a-evil", MIDDLE, "10.1.0.50", "", &[]);
    let old = |ip: &str| node("old", OLD, ip, "", &[]);
    let young = |ip: &str| node("young", YOUNG, ip, "", &[]);
    let before = || vec![evil(), old("10.1.0.20"), young("10.1.0.30")];
    let (nodes, _) = after(before(), before());
    assert_eq!(nodes.len(), 3);
    let (nodes, faults) = after(before(), vec![evil(), old("10.1.0.50"), young("10.1.0.30")]);
    assert_eq!(nodes.keys().collect::<Vec<_>>(), ["old", "young"], "an older node changes its address");
    assert!(faults[0].starts_with("NodeInfo a-evil: spec.vtepInfo.ip: 10.1.0.50 belongs to node old"));
    let (nodes, _) = after(before(), vec![evil(), old("10.1.0.20"), young("10.1.0.50")]);
    assert_eq!(nodes.keys().collect::<Vec<_>>(), ["a-evil", "old"]);
    assert_eq!(nodes["a-evil"], ["10.1.0.50"]);
}

#[test]
fn a_nodeinfo_without_a_time_has_no_precedence() {
    let mut cached = node("a-evil", OLD, "10.1.0.50", "", &[]);
    cached.metadata.creation_timestamp = None;
    let (nodes, _) = after(Vec::new(), vec![cached, node("old", YOUNG, "10.1.0.50", "", &[])]);
    assert_eq!(nodes.keys().collect::<Vec<_>>(), ["old"]);
}

#[test]
fn a_bad_nodeinfo_keeps_its_version_in_force_and_harms_no_other() {
    let evil = |ip: &str| node("evil", OLD, ip, "", &[]);
    let other = || node("n2", YOUNG, "10.1.0.20", "", &[]);
    let running = assembled(&objects(vec![evil("10.1.0.12"), other()]), None).snapshot;
    let bad = objects(vec![evil("10.1.0.300"), other()]);
    let found = assembled(&bad, Some(&running));
    assert!(found.faults[0].starts_with("NodeInfo evil: spec.vtepInfo.ip: "), "{:?}", found.faults);
    assert_eq!(found.snapshot, running);
    let (nodes, _) = accepted(&assembled(&bad, None).snapshot);
    assert_eq!(nodes.keys().collect::<Vec<_>>(), ["n2"], "without a version in force");
}

#[test]
fn a_claim_blocks_no_new_subnet_of_the_overlay() {
    let evil = || node("evil", OLD, "10.1.0.12", "", &["10.210.0.5"]);
    let with_subnet = |nodes: Vec<NodeInfo>| {
        let mut now = objects(nodes);
        now.subnets.insert("o5".to_owned(), subnet("o5", "overlay", "10.210.0.0/16", json!({})));
        now
    };
    let served = |nodes: Vec<NodeInfo>| {
        let running = assembled(&objects(nodes.clone()), None).snapshot;
        let found = assembled(&with_subnet(nodes), Some(&running));
        let is_served = found.snapshot.subnets.iter().any(|subnet| subnet.name() == "o5");
        (is_served, accepted(&found.snapshot).1, found.faults)
    };
    let (is_served, ignored, faults) = served(vec![evil()]);
    assert!(is_served && faults.is_empty(), "{faults:?}");
    assert!(
        ignored[0].contains("10.210.0.5 is in 10.210.0.0/16 of Subnet o5, which is inside"),
        "{ignored:?}"
    );
    let inside = |name: &str, last: u8| node(name, OLD, &format!("10.210.0.{last}"), "", &[]);
    let (is_served, ignored, _) = served(vec![inside("n2", 2), node("n3", OLD, "10.1.0.20", "", &[])]);
    assert!(is_served && ignored[0].contains("10.210.0.2 is in 10.210.0.0/16"), "{ignored:?}");
    let (is_served, _, faults) = served(vec![inside("n2", 2), inside("n3", 3)]);
    assert!(!is_served, "the addresses of two nodes are no mistake of one node");
    assert!(
        faults[0].contains("contains the VTEPs of 2 nodes, such as 10.210.0.2 of NodeInfo n2"),
        "{faults:?}"
    );
}

#[test]
fn a_nodeinfo_has_one_fault_whatever_its_number_of_addresses() {
    let claims = |number: u32| -> Vec<String> { (0..number).map(|last| format!("fe80::{last:x}")).collect() };
    let evil = |claims: &[String]| {
        let claims: Vec<&str> = claims.iter().map(String::as_str).collect();
        node("evil", OLD, "10.1.0.12", "", &claims)
    };
    let found = assembled(&objects(vec![evil(&claims(64))]), None);
    assert_eq!(found.faults.len(), 1, "{:?}", found.faults);
    assert!(found.faults[0].contains("localIPs[0]: fe80::0 is not an address that other nodes can reach"));
    assert!(found.faults[0].ends_with("; and 63 more faults"), "{:?}", found.faults);
    let found = assembled(&objects(vec![evil(&claims(4_096))]), None);
    let words =
        "NodeInfo evil: spec.vtepInfo.localIPs: 4096 entries, at most 64 are allowed: list only addresses";
    assert!(found.faults.len() == 1 && found.faults[0].starts_with(words), "{:?}", found.faults);
}
