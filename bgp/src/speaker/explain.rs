//! The routing of a prefix in words: the explanation of [`crate::rib`] with peer names and session
//! states.

use std::time::Instant;

use ipnet::IpNet;

use super::route::{Route, refused};
use super::{Speaker, State};
use crate::rib::{Comparison, NotAdvertised, PolicyMatch, SelectionResult, Step};
use crate::types::{PeerId, PeerKey};

/// The explanation of one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The prefix.
    pub prefix: IpNet,
    /// The longest covering prefix that has a path, if the prefix has none.
    pub covered_by: Option<IpNet>,
    /// Every path of the prefix, those in use first.
    pub paths: Vec<ExplainedPath>,
    /// The export result by peer; a peer that receives several paths (RFC 7911) has a row for each.
    pub peers: Vec<ExplainedPeer>,
}

/// The result of the decision for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStanding {
    /// The best path.
    Best,
    /// In use together with the best path.
    Used,
    /// Not selected.
    Lost,
    /// Rejected before the decision.
    Refused,
    /// Not decided yet after a restart (RFC 4724 §4.1).
    Waiting,
}

/// The result of export for a path and a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportStanding {
    /// The path is advertised to the peer.
    Advertised,
    /// The path will be advertised.
    Pending,
    /// The path is not advertised.
    Withheld,
    /// The path was advertised; the withdrawal is pending.
    Withdrawing,
}

/// A path with the result of the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedPath {
    /// The path.
    pub route: Route,
    /// The result of the decision.
    pub standing: PathStanding,
    /// The reason in words.
    pub reason: String,
    /// The step of the decision that separated the path from the best one.
    pub step: Option<Step>,
    /// The result of import policy.
    pub import: Option<PolicyMatch>,
}

/// The export result for a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedPeer {
    /// The peer.
    pub peer: PeerKey,
    /// The peer that sent the path; none if it is originated here, or if there is no path.
    pub from: Option<PeerKey>,
    /// The result of the export.
    pub standing: ExportStanding,
    /// The reason in words; may be empty.
    pub reason: String,
    /// The result of export policy.
    pub export: Option<PolicyMatch>,
}

impl Speaker {
    /// Explains the routing of a prefix: path by path, then peer by peer.
    pub fn explain(&mut self, prefix: IpNet, now: Instant) -> Explanation {
        let prefix = prefix.trunc();
        let paths: Vec<ExplainedPath> =
            self.hub.rib.explain(&prefix).into_iter().map(|path| self.path(&path)).collect();
        let covered_by = paths.is_empty().then(|| self.covering(prefix)).flatten();
        let mut peers = Vec::new();
        let ids: Vec<(PeerKey, PeerId)> = self.by_key.iter().map(|(key, id)| (*key, *id)).collect();
        for (key, id) in ids {
            let exports = self.hub.rib.explain_export(id, &prefix);
            peers.extend(exports.into_iter().map(|export| {
                let reason = match export.refused {
                    Some(NotAdvertised::NoSession) => self.no_session(id, now),
                    Some(reason) => withheld(reason, export.ruling.as_ref()),
                    None => export
                        .ruling
                        .as_ref()
                        .filter(|it| it.rule.is_some())
                        .map_or_else(String::new, accepted_by),
                };
                ExplainedPeer {
                    peer: key,
                    from: export.from.and_then(|from| self.key_of(from)),
                    standing: match (export.refused, export.advertised) {
                        (None, true) => ExportStanding::Advertised,
                        (None, false) => ExportStanding::Pending,
                        (Some(_), false) => ExportStanding::Withheld,
                        (Some(_), true) => ExportStanding::Withdrawing,
                    },
                    reason,
                    export: export.ruling,
                }
            }));
        }
        Explanation { prefix, covered_by, paths, peers }
    }

    fn path(&self, path: &crate::rib::ExplainedPath<'_>) -> ExplainedPath {
        let import = path.import.clone().filter(|ruling| ruling.rule.is_some() || !ruling.accepted);
        let (standing, reason, step) = match &path.selection {
            SelectionResult::Best => (PathStanding::Best, String::new(), None),
            SelectionResult::Used(by) => (PathStanding::Used, self.used(by), Some(by.step)),
            SelectionResult::NotSelected(by) => (PathStanding::Lost, self.lost(by), Some(by.step)),
            SelectionResult::Refused(reason) => {
                let by = import.as_ref().filter(|ruling| !ruling.accepted).map(rule);
                let reason = refused(*reason).to_owned();
                (PathStanding::Refused, by.map_or(reason.clone(), |by| format!("{reason}, {by}")), None)
            }
            SelectionResult::Waiting => (
                PathStanding::Waiting,
                "paths are being collected before the first decision".to_owned(),
                None,
            ),
        };
        let peer = path.entry.peer.and_then(|peer| self.key_of(peer));
        ExplainedPath { route: Route::of_path(&path.entry, peer), standing, reason, step, import }
    }

    fn used(&self, by: &Comparison) -> String {
        format!("together with the best path, which {}", self.separated(by))
    }

    fn lost(&self, by: &Comparison) -> String {
        match by.limit {
            None => self.separated(by),
            Some(limit) => format!("equal, but at most {limit} paths are used; {}", self.separated(by)),
        }
    }

    fn separated(&self, by: &Comparison) -> String {
        let other = by.other_peer.and_then(|peer| self.key_of(peer));
        let other = other.map_or_else(|| "here".to_owned(), |peer| peer.to_string());
        format!("{}: {} here, {} from {other}", by.step, by.own, by.other)
    }

    fn no_session(&self, id: PeerId, now: Instant) -> String {
        let Some(Some(peer)) = self.peers.get(id.0 as usize) else { return "not configured".to_owned() };
        let status = peer.status(now);
        match (status.shutdown, status.state, status.last_error) {
            (true, ..) => "administratively down".to_owned(),
            (false, State::Established, _) => "the session has only just come up".to_owned(),
            (false, state, None) => format!("not established ({state})"),
            (false, state, Some(error)) => format!("not established ({state}): {}", error.text),
        }
    }

    pub(super) fn key_of(&self, peer: PeerId) -> Option<PeerKey> {
        Some(self.peers.get(peer.0 as usize)?.as_ref()?.config().key())
    }

    /// The longest shorter prefix that covers this one and has a path.
    fn covering(&self, prefix: IpNet) -> Option<IpNet> {
        std::iter::successors(prefix.supernet(), IpNet::supernet)
            .find(|covering| !self.hub.rib.lookup(covering).is_empty())
    }
}

/// `rule 2 (name)`, or the default.
fn rule(ruling: &PolicyMatch) -> String {
    match (ruling.rule, &ruling.name) {
        (None, _) => "by default: no rule decided".to_owned(),
        (Some(rule), None) => format!("rule {rule}"),
        (Some(rule), Some(name)) => format!("rule {rule} ({name})"),
    }
}

fn accepted_by(ruling: &PolicyMatch) -> String {
    format!("export policy, {}", rule(ruling))
}

fn withheld(reason: NotAdvertised, ruling: Option<&PolicyMatch>) -> String {
    match (reason, ruling) {
        (NotAdvertised::Policy, Some(ruling)) => format!("rejected by export policy, {}", rule(ruling)),
        (reason, _) => reason.to_string(),
    }
}
