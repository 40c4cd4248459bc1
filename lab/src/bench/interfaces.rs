//! `cargo lab bench interfaces`: ADD of a pod with two interfaces, compared with a pod that has one.
//!
//! There is a real API server with the controller, and the agent of node1 of the topology hybrid. The
//! IPInstances exist before the first ADD. Both kinds of pods alternate, so other load affects both.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::attach::Contender;
use super::{Bound, report, warn_if_busy};
use crate::cni::{self, Identity, Sandbox, plugin_path};
use crate::demo::ms;
use crate::fabric::{Fabric, Place};
use crate::kube::assets::Assets;
use crate::kube::controller::Replicas;
use crate::kube::pods::{Plan, Pretended};
use crate::kube::{Cluster, nodes};
use crate::product::Profile;
use crate::progress::step;
use crate::shell::{Seen, wait_for};
use crate::stats::{percentile, round};
use crate::tests::kube::crds;
use crate::{client, packages, product};

/// Pods of each kind.
const PODS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(120);
const MOST_RATIO: f64 = 1.8;
const NAMESPACE: &str = "bench";
const NODE: &str = "node1";
const LIST: &str = r#"[{"name": "net1", "network": "overlay", "ipFamily": "IPv4"}]"#;

#[derive(Debug, Clone, Serialize)]
struct Figures {
    bench: &'static str,
    pods: usize,
    /// ADD in milliseconds.
    one_p50_ms: f64,
    one_p99_ms: f64,
    two_p50_ms: f64,
    two_p99_ms: f64,
    ratio_p50: f64,
    bounds: Vec<Bound>,
}

/// `cargo lab bench interfaces`.
pub(crate) fn bench(place: &Place, json: bool) -> Result<bool> {
    packages::need_root("cargo lab bench interfaces")?;
    packages::need(packages::ALWAYS.into_iter().chain(["frr", "bird2", "nftables"]))?;
    let assets = match Assets::find(place)? {
        Ok(assets) => assets,
        Err(missing) => bail!("{missing}"),
    };
    let (nodes, controller) =
        (product::build(place, Profile::Release)?, product::build_controller(place, Profile::Release)?);
    warn_if_busy();
    let figures = Cluster::with(place, "bench-interfaces", &assets, |cluster| {
        Fabric::up(place, "hybrid", &nodes)?.watched(|fabric| measure(cluster, fabric, &controller))
    })?;
    let words = format!(
        "  ADD with one interface: p50 {:.2} ms, p99 {:.2} ms; with two: p50 {:.2} ms, p99 {:.2} ms (ratio of p50 {:.2})\n",
        figures.one_p50_ms, figures.one_p99_ms, figures.two_p50_ms, figures.two_p99_ms, figures.ratio_p50
    );
    report(json, &figures, &words, &figures.bounds)
}

fn measure(cluster: &Cluster, fabric: &Fabric, controller: &Path) -> Result<Figures> {
    let node = fabric.host(NODE)?;
    client::wait_answering(node)?;
    crds::install(cluster)?;
    for file in ["networks", "subnets"] {
        let file = fabric.file(&format!("hybrid/manifests/{file}.yaml"));
        cluster.apply(&std::fs::read_to_string(&file).with_context(|| file.display().to_string())?)?;
    }
    let pretended = Pretended::new(cluster.client());
    cluster.wait(pretended.namespace(NAMESPACE))?;
    let _doorways = nodes::join_some(cluster, fabric, [NODE], |_| Ok(cluster.kubeconfig()))?;
    client::wait_established(node, PATIENCE)?;
    let _replicas = Replicas::start(cluster, controller, 1)?;

    let kinds: [(&str, &[(&str, &str)]); 2] =
        [("one", &[]), ("two", &[("networking.alibaba.com/interfaces", LIST)])];
    let sandboxes = step(&format!("{} pods", 2 * PODS), || {
        let mut all = Vec::new();
        for number in 0..PODS {
            for (kind, annotations) in kinds {
                let plan = Plan {
                    namespace: NAMESPACE.to_owned(),
                    name: format!("{kind}-{number}"),
                    node: NODE.to_owned(),
                    family: "IPv4",
                    stateful_set: None,
                };
                let uid = cluster.wait(pretended.create_with(&plan, annotations))?;
                let mut sandbox = Sandbox::create(fabric, NODE, &plan.name)?;
                sandbox.identity = Identity { namespace: plan.namespace, name: plan.name, uid };
                all.push(sandbox);
            }
        }
        wait_for("the IPInstances", PATIENCE, || {
            let list = cluster.kubectl(["get", "ipinstances", "-n", NAMESPACE, "-o", "json"])?;
            let list: Value = serde_json::from_str(&list)?;
            let count = list["items"].as_array().map_or(0, Vec::len);
            Ok(Seen::when(count == 3 * PODS, || format!("{count}")))
        })?;
        Ok(all)
    })?;
    let contender = Contender { host: node, conf: cni::trunkline(None), path: plugin_path(node) };
    let mut times = [Vec::new(), Vec::new()];
    step("ADD, alternating", || {
        for (number, pair) in sandboxes.chunks(2).enumerate() {
            crate::interrupt::check()?;
            for turn in 0..2 {
                let which = (number + turn) % 2;
                let pod = pair.get(which).context("a pod of each kind")?;
                times[which].push(ms(node.within(|| contender.run("ADD", pod))?.took));
            }
        }
        Ok(())
    })?;
    let [one, two] = times;
    let ratio = round(percentile(&two, 50.0) / percentile(&one, 50.0));
    Ok(Figures {
        bench: "interfaces",
        pods: PODS,
        one_p50_ms: percentile(&one, 50.0),
        one_p99_ms: percentile(&one, 99.0),
        two_p50_ms: percentile(&two, 50.0),
        two_p99_ms: percentile(&two, 99.0),
        ratio_p50: ratio,
        bounds: vec![Bound::at_most("ADD with two interfaces relative to one, p50", ratio, MOST_RATIO)],
    })
}
