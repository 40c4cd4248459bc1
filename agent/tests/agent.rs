//! The agent as a process: killed, started again over what it left, given bad input. Each test has a network
//! namespace of its own; there is no router, so the only peer is one that pods need not wait for, unless said.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod namespace;

use std::fs;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::de::DeserializeOwned;
use trunkline_agent::attach::device::{DeviceWorkers, default_mac, host_ifname};
use trunkline_agent::ipam::store::{Batch, Store};
use trunkline_agent::ipam::{Assigned, AttachmentKey, Phase, PodName, Record};
use trunkline_agent::pods;
use trunkline_api::attach::{
    Attach, Attachment, Code, Command, Detach, Done, Failure, Gc, Interface, Reply, Request, Wanted,
    decode_reply, encode,
};
use trunkline_api::control::{AgentStatus, PodStatus, Query};

use namespace::{eventually, inside, ip, isolated, namespace, ping};

/// A host with its agent's files, and the agent while it runs.
struct Host {
    folder: tempfile::TempDir,
    agent: Option<Child>,
}

impl Host {
    /// `peer` is what the one peer says besides its AS and address.
    fn new(peer: &str) -> Host {
        let host = Host { folder: tempfile::tempdir().unwrap(), agent: None };
        fs::create_dir(host.path("manifests")).unwrap();
        host.manifest(peer, "10.14.0.0/24");
        let config = format!(
            "nodeName: n1\nmanifests: {0}/manifests\nsocket: {0}/agent.sock\nstore: {0}/store.redb\nrouterID: 10.255.0.2\n\
             readiness: {{timeoutSeconds: 1}}\n",
            host.folder.path().display()
        );
        fs::write(host.path("agent.yaml"), config).unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn manifest(&self, peer: &str, cidr: &str) {
        let text = format!(
            "apiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata: {{name: rack1}}\nspec:\n  netID: 65001\n  \
             type: Underlay\n  mode: BGP\n  nodeSelector: {{kubernetes.io/hostname: n1}}\n  config:\n    bgpPeers:\n    \
             - {{asn: 65000, address: 10.255.0.1{peer}}}\n---\n\
             apiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {{name: pods}}\n\
             spec: {{network: rack1, range: {{version: \"4\", cidr: {cidr}}}}}\n"
        );
        // As an editor or kubectl would: never half a file.
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path("manifests/rack1.yaml")).unwrap();
    }

    fn command(&self) -> Process {
        let mut command = Process::new(env!("CARGO_BIN_EXE_trunkline"));
        command.arg("agent").arg("--config").arg(self.path("agent.yaml"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn start(&mut self) {
        let mut command = self.command();
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        self.agent = Some(command.stderr(log).spawn().unwrap());
        eventually("the agent has a plan", || {
            self.ask::<AgentStatus>(Query::Agent).is_ok_and(|status| status.manifests.applied)
        });
    }

    fn kill(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    fn call<T: DeserializeOwned>(&self, command: Command, netns: Option<&OwnedFd>) -> Result<T, Failure> {
        let unreachable = |error: std::io::Error| Failure::new(Code::Io, error.to_string());
        let mut stream = UnixStream::connect(self.path("agent.sock")).map_err(unreachable)?;
        let line = encode(&Request::new(command)).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = netns.iter().map(|netns| netns.as_fd()).collect();
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        let sent = sendmsg(stream.as_fd(), &[IoSlice::new(&line)], &mut control, SendFlags::empty()).unwrap();
        stream.write_all(&line[sent..]).map_err(unreachable)?;
        let mut answer = Vec::new();
        BufReader::new(stream).read_until(b'\n', &mut answer).map_err(unreachable)?;
        Result::from(decode_reply::<T>(&answer).map_err(Failure::from)? as Reply<T>)
    }

    fn ask<T: DeserializeOwned>(&self, query: Query) -> Result<T, Failure> {
        self.call(Command::Query(query), None)
    }

    fn add(&self, container_id: &str, netns: &OwnedFd) -> Result<Attachment, Failure> {
        let attach = Attach {
            interface: interface(container_id),
            conf_name: "pods".to_owned(),
            netns: String::new(),
            pod: None,
            wanted: Wanted::default(),
            deadline_ms: 20_000,
        };
        self.call(Command::Attach(attach), Some(netns))
    }

    fn del(&self, container_id: &str) -> Result<Done, Failure> {
        let detach = Detach { interface: interface(container_id), conf_name: "pods".to_owned() };
        self.call(Command::Detach(detach), None)
    }

    /// Container and state of each pod.
    fn pods(&self) -> Vec<(String, String)> {
        let pods: Vec<PodStatus> = self.ask(Query::Pods).unwrap();
        pods.into_iter().map(|pod| (pod.container_id, pod.state)).collect()
    }

    fn records(&self) -> Vec<Record> {
        Store::open(&self.path("store.redb")).1.unwrap().records.into_values().collect()
    }

    fn write(&self, record: Record) {
        let (mut store, contents) = Store::open(&self.path("store.redb"));
        contents.unwrap();
        let records = vec![(record.key.clone(), Some(record))];
        store.commit(&Batch { records, ..Batch::default() }).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        if std::thread::panicking() {
            println!("{}", fs::read_to_string(self.path("log")).unwrap_or_default());
        }
    }
}

const OPTIONAL: &str = ", allowNotEstablished: true";

fn interface(container_id: &str) -> Interface {
    Interface { container_id: container_id.to_owned(), ifname: "eth0".to_owned() }
}

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
        mac: default_mac(container_id, "eth0"),
        mtu: None,
        pod: PodName::default(),
    }
}

fn address(attachment: &Attachment) -> String {
    attachment.addresses[0].address.addr().to_string()
}

fn link_exists(container_id: &str) -> bool {
    ip("-br link").lines().any(|line| line.starts_with(&host_ifname(container_id, "eth0")))
}

fn pod_routes() -> usize {
    ip("route show table 39999").lines().count()
}

#[test]
fn add_and_del_come_twice_and_a_kill_between_them_changes_nothing() {
    isolated("add_and_del_come_twice_and_a_kill_between_them_changes_nothing", |_| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let (one, two) = (namespace(), namespace());
        let first = host.add("c1", &one).unwrap();
        assert_eq!(host.add("c1", &one).unwrap(), first);
        let second = host.add("c2", &two).unwrap();
        assert!(inside(&one, || ping(&address(&second))), "pods reach each other");

        host.kill();
        assert!(inside(&one, || ping(&address(&second))), "without an agent too");
        host.start();
        assert_eq!(host.pods().len(), 2);
        assert_eq!(host.add("c1", &one).unwrap(), first, "the answer survives the agent");
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

/// The states that a SIGKILL in the middle of ADD or DEL leaves are made by hand, and the agent is started over each.
#[test]
fn what_a_kill_leaves_is_taken_up_or_cleaned_by_the_next_start() {
    isolated("what_a_kill_leaves_is_taken_up_or_cleaned_by_the_next_start", |runtime| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let lives = namespace();
        let attachment = host.add("lives", &lives).unwrap();
        host.kill();

        // ADD, after the record and before the link.
        host.write(attaching("record-only", "10.14.0.100"));
        // ADD, after the link and before its routes.
        let half = namespace();
        let record = attaching("no-routes", "10.14.0.101");
        let devices = DeviceWorkers::spawn(1).unwrap();
        let made = devices.attach(half.try_clone().unwrap(), pods::spec(&record, None));
        runtime.block_on(made).unwrap();
        host.write(record);
        // ADD, complete, and before the record says so.
        let record = host.records().into_iter().find(|record| record.key.container_id == "lives").unwrap();
        host.write(Record { phase: Phase::Attaching, ..record });
        host.start();
        assert_eq!(host.pods(), [("lives".to_owned(), "attached".to_owned())]);
        assert!(link_exists("lives") && !link_exists("no-routes"));
        assert!(inside(&half, || ip("-br link").lines().count() == 1), "the pod's end is gone too");
        assert_eq!(pod_routes(), 1);

        // DEL, after the routes and before the link: with the link there the pod may live, so the routes come back.
        host.kill();
        ip("route flush table 39999");
        host.start();
        assert_eq!((host.pods().len(), pod_routes()), (1, 1));
        assert_eq!(host.add("lives", &lives).unwrap(), attachment);

        // DEL, after the link and before the record. (Or somebody deleted the link.)
        host.kill();
        ip(&format!("link del {}", host_ifname("lives", "eth0")));
        host.start();
        assert_eq!(host.pods(), [("lives".to_owned(), "broken".to_owned())]);
        let next = host.add("next", &half).unwrap();
        assert_ne!(address(&next), address(&attachment), "an address that DEL did not give back stays taken");
        // GC names what is valid, and cleans the rest.
        let gc = Gc { conf_name: "pods".to_owned(), valid: vec![interface("next")] };
        host.call::<Done>(Command::Gc(gc), None).unwrap();
        assert_eq!(host.pods(), [("next".to_owned(), "attached".to_owned())]);
    });
}

#[test]
fn a_lost_or_damaged_store_stops_no_pod_and_gives_no_address_twice() {
    isolated("a_lost_or_damaged_store_stops_no_pod_and_gives_no_address_twice", |_| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let (one, two) = (namespace(), namespace());
        let first = host.add("c1", &one).unwrap();
        host.kill();

        fs::write(host.path("store.redb"), "not a store\n".repeat(1000)).unwrap();
        host.start();
        assert_eq!(host.pods(), [("c1".to_owned(), "unrecorded".to_owned())]);
        assert_eq!(pod_routes(), 1, "what runs is left alone");
        let refusal = host.add("c2", &two).unwrap_err();
        assert_eq!(refusal.code, Code::TryAgainLater);
        assert!(refusal.message.contains("store.redb is damaged"), "{refusal}");
        let status: AgentStatus = host.ask(Query::Agent).unwrap();
        assert!(!status.ready && status.store.fault.is_some());

        // As the error says: the file is moved away, here without even a restart.
        fs::remove_file(host.path("store.redb")).unwrap();
        let second = host.add("c2", &two).unwrap();
        assert_ne!(address(&first), address(&second));
        assert!(inside(&two, || ping(&address(&first))), "the pod of which nothing is known is reached");
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
fn a_bad_edit_is_refused_and_what_ran_keeps_running() {
    isolated("a_bad_edit_is_refused_and_what_ran_keeps_running", |_| {
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
            eventually("it is refused", || refused(&host).iter().any(|fault| fault.contains(words)));
            assert_eq!((host.pods().len(), pod_routes()), (1, 1));
            host.add("c2", &namespace()).unwrap();
            host.del("c2").unwrap();
        }
        // A subnet that pods have addresses of cannot go, though nothing is wrong with the file itself.
        let text = fs::read_to_string(host.path("manifests/rack1.yaml")).unwrap();
        let network = text.split("---\n").next().unwrap();
        fs::write(host.path("manifests/rack1.yaml"), network).unwrap();
        eventually("it is refused", || {
            refused(&host).iter().any(|fault| fault.contains("delete them first"))
        });
        host.manifest(OPTIONAL, "10.14.0.0/24");
        eventually("it is in force", || refused(&host).is_empty());
        assert_eq!(host.pods().len(), 1);
    });
}

#[test]
fn a_pod_that_nobody_was_told_of_is_not_ready_and_leaves_nothing() {
    isolated("a_pod_that_nobody_was_told_of_is_not_ready_and_leaves_nothing", |_| {
        let mut host = Host::new("");
        host.start();
        let failure = host.add("c1", &namespace()).unwrap_err();
        assert_eq!(failure.code, Code::TryAgainLater);
        assert!(failure.message.contains("10.14.0.1/32 was not told to any established peer"), "{failure}");
        assert!(failure.details.contains("peer 10.255.0.1 is "), "{failure}");
        assert_eq!((host.pods().len(), pod_routes()), (0, 0));
        assert!(!link_exists("c1"));
        let failure = host.call::<Done>(Command::Status, None).unwrap_err();
        assert_eq!(failure.code, Code::NotAvailable);
        assert!(failure.details.contains("no BGP peer is established: 10.255.0.1"), "{failure}");
    });
}
