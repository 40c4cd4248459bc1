//! Grafana's JSON model of a dashboard, in the schema version of Grafana 11.0. Later versions
//! migrate it when they load it.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Bounds, Dashboard, Panel, Variable, View};

/// Schema version of the JSON model.
pub(crate) const SCHEMA_VERSION: u32 = 39;

const NODE: Variable = Variable {
    name: "node",
    label: "Node",
    query: "label_values(trunkline_build_info, instance)",
    multi: true,
};

/// The file.
pub(super) fn text(dashboard: &Dashboard) -> Result<String> {
    Ok(serde_json::to_string_pretty(&model(dashboard))? + "\n")
}

fn model(dashboard: &Dashboard) -> Value {
    let mut variables = vec![json!({
        "type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1, "multi": false,
        "includeAll": false, "description": "The Prometheus that scrapes agents and controllers.",
    })];
    variables.extend([&NODE].into_iter().chain(dashboard.variables).map(variable));
    let runbooks = "docs/alerts.md";
    variables.push(json!({
        "type": "textbox", "name": "runbooks", "label": "Runbooks at", "query": runbooks,
        "description": "The address of your copy of docs/alerts.md.",
        "current": {"text": runbooks, "value": runbooks, "selected": true},
        "options": [{"text": runbooks, "value": runbooks, "selected": true}],
    }));
    json!({
        "uid": uid(dashboard.name),
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["trunkline"],
        "timezone": "browser",
        "editable": true,
        "graphTooltip": 1,
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": []},
        "templating": {"list": variables},
        "links": [{
            "title": "Trunkline", "type": "dashboards", "tags": ["trunkline"], "asDropdown": true, "includeVars": true, "keepTime": true,
            "targetBlank": false, "icon": "external link", "tooltip": "", "url": "",
        }],
        "panels": panels(dashboard),
    })
}

fn uid(name: &str) -> String {
    format!("trunkline-{name}")
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn variable(variable: &Variable) -> Value {
    json!({
        "type": "query", "name": variable.name, "label": variable.label, "datasource": datasource(), "query": variable.query,
        // Refresh when the time range changes: nodes and peers appear and disappear.
        "refresh": 2, "sort": 1, "multi": variable.multi, "includeAll": variable.multi, "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"], "selected": true},
    })
}

/// Rows from left to right and from top to bottom, on Grafana's grid of 24 columns.
fn panels(dashboard: &Dashboard) -> Vec<Value> {
    let mut panels = Vec::new();
    let mut top = 0;
    for row in &dashboard.rows {
        panels.push(json!({
            "type": "row", "id": panels.len() + 1, "title": row.title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
        }));
        top += 1;
        let (mut left, mut height) = (0, 0);
        for panel in &row.panels {
            let tall = if panel.view == View::Stat { 4 } else { 8 };
            if left + panel.width > 24 {
                top += height;
                (left, height) = (0, 0);
            }
            let place = json!({"x": left, "y": top, "w": panel.width, "h": tall});
            panels.push(self::panel(panel, panels.len() + 1, place));
            left += panel.width;
            height = height.max(tall);
        }
        top += height;
    }
    panels
}

fn panel(panel: &Panel, id: usize, place: Value) -> Value {
    let (kind, options, custom) = view(panel);
    let mut model = json!({
        "type": kind,
        "id": id,
        "title": panel.title,
        "description": panel.description,
        "datasource": datasource(),
        "gridPos": place,
        "targets": targets(panel),
        "options": options,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "color": {"mode": if panel.view == View::Series { "palette-classic" } else { "thresholds" }},
                "thresholds": {"mode": "absolute", "steps": steps(panel.bounds)},
                "mappings": mappings(panel.words),
                "custom": custom,
            },
            "overrides": [],
        },
        "links": links(panel),
    });
    if panel.view == View::Table {
        let value = panel.queries.first().map_or("value", |(_, legend)| legend);
        // Hide columns with the same value in all rows.
        model["transformations"] = json!([{"id": "organize", "options": {
            "excludeByName": {"Time": true, "__name__": true, "job": true},
            "renameByName": {"Value": value, "instance": "node"},
            "indexByName": {},
        }}]);
    }
    model
}

fn view(panel: &Panel) -> (&'static str, Value, Value) {
    match panel.view {
        View::Stat => {
            let options = json!({
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
                "orientation": "auto", "textMode": "value", "colorMode": "value", "graphMode": "none", "justifyMode": "auto",
            });
            ("stat", options, json!({}))
        }
        View::Series => {
            let options = json!({
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []},
                "tooltip": {"mode": "multi", "sort": "desc"},
            });
            let line = if matches!(panel.bounds, Bounds::None) { "off" } else { "line" };
            let custom = json!({
                "drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "auto", "spanNulls": false,
                "thresholdsStyle": {"mode": line},
            });
            ("timeseries", options, custom)
        }
        View::Table => ("table", json!({"showHeader": true, "cellHeight": "sm"}), json!({"align": "auto"})),
    }
}

fn targets(panel: &Panel) -> Vec<Value> {
    let now = panel.view == View::Table;
    let query = |(place, (expr, legend)): (usize, &(&str, &str))| {
        json!({
            "refId": char::from(b'A' + u8::try_from(place).unwrap_or_default()).to_string(),
            "datasource": datasource(),
            "editorMode": "code",
            "expr": expr,
            "legendFormat": legend,
            "format": if now { "table" } else { "time_series" },
            "instant": now,
            "range": !now,
        })
    };
    panel.queries.iter().enumerate().map(query).collect()
}

fn steps(bounds: Bounds) -> Value {
    match bounds {
        Bounds::None => json!([{"value": null, "color": "blue"}]),
        Bounds::Above(bad) => json!([{"value": null, "color": "green"}, {"value": bad, "color": "red"}]),
        Bounds::Below(bad) => json!([{"value": null, "color": "red"}, {"value": bad, "color": "green"}]),
    }
}

fn mappings(words: &[(i64, &str)]) -> Value {
    if words.is_empty() {
        return json!([]);
    }
    let word = |(place, (code, word)): (usize, &(i64, &str))| {
        (code.to_string(), json!({"text": word, "index": place}))
    };
    let options: serde_json::Map<String, Value> = words.iter().enumerate().map(word).collect();
    json!([{"type": "value", "options": options}])
}

/// The next level down with the current selection, and the alert's section of the runbook.
fn links(panel: &Panel) -> Vec<Value> {
    let link = |title: String, url: String, apart: bool| {
        json!({
            "title": title, "url": url, "targetBlank": apart, "type": "link", "tags": [], "icon": "external link", "tooltip": "",
            "asDropdown": false, "includeVars": false, "keepTime": false,
        })
    };
    let chosen = "${datasource:queryparam}&${node:queryparam}&${runbooks:queryparam}&${__url_time_range}";
    let next = link(format!("More: {}", panel.next), format!("/d/{}?{chosen}", uid(panel.next)), false);
    let section = |alert: &str| format!("${{runbooks}}#{}", alert.to_lowercase());
    let alert = panel.alert.map(|alert| link(format!("Runbook: {alert}"), section(alert), true));
    [next].into_iter().chain(alert).collect()
}
