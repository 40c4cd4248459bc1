//! Links in the dashboards' files: from each panel to another dashboard, and from each panel with a
//! threshold to its section of the runbook. At least one panel links to each alert. The test reads
//! the generated files and not their source, because Grafana also reads the files.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::rules;
use crate::dashboards;
use crate::fabric::Place;
use crate::tests::book::headings;

/// The page for the variable `runbooks`.
const RUNBOOK: &str = "docs/alerts.md";

/// A dashboard's file.
struct File {
    uid: String,
    model: Value,
}

impl File {
    fn read(path: &std::path::Path) -> Result<Self> {
        let name = || path.display().to_string();
        let model: Value =
            serde_json::from_str(&std::fs::read_to_string(path).with_context(name)?).with_context(name)?;
        let uid = model["uid"].as_str().with_context(name)?.to_owned();
        Ok(Self { uid, model })
    }

    fn has_variable(&self, name: &str) -> bool {
        let list = self.model["templating"]["list"].as_array();
        list.is_some_and(|list| list.iter().any(|variable| variable["name"] == name))
    }

    fn panels(&self) -> impl Iterator<Item = &Value> {
        self.model["panels"].as_array().into_iter().flatten().filter(|panel| panel["type"] != "row")
    }
}

/// Follows every link of every panel; returns their number. The error lists all broken ones.
pub(super) fn follow(place: &Place) -> Result<usize> {
    let files: Vec<File> =
        dashboards::files(place)?.iter().map(|path| File::read(path)).collect::<Result<_>>()?;
    let runbook = std::fs::read_to_string(place.repository.join(RUNBOOK)).context(RUNBOOK)?;
    let alerts: BTreeSet<String> = rules::read(place)?.into_iter().map(|rule| rule.alert).collect();
    let (followed, faults) = followed(&files, &headings(&runbook), &alerts);
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(followed)
}

fn followed(files: &[File], anchors: &BTreeSet<String>, alerts: &BTreeSet<String>) -> (usize, Vec<String>) {
    let by_uid: BTreeMap<&str, &File> = files.iter().map(|file| (file.uid.as_str(), file)).collect();
    let (mut followed, mut faults, mut linked) = (0, Vec::new(), BTreeSet::new());
    for file in files {
        for panel in file.panels() {
            let of = format!("{}: {}", file.uid, panel["title"].as_str().unwrap_or_default());
            let urls =
                panel["links"].as_array().into_iter().flatten().filter_map(|link| link["url"].as_str());
            let (mut down, mut explained) = (0, 0);
            for url in urls {
                followed += 1;
                let broken = if let Some(anchor) = url.strip_prefix("${runbooks}#") {
                    explained += 1;
                    linked.insert(anchor.to_owned());
                    (!anchors.contains(anchor)).then(|| format!("{RUNBOOK} has no such section"))
                } else {
                    down += 1;
                    leads_to_dashboard(file, &by_uid, url).err()
                };
                faults.extend(broken.map(|why| format!("{of}: {url}: {why}")));
            }
            if down != 1 {
                faults.push(format!("{of}: {down} links to the next level"));
            }
            let red = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
                .as_array()
                .is_some_and(|steps| steps.len() > 1);
            if red && explained == 0 {
                faults.push(format!("{of}: it has a threshold, and no link to a runbook"));
            }
        }
    }
    let unlinked = alerts.iter().filter(|alert| !linked.contains(&alert.to_lowercase()));
    faults.extend(unlinked.map(|alert| format!("no panel leads to {alert}")));
    (followed, faults)
}

/// Whether an address leads to another dashboard, with variables that both have.
fn leads_to_dashboard(from: &File, by_uid: &BTreeMap<&str, &File>, url: &str) -> Result<(), String> {
    let (uid, query) =
        url.strip_prefix("/d/").and_then(|rest| rest.split_once('?')).ok_or("no address of a dashboard")?;
    let to = by_uid.get(uid).ok_or("no such dashboard")?;
    if to.uid == from.uid {
        return Err("the link leads to its own dashboard".to_owned());
    }
    for part in query.split('&').filter(|part| *part != "${__url_time_range}") {
        let variable = part.strip_prefix("${").and_then(|part| part.strip_suffix(":queryparam}"));
        let variable = variable.ok_or_else(|| format!("{part} is no variable"))?;
        if !from.has_variable(variable) || !to.has_variable(variable) {
            return Err(format!("not both have the variable {variable}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod unit {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_link_of_every_panel_has_a_target() {
        assert!(follow(&Place::find(None).unwrap()).unwrap() > 100);
    }

    fn file(uid: &str, links: Value, steps: Value) -> File {
        let model = json!({
            "templating": {"list": [{"name": "node"}]},
            "panels": [{"type": "row"}, {"title": "p", "links": links, "fieldConfig": {"defaults": {"thresholds": {"steps": steps}}}}],
        });
        File { uid: uid.to_owned(), model }
    }

    #[test]
    fn a_link_without_a_target_is_found() {
        let url = |url: &str| json!({"url": url});
        let good = url("/d/b?${node:queryparam}&${__url_time_range}");
        let red = json!([{"value": null}, {"value": 1}]);
        let faults = |links: Value, steps: &Value| {
            let files = [
                file("a", links, steps.clone()),
                file("b", json!([url("/d/a?${node:queryparam}")]), json!([])),
            ];
            followed(&files, &["here".to_owned()].into(), &["Here".to_owned()].into()).1.join("; ")
        };
        assert_eq!(faults(json!([good, url("${runbooks}#here")]), &red), "");
        let calm = json!([]);
        for (links, steps, words) in [
            (
                json!([good, url("${runbooks}#gone")]),
                &red,
                "a: p: ${runbooks}#gone: docs/alerts.md has no such section; no panel leads to Here",
            ),
            (
                json!([good]),
                &red,
                "a: p: it has a threshold, and no link to a runbook; no panel leads to Here",
            ),
            (json!([url("${runbooks}#here")]), &calm, "a: p: 0 links to the next level"),
            (
                json!([url("/d/c?${node:queryparam}"), url("${runbooks}#here")]),
                &calm,
                "a: p: /d/c?${node:queryparam}: no such dashboard",
            ),
            (
                json!([url("/d/a?${node:queryparam}"), url("${runbooks}#here")]),
                &calm,
                "a: p: /d/a?${node:queryparam}: the link leads to its own dashboard",
            ),
            (
                json!([url("/d/b?${pod:queryparam}"), url("${runbooks}#here")]),
                &calm,
                "a: p: /d/b?${pod:queryparam}: not both have the variable pod",
            ),
        ] {
            assert_eq!(faults(links, steps), words);
        }
    }
}
