//! Why a path is used or not, and why a peer is told of it or not: what an operator asks when traffic goes another way than
//! expected.
//!
//! Nothing here decides anything. The decision process is run again over the same candidates and says at which step each
//! path fell out; what a peer is to be told is computed by the very function that the writer uses; policies say which rule
//! decided. So an explanation cannot drift from what is done. It costs one prefix, and is asked for by hand.

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use super::Rib;
use super::adj_out::{self, NotAdvertised};
use super::attributes::AttrId;
use super::decision::{self, Candidate, Step};
use super::listing::{PathEntry, entry};
use super::peer::Shared;
use super::table::{Filtered, Path, Table};
use super::transform::TransformId;
use crate::policy::Verdict;
use crate::types::{AddressFamily, Family, PeerId};

/// What became of a path in the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is the best one: what peers are told of.
    Best,
    /// It is used together with the best one, from which only this separates it.
    Used(Comparison),
    /// It is not used, because of this.
    Lost(Comparison),
    /// It did not take part.
    Refused(Filtered),
    /// Nothing is decided yet: paths are being collected after a restart (RFC 4724 §4.1).
    Waiting,
}

/// What separated a path from another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The step of the decision.
    pub step: Step,
    /// What this path has there, as text.
    pub own: String,
    /// What the path has that stayed in.
    pub other: String,
    /// Whose path that is; none if it is originated here.
    pub other_peer: Option<PeerId>,
    /// The number of equal paths that are used, if there was no room for this one beside them.
    pub limit: Option<usize>,
}

/// What a policy said of a path, and by which rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// Whether it accepts the path.
    pub accepted: bool,
    /// The rule that decided, counted from 1; none if no rule did and the policy's default holds.
    pub rule: Option<usize>,
    /// The rule's name, if it has one.
    pub name: Option<String>,
}

/// A path with what became of it.
#[derive(Clone, Debug)]
pub struct ExplainedPath<'a> {
    /// The path.
    pub entry: PathEntry<'a>,
    /// What became of it.
    pub standing: Standing,
    /// What import policy said of it; none where it was not asked.
    pub import: Option<Ruling>,
}

/// What a peer is to know of one path of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedExport {
    /// The peer that the path is from; none if it is originated here, or if there is no path.
    pub from: Option<PeerId>,
    /// Why the peer is not to be told of it.
    pub refused: Option<NotAdvertised>,
    /// What export policy said of it; none where it was not asked.
    pub ruling: Option<Ruling>,
    /// The peer has it: as it is to be told now or, where it is refused, as it was told before and will be withdrawn.
    pub told: bool,
}

impl Rib {
    /// Every path of a prefix, those in use first, with what became of each.
    pub fn explain(&self, prefix: &IpNet) -> Vec<ExplainedPath<'_>> {
        match prefix.trunc() {
            IpNet::V4(prefix) => explain_paths(&self.v4, &self.shared, self.v4.find(&prefix)),
            IpNet::V6(prefix) => explain_paths(&self.v6, &self.shared, self.v6.find(&prefix)),
        }
    }

    /// What a peer is to know of a prefix: of its best path or, where the peer is told several (RFC 7911), of each.
    pub fn explain_export(&mut self, peer: PeerId, prefix: &IpNet) -> Vec<ExplainedExport> {
        let family = Family::of(prefix);
        let nothing =
            |refused| vec![ExplainedExport { from: None, refused: Some(refused), ruling: None, told: false }];
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
    decision::select_and_tell(&mut used, shared.config.max_paths, |path, step, by| {
        lost.insert(path.path, (*path, step, *by));
    });
    let compare = |path: &Candidate, step: Step, other: &Candidate, limit| Comparison {
        step,
        own: step.value(path),
        other: step.value(other),
        other_peer: table.peer_of(other.path),
        limit,
    };
    let standing = |number: u32, path: &Path| {
        if let Some(refused) = path.filtered() {
            return Standing::Refused(refused);
        }
        if shared.is_held(F::FAMILY) && !path.is_selected() {
            return Standing::Waiting;
        }
        if let Some((path, step, by)) = lost.get(&number) {
            let limit = step.is_tie_break().then_some(used.len());
            return Standing::Lost(compare(path, *step, by, limit));
        }
        match (used.first(), used.iter().find(|path| path.path == number)) {
            (Some(best), Some(path)) if best.path != number => {
                Standing::Used(compare(path, decision::tie_break(best, path), best, None))
            }
            _ => Standing::Best,
        }
    };
    let paths = table.numbered_paths(row).enumerate();
    let explained = paths.filter_map(|(place, (number, path_id, path))| {
        let import = shared.peer(path.peer()).map(|peer| peer.import);
        let was_asked = matches!(path.filtered(), None | Some(Filtered::Policy));
        let import = import.filter(|_| was_asked).zip(path.received());
        Some(ExplainedPath {
            entry: entry(shared, prefix, path_id, path, place == 0)?,
            standing: standing(number, path),
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
    let no_path =
        |told| vec![ExplainedExport { from: None, refused: Some(NotAdvertised::NoPath), ruling: None, told }];
    let Some((row, prefix)) = row.and_then(|row| Some((row, table.row(row)?.prefix))) else {
        return no_path(false);
    };
    let family = F::FAMILY.index();
    let facts = shared.peer(peer);
    let told = facts.is_some_and(|peer| peer.out[family].is_told(row));
    let most = facts.and_then(|peer| {
        let session = peer.session.as_ref()?;
        session.add_path.contains(F::FAMILY).then(|| usize::from(session.paths.max(1)))
    });
    let mut explained = Vec::new();
    let mut explain = |shared: &mut Shared, number: u32, path: &Path| {
        let outcome = adj_out::sayable::<F>(shared, peer, prefix, path);
        let out = shared.peer(peer).map(|peer| &peer.out[family]);
        let told = out.is_some_and(|out| out.has(row, number, outcome.ok()));
        shared.release(outcome.ok());
        let refused = outcome.err();
        let originated = path.peer() == PeerId::LOCAL;
        let was_asked = matches!(
            refused,
            None | Some(NotAdvertised::Policy | NotAdvertised::NoNextHop | NotAdvertised::TooLong)
        );
        let export = shared.peer(peer).map(|peer| peer.export).filter(|_| was_asked).zip(path.used());
        explained.push(ExplainedExport {
            from: Some(path.peer()).filter(|_| !originated),
            refused,
            ruling: export.and_then(|(export, used)| ruling(shared, export, prefix.into(), used, originated)),
            told,
        });
        // As the writer counts: what does not fit into a message takes a place all the same.
        matches!(refused, None | Some(NotAdvertised::TooLong))
    };
    let Some(most) = most else {
        let best = table.numbered_paths(row).next().filter(|(.., path)| path.is_selected());
        return match best {
            Some((number, _, path)) => {
                explain(shared, number, path);
                explained
            }
            None => no_path(told),
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
        told: out.is_some_and(|out| out.has(row, beyond.path, None)),
    }));
    if explained.is_empty() {
        return no_path(told);
    }
    explained
}

/// What a policy says of a path.
fn ruling(
    shared: &Shared,
    policy: TransformId,
    prefix: IpNet,
    input: AttrId,
    originated: bool,
) -> Option<Ruling> {
    let (decision, name) =
        shared.transforms.decision(policy, &shared.attributes, prefix, input, originated)?;
    Some(Ruling {
        accepted: decision.verdict == Verdict::Accept,
        rule: decision.rule.map(|rule| rule + 1),
        name: name.map(str::to_owned),
    })
}
