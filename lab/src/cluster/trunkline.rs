//! Trunkline on a cluster, as `docs/install.md` has it: the CRDs, the chart, a Network for each rack.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::{PATIENCE, RealCluster, images};
use crate::fabric::Place;
use crate::product;
use crate::shell::{Seen, run, wait_for};

pub(super) const NAMESPACE: &str = "trunkline-system";

/// Makes the image's archive from programs that are built.
pub(super) fn image(place: &Place, product: &Path, folder: &Path) -> Result<PathBuf> {
    let root = folder.join("image");
    product::image_root(place, product, &root)?;
    let archive = folder.join("trunkline.tar");
    images::trunkline(&root, &format!("docker.io/library/trunkline:{}", version(place)?), &archive)?;
    std::fs::remove_dir_all(root)?;
    Ok(archive)
}

/// The tag of the chart's default image.
fn version(place: &Place) -> Result<String> {
    let file = place.repository.join("deploy/helm/trunkline/Chart.yaml");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let line = text.lines().find_map(|line| line.strip_prefix("appVersion:"));
    let version = line.with_context(|| format!("{} has no appVersion", file.display()))?;
    Ok(version.trim().trim_matches('"').to_owned())
}

/// Installs the chart, creates the Networks, and waits until every node is ready.
pub(super) fn install(cluster: &RealCluster, place: &Place) -> Result<()> {
    let deploy = place.repository.join("deploy");
    let crds = deploy.join("crds");
    cluster.kubectl(&[
        "apply",
        "--server-side",
        "-f",
        crds.to_str().context("the repository's path is not text")?,
    ])?;
    let chart = deploy.join("helm/trunkline");
    let chart = chart.to_str().context("the repository's path is not text")?;
    // Upstream's tests create Services without a class.
    let values = format!("defaultIPFamily={},services.defaultClass=true", cluster.layout().chart_family());
    run(&mut cluster.control_command(
        &cluster.programs().helm,
        &["install", "trunkline", chart, "--namespace", NAMESPACE, "--create-namespace", "--set", &values],
    )?)?;
    cluster.rolled_out(NAMESPACE, "deployment/trunkline-controller")?;
    // The webhook denies Networks until its Service is reachable from the API server.
    let networks = cluster.layout().networks() + &cluster.layout().pool();
    wait_for("the Networks to be admitted", PATIENCE, || cluster.apply(&networks).map(Seen::Yes))?;
    cluster.rolled_out(NAMESPACE, "daemonset/trunkline-agent")
}
