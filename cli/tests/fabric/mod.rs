//! Routers beyond a link: a network namespace with an address for each, and correct or faulty BGP
//! speakers.
#![allow(dead_code, reason = "each test binary uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;
use trunkline_bgp::config::{Password, PeerConfig, SpeakerConfig};
use trunkline_bgp::net::{self, ShellConfig};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::Stop;
use trunkline_bgp::types::Asn;

use crate::namespace::{eventually, inside, ip, namespace};

/// This host's address on the link.
pub(crate) const HOST: &str = "10.255.0.254";

/// Creates routers 10.255.0.1 and up in their own namespace, at the other end of this namespace's
/// `up1`. They have a route to the pods.
pub(crate) fn routers(count: u8) -> OwnedFd {
    let netns = namespace();
    let path = format!("/proc/{}/fd/{}", std::process::id(), netns.as_raw_fd());
    ip("link add up1 type veth peer name r1");
    ip(&format!("link set r1 netns {path}"));
    ip(&format!("addr add {HOST}/24 dev up1"));
    ip("link set up1 up");
    inside(&netns, || {
        (1..=count).for_each(|router| drop(ip(&format!("addr add 10.255.0.{router}/24 dev r1"))));
        ip("link set r1 up");
        ip(&format!("route add 10.14.0.0/24 via {HOST}"));
    });
    eventually("carrier", || ip("link").matches("LOWER_UP").count() >= 2);
    netns
}

/// A router with a correct BGP speaker; a fault is only in its configuration.
#[derive(Clone, Copy, Default)]
pub(crate) struct Router {
    /// The last octet of its address.
    pub(crate) number: u8,
    pub(crate) asn: u32,
    pub(crate) password: Option<&'static str>,
    /// The number of prefixes that it advertises.
    pub(crate) prefixes: u8,
    /// Whether this router opens connections too. Other routers wait for the host.
    pub(crate) connects: bool,
}

/// Speakers that run until this value is dropped.
pub(crate) struct Speakers {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts routers.
pub(crate) fn speakers(netns: &OwnedFd, routers: &[Router]) -> Speakers {
    let (stop, stopped) = oneshot::channel();
    let (ready, running) = mpsc::channel();
    let (netns, routers) = (netns.try_clone().unwrap(), routers.to_vec());
    let thread = std::thread::spawn(move || {
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut handles = Vec::new();
            for router in routers {
                handles.push(speaker(router).await);
            }
            ready.send(()).unwrap();
            let _ = stopped.await;
            for (handle, _, _) in &handles {
                handle.stop(Stop::Silent).await;
            }
        });
    });
    running.recv_timeout(Duration::from_secs(10)).unwrap();
    Speakers { stop: Some(stop), thread: Some(thread) }
}

async fn speaker(router: Router) -> (net::SpeakerHandle, net::Events, net::RouteChanges) {
    let address = Ipv4Addr::new(10, 255, 0, router.number);
    let config = SpeakerConfig {
        cluster_id: None,
        local_as: Asn(router.asn),
        router_id: address,
        restarting: false,
        selection_deferral: Duration::from_secs(5),
        max_paths: 1,
        seed: u64::from(router.number),
    };
    let shell = ShellConfig { listen: vec![SocketAddr::from((address, 179))], ..ShellConfig::default() };
    let speaker = net::spawn(config, &shell).unwrap();
    let handle = &speaker.0;
    let mut peer = PeerConfig::new(HOST.parse().unwrap(), Asn(65001));
    peer.passive = !router.connects;
    peer.local_address = Some(address.into());
    peer.connect_retry = Duration::from_secs(1);
    peer.password = router.password.map(|password| Password::new(password).unwrap());
    handle.add_peer(peer).await.unwrap();
    for prefix in 0..router.prefixes {
        let prefix = format!("198.18.{prefix}.0/24").parse().unwrap();
        handle.originate(prefix, Origination::default()).await.unwrap();
    }
    handle.originations_complete().await.unwrap();
    speaker
}

impl Drop for Speakers {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A router that sends these octets to each connection, and then nothing. It reads until the end of
/// the connection.
pub(crate) fn scripted(netns: &OwnedFd, number: u8, says: Vec<u8>) {
    let listener = inside(netns, || TcpListener::bind((Ipv4Addr::new(10, 255, 0, number), 179)).unwrap());
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let (mut connection, says) = (connection.unwrap(), says.clone());
            std::thread::spawn(move || {
                let _ = connection.write_all(&says);
                let _ = connection.read_to_end(&mut Vec::new());
            });
        }
    });
}
