//! A host: an agent as a process with its files, and the requests of a runtime and an operator.
#![allow(dead_code, reason = "each test binary uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::de::DeserializeOwned;
use trunkline_agent::ipam::Record;
use trunkline_agent::ipam::store::{Batch, Store};
use trunkline_api::attach::{
    Attach, AttachOptions, Attachment, Code, Command, Detach, Done, Failure, Gc, Interface, Reply, Request,
    decode_reply, encode,
};
use trunkline_api::control::{AgentStatus, PodStatus, Query};
use trunkline_datapath::naming::host_ifname;

use crate::namespace::{eventually, ip};

/// A host with its agent's files, and the agent while it runs.
pub(crate) struct Host {
    folder: tempfile::TempDir,
    pub(crate) agent: Option<Child>,
}

impl Host {
    /// `peer`: further fields of the one peer besides its AS and address.
    pub(crate) fn new(peer: &str) -> Host {
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn manifest(&self, peer: &str, cidr: &str) {
        self.manifests(&manifests(&format!("{{asn: 65000, address: 10.255.0.1{peer}}}"), cidr));
    }

    /// Replaces the manifest file atomically, as an editor or kubectl does.
    pub(crate) fn manifests(&self, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path("manifests/rack1.yaml")).unwrap();
    }

    pub(crate) fn command(&self) -> Process {
        let mut command = Process::new(env!("CARGO_BIN_EXE_trunkline"));
        command.arg("agent").arg("--config").arg(self.path("agent.yaml"));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts the agent without waiting for it.
    pub(crate) fn launch(&mut self) {
        let mut command = self.command();
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        self.agent = Some(command.stderr(log).spawn().unwrap());
    }

    pub(crate) fn start(&mut self) {
        self.launch();
        eventually("the agent has a plan", || {
            self.ask::<AgentStatus>(Query::Agent).is_ok_and(|status| status.manifests.applied)
        });
    }

    pub(crate) fn kill(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// Sends a request. A drop of the stream cancels the request.
    pub(crate) fn request(&self, command: Command, netns: Option<&OwnedFd>) -> io::Result<UnixStream> {
        let mut stream = UnixStream::connect(self.path("agent.sock"))?;
        let line = encode(&Request::new(command)).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = netns.iter().map(|netns| netns.as_fd()).collect();
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        let sent = sendmsg(stream.as_fd(), &[IoSlice::new(&line)], &mut control, SendFlags::empty())?;
        stream.write_all(&line[sent..])?;
        Ok(stream)
    }

    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        command: Command,
        netns: Option<&OwnedFd>,
    ) -> Result<T, Failure> {
        let unreachable = |error: io::Error| Failure::new(Code::Io, error.to_string());
        let stream = self.request(command, netns).map_err(unreachable)?;
        let mut answer = Vec::new();
        BufReader::new(stream).read_until(b'\n', &mut answer).map_err(unreachable)?;
        Result::from(decode_reply::<T>(&answer).map_err(Failure::from)? as Reply<T>)
    }

    pub(crate) fn ask<T: DeserializeOwned>(&self, query: Query) -> Result<T, Failure> {
        self.call(Command::Query(query), None)
    }

    pub(crate) fn add(&self, container_id: &str, netns: &OwnedFd) -> Result<Attachment, Failure> {
        self.call(attach(container_id), Some(netns))
    }

    pub(crate) fn del(&self, container_id: &str) -> Result<Done, Failure> {
        let detach = Detach { interface: interface(container_id), conf_name: "pods".to_owned() };
        self.call(Command::Detach(detach), None)
    }

    pub(crate) fn status(&self) -> AgentStatus {
        self.ask(Query::Agent).unwrap()
    }

    /// The output of an operator's command.
    pub(crate) fn prints(&self, command: &str) -> String {
        let mut process = Process::new(env!("CARGO_BIN_EXE_trunkline"));
        process.args(command.split_whitespace()).arg("--socket").arg(self.path("agent.sock"));
        let output = process.output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Sends GC as a runtime does: only these attachments are valid.
    pub(crate) fn gc(&self, valid: &[&str]) {
        let valid = valid.iter().copied().map(interface).collect();
        self.call::<Done>(Command::Gc(Gc { conf_name: "pods".to_owned(), valid }), None).unwrap();
    }

    /// Container and state of each pod.
    pub(crate) fn pods(&self) -> Vec<(String, String)> {
        let pods: Vec<PodStatus> = self.ask(Query::Pods).unwrap();
        pods.into_iter().map(|pod| (pod.container_id, pod.state.to_string())).collect()
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        Store::open(&self.path("store.redb")).1.unwrap().records.into_values().collect()
    }

    pub(crate) fn write(&self, record: Record) {
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

/// A network with these peers (each on its own line), and a subnet of it.
pub(crate) fn manifests(peers: &str, cidr: &str) -> String {
    let peers: String = peers.lines().map(|peer| format!("    - {peer}\n")).collect();
    format!(
        "apiVersion: networking.alibaba.com/v1\nkind: Network\nmetadata: {{name: rack1}}\nspec:\n  netID: 65001\n  \
         type: Underlay\n  mode: BGP\n  nodeSelector: {{kubernetes.io/hostname: n1}}\n  config:\n    bgpPeers:\n{peers}---\n\
         apiVersion: networking.alibaba.com/v1\nkind: Subnet\nmetadata: {{name: pods}}\n\
         spec: {{network: rack1, range: {{version: \"4\", cidr: {cidr}}}}}\n"
    )
}

pub(crate) const OPTIONAL: &str = ", allowNotEstablished: true";

/// The request of ADD.
pub(crate) fn attach(container_id: &str) -> Command {
    Command::Attach(Box::new(Attach {
        interface: interface(container_id),
        conf_name: "pods".to_owned(),
        netns: String::new(),
        pod: None,
        wanted: AttachOptions::default(),
        deadline_ms: 20_000,
    }))
}

pub(crate) fn interface(container_id: &str) -> Interface {
    Interface { container_id: container_id.to_owned(), ifname: "eth0".to_owned() }
}

pub(crate) fn address(attachment: &Attachment) -> String {
    attachment.addresses[0].address.addr().to_string()
}

pub(crate) fn link_exists(container_id: &str) -> bool {
    ip("-br link").lines().any(|line| line.starts_with(&host_ifname(container_id, "eth0")))
}

pub(crate) fn pod_routes() -> usize {
    // The list has all tables, because a request for an empty table fails.
    ip("route show table all").lines().filter(|line| line.contains("table 39999")).count()
}
