//! A simulated guest: it answers UDP datagrams in the namespace of its pod, and announces itself as
//! QEMU and a Linux guest do after a live migration.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::runtime::Runtime;
use trunkline_datapath::bpf;
use trunkline_datapath::sockets::PacketSocket;

use crate::netns::Namespace;

/// The port of the guest.
pub(super) const PORT: u16 = 7007;
/// The guest looks for the end this often.
const TURN: Duration = Duration::from_millis(1);

/// A guest in one pod. It discards datagrams until it runs.
pub(super) struct Guest {
    runs: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Guest {
    /// A paused guest in a pod's namespace, with the pod's addresses.
    pub(super) fn new(ns: &Namespace, addresses: &[IpAddr]) -> Result<Guest> {
        let (runs, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let sockets = ns.within(|| {
            let open = |address: &IpAddr| -> Result<UdpSocket> {
                let socket = UdpSocket::bind(SocketAddr::new(*address, PORT))
                    .with_context(|| format!("{address} is no address of the pod"))?;
                socket.set_read_timeout(Some(TURN))?;
                Ok(socket)
            };
            addresses.iter().map(open).collect::<Result<Vec<_>>>()
        })?;
        let answer = |socket: UdpSocket| {
            let (runs, stop) = (Arc::clone(&runs), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while !stop.load(Ordering::Relaxed) {
                    if let Ok((length, from)) = socket.recv_from(&mut buffer)
                        && runs.load(Ordering::Relaxed)
                    {
                        _ = socket.send_to(&buffer[..length], from);
                    }
                }
            })
        };
        let threads = sockets.into_iter().map(answer).collect();
        Ok(Guest { runs, stop, threads })
    }

    /// Starts or pauses the guest.
    pub(super) fn set_running(&self, runs: bool) {
        self.runs.store(runs, Ordering::Relaxed);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            _ = thread.join();
        }
    }
}

/// An announcement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Announcement {
    /// QEMU's: a RARP request with the guest's MAC address.
    Rarp,
    /// A Linux guest's: gratuitous ARP.
    Arp,
}

/// Sends announcements from `eth0` of a namespace.
pub(super) struct Announcer {
    runtime: Runtime,
    socket: PacketSocket,
}

impl Announcer {
    pub(super) fn open(ns: &Namespace) -> Result<Announcer> {
        let index = ns.ip(["-o", "link", "show", "dev", "eth0"])?;
        let index: u32 = index.split(':').next().unwrap_or_default().trim().parse().context("eth0")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // The socket only sends.
        let socket =
            ns.within(|| runtime.block_on(async { Ok(PacketSocket::open(index, &[bpf::DROP])?) }))?;
        Ok(Announcer { runtime, socket })
    }

    pub(super) fn send(&self, kind: Announcement, mac: [u8; 6], address: IpAddr) -> Result<()> {
        let IpAddr::V4(address) = address else { bail!("{address}: ARP is for IPv4") };
        Ok(self.runtime.block_on(self.socket.send(&frame(kind, mac, address)))?)
    }
}

fn frame(kind: Announcement, mac: [u8; 6], address: Ipv4Addr) -> Vec<u8> {
    let (ether_type, operation, address): ([u8; 2], u8, [u8; 4]) = match kind {
        Announcement::Rarp => ([0x80, 0x35], 3, [0; 4]),
        Announcement::Arp => ([0x08, 0x06], 1, address.octets()),
    };
    let target = if operation == 3 { mac } else { [0; 6] };
    let packet = [&[0, 1, 8, 0, 6, 4, 0, operation][..], &mac, &address, &target, &address].concat();
    [&[0xff; 6][..], &mac, &ether_type, &packet, &[0; 18]].concat()
}
