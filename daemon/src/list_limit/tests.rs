use std::collections::VecDeque;

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, WatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};

use super::*;

const SMALL: Bounds = Bounds { page: 8 << 10, answer: 64 << 10, event: 16 << 10 };

/// An API server in memory. Its ConfigMaps have labels of these sizes.
#[derive(Clone, Default)]
struct Server {
    sizes: Arc<Vec<usize>>,
    /// The queries of the requests.
    queries: Arc<Mutex<Vec<String>>>,
    /// The most octets that were read of an answer.
    most: Arc<Mutex<usize>>,
}

/// A body that counts the octets that were read.
struct Counted {
    frames: VecDeque<Bytes>,
    read: usize,
    most: Arc<Mutex<usize>>,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(frame) = self.frames.pop_front() else { return Poll::Ready(None) };
        self.read += frame.len();
        let mut most = self.most.lock().unwrap();
        *most = self.read.max(*most);
        drop(most);
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }
}

fn object(index: usize, size: usize) -> String {
    let (apis, kind) = ("v1", "ConfigMap");
    format!(
        r#"{{"apiVersion":"{apis}","kind":"{kind}","metadata":{{"name":"c{index}","namespace":"n","resourceVersion":"7","labels":{{"a":"{}"}}}}}}"#,
        "x".repeat(size)
    )
}

impl Server {
    fn new(sizes: &[usize]) -> Server {
        Server { sizes: Arc::new(sizes.to_vec()), ..Server::default() }
    }

    fn client(&self, bounds: Bounds) -> Client {
        Client::new(ListLimitLayer(bounds).layer(self.clone()), "n")
    }

    fn answer(&self, uri: &Uri) -> String {
        if parameter(uri, "watch").is_some() {
            let events = self.sizes.iter().enumerate();
            let event = |(index, size): (usize, &usize)| {
                format!(r#"{{"type":"ADDED","object":{}}}"#, object(index, *size)) + "\n"
            };
            return events.map(event).collect();
        }
        let number = |name| parameter(uri, name).and_then(|text| text.parse::<usize>().ok());
        let (from, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(usize::MAX));
        let end = from.saturating_add(limit).min(self.sizes.len());
        let objects: Vec<String> = (from..end).map(|index| object(index, self.sizes[index])).collect();
        let token = if end < self.sizes.len() { end.to_string() } else { String::new() };
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMapList","metadata":{{"resourceVersion":"9","continue":"{token}"}},"items":[{}]}}"#,
            objects.join(",")
        )
    }

    fn limits(&self) -> Vec<u32> {
        let queries = self.queries.lock().unwrap();
        let uris = queries.iter().map(|query| format!("/x?{query}").parse::<Uri>().unwrap());
        uris.filter_map(|uri| parameter(&uri, "limit").map(|limit| limit.parse().unwrap())).collect()
    }
}

impl Service<Request<Body>> for Server {
    type Response = Response<Counted>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Response<Counted>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.queries.lock().unwrap().push(request.uri().query().unwrap_or_default().to_owned());
        let text = self.answer(request.uri()).into_bytes();
        let frames = text.chunks(1024).map(Bytes::copy_from_slice).collect();
        std::future::ready(Ok(Response::new(Counted { frames, read: 0, most: Arc::clone(&self.most) })))
    }
}

/// The names of all objects, as the agent's watch lists them.
async fn list(client: Client, limit: u32) -> kube::Result<Vec<String>> {
    let api: Api<ConfigMap> = Api::all(client);
    let mut params = ListParams::default().limit(limit).labels("a!=b,c in (d)");
    let mut names = Vec::new();
    loop {
        let page = api.list(&params).await?;
        names.extend(page.items.iter().map(|object| object.name_any()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(names),
        }
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("c{index}")).collect()
}

#[tokio::test]
async fn large_objects_are_listed_in_small_pages_and_in_order() {
    // 40 objects of 5 KiB among 600 small ones; a page of 500 would have over 200 KiB.
    let sizes: Vec<usize> = (0..640).map(|index| if index % 16 == 3 { 5 << 10 } else { 10 }).collect();
    let server = Server::new(&sizes);
    assert_eq!(list(server.client(SMALL), 500).await.unwrap(), names(640));
    // A frame has 1 KiB: the frame above the bound is read and not kept.
    let most = *server.most.lock().unwrap();
    assert!(most <= SMALL.page + 1024, "{most} octets were read of an answer");
    let queries = server.queries.lock().unwrap().clone();
    assert!(queries[0].contains("limit=500") && queries[1].contains("limit=125"), "{queries:?}");
    assert!(queries.iter().all(|query| query.contains("labelSelector=a")), "{queries:?}");
    assert!(queries.len() < 200, "{} requests", queries.len());
}

#[tokio::test]
async fn limit_is_remembered_for_the_next_pages_and_grows() {
    let mut sizes = vec![5 << 10; 4];
    sizes.resize(400, 10);
    let server = Server::new(&sizes);
    assert_eq!(list(server.client(SMALL), 100).await.unwrap(), names(400));
    let limits = server.limits();
    assert_eq!(limits[..4], [100, 25, 6, 1], "down to one object");
    assert_eq!(limits[4..7], [1, 1, 1], "the next pages begin with the remembered limit");
    assert!(limits[7..].windows(2).all(|pair| pair[1] >= pair[0] || pair[1] * 4 >= pair[0]), "{limits:?}");
    assert!(limits.contains(&8), "small pages double the limit: {limits:?}");
}

#[tokio::test]
async fn normal_pages_keep_their_limit() {
    let server = Server::new(&[10; 40]);
    assert_eq!(list(server.client(SMALL), 25).await.unwrap(), names(40));
    assert_eq!(server.limits(), [25, 25]);
}

#[tokio::test]
async fn a_request_for_one_object_forgets_no_limit() {
    let server = Server::new(&[5 << 10; 8]);
    let client = server.client(SMALL);
    list(client.clone(), 8).await.unwrap();
    let before = server.limits().len();
    let api: Api<ConfigMap> = Api::all(client.clone());
    api.list(&ListParams::default().limit(1)).await.unwrap();
    list(client, 8).await.unwrap();
    assert_eq!(server.limits()[before..before + 2], [1, 1]);
}

#[tokio::test]
async fn kubes_watcher_lists_the_same_objects_in_order() {
    let sizes: Vec<usize> = (0..50).map(|index| if index < 20 { 5 << 10 } else { 10 }).collect();
    let server = Server::new(&sizes);
    let api: Api<ConfigMap> = Api::all(server.client(SMALL));
    let events = watcher(api, watcher::Config::default()).take_while(|event| {
        let is_done = matches!(event, Ok(Event::InitDone));
        async move { !is_done }
    });
    let names_of = events.try_filter_map(|event| async move {
        Ok(match event {
            Event::InitApply(object) => Some(object.name_any()),
            _ => None,
        })
    });
    let seen: Vec<String> = names_of.try_collect().await.unwrap();
    assert_eq!(seen, names(50));
    assert!(*server.most.lock().unwrap() <= SMALL.page + 1024);
}

#[tokio::test]
async fn answers_above_the_hard_bound_are_errors_with_path_and_size() {
    let server = Server::new(&[100 << 10]);
    let client = server.client(SMALL);
    let api: Api<ConfigMap> = Api::all(client.clone());
    for params in [ListParams::default(), ListParams::default().limit(1), ListParams::default().limit(500)] {
        let error = api.list(&params).await.unwrap_err();
        let text = format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(text.contains("GET /api/v1/configmaps") && text.contains("65536 octets"), "{text}");
    }
    assert!(*server.most.lock().unwrap() <= SMALL.answer + 1024);
}

#[tokio::test]
async fn an_event_above_its_bound_ends_the_watch() {
    let events = async |sizes: &[usize]| {
        let api: Api<ConfigMap> = Api::all(Server::new(sizes).client(SMALL));
        let events = api.watch(&WatchParams::default(), "1").await.unwrap();
        let ends: Vec<bool> = events.map(|event| event.is_ok()).collect().await;
        ends
    };
    assert_eq!(events(&[10, 12 << 10, 12 << 10, 10]).await, [true; 4]);
    assert_eq!(events(&[10, 40 << 10, 10]).await.first(), Some(&true));
    assert!(events(&[10, 40 << 10, 10]).await.contains(&false));
}

#[tokio::test]
async fn a_caller_that_reads_in_pieces_gets_an_answer_of_any_size() {
    let server = Server::new(&[1 << 10; 100]);
    let ask = |in_pieces: bool| {
        let mut request = Request::get("/api/v1/configmaps").body(Vec::new()).unwrap();
        if in_pieces {
            request.extensions_mut().insert(InPieces);
        }
        let client = server.client(SMALL);
        async move { client.request_text(request).await }
    };
    assert!(ask(false).await.is_err());
    assert_eq!(ask(true).await.unwrap().matches("ConfigMap\"").count(), 100);
}
