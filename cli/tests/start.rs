//! Faults at the agent's start, with traffic. A pod and its router ping each other all the time.
//! The agent is killed and started again with the fault, and no packet is lost. `docs/faults.md`
//! lists the faults.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod fabric;
mod host;
#[path = "../../datapath/tests/namespace/mod.rs"]
mod namespace;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use trunkline_agent::change_notifier::ChangeNotifier;
use trunkline_agent::config::Config;
use trunkline_agent::history::History;
use trunkline_agent::ipam::{Ipam, Started};
use trunkline_agent::metrics::Metrics;
use trunkline_agent::reconcile::{self, DrainStage, Reconcile, ReconcileDependencies, ReconcileStatus};
use trunkline_agent::recover::recover;
use trunkline_agent::services::ServicePrefixes;
use trunkline_agent::settings::Settings;
use trunkline_agent::source::folder;
use trunkline_api::control::{BfdState, EventKind, Events, Peer, Query};
use trunkline_bgp::config::SpeakerConfig;
use trunkline_bgp::net::ShellConfig;
use trunkline_bgp::rib::Origination;
use trunkline_bgp::speaker::Stop;
use trunkline_bgp::types::{Asn, PeerKey};
use trunkline_datapath::family::IpFamily;
use trunkline_datapath::kernel::{KernelConfig, KernelHandle};

use fabric::{Router, Speakers, routers, speakers};
use host::{Host, address, manifests};
use namespace::{inside, ip, isolated, namespace};

const PEER: &str = "{asn: 65000, address: 10.255.0.1, connectRetrySeconds: 1}";
const SUBNET: &str = "10.14.0.0/24";
const ROUTER: &str = "10.255.0.1";

/// A host with a pod; router and pod ping each other.
struct Running {
    host: Host,
    _netns: [OwnedFd; 2],
    pings: Vec<Ping>,
    _speakers: Speakers,
}

/// `ping` until this value is dropped.
struct Ping {
    process: Child,
    what: &'static str,
}

impl Ping {
    fn start(netns: &OwnedFd, what: &'static str, to: &str) -> Ping {
        let process = inside(netns, || {
            let mut ping = Process::new("ping");
            ping.args(["-i", "0.01", "-q", to]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
        });
        Ping { process, what }
    }

    /// Ends `ping`; every request was answered.
    fn lost_nothing(self) {
        let pid = self.process.id().to_string();
        assert!(Process::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let said = String::from_utf8(self.process.wait_with_output().unwrap().stdout).unwrap();
        let line = said.lines().find(|line| line.contains("packets transmitted")).unwrap();
        let number = |word: &str| -> u32 {
            let before = line.split(word).next().unwrap().trim_end();
            before.rsplit([' ', ',']).next().unwrap().parse().unwrap()
        };
        let (sent, received) = (number("packets transmitted"), number("received"));
        // The last request may be on its way.
        assert!(sent > 20 && received + 1 >= sent, "{}: {line}", self.what);
    }
}

impl Running {
    /// A killed agent, before its start with a fault.
    fn killed(prefixes: u8) -> Running {
        let routers = routers(1);
        let speakers = speakers(&routers, &[Router { number: 1, asn: 65000, prefixes, ..Router::default() }]);
        let mut host = Host::new("");
        host.manifests(&manifests(PEER, SUBNET));
        host.start();
        established(&host);
        let pod = namespace();
        let attachment = host.add("c1", &pod).unwrap();
        within("the default route", || default_route().is_some());
        let pings = vec![
            Ping::start(&routers, "router to pod", &address(&attachment)),
            Ping::start(&pod, "pod to router", ROUTER),
        ];
        std::thread::sleep(Duration::from_millis(200));
        host.kill();
        Running { host, _netns: [routers, pod], pings, _speakers: speakers }
    }

    fn lost_nothing(&mut self) {
        std::thread::sleep(Duration::from_millis(300));
        self.pings.drain(..).for_each(Ping::lost_nothing);
    }

    fn says(&self, command: &str, words: &str) {
        within(words, || self.host.prints(command).contains(words));
    }
}

fn default_route() -> Option<String> {
    let routes = ip("route show table all");
    routes.lines().find(|line| line.starts_with("default") && line.contains("table 10000")).map(str::to_owned)
}

fn established(host: &Host) {
    within("established", || {
        let peers = host.ask::<Vec<Peer>>(Query::Peers { address: None });
        peers.is_ok_and(|peers| !peers.is_empty() && peers.iter().all(|peer| peer.is_established()))
    });
}

fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn taken_bgp_port_loses_no_packet_and_is_bound_later() {
    isolated("taken_bgp_port_loses_no_packet_and_is_bound_later", |_| {
        let mut running = Running::killed(0);
        // The socket is not `v6only`, so it uses the port in both families.
        let taken = TcpListener::bind("[::]:179").unwrap();
        running.host.start();
        let host = &running.host;
        established(host);
        let bgp = host.status().bgp.unwrap();
        assert!(bgp.fault.is_none() && bgp.established == 1, "{bgp:?}");
        assert!(bgp.listening.iter().all(|listener| listener.fault.is_some()), "{bgp:?}");
        let owner = format!("(process {})", std::process::id());
        for words in
            ["listening   0.0.0.0:179 NOT ACCEPTING connections for ", "Address already in use", &owner]
        {
            running.says("status", words);
        }
        assert!(!host.prints("status").contains("no BGP network"), "{}", host.prints("status"));
        within("converged", || !host.status().bgp.unwrap().converged.is_empty());
        assert!(default_route().is_some());

        drop(taken);
        within("bound", || {
            host.status().bgp.unwrap().listening.iter().all(|listener| listener.fault.is_none())
        });
        assert!(!host.prints("status").contains("NOT ACCEPTING"));
        let events: Events = host.ask(Query::Events { after: 0, run: None, wait: false }).unwrap();
        let count = |kind| events.events.iter().filter(|event| event.kind == kind).count();
        assert_eq!(
            (count(EventKind::ListenFailed), count(EventKind::Listening)),
            (2, 2),
            "one for each address"
        );
        let peers: Vec<Peer> = host.ask(Query::Peers { address: None }).unwrap();
        assert_eq!(peers[0].flaps, 0);
        running.lost_nothing();
    });
}

#[test]
fn rejected_manifests_at_the_start_lose_no_packet() {
    isolated("rejected_manifests_at_the_start_lose_no_packet", |_| {
        let mut running = Running::killed(0);
        running.host.manifests(&manifests(PEER, "10.14.0.0/33"));
        running.host.launch();
        within("it answers", || running.host.ask::<Vec<Peer>>(Query::Peers { address: None }).is_ok());
        running.says("status", "REFUSED, nothing was applied yet");
        assert!(default_route().is_some());
        running.host.manifests(&manifests(PEER, SUBNET));
        established(&running.host);
        running.lost_nothing();
    });
}

#[test]
fn unreadable_store_loses_no_packet() {
    isolated("unreadable_store_loses_no_packet", |_| {
        let mut running = Running::killed(0);
        let (store, away) = (running.host.path("store.redb"), running.host.path("away"));
        fs::rename(&store, &away).unwrap();
        fs::create_dir(&store).unwrap();
        // The device has no route. It may belong to a pod, because the records are unknown.
        ip("link add tlorphan type veth peer name other");
        ip("link set tlorphan alias trunkline:c9:eth0");
        running.host.start();
        running.says("status", "UNUSABLE: ");
        established(&running.host);
        within("converged", || !running.host.status().bgp.unwrap().converged.is_empty());
        assert!(default_route().is_some());
        assert!(ip("-br link").contains("tlorphan"));
        running.host.kill();
        fs::remove_dir(&store).unwrap();
        fs::rename(&away, &store).unwrap();
        running.host.start();
        assert!(running.host.status().store.fault.is_none());
        assert_eq!(running.host.pods(), [("c1".to_owned(), "attached".to_owned())]);
        running.lost_nothing();
    });
}

#[test]
fn absent_api_server_loses_no_packet() {
    isolated("absent_api_server_loses_no_packet", |_| {
        let mut running = Running::killed(0);
        let path = |name: &str| running.host.path(name);
        let nobody = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
            clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n\
            users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n";
        fs::write(path("kubeconfig"), nobody).unwrap();
        let config = fs::read_to_string(path("agent.yaml")).unwrap();
        let (kubeconfig, cache) = (path("kubeconfig"), path("cache"));
        let kube = format!(
            "source: kube\nkube: {{kubeconfig: {}, cache: {}}}\n",
            kubeconfig.display(),
            cache.display()
        );
        fs::write(path("agent.yaml"), format!("{config}{kube}")).unwrap();
        running.host.launch();
        within("it answers", || running.host.ask::<Vec<Peer>>(Query::Peers { address: None }).is_ok());
        running.says("status", "the API server does not answer: ");
        assert!(default_route().is_some());
        running.host.kill();
        fs::write(running.host.path("agent.yaml"), config).unwrap();
        running.host.start();
        established(&running.host);
        running.lost_nothing();
    });
}

/// The agent ends with this message; the kernel's objects stay.
fn ends_with(running: &mut Running, words: &str) {
    let output = running.host.command().output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains(words), "{said}");
    assert!(default_route().is_some());
}

#[test]
fn agent_that_cannot_start_loses_no_packet() {
    isolated("agent_that_cannot_start_loses_no_packet", |_| {
        let mut running = Running::killed(0);
        let config = fs::read_to_string(running.host.path("agent.yaml")).unwrap();
        let write = |running: &Running, text: &str| fs::write(running.host.path("agent.yaml"), text).unwrap();
        write(&running, &format!("{config}colour: blue\n"));
        ends_with(&mut running, "colour");
        write(&running, &config.replace("routerID: 10.255.0.2", "routerID: 0.0.0.0"));
        ends_with(&mut running, "routerID");
        write(&running, &config);

        let socket = running.host.path("agent.sock");
        let _ = fs::remove_file(&socket);
        fs::create_dir_all(socket.join("somebody's")).unwrap();
        ends_with(&mut running, "agent.sock");
        fs::remove_dir_all(&socket).unwrap();

        running.host.start();
        established(&running.host);
        running.lost_nothing();
    });
}

#[test]
fn taken_metrics_and_bfd_ports_lose_no_packet() {
    isolated("taken_metrics_and_bfd_ports_lose_no_packet", |_| {
        let mut running = Running::killed(0);
        let metrics = TcpListener::bind("127.0.0.1:9473").unwrap();
        let bfd = std::net::UdpSocket::bind("[::]:3784").unwrap();
        let peer = PEER.replace('}', ", bfd: {}}");
        running.host.manifests(&manifests(&peer, SUBNET));
        running.host.start();
        running.says("status", "/metrics, /healthz and /readyz are NOT SERVED: 127.0.0.1:9473");
        established(&running.host);
        within("BFD is down", || {
            let peers: Vec<Peer> = running.host.ask(Query::Peers { address: None }).unwrap();
            peers[0].bfd.as_ref().is_some_and(|bfd| bfd.state == BfdState::Down)
        });
        within("converged", || !running.host.status().bgp.unwrap().converged.is_empty());
        drop((metrics, bfd));
        within("served", || running.host.status().http_fault.is_none());
        running.lost_nothing();
    });
}

/// Starts the agent with another command.
fn launch(host: &mut Host, mut command: Process) {
    let log = fs::File::options().create(true).append(true).open(host.path("log")).unwrap();
    host.agent = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    within("it answers", || host.ask::<Vec<Peer>>(Query::Peers { address: None }).is_ok());
}

#[test]
fn guard_that_cannot_be_loaded_loses_no_packet() {
    isolated("guard_that_cannot_be_loaded_loses_no_packet", |_| {
        let mut running = Running::killed(0);
        // The agent finds this `nft`, which fails until the test removes it.
        let folder = running.host.path("bin");
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/bin/false", folder.join("nft")).unwrap();
        let mut command = running.host.command();
        command.env("PATH", format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()));
        launch(&mut running.host, command);
        established(&running.host);
        within("converged", || !running.host.status().bgp.unwrap().converged.is_empty());
        running.says("status", "NOT IN FORCE: ");
        assert!(running.host.add("c2", &namespace()).is_err(), "no pod is attached without the guard");
        assert!(default_route().is_some());
        fs::remove_file(folder.join("nft")).unwrap();
        running.host.add("c2", &namespace()).unwrap();
        running.says("status", "in force, ");
        running.lost_nothing();
    });
}

#[test]
fn kernel_that_refuses_all_requests_loses_no_packet() {
    isolated("kernel_that_refuses_all_requests_loses_no_packet", |_| {
        let mut running = Running::killed(1);
        let agent = running.host.command();
        let mut command = Process::new("setpriv");
        command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin", "--"]);
        command.arg(agent.get_program()).args(agent.get_args());
        launch(&mut running.host, command);
        running.says("status", "Operation not permitted");
        established(&running.host);
        within("converged", || !running.host.status().bgp.unwrap().converged.is_empty());
        assert!(default_route().is_some());
        running.host.kill();
        running.host.start();
        established(&running.host);
        within("ready", || running.host.status().ready);
        running.lost_nothing();
    });
}

/// The agent's reconcile task alone, with this speaker's configuration, as `trunkline agent` starts
/// it.
async fn reconcile(host: &Host, max_paths: usize, history: &History) -> (Reconcile, KernelHandle) {
    reconcile_with(host, max_paths, history, false).await
}

async fn reconcile_with(
    host: &Host,
    max_paths: usize,
    history: &History,
    waits_for_services: bool,
) -> (Reconcile, KernelHandle) {
    let (kernel, kernel_events) =
        KernelHandle::spawn(KernelConfig { hold: IpFamily::ALL.into(), ..KernelConfig::default() }).unwrap();
    let Started { ipam, records, .. } = Ipam::start(&host.path("store.redb")).unwrap();
    let recovery = recover(&records, &kernel.devices().await.unwrap());
    let config = Config::read(&host.path("agent.yaml")).unwrap();
    let (reconcile, _task) = reconcile::spawn(ReconcileDependencies {
        node: "n1".to_owned(),
        router_id: config.router_id,
        settings: Settings::new(config.clone(), config.clone()),
        shell: ShellConfig { listen: config.listen.clone(), ..ShellConfig::default() },
        speaker: SpeakerConfig {
            restarting: true,
            selection_deferral: Duration::from_secs(5),
            max_paths,
            ..SpeakerConfig::new(Asn(0), [0, 0, 0, 0].into())
        },
        stations: Vec::new(),
        station: config.bmp_station(),
        kernel: kernel.clone(),
        reached: BTreeSet::new(),
        kernel_events,
        ipam,
        history: history.clone(),
        own_pools: true,
        pods: recovery.pods,
        unrecorded: recovery.unrecorded,
        broken: recovery.broken,
        host_addresses: BTreeSet::new(),
        waits_for_services,
        waits_for_anycast: false,
        held_addresses: BTreeSet::new(),
        metrics: Metrics::new().unwrap(),
        notifier: ChangeNotifier::default(),
        stage: DrainStage::default(),
    });
    let context = folder::Context { labels: config.node_labels(), running: None };
    let snapshot = folder::read(&host.path("manifests"), &context).unwrap().snapshot;
    reconcile.snapshot(snapshot).await.unwrap().unwrap();
    (reconcile, kernel)
}

async fn view_until(
    reconcile: &Reconcile,
    what: &str,
    holds: impl Fn(&ReconcileStatus) -> bool,
) -> ReconcileStatus {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let view = reconcile.view().await.unwrap();
        if holds(&view) {
            return view;
        }
        assert!(Instant::now() < until, "not within 30 s: {what}: {view:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const IMPORTED: &str = "{asn: 65000, address: 10.255.0.1, connectRetrySeconds: 1, import: {default: accept}}";

#[test]
fn speaker_that_cannot_start_loses_no_packet() {
    isolated("speaker_that_cannot_start_loses_no_packet", |runtime| {
        let mut running = Running::killed(0);
        runtime.block_on(async {
            let history = History::default();
            let (reconcile, kernel) = reconcile(&running.host, 0, &history).await;
            // At least two starts have failed: after 1 s and after 3 s.
            tokio::time::sleep(Duration::from_millis(3200)).await;
            let view = reconcile.view().await.unwrap();
            let stopped = view.stopped.unwrap();
            assert!(stopped.fault.contains("max_paths"), "{}", stopped.fault);
            assert_eq!(stopped.peers.len(), 1, "a configured peer is shown");
            assert!(view.bgp.is_none() && view.speaker_fault.is_some());
            let events = history.since(0).events;
            let failures = events.iter().filter(|event| event.kind == EventKind::SpeakerFailed);
            assert_eq!(failures.count(), 1, "each reason causes one event");
            assert!(default_route().is_some());
            assert!(kernel.status().stale_routes > 0, "the default route of the last run stays");
            reconcile.stop().await;
        });
        running.lost_nothing();
    });
}

#[test]
fn ended_speaker_loses_no_packet_and_is_restarted() {
    isolated("ended_speaker_loses_no_packet_and_is_restarted", |runtime| {
        let mut running = Running::killed(1);
        running.host.manifests(&manifests(IMPORTED, SUBNET));
        let learned = || ip("route show table all").contains("198.18.0.0/24");
        runtime.block_on(async {
            let history = History::default();
            let (reconcile, _kernel) = reconcile(&running.host, 4, &history).await;
            let converged =
                |view: &ReconcileStatus| view.bgp.as_ref().is_some_and(|bgp| !bgp.converged.is_empty());
            let view = view_until(&reconcile, "converged", converged).await;
            within_async("learned", learned).await;
            // The speaker ends without a command of the agent, as after a bug.
            let ended = Instant::now();
            view.bgp.unwrap().speaker.stop(Stop::Silent).await;
            let view = view_until(&reconcile, "seen", |view| view.stopped.is_some()).await;
            assert!(view.stopped.unwrap().fault.contains("ended unexpectedly"));
            assert!(learned(), "the learned routes stay");
            // A new plan, because an address of the host has changed, does not end the pause.
            ip("addr add 192.0.2.7/32 dev lo");
            view_until(&reconcile, "a speaker", |view| view.bgp.is_some()).await;
            assert!(ended.elapsed() >= Duration::from_secs(1), "{:?}", ended.elapsed());
            view_until(&reconcile, "started again", converged).await;
            within_async("learned again", learned).await;
            reconcile.stop().await;
        });
        running.lost_nothing();
    });
}

/// Waits until the router receives a prefix, or does not.
async fn advertises(reconcile: &Reconcile, prefix: IpNet, expected: bool) {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let speaker = reconcile.view().await.unwrap().bgp.map(|bgp| bgp.speaker);
        let peer: PeerKey = ROUTER.parse().unwrap();
        let routes = match &speaker {
            Some(speaker) => speaker.advertised(peer).await.unwrap_or_default(),
            None => Vec::new(),
        };
        if routes.iter().any(|route| route.prefix == prefix) == expected && speaker.is_some() {
            return;
        }
        assert!(Instant::now() < until, "{prefix}: not {expected} within 30 s: {routes:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn plans_drains_and_new_speakers_keep_service_prefixes() {
    isolated("plans_drains_and_new_speakers_keep_service_prefixes", |runtime| {
        let mut running = Running::killed(0);
        runtime.block_on(async {
            let history = History::default();
            let (reconcile, _kernel) = reconcile_with(&running.host, 4, &history, true).await;
            let pod: IpNet = SUBNET.parse().unwrap();
            let (web, api): (IpNet, IpNet) =
                ("203.0.113.1/32".parse().unwrap(), "203.0.113.2/32".parse().unwrap());
            let established = |view: &ReconcileStatus| view.bgp.is_some();
            view_until(&reconcile, "a speaker", established).await;
            let first = ServicePrefixes { changes: vec![(web, Some(Origination::default()))], ready: false };
            reconcile.services(first).await.unwrap();
            tokio::time::sleep(Duration::from_secs(2)).await;
            advertises(&reconcile, pod, false).await;
            let rest = ServicePrefixes { changes: vec![(api, Some(Origination::default()))], ready: true };
            reconcile.services(rest).await.unwrap().speaker.unwrap();
            for prefix in [web, api, pod] {
                advertises(&reconcile, prefix, true).await;
            }

            running.host.manifests(&manifests(PEER, "10.14.0.0/23"));
            let config = Config::read(&running.host.path("agent.yaml")).unwrap();
            let context = folder::Context { labels: config.node_labels(), running: None };
            let snapshot = folder::read(&running.host.path("manifests"), &context).unwrap().snapshot;
            reconcile.snapshot(snapshot).await.unwrap().unwrap();
            advertises(&reconcile, "10.14.0.0/23".parse().unwrap(), true).await;
            advertises(&reconcile, web, true).await;

            let drained = reconcile.leave(DrainStage::Withdrawn).await.unwrap();
            assert!(drained.prefixes.contains(&web), "{:?}", drained.prefixes);
            advertises(&reconcile, web, false).await;
            let gone = ServicePrefixes { changes: vec![(api, None)], ready: true };
            assert!(reconcile.services(gone).await.unwrap().speaker.is_none(), "nothing is advertised");
            reconcile.leave(DrainStage::Active).await.unwrap();
            advertises(&reconcile, web, true).await;
            advertises(&reconcile, api, false).await;

            let view = reconcile.view().await.unwrap();
            view.bgp.unwrap().speaker.stop(Stop::Silent).await;
            view_until(&reconcile, "an ended speaker", |view| view.stopped.is_some()).await;
            advertises(&reconcile, web, true).await;
            reconcile.stop().await;
        });
        running.lost_nothing();
    });
}

async fn within_async(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
