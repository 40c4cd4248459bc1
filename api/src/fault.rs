//! Faults in resources: what is wrong, where, and what to write instead.

use std::fmt;

/// A fault in a resource. Displayed: `Network rack1: spec.config.bgpPeers[1].asn: 0 is …: write …`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct Fault {
    /// `Network`, `Subnet` or `NodeInfo`.
    pub kind: &'static str,
    /// The resource's name.
    pub name: String,
    /// Path of the field, `spec.config.bgpPeers[1].asn`.
    pub field: String,
    /// The value, the fault and the fix. Never a secret.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}: {}", self.kind, self.name, self.field, self.message)
    }
}

/// Path of an annotation in a [`Fault`].
pub fn annotation_field(name: &str) -> String {
    format!("metadata.annotations[{name}]")
}

/// Collects the faults of one resource.
pub(crate) struct Faults<'a> {
    pub(crate) kind: &'static str,
    pub(crate) name: &'a str,
    pub(crate) found: &'a mut Vec<Fault>,
}

impl Faults<'_> {
    pub(crate) fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        let (field, message) = (field.into(), message.into());
        self.found.push(Fault { kind: self.kind, name: self.name.to_owned(), field, message });
    }
}
