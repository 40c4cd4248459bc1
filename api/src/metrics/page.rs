//! Generates `docs/metrics.md` from the catalogue, for `cargo lab docs`.

use std::fmt::Write as _;

use super::{Section, agent, controller};

const HEAD: &str = "\
# Metrics

<!-- Written by `cargo lab docs` from api/src/metrics: edit that. -->

The agent serves Prometheus' text format at `/metrics` of its `httpAddress` (127.0.0.1:9473 unless configured), next to `/healthz` (its
tasks respond) and `/readyz` (pods can be attached; otherwise 503 with one reason per line). If the address is in use, the agent runs
without this listener, reports it in its log and in `trunkline status`, and tries again until the address is free.

Every replica of the controller serves `/metrics` at `--http-address` ([::]:9899), and `/healthz` and `/readyz` at `--probe-address`
(127.0.0.1:9898), which pods cannot reach. Only the leader serves the metrics that only the leader has.

Each listener limits the connections of a source (an IPv4 address or an IPv6 /64): 96 of 256 here, 640 of 1,024 at the webhook. A connection
without a complete request head is closed after 5 seconds. At a limit a new connection evicts an older one that is idle or slow, first of the
source with the most connections, so one source never delays a probe or a scrape of another source.

Names are an interface: names are added, and never renamed. No series is per pod, address or prefix, so the number of series depends on
peers, networks and subnets only. A label with an empty value is the same as no label, as everywhere in Prometheus. Alerts on these metrics
are in [alerts.md](alerts.md).
";

/// The whole page.
pub fn page() -> String {
    let mut text = HEAD.to_owned();
    for section in agent::SECTIONS.iter().chain(controller::SECTIONS) {
        // Writing into a String cannot fail.
        let _ = write_section(&mut text, section);
    }
    text
}

fn write_section(text: &mut String, section: &Section) -> std::fmt::Result {
    write!(text, "\n## {}\n\n", section.title)?;
    if !section.intro.is_empty() {
        write!(text, "{}\n\n", section.intro)?;
    }
    writeln!(text, "| metric | type | unit | description |\n|---|---|---|---|")?;
    for metric in section.metrics {
        let labels = match metric.labels {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        };
        let (kind, unit) = (metric.kind.word(), metric.unit.word());
        writeln!(text, "| `{}{labels}` | {kind} | {unit} | {} |", metric.name, metric.help)?;
    }
    Ok(())
}
