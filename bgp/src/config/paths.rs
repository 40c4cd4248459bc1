//! What the protocol does with the paths from one peer and to it, beside policy.
//!
//! Policy is the operator's own; these are the rules that specifications give a name to, and that have to be the same on
//! every router to be of use. They are values of a peer like any other, and the tables get them as one
//! ([`crate::rib::RibPeer::rules`]).

use crate::types::{Asn, Role};

/// The rules for one peer's paths. All off unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    /// The session is about to be taken down (RFC 8326 §4.1): what the peer is told carries GRACEFUL_SHUTDOWN, and what it
    /// told is the last to be used, so that both sides find other ways first. Takes effect without a reset.
    pub graceful_shutdown: bool,
    /// An internal peer that this speaker reflects to and from (RFC 4456): its paths go to all internal peers, and all
    /// internal peers' paths to it.
    pub route_reflector_client: bool,
    /// What this side is to an external peer (RFC 9234): told to it in OPEN, and the reason why paths that came from above are
    /// not told upwards, nor taken from below.
    pub local_role: Option<Role>,
    /// A peer that does not say its own role is refused ("strict mode", RFC 9234 §4.2). Otherwise only one that says a wrong one.
    pub local_role_strict: bool,
}

impl PathRules {
    /// What differs from the default, in words, for an operator.
    pub fn words(&self) -> Vec<String> {
        let PathRules { graceful_shutdown, route_reflector_client, local_role, local_role_strict } = *self;
        let mut words = Vec::new();
        if graceful_shutdown {
            words.push("graceful shutdown".to_owned());
        }
        if route_reflector_client {
            words.push("route reflector client".to_owned());
        }
        if let Some(role) = local_role {
            let strict = if local_role_strict { ", strict" } else { "" };
            words.push(format!("local role {role}{strict}"));
        }
        words
    }

    /// Whether going to `new` needs a new session: what is said in OPEN has changed.
    pub(super) fn requires_reset(&self, new: &PathRules) -> bool {
        (self.local_role, self.local_role_strict) != (new.local_role, new.local_role_strict)
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
        if self.local_role.is_some() && internal {
            let text =
                "a role is between two ASes (RFC 9234), and this peer is in this speaker's own: leave it out";
            return Some(("local_role", text.to_owned()));
        }
        if self.local_role_strict && self.local_role.is_none() {
            return Some(("local_role_strict", "means nothing without local_role: give both".to_owned()));
        }
        None
    }
}
