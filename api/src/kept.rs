//! What controller and agents keep of objects that tenants write: annotations and labels by name, and the
//! bounds of their size. `docs/limits.md` lists the bounds.
//!
//! Kubernetes limits a label's value, but not the number of labels: an object may have over 1 MiB of
//! them. The annotations of an object have at most 256 KiB.

use std::collections::BTreeMap;

use crate::names::{annotation, label};

/// The annotations of a pod that the controller reads.
pub const POD_ANNOTATIONS: [&str; 11] = [
    annotation::IP_POOL,
    annotation::IP_FAMILY,
    annotation::MAC_POOL,
    annotation::IP_RETAIN,
    annotation::SPECIFIED_NETWORK,
    annotation::SPECIFIED_SUBNET,
    annotation::NETWORK_TYPE,
    annotation::EXTRA_PREFIXES,
    annotation::IP_RETENTION,
    annotation::INTERFACES,
    annotation::MULTUS_NETWORKS,
];
/// The labels of a pod that the controller reads, besides those of `--pod-label-selector`.
pub const POD_LABELS: [&str; 4] =
    [label::SPECIFIED_NETWORK, label::SPECIFIED_SUBNET, label::NETWORK_TYPE, label::MIGRATION_JOB];
/// The annotations of a Namespace that the controller reads.
pub const NAMESPACE_ANNOTATIONS: [&str; 5] = [
    annotation::ALLOWED_NETWORKS,
    annotation::SPECIFIED_NETWORK,
    annotation::SPECIFIED_SUBNET,
    annotation::NETWORK_TYPE,
    annotation::IP_FAMILY,
];
/// The labels of a Namespace that the controller reads for the addresses of pods.
pub const NAMESPACE_LABELS: [&str; 3] =
    [label::SPECIFIED_NETWORK, label::SPECIFIED_SUBNET, label::NETWORK_TYPE];

/// Most octets of the annotations and labels of a pod, or of a Namespace, that the controller reads.
pub const MAX_NETWORKING: usize = 32 << 10;
/// Most octets of all labels of a Service, a Namespace or a Node, for the selectors of pools and
/// Networks.
pub const MAX_LABELS: usize = 16 << 10;
/// Most octets of the annotations of a Service that the controller reads.
pub const MAX_SERVICE_ANNOTATIONS: usize = 4 << 10;
/// Most ports of a Service of type LoadBalancer.
pub const MAX_SERVICE_PORTS: usize = 4096;
/// Most octets of a name that a reference has: the longest name of an object in Kubernetes.
pub const MAX_NAME: usize = 253;
/// Most octets of an `apiVersion`: group, slash and version.
pub const MAX_API_VERSION: usize = MAX_NAME + 64;

/// A part of an object exceeds its bound. The text follows the name of the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{octets} octets are set, and at most {bound} are allowed: write fewer or shorter values")]
pub struct TooLarge {
    /// Its octets, keys included.
    pub octets: usize,
    /// The bound.
    pub bound: usize,
}

/// Keeps the values of these names.
pub fn keep(map: Option<&BTreeMap<String, String>>, names: &[&str]) -> BTreeMap<String, String> {
    let found = names.iter().filter_map(|name| map?.get_key_value(*name));
    found.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The octets of these names and their values.
pub fn octets_of(map: Option<&BTreeMap<String, String>>, names: &[&str]) -> usize {
    names.iter().filter_map(|name| map?.get_key_value(*name)).map(octets_of_pair).sum()
}

/// The octets of all keys and values.
pub fn octets(map: Option<&BTreeMap<String, String>>) -> usize {
    map.into_iter().flatten().map(octets_of_pair).sum()
}

fn octets_of_pair((name, value): (&String, &String)) -> usize {
    name.len() + value.len()
}

/// The labels of an object; an error if they exceed [`MAX_LABELS`].
pub type BoundedLabels = Result<BTreeMap<String, String>, TooLarge>;

/// The labels of an object, within [`MAX_LABELS`].
///
/// # Errors
/// They exceed the bound.
pub fn bounded_labels(labels: Option<BTreeMap<String, String>>) -> BoundedLabels {
    check(octets(labels.as_ref()), MAX_LABELS)?;
    Ok(labels.unwrap_or_default())
}

/// Compares a size with its bound.
///
/// # Errors
/// It exceeds the bound.
pub fn check(octets: usize, bound: usize) -> Result<(), TooLarge> {
    if octets > bound { Err(TooLarge { octets, bound }) } else { Ok(()) }
}

/// A text of at most `bound` octets, cut at a character.
pub fn cut(text: &str, bound: usize) -> &str {
    if text.len() <= bound {
        return text;
    }
    let end = (0..=bound).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// Joins the texts of faults. Beyond the bound the number of the others follows.
pub fn join(faults: &[String], bound: usize) -> String {
    let mut text = String::new();
    for (index, fault) in faults.iter().enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        if text.len() + separator.len() + fault.len() > bound {
            let (first, rest) = match index {
                0 => (cut(fault, bound), faults.len() - 1),
                _ => (text.as_str(), faults.len() - index),
            };
            return if rest == 0 { first.to_owned() } else { format!("{first}; and {rest} more faults") };
        }
        text.push_str(separator);
        text.push_str(fault);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_list_are_kept() {
        let map: BTreeMap<String, String> =
            [("networking.alibaba.com/x", "1"), (annotation::IP_POOL, "10.0.0.1")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
        let kept = keep(Some(&map), &POD_ANNOTATIONS);
        assert_eq!(kept.into_keys().collect::<Vec<_>>(), [annotation::IP_POOL]);
        assert_eq!(octets_of(Some(&map), &POD_ANNOTATIONS), annotation::IP_POOL.len() + 8);
        assert_eq!(octets(Some(&map)), 25 + annotation::IP_POOL.len() + 8);
        assert!(keep(None, &POD_ANNOTATIONS).is_empty());
    }

    #[test]
    fn labels_above_the_bound_are_not_kept() {
        let labels = |octets: usize| Some([("a".to_owned(), "x".repeat(octets - 1))].into());
        assert_eq!(bounded_labels(labels(MAX_LABELS)).map(|labels| labels.len()), Ok(1));
        let too_large = TooLarge { octets: MAX_LABELS + 1, bound: MAX_LABELS };
        assert_eq!(bounded_labels(labels(MAX_LABELS + 1)), Err(too_large));
        assert_eq!(bounded_labels(None), Ok(BTreeMap::new()));
    }

    #[test]
    fn texts_of_faults_are_bounded() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for (faults, bound, text) in [
            (&["a", "b"][..], 4, "a; b"),
            (&["a", "b", "c"], 4, "a; b; and 1 more faults"),
            (&["abcdef"], 4, "abcd"),
            (&["abcdef", "b"], 4, "abcd; and 1 more faults"),
            (&[], 4, ""),
        ] {
            assert_eq!(join(&texts(faults), bound), text);
        }
    }

    #[test]
    fn a_text_is_cut_at_a_character() {
        assert_eq!((cut("abc", 3), cut("abc", 2), cut("aé", 2), cut("é", 1)), ("abc", "ab", "a", ""));
        assert!(check(3, 3).is_ok());
        let text = check(4, 3).unwrap_err().to_string();
        assert_eq!(text, "4 octets are set, and at most 3 are allowed: write fewer or shorter values");
    }
}
