//! The page of a running agent: allowed clients, security headers, live updates, and limits.
#![allow(clippy::disallowed_methods, reason = "tests wait")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod host;
#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use host::{Host, OPTIONAL};
use namespace::{eventually, ip, isolated, namespace};

/// Status, headers in lower case, body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

fn connect(to: &str) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn ask_at(to: &str, method: &str, path: &str, headers: &str) -> Answer {
    let mut stream = connect(to);
    write!(stream, "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

const HERE: &str = "127.0.0.1:9473";

fn get(path: &str) -> Answer {
    ask_at(HERE, "GET", path, "Host: localhost:9473\r\n")
}

/// A stream of documents.
struct Stream(BufReader<TcpStream>);

impl Stream {
    fn open() -> (u16, Stream) {
        let mut stream = connect(HERE);
        write!(stream, "GET /page/live HTTP/1.1\r\nHost: 127.0.0.1:9473\r\n\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        (line.split(' ').nth(1).unwrap().parse().unwrap(), Stream(reader))
    }

    /// The next document that fulfils the condition.
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..2000 {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap_or_else(|error| panic!("{what}: {error}; last was {last}"));
            if let Some(text) = line.trim_end().strip_prefix("data: {") {
                last = serde_json::from_str(&format!("{{{text}")).unwrap();
                if wanted(&last) {
                    return last;
                }
            }
        }
        panic!("{what}: {last}")
    }
}

#[test]
fn page_is_local_and_has_security_headers() {
    isolated("page_is_local_and_has_security_headers", |_| {
        ip("addr add 192.0.2.1/32 dev lo");
        let mut host = Host::new(OPTIONAL);
        let config = fs::read_to_string(host.path("agent.yaml")).unwrap();
        fs::write(host.path("agent.yaml"), format!("{config}httpAddress: 0.0.0.0:9473\n")).unwrap();
        host.start();

        let page = get("/");
        assert_eq!(page.status, 200);
        assert!(page.body.starts_with("<!doctype html>"));
        let policy = page.head.lines().find(|line| line.starts_with("content-security-policy: ")).unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        for header in
            ["cache-control: no-cache", "x-content-type-options: nosniff", "referrer-policy: no-referrer"]
        {
            assert!(page.head.contains(header), "{header}: {}", page.head);
        }
        let tag = page.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
        let again = ask_at(HERE, "GET", "/", &format!("Host: localhost\r\nIf-None-Match: {tag}\r\n"));
        assert_eq!((again.status, again.body.as_str()), (304, ""));
        let other = ask_at(HERE, "GET", "/", "Host: localhost\r\nIf-None-Match: \"1\"\r\n");
        assert_eq!(other.status, 200);
        for path in ["/page/app.js", "/page/page.css", "/page/mark.svg"] {
            assert!(page.body.contains(path) && get(path).status == 200, "{path}");
        }
        let imports = get("/page/app.js").body;
        let imports: Vec<&str> =
            imports.lines().filter_map(|line| line.split_once(" from \"./")).map(|it| it.1).collect();
        assert!(imports.iter().any(|file| file.starts_with("services.js")), "{imports:?}");
        for file in imports {
            let path = format!("/page/{}", file.trim_end_matches("\";"));
            assert_eq!(get(&path).status, 200, "{path}");
        }
        assert_eq!(get("/page/nothing").status, 404);
        assert_eq!(ask_at(HERE, "POST", "/", "Host: localhost\r\nContent-Length: 0\r\n").status, 405);

        // Requests to another address, with a host name, or from a foreign page get no page, but
        // they get metrics.
        let local = "Host: 192.0.2.1:9473\r\n";
        for (to, path, headers, status) in [
            ("192.0.2.1:9473", "/", local, 403),
            ("192.0.2.1:9473", "/page/pods", local, 403),
            ("192.0.2.1:9473", "/metrics", local, 200),
            (HERE, "/", "Host: rebound.example:9473\r\n", 403),
            (HERE, "/page/pods", "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 403),
            (HERE, "/page/pods", "Host: localhost\r\nSec-Fetch-Site: same-origin\r\n", 200),
            (HERE, "/", "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 200),
            (HERE, "/", "Host: [::1]:9473\r\n", 200),
        ] {
            let answer = ask_at(to, "GET", path, headers);
            assert_eq!(answer.status, status, "{to} {path} {headers}: {}", answer.body);
        }

        for (setting, here, there) in [("everywhere", 200, 200), ("nowhere", 404, 404)] {
            host.kill();
            fs::write(
                host.path("agent.yaml"),
                format!("{config}httpAddress: 0.0.0.0:9473\npage: {setting}\n"),
            )
            .unwrap();
            host.start();
            assert_eq!(get("/").status, here, "{setting}");
            assert_eq!(
                ask_at("192.0.2.1:9473", "GET", "/", "Host: node.example\r\n").status,
                there,
                "{setting}"
            );
        }
    });
}

#[test]
fn queries_are_answered_and_bad_ones_get_advice() {
    isolated("queries_are_answered_and_bad_ones_get_advice", |_| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let netns = namespace();
        host.add("c1", &netns).unwrap();
        let pods = get("/page/pods").json();
        assert_eq!((&pods["count"], &pods["pods"][0]["containerId"]), (&Value::from(1), &Value::from("c1")));
        let address = pods["pods"][0]["addresses"][0].as_str().unwrap().to_owned();

        // Without an API server there are no Services.
        let services = get("/page/services").json();
        assert_eq!((&services["available"], &services["count"]), (&Value::from(false), &Value::from(0)));

        let found = get(&format!("/page/routes?q={address}&fate=used&from=own")).json();
        assert_eq!((&found["matched"], &found["complete"]), (&Value::from(2), &Value::from(true)), "{found}");
        assert_eq!(found["routes"][0]["prefix"], format!("{address}/32"), "the longest first");
        assert_eq!(found["routes"][1]["prefix"], "10.14.0.0/24");
        assert_eq!(get("/page/routes?q=AS65009").json()["matched"], 0);
        let why = get(&format!("/page/explain?prefix={address}%2F32")).json();
        assert_eq!(why["paths"][0]["standing"], "best", "{why}");
        assert_eq!(why["peers"][0]["standing"], "withheld");
        let peer = get("/page/peer?name=10.255.0.1").json();
        assert_eq!((&peer[0]["remoteAs"], &peer[0]["optional"]), (&Value::from(65000), &Value::from(true)));

        for (path, says) in [
            ("/page/routes?q=tor1", "write an address"),
            ("/page/routes?q=%3Cscript%3Ealert(1)%3C/script%3E", "write an address"),
            ("/page/routes?fate=best", "used, unused, refused or stale"),
            ("/page/explain?prefix=10.1.2.3", "write a prefix"),
            ("/page/explain?prefix=%zz", "write a prefix"),
            ("/page/peer?name=192.0.2.9", "trunkline peers"),
        ] {
            let answer = get(path);
            assert_eq!(answer.status, 400, "{path}");
            assert!(answer.head.contains("content-type: application/json"), "{path}: {}", answer.head);
            assert!(answer.json()["error"].as_str().unwrap().contains(says), "{path}: {}", answer.body);
        }
        host.del("c1").unwrap();
        assert_eq!(get("/page/pods").json()["count"], 0, "the list is built again after a change");
    });
}

#[test]
fn streams_send_changes_and_are_limited_in_number() {
    isolated("streams_send_changes_and_are_limited_in_number", |_| {
        let mut host = Host::new(OPTIONAL);
        host.start();
        let (status, mut stream) = Stream::open();
        assert_eq!(status, 200);
        let first =
            stream.until("the peer is shown", |document| document["peers"][0]["name"] == "10.255.0.1");
        assert_eq!(first["peers"][0]["since"], Value::Null, "the peer was never established: {first}");
        assert_eq!(first["peers"][0]["trend"]["state"].as_str().unwrap().len(), 60);
        assert!(first["peers"][0]["trend"]["state"].as_str().unwrap().ends_with('d'));
        assert_eq!(first["agent"]["attachments"], 0);

        let netns = namespace();
        host.add("c1", &netns).unwrap();
        let known = stream.until("the pod and the events are counted", |document| {
            document["agent"]["attachments"] == 1 && document["newestEvent"].as_u64() > Some(0)
        });
        let events = get("/page/events?after=0").json();
        assert_eq!((&events["run"], &events["missed"]), (&known["run"], &Value::from(0)));
        let newest = events["events"].as_array().unwrap().last().unwrap()["number"].clone();
        assert!(newest.as_u64() >= known["newestEvent"].as_u64(), "{events}");
        assert_eq!(
            get(&format!("/page/events?after={newest}")).json()["events"],
            Value::from(Vec::<Value>::new())
        );
        host.manifest("", "10.14.0.0/24");
        stream.until("readiness now needs the peer", |document| document["peers"][0]["optional"] == false);
        fs::write(host.path("manifests/bad.yaml"), "kind: [").unwrap();
        stream.until("the manifests are refused", |document| {
            document["agent"]["manifests"]["refused"].as_array().is_some_and(|refused| !refused.is_empty())
        });

        let mut open = vec![stream];
        while open.len() < 64 {
            let (status, mut stream) = Stream::open();
            assert_eq!(status, 200, "stream {}", open.len());
            stream.until("each stream receives a document", |document| document["agent"]["attachments"] == 1);
            open.push(stream);
        }
        let full = get("/page/live");
        assert_eq!(full.status, 503);
        assert!(full.head.contains("retry-after: 10"), "{}", full.head);
        assert_eq!(ask_at(HERE, "HEAD", "/page/live", "Host: localhost\r\n").status, 503);
        assert_eq!(get("/page/pods").status, 200, "clients without a stream still get answers");
        assert_eq!(get("/healthz").status, 200);
        drop(open);
        eventually("one more stream is possible again", || {
            ask_at(HERE, "HEAD", "/page/live", "Host: localhost\r\n").status == 200
        });
    });
}
