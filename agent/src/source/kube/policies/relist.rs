//! Lists of the pods with keys of labels that no policy named before.
//!
//! The watch has the labels of new keys from their registration on. This list has them for the pods
//! that no event changes: only the pods with such a key, selected by the API server. With many new
//! keys it has all pods. It does not end the watch: other pods must not wait for it.

use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use trunkline_daemon::errors::chain;

use super::super::request::{RequestError, within};
use super::super::watch::{Rows, Source};
use super::{PAGE, WITH_NODE};
use crate::netpolicy::feed::{PodInput, PolicyInput};
use crate::netpolicy::inbox::PolicyInputs;
use crate::netpolicy::objects::{Kept, PodManifest};
use crate::netpolicy::pace::Pace;

/// With more new keys than this, one list of all pods costs less.
const MOST_KEYS: usize = 8;
/// The time limit of a page.
const ANSWER: Duration = Duration::from_secs(30);
/// The shortest time between two lists. It doubles while new keys keep coming.
const FIRST_PACE: Duration = Duration::from_secs(1);
/// The longest time between two lists.
const LAST_PACE: Duration = Duration::from_secs(10);
/// The most octets of the prefix and of the name of a key: see the package `validation` of
/// Kubernetes, `IsQualifiedName`.
const MOST_OF_PREFIX: usize = 253;
const MOST_OF_NAME: usize = 63;

/// The pace of such lists.
pub(super) fn pace() -> Pace {
    Pace::new(FIRST_PACE, LAST_PACE)
}

/// The keys of labels by which pods are listed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ListedKeys {
    /// The pods with one of these keys.
    These(Vec<Arc<str>>),
    /// All pods: there are too many keys.
    All,
}

impl ListedKeys {
    pub(super) fn of(new: Vec<Arc<str>>) -> ListedKeys {
        let new: Vec<Arc<str>> = new.into_iter().filter(|key| is_key(key)).collect();
        if new.len() > MOST_KEYS { ListedKeys::All } else { ListedKeys::These(new) }
    }
}

/// Lists the pods with keys up to the registration `number`. The watch continues meanwhile.
pub(super) async fn relist<F>(rows: Rows<PodManifest, F>, keys: ListedKeys, number: u64, inputs: PolicyInputs)
where
    F: Fn(PodManifest) -> Kept<PodInput> + Clone + Send + Sync + 'static,
{
    let selectors = match keys {
        ListedKeys::These(keys) => keys.into_iter().map(Some).collect(),
        ListedKeys::All => vec![None],
    };
    for key in selectors {
        if let Err(error) = list(&rows, key.as_deref(), &inputs).await {
            tracing::warn!(
                key = key.as_deref(),
                error = chain(&error),
                "the pods with a label were not listed: the policies with this key wait"
            );
            return;
        }
    }
    // Without a receiver, the policy task has ended.
    let _ = inputs.send(PolicyInput::Covered(number)).await;
}

/// Lists the pods with a key, or all pods, page by page. No pod has a key that the API server does not
/// accept.
async fn list<F>(
    rows: &Rows<PodManifest, F>,
    key: Option<&str>,
    inputs: &PolicyInputs,
) -> Result<(), RequestError>
where
    F: Fn(PodManifest) -> Kept<PodInput> + Clone + Send + Sync + 'static,
{
    let mut params = ListParams {
        label_selector: key.map(ToOwned::to_owned),
        field_selector: Some(WITH_NODE.to_owned()),
        limit: Some(PAGE),
        ..ListParams::default()
    };
    loop {
        let is_first = params.continue_token.is_none();
        let page = match within(ANSWER, rows.list(&params)).await {
            Ok(page) => page,
            Err(error) if key.is_some() && is_first && is_invalid(&error) => {
                tracing::warn!(
                    key,
                    error = chain(&error),
                    "the API server does not accept a key of labels in a policy: no pod has it"
                );
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let pods = page.items.into_iter().map(|one| one.row.row).collect();
        let _ = inputs.send(PolicyInput::Relisted(pods)).await;
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}

/// Whether the API server does not accept the selector (400, 422).
fn is_invalid(error: &RequestError) -> bool {
    matches!(error.code(), Some(400 | 422))
}

/// Whether an object can have a label with this key. The API server does not compare the keys of a
/// ClusterNetworkPolicy with the syntax of labels, and refuses a list with any other key.
fn is_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_end = |octet: &u8| octet.is_ascii_alphanumeric();
    let is_inside = |octet: &u8| is_end(octet) || b"-_.".contains(octet);
    let is_text = |text: &str, most: usize| {
        let octets = text.as_bytes();
        octets.len() <= most
            && octets.first().is_some_and(is_end)
            && octets.last().is_some_and(is_end)
            && octets.iter().all(is_inside)
    };
    let is_lower = |part: &str| !part.bytes().any(|octet| octet == b'_' || octet.is_ascii_uppercase());
    let is_prefix = |prefix: &str| {
        prefix.len() <= MOST_OF_PREFIX
            && prefix.split('.').all(|part| is_text(part, MOST_OF_PREFIX) && is_lower(part))
    };
    is_text(name, MOST_OF_NAME) && prefix.is_none_or(is_prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_no_object_can_have_are_not_requested() {
        let long = "a".repeat(64);
        for (key, expected) in [
            ("app", true),
            ("example.com/a-b_c", true),
            ("App.kubernetes.io/Name", false),
            ("app.kubernetes.io/Name", true),
            ("", false),
            ("!app", false),
            ("a,b", false),
            ("a b", false),
            ("-app", false),
            ("app.", false),
            ("/app", false),
            ("a/b/c", false),
            ("a..b/c", false),
            ("a_b/c", false),
            ("example.com/", false),
            (&long[1..], true),
            (&long, false),
            (&format!("{long}.{long}/a"), true),
            (&format!("{long}.{long}.{long}.{long}/a"), false),
        ] {
            assert_eq!(is_key(key), expected, "{key}");
        }
    }

    #[test]
    fn many_new_keys_are_one_list_of_all_pods() {
        let keys = |number: usize| (0..number).map(|key| format!("key-{key}").into()).collect::<Vec<_>>();
        assert_eq!(ListedKeys::of(keys(MOST_KEYS)), ListedKeys::These(keys(MOST_KEYS)));
        assert_eq!(ListedKeys::of(keys(MOST_KEYS + 1)), ListedKeys::All);
        assert_eq!(ListedKeys::of(vec!["!".into()]), ListedKeys::These(Vec::new()));
    }
}
