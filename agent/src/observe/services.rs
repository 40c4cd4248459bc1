//! Service addresses for `trunkline services`.

use trunkline_api::attach::{Code, Failure};
use trunkline_api::control::{AdvertisementState, ServiceView};
use trunkline_daemon::errors::chain;

use super::Observer;
use crate::source::kube::node_services;

impl Observer {
    /// The service addresses of this node: all, or those of the Services with this name.
    /// `everywhere`: with the nodes that advertise them, from one list of the NodeServices.
    ///
    /// # Errors
    /// This node advertises no service addresses.
    pub async fn services(
        &self,
        name: Option<String>,
        everywhere: bool,
    ) -> Result<Vec<ServiceView>, Failure> {
        let Some(services) = &self.services else {
            return Err(Failure::new(
                Code::NotAvailable,
                "this node advertises no service addresses: set services.enabled and source: kube in agent.yaml",
            ));
        };
        let mut views = services.view(name).await;
        let Some(cluster) = self.cluster.as_ref().filter(|_| everywhere && !views.is_empty()) else {
            return Ok(views);
        };
        let addresses = views.iter().map(|view| view.address).collect();
        match node_services::advertising(cluster, &addresses).await {
            Ok(mut nodes) => {
                for view in &mut views {
                    let nodes = nodes.entry(view.address).or_default();
                    // This node's own NodeServices may be some seconds old.
                    match view.state {
                        AdvertisementState::Withheld => nodes.remove(&self.node),
                        _ => nodes.insert(self.node.clone()),
                    };
                    view.nodes = Some(nodes.iter().cloned().collect());
                }
            }
            Err(error) => tracing::warn!(
                error = chain(&error),
                "the nodes that advertise a service address are not known: the NodeServices cannot be listed"
            ),
        }
        Ok(views)
    }
}
