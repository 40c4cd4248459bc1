//! The page of an agent between two routers, in a real browser: its contents, its live changes,
//! hostile texts of a peer, and the cost of a thousand clients. The pictures are kept in
//! `target/lab/page`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use super::bed::{Bed, Manifest, PATIENCE, lab};
use super::{Context, Test, Verdict, passed};
use crate::bench::memory::megabytes;
use crate::browser::{Browser, DESK, PACKAGES, Screen};
use crate::daemons::vtysh;
use crate::host::Host;
use crate::shell::{Seen, wait_for};
use crate::{client, packages};

pub(super) const TESTS: &[Test] = &[
    Test {
        name: "page/browser",
        about: "a browser shows peers, routes, pods and anycast addresses, and live changes",
        run: browser,
    },
    Test {
        name: "page/clients",
        about: "with a thousand clients at once, memory is bounded and no session is lost",
        run: clients,
    },
];

const PAGE: &str = "http://127.0.0.1:9473";
const FRR: &str = "10.1.0.1";
const BIRD: &str = "10.2.0.1";

/// A text from the peer's operator; a page that interpreted it as HTML would execute it.
const HOSTILE: &str = "<img src=x onerror=window.hit=1><script>hit=1</script>";

fn pictures(context: &Context) -> Result<PathBuf> {
    let folder = context.place.state.join("page");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// FRR advertises some networks in addition to its default route.
fn networks(bed: &Bed<'_>) -> Result<()> {
    let mut commands = vec!["configure terminal".to_owned(), "router bgp 65001".to_owned()];
    commands.push("no bgp network import-check".to_owned());
    commands.push("address-family ipv4 unicast".to_owned());
    commands.extend((0..40).map(|number| format!("network 10.50.{number}.0/24")));
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    vtysh(bed.host("frr")?, &commands).map(drop)
}

fn browser(context: &Context) -> Result<Verdict> {
    packages::need(PACKAGES)?;
    let folder = pictures(context)?;
    lab(context, "attach", |bed| {
        bed.established()?;
        networks(bed)?;
        let _pods = [
            bed.attached("cart", "rack1")?,
            bed.attached("ledger", "rack1")?,
            bed.attached("mail", "rack1")?,
        ];
        let mut page = Browser::start(bed.node()?, &bed.node()?.folder.join("browser"))?;
        page.screen(DESK)?;
        page.open(&format!("{PAGE}/"))?;
        page.wait_text(".verdict", &["All 2 peers are established", "Pods can be attached"])?;
        page.wait_text("main", &[FRR, BIRD, "rack1-v4", "session up"])?;
        page.wait_text("#link", &["live"])?;
        page.look("window.notReloaded = true")?;
        page.picture(&folder.join("overview.png"))?;

        // The test types like a person: first the key for the search, then the words.
        page.look("dispatchEvent(new KeyboardEvent('keydown', { key: '/', bubbles: true })); location.hash = '#/routes'")?;
        page.wait_text(".summary", &["prefixes"])?;
        page.look("document.querySelector('input[type=search]').focus()")?;
        page.write("10.50.7.9")?;
        page.wait_text(".results", &["10.50.7.0/24", "in use"])?;
        page.look("[...document.querySelectorAll('.results a')].find((link) => link.textContent === '10.50.7.0/24').click()")?;
        page.wait_text(".explanation", &["Next hops of pods' packets:", FRR, "best", BIRD])?;
        page.look("document.querySelector('input[type=search]').select()")?;
        page.write("10.50")?;
        // The search finds the forty networks, and the default route that covers them.
        page.wait_text(".summary", &["41 prefixes"])?;
        page.look("[...document.querySelectorAll('.results a')].find((link) => link.textContent === '10.50.12.0/24').click()")?;
        page.wait_text(".explanation", &["Next hops of pods' packets:"])?;
        page.picture(&folder.join("search.png"))?;
        page.look("document.querySelector('input[type=search]').select()")?;
        page.write("tor1")?;
        page.wait_text(".results", &["write an address"])?;

        page.look("location.hash = '#/pods'")?;
        page.wait_text("main", &["3 pods", "attached", "10.201.0."])?;
        page.picture(&folder.join("pods.png"))?;

        // Anycast addresses without Services. The program of a check is a text of the cluster.
        page.look("location.hash = '#/services'")?;
        page.wait_text("main", &["This node advertises none"])?;
        let manifest = bed.fabric.file("attach/node1/manifests/anycast.yaml");
        Manifest::at(manifest.clone()).write(&anycast())?;
        let texts =
            ["Anycast addresses", "192.0.2.53", "advertised", "192.0.2.54", "withheld", "fails", HOSTILE];
        page.wait_text("main", &texts)?;
        page.picture(&folder.join("anycast.png"))?;
        ensure_text_only(&mut page)?;
        std::fs::remove_file(&manifest)?;

        // The other side ends the session, with a message.
        page.look("location.hash = '#/'")?;
        page.wait_text(".verdict", &["All 2 peers"])?;
        let shutdown = format!("neighbor 10.1.0.11 shutdown message {HOSTILE}");
        vtysh(bed.host("frr")?, &["configure terminal", "router bgp 65001", &shutdown])?;
        page.wait_text(".verdict", &[FRR, "is down", "<img src=x onerror=window.hit=1>"])?;
        page.wait_text("#peers-badge", &["1"])?;
        page.picture(&folder.join("down.png"))?;
        page.screen(Screen { dark: true, ..DESK })?;
        page.picture(&folder.join("dark.png"))?;
        let phone = Screen { width: 390, height: 844, dark: false, phone: true };
        page.screen(phone)?;
        page.picture(&folder.join("phone.png"))?;
        for view in [
            "#/",
            "#/peers",
            "#/routes?q=10.50",
            "#/pods",
            "#/services",
            "#/events",
            &format!("#/peers?name={FRR}"),
        ] {
            page.look(&format!("location.hash = {}", serde_json::json!(view)))?;
            wait_for("the phone's view", PATIENCE, || {
                let there = page.look("document.querySelector('main').innerText.length > 20")?;
                Ok(Seen::when(there == true, || "empty".to_owned()))
            })?;
            let wide = page.look("document.documentElement.scrollWidth - innerWidth")?;
            ensure!(
                wide.as_f64().is_some_and(|wide| wide <= 0.0),
                "{view} is {wide} pixels too wide for a phone"
            );
        }
        page.screen(DESK)?;
        page.wait_text("main", &[FRR, "Last hour", "Administrative", "<script>hit=1</script>"])?;
        page.picture(&folder.join("peer.png"))?;
        page.look("location.hash = '#/events'")?;
        page.wait_text("main", &["session down", "<script>hit=1</script>"])?;
        page.picture(&folder.join("events.png"))?;
        ensure_text_only(&mut page)?;

        // The agent stops and returns: the page continues without a reload.
        page.look("location.hash = '#/'")?;
        client::end_agent(bed.node()?, Signal::TERM)?;
        page.wait_text("#lost", &["No connection to the agent since"])?;
        page.picture(&folder.join("lost.png"))?;
        client::start_agent(bed.node()?)?;
        page.wait_text("#link", &["live"])?;
        page.wait_text(".verdict", &[FRR, "is down"])?;
        let undisturbed = ["neighbor 10.1.0.11 shutdown"].map(|line| format!("no {line}"));
        vtysh(bed.host("frr")?, &["configure terminal", "router bgp 65001", &undisturbed[0]])?;
        page.wait_text(".verdict", &["All 2 peers are established"])?;
        ensure!(page.look("window.notReloaded")? == true, "the page was loaded again");
        ensure!(page.faults().is_empty(), "the browser reports {:?}", page.faults());
        passed(format!("pictures in {}", folder.display()))
    })
}

/// Two AnycastAddresses: one without a check, and one whose check cannot start.
fn anycast() -> String {
    format!(
        "apiVersion: trunkline.io/v1alpha1\nkind: AnycastAddress\nmetadata: {{name: dns}}\n\
         spec: {{addresses: [192.0.2.53]}}\n---\n\
         apiVersion: trunkline.io/v1alpha1\nkind: AnycastAddress\nmetadata: {{name: broken}}\n\
         spec: {{addresses: [192.0.2.54], check: {{intervalMilliseconds: 100, fall: 1, command: ['/{HOSTILE}']}}}}\n"
    )
}

/// Checks that no text became an element of the page, and that no script of a text has run.
fn ensure_text_only(page: &mut Browser) -> Result<()> {
    let hit = page.look("typeof window.hit + document.querySelectorAll('main img, main script').length")?;
    ensure!(hit == "undefined0", "a text became part of the page: {hit}");
    Ok(())
}

/// The view of service addresses on a node, in a browser.
pub(super) struct ServicesView {
    page: Browser,
    folder: PathBuf,
}

impl ServicesView {
    pub(super) fn open(context: &Context, node: &Host) -> Result<ServicesView> {
        let folder = pictures(context)?;
        let mut page = Browser::start(node, &node.folder.join("browser"))?;
        page.screen(DESK)?;
        page.open(&format!("{PAGE}/#/services"))?;
        Ok(ServicesView { page, folder })
    }

    /// Waits until the view shows these texts, without a reload.
    pub(super) fn wait(&mut self, texts: &[&str]) -> Result<()> {
        self.page.wait_text("main", texts).map(drop)
    }

    /// Keeps a picture, on a desk and on a phone, and checks the faults of the browser.
    pub(super) fn end(mut self) -> Result<()> {
        self.page.picture(&self.folder.join("services.png"))?;
        self.page.screen(Screen { width: 390, height: 844, dark: false, phone: true })?;
        self.page.picture(&self.folder.join("services-phone.png"))?;
        let wide = self.page.look("document.documentElement.scrollWidth - innerWidth")?;
        ensure!(wide.as_f64().is_some_and(|wide| wide <= 0.0), "{wide} pixels too wide for a phone");
        ensure!(self.page.faults().is_empty(), "the browser reports {:?}", self.page.faults());
        Ok(())
    }
}

/// The result of a client.
#[derive(Default)]
struct Tally {
    streams: usize,
    answers: usize,
    turned_away: usize,
    /// Streams that the agent served and closed.
    evicted: usize,
    silent: usize,
}

fn clients(context: &Context) -> Result<Verdict> {
    const CLIENTS: usize = 1000;
    lab(context, "attach", |bed| {
        bed.established()?;
        networks(bed)?;
        let agent = client::agent(bed.node()?)?;
        // Each client needs a descriptor, so the limit of this process is raised.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
        let before = megabytes(agent, "status", "VmRSS")?;
        let (watched, refused) = bed.node()?.within(streams)?;
        let (tally, healthy) = bed.node()?.within(|| {
            let paths = [
                "/page/live",
                "/page/routes?q=10.50",
                "/page/pods",
                "/",
                "/page/explain?prefix=10.50.7.0%2F24",
            ];
            let mut open = Vec::new();
            for number in 0..CLIENTS {
                let mut stream = crate::tests::hostile::connect("127.0.0.1:9473".parse()?)?;
                stream.set_read_timeout(Some(Duration::from_millis(20)))?;
                let path = paths[number % paths.len()];
                // If the agent has closed this connection in favour of another one, the write may
                // fail.
                let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                open.push((path, stream));
            }
            // All clients are connected. The agent still answers a probe from another source.
            let healthy = probe().context("the probe among the clients")?;
            let mut tally = Tally::default();
            let mut served = Vec::new();
            for (path, stream) in &mut open {
                let mut head = [0; 12];
                match stream.read_exact(&mut head) {
                    Ok(()) if &head[9..] == b"200" && *path == "/page/live" => served.push(stream),
                    Ok(()) if &head[9..] == b"200" => tally.answers += 1,
                    Ok(()) if &head[9..] == b"503" => tally.turned_away += 1,
                    Ok(()) => anyhow::bail!("{path}: {}", String::from_utf8_lossy(&head)),
                    Err(_) => tally.silent += 1,
                }
            }
            // The agent may close a served stream in favour of a newer connection, which can then
            // become a stream. The limit is for streams that are open at the same time.
            for stream in served {
                if is_open(stream)? {
                    tally.streams += 1;
                } else {
                    tally.evicted += 1;
                }
            }
            drop(open);
            Ok((tally, healthy))
        })?;
        let peak = megabytes(agent, "status", "VmHWM")?;
        let Tally { streams, answers, turned_away, evicted, silent } = tally;
        ensure!((1..=STREAMS).contains(&streams), "{streams} streams");
        // The order of arrival decides which of the two limits applies to a client.
        ensure!(turned_away + silent > 0, "every client was served");
        let grown = peak - before;
        ensure!(grown < 64.0, "{CLIENTS} clients cost {grown:.1} MB");
        for peer in client::peers(bed.node()?)? {
            ensure!(
                peer.is_established() && peer.flaps == 0,
                "{} {} {}",
                peer.address,
                peer.state,
                peer.flaps
            );
        }
        let (_, pod) = bed.attached("after", "rack1")?;
        ensure!(!pod.addresses.is_empty());
        passed(format!(
            "of {WATCHERS} streams {watched} served and {refused} turned away; among {CLIENTS} clients {streams} streams, {answers} answers, {turned_away} turned away, {evicted} streams closed, {silent} evicted or waiting; {before:.1} MB before, {peak:.1} MB at most; a probe among them took {} ms; no session lost",
            healthy.as_millis()
        ))
    })
}

/// Whether the agent has not closed this stream. Reads everything that has arrived.
fn is_open(stream: &mut TcpStream) -> Result<bool> {
    stream.set_nonblocking(true)?;
    let mut octets = [0; 16 << 10];
    loop {
        match stream.read(&mut octets) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error).context("cannot read a stream"),
        }
    }
}

/// Streams that are opened at once: below the limit of connections of one source.
const WATCHERS: usize = 80;
/// The agent's limit of streams.
const STREAMS: usize = 64;

/// Opens more streams than the agent serves. Returns the numbers of served and of refused streams;
/// every stream is answered.
fn streams() -> Result<(usize, usize)> {
    let open = || -> Result<TcpStream> {
        let mut stream = crate::tests::hostile::connect("127.0.0.1:9473".parse()?)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET /page/live HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        Ok(stream)
    };
    let status = |stream: &mut TcpStream| -> Result<String> {
        let mut head = [0; 12];
        stream.read_exact(&mut head).context("a stream without an answer")?;
        Ok(String::from_utf8_lossy(&head[9..]).into_owned())
    };
    let mut watchers = (0..WATCHERS).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let answers = watchers.iter_mut().map(status).collect::<Result<Vec<_>>>()?;
    let count = |code: &str| answers.iter().filter(|answer| *answer == code).count();
    let (served, refused) = (count("200"), count("503"));
    ensure!(
        served <= STREAMS && refused >= WATCHERS - STREAMS && served + refused == WATCHERS,
        "of {WATCHERS} streams {served} were served and {refused} turned away with 503: {answers:?}"
    );
    drop(watchers);
    // After streams are closed, the agent serves new streams.
    wait_for("a place for a stream", PATIENCE, || {
        let answer = status(&mut open()?)?;
        Ok(Seen::when(answer == "200", || answer))
    })?;
    Ok((served, refused))
}

/// Requests `/healthz` until it is answered, as a kubelet does. Returns the time until the answer.
fn probe() -> Result<Duration> {
    let began = Instant::now();
    wait_for("/healthz to answer", PATIENCE, || {
        let mut stream = TcpStream::connect("127.0.0.1:9473")?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(Seen::when(answer.starts_with("HTTP/1.1 200"), || answer))
    })?;
    Ok(began.elapsed())
}
