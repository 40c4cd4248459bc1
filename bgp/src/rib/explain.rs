//! Explains why a path is used or not, and why it is advertised or not. Operators need this when
//! traffic takes an unexpected path.
//!
//! This module decides nothing. The decision process runs again over the same candidates and
//! records the step that removed each path. The advertised route is computed by the writer's own
//! function. Policies report the rule that decided. So an explanation cannot differ from the actual
//! behaviour. One call costs the work of one prefix, and operators call it by hand.

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use super::Rib;
use super::adj_out::NotAdvertised;
use super::adj_out::write::exportable;
use super::attributes::AttrId;
use super::decision::{self, Candidate, Step};
use super::listing::{PathEntry, entry};
use super::peer::Shared;
use super::received::Filtered;
use super::table::{Path, Table};
use super::transform::TransformId;
use crate::policy::PolicyResult;
use crate::types::{AddressFamily, Family, PeerId};

/// The result of the decision for a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectionResult {
    /// The best path, which is advertised to peers.
    Best,
    /// Used together with the best path; the comparison names the only difference from it.
    Used(Comparison),
    /// Not used; the comparison names the reason.
    NotSelected(Comparison),
    /// Rejected before the decision.
    Refused(Filtered),
    /// Not decided yet: paths are collected after a restart (RFC 4724 §4.1).
    Waiting,
}

/// The difference between a path and a better one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The step of the decision.
    pub step: Step,
    /// This path's value at that step, as text.
    pub own: String,
    /// The better path's value.
    pub other: String,
    /// The peer of the better path; none if it is originated here.
    pub other_peer: Option<PeerId>,
    /// The number of equal paths in use, if their limit excludes this path.
    pub limit: Option<usize>,
}

/// The result of a policy for a path, with the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyMatch {
    /// Whether the policy accepts the path.
    pub accepted: bool,
    /// The rule that decided, counted from 1; none if the policy's default decided.
    pub rule: Option<usize>,
    /// The name of the rule, if it has one.
    pub name: Option<String>,
}

/// A path with the result of the decision.
#[derive(Clone, Debug)]
pub struct ExplainedPath<'a> {
    /// The path.
    pub entry: PathEntry<'a>,
    /// The result of the decision.
    pub selection: SelectionResult,
    /// The result of import policy; none if the policy was not consulted.
    pub import: Option<PolicyMatch>,
}

/// The result of export to one peer for one path of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedExport {
    /// The peer that the path is from; none if it is originated here, or if there is no path.
    pub from: Option<PeerId>,
    /// The reason why the path is not advertised to the peer.
    pub refused: Option<NotAdvertised>,
    /// The result of export policy; none if the policy was not consulted.
    pub ruling: Option<PolicyMatch>,
    /// The path is advertised to the peer. If the path is rejected now, the earlier advertisement
    /// will be withdrawn.
    pub advertised: bool,
}

impl Rib {
    /// Every path of a prefix, those in use first, with the result of the decision for each.
    pub fn explain(&self, prefix: &IpNet) -> Vec<ExplainedPath<'_>> {
        match prefix.trunc() {
            IpNet::V4(prefix) => explain_paths(&self.v4, &self.shared, self.v4.find(&prefix)),
            IpNet::V6(prefix) => explain_paths(&self.v6, &self.shared, self.v6.find(&prefix)),
        }
    }

    /// The result of export for a prefix: for its best path or, with several paths (RFC 7911), for
    /// each.
    pub fn explain_export(&mut self, peer: PeerId, prefix: &IpNet) -> Vec<ExplainedExport> {
        let family = Family::of(prefix);
        let nothing = |refused| {
            vec![ExplainedExport { from: None, refused: Some(refused), ruling: None, advertised: false }]
        };
        let Some(facts) = self.shared.peer(peer) else { return nothing(NotAdvertised::NoSession) };
        match facts.session.as_ref().map(|session| session.families.contains(family)) {
            None => return nothing(NotAdvertised::NoSession),
            Some(false) => return nothing(NotAdvertised::NoFamily),
            Some(true) if self.shared.is_silent(family) => return nothing(NotAdvertised::Held),
            Some(true) => {}
        }
        let mut explained = match prefix.trunc() {
            IpNet::V4(prefix) => explain_exports(&self.v4, &mut self.shared, peer, self.v4.find(&prefix)),
            IpNet::V6(prefix) => explain_exports(&self.v6, &mut self.shared, peer, self.v6.find(&prefix)),
        };
        self.shared.collect();
        if self.shared.is_held(family) {
            let waiting = explained.iter_mut().filter(|path| path.refused == Some(NotAdvertised::NoPath));
            waiting.for_each(|path| path.refused = Some(NotAdvertised::Held));
        }
        explained
    }
}

fn explain_paths<'a, F: AddressFamily>(
    table: &'a Table<F>,
    shared: &'a Shared,
    row: Option<u32>,
) -> Vec<ExplainedPath<'a>> {
    let Some((row, prefix)) = row.and_then(|row| Some((row, table.row(row)?.prefix.into()))) else {
        return Vec::new();
    };
    let mut used = table.candidates(shared, row);
    let mut lost = FxHashMap::default();
    decision::select_and_explain(&mut used, shared.config.max_paths, |path, step, by| {
        lost.insert(path.path, (*path, step, *by));
    });
    let compare = |path: &Candidate, step: Step, other: &Candidate, limit| Comparison {
        step,
        own: step.value(path),
        other: step.value(other),
        other_peer: table.peer_of(other.path),
        limit,
    };
    let selection = |number: u32, path: &Path| {
        if let Some(refused) = path.filtered() {
            return SelectionResult::Refused(refused);
        }
        if shared.is_held(F::FAMILY) && !path.is_selected() {
            return SelectionResult::Waiting;
        }
        if let Some((path, step, by)) = lost.get(&number) {
            let limit = step.is_tie_break().then_some(used.len());
            return SelectionResult::NotSelected(compare(path, *step, by, limit));
        }
        match (used.first(), used.iter().find(|path| path.path == number)) {
            (Some(best), Some(path)) if best.path != number => {
                SelectionResult::Used(compare(path, decision::tie_break(best, path), best, None))
            }
            _ => SelectionResult::Best,
        }
    };
    let paths = table.numbered_paths(row).enumerate();
    let explained = paths.filter_map(|(place, (number, path_id, path))| {
        let import = shared.peer(path.peer()).map(|peer| peer.import);
        let policy_ran = matches!(path.filtered(), None | Some(Filtered::Policy));
        let import = import.filter(|_| policy_ran).zip(path.received());
        Some(ExplainedPath {
            entry: entry(shared, prefix, path_id, path, place == 0)?,
            selection: selection(number, path),
            import: import.and_then(|(import, received)| ruling(shared, import, prefix, received, false)),
        })
    });
    explained.collect()
}

fn explain_exports<F: AddressFamily>(
    table: &Table<F>,
    shared: &mut Shared,
    peer: PeerId,
    row: Option<u32>,
) -> Vec<ExplainedExport> {
    let no_path = |advertised| {
        vec![ExplainedExport { from: None, refused: Some(NotAdvertised::NoPath), ruling: None, advertised }]
    };
    let Some((row, prefix)) = row.and_then(|row| Some((row, table.row(row)?.prefix))) else {
        return no_path(false);
    };
    let family = F::FAMILY.index();
    let facts = shared.peer(peer);
    let advertised = facts.is_some_and(|peer| peer.out[family].is_advertised(row));
    let most = facts.and_then(|peer| {
        let session = peer.session.as_ref()?;
        session.add_path.contains(F::FAMILY).then(|| usize::from(session.paths.max(1)))
    });
    let mut explained = Vec::new();
    let mut explain = |shared: &mut Shared, number: u32, path: &Path| {
        let outcome = exportable::<F>(shared, peer, prefix, path);
        let out = shared.peer(peer).map(|peer| &peer.out[family]);
        let advertised = out.is_some_and(|out| out.has(row, number, outcome.ok()));
        shared.release(outcome.ok());
        let refused = outcome.err();
        let originated = path.peer() == PeerId::LOCAL;
        let policy_ran = matches!(
            refused,
            None | Some(NotAdvertised::Policy | NotAdvertised::NoNextHop | NotAdvertised::TooLong)
        );
        let export = shared.peer(peer).map(|peer| peer.export).filter(|_| policy_ran).zip(path.used());
        explained.push(ExplainedExport {
            from: Some(path.peer()).filter(|_| !originated),
            refused,
            ruling: export.and_then(|(export, used)| ruling(shared, export, prefix.into(), used, originated)),
            advertised,
        });
        // The writer also counts a path that does not fit into a message.
        matches!(refused, None | Some(NotAdvertised::TooLong))
    };
    let Some(most) = most else {
        let best = table.numbered_paths(row).next().filter(|(.., path)| path.is_selected());
        return match best {
            Some((number, _, path)) => {
                explain(shared, number, path);
                explained
            }
            None => no_path(advertised),
        };
    };
    let mut usable = table.usable(shared, row);
    let mut sent = 0;
    while sent < most
        && let Some((number, path)) = table.take_best(&mut usable)
    {
        sent += usize::from(explain(shared, number, &path));
    }
    let out = shared.peer(peer).map(|peer| &peer.out[family]);
    explained.extend(usable.iter().map(|beyond| ExplainedExport {
        from: table.peer_of(beyond.path),
        refused: Some(NotAdvertised::BeyondPaths),
        ruling: None,
        advertised: out.is_some_and(|out| out.has(row, beyond.path, None)),
    }));
    if explained.is_empty() {
        return no_path(advertised);
    }
    explained
}

/// The result of a policy for a path.
fn ruling(
    shared: &Shared,
    policy: TransformId,
    prefix: IpNet,
    input: AttrId,
    originated: bool,
) -> Option<PolicyMatch> {
    let (decision, name) =
        shared.transforms.decision(policy, &shared.attributes, prefix, input, originated)?;
    Some(PolicyMatch {
        accepted: decision.verdict == PolicyResult::Accept,
        rule: decision.rule.map(|rule| rule + 1),
        name: name.map(str::to_owned),
    })
}
