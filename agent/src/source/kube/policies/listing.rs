//! Whether a watch lists all its objects. No other list of these objects begins meanwhile, and the
//! list does not begin again: new keys of labels would otherwise keep it from ever being complete.

use kube::api::{ListParams, WatchParams};
use kube::core::ObjectList;
use tokio::sync::watch;

use super::super::watch::{Changes, Source};

/// Whether a list of all objects runs. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Listing(watch::Sender<bool>);

impl Listing {
    pub(super) fn new() -> Listing {
        Listing(watch::Sender::new(false))
    }

    pub(super) fn begin(&self) {
        self.0.send_replace(true);
    }

    pub(super) fn end(&self) {
        self.0.send_replace(false);
    }

    pub(super) fn is_running(&self) -> bool {
        *self.0.borrow()
    }

    /// Notified of each beginning and end.
    pub(super) fn subscribe(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

/// A source whose lists of all objects are known.
pub(super) struct Listed<S> {
    pub(super) source: S,
    pub(super) listing: Listing,
}

impl<S: Source> Source for Listed<S> {
    type Object = S::Object;

    fn page(&self) -> u32 {
        self.source.page()
    }

    fn reports_pages(&self) -> bool {
        self.source.reports_pages()
    }

    fn lists_from_cache(&self) -> bool {
        self.source.lists_from_cache()
    }

    fn begins_list(&self) {
        self.listing.begin();
    }

    fn version(&self, object: &S::Object) -> Option<String> {
        self.source.version(object)
    }

    async fn list(&self, params: &ListParams) -> kube::Result<ObjectList<S::Object>> {
        self.source.list(params).await
    }

    async fn watch(&self, params: &WatchParams, version: &str) -> kube::Result<Changes<S::Object>> {
        self.source.watch(params, version).await
    }
}
