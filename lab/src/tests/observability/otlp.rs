//! A real OpenTelemetry Collector with an agent: events arrive as log records, attached pods as
//! traces. While it is down, the agent continues, and no event in its history is lost. No output
//! shows the header with the collector's credential.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use trunkline_api::control::PeerDone;

use super::collector::{self, Collector, ENDPOINT, attribute};
use super::prometheus::Target;
use crate::client;
use crate::cni::{self, Sandbox};
use crate::daemons::vtysh;
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, Manifest, PATIENCE, lab};
use crate::tests::{Context, Test, Verdict, passed};

pub(super) const TEST: Test = Test {
    name: "observability/otlp",
    about: "a real OpenTelemetry Collector receives events and traces of pods; while the collector is down the agent continues; credentials appear nowhere",
    run: otlp,
};

const TOR: &str = "10.1.0.1";
const SECRET: &str = "Bearer otlp-lab-credential";

fn otlp(context: &Context) -> Result<Verdict> {
    let program = match collector::program(&context.place)? {
        Ok(program) => program,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    lab(context, "one-rack", |bed| {
        let node = bed.node()?;
        client::end_agent(node, Signal::TERM)?;
        let token = bed.fabric.folder.join("otlp-authorization");
        std::fs::write(&token, format!("{SECRET}\n"))?;
        let config = Manifest::at(bed.fabric.file("one-rack/node1/agent.yaml"));
        let telemetry = format!(
            "\ntelemetry:\n  otlp:\n    endpoint: http://{ENDPOINT}\n    serviceName: lab\n    headers:\n      \
             authorization: {{file: {}}}\n",
            token.display()
        );
        config.overwrite(&(config.read()? + &telemetry))?;
        let collector = Collector::start(bed.fabric, node, &program)?;
        client::start_agent(node)?;
        bed.established()?;
        for peer in [TOR, "10.2.0.1"] {
            wait_told(&collector, "sessionUp", peer, 1)?;
        }
        let pod = traced(bed, &collector)?;
        refused(bed, &collector)?;
        shut(bed, true)?;
        let down = wait_told(&collector, "sessionDown", TOR, 1)?;
        ensure!(down["severityText"] == "WARN", "{down}");
        let words = down["body"]["stringValue"].as_str().unwrap_or_default();
        ensure!(words.contains("Cease"), "{down}");

        // The collector is down: sessions and pods continue, and the agent logs the failure once.
        collector.kill()?;
        shut(bed, false)?;
        bed.established()?;
        let (meanwhile, _) = bed.attached("meanwhile", "rack1")?;
        cni::del(bed.fabric, &cni::trunkline(Some("rack1")), &pod)?;
        wait_for("the exporter of logs to have tried twice", PATIENCE, || {
            let tries = value(
                &Target::Agent(node).metrics()?,
                "trunkline_otlp_requests_total{outcome=\"unavailable\",signal=\"logs\"}",
            );
            Ok(Seen::when(tries >= 2, || format!("{tries} times")))
        })?;
        let log = std::fs::read_to_string(node.logs().join("agent.log"))?;
        for signal in ["logs", "traces"] {
            let line = |line: &&str| {
                line.contains("the collector does not accept the OpenTelemetry export")
                    && line.contains(&format!("signal=\"{signal}\""))
            };
            let said = log.lines().filter(line).count();
            ensure!(
                said <= 1 && (said == 1 || signal == "traces"),
                "{signal}: the log reports the failed export {said} times:\n{log}"
            );
        }

        // The collector runs again. Earlier and new events arrive.
        let collector = Collector::start(bed.fabric, node, &program)?;
        wait_told(&collector, "sessionUp", TOR, 2)?;
        wait_trace(&collector, "attach", &meanwhile)?;
        let (_, steps) = wait_trace(&collector, "detach", &pod)?;
        ensure!(names(&steps) == ["plugin", "turn", "kernel", "link", "record"], "{steps:?}");
        client::ask::<PeerDone>(node, &["peers", "reset", TOR, "--message", "the last event"])?;
        // Pending events are exported before the agent ends.
        client::end_agent(node, Signal::TERM)?;
        let logs = wait_for("the last event to be in the collector's file", PATIENCE, || {
            let logs = collector.logs()?;
            let is_last =
                |(_, record): &(Value, Value)| record["body"].to_string().contains("the last event");
            let last = logs.iter().any(is_last);
            Ok(if last { Seen::Yes(logs) } else { Seen::NotYet(format!("{} others", logs.len())) })
        })?;
        let number = |(_, record): &(Value, Value)| {
            attribute(record, "trunkline.event.number").parse::<u64>().context("its number")
        };
        let numbers: BTreeSet<u64> = logs.iter().map(number).collect::<Result<_>>()?;
        // The agent's first run had no exporter, but its events also have numbers.
        let first = numbers.first().copied().context("no events")?;
        ensure!(
            numbers.iter().copied().eq(first..first + numbers.len() as u64),
            "events are missing: {numbers:?}"
        );
        for (resource, record) in &logs {
            ensure!(attribute(resource, "service.name") == "lab", "{resource}");
            ensure!(!attribute(resource, "host.name").is_empty(), "{resource}");
            ensure!(attribute(record, "trunkline.node") == "node1", "{record}");
        }

        client::start_agent(node)?;
        shown_nowhere(bed)?;
        passed(format!("{} events, none missing", numbers.len()))
    })
}

/// A pod is attached, and the collector has its trace from the plugin to the peers.
fn traced(bed: &Bed<'_>, collector: &Collector) -> Result<Sandbox> {
    let (pod, attached) = bed.attached("traced", "rack1")?;
    let (root, steps) = wait_trace(collector, "attach", &pod)?;
    ensure!(attribute(&root, "k8s.namespace.name") == "lab", "{root}");
    ensure!(attribute(&root, "trunkline.network") == "rack1", "{root}");
    for address in &attached.addresses {
        ensure!(root["attributes"].to_string().contains(&address.to_string()), "{address} is not in {root}");
    }
    let wanted =
        ["plugin", "turn", "addresses", "record", "plan", "link", "policies", "kernel", "advertisement"];
    ensure!(names(&steps) == wanted, "{steps:?}");
    let (begin, end) = (time(&root, "startTimeUnixNano")?, time(&root, "endTimeUnixNano")?);
    let (mut before, mut linked) = (begin, begin);
    for step in &steps {
        let (start, done) = (time(step, "startTimeUnixNano")?, time(step, "endTimeUnixNano")?);
        // The rules of policies are written while the device is completed.
        let earliest = if step["name"] == "policies" { linked } else { before };
        ensure!(
            earliest <= start && start <= done && done <= end,
            "out of order in {begin} to {end}: {steps:?}"
        );
        (before, linked) = (before.max(done), start);
    }
    ensure!(before > begin, "no step has a duration: {steps:?}");
    let attributes = steps.last().map(|step| step["attributes"].to_string()).unwrap_or_default();
    ensure!(attributes.contains(TOR) || attributes.contains("10.2.0.1"), "no peer is named: {attributes}");
    ensure!(root["status"]["code"] != 2, "{root}");
    Ok(pod)
}

/// A pod that cannot be attached: its trace shows the failed step.
fn refused(bed: &Bed<'_>, collector: &Collector) -> Result<()> {
    let pod = bed.pod("refused")?;
    let outcome = cni::add(bed.fabric, &cni::trunkline(Some("nowhere")), &pod);
    ensure!(outcome.is_err(), "a pod of a missing network was attached: {outcome:?}");
    let (root, steps) = wait_trace(collector, "attach", &pod)?;
    for span in [Some(&root), steps.last()].into_iter().flatten() {
        ensure!(span["status"]["code"] == 2, "{span}");
        ensure!(span["status"]["message"].to_string().contains("nowhere"), "{span}");
    }
    Ok(())
}

/// Waits for the last trace of this name about a pod. Returns its root, and its steps ordered by
/// their start.
fn wait_trace(collector: &Collector, name: &str, pod: &Sandbox) -> Result<(Value, Vec<Value>)> {
    wait_for(&format!("a trace `{name}` of {}", pod.name), PATIENCE, || {
        let spans = collector.spans()?;
        let mut roots = spans
            .iter()
            .map(|(_, span)| span)
            .filter(|span| span["name"] == name && attribute(span, "k8s.pod.name") == pod.identity.name);
        let Some(root) = roots.next_back() else {
            return Ok(Seen::NotYet(format!("{} spans", spans.len())));
        };
        let below = |span: &&(Value, Value)| span.1["parentSpanId"] == root["spanId"];
        let mut steps: Vec<Value> = spans.iter().filter(below).map(|(_, span)| span.clone()).collect();
        steps.sort_by_cached_key(|step| {
            (time(step, "startTimeUnixNano").ok(), time(step, "endTimeUnixNano").ok())
        });
        ensure!(steps.iter().all(|step| step["traceId"] == root["traceId"]), "{steps:?}");
        Ok(Seen::Yes((root.clone(), steps)))
    })
}

fn names(steps: &[Value]) -> Vec<&str> {
    steps.iter().filter_map(|step| step["name"].as_str()).collect()
}

fn time(span: &Value, key: &str) -> Result<u64> {
    span[key].as_str().and_then(|text| text.parse().ok()).with_context(|| format!("no {key} in {span}"))
}

/// Shuts the session down at tor1, or enables it.
fn shut(bed: &Bed<'_>, down: bool) -> Result<()> {
    let line = format!("{}neighbor 10.1.0.11 shutdown", if down { "" } else { "no " });
    vtysh(bed.host("tor1")?, &["configure terminal", "router bgp 65001", &line]).map(drop)
}

/// Waits until this number of events of a kind about a peer has arrived; returns the last one.
fn wait_told(collector: &Collector, kind: &str, peer: &str, count: usize) -> Result<Value> {
    wait_for(&format!("{count} {kind} of {peer} at the collector"), PATIENCE, || {
        let logs = collector.logs()?;
        let of_kind = |(_, record): &(Value, Value)| {
            record["eventName"] == format!("trunkline.{kind}")
                && attribute(record, "trunkline.event.kind") == kind
                && attribute(record, "trunkline.peer") == peer
        };
        let mut found: Vec<Value> = logs.into_iter().filter(of_kind).map(|(_, record)| record).collect();
        Ok(match found.pop() {
            Some(last) if found.len() + 1 >= count => Seen::Yes(last),
            _ => Seen::NotYet(format!("{}", found.len())),
        })
    })
}

/// The sum of the series that begin with this text.
fn value(metrics: &str, series: &str) -> u64 {
    let values = metrics.lines().filter(|line| line.starts_with(series));
    values.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Checks that no output contains the credential.
fn shown_nowhere(bed: &Bed<'_>) -> Result<()> {
    let node = bed.node()?;
    let shown = [
        ("the log", std::fs::read_to_string(node.logs().join("agent.log"))?),
        ("status", node.run("trunkline", ["status", "-o", "json"])?),
        ("events", node.run("trunkline", ["events", "-o", "json"])?),
        ("metrics", Target::Agent(node).metrics()?),
        ("the process", node.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")?),
    ];
    for (what, text) in shown {
        ensure!(
            !text.is_empty() && !text.contains("otlp-lab-credential"),
            "{what} shows the credential:\n{text}"
        );
    }
    Ok(())
}
