//! `trunkline doctor` on hosts with one deliberate fault each, and on the same host without faults.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::bed::{Bed, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::client;
use crate::shell::{Seen, wait_for};

pub(super) const TESTS: &[Test] = &[Test {
    name: "doctor/broken-hosts",
    about: "ten hosts with one fault each: the doctor names fault, severity and remedy, and finds nothing after the repair",
    run: broken_hosts,
}];

/// A fault of a host.
struct Fault {
    name: &'static str,
    /// The check that finds the fault.
    check: &'static str,
    /// A word in the finding.
    word: &'static str,
    /// The exit code.
    code: i32,
    cause: fn(&Bed<'_>) -> Result<()>,
    mend: fn(&Bed<'_>) -> Result<()>,
}

/// Runs a line on the node.
macro_rules! line {
    ($line:expr) => {
        |bed| bed.node()?.sh($line).map(drop)
    };
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "forwarding is off",
        check: "sysctl",
        word: "ip_forward is 0",
        code: 2,
        cause: line!("echo 0 >/proc/sys/net/ipv4/ip_forward"),
        mend: line!("echo 1 >/proc/sys/net/ipv4/ip_forward"),
    },
    Fault {
        name: "forwarding of IPv6 is off",
        check: "sysctl",
        word: "forwarding is 0",
        code: 2,
        cause: line!("echo 0 >/proc/sys/net/ipv6/conf/all/forwarding"),
        mend: line!("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"),
    },
    Fault {
        name: "a strict reverse path check",
        check: "rp_filter",
        word: "eth1",
        code: 2,
        cause: line!(
            "echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter; echo 1 >/proc/sys/net/ipv4/conf/eth1/rp_filter"
        ),
        mend: line!("echo 2 >/proc/sys/net/ipv4/conf/eth1/rp_filter"),
    },
    Fault {
        name: "uplinks of different MTUs",
        check: "mtu",
        word: "eth2 1400",
        code: 1,
        cause: line!("ip link set eth2 mtu 1400"),
        mend: line!("ip link set eth2 mtu 1500"),
    },
    Fault {
        name: "a firewall that drops forwarded packets",
        check: "firewall",
        word: "inet strict forward",
        code: 1,
        cause: line!(
            "nft 'add table inet strict; add chain inet strict forward { type filter hook forward priority 0; policy drop; }'"
        ),
        mend: line!("nft delete table inet strict"),
    },
    Fault {
        name: "another network's configuration comes first",
        check: "cni-configuration",
        word: "00-other.conflist",
        code: 2,
        cause: line!("echo '{}' >/tmp/doctor/net.d/00-other.conflist"),
        mend: line!("rm /tmp/doctor/net.d/00-other.conflist"),
    },
    Fault {
        name: "the plugin is gone",
        check: "cni-plugin",
        word: "trunkline-cni",
        code: 2,
        cause: line!("mv /tmp/doctor/bin/trunkline-cni /tmp/doctor/bin/away"),
        mend: line!("mv /tmp/doctor/bin/away /tmp/doctor/bin/trunkline-cni"),
    },
    Fault {
        name: "another network is on the host",
        check: "other-networks",
        word: "Calico",
        code: 1,
        cause: line!("ip link add cali0123456789a type veth peer name away"),
        mend: line!("ip link del cali0123456789a"),
    },
    Fault {
        name: "a manifest is refused",
        check: "manifests",
        word: "netID",
        code: 2,
        cause: |bed| bed.manifest("networks.yaml").edit("netID: 65101", "netID: many"),
        mend: |bed| bed.manifest("networks.yaml").edit("netID: many", "netID: 65101"),
    },
    Fault {
        name: "no route to a peer",
        check: "route-to-peer",
        word: "10.2.0.1",
        code: 2,
        cause: line!("ip addr del 10.2.0.11/24 dev eth2"),
        mend: line!("ip addr add 10.2.0.11/24 dev eth2"),
    },
    Fault {
        name: "a router that does not answer",
        check: "peers",
        word: "10.1.0.1",
        code: 2,
        cause: |bed| bed.host("tor1")?.silence(),
        mend: |bed| bed.host("tor1")?.end_silence(),
    },
    Fault {
        name: "a link to a router is down",
        check: "route-to-peer",
        word: "10.1.0.1",
        code: 2,
        cause: line!("ip link set eth1 down"),
        mend: line!("ip link set eth1 up"),
    },
    Fault {
        name: "the configuration has a fault",
        check: "config",
        word: "maxPaths",
        code: 2,
        cause: line!(
            "cp /etc/trunkline/agent.yaml /tmp/doctor/good.yaml; echo 'maxPaths: 0' >>/etc/trunkline/agent.yaml"
        ),
        mend: line!("cat /tmp/doctor/good.yaml >/etc/trunkline/agent.yaml"),
    },
    Fault {
        name: "no agent runs",
        check: "agent",
        word: "no agent answers",
        code: 2,
        cause: |bed| client::end_agent(bed.node()?, Signal::TERM),
        mend: |bed| client::start_agent(bed.node()?),
    },
    Fault {
        name: "the store is damaged",
        check: "store",
        word: "is damaged",
        code: 2,
        cause: |bed| {
            client::end_agent(bed.node()?, Signal::TERM)?;
            bed.node()?.sh("mv /var/lib/trunkline/store.redb /tmp/doctor/store; echo damaged >/var/lib/trunkline/store.redb")?;
            client::start_agent(bed.node()?)
        },
        mend: |bed| {
            client::end_agent(bed.node()?, Signal::TERM)?;
            bed.node()?.sh("mv /tmp/doctor/store /var/lib/trunkline/store.redb")?;
            client::start_agent(bed.node()?)
        },
    },
];

/// The doctor's findings on the node, and its exit code. Findings about this machine (such as a
/// clock without synchronization) are excluded. They do not affect the exit code either.
fn examine(bed: &Bed<'_>) -> Result<(Vec<Value>, i32)> {
    let args = ["doctor", "-o", "json", "--conf-dir", "/tmp/doctor/net.d", "--bin-dir", "/tmp/doctor/bin"];
    let output = bed.node()?.command("trunkline", args).stdin(Stdio::null()).output()?;
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the doctor printed {}", String::from_utf8_lossy(&output.stderr)))?;
    let (clock, rest): (Vec<Value>, Vec<Value>) = findings.into_iter().partition(|f| f["check"] == "clock");
    let code = output.status.code().context("the doctor was killed")?;
    Ok((rest.clone(), if rest.is_empty() && !clock.is_empty() { code - 1 } else { code }))
}

fn well(bed: &Bed<'_>, after: &str) -> Result<()> {
    wait_for(&format!("the doctor to find nothing {after}"), PATIENCE, || {
        let (findings, code) = examine(bed)?;
        Ok(Seen::when(findings.is_empty() && code == 0, || format!("{code}: {findings:?}")))
    })
}

fn broken_hosts(context: &Context) -> Result<Verdict> {
    lab(context, "one-rack", |bed| {
        bed.established()?;
        // The node's /tmp is this machine's, so the node gets a folder of its own there.
        bed.node()?
            .sh("mkdir -p /tmp/doctor && mount -t tmpfs doctor /tmp/doctor && mkdir /tmp/doctor/bin")?;
        let plugin = bed.node()?.product.join("trunkline-cni");
        ensure!(std::fs::metadata(&plugin)?.permissions().mode() & 0o111 != 0, "the plugin cannot be run");
        let plugin = plugin.display().to_string();
        let install =
            ["install-cni", "--conf-dir", "/tmp/doctor/net.d", "--bin-dir", "/tmp/doctor/bin", "--plugin"];
        bed.node()?.run("trunkline", [install.as_slice(), &[plugin.as_str()]].concat())?;
        well(bed, "on a healthy host")?;
        for fault in FAULTS {
            (fault.cause)(bed).with_context(|| fault.name)?;
            wait_for(&format!("the doctor to find: {}", fault.name), PATIENCE, || {
                let (findings, code) = examine(bed)?;
                let found = findings.iter().find(|f| {
                    f["check"] == fault.check
                        && f["text"].as_str().is_some_and(|text| text.contains(fault.word))
                });
                let fix = found.and_then(|f| f["fix"].as_str()).is_some_and(|fix| !fix.is_empty());
                Ok(Seen::when(fix && code == fault.code, || format!("{code}: {findings:?}")))
            })?;
            (fault.mend)(bed).with_context(|| fault.name)?;
            well(bed, &format!("after the repair: {}", fault.name))?;
        }
        passed(format!("{} faults", FAULTS.len()))
    })
}
