//! Grafana's `dashboards/*.json`, generated from a readable source. Each panel has a value, a unit,
//! a threshold for a bad value, the dashboard of the next level down, and its alert. The JSON model
//! follows from these ([`json`]).
//!
//! The levels are fleet → one node → one peer; pod attach, addresses and controller are separate.
//! All share the variables `datasource` and `node`, which links pass on, and `runbooks`, the
//! location of docs/alerts.md.

mod addresses;
mod attach;
mod controller;
mod fleet;
mod json;
mod node;
mod peer;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

pub(crate) use json::SCHEMA_VERSION;

use crate::fabric::Place;
use crate::progress::say;

/// A dashboard.
pub(crate) struct Dashboard {
    /// Its uid in Grafana, and the file name after `trunkline-`.
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    /// Variables in addition to `datasource`, `node` and `runbooks`.
    pub variables: &'static [Variable],
    pub rows: Vec<Row>,
}

/// A selection at the top of a dashboard: values of a label.
pub(crate) struct Variable {
    pub name: &'static str,
    pub label: &'static str,
    /// `label_values(…)`.
    pub query: &'static str,
    /// Whether several values, or all, may be selected.
    pub multi: bool,
}

/// Panels under a heading.
pub(crate) struct Row {
    pub title: &'static str,
    pub panels: Vec<Panel>,
}

/// Presentation of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// The last value, in large type.
    Stat,
    /// A time series.
    Series,
    /// The last values, one line for each set of labels.
    Table,
}

/// Threshold of a bad value.
#[derive(Clone, Copy)]
pub(crate) enum Bounds {
    /// No threshold.
    None,
    /// Bad from this value on.
    Above(f64),
    /// Bad below this value.
    Below(f64),
}

/// One panel.
pub(crate) struct Panel {
    pub title: &'static str,
    pub description: &'static str,
    pub view: View,
    /// Grafana's name for the unit.
    pub unit: &'static str,
    pub bounds: Bounds,
    /// Expressions, each with the name of its lines.
    pub queries: Vec<(&'static str, &'static str)>,
    /// Texts for numeric codes.
    pub words: &'static [(i64, &'static str)],
    /// The dashboard with more detail.
    pub next: &'static str,
    /// The alert for the same condition.
    pub alert: Option<&'static str>,
    /// In columns, of 24.
    pub width: u8,
}

impl Panel {
    /// A panel with default values.
    pub(crate) fn new(
        view: View,
        title: &'static str,
        unit: &'static str,
        next: &'static str,
        queries: &[(&'static str, &'static str)],
        description: &'static str,
    ) -> Self {
        let width = match view {
            View::Stat => 4,
            View::Series => 12,
            View::Table => 24,
        };
        let queries = queries.to_vec();
        Self {
            title,
            description,
            view,
            unit,
            bounds: Bounds::None,
            queries,
            words: &[],
            next,
            alert: None,
            width,
        }
    }

    pub(crate) fn bad(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    pub(crate) fn alert(mut self, alert: &'static str) -> Self {
        self.alert = Some(alert);
        self
    }

    pub(crate) fn words(mut self, words: &'static [(i64, &'static str)]) -> Self {
        self.words = words;
        self
    }

    pub(crate) fn width(mut self, width: u8) -> Self {
        self.width = width;
        self
    }
}

/// RFC 4271's states.
const SESSION: &[(i64, &str)] =
    &[(1, "Idle"), (2, "Connect"), (3, "Active"), (4, "OpenSent"), (5, "OpenConfirm"), (6, "Established")];
const YES_NO: &[(i64, &str)] = &[(0, "no"), (1, "yes")];
/// The states of the rules of network policies.
const POLICY_STATE: &[(i64, &str)] = &[(0, "loading"), (1, "in force"), (2, "retained"), (3, "refused")];

pub(crate) fn all() -> Vec<Dashboard> {
    vec![
        fleet::dashboard(),
        node::dashboard(),
        peer::dashboard(),
        attach::dashboard(),
        addresses::dashboard(),
        controller::dashboard(),
    ]
}

/// The existing files.
pub(crate) fn files(place: &Place) -> Result<Vec<PathBuf>> {
    let folder = place.repository.join("dashboards");
    let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}

/// Writes the files; with `check` only reports outdated ones. Returns whether all are current.
pub(crate) fn run(place: &Place, check: bool) -> Result<bool> {
    let mut current = true;
    for dashboard in all() {
        let name = format!("dashboards/trunkline-{}.json", dashboard.name);
        let (path, text) = (place.repository.join(&name), json::text(&dashboard)?);
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        if check {
            say(&format!("{name} is not current: run `cargo lab docs`"));
            current = false;
        } else {
            std::fs::create_dir_all(place.repository.join("dashboards"))?;
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
            say(&format!("wrote {name}"));
        }
    }
    Ok(current)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tests::observability::{is_exported, named, names_series};

    #[test]
    fn the_files_are_current() {
        let place = Place::find(None).unwrap();
        assert!(run(&place, true).unwrap(), "run `cargo lab docs`");
    }

    #[test]
    fn panels_have_descriptions_and_existing_targets() {
        let dashboards = all();
        let names: BTreeSet<&str> = dashboards.iter().map(|dashboard| dashboard.name).collect();
        let place = Place::find(None).unwrap();
        let runbook = std::fs::read_to_string(place.repository.join("docs/alerts.md")).unwrap();
        for dashboard in &dashboards {
            for panel in dashboard.rows.iter().flat_map(|row| &row.panels) {
                let (of, title) = (dashboard.name, panel.title);
                assert!(panel.description.len() > 20 && !panel.unit.is_empty(), "{of}: {title}");
                assert!(names.contains(panel.next), "{of}: {title} leads to {}", panel.next);
                if let Some(alert) = panel.alert {
                    assert!(
                        runbook.contains(&format!("\n## {alert}\n")),
                        "{of}: {title}: no section {alert}"
                    );
                }
                for (expr, legend) in &panel.queries {
                    let named = named(expr);
                    assert!(names_series(expr) && !legend.is_empty(), "{of}: {title}: {expr}");
                    let unknown: Vec<_> = named.iter().filter(|name| !is_exported(name)).collect();
                    assert!(unknown.is_empty(), "{of}: {title} shows {unknown:?}, which no program exports");
                }
            }
        }
    }
}
