//! `cargo lab bench services`: speed and size of service addresses, on a real API server, with the
//! agent and FRR ToRs of the topology one-rack.
//!
//! - [`latency`]: time from a change of an endpoint until the ToR's kernel has the route or has
//!   lost it, with 1,000 Services; with the real kube-proxy, and with `services.proxy.kind: none`.
//! - [`size`]: the agent's memory with 10,000 Services and 50,000 endpoints, and its processor time
//!   for one endpoint's change with 10 and with 10,000 Services.
//! - [`anycast`]: time from the end of a program until its anycast address has left the ToR.
//!
//! Only the API server, kube-proxy and the agent run. The bench writes Services with their status
//! and EndpointSlices, as the controllers do. Local endpoints have the node's own address.

mod anycast;
mod latency;
mod size;
mod world;

use anyhow::{Result, bail};
use serde::Serialize;

use super::{Bound, report, warn_if_busy};
use crate::fabric::Place;
use crate::kube::assets::Assets;
use crate::product::Profile;
use crate::{packages, product};

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    latency: latency::Figures,
    size: size::Figures,
    anycast: anycast::Figures,
    bounds: Vec<Bound>,
}

pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench services")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr", "nftables"]))?;
    let (assets, kube_proxy) = match (Assets::find(place)?, Assets::proxy(place)?) {
        (Ok(assets), Ok(kube_proxy)) => (assets, kube_proxy),
        (Err(missing), _) | (_, Err(missing)) => bail!("{missing}"),
    };
    let nodes = product::build(place, Profile::Release)?;
    warn_if_busy();
    let latency = latency::measure(place, &assets, &kube_proxy, &nodes)?;
    let size = size::measure(place, &assets, &nodes)?;
    let anycast = anycast::measure(place, &assets, &nodes)?;
    let words = format!("{latency}\n{size}\n{anycast}\n");
    let bounds: Vec<Bound> =
        [latency.bounds(), size.bounds(), anycast.bounds()].into_iter().flatten().collect();
    let figures = Figures { bench: "services", latency, size, anycast, bounds };
    report(json, &figures, &words, &figures.bounds)
}
