//! Texts that occur in many rows are kept once.

use std::collections::HashSet;
use std::sync::Arc;

/// Names of namespaces, networks, subnets, nodes and kinds. They stay once seen: there are few, and they come again.
#[derive(Default)]
pub struct Interner(HashSet<Arc<str>>);

impl Interner {
    /// The text, shared with whoever has the same.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = text.into();
        self.0.insert(Arc::clone(&shared));
        shared
    }
}
