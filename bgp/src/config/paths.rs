//! What the protocol does with the paths from one peer and to it, beside policy.
//!
//! Policy is the operator's own; these are the rules that specifications give a name to, and that have to be the same on
//! every router to be of use. They are values of a peer like any other, and the tables get them as one
//! ([`crate::rib::RibPeer::rules`]).

use crate::types::Asn;

/// The rules for one peer's paths. All off unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    /// The session is about to be taken down (RFC 8326 §4.1): what the peer is told carries GRACEFUL_SHUTDOWN, and what it
    /// told is the last to be used, so that both sides find other ways first. Takes effect without a reset.
    pub graceful_shutdown: bool,
    /// An internal peer that this speaker reflects to and from (RFC 4456): its paths go to all internal peers, and all
    /// internal peers' paths to it.
    pub route_reflector_client: bool,
}

impl PathRules {
    /// What differs from the default, in words, for an operator.
    pub fn words(&self) -> Vec<String> {
        let PathRules { graceful_shutdown, route_reflector_client } = *self;
        let mut words = Vec::new();
        if graceful_shutdown {
            words.push("graceful shutdown".to_owned());
        }
        if route_reflector_client {
            words.push("route reflector client".to_owned());
        }
        words
    }

    /// What is wrong with the rules for a peer of `remote_as` at a speaker of `local_as`: the field, and what would be right.
    pub(super) fn fault(&self, local_as: Asn, remote_as: Asn) -> Option<(&'static str, String)> {
        let internal = local_as == remote_as;
        if self.route_reflector_client && !internal {
            let text = format!(
                "AS {remote_as} is not this speaker's {local_as}, and only internal peers are clients"
            );
            return Some(("route_reflector_client", format!("{text}: leave it out")));
        }
        None
    }
}
