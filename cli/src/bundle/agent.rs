//! Data of the running agent: its answers over the socket, and its metrics.

use std::io::{self, Read as _, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use trunkline_api::control::{AgentStatus, Events, Peer, PodStatus, PoliciesView, Query, Route, Table};

use super::archive::LARGEST;
use super::step::{Collection, Sink};
use crate::{client, events, policies, show};

/// Timeout of one read; the agent answers from memory.
pub(super) const TIMEOUT: Duration = Duration::from_secs(8);
/// Time limit of a step with one answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Time limit of a step with routes: a full table takes the agent some seconds.
const ROUTES: Duration = Duration::from_secs(30);
/// Routes in one part; the part has some megabytes.
const CHUNK: usize = 10_000;
/// Maximum number of peers with a file of their own.
const DETAILED: usize = 256;

/// Collects all answers from the socket. `most`: maximum number of prefixes. Returns the agent's
/// status, if it answers.
pub(super) fn collect<W: Write>(
    collection: &mut Collection<W>,
    socket: &Path,
    most: usize,
    timeout: Duration,
) -> io::Result<Option<AgentStatus>> {
    let path = socket.to_owned();
    let status = collection.step("agent: status", ANSWER, move |sink| {
        let status: AgentStatus = client::query_within(&path, Query::Agent, timeout)?;
        sink.text("agent/status.txt", show::agent(&status))?;
        sink.json("agent/status.json", &status)?;
        Ok(status)
    })?;
    let Some(status) = status else {
        for name in [
            "agent: peers",
            "agent: events",
            "agent: pods",
            "agent: policies",
            "agent: routes",
            "agent: advertised",
        ] {
            collection.skip(name, "not requested: the agent does not answer");
        }
        return Ok(None);
    };
    let ask = |work: fn(&Path, Duration, &Sink) -> anyhow::Result<()>| {
        let socket = socket.to_owned();
        move |sink: &Sink| work(&socket, timeout, sink)
    };
    let path = socket.to_owned();
    let found = collection.step("agent: peers", ANSWER, move |sink| peers(&path, timeout, sink))?;
    collection.step("agent: events", ANSWER, ask(history))?;
    collection.step("agent: pods", ANSWER, ask(pods))?;
    if status.policies.is_some() {
        collection.step("agent: policies", ANSWER, ask(network_policies))?;
    } else {
        collection.skip("agent: policies", "there are none: this node enforces no network policies");
    }
    if status.bgp.is_none() {
        for name in ["agent: routes", "agent: advertised"] {
            collection.skip(name, "there are none: no BGP network is on this node");
        }
        return Ok(Some(status));
    }
    let path = socket.to_owned();
    collection.step("agent: routes", ROUTES, move |sink| routes(&path, most, 2 * timeout, sink))?;
    match found {
        Some(peers) => {
            let path = socket.to_owned();
            collection.step("agent: advertised", ROUTES, move |sink| {
                advertised(&path, &peers, most, timeout, sink)
            })?;
        }
        None => collection.skip("agent: advertised", "not requested: the peers are unknown"),
    }
    Ok(Some(status))
}

fn peers(socket: &Path, timeout: Duration, sink: &Sink) -> anyhow::Result<Vec<Peer>> {
    let peers: Vec<Peer> = client::query_within(socket, Query::Peers { address: None }, timeout)?;
    sink.text("agent/peers.txt", show::peers(&peers))?;
    sink.json("agent/peers.json", &peers)?;
    for peer in peers.iter().take(DETAILED) {
        sink.text(format!("agent/peers/{}.txt", peer.name()), show::peer(peer))?;
    }
    if peers.len() > DETAILED {
        let why = format!("there are {}: peers.json has all of them", peers.len());
        sink.missing(format!("a text of each peer beyond {DETAILED}"), why)?;
    }
    Ok(peers)
}

fn history(socket: &Path, timeout: Duration, sink: &Sink) -> anyhow::Result<()> {
    let all = Query::Events { after: 0, run: None, wait: false };
    let kept: Events = client::query_within(socket, all, timeout)?;
    sink.text("agent/events.txt", events::table(&kept))?;
    sink.json("agent/events.json", &kept)
}

fn pods(socket: &Path, timeout: Duration, sink: &Sink) -> anyhow::Result<()> {
    let pods: Vec<PodStatus> = client::query_within(socket, Query::Pods, timeout)?;
    sink.text("agent/pods.txt", show::pods(&pods))?;
    sink.json("agent/pods.json", &pods)
}

fn network_policies(socket: &Path, timeout: Duration, sink: &Sink) -> anyhow::Result<()> {
    let view: PoliciesView = client::query_within(socket, Query::Policies, timeout)?;
    sink.text("agent/policies.txt", policies::table(&view) + "\n" + &policies::details(&view))?;
    sink.json("agent/policies.json", &view)
}

/// Reads one prefix more than `most`, which shows whether the table has more than `most`.
fn routes(socket: &Path, most: usize, timeout: Duration, sink: &Sink) -> anyhow::Result<()> {
    let mut chunks = Chunks { name: "agent/routes".to_owned(), sink, count: 0, routes: Vec::new() };
    let (mut prefixes, mut last) = (0, None);
    let table = Table::First { prefixes: most.saturating_add(1) };
    client::query_each(socket, Query::Routes { table }, timeout, |route: Route| {
        if last != Some(route.prefix) {
            (prefixes, last) = (prefixes + 1, Some(route.prefix));
        }
        if prefixes <= most { chunks.add(route) } else { Ok(()) }
    })?;
    chunks.flush()?;
    if prefixes > most {
        let why = format!(
            "there are more than {most} (--routes): peers.txt has the number of prefixes received from each peer"
        );
        sink.missing("the other prefixes", why)?;
    }
    Ok(())
}

/// Writes the routes advertised to each peer. A table larger than `most` is omitted, because the
/// agent cannot send a part of it.
fn advertised(
    socket: &Path,
    peers: &[Peer],
    most: usize,
    timeout: Duration,
    sink: &Sink,
) -> anyhow::Result<()> {
    for peer in peers.iter().filter(|peer| peer.session.is_some()).take(DETAILED) {
        let name = peer.name();
        let advertised: usize = peer.families.iter().map(|family| family.advertised).sum();
        if advertised > most {
            sink.missing(
                format!("routes advertised to {name}"),
                format!("there are {advertised} prefixes, more than {most} (--routes)"),
            )?;
            continue;
        }
        let mut chunks =
            Chunks { name: format!("agent/advertised/{name}"), sink, count: 0, routes: Vec::new() };
        let table = Table::Advertised { peer: name.clone() };
        let outcome =
            client::query_each(socket, Query::Routes { table }, timeout, |route: Route| chunks.add(route));
        match outcome {
            Ok(()) => chunks.flush()?,
            Err(error) => sink.missing(format!("routes advertised to {name}"), format!("{error:#}"))?,
        }
    }
    Ok(())
}

/// Splits routes into parts of limited size.
struct Chunks<'a> {
    name: String,
    sink: &'a Sink,
    count: usize,
    routes: Vec<Route>,
}

impl Chunks<'_> {
    fn add(&mut self, route: Route) -> anyhow::Result<()> {
        self.routes.push(route);
        if self.routes.len() == CHUNK { self.flush() } else { Ok(()) }
    }

    /// The first part is written even if the table has no routes.
    fn flush(&mut self) -> anyhow::Result<()> {
        if self.routes.is_empty() && self.count > 0 {
            return Ok(());
        }
        self.count += 1;
        let number = if self.count == 1 { String::new() } else { format!("-{}", self.count) };
        let routes = std::mem::take(&mut self.routes);
        self.sink.text(format!("{}{number}.txt", self.name), show::routes(&routes))?;
        self.sink.json(format!("{}{number}.json", self.name), &routes)
    }
}

/// The metrics, as the agent serves them at `/metrics`.
pub(super) fn metrics<W: Write>(
    collection: &mut Collection<W>,
    served: SocketAddr,
    timeout: Duration,
) -> io::Result<()> {
    collection
        .step("agent: metrics", ANSWER, move |sink| sink.text("agent/metrics.txt", scrape(served, timeout)?))
        .map(drop)
}

fn scrape(mut served: SocketAddr, timeout: Duration) -> anyhow::Result<String> {
    match served.ip() {
        IpAddr::V4(any) if any.is_unspecified() => served.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(any) if any.is_unspecified() => served.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let within = |what: &str| format!("http://{served}/metrics: {what}");
    let mut stream = TcpStream::connect_timeout(&served, timeout).with_context(|| within("connecting"))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    // With HTTP/1.0, the answer has no chunks and ends with the connection.
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {served}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LARGEST as u64).read_to_end(&mut answer).with_context(|| within("reading"))?;
    let answer = String::from_utf8_lossy(&answer);
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { bail!(within("no HTTP answer")) };
    let first = head.lines().next().unwrap_or_default();
    ensure!(first.split(' ').nth(1) == Some("200"), within(first));
    Ok(body.to_owned())
}

/// The process ID of the agent, from the lock file of its socket.
pub(super) fn process(socket: &Path) -> Option<u32> {
    let mut lock = socket.as_os_str().to_owned();
    lock.push(".lock");
    let process = std::fs::read_to_string(PathBuf::from(lock)).ok()?.trim().parse().ok()?;
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    (name.trim() == "trunkline").then_some(process)
}
