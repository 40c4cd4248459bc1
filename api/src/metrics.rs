//! The catalogue of metrics of agent and controller.
//!
//! A metric is declared here by name, type, labels, unit and help, and nowhere else. The exporters
//! (`agent/src/metrics.rs`, `controller/src/metrics.rs`) use the constant and supply the value.
//! `cargo lab docs` writes `docs/metrics.md` from the same list, and dashboards and alerts are
//! checked against it. So a metric without documentation, or a chart of an unknown metric, does not
//! compile or fails the tests.
//!
//! **Names are an interface**: additions are fine, renames are not. They follow Prometheus'
//! conventions: base units (seconds, bytes), `_total` at the end of counters, one unit for each
//! quantity. **Cardinality is bounded**: labels are peers, networks, subnets, families and words of
//! a fixed list. No label is per pod, address or prefix, and none has long text of a peer or a
//! user.

mod agent;
mod controller;
mod page;

pub use page::page;

/// Metrics of the agent.
pub mod of_agent {
    pub use super::agent::*;
}

/// Metrics of the controller and its webhook.
pub mod of_controller {
    pub use super::controller::*;
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Can rise and fall.
    Gauge,
    /// Only rises until the process restarts.
    Counter,
    /// A distribution; with the upper bounds of the buckets, in the metric's unit.
    Histogram(&'static [f64]),
}

impl Kind {
    /// Prometheus' name of the type.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Octets.
    Bytes,
    /// Seconds since 1970.
    Timestamp,
    /// 0 or 1.
    Bool,
    /// A number from a list in the help text.
    Code,
    /// A count; the name of the metric has the counted objects.
    Count,
}

impl Unit {
    /// The word on the page.
    pub fn word(self) -> &'static str {
        match self {
            Unit::Seconds => "seconds",
            Unit::Bytes => "bytes",
            Unit::Timestamp => "seconds since 1970",
            Unit::Bool => "0 or 1",
            Unit::Code => "a code",
            Unit::Count => "",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Names of its labels, in the order of the values.
    pub labels: &'static [&'static str],
    /// The unit of the value.
    pub unit: Unit,
    /// Its description in Markdown: `# HELP`, and the line of the page.
    pub help: &'static str,
}

/// A section of the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// Introduction in Markdown; may be empty.
    pub intro: &'static str,
    /// Its metrics.
    pub metrics: &'static [Metric],
}

/// Every metric of agent, controller and webhook.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    agent::SECTIONS.iter().chain(controller::SECTIONS).flat_map(|section| section.metrics)
}

/// Declares metrics as constants, and lists them by sections.
macro_rules! catalogue {
    ($($title:literal, $intro:literal { $($name:ident = $kind:expr, $unit:ident, $metric:literal [$($label:literal),*], $help:literal;)+ })+) => {
        $($(
            #[doc = $help]
            pub const $name: $crate::metrics::Metric = $crate::metrics::Metric {
                name: $metric,
                kind: $kind,
                labels: &[$($label),*],
                unit: $crate::metrics::Unit::$unit,
                help: $help,
            };
        )+)+
        /// All sections, as on the page.
        pub const SECTIONS: &[$crate::metrics::Section] = &[$($crate::metrics::Section {
            title: $title,
            intro: $intro,
            metrics: &[$($name),+],
        }),+];
    };
}
use catalogue;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let mut seen = BTreeSet::new();
        for metric in all() {
            let Metric { name, kind, labels, unit, help } = *metric;
            assert!(seen.insert(name), "{name} is declared twice");
            assert!(name.starts_with("trunkline_"), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name} is a {}", kind.word());
            let stem = name.trim_end_matches("_total");
            let (seconds, bytes) = (stem.ends_with("_seconds"), stem.ends_with("_bytes"));
            assert_eq!(matches!(unit, Unit::Seconds | Unit::Timestamp), seconds, "{name} in {unit:?}");
            assert_eq!(unit == Unit::Timestamp, stem.ends_with("_timestamp_seconds"), "{name} in {unit:?}");
            assert_eq!(unit == Unit::Bytes, bytes, "{name} in {unit:?}");
            assert!(!["milli", "octet"].iter().any(|word| name.contains(word)), "{name}: base units");
            let apart: BTreeSet<_> = labels.iter().collect();
            assert_eq!(apart.len(), labels.len(), "{name}: a label occurs twice");
            let unbounded = ["pod", "prefix", "address", "route", "container"];
            // The label of a peer range is its prefix; the label of a listener is its address. The
            // configuration limits the number of both.
            let few = name.starts_with("trunkline_bgp_range_") || name == "trunkline_bgp_listening";
            assert!(few || !labels.iter().any(|label| unbounded.contains(label)), "{name}: cardinality");
            assert!(!help.contains(['\n', '|']) && help.len() > 10, "{name}: {help:?}");
            if let Kind::Histogram(buckets) = kind {
                assert!(buckets.is_sorted() && !buckets.is_empty(), "{name}");
            }
        }
    }
}
