//! Whole fabrics: the demo's promises, the routes that spines may and may not have, and other
//! vendors' routers as ToRs.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::IpNet;
use rustix::process::Signal;

use super::bed::{PATIENCE, lab, lost_nothing};
use super::{Context, Test, Verdict, passed};
use crate::cni::{self, Sandbox};
use crate::demo::load_balancer::Cluster;
use crate::fabric::Fabric;
use crate::kube::assets::Programs;
use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};
use crate::{client, demo, pods, routers};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "lab/up-and-down",
        about: "a topology starts, gets pods by hand, and leaves nothing after its removal",
        run: up_and_down,
    },
    Test { name: "fabric/demo", about: "every promise of the demo is kept", run: the_demo },
    Test {
        name: "fabric/no-export",
        about: "a rack's ToRs have routes to its pods; the spines have a route to its subnet, and \
                none to its pods",
        run: no_export,
    },
    Test {
        name: "fabric/interop",
        about: "BIRD and GoBGP as ToRs: both families, MD5, four-octet AS, restart",
        run: interop,
    },
];

fn up_and_down(context: &Context) -> Result<Verdict> {
    let product = context.product()?;
    let fabric = Fabric::up(&context.place, "faults", &product)?;
    let names: Vec<Namespace> = fabric.hosts.values().map(|h| h.ns.clone()).collect();
    ensure!(names.iter().all(Namespace::exists) && !names.is_empty(), "not all of {names:?} exist");
    let pod = Sandbox::create(&fabric, "node1", "left-over")?;
    let pids: Vec<_> = names.iter().flat_map(Namespace::pids).collect();
    ensure!(pids.len() > names.len(), "no daemons run: {pids:?}");
    let second = Fabric::up(&context.place, "faults", &product).err().map(|e| format!("{e:#}"));
    ensure!(second.as_ref().is_some_and(|e| e.contains("is up already")), "a second up: {second:?}");
    let by_hand = pods_by_hand(&Fabric::open(&context.place, "faults")?)?;
    drop(fabric);
    let left: Vec<_> = names.iter().chain([&pod.ns]).chain(&by_hand).filter(|n| n.exists()).collect();
    ensure!(left.is_empty(), "left: {left:?}");
    passed(format!("{} namespaces, {} processes, {} pods by hand", names.len(), pids.len(), by_hand.len()))
}

/// The steps of `cargo lab up --pods` and `cargo lab pod`; returns the namespaces of pods that stay.
fn pods_by_hand(fabric: &Fabric) -> Result<Vec<Namespace>> {
    let attached = || -> Result<Vec<String>> {
        let pods = client::pods(fabric.host("node1")?)?;
        Ok(pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect())
    };
    let refused = |done: Result<()>, wanted: &[&str]| -> Result<()> {
        let error = done.err().map(|e| format!("{e:#}")).unwrap_or_default();
        ensure!(wanted.iter().all(|words| error.contains(words)), "{error:?} lacks one of {wanted:?}");
        Ok(())
    };
    let rows = pods::add_everywhere(fabric, 2)?;
    ensure!(rows.len() == 3 && rows[1][2].starts_with("10.201.0."), "{rows:?}");
    let web = pods::add(fabric, "node1", "web", Some("rack1"))?;
    ensure!(attached()? == ["lab/pod1", "lab/pod2", "lab/web"], "{:?}", attached()?);
    let ns = Namespace::named(&fabric.pod_namespace("node1", "web"));
    let shown = ns.ip(["addr", "show", "eth0"])?;
    ensure!(web.iter().all(|address| shown.contains(&address.to_string())), "{web:?} {shown}");

    refused(
        pods::add(fabric, "node1", "web", None).map(drop),
        &["already", "cargo lab pod del faults node1 web"],
    )?;
    refused(pods::add(fabric, "node1", "db", Some("rack9")).map(drop), &["network rack9", "rack1"])?;
    refused(pods::add(fabric, "good", "db", None).map(drop), &["runs no agent", "node1"])?;
    refused(pods::add(fabric, "node1", "Db", None).map(drop), &["lower-case letters"])?;
    pods::del(fabric, "node1", "web")?;
    refused(pods::del(fabric, "node1", "web"), &["pod1, pod2", "cargo lab pod add faults node1 web"])?;
    ensure!(attached()? == ["lab/pod1", "lab/pod2"] && !ns.exists(), "{:?}", attached()?);
    let stay = ["pod1", "pod2"].map(|pod| Namespace::named(&fabric.pod_namespace("node1", pod)));
    ensure!(stay.iter().all(Namespace::exists), "{stay:?}");
    Ok(stay.to_vec())
}

fn the_demo(context: &Context) -> Result<Verdict> {
    crate::progress::say("");
    let product = context.product()?;
    let kubernetes = match Programs::find(&context.place)? {
        Ok(programs) => {
            Ok(Cluster { place: context.place.clone(), programs, controller: context.controller()? })
        }
        Err(missing) => Err(missing),
    };
    let summary = demo::tour(|| Fabric::up(&context.place, demo::TOPOLOGY, &product), &kubernetes)?;
    let faults = summary.faults();
    if !faults.is_empty() {
        bail!("{}", faults.join("; "));
    }
    let service = match (&summary.load_balancer, kubernetes) {
        (Some(it), _) => {
            format!(
                "a Service: 0 of {} and 0 of {} connections lost",
                it.end_connections, it.restart_connections
            )
        }
        (None, missing) => format!("without a Service: {}", missing.err().unwrap_or_default()),
    };
    passed(format!(
        "{}/{} pairs, {} routes, 0 of {} and 0 of {} packets lost, {service}, uplink {:.0} ms, silent ToR {:.0} ms, withdraw {:.0} ms",
        summary.pairs_ok,
        summary.pairs_total,
        summary.spine_pod_routes,
        summary.restart_sent_packets,
        summary.kill_sent_packets,
        summary.uplink_cut_recovery_ms,
        summary.silent_tor_recovery_ms,
        summary.withdraw_ms
    ))
}

fn no_export(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        for node in bed.fabric.topology.with_role("node") {
            client::wait_established(bed.host(node)?, PATIENCE)?;
        }
        let pod = Sandbox::create(bed.fabric, "node1a", "local")?;
        let attached = cni::add(bed.fabric, &cni::trunkline(Some("rack1")), &pod)?;
        let global = Sandbox::create(bed.fabric, "node1a", "global")?;
        let everywhere = cni::add(bed.fabric, &cni::trunkline(Some("global")), &global)?;
        let prefixes = |addresses: &[IpAddr]| addresses.iter().map(|a| IpNet::from(*a)).collect::<Vec<_>>();
        let has = |router: &str, wanted: &[IpNet]| {
            wait_for(&format!("{router} to have {wanted:?}"), PATIENCE, || {
                let table = routers::kernel_routes(bed.host(router)?)?;
                let missing: Vec<_> = wanted.iter().filter(|p| !table.contains(p)).collect();
                Ok(Seen::when(missing.is_empty(), || format!("missing {missing:?}")))
            })
        };
        let subnets: Vec<IpNet> = vec!["10.201.0.0/16".parse()?, "fd00:201::/112".parse()?];
        for tor in ["tor1a", "tor1b"] {
            has(tor, &prefixes(&attached.addresses))?;
        }
        for router in ["spine1", "spine2", "tor2a", "tor2b"] {
            has(router, &subnets)?;
            // The global pod's routes arrived after the local pod's routes, so no route is still
            // missing.
            has(router, &prefixes(&everywhere.addresses))?;
            for prefix in prefixes(&attached.addresses) {
                ensure!(
                    !routers::has_path(bed.fabric, router, &prefix)?,
                    "{router} has {prefix}, which carries NO_EXPORT"
                );
            }
        }
        // The rack's pod is also reachable from the other rack, by its subnet.
        let far = Sandbox::create(bed.fabric, "node2b", "far")?;
        cni::add(bed.fabric, &cni::trunkline(Some("global")), &far)?;
        let flow =
            |to: &IpAddr| crate::pinger::Flow { name: format!("far to {to}"), from: far.ns.clone(), to: *to };
        let lost = crate::pinger::unreachable(attached.addresses.iter().map(flow).collect(), PATIENCE)?;
        ensure!(lost.is_empty(), "not reached from the other rack: {lost:?}");
        passed("")
    })
}

fn interop(context: &Context) -> Result<Verdict> {
    lab(context, "interop", |bed| {
        bed.established()?;
        let node = bed.node()?;
        let (bird, gobgp) = (bed.host("bird")?, bed.host("gobgp")?);
        gobgp.run("gobgp", ["global", "rib", "add", "-a", "ipv4", "172.31.2.0/24"])?;
        gobgp.run("gobgp", ["global", "rib", "add", "-a", "ipv6", "fd00:31:2::/64"])?;
        // The node receives the prefixes that the routers advertise.
        for (peer, wanted) in [
            ("10.1.0.1", ["172.31.1.0/24", "fd00:31:1::/64"]),
            ("10.2.0.1", ["172.31.2.0/24", "fd00:31:2::/64"]),
        ] {
            wait_for(&format!("the routes of {peer}"), PATIENCE, || {
                let routes = client::received(node, peer.parse()?)?;
                let prefixes: Vec<String> = routes.iter().map(|r| r.prefix.to_string()).collect();
                Ok(Seen::when(wanted.iter().all(|w| prefixes.iter().any(|p| p == w)), || {
                    format!("{prefixes:?}")
                }))
            })?;
        }
        // The routers receive the prefixes of a pod.
        let (pod, attached) = bed.attached("pod", "rack1")?;
        ensure!(attached.addresses.len() == 2, "{:?}", attached.addresses);
        let received = |stale_too: bool| -> Result<()> {
            for address in &attached.addresses {
                let prefix = IpNet::from(*address).to_string();
                let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
                wait_for(&format!("BIRD and GoBGP to have {prefix}"), PATIENCE, || {
                    let in_bird = bird.run("birdc", ["show", "route", &prefix, "all"])?;
                    let in_gobgp = gobgp.run("gobgp", ["global", "rib", &prefix, "-a", family])?;
                    let good = in_bird.contains("4200000101") && in_gobgp.contains("4200000101");
                    let good = good && (stale_too || !in_gobgp.contains(" S"));
                    Ok(Seen::when(good, || format!("{in_bird} {in_gobgp}")))
                })?;
            }
            Ok(())
        };
        received(false)?;
        let advertised = client::advertised(node, "10.1.0.1".parse()?)?;
        for address in &attached.addresses {
            let route = advertised.iter().find(|r| r.prefix == IpNet::from(*address));
            let route = route.with_context(|| format!("{address} is not advertised to BIRD"))?;
            ensure!(route.communities.iter().any(|c| c.eq_ignore_ascii_case("no-export")), "{route:?}");
        }
        // BIRD has a route to the pod; its traffic survives a SIGKILL of the agent, as both routers
        // retain the routes.
        let pings = bed.pings("bird", &attached.addresses)?;
        client::end_agent(node, Signal::KILL)?;
        pings.wait_sent(200, PATIENCE)?;
        received(true).context("while the agent is away")?;
        client::start_agent(node)?;
        bed.established()?;
        received(false)?;
        let pings = lost_nothing(pings)?;
        cni::del(bed.fabric, &cni::trunkline(Some("rack1")), &pod)?;
        wait_for("both to withdraw the pod", PATIENCE, || {
            let in_bird = bird.run("birdc", ["show", "route"])?;
            let in_gobgp = gobgp.run("gobgp", ["global", "rib", "-a", "ipv4"])?;
            let there = attached.addresses.iter().any(|a| {
                let prefix = IpNet::from(*a).to_string();
                in_bird.contains(&prefix) || in_gobgp.contains(&prefix)
            });
            Ok(Seen::when(!there, || format!("{in_bird} {in_gobgp}")))
        })?;
        passed(format!("{pings} pings through a SIGKILL, none lost"))
    })
}
