//! The agent as a process: killed, restarted with its remaining state, and with bad input. Each
//! test has its own network namespace. There is no router. Unless stated otherwise, pods do not
//! wait for the only peer.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod host;
#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::fs;

use trunkline_agent::ipam::{Assigned, AttachmentKey, Phase, PodName, Record};
use trunkline_agent::plan::LinkParameters;
use trunkline_agent::pods;
use trunkline_api::attach::{Code, Command, Done};
use trunkline_api::control::{AgentStatus, Query};
use trunkline_api::resources::AttachmentKind;
use trunkline_datapath::attach::workers::DeviceWorkers;
use trunkline_datapath::naming::{default_mac, host_ifname};

use host::{Host, OPTIONAL, address, link_exists, pod_routes};
use namespace::{eventually, inside, ip, isolated, namespace, ping};

fn attaching(container_id: &str, address: &str) -> Record {
    Record {
        key: AttachmentKey { container_id: container_id.to_owned(), ifname: "eth0".to_owned() },
        phase: Phase::Attaching,
        conf_name: "pods".to_owned(),
        network: "rack1".to_owned(),
        addresses: vec![Assigned {
            subnet: "pods".to_owned(),
            address: address.parse().unwrap(),
            gateway: None,
        }],
        attachment: AttachmentKind::Veth,
        mac: default_mac(container_id, "eth0"),
        mtu: None,
        bandwidth: Default::default(),
        extra_prefixes: Default::default(),
        labels: Default::default(),
        netns: String::new(),
        pod: PodName::default(),
        attached_with: None,
        several: false,
        default_route: false,
        routes: Default::default(),
        others: Vec::new(),
        migration: Default::default(),
        target_node: None,
    }
}

#[test]
fn repeated_add_and_del_survive_a_kill() {
    isolated("repeated_add_and_del_survive_a_kill", |_| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let (one, two) = (namespace(), namespace());
        let first = host.add("c1", &one).unwrap();
        assert_eq!(host.add("c1", &one).unwrap(), first);
        let second = host.add("c2", &two).unwrap();
        assert!(inside(&one, || ping(&address(&second))), "pods reach each other");

        host.kill();
        assert!(inside(&one, || ping(&address(&second))), "pods reach each other without an agent too");
        host.start();
        assert_eq!(host.pods().len(), 2);
        assert_eq!(host.add("c1", &one).unwrap(), first, "the answer is the same after a restart");
        assert!(inside(&one, || ping(&address(&second))));

        host.del("c1").unwrap();
        host.del("c1").unwrap();
        host.del("never there").unwrap();
        drop(two);
        host.del("c2").unwrap();
        assert_eq!((host.pods().len(), pod_routes()), (0, 0));
        assert!(!link_exists("c1") && !link_exists("c2"));
    });
}

/// The test creates the states that a SIGKILL during ADD or DEL leaves, and starts the agent with
/// each.
#[test]
fn start_completes_or_cleans_up_after_a_kill() {
    isolated("start_completes_or_cleans_up_after_a_kill", |runtime| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let lives = namespace();
        let attachment = host.add("lives", &lives).unwrap();
        host.kill();

        // ADD was killed after it wrote the record and before it created the link.
        host.write(attaching("record-only", "10.14.0.100"));
        // ADD was killed after it created the link and before it installed the routes.
        let half = namespace();
        let record = attaching("no-routes", "10.14.0.101");
        let devices = DeviceWorkers::spawn(1).unwrap();
        let made =
            devices.attach(half.try_clone().unwrap(), pods::spec(&record, LinkParameters::default()), |_| ());
        runtime.block_on(made).unwrap();
        host.write(record);
        // ADD is complete, but the record does not show it yet.
        let record = host.records().into_iter().find(|record| record.key.container_id == "lives").unwrap();
        host.write(Record { phase: Phase::Attaching, ..record });
        host.start();
        assert_eq!(host.pods(), [("lives".to_owned(), "attached".to_owned())]);
        assert!(link_exists("lives") && !link_exists("no-routes"));
        assert!(inside(&half, || ip("-br link").lines().count() == 1), "the pod interface is gone too");
        assert_eq!(pod_routes(), 1);

        // DEL was killed after it removed the routes and before it deleted the link. The pod may
        // still run, so the agent restores the routes.
        host.kill();
        ip("route flush table 39999");
        host.start();
        assert_eq!((host.pods().len(), pod_routes()), (1, 1));
        assert_eq!(host.add("lives", &lives).unwrap(), attachment);

        // DEL was killed after it deleted the link and before it removed the record. A link that
        // another program deleted looks the same.
        host.kill();
        ip(&format!("link del {}", host_ifname("lives", "eth0")));
        host.start();
        assert_eq!(host.pods(), [("lives".to_owned(), "broken".to_owned())]);
        let next = host.add("next", &half).unwrap();
        assert_ne!(
            address(&next),
            address(&attachment),
            "an address that DEL did not release stays allocated"
        );
        // GC lists the valid attachments, and deletes the others.
        host.gc(&["next"]);
        assert_eq!(host.pods(), [("next".to_owned(), "attached".to_owned())]);
    });
}

#[test]
fn lost_store_stops_no_pod_and_duplicates_no_address() {
    isolated("lost_store_stops_no_pod_and_duplicates_no_address", |_| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let (one, two) = (namespace(), namespace());
        let first = host.add("c1", &one).unwrap();
        host.kill();

        fs::write(host.path("store.redb"), "not a store\n".repeat(1000)).unwrap();
        host.start();
        assert_eq!(host.pods(), [("c1".to_owned(), "unrecorded".to_owned())]);
        assert_eq!(pod_routes(), 1, "the routes of running pods stay");
        let refusal = host.add("c2", &two).unwrap_err();
        assert_eq!(refusal.code, Code::TryAgainLater);
        assert!(refusal.message.contains("store.redb is damaged"), "{refusal}");
        let status: AgentStatus = host.ask(Query::Agent).unwrap();
        assert!(!status.ready && status.store.fault.is_some());

        // The operator moves the file away, as the error recommends; no restart is necessary.
        fs::remove_file(host.path("store.redb")).unwrap();
        let second = host.add("c2", &two).unwrap();
        assert_ne!(address(&first), address(&second));
        assert!(inside(&two, || ping(&address(&first))), "the pod without a record is reachable");
        host.del("c1").unwrap();
        assert_eq!(host.pods(), [("c2".to_owned(), "attached".to_owned())]);
        assert!(!link_exists("c1"));
    });
}

#[test]
fn a_second_agent_is_refused() {
    isolated("a_second_agent_is_refused", |_| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let output = host.command().output().unwrap();
        assert!(!output.status.success());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let pid = host.agent.as_ref().unwrap().id();
        assert!(error.contains(&format!("another agent (process {pid}) runs with socket")), "{error}");
        host.add("c1", &namespace()).unwrap();
    });
}

#[test]
fn bad_edit_is_rejected_and_the_old_state_stays() {
    isolated("bad_edit_is_rejected_and_the_old_state_stays", |_| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let netns = namespace();
        host.add("c1", &netns).unwrap();
        let refused = |host: &Host| host.ask::<AgentStatus>(Query::Agent).unwrap().manifests.refused;
        for (peer, cidr, words) in [
            (
                ", holdTimeSeconds: 2",
                "10.14.0.0/24",
                "rack1.yaml: Network rack1: spec.config.bgpPeers[0].holdTimeSeconds",
            ),
            (
                ", unknown: 1",
                "10.14.0.0/24",
                "rack1.yaml: line 11: Network rack1: spec.config.bgpPeers[0].unknown",
            ),
            ("", "10.14.0.9/24", "rack1.yaml: Subnet pods: spec.range.cidr"),
            ("", "10.15.0.0/24", "rack1.yaml: Subnet pods: spec.range.cidr"),
        ] {
            host.manifest(peer, cidr);
            eventually("the change is refused", || refused(&host).iter().any(|fault| fault.contains(words)));
            assert_eq!((host.pods().len(), pod_routes()), (1, 1));
            host.add("c2", &namespace()).unwrap();
            host.del("c2").unwrap();
        }
        // A subnet with addresses of pods cannot be deleted, although the file itself is valid.
        let text = fs::read_to_string(host.path("manifests/rack1.yaml")).unwrap();
        let network = text.split("---\n").next().unwrap();
        fs::write(host.path("manifests/rack1.yaml"), network).unwrap();
        eventually("the change is refused", || {
            refused(&host).iter().any(|fault| fault.contains("delete them first"))
        });
        host.manifest(OPTIONAL, "10.14.0.0/24");
        eventually("the state is in force", || refused(&host).is_empty());
        assert_eq!(host.pods().len(), 1);
    });
}

#[test]
fn pod_without_advertisement_is_not_ready_and_is_removed() {
    isolated("pod_without_advertisement_is_not_ready_and_is_removed", |_| {
        let mut host = Host::new("");
        host.start();
        let failure = host.add("c1", &namespace()).unwrap_err();
        assert_eq!(failure.code, Code::TryAgainLater);
        assert!(failure.message.contains("no established peer received 10.14.0.1/32"), "{failure}");
        assert!(failure.details.contains("peer 10.255.0.1 is "), "{failure}");
        assert_eq!((host.pods().len(), pod_routes()), (0, 0));
        assert!(!link_exists("c1"));
        let failure = host.call::<Done>(Command::Status, None).unwrap_err();
        assert_eq!(failure.code, Code::NotAvailable);
        assert!(failure.details.contains("no BGP peer is established: 10.255.0.1"), "{failure}");
    });
}
