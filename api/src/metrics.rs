//! The catalogue of metrics: what agent and controller export, declared once.
//!
//! A metric is declared here by name, type, labels, unit and help, and nowhere else. The exporters (`agent/src/metrics.rs`,
//! `controller/src/metrics.rs`) name the constant and bring the value, `docs/metrics.md` is written from the same list by
//! `cargo lab docs`, and dashboards and alerts are checked against it. So a name that is exported and not documented, or charted and not
//! exported, cannot be built or does not pass the tests.
//!
//! **Names are an interface**: to be added to, never renamed. They follow Prometheus' conventions: base units (seconds, bytes), `_total` at the
//! end of counters, no unit twice. **Cardinality is bounded**: labels are peers, networks, subnets, families and words of a fixed list;
//! nothing is per pod, address or prefix, and no label has text that a peer or a user may write at length.

mod agent;
mod controller;
mod page;

pub use page::page;

/// The agent's metrics.
pub mod of_agent {
    pub use super::agent::*;
}

/// The controller's metrics, its webhook's too.
pub mod of_controller {
    pub use super::controller::*;
}

/// What kind of number it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows, until the process starts anew.
    Counter,
    /// Counts by size; with the upper bounds of the buckets, in the metric's unit.
    Histogram(&'static [f64]),
}

impl Kind {
    /// Prometheus' word for it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// What the number counts.
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
    /// A number out of a list that the help has.
    Code,
    /// Things, which the name says.
    Count,
}

impl Unit {
    /// As the page has it.
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
    /// Names of its labels, in the order in which values are given.
    pub labels: &'static [&'static str],
    /// What its number counts.
    pub unit: Unit,
    /// What it says, in Markdown: `# HELP`, and the line of the page.
    pub help: &'static str,
}

/// Metrics that stand together on the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// What is to be known of all of them, in Markdown; may be empty.
    pub intro: &'static str,
    /// They.
    pub metrics: &'static [Metric],
}

/// Every metric of agent, controller and webhook.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    agent::SECTIONS.iter().chain(controller::SECTIONS).flat_map(|section| section.metrics)
}

/// Declares metrics as constants, and the list of them by sections: what is declared is listed.
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
        /// All of them, as the page has them.
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
            assert!(seen.insert(name), "{name} is there twice");
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
            assert_eq!(apart.len(), labels.len(), "{name}: a label is there twice");
            let unbounded = ["pod", "prefix", "address", "route", "container"];
            // A configured range of peers goes by its prefix, a listener by its address, and there are as many as somebody writes.
            let few = name.starts_with("trunkline_bgp_range_") || name == "trunkline_bgp_listening";
            assert!(few || !labels.iter().any(|label| unbounded.contains(label)), "{name}: cardinality");
            assert!(!help.contains(['\n', '|']) && help.len() > 10, "{name}: {help:?}");
            if let Kind::Histogram(buckets) = kind {
                assert!(buckets.is_sorted() && !buckets.is_empty(), "{name}");
            }
        }
    }
}
