//! The CRDs on a real API server: it accepts them and hybridnet users' objects, and each of their
//! rules refuses its fault.
//!
//! A case is a valid base object, and edits that make it invalid in one way. Cases about changes
//! are patches of the stored base, the others are creations; all are dry runs. The server's text
//! must contain the rule's message. At the end every rule of `api/src/kube/rules.rs` must have
//! refused something: a new rule without a case fails the test.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use trunkline_api::kube::{crds, manifests, rules};
use trunkline_api::names::MULTICLUSTER_GROUP;

use self::rule_cases::{Base, Edits, bases};
use super::{Test, Verdict, cluster, hybridnet};
use crate::kube::Cluster;
use crate::shell::{Seen, run_with_input, wait_for};
use crate::tests::{Context as Lab, passed};

#[path = "../../../../api/tests/rule_cases/mod.rs"]
mod rule_cases;

pub(super) const TESTS: &[Test] = &[Test {
    name: "kube/crds",
    about: "the CRDs on a real API server: hybridnet's manifests unchanged, each rule accepted and refused",
    run: on_a_server,
}];

/// hybridnet's manifests as users write them, and as its server returns them.
const DOCUMENTED: &[(&str, &str)] = &[
    ("bgp-sample", include_str!("../../../../api/tests/fixtures/bgp-sample.yaml")),
    ("bgp-documented", include_str!("../../../../api/tests/fixtures/bgp-documented.yaml")),
    ("vlan", include_str!("../../../../api/tests/fixtures/vlan.yaml")),
    ("vxlan", include_str!("../../../../api/tests/fixtures/vxlan.yaml")),
    ("subnet-documented", include_str!("../../../../api/tests/fixtures/subnet-documented.yaml")),
    ("as-the-server-gives-it", include_str!("../../../../api/tests/fixtures/as-the-server-gives-it.yaml")),
    ("nodeinfo", include_str!("../../../../api/tests/fixtures/nodeinfo.yaml")),
];

/// Trunkline's own manifests.
const OWN: &[(&str, &str)] = &[
    ("docs/manifests/bgp", include_str!("../../../../docs/manifests/bgp.yaml")),
    ("docs/manifests/import", include_str!("../../../../docs/manifests/import.yaml")),
    ("docs/manifests/policy", include_str!("../../../../docs/manifests/policy.yaml")),
    ("docs/manifests/vlan", include_str!("../../../../docs/manifests/vlan.yaml")),
    ("docs/manifests/vxlan", include_str!("../../../../docs/manifests/vxlan.yaml")),
];

/// hybridnet's only manifest about several clusters. Its fields are older than hybridnet's CRD.
const OLD_REMOTE_CLUSTER: &str = include_str!("../../../../api/tests/fixtures/remotecluster-sample.yaml");

/// The pages whose examples the server accepts.
const PAGES: [&str; 2] =
    [include_str!("../../../../docs/services.md"), include_str!("../../../../docs/agent-settings.md")];

fn on_a_server(context: &Lab) -> Result<Verdict> {
    cluster(context, "crds", |cluster| {
        before_the_rules(cluster)?;
        for (name, text) in DOCUMENTED.iter().chain(OWN) {
            documented(cluster, text).with_context(|| (*name).to_owned())?;
        }
        let examples = PAGES.iter().flat_map(|page| page.split("```yaml\n").skip(1));
        for example in examples.filter_map(|rest| rest.split("```").next()) {
            documented(cluster, example).with_context(|| format!("the example {example}"))?;
        }
        let mut spoken = BTreeSet::new();
        let mut refused = 0;
        let mut agreed = (0, 0);
        for base in bases() {
            let api = api(cluster, &base);
            cluster
                .wait(api.create(&PostParams::default(), &object(&base, base.spec.clone())?))
                .with_context(|| format!("the good {} was refused", base.name))?;
            for good in base.good {
                let spec = edited(&base.spec, good)?;
                attempt(cluster, &base, spec, false).with_context(|| format!("{good:?} was refused"))?;
            }
            for (edits, words) in base.bad {
                expect(cluster, &base, edits, words, false, &mut spoken)?;
            }
            for (edits, words) in base.changes {
                expect(cluster, &base, edits, words, true, &mut spoken)?;
            }
            refused += base.bad.len() + base.changes.len();
            if base.has_rust_rules() {
                let (good, bad) = generated(cluster, &base)?;
                agreed = (agreed.0 + good, agreed.1 + bad);
            }
        }
        let silent: Vec<&str> =
            rules().iter().map(|rule| rule.message).filter(|message| !spoken.contains(message)).collect();
        ensure!(silent.is_empty(), "no case triggers these rules: {silent:#?}");
        with_reserved_fields(cluster)?;
        old_remote_cluster(cluster)?;
        let (good, bad) = agreed;
        ensure!(good > 100 && bad > 100, "generated objects: {good} accepted, {bad} refused");
        passed(format!(
            "{} rules, {refused} refusals; generated objects: {good} accepted and {bad} refused by both",
            rules().len()
        ))
    })
}

/// A Subnet as hybridnet's users have it, with fields that hybridnet ignores and the rules refuse.
pub(super) const RESERVED: &str = r#"{"apiVersion": "networking.alibaba.com/v1", "kind": "Subnet", "metadata": {"name": "reserved"},
    "spec": {"network": "rack1", "range": {"version": "4", "cidr": "10.77.0.0/24", "gateway": "10.77.0.1"},
        "config": {"private": true, "gatewayType": "l3", "gatewayNode": "node1a", "allowSubnets": ["other"]}}}"#;

/// Time for the API server to use a changed CRD.
const RULES: Duration = Duration::from_secs(30);

/// The refusals of [`RESERVED`].
pub(super) const REFUSALS: [&str; 3] = [
    "gatewayType is not supported: leave it out",
    "gatewayNode is not supported: leave it out",
    "allowSubnets is not supported: leave it out",
];

/// Installs the CRDs on a server with hybridnet's Subnets, of which the rules refuse one.
fn before_the_rules(cluster: &Cluster) -> Result<()> {
    let subnets = "subnets.networking.alibaba.com";
    let kind = hybridnet::kinds().into_iter().find(|kind| kind["metadata"]["name"] == subnets);
    cluster.apply(&kind.context("hybridnet's Subnets")?.to_string())?;
    super::install::established(cluster, "subnets")?;
    cluster.apply(RESERVED).context("hybridnet's CRD refused its own fields")?;
    install(cluster)?;
    // The condition Established was there before, and the server reads the new schema a moment later.
    wait_for("the rules of Subnets", RULES, || {
        let create = ["create", "--dry-run=server", "-f", "-"];
        let answer = run_with_input(&mut cluster.kubectl_command(&create), RESERVED);
        let text = answer.unwrap_or_else(|error| format!("{error:#}"));
        Ok(Seen::when(text.contains(REFUSALS[0]), || text))
    })
}

/// A Subnet that was stored before the rules is readable, and its other fields can change. Its
/// reserved fields can be removed, and not be changed. A new object with one is refused.
fn with_reserved_fields(cluster: &Cluster) -> Result<()> {
    let spec = || -> Result<Value> {
        let text = cluster.kubectl(["get", "subnet", "reserved", "-o", "json"])?;
        Ok(serde_json::from_str::<Value>(&text)?["spec"].take())
    };
    let wanted: Value = serde_json::from_str(RESERVED)?;
    ensure!(spec()?["config"] == wanted["spec"]["config"], "the stored Subnet is {}", spec()?);
    let patch =
        |patch: &str| cluster.kubectl(["patch", "subnet", "reserved", "--type=merge", "-p", patch]).map(drop);
    for change in [
        r#"{"metadata": {"labels": {"seen": "yes"}}}"#,
        r#"{"spec": {"range": {"reservedIPs": ["10.77.0.9"]}}}"#,
        r#"{"spec": {"config": {"private": false}}}"#,
    ] {
        patch(change).with_context(|| format!("{change} was refused"))?;
    }
    let status = r#"{"status": {"total": 253, "used": 0, "available": 253}}"#;
    cluster
        .kubectl(["patch", "subnet", "reserved", "--subresource=status", "--type=merge", "-p", status])
        .context("a status was refused")?;
    for (change, words) in [
        (r#"{"spec": {"config": {"gatewayType": "l2"}}}"#, REFUSALS[0]),
        (r#"{"spec": {"config": {"gatewayNode": "node1b"}}}"#, REFUSALS[1]),
        (r#"{"spec": {"config": {"allowSubnets": ["other", "third"]}}}"#, REFUSALS[2]),
    ] {
        let refused = patch(change).err().with_context(|| format!("{change} was accepted"))?;
        ensure!(format!("{refused:#}").contains(words), "{change}: {refused:#}");
    }

    // The migration's dry run creates each object again: an update that changes nothing is accepted.
    let list = cluster.kubectl(["get", "subnets", "-o", "yaml"])?;
    let unchanged =
        run_with_input(&mut cluster.kubectl_command(&["apply", "--dry-run=server", "-f", "-"]), &list);
    ensure!(unchanged.is_ok(), "an unchanged Subnet is refused: {unchanged:?}");
    let refused =
        run_with_input(&mut cluster.kubectl_command(&["create", "--dry-run=server", "-f", "-"]), &list);
    let refused = format!("{:#}", refused.err().context("a new Subnet with reserved fields was accepted")?);
    for words in REFUSALS {
        ensure!(refused.contains(words), "{words:?} is not in: {refused}");
    }

    patch(r#"{"spec": {"config": {"gatewayType": null, "gatewayNode": null, "allowSubnets": null}}}"#)?;
    let left = spec()?["config"].take();
    ensure!(left == json!({"private": false}), "left of the config: {left}");
    cluster.kubectl(["delete", "subnet", "reserved", "--wait=false"]).map(drop)
}

/// Generated objects per base.
const GENERATED: usize = 150;

/// Creates objects with up to three random edits as dry runs. The API server and the Rust rules
/// must agree on each. Returns the number of objects that both accept, and the number that both
/// refuse.
fn generated(cluster: &Cluster, base: &Base) -> Result<(usize, usize)> {
    let edits: Vec<Edits> =
        base.good.iter().copied().chain(base.bad.iter().map(|(edits, _)| *edits)).collect();
    let mut random = fastrand::Rng::with_seed(15);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..GENERATED {
        let mut spec = base.spec.clone();
        for _ in 0..random.usize(1..=3) {
            // Edits of a list that an earlier edit removed cannot be applied.
            spec = rule_cases::edited(&spec, edits[random.usize(..edits.len())]).unwrap_or(spec);
        }
        let faults = rule_cases::faults(base, &spec, None);
        let answer = attempt(cluster, base, spec.clone(), false);
        match (&answer, faults.is_empty()) {
            (Ok(()), true) => good += 1,
            (Err(_), false) => bad += 1,
            (Ok(()), false) => bail!(
                "{}: {spec}: the CRD accepts this spec, the Rust rules refuse it: {faults:?}",
                base.name
            ),
            (Err(error), true) => {
                bail!("{}: {spec}: the Rust rules accept this spec, the CRD refuses it: {error:#}", base.name)
            }
        }
    }
    Ok((good, bad))
}

/// Puts the CRDs of `deploy/` into a cluster and waits until their kinds are served.
pub(crate) fn install(cluster: &Cluster) -> Result<()> {
    for (name, text) in manifests() {
        cluster.apply(&text).with_context(|| name)?;
    }
    for crd in crds() {
        let name = format!("crd/{}", crd.metadata.name.unwrap_or_default());
        cluster.kubectl(["wait", "--for=condition=Established", "--timeout=60s", &name])?;
    }
    Ok(())
}

/// kubectl refuses hybridnet's old RemoteCluster by name, as `docs/multi-cluster.md#fields` says.
fn old_remote_cluster(cluster: &Cluster) -> Result<()> {
    let refused = |text: &str, words: &[&str]| {
        let created = run_with_input(&mut cluster.kubectl_command(&["create", "-f", "-"]), text);
        let error = created.err().with_context(|| format!("{text} was accepted"))?;
        let said = format!("{error:#}");
        let missing: Vec<_> = words.iter().filter(|words| !said.contains(**words)).collect();
        ensure!(missing.is_empty(), "{missing:?} is not in: {said}");
        Ok(())
    };
    refused(
        OLD_REMOTE_CLUSTER,
        &["no matches for kind \"RemoteCluster\" in version \"networking.alibaba.com/v1\""],
    )?;
    let corrected = OLD_REMOTE_CLUSTER.replace("networking.alibaba.com", MULTICLUSTER_GROUP);
    refused(&corrected, &["unknown field \"spec.connConfig\""])?;
    let without = corrected.split("  connConfig:").next().unwrap_or_default();
    let required = ["apiEndpoint", "caData", "certData", "keyData"];
    let words: Vec<String> = required.iter().map(|field| format!("spec.{field}: Required value")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    refused(&without.replace("spec:", "spec: {}"), &words)
}

/// Applies a manifest, reads it, and deletes it.
fn documented(cluster: &Cluster, text: &str) -> Result<()> {
    // A creation must not have the server's fields, and hybridnet's CRDs refuse nulls as well.
    let lines = text.lines().filter(|line| {
        let field = line.trim_start();
        !["resourceVersion:", "uid:", "creationTimestamp:", "selfLink:"]
            .iter()
            .any(|gone| field.starts_with(gone))
            && !field.ends_with(": null")
    });
    let mut text: String = lines.collect::<Vec<_>>().join("\n");
    if let (Some(start), Some(end)) = (text.find("  managedFields:"), text.find("  name: leaf-b\n")) {
        text.replace_range(start..end, "");
    }
    let text = text
        .replace("    - {apiVersion: v1, kind: Node, name: node1, uid: 5d0c}\n", "")
        .replace("  ownerReferences:\n", "");
    cluster.apply(&text)?;
    run_with_input(&mut cluster.kubectl_command(&["delete", "--wait=false", "-f", "-"]), &text)?;
    Ok(())
}

fn api(cluster: &Cluster, base: &Base) -> Api<DynamicObject> {
    let (group, version) = base.group_and_version();
    let gvk = GroupVersionKind::gvk(group, version, base.kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, base.plural);
    match base.namespace {
        Some(namespace) => Api::namespaced_with(cluster.client(), namespace, &resource),
        None => Api::all_with(cluster.client(), &resource),
    }
}

fn object(base: &Base, spec: Value) -> Result<DynamicObject> {
    let (group, version) = base.group_and_version();
    Ok(serde_json::from_value(json!({
        "apiVersion": format!("{group}/{version}"), "kind": base.kind, "metadata": {"name": base.name}, "spec": spec,
    }))?)
}

fn edited(spec: &Value, edits: Edits) -> Result<Value> {
    rule_cases::edited(spec, edits).with_context(|| format!("{edits:?} cannot be applied"))
}

/// Attempts a creation under another name, or a change of the base.
fn attempt(cluster: &Cluster, base: &Base, spec: Value, is_change: bool) -> Result<()> {
    let api = api(cluster, base);
    if is_change {
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        // A merge would keep removed fields.
        let patch = serde_json::from_value(json!([{"op": "replace", "path": "/spec", "value": spec}]))?;
        cluster.wait(api.patch(base.name, &params, &Patch::Json::<()>(patch)))?;
    } else {
        let mut object = object(base, spec)?;
        object.metadata.name = Some(format!("{}-dry", base.name));
        cluster.wait(api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object))?;
    }
    Ok(())
}

fn expect(
    cluster: &Cluster,
    base: &Base,
    edits: Edits,
    words: &str,
    is_change: bool,
    spoken: &mut BTreeSet<&'static str>,
) -> Result<()> {
    let spec = edited(&base.spec, edits)?;
    let error = match attempt(cluster, base, spec, is_change) {
        Ok(()) => bail!("{} with {edits:?} was accepted; expected {words:?}", base.name),
        Err(error) => format!("{error:#}"),
    };
    ensure!(error.contains(words), "{} with {edits:?}: expected {words:?}, got: {error}", base.name);
    spoken.extend(rules().iter().map(|rule| rule.message).filter(|message| error.contains(message)));
    Ok(())
}
