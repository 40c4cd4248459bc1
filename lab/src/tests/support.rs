//! `trunkline support-bundle` on a node of a real fabric with session passwords: with a running
//! agent, with a stopped agent, and with a killed agent. tar unpacks the archive, and grep searches
//! it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use trunkline_api::control::{Peer, PodStatus, Route};

use super::bed::{PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::client;
use crate::cni::{self, Sandbox};
use crate::host::Host;
use crate::shell::{cmd, run};

pub(super) const TESTS: &[Test] = &[Test {
    name: "operator/support-bundle",
    about: "a bundle of a node with TCP-MD5 passwords has all parts and no password; without a running agent only the agent's answers are missing",
    run: support_bundle,
}];

const NODE: &str = "node1a";
/// The password in the manifests and in the routers.
const PASSWORD: &str = "rack1-lab-secret";
/// Files of every bundle.
const ALWAYS: &[&str] = &[
    "README.md",
    "manifest.json",
    "doctor.txt",
    "doctor.json",
    "config/agent.json",
    "config/effective.json",
    "config/manifests/networks.yaml.json",
    "config/manifests/subnets.yaml.json",
    "cni/files.txt",
    "kernel/links.txt",
    "kernel/addresses.txt",
    "kernel/rules.txt",
    "kernel/routes.txt",
    "kernel/neighbours.txt",
    "kernel/nftables.txt",
    "kernel/nftables-policy.txt",
    "kernel/sysctls.txt",
    "host/kernel.txt",
    "host/meminfo.txt",
    "host/clock.txt",
    "host/files.txt",
];
/// Files that need an agent.
const OF_THE_AGENT: &[&str] = &[
    "agent/status.txt",
    "agent/status.json",
    "agent/peers.txt",
    "agent/peers.json",
    "agent/peers/10.11.0.1.txt",
    "agent/events.txt",
    "agent/events.json",
    "agent/pods.txt",
    "agent/pods.json",
    "agent/policies.txt",
    "agent/policies.json",
    "agent/routes.txt",
    "agent/routes.json",
    "agent/advertised/10.11.0.1.txt",
    "agent/advertised/10.11.0.1.json",
    "agent/metrics.txt",
];

/// An unpacked bundle.
struct Bundle {
    folder: PathBuf,
    /// The output during the collection.
    output_text: String,
    took: Duration,
}

impl Bundle {
    fn collect(node: &Host, name: &str, more: &[&str]) -> Result<Bundle> {
        let file = node.folder.join(format!("{name}.tar.gz"));
        let file = file.to_str().context("the file's name is not text")?;
        let began = Instant::now();
        let output =
            node.command("trunkline", [&["support-bundle", "--output", file], more].concat()).output()?;
        let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success() && output.stdout.is_empty(), "{}: {output_text}", output.status);
        ensure!(!output_text.contains(PASSWORD), "the output has the password: {output_text}");
        let into = node.folder.join(name);
        std::fs::create_dir(&into)?;
        run(cmd("tar", ["-xzf", file, "-C"]).arg(&into))?;
        let mut folders = std::fs::read_dir(&into)?;
        let folder = folders.next().context("the archive is empty")??.path();
        ensure!(folders.next().is_none(), "the archive is not one folder");
        let begins = format!("trunkline-{}-2", node.name);
        let named = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&begins));
        ensure!(named, "{} is no name of a bundle", folder.display());
        let bundle = Bundle { folder, output_text, took: began.elapsed() };
        bundle.holds(ALWAYS)?;
        bundle.nothing_secret(Path::new(file))?;
        Ok(bundle)
    }

    fn holds(&self, parts: &[&str]) -> Result<()> {
        for part in parts {
            ensure!(!self.text(part)?.is_empty(), "{part} is empty");
        }
        Ok(())
    }

    fn nothing_secret(&self, archive: &Path) -> Result<()> {
        // grep's status 1 means that it found nothing.
        let found = cmd("grep", ["-raF", PASSWORD]).arg(&self.folder).output()?;
        let text = String::from_utf8_lossy(&found.stdout);
        ensure!(found.status.code() == Some(1), "the password is in {}: {text}", archive.display());
        Ok(())
    }

    fn text(&self, part: &str) -> Result<String> {
        let path = self.folder.join(part);
        std::fs::read_to_string(&path)
            .with_context(|| format!("{part} is missing; the output was: {}", self.output_text))
    }

    fn json<T: serde::de::DeserializeOwned>(&self, part: &str) -> Result<T> {
        let text = self.text(part)?;
        serde_json::from_str(&text).with_context(|| format!("{part}: {text}"))
    }

    fn says(&self, part: &str, words: &str) -> Result<()> {
        let text = self.text(part)?;
        ensure!(text.contains(words), "{part} lacks {words:?}: {text}");
        Ok(())
    }
}

fn support_bundle(context: &Context) -> Result<Verdict> {
    lab(context, "two-racks", |bed| {
        let node = bed.host(NODE)?;
        client::wait_established(node, PATIENCE)?;
        let manifests = bed.manifest_of(NODE, "networks.yaml").read()?;
        ensure!(manifests.contains(PASSWORD), "the manifests have no password, so the search has no meaning");
        let pod = Sandbox::create(bed.fabric, NODE, "ticket")?;
        let attached = cni::add(bed.fabric, &cni::trunkline(Some("rack1")), &pod)?;
        let address = attached.addresses.first().context("no address")?.to_string();

        let whole = Bundle::collect(node, "whole", &[])?;
        whole.holds(OF_THE_AGENT)?;
        let peers: Vec<Peer> = whole.json("agent/peers.json")?;
        ensure!(peers.len() == 2 && peers.iter().all(|peer| peer.is_established()), "{peers:?}");
        let pods: Vec<PodStatus> = whole.json("agent/pods.json")?;
        ensure!(pods.iter().any(|it| it.container_id == pod.container_id), "{pods:?}");
        let advertised: Vec<Route> = whole.json("agent/advertised/10.11.0.1.json")?;
        let host_route = |route: &Route| route.prefix.addr().to_string() == address;
        ensure!(advertised.iter().any(host_route), "the pod's {address} is not among {advertised:?}");
        let all: Vec<Route> = whole.json("agent/routes.json")?;
        ensure!(all.iter().any(host_route), "the pod's {address} is not among {all:?}");
        whole.says("config/manifests/networks.yaml.json", "\"password\": \"[redacted]\"")?;
        whole.says("config/effective.json", "\"selectionDeferralSeconds\"")?;
        whole.says("kernel/routes.txt", &format!("{address}/32"))?;
        whole.says("kernel/rules.txt", "1000: from all lookup 39999 # trunkline's")?;
        whole.says("agent/metrics.txt", "# TYPE trunkline_")?;
        whole.says("agent/events.txt", "sessionUp")?;
        whole.says("host/process-status.txt", "VmRSS")?;
        let manifest: Value = whole.json("manifest.json")?;
        ensure!(manifest["node"] == NODE && manifest["agentAnswered"] == true, "{manifest}");

        let cut = Bundle::collect(node, "cut", &["--routes", "1"])?;
        let few: Vec<Route> = cut.json("agent/routes.json")?;
        ensure!(!few.is_empty() && few.iter().all(|route| route.prefix == few[0].prefix), "{few:?}");
        cut.says("README.md", "the other prefixes: there are more than 1 (--routes)")?;
        let listed = node.sh("trunkline support-bundle --output - 2>/dev/null | tar -tzf -")?;
        ensure!(listed.lines().any(|line| line.ends_with("/agent/peers.json")), "standard output: {listed}");

        let agent = client::agent(node)?;
        kill_process(agent, Signal::STOP)?;
        let stopped = Bundle::collect(node, "stopped", &[]);
        kill_process(agent, Signal::CONT)?;
        let stopped = stopped?;
        stopped.says("README.md", "**The agent did not answer**")?;

        client::end_agent(node, Signal::KILL)?;
        let killed = Bundle::collect(node, "killed", &[])?;
        killed.says("README.md", "**The agent did not answer**")?;
        killed.says("README.md", "no agent answers at /run/trunkline/agent.sock")?;
        killed.says("doctor.txt", "no agent answers at")?;
        killed.says("kernel/routes.txt", &format!("{address}/32"))?;
        ensure!(killed.output_text.contains("agent: status"), "{}", killed.output_text);
        ensure!(
            !killed.folder.join("agent").exists(),
            "the bundle has answers of an agent that does not run"
        );
        client::start_agent(node)?;
        passed(format!(
            "{:.1} s, with a stopped agent {:.1} s, with none {:.1} s",
            whole.took.as_secs_f32(),
            stopped.took.as_secs_f32(),
            killed.took.as_secs_f32()
        ))
    })
}
