//! Lists of the pods with keys of labels that no policy named before.
//!
//! The watch has the labels of new keys from their registration on. This list has them for the pods
//! that no event changes: only the pods with such a key, selected by the API server.

use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use tokio::sync::mpsc;
use trunkline_daemon::errors::chain;

use super::super::request::{RequestError, within};
use super::super::watch::{Rows, Source};
use super::{PAGE, WITH_NODE};
use crate::netpolicy::feed::{PodInput, PolicyInput};
use crate::netpolicy::keys::{LabelKeys, Labelled};
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

/// The result of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Relisted {
    /// The policy task has all rows.
    Complete,
    /// There are too many keys: the watch lists all pods.
    TooMany,
    /// The API server did not answer.
    Failed,
}

/// The pace of such lists.
pub(super) fn pace() -> Pace {
    Pace::new(FIRST_PACE, LAST_PACE)
}

/// Lists the pods with the keys that were registered after this number.
pub(super) async fn relist<F>(
    rows: Rows<PodManifest, F>,
    keys: Arc<LabelKeys>,
    after: u64,
    inputs: mpsc::Sender<PolicyInput>,
) -> Relisted
where
    F: Fn(PodManifest) -> Kept<PodInput> + Clone + Send + Sync + 'static,
{
    let (new, number) = keys.after(Labelled::Pods, after);
    let new: Vec<Arc<str>> = new.into_iter().filter(|key| is_key(key)).collect();
    if new.len() > MOST_KEYS {
        return Relisted::TooMany;
    }
    for key in &new {
        if let Err(error) = list(&rows, key, &inputs).await {
            tracing::warn!(key = %key, error = chain(&error), "the pods with a label were not listed: the policies with this key wait");
            return Relisted::Failed;
        }
    }
    // Without a receiver, the policy task has ended.
    let _ = inputs.send(PolicyInput::Covered(number)).await;
    Relisted::Complete
}

/// Lists the pods with a key, page by page.
async fn list<F>(
    rows: &Rows<PodManifest, F>,
    key: &str,
    inputs: &mpsc::Sender<PolicyInput>,
) -> Result<(), RequestError>
where
    F: Fn(PodManifest) -> Kept<PodInput> + Clone + Send + Sync + 'static,
{
    let mut params = ListParams {
        label_selector: Some(key.to_owned()),
        field_selector: Some(WITH_NODE.to_owned()),
        limit: Some(PAGE),
        ..ListParams::default()
    };
    loop {
        let page = within(ANSWER, rows.list(&params)).await?;
        let pods = page.items.into_iter().map(|one| one.row.row).collect();
        let _ = inputs.send(PolicyInput::Relisted(pods)).await;
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}

/// Whether an object can have a label with this key. The API server does not compare the keys of a
/// ClusterNetworkPolicy with the syntax of labels.
fn is_key(key: &str) -> bool {
    let is_allowed = |octet: u8| octet.is_ascii_alphanumeric() || b"-_./".contains(&octet);
    !key.is_empty() && key.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_no_object_can_have_are_not_requested() {
        for (key, expected) in [("app", true), ("example.com/a-b_c", true), ("!app", false), ("a,b", false)] {
            assert_eq!(is_key(key), expected, "{key}");
        }
    }
}
