//! The images of the nodes, from `lab/images/Containerfile`: a stage for each of [`Image`].
//!
//! The base is this machine's own release, from a registry if one is reachable, otherwise from
//! debootstrap. So programs of this machine run in the images, and the daemons are the same as in
//! the runner.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::docker::docker;
use crate::fabric::Place;
use crate::packages;
use crate::progress::{say, step};
use crate::shell::{cmd, run};
use crate::topology::{Image, Topology};

/// Folder of the product's programs in the image of a node.
pub(crate) const PROGRAMS: &str = "/usr/local/bin";

/// Inputs of the images besides the Containerfile.
const FILES: [&str; 5] = ["Containerfile", "first", "frr", "agent", "pod"];

/// Builds the images of these topologies, with their names and with this product. Unchanged images
/// are not built again.
pub(crate) fn build<'a>(
    place: &Place,
    topologies: impl IntoIterator<Item = &'a Topology>,
    product: &Path,
) -> Result<usize> {
    let wanted: BTreeSet<(Image, &str)> = topologies
        .into_iter()
        .flat_map(|topology| topology.nodes.values())
        .map(|node| (node.image, node.image_name.as_str()))
        .collect();
    let base = base(place)?;
    let context = place.state.join("images");
    std::fs::create_dir_all(&context)?;
    let copy = |from: &Path, name: &str| {
        std::fs::copy(from.join(name), context.join(name))
            .with_context(|| from.join(name).display().to_string())
    };
    for name in FILES {
        copy(&place.repository.join("lab/images"), name)?;
    }
    for name in ["trunkline", "trunkline-cni"] {
        copy(product, name)?;
    }
    for (image, name) in &wanted {
        step(&format!("image {name}"), || {
            // Packages are installed over the machine's own network, because any other network may
            // not reach a mirror.
            let mut build = docker(["build", "--quiet", "--network", "host", "--target", image.stage()]);
            build.args(["--build-arg", &format!("BASE={base}"), "--tag", name, "--file"]);
            run(build.arg(context.join("Containerfile")).arg(&context)).map(drop)
        })?;
    }
    Ok(wanted.len())
}

/// Finds, pulls or creates the base image, and returns its name.
fn base(place: &Place) -> Result<String> {
    let (system, suite) = release(&std::fs::read_to_string("/etc/os-release").unwrap_or_default())?;
    let own = format!("trunkline-lab/base:{suite}");
    let is_there = |name: &str| run(&mut docker(["image", "inspect", "--format", "{{.Id}}", name])).is_ok();
    let official =
        if system == "debian" { format!("debian:{suite}-slim") } else { format!("ubuntu:{suite}") };
    if let Some(there) = [&official, &own].into_iter().find(|name| is_there(name)) {
        return Ok(there.clone());
    }
    let pull = || {
        let mut pull = cmd("timeout", ["120", "docker", "pull", "--quiet", &official]);
        super::docker::direct(&mut pull);
        run(&mut pull)
    };
    match pull() {
        Ok(_) => return Ok(official),
        Err(e) => say(&format!("  {official} cannot be pulled, so debootstrap makes a base: {e:#}")),
    }
    packages::need(["debootstrap"])?;
    let root = place.state.join("images-root");
    remove(&root)?;
    step(&format!("debootstrap of {suite}"), || {
        run(cmd("debootstrap", ["--variant=minbase", &suite]).arg(&root)).map(drop)
    })?;
    step(&format!("importing {own}"), || import(&root, &own))?;
    remove(&root)?;
    Ok(own)
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| folder.display().to_string())
        }
        _ => Ok(()),
    }
}

/// A tree as an image of one layer.
fn import(root: &Path, name: &str) -> Result<()> {
    let mut tar = Command::new("tar")
        .args([
            "--create",
            "--exclude=./var/cache/apt/archives/*.deb",
            "--exclude=./var/lib/apt/lists/*",
            "--directory",
        ])
        .arg(root)
        .arg(".")
        .stdout(Stdio::piped())
        .spawn()
        .context("tar")?;
    let tree = tar.stdout.take().context("tar's output")?;
    let imported = docker(["import", "-", name]).stdin(tree).stdout(Stdio::null()).status();
    let packed = tar.wait()?;
    let imported = imported.context("docker")?;
    ensure!(packed.success() && imported.success(), "tar ended with {packed}, docker import with {imported}");
    Ok(())
}

/// Distribution and code name, from the text of /etc/os-release.
fn release(text: &str) -> Result<(String, String)> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    match (value("ID"), value("VERSION_CODENAME")) {
        (Some(system), Some(suite)) if system == "debian" || system == "ubuntu" => Ok((system, suite)),
        (system, _) => bail!(
            "images have the release of the machine, which must be Debian or Ubuntu, and this is {}",
            system.unwrap_or_else(|| "neither".to_owned())
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_image_has_the_machines_release() {
        let debian =
            release("NAME=\"Debian GNU/Linux\"\nVERSION_CODENAME=bookworm\nID=debian\n").expect("a release");
        assert_eq!(debian, ("debian".to_owned(), "bookworm".to_owned()));
        let error = release("ID=fedora\nVERSION_ID=42\n").expect_err("not Debian").to_string();
        assert!(error.contains("fedora"), "{error}");
    }
}
