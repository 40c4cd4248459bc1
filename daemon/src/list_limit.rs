//! Answers of the API server are read in parts of bounded size.
//!
//! A page of a list has a number of objects, and tenants decide how large an object is: 500 pods
//! with 1.3 MiB of labels each are a page of 650 MiB. So this layer reads the answer to a list with
//! a `limit` up to [`Bounds::page`]. If the answer is larger, the layer drops it and requests a
//! quarter of the objects from the same place of the list, down to a single object. It remembers
//! the smaller limit for the pages after it, and doubles it while pages are small.
//!
//! ```text
//! limit=500 ─▶ > 8 MiB ─▶ limit=125 ─▶ > 8 MiB ─▶ limit=31 ─▶ 5 MiB ─▶ the next page has limit=31
//! ```
//!
//! The caller gets the page with its `continue` token and notices nothing: a page may have fewer
//! objects than its limit. A caller that reads a list object by object says so ([`InPieces`]), and
//! bounds the objects itself. All other answers, and a page of a single object, have at most
//! [`Bounds::answer`] octets. An event of a watch has at most [`Bounds::event`].

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::http::request::Parts;
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Method, Request, Response};
use kube::client::Body;
use tower::{BoxError, Layer, Service, ServiceExt as _};

/// The number of paths whose smaller limit is remembered.
const REMEMBERED: usize = 64;

/// Numbers of octets.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// In a page of a list, unless the page has a single object.
    pub page: usize,
    /// In any answer.
    pub answer: usize,
    /// In an event of a watch.
    pub event: usize,
}

/// The bounds of agent and controller. The API server stores no object above about 3 MiB.
pub const BOUNDS: Bounds = Bounds { page: 8 << 20, answer: 64 << 20, event: 16 << 20 };

/// An extension of a request: the caller never has the whole answer in memory.
#[derive(Clone, Copy, Debug)]
pub struct InPieces;

/// An answer exceeds its bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the answer to GET {path} is not read: {what} has more than {octets} octets: find and delete the large objects of \
     this kind"
)]
pub struct AnswerTooLarge {
    /// The path of the request.
    pub path: String,
    /// The part of the answer.
    what: &'static str,
    /// The bound.
    pub octets: usize,
}

/// Bounds the answers of the service below.
#[derive(Clone, Debug)]
pub(crate) struct ListLimitLayer(pub Bounds);

impl<S> Layer<S> for ListLimitLayer {
    type Service = ListLimit<S>;

    fn layer(&self, inner: S) -> ListLimit<S> {
        ListLimit { inner, bounds: self.0, limits: Limits::default() }
    }
}

/// The service of [`ListLimitLayer`].
#[derive(Clone, Debug)]
pub(crate) struct ListLimit<S> {
    inner: S,
    bounds: Bounds,
    limits: Limits,
}

type Answer<B> = Response<Either<Full<Bytes>, BoundedEvents<B>>>;

impl<S, B> Service<Request<Body>> for ListLimit<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answer<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Answer<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let next = self.inner.clone();
        // The service that is ready serves this request.
        let mut inner = std::mem::replace(&mut self.inner, next);
        let (bounds, limits) = (self.bounds, self.limits.clone());
        let path = request.uri().path().to_owned();
        if request.method() != Method::GET || parameter(request.uri(), "watch").is_some() {
            let answer = inner.call(request);
            let of = move |body| {
                Either::Right(BoundedEvents { body, path, bound: bounds.event, octets: 0, is_over: false })
            };
            return Box::pin(async move { Ok(answer.await?.map(of)) });
        }
        if request.extensions().get::<InPieces>().is_some() {
            let answer = inner.call(request);
            return Box::pin(async move {
                let (head, body) = answer.await?.into_parts();
                if head.status.is_success() {
                    let body = BoundedEvents { body, path, bound: usize::MAX, octets: 0, is_over: false };
                    return Ok(Response::from_parts(head, Either::Right(body)));
                }
                let body = read(body, bounds.answer).await?;
                let body = body.ok_or_else(|| too_large(path, "it", bounds.answer))?;
                Ok(Response::from_parts(head, Either::Left(Full::new(body))))
            });
        }
        let requested = parameter(request.uri(), "limit").and_then(|limit| limit.parse().ok());
        let Some(requested) = requested.filter(|limit: &u32| *limit > 1) else {
            let answer = inner.call(request);
            return Box::pin(async move {
                let (head, body) = answer.await?.into_parts();
                let body = read(body, bounds.answer).await?;
                let body = body.ok_or_else(|| too_large(path, "it", bounds.answer))?;
                Ok(Response::from_parts(head, Either::Left(Full::new(body))))
            });
        };
        let head = request.into_parts().0;
        Box::pin(async move {
            let mut limit = limits.first(&path, requested);
            loop {
                let request = with_limit(&head, limit)?;
                let (head, body) = inner.ready().await?.call(request).await?.into_parts();
                let bound = if limit > 1 { bounds.page } else { bounds.answer };
                match read(body, bound).await? {
                    Some(body) => {
                        if body.len() <= bounds.page / 4 {
                            limits.grow(&path, requested, limit);
                        }
                        return Ok(Response::from_parts(head, Either::Left(Full::new(body))));
                    }
                    None if limit > 1 => {
                        limit = (limit / 4).max(1);
                        tracing::debug!(path, limit, "a page of a list is large: requesting fewer objects");
                        limits.remember(&path, limit);
                    }
                    None => return Err(too_large(path, "one object", bounds.answer)),
                }
            }
        })
    }
}

fn too_large(path: String, what: &'static str, octets: usize) -> BoxError {
    Box::new(AnswerTooLarge { path, what, octets })
}

/// Smaller limits by path.
#[derive(Clone, Debug, Default)]
struct Limits(Arc<Mutex<HashMap<String, u32>>>);

impl Limits {
    fn with<T>(&self, change: impl FnOnce(&mut HashMap<String, u32>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The limit of the first attempt.
    fn first(&self, path: &str, requested: u32) -> u32 {
        self.with(|limits| limits.get(path).map_or(requested, |limit| requested.min(*limit)))
    }

    fn remember(&self, path: &str, limit: u32) {
        self.with(|limits| {
            if limits.len() >= REMEMBERED && !limits.contains_key(path) {
                limits.clear();
            }
            limits.insert(path.to_owned(), limit);
        });
    }

    /// Doubles the remembered limit after a small page that had it.
    fn grow(&self, path: &str, requested: u32, used: u32) {
        self.with(|limits| {
            if used == requested || limits.get(path) != Some(&used) {
                return;
            }
            if used.saturating_mul(2) >= requested {
                limits.remove(path);
            } else {
                limits.insert(path.to_owned(), used * 2);
            }
        });
    }
}

/// The value of a parameter of a query.
fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
}

/// The request of a list with another limit.
fn with_limit(head: &Parts, limit: u32) -> Result<Request<Body>, BoxError> {
    let mut uri = head.uri.clone().into_parts();
    let others = head.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.starts_with("limit="));
    let query: Vec<&str> = others.filter(|pair| !pair.is_empty()).collect();
    let text = format!("{}?limit={limit}&{}", head.uri.path(), query.join("&"));
    uri.path_and_query = Some(PathAndQuery::try_from(text.trim_end_matches('&'))?);
    let mut head = head.clone();
    head.uri = Uri::from_parts(uri)?;
    Ok(Request::from_parts(head, Body::empty()))
}

/// Reads a body; `None` if it has more octets than the bound.
async fn read<B>(mut body: B, bound: usize) -> Result<Option<Bytes>, BoxError>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bound {
        return Ok(None);
    }
    let mut octets = Vec::with_capacity(announced);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Into::into)?.into_data() else { continue };
        if octets.len() + data.len() > bound {
            return Ok(None);
        }
        octets.extend_from_slice(&data);
    }
    Ok(Some(octets.into()))
}

/// A body of lines. A line above the bound is an error.
#[derive(Debug)]
pub(crate) struct BoundedEvents<B> {
    body: B,
    path: String,
    bound: usize,
    /// Octets since the last end of a line.
    octets: usize,
    is_over: bool,
}

impl<B> HttpBody for BoundedEvents<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let Some(frame) = frame else { return Poll::Ready(None) };
        let frame = frame.map_err(Into::into)?;
        if let Some(data) = frame.data_ref() {
            self.octets = match data.iter().rposition(|octet| *octet == b'\n') {
                Some(end) => data.len() - end - 1,
                None => self.octets.saturating_add(data.len()),
            };
        }
        if self.octets > self.bound {
            self.is_over = true;
            let path = std::mem::take(&mut self.path);
            return Poll::Ready(Some(Err(too_large(path, "an event", self.bound))));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
