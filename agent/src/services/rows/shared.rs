//! Keeps one copy of texts and lists of ports that several rows have.

use std::collections::HashSet;
use std::sync::Arc;

use super::SlicePorts;
use crate::services::ServiceKey;

/// The smallest number of entries at which those without a row are dropped.
const SWEEP: usize = 4096;

/// Texts and lists of ports that several rows share. Tenants choose them, so those without a row
/// are dropped when the number of entries has doubled. An entry is a text, or a port in a list.
#[derive(Debug, Default)]
pub(super) struct Shared {
    texts: HashSet<Arc<str>>,
    ports: HashSet<Arc<SlicePorts>>,
    /// The ports in all lists.
    listed: usize,
    /// The number of entries at which those without a row are dropped.
    sweep_at: usize,
}

impl Shared {
    /// The shared copy of a text.
    pub(super) fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        self.make_space();
        let new: Arc<str> = Arc::from(text);
        self.texts.insert(Arc::clone(&new));
        new
    }

    /// The shared copy of a Service's Namespace and name.
    pub(super) fn service(&mut self, namespace: &str, name: &str) -> ServiceKey {
        ServiceKey { namespace: self.text(namespace), name: self.text(name) }
    }

    /// The shared copy of a list of ports.
    pub(super) fn ports(&mut self, ports: &SlicePorts) -> Arc<SlicePorts> {
        if let Some(known) = self.ports.get(ports) {
            return Arc::clone(known);
        }
        let new: Arc<SlicePorts> =
            ports.iter().map(|(name, protocol)| (self.text(name), *protocol)).collect();
        self.make_space();
        self.listed += new.len();
        self.ports.insert(Arc::clone(&new));
        new
    }

    /// Drops the entries without a row.
    pub(super) fn sweep(&mut self) {
        self.ports.retain(|ports| Arc::strong_count(ports) > 1);
        self.listed = self.ports.iter().map(|ports| ports.len()).sum();
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.texts.shrink_to_fit();
        self.sweep_at = 2 * self.entries();
    }

    /// The texts, the lists, and the ports in them.
    pub(super) fn entries(&self) -> usize {
        self.texts.len() + self.ports.len() + self.listed
    }

    fn make_space(&mut self) {
        if self.entries() >= self.sweep_at.max(SWEEP) {
            self.sweep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::rows::tests::slice;
    use crate::services::rows::{Rows, Touched};
    use crate::services::{Protocol, RowChange, SliceInput};

    #[test]
    fn ports_of_replaced_slices_are_dropped() {
        let (mut rows, mut touched) = (Rows::default(), Touched::default());
        let mut most = 0;
        for number in 0..200 {
            let port = |port: usize| (Arc::from(format!("p{number}-{port}")), Protocol::Tcp);
            let input = SliceInput { ports: (0..100).map(port).collect(), ..slice("a", "web", 1, &[]) };
            rows.change_slices(RowChange::Applied(input), &mut touched);
            most = most.max(rows.shared.entries());
        }
        assert!(most < 2 * SWEEP, "{most} entries for a slice with 100 ports");
    }

    #[test]
    fn texts_of_replaced_services_are_dropped() {
        let mut shared = Shared::default();
        let used = shared.service("shop", "web");
        for number in 0..100_000 {
            shared.text(&format!("p{number}"));
        }
        assert!(shared.entries() <= SWEEP, "{} entries", shared.entries());
        assert!(Arc::ptr_eq(&used.name, &shared.text("web")));
        drop(used);
        shared.sweep();
        assert_eq!(shared.entries(), 0);
    }
}
