//! `docs/config.md` and `docs/agent.schema.json`: the agent's configuration file, from the schema
//! of its type.

use std::fmt::Write as _;

use trunkline_agent::config::schema::schema;

use super::schema::fields;
use super::table::cell;

const HEAD: &str = "\
# The agent's configuration file

<!-- Written by `cargo lab docs` from agent/src/config.rs: edit that. -->

The file is `/etc/trunkline/agent.yaml`, or the argument of `trunkline agent --config`. It is YAML, and the agent reads it only at its start. [AgentSettings](agent-settings.md) set some fields by node label. Every field is optional, and an empty file is
valid. The agent refuses an unknown field, or a value out of range, and names the field and the fix; `trunkline agent --check` does the same
without a start. **required** means: required if its section exists. [agent.example.yaml](agent.example.yaml) explains every field. Networks, subnets and peers are
[resources](crds.md), not configuration.

Editors can check the file against [agent.schema.json](agent.schema.json). With the YAML language server add this first line:
`# yaml-language-server: $schema=/usr/share/doc/trunkline/agent.schema.json`.

| field | type | default | description |
|---|---|---|---|
";

/// The page.
pub(super) fn page() -> String {
    let mut text = HEAD.to_owned();
    for field in fields("", &schema()) {
        let default = if field.required { "**required**" } else { &field.default };
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            field.path,
            cell(&field.kind),
            cell(default),
            field.about
        );
    }
    text
}

/// The schema as a file.
pub(super) fn file() -> String {
    format!("{:#}\n", schema())
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn fields_of_each_kind_are_listed() {
        let page = page();
        for row in [
            "| `bmp.statsSeconds` | integer, 0 to 3600 | `60` |",
            "| `httpAddress` | address with port | `127.0.0.1:9473` |",
            "| `kube.kubeconfig` | path |  |",
            "| `listen` | list of addresses with port | `[\"0.0.0.0:179\", \"[::]:179\"]` |",
            "| `nodeLabels` | map of strings | `{}` |",
            "| `page` | `loopback` or `everywhere` or `nowhere` | `loopback` |",
            "| `telemetry.otlp.endpoint` | string | **required** |",
            "| `telemetry.otlp.headers.*.env` | string |  |",
            "| `vtepAddressCIDRs` | list of prefixes | `[\"0.0.0.0/0\", \"::/0\"]` |",
        ] {
            assert!(page.contains(row), "{row} is not on the page:\n{page}");
        }
    }
}
