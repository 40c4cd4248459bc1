//! Peers that the manifest names only by interface, with FRR at the other end of links without
//! addresses. Both routers have the same link-local address.

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::bed::{Bed, PATIENCE, lab, lost_nothing};
use super::{Context, Test, Verdict, passed};
use crate::daemons::vtysh;
use crate::shell::{Seen, wait_for};
use crate::{client, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "unnumbered/routes",
        about: "links without addresses: IPv4 and IPv6 over FRR's link-local address; restarts of the agent lose no packet",
        run: routes,
    },
    Test {
        name: "unnumbered/changes",
        about: "the agent follows an interface that disappears and returns, and a router with a new address",
        run: changes,
    },
    Test {
        name: "unnumbered/bfd",
        about: "BFD with two routers that have the same address on two links: each session belongs to its own link",
        run: bfd,
    },
];

/// Waits until these peers are established, on FRR's side too.
fn ready(bed: &Bed<'_>, wanted: [&str; 2]) -> Result<()> {
    wait_for(&format!("sessions with {wanted:?}"), PATIENCE, || {
        let peers = client::peers(bed.node()?)?;
        let mut shown: Vec<String> = peers.iter().map(|p| format!("{} {}", p.name(), p.state)).collect();
        shown.sort();
        let good = shown == wanted.map(|name| format!("{name} Established"));
        Ok(Seen::when(good, || format!("{shown:?}")))
    })?;
    bed.established()?;
    for tor in ["tor1", "tor2"] {
        routers::wait_sessions(bed.fabric, tor, PATIENCE)?;
    }
    Ok(())
}

const BOTH: [&str; 2] = ["fe80::1%eth1", "fe80::1%eth2"];

/// Waits until the network's table has default routes through these links, each with a link-local
/// next hop, in both families.
fn leads_out(bed: &Bed<'_>, hops: &[&str]) -> Result<()> {
    wait_for(&format!("default routes by {hops:?}"), PATIENCE, || {
        let v4 = bed.node()?.sh("ip -4 route show table 10000 default || :")?;
        let v6 = bed.node()?.sh("ip -6 route show table 10000 default || :")?;
        let all = |text: &str, via: &str| hops.iter().all(|hop| text.contains(&format!("{via} {hop}")));
        Ok(Seen::when(all(&v4, "via inet6") && all(&v6, "via"), || format!("{v4}{v6}")))
    })
}

fn routes(context: &Context) -> Result<Verdict> {
    lab(context, "unnumbered", |bed| {
        ready(bed, BOTH)?;
        for peer in client::peers(bed.node()?)? {
            let session = peer.session.context("an established session")?;
            let local = session.local.ip().to_string();
            ensure!(local.starts_with("fe80:"), "{}'s session is from {local}", peer.address);
        }
        leads_out(bed, &["fe80::1 dev eth1", "fe80::1 dev eth2"])?;
        let (_pod, attached) = bed.attached("pod", "rack1")?;
        for tor in ["tor1", "tor2"] {
            bed.tor_has_only(tor, &attached.addresses)?;
            for address in &attached.addresses {
                let route = bed.host(tor)?.sh(&format!("ip route get {address}"))?;
                let via = if address.is_ipv4() { "via inet6 fe80:" } else { "via fe80:" };
                ensure!(route.contains(via), "{tor}: {route}");
            }
        }
        let pings = bed.pings("outside", &attached.addresses)?;
        for signal in [Signal::TERM, Signal::KILL, Signal::KILL] {
            client::end_agent(bed.node()?, signal)?;
            client::start_agent(bed.node()?)?;
            ready(bed, BOTH)?;
        }
        let sent = lost_nothing(pings)?;

        // The routers' routes are installed with the routers' link-local next hops, although they
        // may advertise other next hops.
        let manifest = bed.manifest("networks.yaml");
        let text = manifest.read()?;
        manifest.write(
            &text.replace("connectRetrySeconds: 1\n", "connectRetrySeconds: 1\n        import: {}\n"),
        )?;
        leads_out(bed, &["fe80::1 dev eth1", "fe80::1 dev eth2"])?;
        let received = client::routes(bed.node()?)?.into_iter().filter(|r| r.peer.is_some()).count();
        ensure!(received == 4, "{received} default routes of two routers in two families");
        let mut again = bed.pings("outside", &attached.addresses)?;
        again.settle(PATIENCE)?;
        let sent = sent + lost_nothing(again)?;
        passed(format!("{sent} pings, none lost in three restarts"))
    })
}

fn changes(context: &Context) -> Result<Verdict> {
    lab(context, "unnumbered", |bed| {
        ready(bed, BOTH)?;
        let (_pod, attached) = bed.attached("pod", "rack1")?;
        let node = bed.node()?;
        node.ns.ip(["link", "set", "eth1", "down"])?;
        let reason = wait_for("eth1's peer to be gone", PATIENCE, || {
            let peers = client::peers(node)?;
            let waiting = peers.iter().find(|p| p.name() == "eth1");
            let reason = waiting.and_then(|p| Some(p.last_error.as_ref()?.text.clone()));
            let other = peers.iter().any(|p| p.name() == BOTH[1] && p.is_established());
            Ok(match reason {
                Some(text) if other => Seen::Yes(text),
                _ => Seen::NotYet(format!("{peers:?}")),
            })
        })?;
        ensure!(reason.contains("eth1 does not exist or is not up"), "{reason}");
        leads_out(bed, &["fe80::1 dev eth2"])?;
        node.ns.ip(["link", "set", "eth1", "up"])?;
        ready(bed, BOTH).context("after eth1 is up again")?;
        leads_out(bed, &["fe80::1 dev eth1", "fe80::1 dev eth2"])?;

        bed.host("tor2")?.sh("ip -6 addr add fe80::2/64 dev eth1; ip -6 addr del fe80::1/64 dev eth1")?;
        ready(bed, [BOTH[0], "fe80::2%eth2"]).context("after tor2 has another address")?;
        leads_out(bed, &["fe80::1 dev eth1", "fe80::2 dev eth2"])?;
        for tor in ["tor1", "tor2"] {
            bed.tor_has_only(tor, &attached.addresses)?;
        }
        let pings = lost_nothing(bed.pings("outside", &attached.addresses)?)?;
        passed(format!("followed; {pings} pings afterwards, none lost"))
    })
}

fn bfd(context: &Context) -> Result<Verdict> {
    lab(context, "unnumbered", |bed| {
        ready(bed, BOTH)?;
        let manifest = bed.manifest("networks.yaml");
        let text = manifest.read()?;
        manifest
            .write(&text.replace("connectRetrySeconds: 1\n", "connectRetrySeconds: 1\n        bfd: {}\n"))?;
        for (tor, asn) in [("tor1", 65001), ("tor2", 65002)] {
            let router = format!("router bgp {asn}");
            vtysh(bed.host(tor)?, &["configure", &router, "neighbor eth1 bfd"])?;
        }
        let up = || -> Result<()> {
            client::wait_bfd(bed.node()?, PATIENCE)?;
            for tor in ["tor1", "tor2"] {
                routers::wait_bfd(bed.fabric, tor, PATIENCE)?;
            }
            Ok(())
        };
        up()?;
        // The number of times each session left Up, by interface.
        let downs = || -> Result<Vec<(String, u64)>> {
            let peers = client::peers(bed.node()?)?;
            let downs = |p: trunkline_api::control::Peer| Some((p.interface?, p.bfd?.downs));
            Ok(peers.into_iter().filter_map(downs).collect())
        };
        let before = downs()?;
        let of = |downs: &[(String, u64)], name: &str| {
            downs.iter().find(|(interface, _)| interface == name).map(|(_, downs)| *downs)
        };
        bed.host("tor1")?.silence()?;
        wait_for("eth1's session to notice tor1's silence", PATIENCE, || {
            let now = downs()?;
            Ok(Seen::when(of(&now, "eth1") > of(&before, "eth1"), || format!("{now:?}, before {before:?}")))
        })?;
        ensure!(of(&downs()?, "eth2") == of(&before, "eth2"), "{:?}, before {before:?}", downs()?);
        bed.host("tor1")?.end_silence()?;
        up().context("afterwards")?;

        // The link is deleted and created again under its name. The session follows the interface.
        bed.node()?.ns.ip(["link", "set", "eth2", "down"])?;
        bed.node()?.ns.ip(["link", "set", "eth2", "up"])?;
        ready(bed, BOTH).context("after eth2 is up again")?;
        up().context("after eth2 is up again")?;
        passed("one address, two sessions".to_owned())
    })
}
