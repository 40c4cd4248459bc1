//! Debian packages that the lab needs: missing ones are installed without a prompt.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};

use crate::progress::{say, step};
use crate::shell::{cmd, run};

/// Packages of every lab, with any routers.
pub(crate) const ALWAYS: [&str; 4] = ["iproute2", "util-linux", "nftables", "tcpdump"];

/// If this process does not run as root, fails with the correct command line.
pub(crate) fn need_root(what: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    bail!(
        "{what} needs root: it creates network namespaces and starts routers in them. Run it as \
         root, for example: sudo -E env \"PATH=$PATH\" cargo lab …"
    );
}

/// Installs the packages that are missing.
pub(crate) fn need(packages: impl IntoIterator<Item = &'static str>) -> Result<()> {
    // dpkg allows only one installation at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted: BTreeSet<&str> = packages.into_iter().collect();
    let missing: Vec<&str> = wanted.into_iter().filter(|p| !installed(p)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "these programs are missing: {}. This is not Debian or Ubuntu: install them with your own package manager",
            missing.join(", ")
        );
    }
    say(&format!("missing Debian packages: {}", missing.join(", ")));
    let apt = |args: &[&str]| -> Command {
        let mut command = cmd("apt-get", ["-q", "-y", "-o", "Dpkg::Use-Pty=0"]);
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    step("apt-get update", || run(&mut apt(&["update"])))?;
    let mut install = vec!["install", "--no-install-recommends"];
    install.extend(&missing);
    // Debian starts a daemon after its installation. Here a daemon must run only inside the lab.
    let keep_daemons_off = ServicePolicy::deny()?;
    step(&format!("apt-get install {}", missing.join(" ")), || run(&mut apt(&install)))?;
    drop(keep_daemons_off);
    Ok(())
}

/// Whether apt can install a package. Empty package lists are updated first.
pub(crate) fn available(package: &str) -> Result<bool> {
    let known = || run(&mut cmd("apt-cache", ["show", "--no-all-versions", package])).is_ok();
    if known() || !Path::new("/usr/bin/apt-get").exists() {
        return Ok(known());
    }
    step("apt-get update", || run(&mut cmd("apt-get", ["-q", "update"])))?;
    Ok(known())
}

fn installed(package: &str) -> bool {
    let mut query = cmd("dpkg-query", ["-W", "-f", "${db:Status-Status}", package]);
    run(&mut query).is_ok_and(|status| status == "installed")
}

/// A /usr/sbin/policy-rc.d that denies service starts, until this value is dropped. An existing
/// file stays.
struct ServicePolicy {
    ours: bool,
}

impl ServicePolicy {
    const PATH: &'static str = "/usr/sbin/policy-rc.d";

    fn deny() -> Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        if Path::new(Self::PATH).exists() {
            return Ok(Self { ours: false });
        }
        std::fs::write(Self::PATH, "#!/bin/sh\nexit 101\n")?;
        std::fs::set_permissions(Self::PATH, std::fs::Permissions::from_mode(0o755))?;
        Ok(Self { ours: true })
    }
}

impl Drop for ServicePolicy {
    fn drop(&mut self) {
        if self.ours {
            let _left = std::fs::remove_file(Self::PATH);
        }
    }
}
