//! Multus, which gives a pod further interfaces by other plugins, built from source once per machine.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use super::golang::Module;
use crate::fabric::Place;
use crate::progress::say;

/// The thin plugin: it runs the other plugins itself.
const MULTUS: &str = "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus";

/// The CRD of NetworkAttachmentDefinitions. The module has it in the manifest of its DaemonSet only.
pub(crate) const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: { name: network-attachment-definitions.k8s.cni.cncf.io }
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names:
    plural: network-attachment-definitions
    singular: network-attachment-definition
    kind: NetworkAttachmentDefinition
    shortNames: [net-attach-def]
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: { type: object, properties: { config: { type: string } } }
";

/// The folder of the plugin `multus`. The inner error names the missing part of this machine.
pub(crate) fn find(place: &Place) -> Result<Result<PathBuf, String>> {
    let module = Module::open(place)?;
    let first = || say("  Multus is built from source, once for this machine: two minutes on two cores");
    if let Err(missing) = module.build(&[MULTUS], first)? {
        return Ok(Err(missing));
    }
    Ok(Ok(module.folder(MULTUS)?))
}

/// A NetworkAttachmentDefinition of Trunkline's plugin.
pub(crate) fn definition(namespace: &str, name: &str, network: &str) -> Value {
    let config = json!({"cniVersion": "1.0.0", "name": name, "type": "trunkline-cni", "network": network});
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"config": config.to_string()},
    })
}
