//! Sysctls, written only where they differ.
//!
//! `/proc/sys/net` is that of the network namespace of the thread that looks, wherever it is mounted. A container that is not
//! privileged has it read-only; the chart mounts the host's `/proc/sys/net` once more and says so in `TRUNKLINE_PROC_SYS`.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::plan::Sysctl;

/// The environment variable that says where `/proc/sys` can be written.
const VARIABLE: &str = "TRUNKLINE_PROC_SYS";
const ALL_REVERSE_PATH: &str = "net/ipv4/conf/all/rp_filter";
pub(crate) const FORWARDING_V6: &str = "net/ipv6/conf/all/forwarding";

/// The file of a sysctl, `net/ipv4/ip_forward`.
pub fn file(path: &str) -> PathBuf {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    let root = ROOT.get_or_init(|| {
        std::env::var_os(VARIABLE)
            .filter(|root| !root.is_empty())
            .unwrap_or_else(|| "/proc/sys".into())
            .into()
    });
    root.join(path)
}

/// Brings one sysctl to what it should be. Whether it had to be written.
pub(crate) fn apply(path: &str, wanted: &Sysctl) -> Result<bool, String> {
    let file = file(path);
    let failed = |error: io::Error| {
        format!("sysctl {path}: {error}: write it by hand, or let the agent write to {}", file.display())
    };
    let found = match (fs::read_to_string(&file), wanted) {
        (Err(error), Sysctl::IfThere(_)) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        (found, _) => found.map_err(failed)?,
    };
    let value = match wanted {
        Sysctl::Exactly(value) | Sysctl::IfThere(value) if found.trim() != *value => value,
        // The kernel takes the greater of the two; 1 is strict, 2 is loose.
        Sysctl::LooseReversePath => {
            let all = fs::read_to_string(self::file(ALL_REVERSE_PATH)).unwrap_or_default();
            if all.trim().max(found.trim()) != "1" {
                return Ok(false);
            }
            &"2"
        }
        Sysctl::NoReversePath => {
            let all = fs::read_to_string(self::file(ALL_REVERSE_PATH)).unwrap_or_default();
            if all.trim() != "0" {
                // Somebody may write 0 to it later.
                if found.trim() != "0" {
                    fs::write(&file, "0").map_err(failed)?;
                }
                return Err(format!(
                    "net.ipv4.conf.all.rp_filter is {}, which counts for {path} too: packets of pods that come there and are answered by another \
                     way are dropped. Write 0 to it, and {} to net.ipv4.conf.default.rp_filter and to the links that it is meant for",
                    all.trim(),
                    all.trim()
                ));
            }
            if found.trim() == "0" {
                return Ok(false);
            }
            &"0"
        }
        _ => return Ok(false),
    };
    fs::write(&file, value).map_err(failed)?;
    tracing::info!(sysctl = path, from = found.trim(), to = value, "sysctl written");
    Ok(true)
}

/// Settings of the host's end of a pod's pair that netlink cannot write: it takes nothing from the pod about routers and routes.
const POD_DEVICE: [&str; 2] = ["accept_ra", "accept_redirects"];

/// Writes the IPv6 settings of pods' devices in the network namespace of one thread.
///
/// The folder is opened once: a look-up of `/proc/sys/net/ipv6` by its path passes the entries of every other network namespace, so it costs
/// more with each pod.
#[derive(Debug, Default)]
pub(crate) struct PodSettings {
    folder: Option<OwnedFd>,
}

impl PodSettings {
    /// Brings the settings of a pod's device to what they should be.
    pub(crate) fn close(&mut self, ifname: &str) -> Result<(), String> {
        const FOLDER: &str = "net/ipv6/conf";
        // The kernel has no IPv6, or the device is gone.
        let or_missing =
            |error: Errno| if error == Errno::NOENT { Ok(()) } else { Err(io::Error::from(error)) };
        let closed = |setting: &str, fd: &OwnedFd| -> Result<(), Errno> {
            let path = format!("{ifname}/{setting}");
            let file = rustix::fs::openat(fd, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(file, b"0").map(drop)
        };
        if self.folder.is_none() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            self.folder = match rustix::fs::open(file(FOLDER), flags, Mode::empty()) {
                Ok(folder) => Some(folder),
                Err(error) => return or_missing(error).map_err(|error| format!("sysctl {FOLDER}: {error}")),
            };
        }
        for setting in POD_DEVICE {
            let written = self.folder.as_ref().map_or(Ok(()), |folder| closed(setting, folder));
            written
                .or_else(or_missing)
                .map_err(|error| format!("sysctl {FOLDER}/{ifname}/{setting}: {error}"))?;
        }
        Ok(())
    }
}

/// A host that forwards IPv6 ignores router advertisements, and loses a default route that it has from one; `accept_ra` 2 means "also
/// when forwarding". Only links with such a route are changed, and only where the value is 1: 0 was meant.
pub(crate) fn keep_router_advertisements<'a>(links: impl Iterator<Item = &'a str>) {
    if fs::read(file(FORWARDING_V6)).is_ok_and(|value| !value.starts_with(b"0")) {
        return;
    }
    for link in links {
        let path = format!("net/ipv6/conf/{link}/accept_ra");
        if fs::read(file(&path)).is_ok_and(|value| value.starts_with(b"1")) {
            match fs::write(file(&path), "2") {
                Ok(()) => tracing::info!(sysctl = path, from = "1", to = "2", "sysctl written"),
                Err(error) => tracing::warn!("sysctl {path}: {error}"),
            }
        }
    }
}
