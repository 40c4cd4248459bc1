//! An upgrade before its CRDs: the cluster has hybridnet's kinds only, because `helm upgrade` does
//! not install new CRDs. Pods must not depend on the kinds of `trunkline.io`. When the CRDs come,
//! the agents and the controller use them without a restart.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use serde_json::json;
use trunkline_api::names::GROUP;

use super::advertise::{Advertise, NAMESPACE, NODES, PORT, SERVICE_PORT, configure};
use super::{Context, Test, Verdict};
use crate::client;
use crate::kube::Cluster;
use crate::kube::controller::Replicas;
use crate::kube::nodes;
use crate::kube::pods::Pretended;
use crate::pinger::{Flow, Pinger};
use crate::shell::{Seen, wait_for};
use crate::tests::bed::{Bed, INTERVAL, PATIENCE, lab, lost_nothing};
use crate::tests::kube::{cluster, crds};
use crate::tests::{hybrid, passed};

pub(super) const TEST: Test = Test {
    name: "service-addresses/own-crds",
    about: "without the CRDs of trunkline.io pods get their addresses and routes; once installed, they are used \
            without a restart",
    run,
};

const POOL: &str = "
apiVersion: trunkline.io/v1alpha1
kind: ServicePool
metadata: { name: late }
spec: { addresses: [203.0.113.7/32] }
";
const ADDRESS: &str = "203.0.113.7/32";

fn run(context: &Context) -> Result<Verdict> {
    let controller = context.controller()?;
    cluster(context, "service-own-crds", |cluster| {
        lab(context, "hybrid", |bed| {
            write_objects(cluster, bed)?;
            let mut controller = Replicas::start(cluster, &controller, 1)?;
            for node in NODES {
                configure(bed, node, &json!({ "kind": "none" }))?;
            }
            let _doorways = nodes::join(cluster, bed.fabric, |_| Ok(cluster.kubeconfig()))?;
            hybrid::ready(bed)?;
            let test = Advertise { cluster, bed };
            let (one, two) = (test.attach(NODES[0])?, test.attach(NODES[2])?);
            for node in NODES {
                let status = client::status(bed.host(node)?)?;
                ensure!(status.not_ready.is_empty(), "{node} is not ready: {:?}", status.not_ready);
            }
            nodes::reach_each_other(&[&one, &two])?;
            let flow = |to: &IpAddr| Flow { name: format!("to {to}"), from: one.sandbox.ns.clone(), to: *to };
            let pinger = Pinger::start(two.addresses.iter().map(flow).collect(), INTERVAL)?;

            crds::install(cluster)?;
            cluster.apply(POOL)?;
            cluster.create(&service().to_string())?;
            test.endpoints("late", &[(&one, true), (&two, true)])?;
            let prefix: IpNet = ADDRESS.parse()?;
            wait_for(&format!("{ADDRESS} from every node"), PATIENCE, || {
                let paths = test.paths(&prefix)?;
                let is = paths.keys().copied().collect::<BTreeSet<_>>() == BTreeSet::from(NODES);
                Ok(Seen::when(is, || format!("{paths:?}")))
            })?;
            controller.still_running()?;
            lost_nothing(pinger)?;
            passed("pods of two nodes without the CRDs; afterwards a Service's address in FRR and BIRD")
        })
    })
}

/// Hybridnet's CRDs, Networks and Subnets.
fn write_objects(cluster: &Cluster, bed: &Bed<'_>) -> Result<()> {
    for (name, text) in trunkline_api::kube::manifests() {
        if name.starts_with(GROUP) {
            cluster.apply(&text).context(name)?;
        }
    }
    for crd in trunkline_api::kube::crds().into_iter().filter(|crd| crd.spec.group == GROUP) {
        let name = format!("crd/{}", crd.metadata.name.unwrap_or_default());
        cluster.kubectl(["wait", "--for=condition=Established", "--timeout=60s", &name])?;
    }
    for file in ["networks", "subnets"] {
        let file = bed.fabric.file(&format!("hybrid/manifests/{file}.yaml"));
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        cluster.apply(&text)?;
    }
    cluster.wait(Pretended::new(cluster.client()).namespace(NAMESPACE))
}

fn service() -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "late", "namespace": NAMESPACE },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "trunkline.io/load-balancer",
            "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"],
            "ports": [{ "port": SERVICE_PORT, "targetPort": PORT }],
        },
    })
}
