//! Sysctls, written only where they differ.
//!
//! `/proc/sys/net` is that of the network namespace of the thread that looks, wherever it is mounted. A container that is not
//! privileged has it read-only; the chart mounts the host's `/proc/sys/net` once more and says so in [`VARIABLE`].

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::plan::Sysctl;

/// The environment variable that says where `/proc/sys` can be written.
pub(crate) const VARIABLE: &str = "TRUNKLINE_PROC_SYS";
const ALL_REVERSE_PATH: &str = "net/ipv4/conf/all/rp_filter";
const FORWARDING_V6: &str = "net/ipv6/conf/all/forwarding";

/// The file of a sysctl, `net/ipv4/ip_forward`.
pub(crate) fn file(path: &str) -> PathBuf {
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
pub(super) fn apply(path: &str, wanted: &Sysctl) -> Result<bool, String> {
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
    if path == FORWARDING_V6 {
        keep_router_advertisements();
    }
    fs::write(&file, value).map_err(failed)?;
    tracing::info!(sysctl = path, from = found.trim(), to = value, "sysctl written");
    Ok(true)
}

/// A host that forwards IPv6 ignores router advertisements, and would lose a default route that it has from one; `accept_ra` 2 says
/// "also when forwarding". Only where it was 1: who switched it off meant it.
fn keep_router_advertisements() {
    let Ok(links) = fs::read_dir(file("net/ipv6/conf")) else { return };
    for link in links.flatten() {
        let file: PathBuf = link.path().join("accept_ra");
        if link.file_name() != "all" && fs::read(&file).is_ok_and(|value| value.starts_with(b"1")) {
            // A link that vanishes meanwhile needs nothing.
            let _ = fs::write(&file, "2");
        }
    }
}
