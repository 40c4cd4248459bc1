//! The container runtime's configuration, and the links of other networks.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use trunkline_agent::config::Config;
use trunkline_agent::source::kube::SourceKind;
use trunkline_datapath::netlink::{Batch, Connection, objects};

use super::Finding;
use crate::hybridnet;
use crate::install::{self, InstallPaths};

/// The fix for a missing reference plugin.
const REFERENCE_PLUGINS: &str = "run `trunkline install-cni` again, which copies it from the image; on a host without the image, install the \
                                 reference plugins (containernetworking-plugins) before";

/// Links of other networks, by the prefix of their names.
const OTHERS: &[(&str, &str)] = &[
    ("cali", "Calico"),
    ("cilium_", "Cilium"),
    ("lxc", "Cilium"),
    ("flannel.", "Flannel"),
    ("weave", "Weave Net"),
    ("kube-bridge", "kube-router"),
    ("ovn0", "Kube-OVN"),
    ("antrea-gw", "Antrea"),
];

/// Checks the runtime's folders, hybridnet's daemon, and the links of other networks.
pub(super) fn check(place: &InstallPaths, config: Option<&Config>) -> Vec<Finding> {
    let mut findings = runtime(place, config.is_some_and(|config| config.source == SourceKind::Kube));
    if let Err(error) = hybridnet::refuse_if_running() {
        let fix = "remove the node from the DaemonSet hybridnet-daemon: docs/migrate-from-hybridnet.md";
        findings.push(Finding::error("hybridnet", error.to_string(), fix));
    }
    match links() {
        Ok(names) => findings.extend(leftovers(&names)),
        Err(error) => findings.push(Finding::warning(
            "other-networks",
            format!("the links cannot be listed: {error}"),
            "run this as root on the host",
        )),
    }
    findings
}

fn links() -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut connection = Connection::open()?;
    let links = connection.list(Batch::dump_links, objects::read_link)?;
    Ok(links.into_iter().map(|link| link.name).collect())
}

/// One finding for each network, however many links it has.
fn leftovers(names: &[String]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (begins, network) in OTHERS {
        let Some(name) = names.iter().find(|name| name.starts_with(begins)) else { continue };
        let text = format!("{network} is or was on this host: link {name}");
        if findings.iter().any(|finding| finding.text.starts_with(network)) {
            continue;
        }
        findings.push(Finding::warning(
            "other-networks",
            text,
            "two networks on one host undo each other's rules: uninstall the other network; if it \
             is uninstalled already, restart the host, which removes its links and rules",
        ));
    }
    findings
}

/// Checks the runtime's folders. In a cluster, a missing configuration in this folder is an error.
/// Outside a cluster it is none: the runtime may read another folder, or there is no runtime.
fn runtime(place: &InstallPaths, cluster: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ours = place.conf_dir.join(&place.conf_name);
    let install = "`trunkline install-cni` installs both";
    if !ours.exists() {
        if cluster {
            let text =
                format!("{} does not exist: the kubelet attaches no pod through Trunkline", ours.display());
            findings.push(Finding::error("cni-configuration", text, install));
        }
        return findings;
    }
    match install::first(&place.conf_dir) {
        Ok(Some(first)) if first != ours => findings.push(Finding::error(
            "cni-configuration",
            format!("{} precedes {}: the runtime uses the first one", first.display(), ours.display()),
            "remove the other file, or give Trunkline's an earlier name (`trunkline install-cni \
             --conf-name`)",
        )),
        Ok(_) => {}
        Err(error) => {
            findings.push(Finding::warning("cni-configuration", format!("{error:#}"), "run this as root"))
        }
    }
    let plugin = place.bin_dir.join(install::PLUGIN);
    if let Some(fault) = not_runnable(&plugin) {
        let text = format!("{} {fault}: the runtime fails every pod", plugin.display());
        findings.push(Finding::error("cni-plugin", text, install));
    }
    findings.extend(loopback(place, cluster));
    findings.extend(port_mappings(place, &ours, cluster));
    findings
}

/// Runtimes such as containerd run `loopback` for each pod, whatever the configuration is. Some,
/// such as CRI-O, do not need it.
fn loopback(place: &InstallPaths, cluster: bool) -> Option<Finding> {
    let program = place.bin_dir.join(install::LOOPBACK);
    let fault = not_runnable(&program).filter(|_| cluster)?;
    Some(Finding::warning(
        "loopback-plugin",
        format!("{} {fault}: runtimes that run it, such as containerd, start no pod", program.display()),
        REFERENCE_PLUGINS,
    ))
}

/// Without `portmap`, the kubelet reports no error, and a hostPort has no effect.
fn port_mappings(place: &InstallPaths, ours: &Path, cluster: bool) -> Option<Finding> {
    let list: serde_json::Value = serde_json::from_str(&fs::read_to_string(ours).ok()?).ok()?;
    let plugins = list["plugins"].as_array()?;
    let listed = plugins.iter().any(|plugin| plugin["type"] == install::PORTMAP);
    let program = place.bin_dir.join(install::PORTMAP);
    match (listed, not_runnable(&program)) {
        (true, Some(fault)) => Some(Finding::error(
            "host-ports",
            format!(
                "{} {fault}, and {} names it: the runtime fails every pod",
                program.display(),
                ours.display()
            ),
            REFERENCE_PLUGINS,
        )),
        (false, _) if cluster => Some(Finding::warning(
            "host-ports",
            format!("{} does not name `portmap`: hostPort has no effect on this node", ours.display()),
            REFERENCE_PLUGINS,
        )),
        _ => None,
    }
}

fn not_runnable(program: &Path) -> Option<String> {
    match fs::metadata(program) {
        Err(error) => Some(format!("cannot be run ({error})")),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => {
            Some("cannot be run (no execute bit)".to_owned())
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.check.as_str()).collect()
    }

    #[test]
    fn the_runtimes_folders() {
        let folder = tempfile::tempdir().unwrap();
        let (bin_dir, conf_dir) = (folder.path().join("bin"), folder.path().join("net.d"));
        let place = InstallPaths { bin_dir, conf_dir, conf_name: "05-trunkline.conflist".to_owned() };
        assert_eq!(names(&runtime(&place, false)), [""; 0], "no runtime reads this folder");
        assert_eq!(names(&runtime(&place, true)), ["cni-configuration"]);
        fs::create_dir_all(&place.conf_dir).unwrap();
        fs::create_dir_all(&place.bin_dir).unwrap();
        fs::write(place.conf_dir.join("05-trunkline.conflist"), "{}").unwrap();
        assert_eq!(names(&runtime(&place, true)), ["cni-plugin", "loopback-plugin"]);
        let plugin = place.bin_dir.join(install::PLUGIN);
        fs::write(&plugin, "").unwrap();
        assert_eq!(names(&runtime(&place, false)), ["cni-plugin"], "the program has no execute bit");
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(names(&runtime(&place, true)), ["loopback-plugin"]);
        assert_eq!(names(&runtime(&place, false)), [""; 0], "this host may have no runtime that runs it");
        let loopback = place.bin_dir.join(install::LOOPBACK);
        fs::write(&loopback, "").unwrap();
        assert_eq!(names(&runtime(&place, true)), ["loopback-plugin"], "no execute bit");
        fs::set_permissions(&loopback, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(names(&runtime(&place, true)), [""; 0]);
        fs::write(place.conf_dir.join("10-later.conflist"), "{}").unwrap();
        assert_eq!(names(&runtime(&place, true)), [""; 0]);
        let list = |types: &[&str]| {
            let plugins: Vec<_> = types.iter().map(|kind| serde_json::json!({ "type": kind })).collect();
            let text = serde_json::json!({ "plugins": plugins }).to_string();
            fs::write(place.conf_dir.join("05-trunkline.conflist"), text).unwrap();
        };
        list(&[install::PLUGIN]);
        assert_eq!(names(&runtime(&place, true)), ["host-ports"], "hostPort has no effect");
        assert_eq!(names(&runtime(&place, false)), [""; 0]);
        list(&[install::PLUGIN, install::PORTMAP]);
        assert_eq!(names(&runtime(&place, false)), ["host-ports"], "the program does not exist");
        fs::write(place.conf_dir.join("05-trunkline.conflist"), "{}").unwrap();
        fs::write(place.conf_dir.join("00-earlier.conf"), "{}").unwrap();
        assert_eq!(names(&runtime(&place, true)), ["cni-configuration"]);
    }

    #[test]
    fn each_other_network_is_reported_once() {
        let links = ["lo", "eth0", "lxc1", "cilium_host", "cali0a", "cali0b", "tl0123456789ab", "calico-not"];
        let found = leftovers(&links.map(str::to_owned));
        let texts: Vec<&str> = found.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(
            texts,
            ["Calico is or was on this host: link cali0a", "Cilium is or was on this host: link cilium_host"]
        );
        assert_eq!(leftovers(&["lo", "eth0", "docker0"].map(str::to_owned)), []);
    }
}
