//! The engine over time: sequences of inputs, and the prefixes that a speaker has after each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;
use tokio::time::Instant;
use trunkline_api::control::{AdvertisementState, ProxyRulesState, ServiceView, WithheldReason};
use trunkline_api::names::label;
use trunkline_api::resources::AggregationLength;
use trunkline_api::service::{Protocol, TrafficPolicy};
use trunkline_bgp::rib::Origination;
use trunkline_bgp::types::{Community, LinkBandwidth};

use super::{Engine, Former, Output};
use crate::services::advertisements::tests::{advertisement, labels, plan, selector};
use crate::services::cache::CachedAddress;
use crate::services::rows::tests::{service, slice};
use crate::services::{
    EndpointCondition, LocalPods, NamespaceInput, NodeInput, NodeStage, PlannedAdvertisement, PortRules,
    ProxyHealth, ProxyState, RowChange, RuleChange, RuleChanges, ServiceInput, ServicePort, ServicesInput,
    ServicesPlan, Settings, SliceInput,
};

use EndpointCondition::{NotReady, Ready, Terminating};

mod bounds;

const VIP: &str = "10.9.0.1";
const POD: &str = "10.1.0.5";

/// An engine, and what the tasks around it have.
struct World {
    engine: Engine,
    now: Instant,
    speaker: BTreeMap<IpNet, Origination>,
    cache: BTreeMap<IpAddr, CachedAddress>,
    ready: bool,
    checks: usize,
    events: Vec<String>,
}

fn settings() -> Settings {
    Settings {
        restart: Duration::from_secs(60),
        settle: Duration::from_secs(2),
        proxy_address: "127.0.0.1:10256".to_owned(),
        class: Arc::from("trunkline.io/load-balancer"),
        deferral: Duration::from_secs(120),
        cache: "/dev/null".into(),
    }
}

fn local_pods(pods: &[&str]) -> LocalPods {
    LocalPods {
        pods: Arc::new(pods.iter().map(|text| text.parse().unwrap()).collect()),
        ..LocalPods::default()
    }
}

fn rules(address: &str, state: PortRules) -> ServicesInput {
    let change =
        RuleChange { address: address.parse().unwrap(), protocol: Protocol::Tcp, port: 80, rules: state };
    ServicesInput::Rules(RuleChanges { complete: false, changes: vec![change] })
}

fn proxy(health: ProxyHealth) -> ServicesInput {
    ServicesInput::Proxy(ProxyState { health, rules: Some(ProxyRulesState::Nftables) })
}

fn apply_service(input: ServiceInput) -> ServicesInput {
    ServicesInput::Services(RowChange::Applied(input))
}

fn apply_slice(input: SliceInput) -> ServicesInput {
    ServicesInput::Slices(RowChange::Applied(input))
}

impl World {
    /// An engine that knows nothing.
    fn new(former: Former, pods: &[&str]) -> World {
        let now = Instant::now() + Duration::from_secs(1000);
        let cache = match &former {
            Former::Addresses(addresses) => addresses.clone(),
            Former::None | Former::Unreadable => BTreeMap::new(),
        };
        let engine = Engine::new(settings(), former, local_pods(pods), NodeStage::Active, now);
        let mut world = World {
            engine,
            now,
            speaker: BTreeMap::new(),
            cache,
            ready: false,
            checks: 0,
            events: Vec::new(),
        };
        world.advance();
        world
    }

    /// An engine that knows everything: Service web with [`VIP`] and its rules, and no endpoint.
    fn known(policy: TrafficPolicy, of: ServicesPlan) -> World {
        let mut world = World::new(Former::None, &[POD]);
        world.engine.set_plan(Arc::new(of));
        world.give([
            ServicesInput::Services(RowChange::Listed(vec![service("web", &[VIP], policy)])),
            ServicesInput::Slices(RowChange::Listed(Vec::new())),
            ServicesInput::Namespaces(RowChange::Listed(Vec::new())),
            ServicesInput::Node(NodeInput::default()),
            ServicesInput::Rules(RuleChanges { complete: true, changes: Vec::new() }),
            rules(VIP, PortRules::Forwarded),
            proxy(ProxyHealth::Up),
        ]);
        assert!(world.engine.known);
        world
    }

    /// [`World::known`] with a ready endpoint on this node.
    fn with_endpoint(policy: TrafficPolicy, of: ServicesPlan) -> World {
        let mut world = World::known(policy, of);
        world.give([apply_slice(slice("a", "web", 0, &[(POD, Ready)]))]);
        assert_eq!(world.state(VIP), "advertised");
        world
    }

    /// Takes over inputs, as one wake-up of the task.
    fn give(&mut self, inputs: impl IntoIterator<Item = ServicesInput>) {
        for input in inputs {
            self.engine.handle(input, self.now);
        }
        self.advance();
    }

    fn advance(&mut self) {
        let Output { prefixes, transitions, cache, check_proxy, .. } = self.engine.advance(self.now);
        for (prefix, origination) in prefixes.changes {
            match origination {
                Some(origination) => drop(self.speaker.insert(prefix, origination)),
                None => drop(self.speaker.remove(&prefix)),
            }
        }
        for (address, change) in cache {
            match change {
                Some(cached) => drop(self.cache.insert(address, cached)),
                None => drop(self.cache.remove(&address)),
            }
        }
        assert!(prefixes.ready || !self.ready, "ready stays");
        self.ready = prefixes.ready;
        self.checks += usize::from(check_proxy);
        self.events.extend(transitions.into_iter().map(|transition| transition.text));
        assert!(self.engine.next_deadline().is_none_or(|at| at > self.now), "no busy loop");
        assert_eq!(self.speaker, self.engine.table.all());
    }

    /// Lets time pass, with every deadline in it.
    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.engine.next_deadline().filter(|at| *at <= until) {
            self.now = at;
            self.advance();
        }
        self.now = until;
        self.advance();
    }

    fn set_local(&mut self, pods: &[&str]) {
        self.engine.set_local(local_pods(pods));
        self.advance();
    }

    fn set_plan(&mut self, of: ServicesPlan) {
        self.engine.set_plan(Arc::new(of));
        self.advance();
    }

    /// The state of an address in the speaker.
    fn state(&self, address: &str) -> &'static str {
        let prefix = IpNet::from(address.parse::<IpAddr>().unwrap());
        match self.speaker.get(&prefix) {
            None => "absent",
            Some(of) if of.communities.contains(&Community::GRACEFUL_SHUTDOWN) => "shutting down",
            Some(_) => "advertised",
        }
    }

    fn view(&self) -> ServiceView {
        let mut views = self.engine.views(None, self.now);
        assert_eq!(views.len(), 1, "{views:?}");
        views.remove(0)
    }

    fn reason(&self) -> Option<WithheldReason> {
        self.view().reason
    }

    /// The file of this run, for the next one.
    fn restart(&self) -> Former {
        Former::Addresses(self.cache.clone())
    }
}

fn millis(time: u64) -> Duration {
    Duration::from_millis(time)
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_moves_between_pages_stays() {
    let page = |is_first, rows| ServicesInput::Slices(RowChange::Page { is_first, rows });
    let end = || ServicesInput::Slices(RowChange::Listed(Vec::new()));
    let mut world = World::with_endpoint(TrafficPolicy::Local, plan(&[]));
    world.give([page(true, vec![slice("a", "web", 0, &[])])]);
    world.wait(millis(100));
    assert_eq!(world.state(VIP), "advertised", "the list is not complete");
    world.give([page(false, vec![slice("b", "web", 0, &[(POD, Ready)])]), end()]);
    world.wait(millis(100));
    assert_eq!(world.state(VIP), "advertised");
    world.give([page(true, vec![slice("b", "web", 0, &[])]), end()]);
    world.wait(millis(100));
    assert_eq!(world.state(VIP), "absent");
}

#[tokio::test(start_paused = true)]
async fn the_last_local_endpoint_leaves_slowly() {
    let mut world = World::with_endpoint(TrafficPolicy::Local, plan(&[]));
    world.give([apply_slice(slice("a", "web", 3, &[(POD, Terminating)]))]);
    assert_eq!((world.state(VIP), world.reason()), ("shutting down", Some(WithheldReason::Terminating)));
    assert!(
        world.view().text.contains("withdrawn in 5 s: externalTrafficPolicy is Local"),
        "{}",
        world.view().text
    );
    world.wait(millis(4999));
    assert_eq!(world.state(VIP), "shutting down");
    world.wait(millis(1));
    assert_eq!((world.state(VIP), world.view().state), ("absent", AdvertisementState::Withheld));
    // A ready endpoint returns.
    world.give([apply_slice(slice("a", "web", 3, &[(POD, Ready)]))]);
    assert_eq!(world.state(VIP), "advertised");
    world.give([apply_slice(slice("a", "web", 3, &[(POD, NotReady)]))]);
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::NoLocalEndpoint)));
}

#[tokio::test(start_paused = true)]
async fn a_lost_host_route_withdraws_at_once() {
    let mut world = World::with_endpoint(TrafficPolicy::Local, plan(&[]));
    world.set_local(&[]);
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::NoHostRoute)));
    world.set_local(&[POD]);
    assert_eq!(world.state(VIP), "advertised");
    // An endpoint with the host's network.
    world
        .engine
        .set_local(LocalPods { host: Arc::new([POD.parse().unwrap()].into()), ..LocalPods::default() });
    world.advance();
    assert_eq!(world.state(VIP), "advertised");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_moves_between_slices_stays() {
    let mut world = World::with_endpoint(TrafficPolicy::Local, plan(&[]));
    world.give([apply_slice(slice("a", "web", 0, &[]))]);
    assert_eq!(world.state(VIP), "advertised");
    world.wait(millis(20));
    world.give([apply_slice(slice("b", "web", 0, &[(POD, Ready)]))]);
    world.wait(millis(100));
    assert_eq!(world.state(VIP), "advertised");
    // The endpoint is gone.
    world.give([ServicesInput::Slices(RowChange::Deleted(slice("b", "web", 0, &[])))]);
    world.wait(millis(49));
    assert_eq!(world.state(VIP), "advertised");
    world.wait(millis(1));
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::NoEndpoint)));
    // Without a host route, there is no wait.
    world.give([apply_slice(slice("a", "web", 0, &[(POD, Ready)]))]);
    world.set_local(&[]);
    world.give([apply_slice(slice("a", "web", 0, &[]))]);
    assert_eq!(world.state(VIP), "absent");
}

#[tokio::test(start_paused = true)]
async fn rules_decide_about_a_new_address_and_a_flush_withdraws() {
    let mut world = World::known(TrafficPolicy::Cluster, plan(&[]));
    world.give([rules(VIP, PortRules::Blocked)]);
    world.give([apply_slice(slice("a", "web", 3, &[]))]);
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::NoRules)));
    assert!(world.view().text.contains("TCP port 80 of default/web"), "{}", world.view().text);
    world.give([rules(VIP, PortRules::Forwarded)]);
    assert_eq!(world.state(VIP), "advertised");
    world.give([ServicesInput::Rules(RuleChanges { complete: true, changes: Vec::new() })]);
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::RulesBlock)));
    world.give([rules(VIP, PortRules::Forwarded)]);
    assert_eq!(world.state(VIP), "advertised");
    let states: Vec<&str> = world.events.iter().filter_map(|text| text.split(": ").nth(1)).collect();
    assert_eq!(states, ["advertised", "withheld", "advertised"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_port_does_not_withdraw() {
    let mut world = World::with_endpoint(TrafficPolicy::Cluster, plan(&[]));
    let mut two = service("web", &[VIP], TrafficPolicy::Cluster);
    two.ports.push(ServicePort { protocol: Protocol::Tcp, port: 443, name: Arc::from("") });
    world.give([apply_service(two)]);
    assert_eq!(world.state(VIP), "advertised");
    assert_eq!(world.view().text, "advertised; kube-proxy has no rules for TCP port 443 of default/web yet");
    // The rules are late: the proxy's health is requested, once.
    world.wait(millis(1999));
    assert_eq!(world.checks, 0);
    world.wait(millis(1));
    assert_eq!((world.checks, world.engine.late_since().is_some()), (1, true));
    world.wait(Duration::from_secs(60));
    assert_eq!(world.checks, 1);
    let https = |state| RuleChange {
        address: VIP.parse().unwrap(),
        protocol: Protocol::Tcp,
        port: 443,
        rules: state,
    };
    let change = |state| ServicesInput::Rules(RuleChanges { complete: false, changes: vec![https(state)] });
    world.give([change(PortRules::Forwarded)]);
    assert_eq!((world.view().text.as_str(), world.engine.late_since()), ("advertised", None));
    world.give([change(PortRules::Missing)]);
    assert_eq!(world.state(VIP), "absent", "the port had rules");
}

#[tokio::test(start_paused = true)]
async fn an_absent_proxy_keeps_its_rules_for_a_while() {
    let away = |world: &World| proxy(ProxyHealth::Away { since: world.now });
    let mut world = World::with_endpoint(TrafficPolicy::Cluster, plan(&[]));
    world.give([away(&world)]);
    world.wait(Duration::from_secs(59));
    assert_eq!(world.state(VIP), "advertised");
    world.wait(Duration::from_secs(1));
    assert_eq!((world.state(VIP), world.reason()), ("shutting down", Some(WithheldReason::ProxyDown)));
    assert!(
        world.view().text.contains("kube-proxy does not answer at 127.0.0.1:10256 for 60 s"),
        "{}",
        world.view().text
    );
    world.wait(Duration::from_secs(5));
    assert_eq!(world.state(VIP), "absent");
    world.give([proxy(ProxyHealth::Up)]);
    assert_eq!(world.state(VIP), "advertised");

    // Endpoints change meanwhile, and the proxy returns in time.
    world.give([away(&world)]);
    world.give([apply_slice(slice("b", "web", 1, &[]))]);
    assert_eq!(world.state(VIP), "shutting down");
    world.wait(Duration::from_secs(3));
    world.give([proxy(ProxyHealth::Up)]);
    assert_eq!(world.state(VIP), "advertised");

    // Local: a new endpoint does not help, because the rules do not know it.
    let mut world = World::with_endpoint(TrafficPolicy::Local, plan(&[]));
    world.give([away(&world)]);
    world.set_local(&[POD, "10.1.0.6"]);
    world.give([apply_slice(slice("a", "web", 0, &[(POD, Ready), ("10.1.0.6", Ready)]))]);
    assert_eq!(world.state(VIP), "shutting down");
    world.set_local(&["10.1.0.6"]);
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::ProxyDown)));
}

#[tokio::test(start_paused = true)]
async fn invisible_rules_need_time() {
    let invisible =
        |health| ServicesInput::Proxy(ProxyState { health, rules: Some(ProxyRulesState::NotVisible) });
    let mut world = World::known(TrafficPolicy::Cluster, plan(&[]));
    world.give([invisible(ProxyHealth::Up)]);
    world.wait(Duration::from_secs(10));
    world.give([apply_slice(slice("a", "web", 1, &[]))]);
    world.wait(millis(1999));
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::RulesLag)));
    world.wait(millis(1));
    assert_eq!(world.state(VIP), "advertised");
    world.give([apply_slice(slice("a", "web", 7, &[]))]);
    assert_eq!(world.state(VIP), "advertised");
    // The proxy returns: its rules need time again.
    world.give([invisible(ProxyHealth::Unhealthy)]);
    world.wait(Duration::from_secs(6));
    assert_eq!(world.state(VIP), "absent");
    world.give([invisible(ProxyHealth::Up)]);
    assert_eq!(world.state(VIP), "absent");
    world.wait(Duration::from_secs(2));
    assert_eq!(world.state(VIP), "advertised");
    // Without a proxy to check, nothing is awaited.
    let mut world = World::known(TrafficPolicy::Cluster, plan(&[]));
    world.give([invisible(ProxyHealth::NotChecked), apply_slice(slice("a", "web", 1, &[]))]);
    assert_eq!(world.state(VIP), "advertised");
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_policy_does_not_lose_connections() {
    let mut world = World::known(TrafficPolicy::Cluster, plan(&[]));
    world.give([apply_slice(slice("a", "web", 3, &[]))]);
    assert_eq!(world.state(VIP), "advertised");
    world.give([apply_service(service("web", &[VIP], TrafficPolicy::Local))]);
    assert_eq!((world.state(VIP), world.reason()), ("shutting down", Some(WithheldReason::NoLocalEndpoint)));
    world.give([apply_service(service("web", &[VIP], TrafficPolicy::Cluster))]);
    assert_eq!(world.state(VIP), "advertised");
    world.give([apply_service(service("web", &[VIP], TrafficPolicy::Local))]);
    world.give([rules(VIP, PortRules::Blocked)]);
    assert_eq!(world.state(VIP), "absent");
    // From Local to Cluster: this node waits for its rules.
    world.give([apply_service(service("web", &[VIP], TrafficPolicy::Cluster))]);
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::NoRules)));
    world.give([rules(VIP, PortRules::Forwarded)]);
    assert_eq!(world.state(VIP), "advertised");
}

#[tokio::test(start_paused = true)]
async fn the_node_leaves_slowly_and_returns() {
    let cordon = PlannedAdvertisement { withdraw_cordoned: true, ..advertisement(1) };
    let mut world = World::with_endpoint(TrafficPolicy::Cluster, plan(&[("a", cordon)]));
    let node =
        |pairs: &[(&str, &str)], cordoned| ServicesInput::Node(NodeInput { labels: labels(pairs), cordoned });
    world.give([node(&[], true)]);
    assert_eq!((world.state(VIP), world.reason()), ("shutting down", Some(WithheldReason::NodeCordoned)));
    assert!(
        world.view().text.contains("cordonedNodes: Advertise in ServiceAdvertisement a"),
        "{}",
        world.view().text
    );
    world.give([node(&[], false)]);
    assert_eq!(world.state(VIP), "advertised");
    world.give([node(&[(label::EXCLUDE_BALANCERS, "")], false)]);
    world.wait(Duration::from_secs(5));
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::NodeExcluded)));
    world.give([node(&[], false)]);
    world.engine.set_stage(NodeStage::Announcing);
    world.advance();
    assert_eq!(world.state(VIP), "advertised", "the drain sets GRACEFUL_SHUTDOWN itself");
    world.engine.set_stage(NodeStage::Withdrawn);
    world.advance();
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::NodeDrained)));
}

#[tokio::test(start_paused = true)]
async fn advertisements_select_by_labels_of_service_and_namespace() {
    let shop = PlannedAdvertisement {
        services: selector(&[("app", "web")]),
        namespaces: selector(&[("team", "shop")]),
        aggregation: AggregationLength { ipv4: Some(24), ipv6: None },
        ..advertisement(3)
    };
    let mut world = World::known(TrafficPolicy::Cluster, plan(&[("shop", shop)]));
    world.give([apply_slice(slice("a", "web", 1, &[]))]);
    assert_eq!(world.reason(), Some(WithheldReason::NotSelected));
    let labelled = ServiceInput {
        labels: Ok(labels(&[("app", "web")])),
        ..service("web", &[VIP], TrafficPolicy::Cluster)
    };
    world.give([apply_service(labelled)]);
    assert_eq!(world.reason(), Some(WithheldReason::NotSelected));
    let namespace = |pairs| NamespaceInput { name: Arc::from("default"), labels: Ok(labels(pairs)) };
    world.give([ServicesInput::Namespaces(RowChange::Applied(namespace(&[("team", "shop")])))]);
    let prefixes: Vec<String> = world.speaker.keys().map(ToString::to_string).collect();
    assert_eq!(prefixes, ["10.9.0.0/24"]);
    assert_eq!(world.view().prefixes[0].advertisements, ["shop"]);
    world.give([ServicesInput::Namespaces(RowChange::Listed(vec![namespace(&[])]))]);
    assert_eq!((world.speaker.len(), world.reason()), (0, Some(WithheldReason::NotSelected)));
    world.set_plan(plan(&[]));
    assert_eq!(world.state(VIP), "advertised", "the default is in force");
}

#[tokio::test(start_paused = true)]
async fn a_shared_address_needs_all_its_services() {
    let mut world = World::with_endpoint(TrafficPolicy::Local, plan(&[]));
    let mut api = service("api", &[VIP], TrafficPolicy::Local);
    api.ports[0].port = 443;
    world.give([apply_service(api.clone())]);
    assert_eq!(world.state(VIP), "advertised", "nobody can serve the other Service");
    world.give([apply_slice(slice("b", "api", 1, &[]))]);
    assert_eq!(world.state(VIP), "absent");
    world.give([ServicesInput::Services(RowChange::Deleted(api))]);
    assert_eq!(world.state(VIP), "advertised");
    world.give([ServicesInput::Services(RowChange::Listed(Vec::new()))]);
    assert!(world.speaker.is_empty() && world.cache.is_empty() && world.engine.addresses.is_empty());
    assert!(world.engine.views(None, world.now).is_empty());
    assert_eq!(world.engine.counts().addresses.values().sum::<u64>(), 0);
}

#[tokio::test(start_paused = true)]
async fn services_of_other_classes_are_left_alone() {
    let mut world = World::known(TrafficPolicy::Cluster, plan(&[]));
    let foreign =
        ServiceInput { class: Some(Arc::from("x.io/lb")), ..service("web", &[VIP], TrafficPolicy::Cluster) };
    world.give([apply_slice(slice("a", "web", 1, &[])), apply_service(foreign)]);
    assert!(world.speaker.is_empty() && world.engine.addresses.is_empty());
    assert!(world.engine.views(None, world.now).is_empty());
    let named = world.engine.views(Some("default/web"), world.now);
    assert!(named[0].text.contains("Service class x.io/lb is not Trunkline's"), "{named:?}");
    world.give([apply_service(ServiceInput {
        class: None,
        ..service("web", &[VIP], TrafficPolicy::Cluster)
    })]);
    assert_eq!(world.state(VIP), "advertised");
    let other = ServiceInput { other_proxy: true, ..service("web", &[VIP], TrafficPolicy::Cluster) };
    world.give([apply_service(other)]);
    assert_eq!(world.reason(), Some(WithheldReason::NotSelected));
    assert!(world.view().text.contains("service.kubernetes.io/service-proxy-name"), "{}", world.view().text);
}

#[tokio::test(start_paused = true)]
async fn weights_follow_the_endpoints_once_a_second() {
    let weighted = PlannedAdvertisement { weights: true, ..advertisement(1) };
    let mut world = World::known(TrafficPolicy::Cluster, plan(&[("w", weighted)]));
    let bandwidth = |world: &World| {
        let of = world.speaker.get(&"10.9.0.1/32".parse().unwrap());
        of.and_then(|of| of.link_bandwidth).map(|LinkBandwidth(octets)| octets / 1_250_000)
    };
    world.set_local(&[POD, "10.1.0.6"]);
    world.give([apply_slice(slice("a", "web", 1, &[]))]);
    assert_eq!(bandwidth(&world), Some(1), "no endpoint here");
    world.give([apply_slice(slice("b", "web", 0, &[(POD, Ready)]))]);
    assert_eq!(bandwidth(&world), Some(1), "too early");
    world.give([apply_slice(slice("b", "web", 0, &[(POD, Ready), ("10.1.0.6", Ready)]))]);
    world.wait(millis(999));
    assert_eq!(bandwidth(&world), Some(1));
    world.wait(millis(1));
    assert_eq!(bandwidth(&world), Some(200));
    world.wait(Duration::from_secs(5));
    world.give([apply_slice(slice("b", "web", 0, &[(POD, Ready)]))]);
    world.wait(millis(50));
    assert_eq!(bandwidth(&world), Some(100));
}

// ---- starts

#[tokio::test(start_paused = true)]
async fn the_first_start_is_ready_and_advertises_when_everything_is_known() {
    let mut world = World::new(Former::None, &[POD]);
    assert!(world.ready, "nothing was advertised before");
    let inputs = || {
        [
            ServicesInput::Services(RowChange::Listed(vec![service("web", &[VIP], TrafficPolicy::Cluster)])),
            ServicesInput::Slices(RowChange::Listed(vec![slice("a", "web", 1, &[])])),
            ServicesInput::Node(NodeInput::default()),
            rules(VIP, PortRules::Forwarded),
            proxy(ProxyHealth::Up),
        ]
    };
    for missing in 0..inputs().len() {
        let mut world = World::new(Former::None, &[POD]);
        world.set_plan(plan(&[]));
        world.give(
            inputs().into_iter().enumerate().filter(|(index, _)| *index != missing).map(|(_, input)| input),
        );
        assert_eq!(world.state(VIP), "absent", "{missing}");
        world.give(inputs().into_iter().skip(missing).take(1));
        assert_eq!(world.state(VIP), "advertised", "{missing}");
    }
    world.set_plan(ServicesPlan { complete: false, ..plan(&[]) });
    world.give(inputs());
    assert_eq!((world.state(VIP), world.reason()), ("absent", Some(WithheldReason::NotKnown)));
    world.set_plan(plan(&[]));
    assert_eq!(world.state(VIP), "advertised");
}

#[tokio::test(start_paused = true)]
async fn a_restart_advertises_at_once_what_is_still_true() {
    let before = World::with_endpoint(TrafficPolicy::Local, plan(&[("a", advertisement(7))]));
    let start = |pods: &[&str]| {
        let mut world = World::new(before.restart(), pods);
        assert!(!world.ready && world.speaker.is_empty());
        assert_eq!(world.view().state, AdvertisementState::Retained);
        world.give([ServicesInput::Rules(RuleChanges { complete: true, changes: Vec::new() })]);
        world.give([rules(VIP, PortRules::Forwarded), proxy(ProxyHealth::Up)]);
        assert!(!world.ready, "the tags are not known before the first plan");
        world.set_plan(ServicesPlan { complete: false, ..plan(&[("a", advertisement(9))]) });
        assert!(world.ready);
        world
    };
    let mut world = start(&[POD]);
    assert_eq!(world.state(VIP), "advertised");
    assert_eq!(world.speaker.values().next().unwrap().tags.as_slice()[0].0, 9, "the tag of this process");
    assert!(world.view().text.contains("before the restart"), "{}", world.view().text);
    // What the node itself sees counts, also while the API server is away.
    world.set_local(&[]);
    assert_eq!(world.state(VIP), "absent");

    let mut world = start(&[POD]);
    let rest = || {
        [
            ServicesInput::Slices(RowChange::Listed(vec![slice("a", "web", 0, &[(POD, Ready)])])),
            ServicesInput::Node(NodeInput::default()),
        ]
    };
    world.give(rest());
    world.give([ServicesInput::Services(RowChange::Listed(vec![service(
        "web",
        &[VIP],
        TrafficPolicy::Local,
    )]))]);
    assert_eq!(world.view().state, AdvertisementState::Retained, "the plan is that of the last run");
    world.set_plan(plan(&[("a", advertisement(9))]));
    assert_eq!((world.state(VIP), world.view().state), ("advertised", AdvertisementState::Advertised));
    assert_eq!(world.cache.len(), 1);

    // The Service was deleted meanwhile.
    let mut world = start(&[POD]);
    world.set_plan(plan(&[("a", advertisement(9))]));
    world.give(rest());
    world.give([ServicesInput::Services(RowChange::Listed(Vec::new()))]);
    assert_eq!((world.state(VIP), world.engine.addresses.len()), ("absent", 0));

    // The endpoint died while the agent was down.
    assert_eq!(start(&[]).state(VIP), "absent");
}

#[tokio::test(start_paused = true)]
async fn without_visible_rules_the_last_addresses_wait_for_the_services() {
    let before = World::with_endpoint(TrafficPolicy::Cluster, plan(&[]));
    let invisible = ServicesInput::Proxy(ProxyState {
        health: ProxyHealth::Up,
        rules: Some(ProxyRulesState::NotVisible),
    });
    let mut world = World::new(before.restart(), &[POD]);
    world.set_plan(plan(&[]));
    world.give([invisible]);
    world.wait(Duration::from_secs(118));
    assert_eq!((world.ready, world.state(VIP)), (false, "absent"));
    // The API server stays away: the peers would remove their stale paths.
    world.wait(Duration::from_secs(1));
    assert_eq!((world.ready, world.state(VIP)), (true, "advertised"));

    let mut world = World::new(Former::Unreadable, &[POD]);
    assert!(!world.ready);
    world.set_plan(plan(&[]));
    world.give([
        ServicesInput::Services(RowChange::Listed(Vec::new())),
        ServicesInput::Slices(RowChange::Listed(Vec::new())),
        ServicesInput::Node(NodeInput::default()),
        proxy(ProxyHealth::Up),
    ]);
    assert!(world.ready);
}

/// A second SIGKILL finds no stale path at the peers: they would remove it (RFC 4724, 4.2).
#[tokio::test(start_paused = true)]
async fn without_a_service_proxy_the_last_addresses_are_advertised_at_once() {
    let before = World::with_endpoint(TrafficPolicy::Cluster, plan(&[]));
    let mut world = World::new(before.restart(), &[POD]);
    world.give([ServicesInput::Proxy(ProxyState { health: ProxyHealth::NotChecked, rules: None })]);
    assert!(!world.ready, "the plan can have fewer networks than before");
    world.set_plan(plan(&[]));
    assert_eq!((world.ready, world.state(VIP)), (true, "advertised"));
}

#[tokio::test(start_paused = true)]
async fn a_graceful_shutdown_goes_on_after_a_restart() {
    let mut before = World::with_endpoint(TrafficPolicy::Local, plan(&[]));
    before.give([apply_slice(slice("a", "web", 0, &[(POD, Terminating)]))]);
    let mut world = World::new(before.restart(), &[POD]);
    world.set_plan(plan(&[]));
    world.give([rules(VIP, PortRules::Forwarded), proxy(ProxyHealth::Up)]);
    assert_eq!(world.state(VIP), "shutting down");
    world.give([
        ServicesInput::Services(RowChange::Listed(vec![service("web", &[VIP], TrafficPolicy::Local)])),
        ServicesInput::Slices(RowChange::Listed(vec![slice("a", "web", 0, &[(POD, Terminating)])])),
        ServicesInput::Node(NodeInput::default()),
    ]);
    assert_eq!((world.state(VIP), world.reason()), ("shutting down", Some(WithheldReason::Terminating)));
    world.wait(Duration::from_secs(5));
    assert_eq!(world.state(VIP), "absent");
}

// ---- any sequence of events

#[derive(Clone, Debug)]
enum Step {
    Service { name: usize, address: usize, local: bool, labelled: bool },
    NoService(usize),
    Slice { name: usize, service: usize, remote: u32, here: Vec<(usize, u8)> },
    NoSlice(usize),
    Pods(BTreeSet<usize>),
    Cordon(bool),
    Stage(bool),
    Health(u8),
    Rules { address: usize, blocked: bool },
    Wait(u64),
}

const NAMES: [&str; 3] = ["web", "api", "db"];
const VIPS: [&str; 3] = ["10.9.0.1", "10.9.0.2", "10.9.1.1"];
const PODS: [&str; 3] = ["10.1.0.5", "10.1.0.6", "10.1.0.7"];

fn step() -> impl Strategy<Value = Step> {
    let index = || 0..3usize;
    prop_oneof![
        3 => (index(), index(), any::<bool>(), any::<bool>())
            .prop_map(|(name, address, local, labelled)| Step::Service { name, address, local, labelled }),
        1 => index().prop_map(Step::NoService),
        4 => (index(), index(), 0..3u32, prop::collection::vec((index(), 0..3u8), 0..3))
            .prop_map(|(name, service, remote, here)| Step::Slice { name, service, remote, here }),
        1 => index().prop_map(Step::NoSlice),
        1 => prop::collection::btree_set(index(), 0..4).prop_map(Step::Pods),
        1 => any::<bool>().prop_map(Step::Cordon),
        1 => any::<bool>().prop_map(Step::Stage),
        1 => (0..4u8).prop_map(Step::Health),
        2 => (index(), any::<bool>()).prop_map(|(address, blocked)| Step::Rules { address, blocked }),
        2 => (0..3000u64).prop_map(Step::Wait),
    ]
}

/// The inputs that are in force after some steps.
#[derive(Clone, Default)]
struct Inputs {
    services: BTreeMap<usize, ServiceInput>,
    slices: BTreeMap<usize, SliceInput>,
    pods: BTreeSet<usize>,
    cordoned: bool,
    drained: bool,
}

impl Inputs {
    fn take(&mut self, world: &mut World, step: Step) {
        match step {
            Step::Service { name, address, local, labelled } => {
                let policy = if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
                let mut input = service(NAMES[name], &[VIPS[address]], policy);
                input.ports[0].port = 80 + name as u16;
                if labelled {
                    input.labels = Ok(labels(&[("app", "web")]));
                }
                self.services.insert(name, input.clone());
                world.give([apply_service(input)]);
            }
            Step::NoService(name) => {
                if let Some(input) = self.services.remove(&name) {
                    world.give([ServicesInput::Services(RowChange::Deleted(input))]);
                }
            }
            Step::Slice { name, service, remote, here } => {
                let conditions = [Ready, Terminating, NotReady];
                let mut here: Vec<_> =
                    here.iter().map(|(pod, of)| (PODS[*pod], conditions[usize::from(*of)])).collect();
                here.sort_unstable();
                here.dedup_by_key(|(pod, _)| *pod);
                let input = slice(&format!("slice-{name}"), NAMES[service], remote, &here);
                self.slices.insert(name, input.clone());
                world.give([apply_slice(input)]);
            }
            Step::NoSlice(name) => {
                if let Some(input) = self.slices.remove(&name) {
                    world.give([ServicesInput::Slices(RowChange::Deleted(input))]);
                }
            }
            Step::Pods(pods) => {
                world.set_local(&pods.iter().map(|pod| PODS[*pod]).collect::<Vec<_>>());
                self.pods = pods;
            }
            Step::Cordon(cordoned) => {
                self.cordoned = cordoned;
                world.give([ServicesInput::Node(NodeInput { cordoned, ..NodeInput::default() })]);
            }
            Step::Stage(drained) => {
                self.drained = drained;
                world.engine.set_stage(if drained { NodeStage::Withdrawn } else { NodeStage::Active });
                world.advance();
            }
            Step::Health(health) => {
                let since = world.now;
                let away = ProxyHealth::Away { since };
                let all = [ProxyHealth::Up, away, ProxyHealth::Unhealthy, ProxyHealth::NotEligible];
                world.give([proxy(all[usize::from(health)])]);
            }
            Step::Rules { address, blocked } => {
                let state = if blocked { PortRules::Blocked } else { PortRules::Forwarded };
                world.give([all_rules(VIPS[address], state)]);
            }
            Step::Wait(time) => world.wait(millis(time)),
        }
    }
}

/// Rules for every port that a Service may have.
fn all_rules(address: &str, state: PortRules) -> ServicesInput {
    let change =
        |port| RuleChange { address: address.parse().unwrap(), protocol: Protocol::Tcp, port, rules: state };
    ServicesInput::Rules(RuleChanges { complete: false, changes: (80..83).map(change).collect() })
}

fn two_advertisements() -> ServicesPlan {
    let web = PlannedAdvertisement {
        services: selector(&[("app", "web")]),
        withdraw_cordoned: true,
        aggregation: AggregationLength { ipv4: Some(30), ipv6: None },
        ..advertisement(1)
    };
    plan(&[("all", PlannedAdvertisement { weights: true, ..advertisement(2) }), ("web", web)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// In the end, with a service proxy in order, only the last inputs count.
    #[test]
    fn history_does_not_matter_in_the_end(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let start = || {
                let mut world = World::known(TrafficPolicy::Cluster, two_advertisements());
                world.give([ServicesInput::Services(RowChange::Listed(Vec::new()))]);
                world
            };
            let (mut world, mut inputs) = (start(), Inputs { pods: [0].into(), ..Inputs::default() });
            for step in steps {
                inputs.take(&mut world, step);
            }
            let finish = |world: &mut World| {
                world.give([proxy(ProxyHealth::Up)]);
                world.give(VIPS.map(|address| all_rules(address, PortRules::Forwarded)));
                world.wait(Duration::from_secs(60));
            };
            finish(&mut world);

            let mut fresh = start();
            fresh.set_local(&inputs.pods.iter().map(|pod| PODS[*pod]).collect::<Vec<_>>());
            fresh.engine.set_stage(if inputs.drained { NodeStage::Withdrawn } else { NodeStage::Active });
            let mut all = vec![ServicesInput::Node(NodeInput { cordoned: inputs.cordoned, ..NodeInput::default() })];
            all.extend(inputs.services.into_values().map(apply_service));
            all.extend(inputs.slices.into_values().map(apply_slice));
            fresh.give(all);
            finish(&mut fresh);
            assert_eq!(world.speaker, fresh.speaker);
            let states = |world: &World| {
                let rows = world.engine.addresses.iter();
                rows.map(|(address, row)| (*address, row.state)).collect::<Vec<_>>()
            };
            assert_eq!(states(&world), states(&fresh));
            assert_eq!(world.engine.counts().addresses.values().sum::<u64>(), fresh.engine.counts().addresses.values().sum::<u64>());
            assert_eq!(world.cache, fresh.cache);
        });
    }
}

#[test]
fn an_address_of_an_l2_pool_is_a_candidate_and_no_prefix() {
    use crate::services::l2::{Candidacy, Holders};
    const L2: &str = "10.8.0.1";
    let address: IpAddr = L2.parse().unwrap();
    let mut world = World::known(TrafficPolicy::Local, ServicesPlan { bgp: false, ..plan(&[]) });
    assert_eq!(world.reason(), Some(WithheldReason::NoBgp));
    let web = service("web", &[L2], TrafficPolicy::Local);
    world.give([apply_service(web), rules(L2, PortRules::Forwarded)]);
    assert_eq!(world.reason(), Some(WithheldReason::NoEndpoint));
    assert!(world.engine.candidates().is_empty());
    world.give([apply_slice(slice("a", "web", 0, &[(POD, Ready)]))]);
    assert_eq!(world.engine.candidates(), [(address, Candidacy::Ready)].into());
    assert!(world.speaker.is_empty() && world.cache[&address].l2);

    // It waits for the election, and names the holder.
    assert_eq!(world.reason(), Some(WithheldReason::OtherHolder));
    assert!(world.engine.node_services().services.is_empty());
    let hold = |held: &[IpAddr], other: Option<&str>| {
        ServicesInput::Holders(Holders {
            held: held.iter().copied().collect(),
            others: other.map(|node| (address, Arc::from(node))).into_iter().collect(),
        })
    };
    world.give([hold(&[], Some("n2"))]);
    assert_eq!(world.view().text, "withheld: n2 answers for the address");
    world.give([hold(&[address], None)]);
    assert_eq!((world.view().state, world.reason()), (AdvertisementState::Advertised, None));
    assert_eq!(world.engine.node_services().services.len(), 1);
    assert_eq!(world.engine.counts().addresses[&(AdvertisementState::Advertised, false)], 1);

    // A soft reason: other nodes may take it. A hard one: the address is free at once.
    let labelled =
        |pairs: &[(&str, &str)]| ServicesInput::Node(NodeInput { labels: labels(pairs), cordoned: false });
    world.give([labelled(&[(label::EXCLUDE_BALANCERS, "")])]);
    assert_eq!(world.engine.candidates(), [(address, Candidacy::Leaving)].into());
    assert!(
        world.view().text.starts_with("this node answers until another node does: "),
        "{}",
        world.view().text
    );
    world.give([labelled(&[])]);
    assert_eq!(world.engine.candidates(), [(address, Candidacy::Ready)].into());
    world.give([apply_slice(slice("a", "web", 0, &[(POD, NotReady)]))]);
    assert!(world.engine.candidates().is_empty());

    // Without a device of the Network, the node cannot answer.
    world.give([apply_slice(slice("a", "web", 0, &[(POD, Ready)]))]);
    let mut without = plan(&[]);
    without.pools[1].links.clear();
    world.set_plan(without);
    assert_eq!(world.reason(), Some(WithheldReason::NoVlan));
    assert!(world.engine.candidates().is_empty() && world.cache.is_empty());
    world.give([ServicesInput::Services(RowChange::Listed(Vec::new()))]);
    assert!(world.engine.candidates().is_empty());
}
