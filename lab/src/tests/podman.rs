//! Containers of a real runtime: podman runs them, attaches them to Networks and removes them.

use anyhow::{Context as _, Result, ensure};
use trunkline_api::control::PodState;

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, hybrid, passed};
use crate::client;
use crate::podman::{Container, Podman};
use crate::shell::{Seen, wait_for};

pub(super) const TESTS: &[Test] = &[Test {
    name: "hybrid/podman",
    about: "containers that podman runs and removes in BGP and VXLAN networks of two nodes reach each other",
    run: bgp_and_vxlan,
}];

/// A node, and the networks of its containers. Each network has one container.
pub(super) type Place<'a> = (&'a str, &'a [&'a str]);

fn bgp_and_vxlan(context: &Context) -> Result<Verdict> {
    lab(context, "hybrid", |bed| {
        hybrid::ready(bed)?;
        let pairs = meet(bed, [("node1", &["rack1", "overlay"]), ("node3", &["rack2", "overlay"])])?;
        passed(format!("{pairs} pairs of addresses"))
    })
}

/// Containers of each place ping all containers of the other place, and podman removes them.
/// Returns the number of pairs of addresses.
pub(super) fn meet(bed: &Bed<'_>, places: [Place<'_>; 2]) -> Result<usize> {
    let [near, far] = [places[0], places[1]].map(|(node, networks)| Podman::on(bed.host(node)?, networks));
    let (near, far) = (near?, far?);
    let start = |podman, (node, networks): Place<'_>| -> Result<Vec<Container<'_>>> {
        let containers: Vec<Container<'_>> = networks
            .iter()
            .map(|network| Podman::container(podman, network, network))
            .collect::<Result<_>>()?;
        let listed = client::pods(bed.host(node)?)?;
        for (network, container) in networks.iter().zip(&containers) {
            let pod =
                listed.iter().find(|pod| pod.network == *network).with_context(|| format!("{listed:?}"))?;
            ensure!(
                pod.state == PodState::Attached && pod.addresses == container.addresses,
                "podman has {:?}, the agent {pod:?}",
                container.addresses
            );
        }
        Ok(containers)
    };
    let (here, there) = (start(&near, places[0])?, start(&far, places[1])?);
    let mut pairs = 0;
    for (from, to) in [(&here, &there), (&there, &here)] {
        for from in from {
            for address in to.iter().flat_map(|to| &to.addresses) {
                let (address, ping) = (address.to_string(), if address.is_ipv4() { "ping" } else { "ping6" });
                wait_for(&format!("an answer of {address}"), PATIENCE, || {
                    let said = from.exec(&[ping, "-c", "1", "-W", "2", &address]);
                    Ok(match said {
                        Ok(_) => Seen::Yes(()),
                        Err(error) => Seen::NotYet(format!("{error:#}")),
                    })
                })?;
                pairs += 1;
            }
        }
    }
    // Another container is started and removed while the others run.
    let (_, networks) = places[0];
    for network in networks {
        let answerer = there.first().and_then(|to| to.addresses.first()).context("an address")?.to_string();
        // A pod is ready when its own rack's routers have its route; the routers of the other rack
        // may need a moment more.
        let until_answered = format!(
            "for try in 1 2 3 4 5 6 7 8 9 10; do /bin/busybox ping -c 1 -W 3 {answerer} && exit; done; exit 1"
        );
        let said = near.once(network, &["sh", "-c", &until_answered])?;
        ensure!(said.contains(" 0% packet loss"), "{said}");
    }
    for container in here.into_iter().chain(there) {
        container.remove()?;
    }
    for (node, _) in places {
        bed.nothing_left(node)?;
    }
    Ok(pairs)
}
