//! Keeps one copy of texts that occur in many rows.

use std::collections::HashSet;
use std::sync::Arc;

/// Interned names of namespaces, networks, subnets, nodes and kinds. Most of them recur. Tenants
/// choose some of them, so copies without a row are dropped when their number has doubled.
#[derive(Default)]
pub struct Interner {
    texts: HashSet<Arc<str>>,
    /// The number of texts at which unused ones are dropped.
    sweep_at: usize,
}

/// The smallest number of texts at which unused ones are dropped.
const SWEEP: usize = 4096;

impl Interner {
    /// Returns the shared copy of a text.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = text.into();
        if self.texts.len() >= self.sweep_at.max(SWEEP) {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = 2 * self.texts.len();
        }
        self.texts.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_texts_are_dropped() {
        let mut interner = Interner::default();
        let used = interner.get("Pod");
        for number in 0..100_000 {
            interner.get(&format!("Kind{number}"));
        }
        assert!(interner.texts.len() <= SWEEP, "{} texts", interner.texts.len());
        assert!(Arc::ptr_eq(&used, &interner.get("Pod")));
    }
}
