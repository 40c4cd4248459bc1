//! The HTTP content: metrics and probes, and the page.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::Response;
use hyper::http::request::Parts;
use trunkline_daemon::http::{Body, Probe};

use super::Page;
use crate::observe::Observer;

/// Metrics and probes, and the page.
pub struct Served {
    /// Answers for the metrics and the probes.
    pub observer: Arc<Observer>,
    /// The page.
    pub page: Page,
}

impl Probe for Served {
    async fn metrics(&self) -> String {
        self.observer.metrics().await
    }

    async fn unhealthy(&self) -> Vec<String> {
        self.observer.unhealthy().await
    }

    async fn unready(&self) -> Vec<String> {
        self.observer.unready().await
    }

    async fn page(&self, head: &Parts, from: SocketAddr) -> Option<Response<Body>> {
        self.page.answer(head, from).await
    }
}
