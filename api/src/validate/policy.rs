//! Rules for a peer's policies and the prefix sets that they name.

use std::collections::BTreeMap;
use std::fmt;

use ipnet::IpNet;

use super::values::check_asn;
use crate::fault::Faults;
use crate::policy::{
    AsPath, Changes, Members, Policy, PrefixMatch, Rule, parse_community, parse_extended_community,
    parse_large_community,
};
use crate::resources::ValueError;

/// One of a peer's policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyDirection {
    Import,
    Export,
}

impl fmt::Display for PolicyDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PolicyDirection::Import => "import",
            PolicyDirection::Export => "export",
        })
    }
}

/// Named lists of prefixes.
type Sets = BTreeMap<String, Vec<PrefixMatch>>;

pub(super) fn check_sets(sets: &Sets, faults: &mut Faults<'_>) {
    for (name, entries) in sets {
        let path = format!("spec.config.prefixSets.{name}");
        if entries.is_empty() {
            faults.add(
                path.clone(),
                "empty: an empty list would match any prefix; write prefixes, or leave it out",
            );
        }
        check_prefixes(entries, &path, faults);
    }
}

pub(super) fn check(
    policy: &Policy,
    direction: PolicyDirection,
    sets: &Sets,
    path: &str,
    faults: &mut Faults<'_>,
) {
    for (index, rule) in policy.rules.iter().enumerate() {
        check_rule(rule, direction, sets, &format!("{path}.rules[{index}]"), faults);
    }
}

fn check_rule(rule: &Rule, direction: PolicyDirection, sets: &Sets, path: &str, faults: &mut Faults<'_>) {
    if rule.action.is_none() && rule.set == Changes::default() {
        faults.add(
            format!("{path}.action"),
            "missing, and the rule sets nothing: write accept or reject, or the attributes to set",
        );
    }
    if rule.originated.is_some() && direction == PolicyDirection::Import {
        faults.add(
            format!("{path}.originated"),
            "only for export, because this node originates no received path: leave it out",
        );
    }
    check_prefixes(&rule.prefixes, &format!("{path}.prefixes"), faults);
    for (index, name) in rule.prefix_sets.iter().enumerate() {
        if !sets.contains_key(name) {
            let known: Vec<&str> = sets.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none is configured".to_owned() } else { known.join(", ") };
            faults.add(
                format!("{path}.prefixSets[{index}]"),
                format!(
                    "`{name}` is not in spec.config.prefixSets ({known}): write it there, or use another name"
                ),
            );
        }
    }
    for (index, text) in rule.next_hops.iter().enumerate() {
        let field = || format!("{path}.nextHops[{index}]");
        match text.parse::<IpNet>() {
            Err(_) => {
                faults.add(field(), format!("`{text}` is not a prefix with its length, such as 10.0.0.0/8"))
            }
            Ok(prefix) if prefix != prefix.trunc() => {
                faults.add(field(), format!("{text} has host bits: write {}", prefix.trunc()));
            }
            Ok(_) => {}
        }
    }
    check_as_path(&rule.as_path, &format!("{path}.asPath"), faults);
    let set = &rule.set;
    check_members(&rule.communities, &format!("{path}.communities"), parse_community, faults);
    check_members(
        &rule.large_communities,
        &format!("{path}.largeCommunities"),
        parse_large_community,
        faults,
    );
    check_members(
        &rule.extended_communities,
        &format!("{path}.extendedCommunities"),
        parse_extended_community,
        faults,
    );
    let standard =
        [set.set_communities.as_deref().unwrap_or_default(), &set.add_communities, &set.remove_communities];
    check_edit(standard, "", path, parse_community, faults);
    let large = [
        set.set_large_communities.as_deref().unwrap_or_default(),
        &set.add_large_communities,
        &set.remove_large_communities,
    ];
    check_edit(large, "Large", path, parse_large_community, faults);
    let extended = [
        set.set_extended_communities.as_deref().unwrap_or_default(),
        &set.add_extended_communities,
        &set.remove_extended_communities,
    ];
    check_edit(extended, "Extended", path, parse_extended_community, faults);
}

/// Checks the set, added and removed values of one kind of communities.
fn check_edit<T>(
    lists: [&[String]; 3],
    kind: &str,
    path: &str,
    parse: fn(&str) -> Result<T, ValueError>,
    faults: &mut Faults<'_>,
) {
    for (verb, texts) in ["set", "add", "remove"].into_iter().zip(lists) {
        check_each(texts, &format!("{path}.set.{verb}{kind}Communities"), parse, faults);
    }
}

fn check_as_path(condition: &AsPath, path: &str, faults: &mut Faults<'_>) {
    if let (Some(min), Some(max)) = (condition.min_length, condition.max_length)
        && min > max
    {
        faults.add(
            format!("{path}.minLength"),
            format!("{min} is more than maxLength {max}, so no path matches: write {max} or less"),
        );
    }
    for (field, asns) in [
        ("contains", &condition.contains),
        ("originAs", &condition.origin_as),
        ("neighbourAs", &condition.neighbour_as),
    ] {
        for (index, asn) in asns.iter().enumerate() {
            check_asn(format!("{path}.{field}[{index}]"), *asn, faults);
        }
    }
}

fn check_members<T>(
    members: &Members,
    path: &str,
    parse: fn(&str) -> Result<T, ValueError>,
    faults: &mut Faults<'_>,
) {
    // A list means anyOf, and messages name its entries as they were written.
    let is_list = members.all_of.is_empty() && members.none_of.is_empty();
    let any_of = if is_list { path.to_owned() } else { format!("{path}.anyOf") };
    check_each(&members.any_of, &any_of, parse, faults);
    check_each(&members.all_of, &format!("{path}.allOf"), parse, faults);
    check_each(&members.none_of, &format!("{path}.noneOf"), parse, faults);
    let contradiction = members.all_of.iter().find(|member| members.none_of.contains(member));
    if let Some(member) = contradiction {
        faults.add(
            format!("{path}.noneOf"),
            format!(
                "{member} is also in allOf, so no path matches: remove it from one of the two \
                lists"
            ),
        );
    }
}

fn check_prefixes(entries: &[PrefixMatch], path: &str, faults: &mut Faults<'_>) {
    for (index, entry) in entries.iter().enumerate() {
        check_prefix(entry, &format!("{path}[{index}]"), faults);
    }
}

fn check_each<T>(
    texts: &[String],
    path: &str,
    parse: fn(&str) -> Result<T, ValueError>,
    faults: &mut Faults<'_>,
) {
    for (index, text) in texts.iter().enumerate() {
        if let Err(error) = parse(text) {
            faults.add(format!("{path}[{index}]"), error.to_string());
        }
    }
}

fn check_prefix(entry: &PrefixMatch, path: &str, faults: &mut Faults<'_>) {
    let prefix = match entry.prefix() {
        Ok(prefix) => prefix,
        Err(error) => return faults.add(format!("{path}.prefix"), error.to_string()),
    };
    if !super::subnet::is_canonical(&entry.prefix) {
        faults.add(format!("{path}.prefix"), format!("{} has host bits: write {prefix}", entry.prefix));
    }
    let (own, longest) = (prefix.prefix_len(), prefix.max_prefix_len());
    if let Some(ge) = entry.ge
        && !(own..=longest).contains(&ge)
    {
        faults.add(
            format!("{path}.ge"),
            format!("{ge} is not a length under {prefix}: write {own} to {longest}"),
        );
    }
    let shortest = entry.ge.unwrap_or(own).clamp(own, longest);
    if let Some(le) = entry.le
        && !(shortest..=longest).contains(&le)
    {
        faults.add(
            format!("{path}.le"),
            format!("{le} matches no length under {prefix}: write {shortest} to {longest}"),
        );
    }
}
