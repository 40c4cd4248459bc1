//! Tests of the export against a server on a real socket with prepared answers.

use std::collections::BTreeMap;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::super::config::{Header, Reference};
use super::super::proto::ExportPartialSuccess;
use super::*;

const PACE: ExportTiming = ExportTiming {
    linger: Duration::from_millis(1),
    first: Duration::from_millis(5),
    longest: Duration::from_millis(50),
};
const SECRET: &str = "Bearer s3cret";

/// Batches that a test writes.
struct Queue(mpsc::UnboundedReceiver<Batch>);

impl Source for Queue {
    const SIGNAL: &'static str = "logs";
    const PATH: &'static str = "/v1/logs";

    async fn next(&mut self, _: Duration, _: &CancellationToken) -> Option<Batch> {
        self.0.recv().await
    }
}

struct Bed {
    batches: mpsc::UnboundedSender<Batch>,
    metrics: Metrics,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn start(endpoint: String) -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, SECRET).unwrap();
        let header = Header::Reference(Reference::File(file));
        let collector = Collector::new(Otlp {
            endpoint,
            headers: BTreeMap::from([("authorization".to_owned(), header)]),
            ca_file: None,
            timeout_seconds: 1,
            service_name: "trunkline".to_owned(),
        });
        let (batches, queue) = mpsc::unbounded_channel();
        let (metrics, stop) = (Metrics::new().unwrap(), CancellationToken::new());
        let task = tokio::spawn(run(Queue(queue), collector, PACE, metrics.clone(), stop.clone()));
        Bed { batches, metrics, stop, task, _folder: folder }
    }

    fn push(&self, body: &'static str, records: u64) {
        let batch = Batch { records, missed: 0, body: Bytes::from_static(body.as_bytes()) };
        self.batches.send(batch).unwrap();
    }

    /// Waits until at least this number of attempts has failed. The attempts continue.
    async fn fails(&self, times: u64) {
        let name = "trunkline_otlp_requests_total{outcome=\"unavailable\",signal=\"logs\"} ";
        for _ in 0..500 {
            let counted = self.metrics.counted();
            let count = counted.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
            if count.is_some_and(|count| count >= times) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("not {times} times:\n{}", self.metrics.counted());
    }

    /// Waits until a counter has this value.
    async fn counts(&self, name: &str, value: u64) {
        let line = format!("{name} {value}");
        for _ in 0..500 {
            if self.metrics.counted().lines().any(|found| found == line) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{line} is not in\n{}", self.metrics.counted());
    }
}

/// Reads one request with Content-Length; its head and body.
async fn request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut read = Vec::new();
    loop {
        let mut chunk = [0; 1024];
        let length = stream.read(&mut chunk).await.ok().filter(|length| *length > 0)?;
        read.extend_from_slice(&chunk[..length]);
        let text = String::from_utf8_lossy(&read).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length.is_some_and(|length| body.len() >= length.parse::<usize>().unwrap()) {
            return Some((head, body.to_owned()));
        }
    }
}

/// Answers the requests with these answers in order. Returns the received requests.
fn serve(
    listener: TcpListener,
    answers: Vec<(&'static str, Vec<u8>)>,
) -> mpsc::UnboundedReceiver<(String, String)> {
    let (request_sender, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut answers = answers.into_iter();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            while let Some(request) = request(&mut stream).await {
                request_sender.send(request).unwrap();
                let Some((status, body)) = answers.next() else { return };
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
            }
        }
    });
    requests
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    (listener, endpoint)
}

#[tokio::test]
async fn a_batch_is_sent_until_the_collector_accepts_it() {
    let (listener, endpoint) = listen().await;
    let answers = vec![
        ("503 Service Unavailable\r\nretry-after: 0", Vec::new()),
        ("429 Too Many Requests", Vec::new()),
        ("200 OK", Vec::new()),
        ("200 OK", Vec::new()),
    ];
    let mut requests = serve(listener, answers);
    let bed = Bed::start(endpoint);
    bed.push("one", 3);
    bed.push("two", 2);
    let mut bodies = Vec::new();
    for _ in 0..4 {
        let (head, body) = requests.recv().await.unwrap();
        assert!(head.starts_with("post /v1/logs http/1.1"), "{head}");
        assert!(head.contains("content-type: application/x-protobuf"), "{head}");
        assert!(head.contains("authorization: bearer s3cret"), "{head}");
        bodies.push(body);
    }
    assert_eq!(bodies, ["one", "one", "one", "two"]);
    bed.counts("trunkline_otlp_exported_total{signal=\"logs\"}", 5).await;
    bed.counts("trunkline_otlp_requests_total{outcome=\"unavailable\",signal=\"logs\"}", 2).await;
    bed.counts("trunkline_otlp_requests_total{outcome=\"ok\",signal=\"logs\"}", 2).await;
}

#[tokio::test]
async fn rejected_records_are_dropped_and_counted() {
    let (listener, endpoint) = listen().await;
    let partial = ExportServiceResponse { partial_success: Some(ExportPartialSuccess { rejected: 2 }) };
    let answers = vec![
        ("400 Bad Request", SECRET.into()),
        ("200 OK", partial.encode_to_vec()),
        // An answer without protobuf also counts.
        ("200 OK", b"\xff\xff".to_vec()),
    ];
    let mut requests = serve(listener, answers);
    let bed = Bed::start(endpoint);
    bed.push("bad", 7);
    bed.push("half", 5);
    bed.push("good", 1);
    for body in ["bad", "half", "good"] {
        assert_eq!(requests.recv().await.unwrap().1, body);
    }
    bed.counts("trunkline_otlp_exported_total{signal=\"logs\"}", 4).await;
    bed.counts("trunkline_otlp_dropped_total{reason=\"refused\",signal=\"logs\"}", 9).await;
    bed.counts("trunkline_otlp_requests_total{outcome=\"refused\",signal=\"logs\"}", 1).await;
}

#[tokio::test]
async fn a_late_collector_receives_waiting_records() {
    let (listener, endpoint) = listen().await;
    let address = listener.local_addr().unwrap();
    drop(listener);
    let bed = Bed::start(endpoint);
    bed.push("early", 1);
    bed.fails(3).await;
    let mut requests = serve(TcpListener::bind(address).await.unwrap(), vec![("200 OK", Vec::new())]);
    assert_eq!(requests.recv().await.unwrap().1, "early");
    bed.counts("trunkline_otlp_exported_total{signal=\"logs\"}", 1).await;
}

#[tokio::test]
async fn after_a_stop_there_is_only_one_more_attempt() {
    let (listener, endpoint) = listen().await;
    drop(listener);
    let bed = Bed::start(endpoint);
    bed.push("lost", 4);
    bed.fails(1).await;
    bed.stop.cancel();
    bed.counts("trunkline_otlp_dropped_total{reason=\"stop\",signal=\"logs\"}", 4).await;
    let Bed { batches, task, .. } = bed;
    drop(batches);
    timeout(Duration::from_secs(5), task).await.expect("the export has ended").unwrap();
}

#[test]
fn retry_after_of_a_collector_is_limited() {
    let answer = |status, retry_after| HttpResponse { status, retry_after, body: Bytes::new() };
    let trouble =
        evaluate_answer(&answer(StatusCode::SERVICE_UNAVAILABLE, Some(Duration::from_secs(86_400))));
    assert!(matches!(trouble, Err(ExportError::Later(_, PATIENCE))), "{trouble:?}");
    assert!(matches!(evaluate_answer(&answer(StatusCode::UNAUTHORIZED, None)), Err(ExportError::Never(_))));
    assert_eq!(evaluate_answer(&answer(StatusCode::ACCEPTED, None)), Ok(0));
}
