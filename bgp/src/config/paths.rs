//! Protocol rules for the paths from and to one peer, in addition to policy.
//!
//! Policies belong to the operator. These rules have a name in a specification, and routers must
//! agree on them. They are fields of a peer's configuration, and the tables get them as one value
//! ([`crate::rib::RibPeer::rules`]).

use crate::types::{Asn, Role};

/// Removes private AS numbers (RFC 6996) from the AS_PATH towards an external peer. The peer's own
/// number stays, so the peer can detect its loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovePrivateAs {
    /// Also removes them if the AS_PATH has public numbers; otherwise such a path is unchanged.
    pub all: bool,
    /// Replaces them by this speaker's number, which preserves the path length.
    pub replace: bool,
}

/// The next hop rule for received paths that are advertised to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NextHopRule {
    /// RFC 4271 §5.1.3: to external peers this speaker's own address, to internal ones the received
    /// next hop.
    #[default]
    Standard,
    /// To internal peers this speaker's own address ("next-hop-self"), except for reflected paths
    /// (RFC 4456 §10).
    Own,
    /// To external peers the received next hop ("next-hop-unchanged"), as a route server does.
    Unchanged,
}

/// A different AS number towards an external peer (RFC 7705 §3, "local-as"). It is for a peer that
/// is still configured with the number of an AS that was merged into the speaker's own. OPEN
/// carries this number. A path with this number in its AS_PATH has looped, as with the speaker's
/// own number.
///
/// Advertised paths have this number in front of the speaker's own. The speaker also prepends the
/// number to received paths, as if the old AS were still between the peer and the speaker.
/// MULTI_EXIT_DISC is then compared between all peers with this number, because RFC 4271 §9.1.2.2 c
/// uses the first AS of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAs {
    /// The number; different from the speaker's own and the peer's.
    pub asn: Asn,
    /// Leaves received paths unchanged ("No Prepend Inbound", RFC 7705 §3.3), so the merger does
    /// not lengthen them.
    pub no_prepend: bool,
    /// Advertises this number in place of the speaker's own ("Replace Old AS", RFC 7705 §3.3), so
    /// the merger does not lengthen advertised paths either.
    pub replace_as: bool,
}

impl LocalAs {
    /// The fault of the setting for a peer of `remote_as` at a speaker of `own`, if any.
    fn fault(self, own: Asn, remote_as: Asn) -> Option<String> {
        match self.asn {
            _ if own == remote_as => {
                Some("an internal peer is in this speaker's own AS: leave it out".to_owned())
            }
            Asn(0) => Some("0 is reserved (RFC 7607): give 1 to 4294967295".to_owned()),
            asn if asn == own => Some(format!("{asn} is this speaker's own AS: leave it out")),
            asn if asn == remote_as => Some(format!(
                "{asn} is the peer's AS, so the session would be internal: give \
                    another number"
            )),
            _ => None,
        }
    }
}

/// The rules for one peer's paths. By default all are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    /// Graceful shutdown (RFC 8326 §4.2) before the session is closed. Advertised paths carry
    /// GRACEFUL_SHUTDOWN, and received ones are used last, so both sides find other paths first.
    /// Takes effect without a reset.
    pub graceful_shutdown: bool,
    /// The internal peer is a client of this route reflector (RFC 4456): its paths go to all
    /// internal peers, and the paths of all internal peers go to it.
    pub route_reflector_client: bool,
    /// The local role towards an external peer (RFC 9234), sent in OPEN. It prevents route leaks:
    /// paths with ONLY_TO_CUSTOMER are not advertised to providers, peers and route servers, and
    /// leaked paths are rejected. Received paths with NO_PEER are not advertised with [`Role::Peer`]
    /// (RFC 3765).
    pub local_role: Option<Role>,
    /// Rejects a peer that sends no role ("strict mode", RFC 9234 §4.2). Without it, only a wrong
    /// role is rejected.
    pub local_role_strict: bool,
    /// The number of times that this speaker's AS may occur in the AS_PATH of received paths before
    /// they count as looped. This is for sites of one AS that another AS connects.
    pub allow_as_in: u8,
    /// Removal of private AS numbers towards an external peer.
    pub remove_private_as: Option<RemovePrivateAs>,
    /// The next hop rule towards the peer.
    pub next_hop: NextHopRule,
    /// A different AS number towards an external peer. Only a change of the number needs a new
    /// session.
    pub local_as: Option<LocalAs>,
}

impl PathRules {
    /// The AS number in the OPEN to the peer. `own` is the speaker's AS number.
    pub fn as_to_peer(&self, own: Asn) -> Asn {
        self.local_as.map_or(own, |local_as| local_as.asn)
    }

    /// The settings that differ from the default, in words for an operator.
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
            let which = if all { "" } else { " from paths without public ones" };
            words.push(format!("private ASes {verb}{which}"));
        }
        match next_hop {
            NextHopRule::Standard => {}
            NextHopRule::Own => words.push("next hop self".to_owned()),
            NextHopRule::Unchanged => words.push("next hop unchanged".to_owned()),
        }
        if let Some(LocalAs { asn, no_prepend, replace_as }) = local_as {
            let prepend = if no_prepend { ", not prepended" } else { "" };
            let replace = if replace_as { ", in place of the speaker's own" } else { "" };
            words.push(format!("local AS {asn}{prepend}{replace}"));
        }
        words
    }

    /// Whether the change to `new` needs a new session, because the content of OPEN changes.
    pub(super) fn requires_reset(&self, new: &PathRules) -> bool {
        let open_fields = |rules: &PathRules| {
            (rules.local_role, rules.local_role_strict, rules.local_as.map(|local_as| local_as.asn))
        };
        open_fields(self) != open_fields(new)
    }

    /// The field and the text of a fault in the rules, for a peer of `remote_as` at a speaker of
    /// `local_as`.
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
            let text = "a role is between two ASes (RFC 9234), and this peer is in this speaker's own \
                 AS: leave it out";
            return Some(("local_role", text.to_owned()));
        }
        if self.remove_private_as.is_some() && internal {
            let text = "internal peers receive every AS_PATH unchanged: leave it out";
            return Some(("remove_private_as", text.to_owned()));
        }
        let default_anyway = match (self.next_hop, internal) {
            (NextHopRule::Own, false) => Some("an external peer always receives this speaker's own address"),
            (NextHopRule::Unchanged, true) => Some("an internal peer always receives the next hop unchanged"),
            _ => None,
        };
        if let Some(text) = default_anyway {
            return Some(("next_hop", format!("{text}: leave it out")));
        }
        if self.local_role_strict && self.local_role.is_none() {
            return Some((
                "local_role_strict",
                "has no effect without local_role: give \
                both"
                    .to_owned(),
            ));
        }
        None
    }
}
