//! Tests of the watch loop against a fake API server, in virtual time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::core::response::Status;
use kube::core::watch::{Bookmark, BookmarkMeta};
use kube::core::{ListMeta, TypeMeta};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;

/// The server's action at its next request.
enum Answer {
    /// A complete list: the object names and the list's resource version.
    List(&'static [&'static str], &'static str),
    /// One page of a list: the object names. More pages follow.
    Page(&'static [&'static str]),
    /// A connection that sends these events and then ends, or stays silent.
    Watch(Vec<kube::Result<WatchEvent<ConfigMap>>>, End),
    /// An error with this HTTP status.
    Refuse(u16),
}

#[derive(PartialEq)]
enum End {
    Closed,
    Silent,
}

struct Server {
    answers: Mutex<VecDeque<Answer>>,
    requested: mpsc::UnboundedSender<String>,
    reports_pages: bool,
}

fn object(name: &str, version: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.metadata.resource_version = Some(version.to_owned());
    object
}

fn refusal(code: u16) -> kube::Error {
    kube::Error::Api(Box::new(Status { message: "no".to_owned(), code, ..Status::default() }))
}

fn bookmark(version: &str) -> kube::Result<WatchEvent<ConfigMap>> {
    let metadata = BookmarkMeta { resource_version: version.to_owned(), annotations: Default::default() };
    Ok(WatchEvent::Bookmark(Bookmark { types: TypeMeta::default(), metadata }))
}

impl Server {
    fn next(&self, requested: String) -> Option<Answer> {
        let _ = self.requested.send(requested);
        self.answers.lock().unwrap().pop_front()
    }
}

impl Source for Arc<Server> {
    type Object = ConfigMap;

    fn reports_pages(&self) -> bool {
        self.reports_pages
    }

    fn version(&self, object: &ConfigMap) -> Option<String> {
        object.metadata.resource_version.clone()
    }

    async fn list(&self, params: &ListParams) -> kube::Result<ObjectList<ConfigMap>> {
        let page = |names: &[&str], metadata| ObjectList {
            types: TypeMeta::default(),
            metadata,
            items: names.iter().map(|name| object(name, "1")).collect(),
        };
        let requested = match params.resource_version.as_deref() {
            Some(version) => format!("list from {version}, limit {:?}", params.limit),
            None => format!("list {}", params.continue_token.clone().unwrap_or_default()),
        };
        match self.next(requested) {
            Some(Answer::List(names, version)) => Ok(page(
                names,
                ListMeta { resource_version: Some(version.to_owned()), ..ListMeta::default() },
            )),
            Some(Answer::Page(names)) => {
                Ok(page(names, ListMeta { continue_: Some("more".to_owned()), ..ListMeta::default() }))
            }
            Some(Answer::Refuse(code)) => Err(refusal(code)),
            Some(Answer::Watch(..)) => panic!("asked for a list"),
            None => std::future::pending().await,
        }
    }

    async fn watch(&self, _params: &WatchParams, version: &str) -> kube::Result<Changes<ConfigMap>> {
        match self.next(format!("watch {version}")) {
            Some(Answer::Watch(events, end)) => {
                let events = stream::iter(events);
                Ok(match end {
                    End::Closed => Box::pin(events),
                    End::Silent => Box::pin(events.chain(stream::pending())),
                })
            }
            Some(Answer::Refuse(code)) => Err(refusal(code)),
            Some(_) => panic!("asked for a watch"),
            None => std::future::pending().await,
        }
    }
}

struct Bed {
    reported: mpsc::UnboundedReceiver<String>,
    requested: mpsc::UnboundedReceiver<String>,
    health: Health,
}

fn start(answers: Vec<Answer>) -> Bed {
    start_source(answers, false, false)
}

fn start_source(answers: Vec<Answer>, reports_pages: bool, from_cache: bool) -> Bed {
    let (request_sender, requested) = mpsc::unbounded_channel();
    let (sender, reported) = mpsc::unbounded_channel();
    let answers = Mutex::new(answers.into());
    let server = Arc::new(Server { answers, requested: request_sender, reports_pages });
    let health = Health::default();
    health.started("test");
    let report = move |change: Change<ConfigMap>| {
        let name = |object: ConfigMap| object.metadata.name.unwrap_or_default();
        let words = match change {
            Change::Page { is_first, objects } => {
                let kind = if is_first { "first page" } else { "page" };
                format!("{kind} {}", objects.into_iter().map(name).collect::<Vec<_>>().join(" "))
            }
            Change::Listed(all) => {
                format!("listed {}", all.into_iter().map(name).collect::<Vec<_>>().join(" "))
            }
            Change::Applied(one) => format!("applied {}", name(one)),
            Change::Deleted(one) => format!("deleted {}", name(one)),
            Change::Failing(reason) => format!("failing {reason}"),
        };
        std::future::ready(sender.send(words).is_ok())
    };
    let (selector, name) = (Selector::default(), "test".to_owned());
    match from_cache {
        true => tokio::spawn(run(Cached(server), selector, name, health.clone(), report)),
        false => tokio::spawn(run(server, selector, name, health.clone(), report)),
    };
    Bed { reported, requested, health }
}

impl Bed {
    async fn reported(&mut self, expected: &[&str]) {
        for words in expected {
            assert_eq!(self.reported.recv().await.unwrap(), *words);
        }
    }

    async fn requested(&mut self, expected: &[&str]) {
        for words in expected {
            assert_eq!(self.requested.recv().await.unwrap(), *words);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_in_pages_is_followed_by_changes() {
    let events = vec![
        Ok(WatchEvent::Added(object("c", "8"))),
        Ok(WatchEvent::Deleted(object("a", "9"))),
        bookmark("12"),
    ];
    let mut bed = start(vec![
        Answer::Page(&["a"]),
        Answer::List(&["b"], "7"),
        Answer::Watch(events, End::Closed),
        Answer::Watch(vec![Ok(WatchEvent::Modified(object("b", "13")))], End::Silent),
    ]);
    bed.reported(&["listed a b", "applied c", "deleted a", "applied b"]).await;
    bed.requested(&["list ", "list more", "watch 7", "watch 12"]).await;
    assert!(bed.health.is_live("test"));
}

#[tokio::test(start_paused = true)]
async fn pages_are_reported_and_a_new_attempt_begins_anew() {
    let answers = vec![
        Answer::Page(&["a"]),
        Answer::Refuse(500),
        Answer::Page(&["a"]),
        Answer::List(&["b"], "7"),
        Answer::Watch(vec![Ok(WatchEvent::Added(object("c", "8")))], End::Silent),
    ];
    let mut bed = start_source(answers, true, false);
    let expected = ["first page a", "failing no (500)", "first page a", "page b", "listed ", "applied c"];
    bed.reported(&expected).await;
    bed.requested(&["list ", "list more", "list ", "list more", "watch 7"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_from_the_cache_is_whole_and_not_older_than_the_watch() {
    let gone = || Ok(WatchEvent::Error(Box::new(Status { code: 410, ..Status::default() })));
    let answers = vec![
        Answer::List(&["a"], "7"),
        Answer::Watch(vec![bookmark("9"), gone()], End::Silent),
        // Another API server, of which the cache is older.
        Answer::List(&["old"], "8"),
        Answer::Page(&["b"]),
        Answer::List(&["c"], "10"),
        Answer::Watch(vec![gone()], End::Silent),
        // The cache is not ready.
        Answer::Refuse(429),
        Answer::List(&["d"], "11"),
        Answer::Watch(Vec::new(), End::Silent),
    ];
    let mut bed = start_source(answers, false, true);
    bed.reported(&["listed a", "listed b c", "listed d"]).await;
    let cached = "list from 0, limit None";
    bed.requested(&[
        cached,
        "watch 7",
        cached,
        "list ",
        "list more",
        "watch 10",
        cached,
        "list ",
        "watch 11",
    ])
    .await;
    tokio::task::yield_now().await;
    assert!(bed.health.is_live("test"));
}

/// An answer in pieces that are no whole objects.
fn in_pieces(list: &str) -> Client {
    let pieces: Vec<_> = list.as_bytes().chunks(7).map(Bytes::copy_from_slice).collect();
    let answer = move |_: Request<kube::client::Body>| {
        let frames =
            pieces.clone().into_iter().map(|piece| Ok::<_, std::convert::Infallible>(Frame::data(piece)));
        let body = StreamBody::new(stream::iter(frames));
        std::future::ready(Ok::<_, kube::Error>(Response::new(body)))
    };
    Client::new(tower::service_fn(answer), "default")
}

#[tokio::test]
async fn rows_are_made_of_an_answer_in_pieces() {
    let rows = |list: &str| Rows {
        api: Api::<ConfigMap>::all(in_pieces(list)),
        page: PAGE,
        by_page: false,
        convert: |object: ConfigMap| object.metadata.name,
    };
    let list = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"x"},
        "items":[{"metadata":{"name":"a]"}},{"metadata":{"name":"b"}}]}"#;
    let listed = rows(list).list(&ListParams::default()).await.unwrap();
    let names: Vec<_> = listed.items.into_iter().filter_map(|one| one.row).collect();
    assert_eq!(names, ["a]", "b"]);
    assert_eq!(listed.metadata.resource_version.as_deref(), Some("7"));
    assert_eq!(listed.metadata.continue_.as_deref(), Some("x"));
    // A connection that ends early is no shorter list.
    for cut in ["}", "]}", r#"{"metadata":{"name":"b"}}]}"#] {
        let short = list.strip_suffix(cut).unwrap();
        assert!(rows(short).list(&ListParams::default()).await.is_err(), "{short}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_closed_by_a_new_list() {
    let gone = Status { code: 410, ..Status::default() };
    let mut bed = start(vec![
        Answer::List(&["a"], "7"),
        Answer::Watch(vec![Ok(WatchEvent::Error(Box::new(gone)))], End::Silent),
        Answer::List(&["b"], "20"),
        Answer::Refuse(410),
        Answer::List(&["c"], "30"),
        // After a restore from a backup, the server does not know the version, and does not return
        // 410.
        Answer::Refuse(504),
        Answer::Refuse(504),
        Answer::Refuse(504),
        Answer::List(&["d"], "5"),
        Answer::Watch(Vec::new(), End::Silent),
    ]);
    bed.reported(&["listed a", "listed b", "failing no (410)", "listed c", "failing no (504)", "listed d"])
        .await;
    bed.requested(&[
        "list ", "watch 7", "list ", "watch 20", "list ", "watch 30", "watch 30", "watch 30", "list ",
        "watch 5",
    ])
    .await;
    tokio::task::yield_now().await;
    assert!(bed.health.is_live("test"));
}

/// After an outage, the watch is live as soon as the server accepts it, before the first event.
#[tokio::test(start_paused = true)]
async fn an_outage_is_reported_once_and_ends_without_an_event() {
    let mut answers = vec![Answer::List(&[], "7"), Answer::Watch(Vec::new(), End::Closed)];
    answers.extend((0..2).map(|_| Answer::Refuse(503)));
    answers.push(Answer::Watch(Vec::new(), End::Silent));
    answers.push(Answer::List(&[], "7"));
    let mut bed = start(answers);
    bed.reported(&["listed ", "failing no (503)"]).await;
    assert!(bed.health.outage().is_some());
    bed.requested(&["list ", "watch 7", "watch 7", "watch 7", "watch 7", "list "]).await;
    tokio::task::yield_now().await;
    assert_eq!(bed.health.outage(), None);
}

/// The server accepts a watch from a version that it has not reached again, and then sends nothing.
#[tokio::test(start_paused = true)]
async fn a_restored_etcd_is_listed_again_after_an_outage() {
    let mut bed = start(vec![
        Answer::List(&["a"], "7"),
        Answer::Watch(vec![bookmark("30")], End::Closed),
        Answer::Refuse(503),
        Answer::Watch(Vec::new(), End::Silent),
        Answer::List(&["b"], "5"),
        Answer::List(&["b"], "5"),
        Answer::Watch(vec![Ok(WatchEvent::Added(object("c", "6")))], End::Silent),
    ]);
    bed.reported(&["listed a", "failing no (503)", "listed b", "applied c"]).await;
    bed.requested(&["list ", "watch 7", "watch 30", "watch 30", "list ", "list ", "watch 5"]).await;
    assert!(bed.health.is_live("test"));
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_closed() {
    let mut bed = start(vec![
        Answer::List(&[], "7"),
        Answer::Watch(vec![bookmark("8")], End::Silent),
        Answer::Watch(Vec::new(), End::Silent),
    ]);
    let began = Instant::now();
    bed.requested(&["list ", "watch 7", "watch 8"]).await;
    assert!(began.elapsed() >= SILENCE && began.elapsed() < SILENCE * 2);
    bed.reported(&["listed ", "failing no data received for 150 s"]).await;
}

#[tokio::test(start_paused = true)]
async fn delays_grow_up_to_their_maximum() {
    let mut bed = start((0..12).map(|_| Answer::Refuse(403)).collect());
    let began = Instant::now();
    bed.requested(&["list "; 12]).await;
    let all = began.elapsed();
    assert!(all > Duration::from_secs(60) && all < Duration::from_secs(400), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn a_missing_kind_of_an_optional_watch_is_empty() {
    let mut bed = start(vec![
        Answer::Refuse(404),
        Answer::Refuse(404),
        Answer::List(&["a"], "7"),
        Answer::Watch(Vec::new(), End::Closed),
        // The kind is deleted.
        Answer::Refuse(404),
        Answer::Refuse(404),
        Answer::Refuse(404),
        Answer::Refuse(404),
    ]);
    bed.health.started_optional("test");
    let began = Instant::now();
    bed.reported(&["listed ", "listed a"]).await;
    let waited = began.elapsed();
    assert!(waited > ABSENT && waited < ABSENT * 2, "{waited:?}");
    bed.reported(&["failing no (404)", "listed "]).await;
    assert!(bed.health.is_live("test") && bed.health.outage().is_none());
}
