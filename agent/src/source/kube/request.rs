//! A request to the API server, and the reason for which it fails.

use std::future::Future;
use std::time::Duration;

use kube::core::Status;
use tokio::time::timeout;

/// The reason for which a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The API server refused it.
    #[error("{} ({})", .0.message, .0.code)]
    Refused(Box<Status>),
    /// There was no answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// It was not sent, or its answer cannot be read.
    #[error(transparent)]
    Failed(kube::Error),
}

impl RequestError {
    /// The label of the metric.
    pub fn reason(&self) -> &'static str {
        match self {
            RequestError::Refused(_) => "refused",
            RequestError::TimedOut(_) => "no_answer",
            RequestError::Failed(_) => "failed",
        }
    }

    /// The HTTP status with which the API server refused it.
    pub fn code(&self) -> Option<u16> {
        match self {
            RequestError::Refused(status) => Some(status.code),
            RequestError::TimedOut(_) | RequestError::Failed(_) => None,
        }
    }
}

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => RequestError::Refused(status),
            error => RequestError::Failed(error),
        }
    }
}

/// Waits for the answer, no longer than `limit`.
///
/// # Errors
/// There is no answer in time, or it is an error.
pub(super) async fn within<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestError> {
    match timeout(limit, request).await {
        Ok(answer) => answer.map_err(RequestError::from),
        Err(_) => Err(RequestError::TimedOut(limit)),
    }
}
