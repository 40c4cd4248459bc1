//! Evidence of a failed lab in one folder: every node's logs, captures, routes, rules and links,
//! the routers' own view, and the error.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::fabric::Fabric;
use crate::host::Host;
use crate::topology::Image;

const EVERY_NODE: [(&str, &str); 7] = [
    ("links.txt", "ip -d -s addr show"),
    ("routes.txt", "ip route show table all; echo; ip -6 route show table all"),
    ("rules.txt", "ip rule show; echo; ip -6 rule show"),
    ("neighbours.txt", "ip neigh show"),
    ("bridge.txt", "bridge -d link; bridge vlan; bridge fdb"),
    (
        "counters.txt",
        "nstat -asz | grep -v ' 0  '; cat /proc/net/stat/nf_conntrack /proc/net/stat/ndisc_cache /proc/net/stat/arp_cache /proc/net/softnet_stat",
    ),
    ("sockets.txt", "ss -tnp state all 2>/dev/null | grep -v TIME-WAIT; ps -o pid,etime,rss,args"),
];

const FRR: [(&str, &str); 3] = [
    ("bgp-summary.txt", "vtysh -c 'show bgp summary' -c 'show bgp neighbors'"),
    ("bgp-table.txt", "vtysh -c 'show bgp ipv4 unicast' -c 'show bgp ipv6 unicast'"),
    ("running-config.txt", "vtysh -c 'show running-config'"),
];
const BIRD: [(&str, &str); 1] = [("bird.txt", "birdc show protocols all; birdc show route all")];
const GOBGP: [(&str, &str); 1] =
    [("gobgp.txt", "gobgp neighbor; gobgp global rib -a ipv4; gobgp global rib -a ipv6")];
const TRUNKLINE: [(&str, &str); 1] = [(
    "trunkline.txt",
    "for c in status peers routes pods; do echo \"# trunkline $c\"; trunkline $c; trunkline $c -o json; done; nft list ruleset",
)];

/// Starts to record the BGP messages of every Trunkline node in its log folder. Containers are not
/// recorded, because they have no folder on the machine.
pub(crate) fn capture(fabric: &Fabric) -> Result<()> {
    for node in fabric.topology.with_image(Image::Node) {
        let host = fabric.host(node)?;
        if host.contained {
            continue;
        }
        let file = host.folder.join("log/bgp.pcap");
        let args = ["-i", "any", "-Z", "root", "-U", "-w", &file.display().to_string(), "tcp port 179"];
        let _until_the_lab_ends = host.daemon("tcpdump.log", "tcpdump", &args, &[])?;
    }
    Ok(())
}

/// Gathers everything; returns the folder.
pub(crate) fn gather(fabric: &Fabric, error: &str) -> Result<PathBuf> {
    let folder = fabric.failure_folder();
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("error.txt"), format!("{error}\n"))?;
    for host in fabric.hosts.values() {
        let into = folder.join(&host.name);
        std::fs::create_dir_all(&into)?;
        let image = fabric.topology.nodes.get(&host.name).map(|n| n.image);
        let own: &[(&str, &str)] = match image {
            Some(Image::Frr) => &FRR,
            Some(Image::Bird) => &BIRD,
            Some(Image::GoBgp) => &GOBGP,
            Some(Image::Node) => &TRUNKLINE,
            Some(Image::Host) | None => &[],
        };
        for (file, command) in EVERY_NODE.iter().chain(own) {
            look(host, command, &into.join(file));
        }
        copy_logs(&host.logs(), &into);
    }
    Ok(folder)
}

/// Stores the output of one command. The output of a failed command is also stored, because it may
/// be useful.
fn look(host: &Host, command: &str, into: &Path) {
    let shown = host.command("timeout", ["10", "sh", "-c", &format!("({command}) 2>&1")]).output();
    let text = shown.map_or_else(|e| e.to_string().into_bytes(), |o| o.stdout);
    let _full_disk = std::fs::write(into, text);
}

/// Copies a tree of logs into one folder.
pub(crate) fn copy_logs(from: &Path, into: &Path) {
    let Ok(entries) = std::fs::read_dir(from) else { return };
    for entry in entries.flatten() {
        if entry.path().is_dir() {
            copy_logs(&entry.path(), into);
        } else {
            let _full_disk = std::fs::copy(entry.path(), into.join(entry.file_name()));
        }
    }
}
