//! Faults of the paths to pods: a router lacks their routes, packets arrive for addresses without a
//! pod, the speaker does not listen or does not run.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::prometheus::{Prometheus, Target};
use super::two_racks::{configure, pod};
use crate::client;
use crate::link_faults::{self, PODS_REFUSED};
use crate::tests::bed::{Bed, PATIENCE};

/// Addresses of the racks' Subnets that no pod has.
const NOBODY_1: &str = "10.201.99.99";
const NOBODY_2: &str = "10.202.99.99";

/// Sends datagrams to many ports of an address. So they use all next hops.
fn spray(bed: &Bed<'_>, from: &str, to: &str) -> Result<()> {
    let line =
        format!("for i in $(seq 1 800); do echo x >/dev/udp/{to}/$((20000 + i)); done 2>/dev/null || :");
    bed.host(from)?.run("bash", ["-c", &line]).map(drop)
}

/// tor1b rejects the routes of node1a's pods: node1b gets packets for them, and forwards them.
pub(super) fn refused(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let (_pod, attached) = pod(bed, "node1a", "refused")?;
    let address = attached.addresses.iter().find(|address| address.is_ipv4()).context("an IPv4 address")?;
    link_faults::begin(bed.fabric, &PODS_REFUSED)?;
    prometheus.wait_scrape()?;
    spray(bed, "tor1b", &address.to_string())?;
    prometheus.wait_firing("TrunklineAlternatePaths", "node1b")?;
    ensure!(prometheus.firing("TrunklineAlternatePathDrops")?.is_empty(), "the other router knows the pod");
    prometheus.clear_later(&["TrunklineAlternatePaths"]);
    link_faults::end(bed.fabric, &PODS_REFUSED)
}

/// Packets for an address of the rack without a pod visit two nodes, and the second drops them.
pub(super) fn nobody(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    prometheus.wait_scrape()?;
    spray(bed, "tor1b", NOBODY_1)?;
    prometheus.wait_firing("TrunklineAlternatePathDrops", "node1a")?;
    prometheus.clear_later(&["TrunklineAlternatePathDrops"]);
    Ok(())
}

/// Packets for such an address arrive at a node with one remaining router. This node has no
/// alternate path.
pub(super) fn alone(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let line = "neighbor 10.22.0.22 shutdown";
    configure(bed, "tor2b", &["router bgp 65022", line])?;
    prometheus.wait_firing("TrunklinePeerDown", "node2b")?;
    spray(bed, "tor2a", NOBODY_2)?;
    prometheus.wait_firing("TrunklineUnassignedPackets", "node2b")?;
    let packets = "trunkline_subnet_unassigned_packets_total{instance=\"node2b\",subnet=\"rack2-v4\"}";
    let packets: f64 = prometheus.query(packets)?.iter().sum();
    ensure!(packets > 100.0, "{packets} packets of rack2-v4 were counted");
    prometheus.clear_later(&["TrunklineUnassignedPackets"]);
    configure(bed, "tor2b", &["router bgp 65022", &format!("no {line}")])?;
    client::wait_established(bed.host("node2b")?, PATIENCE)?;
    prometheus.wait_cleared("TrunklinePeerDown")
}

/// Another program has port 179 when the agent starts.
pub(super) fn port_taken(bed: &Bed<'_>, prometheus: &Prometheus) -> Result<()> {
    let node = bed.host("node1b")?;
    client::end_agent(node, Signal::TERM)?;
    // Without v6only, the socket binds the port in both families.
    let taken = node.ns.within(|| Ok(TcpListener::bind("[::]:179")?))?;
    client::start_agent(node)?;
    prometheus.wait_firing("TrunklineBgpNotListening", "node1b")?;
    drop(taken);
    prometheus.wait_cleared("TrunklineBgpNotListening")?;
    client::wait_established(node, PATIENCE)
}

/// An exporter with the metrics of a speaker that does not run. Only a defect of the program causes
/// this state. `cli/tests/start.rs` tests the agent, and this test the alert.
pub(super) struct Exporter {
    port: u16,
    running: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    pub(super) fn start() -> Result<Exporter> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let (running, ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (shown, end) = (Arc::clone(&running), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                if stream.read(&mut [0; 4096]).is_err() {
                    continue;
                }
                let body =
                    format!("trunkline_bgp_speaker_running {}\n", u8::from(shown.load(Ordering::SeqCst)));
                let head =
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n";
                let _gone = write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
            }
        });
        Ok(Exporter { port, running, ended, thread: Some(thread) })
    }

    pub(super) fn target(&self) -> Target<'_> {
        Target::Controller("stopped", self.port)
    }

    pub(super) fn speaker_stops(&self, prometheus: &Prometheus) -> Result<()> {
        self.running.store(false, Ordering::SeqCst);
        prometheus.wait_firing("TrunklineSpeakerNotRunning", "stopped")?;
        self.running.store(true, Ordering::SeqCst);
        prometheus.wait_cleared("TrunklineSpeakerNotRunning")
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // This connection wakes the thread.
        let _refused = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}
