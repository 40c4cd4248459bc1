//! Tests on a real API server (see [`crate::kube`]), one file a topic. Each has a cluster of its own.

mod agent;
mod api_server;
mod chart;
pub(crate) mod crds;
mod disturbed;
mod overlay;
mod racks;
mod restored;
mod storm;
mod webhook;

use anyhow::Result;

use super::{Context, Test, Verdict};
use crate::kube::Cluster;
use crate::kube::assets::Assets;

pub(super) const TESTS: &[&[Test]] = &[
    agent::TESTS,
    api_server::TESTS,
    chart::TESTS,
    crds::TESTS,
    disturbed::TESTS,
    overlay::TESTS,
    racks::TESTS,
    restored::TESTS,
    webhook::TESTS,
];

/// Runs a test on a cluster of this name. Where there can be none, the test is skipped.
fn cluster(
    context: &Context,
    name: &str,
    test: impl FnOnce(&mut Cluster) -> Result<Verdict>,
) -> Result<Verdict> {
    match Assets::find(&context.place)? {
        Ok(assets) => Cluster::with(&context.place, name, &assets, test),
        Err(missing) => Ok(Verdict::Skipped(missing)),
    }
}
