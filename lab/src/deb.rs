//! The Debian package for hosts without Kubernetes: agent and plugin as released, packed by `cargo
//! deb` with the settings in `cli/Cargo.toml`.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use crate::fabric::Place;
use crate::shell::{cmd, run};
use crate::{docs, product};

/// The reason for which no package can be built here, if any.
pub(crate) fn missing() -> Option<&'static str> {
    let mut version = cmd("cargo", ["deb", "--version"]);
    let there = version.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!there.is_ok_and(|status| status.success()))
        .then_some("cargo-deb is not installed (cargo install --locked cargo-deb)")
}

/// Builds the programs and the package; returns its path.
pub(crate) fn build(place: &Place) -> Result<PathBuf> {
    if let Some(why) = missing() {
        bail!("{why}");
    }
    product::build(place, product::Profile::Release)?;
    docs::man::write(place.state.parent().context("the target folder")?)?;
    let into = place.state.join("deb");
    std::fs::create_dir_all(&into)?;
    let mut pack = product::cargo();
    pack.args(["deb", "--no-build", "--package", "trunkline", "--output"]).arg(&into);
    let printed = run(pack.current_dir(&place.repository).env("CARGO_TERM_COLOR", "never"))?;
    let path =
        printed.lines().rev().find(|line| line.ends_with(".deb")).context("cargo deb names no package")?;
    Ok(place.repository.join(path))
}
