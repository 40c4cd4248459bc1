//! Translates an operator's policy into the speaker's.

use std::collections::BTreeMap;

use ipnet::IpNet;
use trunkline_api::policy as written;
use trunkline_api::policy::{parse_community, parse_extended_community, parse_large_community};
use trunkline_api::resources::{Network, ValueError};
use trunkline_bgp::policy::{
    Actions, AsPathMatch, Conditions, Edit, Members, Policy, PolicyResult, PrefixMatch, PrefixSet, Rule,
};
use trunkline_bgp::types::{Asn, Community, ExtendedCommunity, LargeCommunity};
use trunkline_bgp::wire::Origin;

/// The policy for a peer with a default route while another peer's routes are imported. The first
/// peer's paths must lose against the imported routes.
pub(super) fn behind_others() -> Policy {
    let set = Actions { local_pref: Some(0), ..Actions::default() };
    let name = Some("behind the peers whose routes are imported".to_owned());
    Policy { rules: vec![Rule { name, set, ..Rule::default() }], default: PolicyResult::Accept }
}

/// A network's named prefix sets, in a form for look-ups. The peers' policies share them.
pub(super) struct Sets<'a>(BTreeMap<&'a str, Vec<PrefixMatch>>);

impl<'a> Sets<'a> {
    pub(super) fn of(network: &'a Network) -> Result<Self, ValueError> {
        let written = network.spec.config.iter().flat_map(|config| &config.prefix_sets);
        let sets = written.map(|(name, entries)| Ok((name.as_str(), prefixes(entries)?)));
        Ok(Sets(sets.collect::<Result<_, _>>()?))
    }

    /// The sets of a rule together with the rule's own entries.
    fn joined(&self, rule: &written::Rule) -> Result<PrefixSet, ValueError> {
        let mut entries = prefixes(&rule.prefixes)?;
        for name in &rule.prefix_sets {
            let set = self.0.get(name.as_str()).ok_or_else(|| ValueError {
                value: name.clone(),
                expected: "the name of a list in spec.config.prefixSets",
            })?;
            entries.extend(set);
        }
        Ok(entries.into())
    }
}

/// The import policy, rule by rule.
pub(super) fn import(policy: &written::Policy, sets: &Sets<'_>) -> Result<Policy, ValueError> {
    Ok(Policy { rules: rules(policy, sets)?, default: policy.default.map_or(PolicyResult::Accept, verdict) })
}

/// The export policy, rule by rule. `ordinarily` decides about the paths that the operator's policy
/// leaves undecided. So a rule that only sets an attribute does not make the node a transit.
pub(super) fn export(
    policy: &written::Policy,
    ordinarily: Policy,
    sets: &Sets<'_>,
) -> Result<Policy, ValueError> {
    let mut rules = rules(policy, sets)?;
    let default = policy.default.map(verdict).unwrap_or_else(|| {
        rules.extend(ordinarily.rules);
        ordinarily.default
    });
    Ok(Policy { rules, default })
}

fn verdict(action: written::Action) -> PolicyResult {
    match action {
        written::Action::Accept => PolicyResult::Accept,
        written::Action::Reject => PolicyResult::Reject,
    }
}

fn rules(policy: &written::Policy, sets: &Sets<'_>) -> Result<Vec<Rule>, ValueError> {
    policy.rules.iter().map(|rule| self::rule(rule, sets)).collect()
}

fn rule(rule: &written::Rule, sets: &Sets<'_>) -> Result<Rule, ValueError> {
    let set = &rule.set;
    Ok(Rule {
        name: rule.name.clone(),
        when: Conditions {
            prefixes: sets.joined(rule)?,
            next_hops: next_hops(&rule.next_hops)?,
            communities: members(&rule.communities, communities)?,
            large_communities: members(&rule.large_communities, large_communities)?,
            extended_communities: members(&rule.extended_communities, extended_communities)?,
            as_path: as_path(&rule.as_path),
            origins: rule.origins.iter().copied().map(origin).collect(),
            originated: rule.originated,
            tags: Members::default(),
        },
        set: Actions {
            local_pref: set.local_preference,
            med: set.med,
            prepend: set.prepend.unwrap_or(0),
            communities: edit(
                (&set.set_communities, &set.remove_communities, &set.add_communities),
                communities,
            )?,
            large_communities: edit(
                (&set.set_large_communities, &set.remove_large_communities, &set.add_large_communities),
                large_communities,
            )?,
            extended_communities: edit(
                (
                    &set.set_extended_communities,
                    &set.remove_extended_communities,
                    &set.add_extended_communities,
                ),
                extended_communities,
            )?,
        },
        verdict: rule.action.map(verdict),
    })
}

fn prefixes(entries: &[written::PrefixMatch]) -> Result<Vec<PrefixMatch>, ValueError> {
    entries
        .iter()
        .map(|entry| Ok(PrefixMatch { prefix: entry.prefix()?, ge: entry.ge, le: entry.le }))
        .collect()
}

/// A set that matches any address of these prefixes.
fn next_hops(texts: &[String]) -> Result<PrefixSet, ValueError> {
    let prefix = |text: &String| match text.parse::<IpNet>() {
        Ok(prefix) => Ok(PrefixMatch::or_longer(prefix.trunc())),
        Err(_) => {
            Err(ValueError { value: text.clone(), expected: "a prefix with its length, such as 10.0.0.0/8" })
        }
    };
    texts.iter().map(prefix).collect()
}

fn as_path(written: &written::AsPath) -> AsPathMatch {
    let asns = |numbers: &[u32]| numbers.iter().copied().map(Asn).collect();
    let length = |length: u32| usize::try_from(length).unwrap_or(usize::MAX);
    AsPathMatch {
        length: written.min_length.map_or(0, length)..=written.max_length.map_or(usize::MAX, length),
        contains: asns(&written.contains),
        origin_as: asns(&written.origin_as),
        neighbour_as: asns(&written.neighbour_as),
    }
}

fn origin(origin: written::Origin) -> Origin {
    match origin {
        written::Origin::Igp => Origin::Igp,
        written::Origin::Egp => Origin::Egp,
        written::Origin::Incomplete => Origin::Incomplete,
    }
}

fn members<T>(
    written: &written::Members,
    read: fn(&[String]) -> Result<Vec<T>, ValueError>,
) -> Result<Members<T>, ValueError> {
    Ok(Members {
        any_of: read(&written.any_of)?,
        all_of: read(&written.all_of)?,
        none_of: read(&written.none_of)?,
    })
}

/// The entries that replace a list, are deleted from it, and are added to it.
fn edit<T>(
    (replace, remove, add): (&Option<Vec<String>>, &[String], &[String]),
    read: fn(&[String]) -> Result<Vec<T>, ValueError>,
) -> Result<Edit<T>, ValueError> {
    Ok(Edit { replace: replace.as_deref().map(read).transpose()?, remove: read(remove)?, add: read(add)? })
}

pub(super) fn communities(texts: &[String]) -> Result<Vec<Community>, ValueError> {
    texts.iter().map(|text| parse_community(text).map(Community)).collect()
}

pub(super) fn extended_communities(texts: &[String]) -> Result<Vec<ExtendedCommunity>, ValueError> {
    texts.iter().map(|text| parse_extended_community(text).map(ExtendedCommunity)).collect()
}

pub(super) fn large_communities(texts: &[String]) -> Result<Vec<LargeCommunity>, ValueError> {
    texts
        .iter()
        .map(|text| {
            parse_large_community(text).map(|[global, local1, local2]| LargeCommunity {
                global,
                local1,
                local2,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_communities_are_shown_as_they_are_written() {
        let written = [
            "rt:65000:4294967295",
            "soo:0:7",
            "rt:10.0.0.1:65535",
            "rt:65536:7",
            "soo:4294967295:65535",
            "rt:65000L:7",
            "lb:65000:125000000",
            "lb-non-transitive:0:0",
            "0x4004fde800000007",
        ];
        let shown: Vec<String> = extended_communities(&written.map(str::to_owned))
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown, written);
    }
}
