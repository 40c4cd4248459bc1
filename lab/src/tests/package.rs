//! Tests of the Debian package: contents, installation, removal. A second installation keeps the
//! administrator's configuration.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{Context, Test, Verdict, passed};
use crate::fabric::Place;
use crate::shell::{cmd, run};
use crate::{deb, packages};

pub(super) const TESTS: &[Test] = &[Test {
    name: "package/deb",
    about: "the Debian package is complete, installs into a bare system, keeps its configuration and can be removed; its unit is valid",
    run: package,
}];

/// Mode and path of required files.
const CONTENTS: [(&str, &str); 12] = [
    ("-rwxr-xr-x", "./usr/bin/trunkline"),
    ("-rwxr-xr-x", "./usr/lib/cni/trunkline-cni"),
    ("-rw-r--r--", "./etc/trunkline/agent.yaml"),
    ("-rw-r--r--", "./usr/lib/systemd/system/trunkline.service"),
    ("-rw-r--r--", "./usr/share/doc/trunkline/agent.example.yaml"),
    ("-rw-r--r--", "./usr/share/doc/trunkline/examples/bgp.yaml"),
    ("-rw-r--r--", "./usr/share/doc/trunkline/copyright"),
    ("-rw-r--r--", "./usr/share/man/man1/trunkline.1.gz"),
    ("-rw-r--r--", "./usr/share/man/man1/trunkline-peers-reset.1.gz"),
    ("-rw-r--r--", "./usr/share/bash-completion/completions/trunkline"),
    ("-rw-r--r--", "./usr/share/zsh/vendor-completions/_trunkline"),
    ("-rw-r--r--", "./usr/share/fish/vendor_completions.d/trunkline.fish"),
];

fn package(context: &Context) -> Result<Verdict> {
    if let Some(why) = deb::missing() {
        return Ok(Verdict::Skipped(why.to_owned()));
    }
    let file = deb::build(&context.place)?;
    contents(&file)?;
    let exposure = unit(&context.place, &file)?;
    installed(&context.place, &file)?;
    let size = std::fs::metadata(&file)?.len();
    passed(format!(
        "{} of {size} octets, the unit's exposure is {exposure}",
        file.file_name().unwrap_or_default().display()
    ))
}

fn contents(file: &Path) -> Result<()> {
    let list = run(cmd("dpkg-deb", ["--contents"]).arg(file))?;
    for (mode, path) in CONTENTS {
        let line = list.lines().find(|line| line.split_whitespace().last() == Some(path));
        let line = line.with_context(|| format!("{path} is not in the package:\n{list}"))?;
        // dpkg-deb prints the names of user and group only if it knows them.
        let owned = ["0/0", "root/root"].map(|owner| format!("{mode} {owner}"));
        ensure!(owned.iter().any(|start| line.starts_with(start)), "{line}");
    }
    let field = |name: &str| run(cmd("dpkg-deb", ["--field"]).arg(file).arg(name));
    let depends = field("Depends")?;
    ensure!(depends.contains("libc6") && depends.contains("nftables"), "Depends: {depends}");
    ensure!(field("Version")?.trim().starts_with(env!("CARGO_PKG_VERSION")), "{}", field("Version")?);
    let conffiles = run(cmd("dpkg-deb", ["--info"]).arg(file).arg("conffiles"))?;
    ensure!(conffiles.trim() == "/etc/trunkline/agent.yaml", "conffiles: {conffiles}");
    Ok(())
}

/// systemd's own assessment of the unit: its exposure, from 0 to 10.
fn unit(place: &Place, file: &Path) -> Result<String> {
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        return Ok("unknown, because systemd is not installed".to_owned());
    }
    let root = scratch(place, "deb-files")?;
    run(cmd("dpkg-deb", ["--extract"]).arg(file).arg(&root))?;
    let unit = root.join("usr/lib/systemd/system/trunkline.service");
    let text = std::fs::read_to_string(&unit)?;
    // The copy of the unit names the program in the unpacked package.
    let here = root.join("trunkline.service");
    std::fs::write(
        &here,
        text.replace("/usr/bin/trunkline", &root.join("usr/bin/trunkline").display().to_string()),
    )?;
    run(cmd("systemd-analyze", ["verify", "--man=no"]).arg(&here)).context("systemd-analyze verify")?;
    // From 4.0 on, systemd no longer calls a service OK.
    let said =
        run(cmd("systemd-analyze", ["security", "--offline=yes", "--no-pager", "--threshold=40"]).arg(&here))
            .context("systemd-analyze security")?;
    let level = said.lines().rev().find_map(|line| line.split(": ").nth(1)).context("no exposure level")?;
    std::fs::remove_dir_all(&root)?;
    Ok(level.split_whitespace().next().unwrap_or_default().to_owned())
}

/// Installs the package in a separate system, edits its configuration, installs it again, removes
/// it, and purges it.
fn installed(place: &Place, file: &Path) -> Result<()> {
    packages::need(["debootstrap"])?;
    let root = scratch(place, "deb-root")?;
    let suite = run(&mut cmd("sh", ["-c", ". /etc/os-release && echo $VERSION_CODENAME"]))?;
    run(cmd("debootstrap", ["--variant=minbase", "--include=nftables", suite.trim()]).arg(&root))?;
    std::fs::copy(file, root.join("trunkline.deb"))?;
    let inside =
        |args: &[&str]| run(cmd("chroot", [&root]).args(args).env("DEBIAN_FRONTEND", "noninteractive"));
    let there = |path: &str| root.join(path).exists();

    inside(&["dpkg", "--install", "/trunkline.deb"])?;
    ensure!(inside(&["trunkline", "--version"])?.contains(env!("CARGO_PKG_VERSION")), "trunkline --version");
    let complete = "source /usr/share/bash-completion/completions/trunkline && complete -p trunkline";
    inside(&["bash", "-c", complete]).context("the completions for bash")?;
    let version = inside(&[
        "sh",
        "-c",
        "CNI_COMMAND=VERSION /usr/lib/cni/trunkline-cni <<E\n{\"cniVersion\": \"1.0.0\"}\nE",
    ])?;
    ensure!(version.contains("1.1.0"), "the plugin prints {version}");
    inside(&["trunkline", "agent", "--check", "--config", "/etc/trunkline/agent.yaml"])
        .context("the agent.yaml that is shipped")?;
    let mode = inside(&["stat", "-c", "%a", "/etc/trunkline/manifests"])?;
    ensure!(mode.trim() == "700", "the manifests' folder has mode {mode}");
    ensure!(
        !there("etc/systemd/system/multi-user.target.wants/trunkline.service"),
        "the service is enabled by its installation"
    );

    let own = "# the administrator's own\nmanifests: /etc/trunkline/manifests\n";
    std::fs::write(root.join("etc/trunkline/agent.yaml"), own)?;
    std::fs::write(root.join("etc/trunkline/manifests/rack.yaml"), "")?;
    inside(&["dpkg", "--install", "/trunkline.deb"])?;
    let kept = std::fs::read_to_string(root.join("etc/trunkline/agent.yaml"))?;
    ensure!(kept == own, "a second installation overwrote agent.yaml: {kept}");

    inside(&["dpkg", "--remove", "trunkline"])?;
    ensure!(!there("usr/bin/trunkline") && there("etc/trunkline/agent.yaml"), "after dpkg --remove");
    std::fs::create_dir_all(root.join("var/lib/trunkline"))?;
    inside(&["dpkg", "--purge", "trunkline"])?;
    ensure!(!there("etc/trunkline/agent.yaml") && !there("var/lib/trunkline"), "after dpkg --purge");
    ensure!(there("etc/trunkline/manifests/rack.yaml"), "dpkg --purge deleted the administrator's manifests");
    std::fs::remove_dir_all(&root)?;
    Ok(())
}

/// An empty folder for the test.
fn scratch(place: &Place, name: &str) -> Result<PathBuf> {
    let folder = place.state.join("test").join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
