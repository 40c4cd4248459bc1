//! The resource and the scope of all exported data, by OpenTelemetry's semantic conventions.

use super::proto::{InstrumentationScope, Resource, attribute};

/// This agent.
#[derive(Clone, Debug)]
pub(super) struct ServiceResource {
    /// `service.name`.
    pub(super) service: String,
    /// The node's name.
    pub(super) node: String,
    /// Whether the node is a Kubernetes Node.
    pub(super) kubernetes: bool,
}

impl ServiceResource {
    pub(super) fn resource(&self) -> Resource {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut attributes = vec![
            attribute("service.name", self.service.as_str()),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
            attribute("host.name", host),
        ];
        if self.kubernetes {
            attributes.push(attribute("k8s.node.name", self.node.as_str()));
        }
        Resource { attributes }
    }

    pub(super) fn scope(&self) -> InstrumentationScope {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        InstrumentationScope { name: "trunkline".to_owned(), version }
    }
}
