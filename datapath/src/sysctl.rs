//! Sysctls. A sysctl is written only if its value differs.
//!
//! `/proc/sys/net` shows the network namespace of the reading thread, at every mount point. It is
//! read-only in an unprivileged container. So the chart mounts the host's `/proc/sys/net` a second
//! time and sets `TRUNKLINE_PROC_SYS` to this mount point.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::plan::Sysctl;

/// The environment variable with the path of a writable `/proc/sys`.
const VARIABLE: &str = "TRUNKLINE_PROC_SYS";
const ALL_REVERSE_PATH: &str = "net/ipv4/conf/all/rp_filter";
pub(crate) const FORWARDING_V6: &str = "net/ipv6/conf/all/forwarding";

/// The reason why a sysctl does not have the wanted value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SysctlError {
    /// It cannot be read or written.
    #[error("sysctl {path}: {error}: write the value by hand, or give the agent write access to {}", .file.display())]
    File {
        path: String,
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    /// The value for all links also applies to this link.
    #[error(
        "net.ipv4.conf.all.rp_filter is {all} and also applies to {path}: the kernel drops packets of pods that arrive on this link if the reply \
         leaves by another link. Write 0 to net.ipv4.conf.all.rp_filter. If links need the check, write {all} to \
         net.ipv4.conf.default.rp_filter and to these links"
    )]
    ReversePathOfAll { all: String, path: String },
    /// A setting of a pod's device cannot be written.
    #[error("sysctl {path}: {error}")]
    Device {
        path: String,
        #[source]
        error: io::Error,
    },
}

/// The file of a sysctl such as `net/ipv4/ip_forward`.
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

/// Sets one sysctl to the wanted value. Returns whether a write was necessary.
pub(crate) fn apply(path: &str, wanted: &Sysctl) -> Result<bool, SysctlError> {
    let file = file(path);
    let failed = |error: io::Error| SysctlError::File { path: path.to_owned(), file: file.clone(), error };
    let found = match (fs::read_to_string(&file), wanted) {
        (Err(error), Sysctl::IfThere(_) | Sysctl::AtLeast(_)) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(false);
        }
        (found, _) => found.map_err(failed)?,
    };
    let value = match wanted {
        Sysctl::Exactly(value) | Sysctl::IfThere(value) if found.trim() != *value => (*value).to_owned(),
        Sysctl::AtLeast(least) => match found.trim().parse::<i64>() {
            Ok(there) if there >= i64::from(*least) => return Ok(false),
            _ => least.to_string(),
        },
        // The kernel uses the greater of the two values; 1 is strict, 2 is loose.
        Sysctl::LooseReversePath => {
            let all = fs::read_to_string(self::file(ALL_REVERSE_PATH)).unwrap_or_default();
            if all.trim().max(found.trim()) != "1" {
                return Ok(false);
            }
            "2".to_owned()
        }
        Sysctl::NoReversePath => {
            let all = fs::read_to_string(self::file(ALL_REVERSE_PATH)).unwrap_or_default();
            if all.trim() != "0" {
                // The interface's value is written in any case, because an administrator may set
                // `all` to 0 later.
                if found.trim() != "0" {
                    fs::write(&file, "0").map_err(failed)?;
                }
                let (all, path) = (all.trim().to_owned(), path.to_owned());
                return Err(SysctlError::ReversePathOfAll { all, path });
            }
            if found.trim() == "0" {
                return Ok(false);
            }
            "0".to_owned()
        }
        _ => return Ok(false),
    };
    fs::write(&file, &value).map_err(failed)?;
    tracing::info!(sysctl = path, from = found.trim(), to = value, "sysctl written");
    Ok(true)
}

/// A folder below `/proc/sys`, and settings of each host interface in it.
type Settings = (&'static str, &'static [(&'static str, &'static str)]);

/// Settings that netlink cannot write: no router advertisements and no redirects from the pod.
const POD_DEVICE: Settings = ("net/ipv6/conf", &[("accept_ra", "0"), ("accept_redirects", "0")]);
/// Whether the kernel answers unicast Neighbour Solicitations for proxy entries, by which a neighbour
/// checks its entry. Multicast ones depend on the setting of the link alone.
pub const PROXY_V6: &str = "net/ipv6/conf/all/proxy_ndp";

/// Settings of a host interface with proxy entries: the node answers requests for them, and at once.
const PROXY_DEVICE: [Settings; 3] = [
    ("net/ipv6/conf", &[("proxy_ndp", "1")]),
    ("net/ipv6/neigh", &[("proxy_delay", "0")]),
    ("net/ipv4/neigh", &[("proxy_delay", "0")]),
];

/// Writes the settings of pods' devices in the network namespace of one thread.
///
/// Each folder is opened once. A look-up of `/proc/sys/net/ipv6` by path passes the entries of every
/// other network namespace, so its cost grows with each pod.
#[derive(Debug, Default)]
pub(crate) struct PodSettings {
    folders: BTreeMap<&'static str, OwnedFd>,
}

impl PodSettings {
    /// Writes the settings of a pod's device.
    pub(crate) fn apply(&mut self, ifname: &str, has_proxies: bool) -> Result<(), SysctlError> {
        self.write(ifname, POD_DEVICE)?;
        let more = PROXY_DEVICE.into_iter().filter(|_| has_proxies);
        more.into_iter().try_for_each(|settings| self.write(ifname, settings))
    }

    fn write(&mut self, ifname: &str, (path, settings): Settings) -> Result<(), SysctlError> {
        let failed = |path: String| move |error| SysctlError::Device { path, error };
        if !self.folders.contains_key(path) {
            let Some(folder) = open_folder(path).map_err(failed(path.to_owned()))? else { return Ok(()) };
            self.folders.insert(path, folder);
        }
        let Some(folder) = self.folders.get(path) else { return Ok(()) };
        for (setting, value) in settings {
            write_setting(folder, &format!("{ifname}/{setting}"), value)
                .map_err(failed(format!("{path}/{ifname}/{setting}")))?;
        }
        Ok(())
    }
}

/// Opens a folder; none if the kernel does not have this family.
fn open_folder(path: &str) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(file(path), flags, Mode::empty()) {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes a setting of a device; nothing if the device is deleted.
fn write_setting(folder: &OwnedFd, path: &str, value: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(folder, path, flags, Mode::empty())
        .and_then(|file| rustix::io::write(file, value.as_bytes()))
    {
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Keeps default routes from router advertisements. A host that forwards IPv6 ignores
/// advertisements with `accept_ra` 1 and loses such a route; with 2 it still accepts them. Only
/// links with such a route are changed, and only from 1, because 0 is an administrator's decision.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_only_raised() {
        let folder = std::env::temp_dir().join(format!("tl-sysctl-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("limit");
        let path = file.to_str().expect("UTF-8").to_owned();
        let least = |value| apply(&path, &Sysctl::AtLeast(value)).expect("written");
        // The kernel of a network namespace lacks some limits.
        assert!(!least(10));
        for (there, wanted, changed, after) in [
            ("5\n", 10, true, "10"),
            ("10\n", 10, false, "10\n"),
            ("2147483647\n", 10, false, "2147483647\n"),
            ("-1\n", 10, true, "10"),
        ] {
            fs::write(&file, there).expect("written");
            assert_eq!(
                (least(wanted), fs::read_to_string(&file).expect("read").as_str()),
                (changed, after),
                "{there}"
            );
        }
        fs::remove_dir_all(&folder).expect("removed");
    }
}
