//! Learned routes: their changes, and the retained routes while the speaker is replaced.

use tokio::sync::mpsc;

use super::super::{KernelError, Urgent};
use super::Owner;
use crate::family::IpFamily;
use crate::plan::{Hop, LearnedHop, LearnedRoute, RouteKey, RouteTarget};

impl Owner {
    pub(super) fn handle_learned(
        &mut self,
        routes: Vec<LearnedRoute>,
        urgent: &mut mpsc::UnboundedReceiver<Urgent>,
    ) -> Result<(), KernelError> {
        let Some(table) = self.plan.learned else { return Ok(()) };
        for LearnedRoute { prefix, hops } in routes {
            let key = RouteKey { table, prefix };
            self.retained.remove(&key);
            let hops: Vec<Hop> = hops
                .into_iter()
                .map(|LearnedHop { gateway, ifindex, beside }| {
                    let ifindex = ifindex.or_else(|| self.topology.connected(beside?));
                    Hop { ifindex, ..Hop::to(gateway) }
                })
                .collect();
            if hops.is_empty() {
                self.learned.remove(&key);
            } else {
                let target = self.intern(RouteTarget::via(hops));
                self.learned.insert(key, target);
            }
            self.settle(key)?;
            if self.requests.is_empty() {
                while let Ok(command) = urgent.try_recv() {
                    self.handle_urgent(command);
                }
            }
        }
        self.flush()?;
        Ok(())
    }

    /// Retains the routes of this speaker until the next speaker has sent all its best routes.
    pub(super) fn retain_learned(&mut self) {
        self.retained.extend(self.learned.keys());
    }

    /// Removes the routes of a former speaker that the current one did not send.
    pub(super) fn remove_retained(&mut self, family: IpFamily) -> Result<(), KernelError> {
        let gone: Vec<RouteKey> =
            self.retained.extract_if(|key| IpFamily::of(&key.prefix) == family).collect();
        for key in gone {
            self.learned.remove(&key);
            self.settle(key)?;
        }
        self.flush()?;
        Ok(())
    }
}
