//! The routes of a pod. They change alone in a live migration of a virtual machine.

use std::collections::BTreeMap;

use super::Owner;
use crate::kernel::KernelError;
use crate::plan::{PodPlan, RouteKey, RouteTarget};

impl Owner {
    /// Installs the routes of a pod.
    pub(super) fn put_routes(
        &mut self,
        host_ifname: String,
        routes: BTreeMap<RouteKey, RouteTarget>,
    ) -> Result<(), KernelError> {
        for (key, target) in routes {
            let target = self.intern(target);
            self.settle_to(key, Some(target))?;
        }
        match self.flush()? {
            None => Ok(()),
            Some((what, error)) => Err(KernelError::Pod { host_ifname, what, error }),
        }
    }

    /// Changes only the routes of a pod. Its neighbour entries and its place in the guard stay, so no
    /// packet of an unchanged route is lost.
    pub(super) fn change_routes(&mut self, name: &str, pod: PodPlan) -> Result<(), KernelError> {
        let routes = pod.routes.clone();
        let Some(old) = self.pods.insert(name.to_owned(), pod) else { return Ok(()) };
        self.remove_routes(&old, |key| !routes.contains_key(key))?;
        self.put_routes(name.to_owned(), routes)
    }

    /// Removes the selected routes of a pod.
    pub(super) fn remove_routes(
        &mut self,
        pod: &PodPlan,
        selected: impl Fn(&RouteKey) -> bool,
    ) -> Result<(), KernelError> {
        for (key, own) in pod.routes.iter().filter(|(key, _)| selected(key)) {
            // Another pod may already have the address.
            if self.routes.get(key).is_some_and(|entry| **entry.wanted() == *own) {
                self.settle_to(*key, None)?;
            }
        }
        Ok(())
    }
}
