//! The agent's own page: the state of this node in a browser.
//!
//! ```text
//!   GET /, /page/*.js, …      files in the program                    `assets`
//!   GET /page/live            server-sent events: a document whenever something changed    `live`, `state`, `trend`
//!   GET /page/routes?q=…      a search of the tables                  `search`
//!   GET /page/{explain,peer,pods,services,events}   requested from their owners when they are shown
//! ```
//!
//! The page is read-only: it answers only GET. It needs no password. So by default it is served
//! only to this host ([`Access::Loopback`]), whatever the address of the metrics. It also accepts
//! only requests for host names that a foreign web page cannot use for this host (`stranger`). So a
//! foreign page cannot make a browser on the node read it. Texts from peers (reasons,
//! communications, hostnames) are sent as JSON and inserted as text. The Content-Security-Policy
//! allows no inline code, so even a mistake there would run no code.
//!
//! **Limits**: [`trunkline_daemon::http`] limits connections, `live::STREAMS` streams, and
//! `QUESTIONS` simultaneous requests of bounded size. The lists of pods and of service addresses are
//! built once per change, whatever the number of requests. No code here runs in a task that a session needs: each request
//! to the speaker takes less than a millisecond.

mod assets;
mod live;
mod search;
mod served;
mod services;
mod state;
mod trend;

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Semaphore, watch};
use trunkline_api::attach::{Code, Failure};
use trunkline_daemon::http::{Body, text, try_later, whole};

pub use served::Served;

use crate::change_notifier::ChangeNotifier;
use crate::observe::Observer;
use live::LiveClients;

/// Maximum number of simultaneous requests.
const QUESTIONS: usize = 2;
/// Maximum number of waiting requests. Later requests get an error and must be repeated.
const WAITING: usize = 32;
/// Maximum number of shown pods.
const PODS: usize = 2000;

/// The clients that may see the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Clients on this host.
    #[default]
    Loopback,
    /// All clients that can connect to `httpAddress`.
    Everywhere,
    /// No clients.
    Nowhere,
}

/// The page.
pub struct Page {
    access: Access,
    observer: Arc<Observer>,
    clients: Arc<LiveClients>,
    changes: watch::Receiver<u64>,
    pods: Mutex<Option<(u64, Bytes)>>,
    services: Mutex<Option<(u64, Bytes)>>,
    permits: Semaphore,
    waiting: Semaphore,
}

impl Page {
    /// Starts the tasks that keep the page up to date.
    pub fn start(access: Access, observer: Arc<Observer>, notifier: &ChangeNotifier) -> Page {
        let clients = Arc::new(LiveClients::default());
        if access != Access::Nowhere {
            tokio::spawn(live::press(Arc::clone(&observer), notifier.clone(), Arc::clone(&clients)));
        }
        Page {
            access,
            observer,
            clients,
            changes: notifier.subscribe(),
            pods: Mutex::new(None),
            services: Mutex::new(None),
            permits: Semaphore::new(QUESTIONS),
            waiting: Semaphore::new(QUESTIONS + WAITING),
        }
    }

    /// Answers a request; none for an unknown path.
    pub async fn answer(&self, head: &Parts, from: SocketAddr) -> Option<Response<Body>> {
        let path = head.uri.path();
        if self.access == Access::Nowhere || (path != "/" && !path.starts_with("/page/")) {
            return None;
        }
        if self.access == Access::Loopback
            && let Some(why) = stranger(head, from)
        {
            return Some(text(StatusCode::FORBIDDEN, why));
        }
        let mut response = match assets::serve(head) {
            Some(response) => response,
            None => self.data(head).await,
        };
        for (name, value) in SECURITY {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        Some(response)
    }

    async fn data(&self, head: &Parts) -> Response<Body> {
        let given = |name: &str| argument(head.uri.query().unwrap_or_default(), name);
        let answer = match head.uri.path() {
            "/page/live" => return self.live(head),
            "/page/pods" => self.pods().await,
            "/page/services" => self.services().await,
            "/page/events" => match self.permit().await {
                Ok(_permit) => {
                    json(Ok(self.observer.history.since(given("after").parse().unwrap_or_default())))
                }
                Err(busy) => return busy,
            },
            "/page/peer" => match self.permit().await {
                Ok(_permit) => json(self.observer.peers(Some(given("name"))).await),
                Err(busy) => return busy,
            },
            "/page/routes" => match search::read(&given("q"), &given("from"), &given("fate")) {
                Ok(filter) => match self.permit().await {
                    Ok(_permit) => json(self.search(filter).await),
                    Err(busy) => return busy,
                },
                Err(error) => Err(Failure::new(Code::InvalidContent, error.to_string())),
            },
            "/page/explain" => match given("prefix").parse() {
                Ok(prefix) => match self.permit().await {
                    Ok(_permit) => json(self.observer.explain(prefix).await),
                    Err(busy) => return busy,
                },
                Err(_) => {
                    let why = format!("{}: write a prefix, such as 10.24.0.0/16", given("prefix"));
                    Err(Failure::new(Code::InvalidContent, why))
                }
            },
            _ => return text(StatusCode::NOT_FOUND, "there is no such page\n".to_owned()),
        };
        let (status, body) = match answer {
            Ok(body) => (StatusCode::OK, body),
            Err(failure) => {
                let status = match failure.code {
                    Code::InvalidContent => StatusCode::BAD_REQUEST,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                (status, Bytes::from(serde_json::json!({ "error": failure.message }).to_string()))
            }
        };
        let mut response = Response::new(whole(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    fn live(&self, head: &Parts) -> Response<Body> {
        // A HEAD request uses no place of a stream.
        let body = match head.method {
            Method::HEAD => self.clients.has_place().then(|| whole("")),
            _ => self.clients.join(),
        };
        let Some(body) = body else {
            let why = format!("{} pages are open at this agent, which is the maximum\n", live::STREAMS);
            return try_later("10", &why);
        };
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Waits for a permit to answer a request.
    async fn permit(&self) -> Result<SearchPermit<'_>, Response<Body>> {
        let busy = || try_later("2", "too many requests at a time: try again\n");
        let waiting = self.waiting.try_acquire().map_err(|_| busy())?;
        let permit = self.permits.acquire().await.map_err(|_| busy())?;
        Ok(SearchPermit { _waiting: waiting, _permit: permit })
    }

    async fn search(&self, filter: trunkline_bgp::speaker::RouteFilter) -> Result<SearchResponse, Failure> {
        let (mut routes, found) = self.observer.search(filter, search::SHOWN, search::WITHIN).await?;
        routes.truncate(search::PATHS);
        Ok(SearchResponse {
            routes,
            shown: found.shown,
            matched: found.matched,
            looked_at: found.looked_at,
            prefixes: found.prefixes,
            complete: found.complete,
        })
    }

    /// The pods. Simultaneous requests for the same state share one list.
    async fn pods(&self) -> Result<Bytes, Failure> {
        let mut kept = self.pods.lock().await;
        let now = *self.changes.borrow();
        if let Some((when, body)) = kept.as_ref()
            && *when == now
        {
            return Ok(body.clone());
        }
        let mut pods = self.observer.pods().await?;
        let count = pods.len();
        pods.truncate(PODS);
        let body = json(Ok(serde_json::json!({ "pods": pods, "count": count })))?;
        *kept = Some((now, body.clone()));
        Ok(body)
    }

    /// The service addresses. Simultaneous requests for the same state share one list.
    async fn services(&self) -> Result<Bytes, Failure> {
        let mut kept = self.services.lock().await;
        let now = *self.changes.borrow();
        if let Some((when, body)) = kept.as_ref()
            && *when == now
        {
            return Ok(body.clone());
        }
        let body = json(Ok(services::document(self.observer.services.as_ref()).await))?;
        *kept = Some((now, body.clone()));
        Ok(body)
    }
}

struct SearchPermit<'a> {
    _waiting: tokio::sync::SemaphorePermit<'a>,
    _permit: tokio::sync::SemaphorePermit<'a>,
}

/// The result of a search.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SearchResponse {
    routes: Vec<trunkline_api::control::Route>,
    shown: usize,
    matched: usize,
    looked_at: usize,
    prefixes: usize,
    complete: bool,
}

/// Security headers of every answer.
const SECURITY: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// The reason for which a client may not see a page that is only for this host. A foreign web page
/// in a browser on this host also connects from here. But it cannot make the browser request an
/// address or `localhost` and read the answer as its own (DNS rebinding), and the browser sends the
/// origin of a request.
fn stranger(head: &Parts, from: SocketAddr) -> Option<String> {
    if !from.ip().to_canonical().is_loopback() {
        return Some(
            "the page is only for this host: use `ssh -L` or `kubectl port-forward`, or write page: everywhere into agent.yaml\n"
                .to_owned(),
        );
    }
    let header = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
    let host = header(HOST).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    if name != "localhost" && name.parse::<std::net::IpAddr>().is_err() {
        return Some("use localhost or an address instead of that name\n".to_owned());
    }
    let site = header(HeaderName::from_static("sec-fetch-site"));
    let foreign = matches!(site, Some("cross-site" | "same-site"));
    (foreign && head.uri.path() != "/").then(|| "this is for the agent's own page only\n".to_owned())
}

fn json<T: Serialize>(answer: Result<T, Failure>) -> Result<Bytes, Failure> {
    let text = serde_json::to_vec(&answer?)
        .map_err(|error| Failure::new(Code::Internal, format!("the answer cannot be written: {error}")))?;
    Ok(text.into())
}

/// A decoded argument of a query; empty if it is missing.
fn argument(query: &str, name: &str) -> String {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let Some((_, value)) = pairs.find(|(key, _)| *key == name) else { return String::new() };
    let mut octets = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(octet) = rest.next() {
        octets.push(match octet {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
                match digit().zip(digit()) {
                    Some((high, low)) => (high << 4 | low) as u8,
                    None => return String::new(),
                }
            }
            octet => octet,
        });
    }
    String::from_utf8(octets).unwrap_or_default()
}
