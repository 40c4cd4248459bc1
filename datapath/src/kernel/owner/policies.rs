//! The table of network policies: it follows the agent's policies, which sends the whole table again
//! after a change by another program.

use std::io;

use super::super::PolicyStatus;
use super::{KernelError, Owner, Reason, RepairKind};
use crate::nft::policy::{Policies, PolicyError};
use crate::plan::policy::{PolicyChange, PolicyTable};

/// The table and its health.
#[derive(Default)]
pub(super) struct PolicyKeeper {
    table: Policies,
    /// Whether the last table or change had a policy.
    wanted: bool,
    /// Another program changed the table, and the agent has not sent the whole table since.
    disturbed: bool,
    /// This process owns the table of the last run, until the first table of this run.
    kept: bool,
    repairs: u64,
    fault: Option<String>,
}

impl PolicyKeeper {
    pub(super) fn new(protects: bool) -> PolicyKeeper {
        PolicyKeeper { table: Policies::new(protects), ..PolicyKeeper::default() }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// The netlink port ID in notifications about changes of the table.
    pub(super) fn port(&mut self) -> io::Result<u32> {
        self.table.port()
    }

    pub(super) fn status(&self) -> PolicyStatus {
        PolicyStatus {
            loaded: self.table.is_loaded(),
            protected: self.table.is_protected(),
            kept: self.kept,
            repairs: self.repairs,
            fault: self.fault.clone(),
        }
    }
}

impl Owner {
    /// Protects the table of the last run until the first table of this run is known.
    pub(super) fn keep_policies(&mut self) {
        match self.policies.table.adopt() {
            Ok(kept) => self.policies.kept = kept,
            Err(error) => self.fault(Reason::Nftables, format!("network policies of the last run: {error}")),
        }
    }

    /// Compares the table with the kernel and changes the differences.
    pub(super) fn set_policies(&mut self, table: &PolicyTable) -> Result<usize, KernelError> {
        self.policies.kept = false;
        self.policies.wanted = !table.is_empty();
        if self.policies.wanted {
            self.listen_to_tables();
        }
        let changed = self.policies.table.set(table);
        let changed = self.note_policies(changed)?;
        if std::mem::take(&mut self.policies.disturbed) && changed > 0 {
            tracing::warn!("another program changed the table of network policies: restored");
            self.repaired(RepairKind::Table, 1, "inet trunkline-policy");
            self.policies.repairs += 1;
        }
        Ok(changed)
    }

    /// Changes the table in one transaction.
    pub(super) fn change_policies(&mut self, change: &PolicyChange) -> Result<(), KernelError> {
        if !self.policies.table.is_loaded() {
            return Err(policies_error(&PolicyError::NotLoaded));
        }
        if !change.is_empty() && !self.policies.wanted {
            self.policies.wanted = true;
            self.listen_to_tables();
        }
        match self.policies.table.change(change) {
            // No fault: the agent sends the whole table.
            Err(error @ PolicyError::Family) => Err(policies_error(&error)),
            changed => self.note_policies(changed),
        }
    }

    /// Another program changed the table: the agent sends the whole table.
    pub(super) fn policies_disturbed(&mut self) {
        if self.policies.table.forget() {
            self.policies.disturbed = true;
            // The receiver of the event reads the status.
            self.report();
            self.channels.policies_touched.send_modify(|number| *number += 1);
        }
    }

    fn note_policies<T>(&mut self, result: Result<T, PolicyError>) -> Result<T, KernelError> {
        self.policies.fault = result.as_ref().err().map(PolicyError::to_string);
        result.map_err(|error| {
            self.fault(Reason::Nftables, format!("network policies: {error}"));
            policies_error(&error)
        })
    }
}

fn policies_error(error: &PolicyError) -> KernelError {
    KernelError::Policies { text: error.to_string(), part: error.part() }
}
