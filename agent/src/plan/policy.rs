//! From an operator's policy to the speaker's.

use trunkline_api::policy as written;
use trunkline_api::policy::{parse_community, parse_large_community};
use trunkline_api::resources::ValueError;
use trunkline_bgp::policy::{Actions, Policy, PrefixMatch, Rule, Verdict};
use trunkline_bgp::types::{Community, LargeCommunity};

/// Only what this node originates is told: a node is no transit.
pub(super) fn originated_only() -> Policy {
    let own = Rule { originated: Some(true), verdict: Some(Verdict::Accept), ..Rule::default() };
    Policy { rules: vec![own], default: Verdict::Reject }
}

/// For a peer that gets a default route while another one's routes are imported: its paths must not win against those.
pub(super) fn behind_others() -> Policy {
    let set = Actions { local_pref: Some(0), ..Actions::default() };
    Policy { rules: vec![Rule { set, ..Rule::default() }], default: Verdict::Accept }
}

/// The import policy, rule for rule.
pub(super) fn import(policy: &written::Policy) -> Result<Policy, ValueError> {
    Ok(Policy {
        rules: policy.rules.iter().map(rule).collect::<Result<_, _>>()?,
        default: verdict(policy.default),
    })
}

fn verdict(action: written::Action) -> Verdict {
    match action {
        written::Action::Accept => Verdict::Accept,
        written::Action::Reject => Verdict::Reject,
    }
}

fn rule(rule: &written::Rule) -> Result<Rule, ValueError> {
    Ok(Rule {
        prefixes: rule
            .prefixes
            .iter()
            .map(|entry| Ok(PrefixMatch { prefix: entry.prefix()?, ge: entry.ge, le: entry.le }))
            .collect::<Result<_, _>>()?,
        communities: communities(&rule.communities)?,
        large_communities: large_communities(&rule.large_communities)?,
        originated: None,
        set: Actions {
            local_pref: rule.set.local_preference,
            med: rule.set.med,
            prepend: rule.set.prepend.unwrap_or(0),
            add_communities: communities(&rule.set.add_communities)?,
            remove_communities: communities(&rule.set.remove_communities)?,
            add_large_communities: large_communities(&rule.set.add_large_communities)?,
        },
        verdict: rule.action.map(verdict),
    })
}

fn communities(texts: &[String]) -> Result<Vec<Community>, ValueError> {
    texts.iter().map(|text| parse_community(text).map(Community)).collect()
}

fn large_communities(texts: &[String]) -> Result<Vec<LargeCommunity>, ValueError> {
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
