//! From the catalogue's declarations ([`trunkline_api::metrics`]) to Prometheus' text format.
//!
//! There are two kinds of metrics. **Events** are counted in a registry as they happen
//! ([`counter`], [`histogram`]). **State** is read from its owners at each scrape and written once
//! ([`Exposition`]). So no gauge can become stale, and deleted objects have no series left.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, Result,
    TextEncoder,
};
use trunkline_api::metrics::{Kind, Metric};

/// A counter of the catalogue. Without labels it exists from the start, with 0. An error if it is
/// already registered.
pub fn counter(registry: &Registry, metric: &Metric) -> Result<IntCounterVec> {
    let counters = IntCounterVec::new(Opts::new(metric.name, metric.help), metric.labels)?;
    registry.register(Box::new(counters.clone()))?;
    if metric.labels.is_empty() {
        counters.with_label_values::<&str>(&[]);
    }
    Ok(counters)
}

/// A gauge of the catalogue that its owner updates. An error if it is already registered.
pub fn gauge(registry: &Registry, metric: &Metric) -> Result<IntGaugeVec> {
    let gauges = IntGaugeVec::new(Opts::new(metric.name, metric.help), metric.labels)?;
    registry.register(Box::new(gauges.clone()))?;
    Ok(gauges)
}

/// A histogram of the catalogue, with its buckets. Without labels it exists from the start. An
/// error if it is already registered.
pub fn histogram(registry: &Registry, metric: &Metric) -> Result<HistogramVec> {
    let buckets = match metric.kind {
        Kind::Histogram(bounds) => bounds.to_vec(),
        Kind::Gauge | Kind::Counter => Vec::new(),
    };
    let opts = HistogramOpts::new(metric.name, metric.help).buckets(buckets);
    let histograms = HistogramVec::new(opts, metric.labels)?;
    registry.register(Box::new(histograms.clone()))?;
    if metric.labels.is_empty() {
        histograms.with_label_values::<&str>(&[]);
    }
    Ok(histograms)
}

/// Samples of the state, for one scrape.
#[derive(Default)]
pub struct Exposition {
    samples: BTreeMap<&'static str, (Metric, Vec<String>)>,
}

impl Exposition {
    /// Adds one series. The label values are in the order of the metric's labels.
    pub fn put(&mut self, metric: Metric, labels: &[&str], value: f64) {
        debug_assert_eq!(metric.labels.len(), labels.len(), "{}", metric.name);
        let mut line = metric.name.to_owned();
        for (place, (name, value)) in metric.labels.iter().zip(labels).enumerate() {
            line.push(if place == 0 { '{' } else { ',' });
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            // Writing into a String cannot fail.
            let _ = write!(line, "{name}=\"{value}\"");
        }
        if !metric.labels.is_empty() {
            line.push('}');
        }
        let _ = writeln!(line, " {value}");
        self.samples.entry(metric.name).or_insert_with(|| (metric, Vec::new())).1.push(line);
    }

    /// Adds a series with the value 1 or 0.
    pub fn put_bool(&mut self, metric: Metric, labels: &[&str], value: bool) {
        self.put(metric, labels, f64::from(u8::from(value)));
    }

    /// Adds a series of a count. Beyond 2^53 it is rounded, as in Prometheus itself.
    pub fn put_count(&mut self, metric: Metric, labels: &[&str], value: u64) {
        self.put(metric, labels, value as f64);
    }
}

/// Counters and state in Prometheus' text format.
pub fn text(counted: &Registry, exposition: Exposition) -> Result<String> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&counted.gather(), &mut text)?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    for (name, (metric, lines)) in exposition.samples {
        let help = metric.help.replace('\\', "\\\\");
        // Writing into a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", metric.kind.word());
        text.extend(lines);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use trunkline_api::metrics::Unit;

    use super::*;

    #[test]
    fn text_format_matches_prometheus() {
        let gauge = |name, labels| Metric {
            name,
            kind: Kind::Gauge,
            labels,
            unit: Unit::Count,
            help: "a help with a \\ in it",
        };
        let total = Metric { name: "c_total", kind: Kind::Counter, ..gauge("", &[]) };
        let registry = Registry::new();
        counter(&registry, &total).unwrap();
        let mut exposition = Exposition::default();
        exposition.put(gauge("b", &["x", "y"]), &["with \"quotes\"\n", ""], 0.05);
        exposition.put_bool(gauge("a", &[]), &[], true);
        exposition.put_count(gauge("b", &["x", "y"]), &["second", "z"], 1_000_000);
        let expected = "\
# HELP c_total a help with a \\\\ in it
# TYPE c_total counter
c_total 0
# HELP a a help with a \\\\ in it
# TYPE a gauge
a 1
# HELP b a help with a \\\\ in it
# TYPE b gauge
b{x=\"with \\\"quotes\\\"\\n\",y=\"\"} 0.05
b{x=\"second\",y=\"z\"} 1000000
";
        assert_eq!(text(&registry, exposition).unwrap(), expected);
    }
}
