//! `cargo lab bench services`: speed and size of service addresses, on a real API server, with the
//! agent and FRR ToRs of the topology one-rack.
//!
//! - [`latency`]: time from a change of an endpoint until the ToR's kernel has the route or has
//!   lost it, with 1,000 Services; with the real kube-proxy, and with `services.proxy.kind: none`.
//! - [`size`]: the agent's memory with 10,000 Services and 50,000 endpoints, and its processor time
//!   for one endpoint's change with 10 and with 10,000 Services. With `--before`, also those of an
//!   earlier commit.
//! - [`anycast`]: time from the end of a program until its anycast address has left the ToR.
//!
//! Only the API server, kube-proxy and the agent run. The bench writes Services with their status
//! and EndpointSlices, as the controllers do. Local endpoints have the node's own address.

mod anycast;
mod latency;
mod size;
mod world;

use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;

use super::{Bound, report, warn_if_busy};
use crate::cli::ServicesPart;
use crate::fabric::Place;
use crate::kube::assets::Assets;
use crate::product::Profile;
use crate::{packages, product};

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<latency::Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<size::Figures>,
    /// Those of the programs in the folder `--before`.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_before: Option<size::Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    anycast: Option<anycast::Figures>,
    bounds: Vec<Bound>,
}

pub(crate) fn bench(
    place: &Place,
    json: bool,
    parts: &[ServicesPart],
    before: Option<&Path>,
) -> Result<bool> {
    packages::need_root("cargo lab bench services")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr", "nftables"]))?;
    let (assets, kube_proxy) = match (Assets::find(place)?, Assets::proxy(place)?) {
        (Ok(assets), Ok(kube_proxy)) => (assets, kube_proxy),
        (Err(missing), _) | (_, Err(missing)) => bail!("{missing}"),
    };
    let nodes = product::build(place, Profile::Release)?;
    warn_if_busy();
    let has = |part| parts.is_empty() || parts.contains(&part);
    let of_latency = || latency::measure(place, &assets, &kube_proxy, &nodes);
    let latency = has(ServicesPart::Latency).then(of_latency).transpose()?;
    let of_size = |nodes| size::measure(place, &assets, nodes);
    let before = before.filter(|_| has(ServicesPart::Size));
    let size_before = before.map(of_size).transpose()?;
    let size = has(ServicesPart::Size).then(|| of_size(&nodes)).transpose()?;
    let anycast = has(ServicesPart::Anycast).then(|| anycast::measure(place, &assets, &nodes)).transpose()?;

    let mut words = String::new();
    let mut bounds = Vec::new();
    if let Some(latency) = &latency {
        words += &format!("{latency}\n");
        bounds.extend(latency.bounds());
    }
    if let Some(before) = &size_before {
        words += &format!("  the earlier commit:\n{before}\n  this commit:\n");
    }
    if let Some(size) = &size {
        words += &format!("{size}\n");
        bounds.extend(size.bounds());
    }
    if let Some(anycast) = &anycast {
        words += &format!("{anycast}\n");
        bounds.extend(anycast.bounds());
    }
    let figures = Figures { bench: "services", latency, size, size_before, anycast, bounds };
    report(json, &figures, &words, &figures.bounds)
}
