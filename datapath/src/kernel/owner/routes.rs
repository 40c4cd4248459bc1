//! The wanted routes, and the installed ones among them.
//!
//! The table updates both numbers at each change. So a scrape does not count a million routes on
//! the thread that installs routes.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::plan::{RouteKey, RouteTarget};

/// A wanted route.
pub(super) struct Entry {
    /// The target that the plan wants.
    wanted: Arc<RouteTarget>,
    /// The target in the kernel's table. None: the route is not installed.
    installed: Option<Arc<RouteTarget>>,
}

impl Entry {
    /// The target that the plan wants.
    pub(super) fn wanted(&self) -> &Arc<RouteTarget> {
        &self.wanted
    }

    /// The target in the kernel's table. None: the route is not installed.
    pub(super) fn installed(&self) -> Option<&RouteTarget> {
        self.installed.as_deref()
    }
}

/// The table of wanted routes.
#[derive(Default)]
pub(super) struct WantedRoutes {
    entries: FxHashMap<RouteKey, Entry>,
    installed: usize,
}

impl WantedRoutes {
    /// The number of wanted routes.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of installed routes.
    pub(super) fn installed(&self) -> usize {
        self.installed
    }

    /// The entry of a wanted route.
    pub(super) fn get(&self, key: &RouteKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// All wanted routes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RouteKey, &Entry)> {
        self.entries.iter()
    }

    /// Whether a route is wanted and installed.
    pub(super) fn is_installed(&self, key: &RouteKey) -> bool {
        self.get(key).is_some_and(|entry| entry.installed.is_some())
    }

    /// Adds a wanted route, or replaces its target.
    pub(super) fn insert(
        &mut self,
        key: RouteKey,
        wanted: Arc<RouteTarget>,
        installed: Option<Arc<RouteTarget>>,
    ) {
        self.installed += usize::from(installed.is_some());
        let before = self.entries.insert(key, Entry { wanted, installed });
        self.installed -= usize::from(before.is_some_and(|entry| entry.installed.is_some()));
    }

    /// Removes a wanted route. Returns the target that was installed.
    pub(super) fn remove(&mut self, key: &RouteKey) -> Option<Arc<RouteTarget>> {
        let installed = self.entries.remove(key)?.installed;
        self.installed -= usize::from(installed.is_some());
        installed
    }

    /// Marks the route as not installed; it stays wanted. Returns the target that was installed.
    pub(super) fn take_installed(&mut self, key: &RouteKey) -> Option<Arc<RouteTarget>> {
        let installed = self.entries.get_mut(key)?.installed.take();
        self.installed -= usize::from(installed.is_some());
        installed
    }

    /// Marks each route as not installed if `is_lost` is true for its installed target.
    pub(super) fn forget_installed(&mut self, is_lost: impl Fn(&RouteTarget) -> bool) {
        for entry in self.entries.values_mut() {
            if entry.installed.as_deref().is_some_and(&is_lost) {
                entry.installed = None;
                self.installed -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_count_follows_every_change() {
        let key = |n: u8| RouteKey { table: 1, prefix: format!("10.{n}.0.0/16").parse().unwrap() };
        let (hole, throw) = (Arc::new(RouteTarget::Blackhole), Arc::new(RouteTarget::Throw));
        let mut routes = WantedRoutes::default();
        let counts = |routes: &WantedRoutes| {
            let really = routes.iter().filter(|(_, entry)| entry.installed().is_some()).count();
            assert_eq!(routes.installed(), really);
            (routes.len(), routes.installed())
        };
        routes.insert(key(1), Arc::clone(&hole), Some(Arc::clone(&hole)));
        routes.insert(key(2), Arc::clone(&hole), None);
        routes.insert(key(3), Arc::clone(&throw), Some(Arc::clone(&throw)));
        assert_eq!(counts(&routes), (3, 2));
        routes.insert(key(2), Arc::clone(&hole), Some(Arc::clone(&hole)));
        routes.insert(key(2), Arc::clone(&hole), Some(Arc::clone(&hole)));
        assert_eq!(counts(&routes), (3, 3));
        assert!(routes.take_installed(&key(2)).is_some() && routes.take_installed(&key(2)).is_none());
        assert_eq!(counts(&routes), (3, 2));
        routes.forget_installed(|target| *target == RouteTarget::Throw);
        assert_eq!(counts(&routes), (3, 1));
        assert!(routes.remove(&key(1)).is_some() && routes.remove(&key(2)).is_none());
        assert_eq!(counts(&routes), (1, 0));
    }
}
