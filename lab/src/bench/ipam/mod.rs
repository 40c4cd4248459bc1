//! `cargo lab bench ipam`: the cost of address allocation for pods, in three parts.
//!
//! - [`memory`]: address selection alone, in a /12 that is nearly full: criterion's measurement in
//!   `controller/benches/ipam.rs`.
//! - [`server`]: 2,000 pods at once on a real API server, compared with a plain loop that makes the
//!   same writes.
//! - [`agent`]: cost of 10,000 IPInstances of other nodes for a node's agent, compared with 10,000
//!   unrelated objects.

mod agent;
mod memory;
pub(super) mod server;

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
    in_memory: memory::Figures,
    api_server: server::Figures,
    agent: agent::Figures,
    bounds: Vec<Bound>,
}

pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench ipam")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr"]))?;
    let assets = match Assets::find(place)? {
        Ok(assets) => assets,
        Err(missing) => bail!("{missing}"),
    };
    let (nodes, controller) =
        (product::build(place, Profile::Release)?, product::build_controller(place, Profile::Release)?);
    warn_if_busy();
    let in_memory = memory::measure(place)?;
    let api_server = server::measure(place, &assets, &controller)?;
    let agent = agent::measure(place, &assets, &nodes)?;
    let words = format!("  {in_memory}\n  {api_server}\n  {agent}\n");
    let bounds: Vec<Bound> =
        [in_memory.bounds(), api_server.bounds(), agent.bounds()].into_iter().flatten().collect();
    let figures = Figures { bench: "ipam", in_memory, api_server, agent, bounds };
    report(json, &figures, &words, &figures.bounds)
}
