//! Keeps one copy of texts that occur in many rows.

use std::collections::HashSet;
use std::sync::Arc;

/// Interned names of namespaces, networks, subnets, nodes and kinds. They are never dropped,
/// because they are few and recur.
#[derive(Default)]
pub struct Interner(HashSet<Arc<str>>);

impl Interner {
    /// Returns the shared copy of a text.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = text.into();
        self.0.insert(Arc::clone(&shared));
        shared
    }
}
