//! The daemons of each image, as packaged by Debian.

use std::process::Child;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::fabric::Fabric;
use crate::host::Host;
use crate::shell::{Seen, wait_for};
use crate::topology::Image;

/// Starts the daemons of all nodes at the same time.
pub(crate) fn start_all(fabric: &Fabric) -> Result<()> {
    std::thread::scope(|scope| {
        let starting: Vec<_> = fabric
            .topology
            .nodes
            .iter()
            .map(|(name, node)| {
                let image = node.image;
                let env: Vec<(&str, &str)> = node.env.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
                scope.spawn(move || {
                    start(fabric.host(name)?, image, &env).with_context(|| format!("node {name}"))
                })
            })
            .collect();
        starting.into_iter().try_for_each(|s| s.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })
}

fn start(host: &Host, image: Image, env: &[(&str, &str)]) -> Result<()> {
    match image {
        Image::Host => Ok(()),
        Image::Frr => start_frr(host),
        Image::Bird => start_bird(host),
        Image::GoBgp => start_gobgp(host, env),
        Image::Node => start_agent(host, env).map(|_| ()),
    }
}

/// Starts the daemons in /etc/frr/daemons, then loads the configuration, as frrinit.sh does, by the
/// script in FRR's image.
pub(crate) fn start_frr(host: &Host) -> Result<()> {
    host.sh(include_str!("../images/frr")).map(drop)
}

/// Starts BIRD, with real-time priority if it has BFD: its one thread sends BFD packets every 50 ms
/// beside its other work, and a router has its processors for itself. `bfdd_wrap` is the same for FRR.
/// A higher `nice` has no effect: the kernel's groups of sessions share the processors. Not every
/// container allows real-time priority.
fn start_bird(host: &Host) -> Result<()> {
    host.sh(
        "wrap=; if grep -q '^protocol bfd' /etc/bird/bird.conf; then wrap='chrt --rr 1'; $wrap true || wrap=; fi
         $wrap bird -c /etc/bird/bird.conf",
    )
    .map(drop)
}

pub(crate) fn start_gobgp(host: &Host, env: &[(&str, &str)]) -> Result<()> {
    host.daemon("gobgpd.log", "gobgpd", &["-f", "/etc/gobgp/gobgpd.toml", "--log-plain"], env)?;
    wait_for(&format!("gobgpd on {}", host.name), Duration::from_secs(10), || {
        let asked = host.run("gobgp", ["global"]);
        Ok(Seen::when(asked.is_ok(), || asked.err().map(|e| format!("{e:#}")).unwrap_or_default()))
    })
}

/// Starts the node's agent and returns at once; the caller waits for readiness if needed.
pub(crate) fn start_agent(host: &Host, env: &[(&str, &str)]) -> Result<Child> {
    let program = host.product.join("trunkline");
    if !host.contained && !program.exists() {
        bail!("{} is not built", program.display());
    }
    host.daemon("agent.log", "trunkline", &["agent", "--config", "/etc/trunkline/agent.yaml"], env)
}

/// Runs commands in a router's vtysh.
pub(crate) fn vtysh(host: &Host, commands: &[&str]) -> Result<String> {
    let args = commands.iter().flat_map(|c| ["-c", c]);
    host.run("vtysh", args)
}

/// The answer to one of FRR's `show … json` commands.
pub(crate) fn vtysh_json(host: &Host, command: &str) -> Result<serde_json::Value> {
    let text = host.run("vtysh", ["-c", command])?;
    serde_json::from_str(&text).with_context(|| format!("{}: {command}: {text}", host.name))
}
