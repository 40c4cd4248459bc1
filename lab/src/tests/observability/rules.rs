//! The alert rules: promtool accepts them, and unit tests pass. Each rule has test cases and a
//! section in the runbook, and uses only exported metrics. Each rule has a lab in which it fires.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use trunkline_api::metrics;

use super::labs;
use crate::fabric::Place;
use crate::shell::{cmd, run};
use crate::tests::{Context, Test, Verdict, passed};

pub(super) const TEST: Test = Test {
    name: "observability/rules",
    about: "alert rules: promtool accepts them, each has unit tests, a runbook section, and exported metrics",
    run: rules,
};

pub(super) const RULES: &str = "deploy/helm/trunkline/files/trunkline.rules.yml";
const CASES: &str = "lab/observability/rules.test.yml";
const RUNBOOK: &str = "docs/alerts.md";
/// Selector of Prometheus' own series of the agents' targets. Further labels may follow.
pub(super) const AGENT_TARGETS: &str = "up{job=~\"trunkline(-agent.*)?\"";

/// The relevant part of a file of rules.
#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
pub(super) struct Rule {
    pub alert: String,
    pub expr: String,
    annotations: Annotations,
}

#[derive(Deserialize)]
struct Annotations {
    runbook_url: String,
}

/// The relevant part of the unit tests.
#[derive(Deserialize)]
struct Cases {
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    alert_rule_test: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    alertname: String,
    exp_alerts: Vec<serde_json::Value>,
}

fn rules(context: &Context) -> Result<Verdict> {
    let repository = &context.place.repository;
    run(cmd("promtool", ["check", "rules", RULES]).current_dir(repository))?;
    run(cmd("promtool", ["test", "rules", CASES]).current_dir(repository))?;
    let alerts = consistent(&context.place)?;
    let labs = labs::divided(&context.place)?;
    let fired: Vec<String> =
        labs.iter().map(|(lab, (_, alerts))| format!("{} by {}", alerts.len(), lab.test())).collect();
    passed(format!("{alerts} alerts, fired: {}", fired.join(", ")))
}

/// The rules.
pub(super) fn read(place: &Place) -> Result<Vec<Rule>> {
    let text = std::fs::read_to_string(place.repository.join(RULES)).context(RULES)?;
    let rules: Rules = serde_saphyr::from_str(&text).context(RULES)?;
    Ok(rules.groups.into_iter().flat_map(|group| group.rules).collect())
}

/// Checks consistency, and returns the number of alerts. The error names each difference.
fn consistent(place: &Place) -> Result<usize> {
    let text = |name: &str| std::fs::read_to_string(place.repository.join(name)).context(name.to_owned());
    let rules = read(place)?;
    let cases: Cases = serde_saphyr::from_str(&text(CASES)?).context(CASES)?;
    let runbook = text(RUNBOOK)?;
    let sections: BTreeSet<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let expected = || cases.tests.iter().flat_map(|case| &case.alert_rule_test);
    for Rule { alert, expr, annotations } in &rules {
        let fires = expected().any(|case| case.alertname == *alert && !case.exp_alerts.is_empty());
        ensure!(fires, "{CASES}: no case in which {alert} fires");
        let link = format!("{RUNBOOK}#{}", alert.to_lowercase());
        ensure!(annotations.runbook_url == link, "{alert}: runbook_url is not {link}");
        ensure!(sections.contains(alert.as_str()), "{RUNBOOK} has no section {alert}");
        let named = named(expr);
        ensure!(names_series(expr), "{alert} uses no metric");
        let unknown: Vec<_> = named.iter().filter(|name| !is_exported(name)).collect();
        ensure!(unknown.is_empty(), "{alert} uses {unknown:?}, which no program exports");
    }
    let alerts: BTreeSet<&str> = rules.iter().map(|rule| rule.alert.as_str()).collect();
    let orphans: Vec<_> = sections.difference(&alerts).collect();
    ensure!(orphans.is_empty(), "{RUNBOOK}: sections of no alert: {orphans:?}");
    Ok(rules.len())
}

/// Whether an expression names a Trunkline metric, or Prometheus' own series of the agents'
/// targets.
pub(crate) fn names_series(expr: &str) -> bool {
    in_order(expr).next().is_some() || expr.contains(AGENT_TARGETS)
}

/// Trunkline metrics in an expression.
pub(crate) fn named(expr: &str) -> BTreeSet<&str> {
    in_order(expr).collect()
}

/// Trunkline metrics in an expression, from left to right.
pub(super) fn in_order(expr: &str) -> impl Iterator<Item = &str> {
    expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("trunkline_"))
}

/// Whether the catalogue has a metric, or a histogram with this series.
pub(crate) fn is_exported(name: &str) -> bool {
    metrics::all().any(|metric| match metric.kind {
        metrics::Kind::Histogram(_) => histogram_of(metric, name),
        metrics::Kind::Gauge | metrics::Kind::Counter => name == metric.name,
    })
}

/// Whether this is a series of that histogram.
pub(super) fn histogram_of(metric: &metrics::Metric, name: &str) -> bool {
    matches!(metric.kind, metrics::Kind::Histogram(_))
        && ["_bucket", "_sum", "_count"].iter().any(|part| name.strip_suffix(part) == Some(metric.name))
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn rules_cases_runbook_and_catalogue_match() {
        assert!(consistent(&Place::find(None).unwrap()).unwrap() > 10);
    }

    #[test]
    fn metrics_of_an_expression_are_found_and_checked() {
        let expr = "rate(trunkline_request_duration_seconds_bucket{a=\"x\"}[5m]) / on (instance) trunkline_up_and_away";
        let named: Vec<&str> = named(expr).into_iter().collect();
        assert_eq!(named, ["trunkline_request_duration_seconds_bucket", "trunkline_up_and_away"]);
        assert!(is_exported(named[0]) && !is_exported(named[1]));
        assert!(!is_exported("trunkline_request_duration_seconds"), "a histogram's name alone is no series");
    }
}
