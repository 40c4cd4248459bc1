//! What the protocol does with the paths from one peer and to it, beside policy.
//!
//! Policy is the operator's own; these are the rules that specifications give a name to, and that have to be the same on
//! every router to be of use. They are values of a peer like any other, and the tables get them as one
//! ([`crate::rib::RibPeer::rules`]).

use crate::types::{Asn, Role};

/// Private AS numbers (RFC 6996) are taken out of what an external peer is told. Its own number stays, so that it sees its loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovePrivateAs {
    /// Also where public ones are in the AS_PATH; otherwise such a path stays as it is.
    pub all: bool,
    /// This speaker's number takes their place, so that the path stays as long as it was.
    pub replace: bool,
}

/// Which next hop a peer is told with paths that were learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NextHopRule {
    /// RFC 4271 §5.1.3: external peers this speaker's own address, internal ones what came.
    #[default]
    Standard,
    /// Internal peers this speaker's own ("next-hop-self"), but for what is reflected (RFC 4456 §10).
    Own,
    /// External peers what came ("next-hop-unchanged"), as a route server does.
    Unchanged,
}

/// Another AS number than the speaker's own towards an external peer (RFC 7705 §3, "local-as"): for a peer that still knows
/// this speaker by the number of an AS that was merged into its own. OPEN carries it, and a path that has it in its AS_PATH has
/// looped, as one with the speaker's own has.
///
/// What the peer is told has it in front of the speaker's own number; what the peer tells gets it in front, as if the old AS
/// were still between the two. MULTI_EXIT_DISC is then compared between all peers with this number (RFC 4271 §9.1.2.2 c
/// goes by the first AS of a path).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAs {
    /// The number; neither the speaker's own nor the peer's.
    pub asn: Asn,
    /// Paths from the peer are used as they came ("No Prepend Inbound", RFC 7705 §3.3), so that they get no longer by a merger.
    pub no_prepend: bool,
    /// The peer is told this number in the place of the speaker's own ("Replace Old AS", RFC 7705 §3.3), so that paths to it
    /// get no longer either.
    pub replace_as: bool,
}

impl LocalAs {
    /// What is wrong with it for a peer of `remote_as` at a speaker of `own`.
    fn fault(self, own: Asn, remote_as: Asn) -> Option<String> {
        match self.asn {
            _ if own == remote_as => {
                Some("an internal peer is in this speaker's own AS: leave it out".to_owned())
            }
            Asn(0) => Some("0 is reserved (RFC 7607): give 1 to 4294967295".to_owned()),
            asn if asn == own => Some(format!("{asn} is this speaker's own AS anyway: leave it out")),
            asn if asn == remote_as => {
                Some(format!("{asn} is the peer's AS, and it would be an internal session: give another"))
            }
            _ => None,
        }
    }
}

/// The rules for one peer's paths. All off unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    /// The session is about to be taken down (RFC 8326 §4.2): what the peer is told carries GRACEFUL_SHUTDOWN, and what it
    /// told is the last to be used, so that both sides find other ways first. Takes effect without a reset.
    pub graceful_shutdown: bool,
    /// An internal peer that this speaker reflects to and from (RFC 4456): its paths go to all internal peers, and all
    /// internal peers' paths to it.
    pub route_reflector_client: bool,
    /// What this side is to an external peer (RFC 9234): told to it in OPEN, and the reason why paths that came from above are
    /// not told upwards, nor taken from below. A learned path with NO_PEER is not told where it is [`Role::Peer`] (RFC 3765).
    pub local_role: Option<Role>,
    /// A peer that does not say its own role is refused ("strict mode", RFC 9234 §4.2). Otherwise only one that says a wrong one.
    pub local_role_strict: bool,
    /// How often this speaker's AS may be in the AS_PATH of the peer's paths before they count as looped: for sites of one AS
    /// that are joined by another.
    pub allow_as_in: u8,
    /// Private AS numbers that an external peer is not told.
    pub remove_private_as: Option<RemovePrivateAs>,
    /// The next hop that the peer is told.
    pub next_hop: NextHopRule,
    /// Another AS number towards an external peer. Only another number needs a new session.
    pub local_as: Option<LocalAs>,
}

impl PathRules {
    /// The AS number that a speaker of `own` is known to the peer by.
    pub fn as_to_peer(&self, own: Asn) -> Asn {
        self.local_as.map_or(own, |local_as| local_as.asn)
    }

    /// What differs from the default, in words, for an operator.
    pub fn words(&self) -> Vec<String> {
        let PathRules {
            graceful_shutdown,
            route_reflector_client,
            local_role,
            local_role_strict,
            allow_as_in,
            remove_private_as,
            next_hop,
            local_as,
        } = *self;
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
        if allow_as_in > 0 {
            words.push(format!("own AS allowed {allow_as_in} times"));
        }
        if let Some(RemovePrivateAs { all, replace }) = remove_private_as {
            let verb = if replace { "replaced" } else { "removed" };
            let which = if all { "" } else { " where there are no others" };
            words.push(format!("private ASes {verb}{which}"));
        }
        match next_hop {
            NextHopRule::Standard => {}
            NextHopRule::Own => words.push("next hop self".to_owned()),
            NextHopRule::Unchanged => words.push("next hop unchanged".to_owned()),
        }
        if let Some(LocalAs { asn, no_prepend, replace_as }) = local_as {
            let prepend = if no_prepend { ", not prepended" } else { "" };
            let replace = if replace_as { ", in place of the own" } else { "" };
            words.push(format!("local AS {asn}{prepend}{replace}"));
        }
        words
    }

    /// Whether going to `new` needs a new session: what is said in OPEN has changed.
    pub(super) fn requires_reset(&self, new: &PathRules) -> bool {
        let said = |rules: &PathRules| {
            (rules.local_role, rules.local_role_strict, rules.local_as.map(|local_as| local_as.asn))
        };
        said(self) != said(new)
    }

    /// What is wrong with the rules for a peer of `remote_as` at a speaker of `local_as`: the field, and what would be right.
    pub(super) fn fault(&self, local_as: Asn, remote_as: Asn) -> Option<(&'static str, String)> {
        let internal = local_as == remote_as;
        if let Some(text) = self.local_as.and_then(|other| other.fault(local_as, remote_as)) {
            return Some(("local_as", text));
        }
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
        if self.remove_private_as.is_some() && internal {
            let text = "internal peers are told every AS_PATH as it is: leave it out";
            return Some(("remove_private_as", text.to_owned()));
        }
        let told_anyway = match (self.next_hop, internal) {
            (NextHopRule::Own, false) => Some("an external peer is told this speaker's own address anyway"),
            (NextHopRule::Unchanged, true) => Some("an internal peer is told the next hop as it came anyway"),
            _ => None,
        };
        if let Some(text) = told_anyway {
            return Some(("next_hop", format!("{text}: leave it out")));
        }
        if self.local_role_strict && self.local_role.is_none() {
            return Some(("local_role_strict", "means nothing without local_role: give both".to_owned()));
        }
        None
    }
}
