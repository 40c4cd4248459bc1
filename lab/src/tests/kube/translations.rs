//! Another program translates addresses of routers and nodes, as kube-proxy does for a tenant's Service
//! with `externalIPs` and for a pod with `hostPort`. The node's own packets of BGP and VXLAN keep their
//! destinations, and a pod does not reach a router's BGP port with its node's address.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use trunkline_api::control::Peer;

use crate::client;
use crate::fabric::Fabric;
use crate::kube::nodes::Attached;
use crate::shell::{Seen, wait_for};

const PATIENCE: Duration = Duration::from_secs(60);
/// The time of an attempt of the pod.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The rules, of which each gives a packet a destination that does not exist.
fn rules() -> String {
    let chains = [("prerouting", "fib daddr type local "), ("output", "")].map(|(hook, to)| {
        let rule = |family: &str, ports: &str, target: &str| {
            format!("add rule inet translations {hook} {to}{ports} dnat {family} to {target}; ")
        };
        let all = ["tcp dport 179", "udp dport { 3784, 8472 }"]
            .map(|ports| rule("ip", ports, "192.0.2.1") + &rule("ip6", ports, "2001:db8::1"));
        format!(
            "add chain inet translations {hook} {{ type nat hook {hook} priority -100; }}; {}",
            all.concat()
        )
    });
    format!("add table inet translations; {}", chains.concat())
}

/// Installs the translations on these nodes, and resets their sessions.
pub(super) fn install(fabric: &Fabric, nodes: &[&str]) -> Result<()> {
    for node in nodes {
        let host = fabric.host(node)?;
        host.run("nft", [rules()])?;
        for peer in client::peers(host)? {
            host.run("trunkline", ["peers", "reset", &peer.address.to_string()])?;
        }
    }
    for node in nodes {
        client::wait_established(fabric.host(node)?, PATIENCE)
            .context("with translated addresses of routers")?;
    }
    Ok(())
}

/// A pod of the overlay connects to its node's routers, by the address of the node.
pub(super) fn routers_are_closed(fabric: &Fabric, pod: &Attached) -> Result<()> {
    let host = fabric.host(&pod.plan.node)?;
    let before = client::peers(host)?;
    let dropped =
        || -> Result<u64> { Ok(client::status(host)?.guard.dropped.get("bgp").copied().unwrap_or_default()) };
    let count = dropped()?;
    for peer in &before {
        let to = SocketAddr::new(peer.address, 179);
        let connected = pod.sandbox.ns.within(|| Ok(TcpStream::connect_timeout(&to, ATTEMPT).is_ok()))?;
        ensure!(!connected, "the pod has a connection with {to}");
    }
    wait_for("the dropped packets", PATIENCE, || {
        let now = dropped()?;
        Ok(Seen::when(now > count, || format!("{count} packets before and now")))
    })?;
    let flaps = |peers: &[Peer]| peers.iter().map(|peer| peer.flaps).collect::<Vec<_>>();
    ensure!(flaps(&client::peers(host)?) == flaps(&before), "a session ended");
    Ok(())
}
