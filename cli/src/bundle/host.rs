//! Facts of the host: kernel, load, interfaces' counters, sysctls, clock, the agent's process, and
//! its log.
//!
//! All files are listed one by one; no folder is included as a whole. `/proc/cmdline`, a process's
//! environment and command line, and `net.ipv6.conf.*.stable_secret` may contain secrets.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rustix::system::uname;
use trunkline_datapath::sysctl;

use super::step::Sink;
use super::{program, shapes};
use crate::clock::is_synchronised;

/// Maximum number of octets that are read from a kernel file.
const MAX_OCTETS: u64 = 1 << 20;
/// Maximum number of links with listed sysctls.
const LINKS: usize = 64;

/// Files that depend on the namespace show the namespace of this process: the host's, or the
/// agent's pod's.
const FILES: &[(&str, &str)] = &[
    ("/etc/os-release", "host/os-release.txt"),
    ("/proc/uptime", "host/uptime.txt"),
    ("/proc/loadavg", "host/loadavg.txt"),
    ("/proc/meminfo", "host/meminfo.txt"),
    ("/proc/modules", "host/modules.txt"),
    ("/proc/net/dev", "host/net-dev.txt"),
    ("/proc/net/snmp", "host/net-snmp.txt"),
    ("/proc/net/snmp6", "host/net-snmp6.txt"),
    ("/proc/net/netstat", "host/net-netstat.txt"),
    ("/proc/net/sockstat", "host/net-sockstat.txt"),
    ("/proc/net/softnet_stat", "host/net-softnet.txt"),
];

const SYSCTLS: &[&str] = &[
    "net/ipv4/ip_forward",
    "net/ipv4/fib_multipath_hash_policy",
    "net/ipv4/fib_multipath_use_neigh",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/neigh/default/gc_thresh1",
    "net/ipv4/neigh/default/gc_thresh2",
    "net/ipv4/neigh/default/gc_thresh3",
    "net/ipv4/tcp_l3mdev_accept",
    "net/ipv6/neigh/default/gc_thresh1",
    "net/ipv6/neigh/default/gc_thresh2",
    "net/ipv6/neigh/default/gc_thresh3",
    "net/ipv6/fib_multipath_hash_policy",
    "net/ipv6/route/max_size",
    "net/core/optmem_max",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "net/core/netdev_max_backlog",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
];
const OF_LINKS: &[&str] = &[
    "net/ipv4/conf/LINK/forwarding",
    "net/ipv4/conf/LINK/rp_filter",
    "net/ipv4/conf/LINK/arp_filter",
    "net/ipv4/conf/LINK/arp_ignore",
    "net/ipv4/conf/LINK/arp_announce",
    "net/ipv4/conf/LINK/proxy_arp",
    "net/ipv4/conf/LINK/accept_local",
    "net/ipv6/conf/LINK/disable_ipv6",
    "net/ipv6/conf/LINK/forwarding",
    "net/ipv6/conf/LINK/accept_ra",
    "net/ipv6/conf/LINK/proxy_ndp",
];

/// Collects kernel, load, memory, counters and clock.
pub(super) fn facts(sink: &Sink) -> anyhow::Result<()> {
    let name = uname();
    let words = [name.sysname(), name.nodename(), name.release(), name.version(), name.machine()];
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    sink.text("host/kernel.txt", words.join(" ") + "\n")?;
    let kept = match is_synchronised() {
        Some(true) => "the kernel's clock is synchronised",
        Some(false) => "the kernel's clock is not synchronised",
        None => "the kernel does not report whether its clock is synchronised",
    };
    sink.text("host/clock.txt", format!("{}\n{kept}\n", k8s_openapi::jiff::Timestamp::now()))?;
    for (file, path) in FILES {
        sink.either(*path, read(Path::new(file)))?;
    }
    Ok(())
}

/// Collects the sysctls of routing and neighbours, including the links' sysctls.
pub(super) fn sysctls(sink: &Sink) -> anyhow::Result<()> {
    let mut text = String::new();
    let mut line = |path: &str| {
        if let Ok(value) = fs::read_to_string(sysctl::file(path)) {
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            // A dot in a link's name is written as a slash, as sysctl(8) does.
            let name = path.split('/').map(|part| part.replace('.', "/")).collect::<Vec<_>>().join(".");
            let _ = writeln!(text, "{name} = {value}");
        }
    };
    SYSCTLS.iter().for_each(|path| line(path));
    let mut links: Vec<String> = fs::read_dir(sysctl::file("net/ipv4/conf"))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    // The order: `all` and `default` first, pods' links last, because all pods' links have equal
    // settings.
    let is_pods = |name: &str| name.starts_with("tl") && name.len() == 14;
    links.sort_by_key(|name| (!matches!(name.as_str(), "all" | "default"), is_pods(name), name.clone()));
    let more = links.len().saturating_sub(LINKS);
    for link in links.iter().take(LINKS) {
        OF_LINKS.iter().for_each(|path| line(&path.replace("LINK", link)));
    }
    sink.text("kernel/sysctls.txt", text)?;
    if more > 0 {
        sink.missing(format!("sysctls of {more} links"), format!("the limit is {LINKS} links"))?;
    }
    Ok(())
}

/// Collects the resource usage of the agent's process.
pub(super) fn process(process: u32, sink: &Sink) -> anyhow::Result<()> {
    let folder = Path::new("/proc").join(process.to_string());
    for (file, path) in [
        ("status", "host/process-status.txt"),
        ("limits", "host/process-limits.txt"),
        ("smaps_rollup", "host/process-memory.txt"),
        ("schedstat", "host/process-schedstat.txt"),
        ("cgroup", "host/process-cgroup.txt"),
    ] {
        sink.either(path, read(&folder.join(file)))?;
    }
    let open = fs::read_dir(folder.join("fd")).map(|files| format!("{} open files\n", files.count()));
    sink.either("host/process-files.txt", open)
}

/// Collects the unit's state in systemd, and the last lines of its log.
pub(super) fn journal(lines: usize, sink: &Sink) -> anyhow::Result<()> {
    const UNIT: &str = "trunkline.service";
    const SHOWN: &str = "LoadState,ActiveState,SubState,Result,NRestarts,ExecMainPID,ExecMainStartTimestamp,ExecMainExitTimestamp,ExecMainCode,ExecMainStatus,MemoryCurrent,MemoryPeak,TasksCurrent";
    let show = ["show", UNIT, "--no-pager", "-p", SHOWN];
    match program::run("systemctl", &show, Duration::from_secs(5)) {
        Ok(printed) if printed.succeeded => sink.text("log/unit.txt", printed.text)?,
        Ok(printed) => sink.missing("log/unit.txt", format!("systemctl: {}", printed.text.trim()))?,
        Err(why) => sink.missing("log/unit.txt", why)?,
    }
    let lines = lines.to_string();
    let args = ["-u", UNIT, "-n", &lines, "--no-pager", "--utc", "-o", "short-iso-precise"];
    let elsewhere =
        "read the agent's log at its output: kubectl logs of its pod, or the program that started it";
    let why = match program::run("journalctl", &args, Duration::from_secs(20)) {
        Ok(printed) if printed.succeeded && has_entries(&printed.text) => {
            return sink.text("log/journal.txt", shapes::hide_quoted_lines(&printed.text));
        }
        Ok(printed) if printed.succeeded => format!("journald has no entry of {UNIT}"),
        Ok(printed) => format!("journalctl: {}", printed.text.trim()),
        Err(why) => format!("{why:#}"),
    };
    sink.missing("log/journal.txt", format!("{why}; {elsewhere}"))
}

/// Whether the text has log entries, and not only journalctl's own messages.
fn has_entries(text: &str) -> bool {
    let of_itself =
        |line: &str| line.is_empty() || line.starts_with("-- ") || line.starts_with("No journal files");
    text.lines().any(|line| !of_itself(line.trim()))
}

fn read(path: &Path) -> anyhow::Result<String> {
    let name = || path.display().to_string();
    let mut octets = Vec::new();
    let file = File::open(path).with_context(name)?;
    file.take(MAX_OCTETS).read_to_end(&mut octets).with_context(name)?;
    Ok(String::from_utf8_lossy(&octets).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_without_an_entry_is_not_a_log() {
        for text in ["", "-- No entries --\n", "No journal files were found.\n-- No entries --\n"] {
            assert!(!has_entries(text), "{text}");
        }
        assert!(has_entries("-- Boot 1 --\n2026-11-22T10:00:00.000000+00:00 node1 trunkline[1]: x\n"));
    }

    #[test]
    fn no_sysctl_is_a_secret() {
        assert!(SYSCTLS.iter().chain(OF_LINKS).all(|path| !path.contains("secret") && !path.contains("key")));
    }
}
