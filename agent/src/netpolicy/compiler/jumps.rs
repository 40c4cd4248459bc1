//! The jumps from entry chains to the chains of policies, in both directions.

use std::collections::{BTreeSet, HashMap};

use crate::netpolicy::rules::ChainId;

/// The chains to which entry chains may jump. A chain counts also while it has no rule.
#[derive(Debug, Default)]
pub(super) struct Jumps {
    targets: HashMap<ChainId, Box<[ChainId]>>,
    sources: HashMap<ChainId, BTreeSet<ChainId>>,
}

impl Jumps {
    /// Adds an entry chain with its targets in the order of evaluation.
    pub(super) fn insert(&mut self, entry: ChainId, targets: Vec<ChainId>) {
        for target in &targets {
            self.sources.entry(*target).or_default().insert(entry);
        }
        self.targets.insert(entry, targets.into());
    }

    /// Removes an entry chain. Returns its targets.
    pub(super) fn remove(&mut self, entry: ChainId) -> Box<[ChainId]> {
        let targets = self.targets.remove(&entry).unwrap_or_default();
        for target in &targets {
            crate::netpolicy::labels::remove_from(&mut self.sources, target, &entry);
        }
        targets
    }

    /// Whether a chain is an entry chain.
    pub(super) fn is_source(&self, chain: ChainId) -> bool {
        self.targets.contains_key(&chain)
    }

    pub(super) fn targets(&self, entry: ChainId) -> &[ChainId] {
        self.targets.get(&entry).map(|targets| &**targets).unwrap_or_default()
    }

    /// The entry chains with this target.
    pub(super) fn sources(&self, target: ChainId) -> &BTreeSet<ChainId> {
        const NONE: &BTreeSet<ChainId> = &BTreeSet::new();
        self.sources.get(&target).unwrap_or(NONE)
    }
}
