//! The lab of each expression. No lab can produce data for all dashboards and alerts: two racks
//! have no API server, the cluster has no VLAN, and the VLAN lab has only VLANs. So the first
//! metric of an expression decides its lab, without a manual list. [`divided`] fails if a new panel
//! or alert has no lab. [`evaluate`] fails in a lab if a panel or alert of this lab has no data.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use trunkline_api::metrics;

use super::prometheus::Prometheus;
use super::rules::{self, Rule, histogram_of};
use crate::dashboards::{self, Panel};
use crate::fabric::Place;

/// A lab, by the data that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lab {
    /// Nodes with files as their source, and routers.
    TwoRacks,
    /// Nodes with an API server as their source, and controllers.
    Cluster,
    /// Pods on VLANs. They need a kernel with VLAN devices.
    Vlans,
}

/// Families of metrics by the prefix of their names. Each metric of the catalogue is in the family
/// with the longest prefix.
const FAMILIES: &[(&str, Lab)] = &[
    ("trunkline_controller_", Lab::Cluster),
    ("trunkline_webhook_", Lab::Cluster),
    ("trunkline_cluster_", Lab::Cluster),
    ("trunkline_wire_", Lab::Vlans),
    ("trunkline_service", Lab::Cluster),
    ("trunkline_alternate_", Lab::TwoRacks),
    ("trunkline_anycast_", Lab::TwoRacks),
    ("trunkline_attach", Lab::TwoRacks),
    ("trunkline_bfd_", Lab::TwoRacks),
    ("trunkline_bgp_", Lab::TwoRacks),
    ("trunkline_bmp_", Lab::TwoRacks),
    ("trunkline_build_info", Lab::TwoRacks),
    ("trunkline_convergence_", Lab::TwoRacks),
    ("trunkline_drain_", Lab::TwoRacks),
    ("trunkline_guard_", Lab::TwoRacks),
    ("trunkline_http_", Lab::TwoRacks),
    ("trunkline_kernel_", Lab::TwoRacks),
    ("trunkline_manifests_", Lab::TwoRacks),
    ("trunkline_network_", Lab::TwoRacks),
    // No panel and no alert uses this metric.
    ("trunkline_node_", Lab::TwoRacks),
    // No panel and no alert uses these metrics. `observability/otlp` uses them.
    ("trunkline_otlp_", Lab::TwoRacks),
    ("trunkline_polic", Lab::Cluster),
    // Only pods with an IPVLAN slave have interfaces without enforced policies.
    ("trunkline_policy_unenforced_", Lab::Vlans),
    ("trunkline_probe_", Lab::TwoRacks),
    ("trunkline_ready", Lab::TwoRacks),
    ("trunkline_remote_cluster_", Lab::Cluster),
    ("trunkline_request_", Lab::TwoRacks),
    // No panel and no alert uses these metrics. `kube/settings` uses them.
    ("trunkline_settings_", Lab::Cluster),
    ("trunkline_store_", Lab::TwoRacks),
    ("trunkline_subnet_", Lab::TwoRacks),
    ("trunkline_unrecorded_", Lab::TwoRacks),
    ("trunkline_uptime_", Lab::TwoRacks),
    ("trunkline_vxlan_", Lab::TwoRacks),
];

impl Lab {
    pub(super) const ALL: [Lab; 3] = [Lab::TwoRacks, Lab::Cluster, Lab::Vlans];

    /// The test of this lab.
    pub(super) const fn test(self) -> &'static str {
        match self {
            Lab::TwoRacks => "observability/two-racks",
            Lab::Cluster => "observability/cluster",
            Lab::Vlans => "observability/vlans",
        }
    }

    /// The lab that has a metric.
    fn of(metric: &str) -> Result<Lab> {
        let families = FAMILIES.iter().filter(|(family, _)| metric.starts_with(family));
        let (_, lab) = families
            .max_by_key(|(family, _)| family.len())
            .with_context(|| format!("no lab has {metric}: add its family and its lab to FAMILIES"))?;
        Ok(*lab)
    }

    /// The lab of an expression. `unless` and the like may name metrics of other labs after the
    /// first one.
    fn evaluating(expr: &str) -> Result<Lab> {
        match rules::in_order(expr).next() {
            Some(first) => Lab::of(first),
            None if expr.contains(rules::AGENT_TARGETS) => Ok(Lab::TwoRacks),
            None => bail!("{expr} names no metric"),
        }
    }
}

/// An expression, and the panel that it belongs to.
struct Expression {
    panel: String,
    expr: &'static str,
}

fn expressions() -> Vec<Expression> {
    let mut all = Vec::new();
    for dashboard in dashboards::all() {
        for Panel { title, queries, .. } in dashboard.rows.iter().flat_map(|row| &row.panels) {
            let panel = || format!("{}: {title}", dashboard.name);
            all.extend(queries.iter().map(|(expr, _)| Expression { panel: panel(), expr }));
        }
    }
    all
}

/// The expressions of each lab: the number of panels' expressions, and the alerts. An error names
/// expressions and metrics of the catalogue that no lab has.
pub(super) fn divided(place: &Place) -> Result<BTreeMap<Lab, (usize, BTreeSet<String>)>> {
    let mut divided: BTreeMap<Lab, (usize, BTreeSet<String>)> = BTreeMap::new();
    let mut nobodys = Vec::new();
    for metric in metrics::all() {
        nobodys.extend(Lab::of(metric.name).err().map(|error| format!("the catalogue: {error:#}")));
    }
    for Expression { panel, expr } in expressions() {
        match Lab::evaluating(expr) {
            Ok(lab) => divided.entry(lab).or_default().0 += 1,
            Err(error) => nobodys.push(format!("{panel}: {error:#}")),
        }
    }
    for Rule { alert, expr, .. } in rules::read(place)? {
        match Lab::evaluating(&expr) {
            Ok(lab) => drop(divided.entry(lab).or_default().1.insert(alert)),
            Err(error) => nobodys.push(format!("{alert}: {error:#}")),
        }
    }
    let idle = Lab::ALL.into_iter().filter(|lab| !divided.contains_key(lab));
    nobodys.extend(idle.map(|lab| format!("a panel or an alert in the lab {}", lab.test())));
    ensure!(nobodys.is_empty(), "no lab evaluates:\n{}", nobodys.join("\n"));
    Ok(divided)
}

/// The final check of a lab. Each expression of its panels has had data since the start of its
/// Prometheus. Each of its alerts has fired and cleared. Returns a text.
pub(super) fn evaluate(lab: Lab, prometheus: &Prometheus, place: &Place) -> Result<String> {
    let mut faults = Vec::new();
    let mut evaluated = 0;
    for Expression { panel, expr } in expressions() {
        if Lab::evaluating(expr)? != lab {
            continue;
        }
        let chosen = expr.replace("$node", ".*").replace("$peer", ".*").replace("$__rate_interval", "30s");
        match prometheus.series(&chosen) {
            Ok(0) => faults.push(format!("no data: {panel}: {expr}")),
            Ok(_) => evaluated += 1,
            Err(error) => bail!("{panel}: {expr}: {error:#}"),
        }
    }
    let alerts = divided(place)?.remove(&lab).unwrap_or_default().1;
    let seen = prometheus.fired_and_cleared();
    faults.extend(alerts.difference(&seen).map(|alert| format!("{alert} did not both fire and clear")));
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(format!("{evaluated} expressions of panels have data, {} alerts fired and cleared", alerts.len()))
}

/// Checks a process's metrics with promtool, and that each is in the catalogue with the same
/// labels. Returns the number of series.
pub(super) fn lint(text: &str) -> Result<usize> {
    let said = crate::shell::run_with_input(&mut crate::shell::cmd("promtool", ["check", "metrics"]), text)?;
    ensure!(said.trim().is_empty(), "promtool check metrics: {said}");
    let mut series = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = parts(line);
        let metric = metrics::all().find(|metric| metric.name == name || histogram_of(metric, name));
        let metric = metric.with_context(|| format!("{name} is not in the catalogue"))?;
        let foreign: Vec<&&str> =
            labels.iter().filter(|label| **label != "le" && !metric.labels.contains(label)).collect();
        ensure!(foreign.is_empty(), "{name}: the catalogue lacks its labels {foreign:?}");
        series += 1;
    }
    ensure!(series > 0, "no series");
    Ok(series)
}

/// The name of a series, and the names of its labels.
fn parts(line: &str) -> (&str, Vec<&str>) {
    let Some((name, mut rest)) = line.split_once('{') else {
        return (line.split(' ').next().unwrap_or_default(), Vec::new());
    };
    let mut labels = Vec::new();
    while let Some((label, value)) = rest.split_once("=\"") {
        labels.push(label.trim_start_matches(','));
        let mut escaped = false;
        let end = value.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = end.map_or("", |end| &value[end + 1..]);
    }
    (name, labels)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn every_panel_and_alert_belongs_to_a_lab() {
        let divided = divided(&Place::find(None).unwrap()).unwrap();
        let tests = || super::super::TESTS.iter().chain(super::super::VLAN_TESTS);
        for lab in Lab::ALL {
            assert!(tests().any(|test| test.name == lab.test()), "{lab:?} is no test");
        }
        let panels: usize = divided.values().map(|(panels, _)| panels).sum();
        assert_eq!(panels, expressions().len());
    }

    #[test]
    fn an_expression_belongs_to_its_first_metric() {
        assert_eq!(Lab::evaluating("rate(trunkline_wire_check_seconds_bucket[1m])").unwrap(), Lab::Vlans);
        let cluster =
            ["trunkline_policies", "trunkline_policy_state"].map(|metric| Lab::evaluating(metric).unwrap());
        assert_eq!(cluster, [Lab::Cluster; 2]);
        assert_eq!(Lab::evaluating("trunkline_policy_unenforced_interfaces > 0").unwrap(), Lab::Vlans);
        let unless = "trunkline_subnet_addresses unless on (instance) trunkline_cluster_connected";
        assert_eq!(Lab::evaluating(unless).unwrap(), Lab::TwoRacks);
        assert!(Lab::evaluating("trunkline_gateway_up").unwrap_err().to_string().contains("FAMILIES"));
        assert!(Lab::evaluating("up == 0").is_err());
        assert_eq!(Lab::evaluating(&format!("{} == 0", rules::AGENT_TARGETS)).unwrap(), Lab::TwoRacks);
    }

    #[test]
    fn a_series_has_its_name_and_labels() {
        assert_eq!(parts("a_b 1"), ("a_b", vec![]));
        assert_eq!(parts(r#"a{x="1,y=\"{}",z=""} 1"#), ("a", vec!["x", "z"]));
    }
}
