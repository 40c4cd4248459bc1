//! AgentSettings: fields of the agent's configuration by a label of the Node, live and after a start
//! without the API server.

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline_api::control::SettingStatus;

use super::agent::{KEY, Node, PATIENCE, on_a_node};
use super::{Test, Verdict};
use crate::client;
use crate::cni::{self, Sandbox};
use crate::shell::{Seen, cmd, run, wait_for};
use crate::tests::bed::lost_nothing;
use crate::tests::{Context, passed};

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/settings",
    about: "AgentSettings by a label of the Node: an MTU changes live and back, a field waits for a start, a \
            wrong object changes nothing, a start without the API server has the same settings",
    run: settings,
}];

/// agent.yaml's own values.
const FILE: &str = "maxPaths: 4\npodMTU: 1450";
const PEERS: [&str; 2] = ["10.1.0.1", "10.2.0.1"];

fn object(name: &str, priority: u32, pool: &str, config: &Value) -> String {
    json!({
        "apiVersion": "trunkline.io/v1alpha1", "kind": "AgentSettings", "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": {"pool": pool}}, "priority": priority, "config": config},
    })
    .to_string()
}

impl Node<'_> {
    fn set_fields(&self) -> Result<Vec<SettingStatus>> {
        Ok(client::status(self.bed.node()?)?.settings)
    }

    /// Waits until the settings are these: field, value, object, and whether the field is pending.
    fn wait_settings(&self, wanted: &[(&str, Value, Option<&str>, bool)]) -> Result<()> {
        let setting =
            |(field, value, from, pending_restart): &(&str, Value, Option<&str>, bool)| SettingStatus {
                field: (*field).to_owned(),
                value: value.clone(),
                from: from.map(str::to_owned),
                pending_restart: *pending_restart,
            };
        let wanted: Vec<SettingStatus> = wanted.iter().map(setting).collect();
        wait_for(&format!("the settings {wanted:?}"), PATIENCE, || {
            let settings = self.set_fields()?;
            Ok(Seen::when(settings == wanted, || format!("{settings:?}")))
        })
    }

    /// Attaches a pod with this address, and returns it with its MTU.
    fn attached_mtu(&self, name: &str, address: &str) -> Result<(Sandbox, u32)> {
        let pod = self.bed.pod(name)?;
        self.give(&pod, address, "IPv4", "node1")?;
        self.add(&pod)?;
        let mtu = mtu(&pod)?;
        Ok((pod, mtu))
    }

    /// How often the sessions went down in this run of the agent.
    fn flaps(&self) -> Result<Vec<u64>> {
        PEERS.iter().map(|peer| Ok(self.bed.peer(peer)?.flaps)).collect()
    }

    fn label(&self, label: &str) -> Result<()> {
        self.cluster.kubectl(["label", "node", "node1", label]).map(drop)
    }
}

fn mtu(pod: &Sandbox) -> Result<u32> {
    let link = pod.ns.within(|| run(&mut cmd("ip", ["link", "show", "eth0"])))?;
    let mut words = link.split_whitespace().skip_while(|word| *word != "mtu");
    let mtu = words.nth(1).with_context(|| format!("no MTU in {link}"))?;
    Ok(mtu.parse()?)
}

fn settings(context: &Context) -> Result<Verdict> {
    on_a_node(context, "settings", KEY, FILE, |node| {
        let bed = node.bed;
        bed.established()?;
        let (first, before) = node.attached_mtu("first", "10.201.7.1")?;
        ensure!(before == 1450, "agent.yaml's MTU: {before}");
        let address = ["10.201.7.1".parse()?];
        let pings = bed.pings("outside", &address)?;
        let flaps = node.flaps()?;

        // A field that only agent.yaml may have.
        let config = json!({"guard": {"enabled": false}});
        let refused = node.cluster.apply(&object("open", 100, "gpu", &config)).err();
        let refused = format!("{:#}", refused.context("a switch of the guard was accepted")?);
        ensure!(refused.contains("spec.config.guard: field not declared in schema"), "{refused}");

        // No object selects the Node yet.
        let config = json!({"podMTU": 1400, "maxPaths": 8, "kernelLimits": {"neighbours": 8192}});
        node.cluster.apply(&object("gpu", 100, "gpu", &config))?;
        node.cluster.apply(&object(
            "vpn",
            50,
            "gpu",
            &json!({"podMTU": 1300, "drain": {"settleSeconds": 1}}),
        ))?;
        node.wait_source("the AgentSettings to be watched", |source| {
            source
                .watches
                .iter()
                .any(|watch| watch.name == "agentsettings" && watch.live && watch.events >= 2)
        })?;
        let unselected = node.set_fields()?;
        ensure!(unselected.is_empty(), "{unselected:?}");

        node.label("pool=gpu")?;
        let limit = ("kernelLimits.neighbours", json!(8192), Some("gpu"), false);
        node.wait_settings(&[
            ("drain.settleSeconds", json!(1), Some("vpn"), true),
            limit.clone(),
            ("maxPaths", json!(8), Some("gpu"), true),
            ("podMTU", json!(1400), Some("gpu"), false),
        ])?;
        let (second, live) = node.attached_mtu("second", "10.201.7.2")?;
        ensure!(live == 1400 && mtu(&first)? == before, "MTU {live}, of the running pod {}", mtu(&first)?);
        let metrics = client::metrics(bed.node()?)?;
        for line in [
            "trunkline_settings_pending_restart 2",
            r#"trunkline_settings_fields{name="gpu"} 3"#,
            r#"trunkline_settings_fields{name="vpn"} 1"#,
        ] {
            ensure!(metrics.lines().any(|other| other == line), "no {line} in the metrics");
        }

        // The syntax of a regular expression is checked by the webhook, which does not run here.
        node.cluster.apply(&object(
            "gpu",
            100,
            "gpu",
            &json!({"podMTU": 1380, "vlanInterfaces": ["/eth[/"]}),
        ))?;
        let source = node.wait_source("the wrong object to be named", |source| !source.faults.is_empty())?;
        let words = "AgentSettings gpu: spec.config.vlanInterfaces[0]: /eth[/ is no regular expression";
        ensure!(source.faults.len() == 1 && source.faults[0].starts_with(words), "{source:?}");
        let (third, kept) = node.attached_mtu("third", "10.201.7.3")?;
        ensure!(kept == 1400, "a wrong object changed the MTU to {kept}");
        node.cluster.apply(&object("gpu", 100, "gpu", &config))?;
        node.wait_source("the fault to be gone", |source| source.faults.is_empty())?;
        ensure!(node.flaps()? == flaps, "sessions went down: {flaps:?}, then {:?}", node.flaps()?);

        // A start without the API server has the same settings, also those that waited for it.
        let fourth = bed.pod("fourth")?;
        node.give(&fourth, "10.201.7.4", "IPv4", "node1")?;
        let cache = bed.node()?.folder.join("lib/cluster.json");
        wait_for("the cache to contain the last state", PATIENCE, || {
            let text = std::fs::read_to_string(&cache).unwrap_or_default();
            let is_there = text.contains("10.201.7.4") && text.contains("\"podMTU\":1400");
            Ok(Seen::when(is_there, || format!("{} octets", text.len())))
        })?;
        node.cluster.stop_api()?;
        node.wait_source("the outage to show", |source| source.outage_seconds.is_some())?;
        client::end_agent(bed.node()?, Signal::KILL)?;
        client::start_agent(bed.node()?)?;
        bed.established()?;
        let selected = [
            ("drain.settleSeconds", json!(1), Some("vpn"), false),
            limit,
            ("maxPaths", json!(8), Some("gpu"), false),
            ("podMTU", json!(1400), Some("gpu"), false),
        ];
        node.wait_settings(&selected)?;
        node.add(&fourth)?;
        ensure!(mtu(&fourth)? == 1400, "after a start without the API server: {}", mtu(&fourth)?);

        // A start without the cache requests the objects first.
        node.cluster.start_api()?;
        node.wait_source("the API server to answer again", |source| source.connected)?;
        client::end_agent(bed.node()?, Signal::TERM)?;
        std::fs::remove_file(&cache)?;
        client::start_agent(bed.node()?)?;
        bed.established()?;
        node.wait_settings(&selected)?;

        // Without the label agent.yaml's values return.
        node.label("pool-")?;
        node.wait_settings(&[
            ("drain.settleSeconds", json!(15), None, true),
            ("maxPaths", json!(4), None, true),
        ])?;
        let (fifth, after) = node.attached_mtu("fifth", "10.201.7.5")?;
        ensure!(after == before, "without the label the MTU is {after}");

        let pings = lost_nothing(pings)?;
        for pod in [&first, &second, &third, &fourth, &fifth] {
            cni::del(bed.fabric, &cni::trunkline(None), pod)?;
        }
        bed.nothing_but(&[], &[])?;
        passed(format!(
            "live, pending, a wrong object named, started without the API server, back; {pings} pings, none lost"
        ))
    })
}
