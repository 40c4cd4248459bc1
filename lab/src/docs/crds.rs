//! `docs/crds.md`: every field of every resource, from the schemas for the API server, and the
//! validation rules.

use std::fmt::Write as _;

use serde_json::Value;
use trunkline_api::kube::{crds, rules};

use super::schema::fields;
use super::table::cell;

const HEAD: &str = "\
# Resources

<!-- Written by `cargo lab docs` from api/src/resources, api/src/policy.rs and api/src/kube/rules.rs: edit those. -->

Networks, Subnets, IPInstances and NodeInfos are hybridnet's, field for field, with additional fields of Trunkline. The kinds of `multicluster.alibaba.com` are hybridnet's too:
[Several clusters](multi-cluster.md#fields) lists the fields that have an effect. The kinds of `trunkline.io` are Trunkline's own: [Services](services.md#service-addresses) explains them.
In a cluster all are custom resources ([deploy/crds](../deploy/crds)). On a host without a cluster, Networks, Subnets, NodeInfos, RemoteSubnets, RemoteVteps, AnycastAddresses and AgentSettings are files in the folder of manifests ([examples](manifests/), [configuration](config.md)). The rules of the API server below also apply to files, except rules about changes.

In the tables `[]` is any element of a list and `.*` any key of a map. **required** means: required if the object around it exists. A field without a default is
optional: its text describes the effect, and a missing boolean is `false` unless the text has another default. `kubectl explain network.spec.config` prints the same texts. The
webhook checks rules about other objects (overlapping prefixes, a missing network, objects in use); each message has the fix.
";

/// The page.
pub(super) fn page() -> String {
    let mut text = HEAD.to_owned();
    for crd in crds() {
        let names = &crd.spec.names;
        let kind = names.kind.as_str();
        let schema = crd.spec.versions.first().and_then(|version| version.schema.as_ref());
        let root = schema.and_then(|schema| serde_json::to_value(&schema.open_api_v3_schema).ok());
        let root = root.unwrap_or_default();
        let short = names.short_names.iter().flatten().map(|name| format!(", `{name}` for short"));
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "\n## {kind}\n\n{} `{}/{}`; {}, `kubectl get {}`{}.\n",
            cell(root["description"].as_str().unwrap_or_default()),
            crd.spec.group,
            crd.spec.versions.first().map_or("", |version| version.name.as_str()),
            if crd.spec.scope == "Cluster" { "one for the cluster" } else { "in a namespace" },
            names.plural,
            short.collect::<String>(),
        );
        for part in ["spec", "status"] {
            table(&mut text, kind, part, &root["properties"][part]);
        }
        refusals(&mut text, kind);
    }
    text
}

fn table(text: &mut String, kind: &str, part: &str, schema: &Value) {
    // A kind may have a spec or a status without fields.
    if !schema["properties"].is_object() {
        return;
    }
    let about = cell(schema["description"].as_str().unwrap_or_default());
    let _ = write!(
        text,
        "\n### {kind}: {part}\n\n{about}\n\n| field | type | default | description |\n|---|---|---|---|\n"
    );
    for field in fields(part, schema) {
        let default = if field.required { "**required**" } else { &field.default };
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {} |",
            field.path,
            cell(&field.kind),
            cell(default),
            field.about
        );
    }
}

fn refusals(text: &mut String, kind: &str) {
    let mut rules = rules().into_iter().filter(|rule| rule.kind == kind).peekable();
    if rules.peek().is_none() {
        return;
    }
    let _ = write!(
        text,
        "\n### {kind}: rules of the API server\n\nEach row has a message and its condition. The API server refuses an object with the message if the condition is false (CEL; `self` is the object at that place).\n\n"
    );
    for rule in rules {
        let cel = rule.cel.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "- `{}`: {}  \n  `{cel}`", rule.path, rule.message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_and_every_rule_of_the_crds_is_on_the_page() {
        let page = page();
        for row in [
            "| `spec.type` | `Underlay` or `Overlay` or `GlobalBGP` | `Underlay` |",
            "| `spec.config.bgpPeers[].asn` | integer, 1 to 4294967295 | **required** |",
            "| `spec.nodeSelector` | map of strings",
            "| `status.peers[].state` |",
            "| `spec.address.ip` |",
            "### Subnet: rules of the API server",
            "| `spec.serviceSelectors[].matchExpressions[].operator` | `In` or `NotIn` or `Exists` or `DoesNotExist` | **required** |",
            "`trunkline.io/v1alpha1`; one for the cluster, `kubectl get servicepools`, `tpool` for short.",
        ] {
            assert!(page.contains(row), "{row} is not on the page");
        }
        for rule in rules() {
            assert!(page.contains(rule.message) && !rule.cel.contains('`'), "{rule:?}");
        }
        // The test counts the fields in another way: each description in the files belongs to a
        // field, a list's elements, or a whole object.
        let named: usize = trunkline_api::kube::manifests().iter().map(|(_, text)| names(text)).sum();
        let rows = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, named);
    }

    /// The number of fields below spec and status in the text of a CRD.
    fn names(text: &str) -> usize {
        fn count(schema: &Value) -> usize {
            let below = schema["properties"].as_object();
            let own = below.map_or(0, |below| below.len());
            let inner = below.into_iter().flatten().map(|(_, inner)| count(inner)).sum::<usize>();
            let held = |name: &str| if schema[name].is_object() { count(&schema[name]) } else { 0 };
            own + inner + held("items") + held("additionalProperties")
        }
        let crd: Value = serde_saphyr::from_str(text.split_once("---\n").unwrap().1).unwrap();
        let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        count(&root["properties"]["spec"]) + count(&root["properties"]["status"])
    }
}
