//! The topology `two-racks` with a cluster: its Subnets, and its nodes with running agents.

use std::path::Path;

use anyhow::Result;

use super::{Verdict, cluster};
use crate::fabric::Fabric;
use crate::kube::Cluster;
use crate::tests::Context;
use crate::topology::Image;
use crate::{client, evidence};

/// The Subnets of the Networks `rack1` and `rack2`.
pub(super) const SUBNETS: &str = "
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v4 }
spec: { network: rack1, range: { version: '4', cidr: 10.201.0.0/16 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack1-v6 }
spec: { network: rack1, range: { version: '6', cidr: 'fd00:201::/112' } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack2-v4 }
spec: { network: rack2, range: { version: '4', cidr: 10.202.0.0/16 } }
---
apiVersion: networking.alibaba.com/v1
kind: Subnet
metadata: { name: rack2-v6 }
spec: { network: rack2, range: { version: '6', cidr: 'fd00:202::/112' } }
";

/// Runs a test with an empty cluster and the started topology. Its last argument is the controller's
/// program.
pub(super) fn run(
    context: &Context,
    name: &str,
    test: impl FnOnce(&Cluster, &Fabric, &Path) -> Result<Verdict>,
) -> Result<Verdict> {
    let (product, controller) = (context.product()?, context.controller()?);
    cluster(context, name, |cluster| {
        let fabric = Fabric::up(&context.place, "two-racks", &product)?;
        fabric.watched(|fabric| {
            evidence::capture(fabric)?;
            for node in fabric.topology.with_image(Image::Node) {
                client::wait_answering(fabric.host(node)?)?;
            }
            test(cluster, fabric, &controller)
        })
    })
}
