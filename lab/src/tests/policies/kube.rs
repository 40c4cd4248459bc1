//! Each kind of peer, port, tier and direction, between pods, nodes and a host outside. Each case
//! has policies and rows with the open ports; every other port must be dropped.
//!
//! Each connection has one IP family, which alternates between ports and between cases.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::table::{Cell, Row, differences, equal, is_open, wait_equal};
use super::traffic::{Outcome, PORTS, Port, Servers, connect};
use super::world::{self, Channel, NODE1, OUTSIDE, Plan, Running, SOON, World, of_family};
use super::{Context, Test, Verdict};
use crate::demo::ms;
use crate::kube::assets::Assets;
use crate::kube::proxy::{self, Mode};
use crate::netns::Namespace;
use crate::shell::{Seen, wait_for};
use crate::tests::passed;

pub(super) const TEST: Test = Test {
    name: "policies/kube",
    about: "NetworkPolicies and ClusterNetworkPolicies between pods of three nodes, nodes and a host outside: \
            each pair and port as the table says; established connections, labels, a Service",
    run,
};

const NAMESPACES: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: shop, labels: { team: shop } }
---
apiVersion: v1
kind: Namespace
metadata: { name: ops, labels: { team: ops } }
---
apiVersion: v1
kind: Namespace
metadata: { name: guests, labels: { team: guests } }
";

/// `guest` has the label of `api` in another Namespace.
const PODS: [Plan<'static>; 5] = [
    Plan { namespace: "shop", name: "web", node: "node1", labels: &[("app", "web")] },
    Plan { namespace: "shop", name: "api", node: "node2", labels: &[("app", "api")] },
    Plan { namespace: "shop", name: "db", node: "node3", labels: &[("app", "db")] },
    Plan { namespace: "ops", name: "tool", node: "node1", labels: &[("app", "tool")] },
    Plan { namespace: "guests", name: "guest", node: "node2", labels: &[("app", "api")] },
];

const ALL: &[Port] = &PORTS;
const NONE: &[Port] = &[];
const SHOP: &str = "web|api|db";
const WEB: Port = Port::Tcp(80);
const ALT: Port = Port::Tcp(8080);
const HIGH: Port = Port::Tcp(8085);
const DNS: Port = Port::Udp(53);

/// Policies, and the open ports with them.
struct Case {
    name: &'static str,
    policies: &'static str,
    rows: &'static [Row],
}

const INGRESS_DENY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: deny-ingress, namespace: shop }
spec: { podSelector: {}, policyTypes: [Ingress] }
";

const EGRESS_DENY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: deny-egress, namespace: shop }
spec: { podSelector: {}, policyTypes: [Egress] }
";

const CASES: &[Case] = &[
    Case { name: "no policy", policies: "", rows: &[("*", "*", ALL)] },
    Case {
        name: "ingress denied",
        policies: INGRESS_DENY,
        // A node reaches its own pods always.
        rows: &[("*", "*", ALL), ("*", SHOP, NONE), ("node1", "web", ALL)],
    },
    Case {
        name: "ingress from selected pods",
        policies: "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: deny-ingress, namespace: shop }
spec: { podSelector: {}, policyTypes: [Ingress] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: db, namespace: shop }
spec:
  podSelector: { matchLabels: { app: db } }
  ingress: [{ from: [{ podSelector: { matchLabels: { app: api } } }] }]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: web, namespace: shop }
spec:
  podSelector: { matchLabels: { app: web } }
  ingress:
    - { from: [{ namespaceSelector: { matchLabels: { team: ops } } }], ports: [{ port: web }] }
    - { from: [{ podSelector: {} }], ports: [{ port: dns, protocol: UDP }] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: api, namespace: shop }
spec:
  podSelector: { matchExpressions: [{ key: app, operator: In, values: [api] }] }
  ingress:
    - from:
        - namespaceSelector: { matchExpressions: [{ key: team, operator: NotIn, values: [guests] }] }
          podSelector: { matchLabels: { app: tool } }
      ports: [{ port: 8080, endPort: 8090 }, { port: 53, protocol: UDP }]
",
        rows: &[
            ("*", "*", ALL),
            ("*", SHOP, NONE),
            ("node1", "web", ALL),
            ("api", "db", ALL),
            ("tool", "web", &[WEB]),
            ("api|db", "web", &[DNS]),
            ("tool", "api", &[ALT, HIGH, DNS]),
        ],
    },
    Case {
        name: "ingress from blocks",
        policies: "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: deny-ingress, namespace: shop }
spec: { podSelector: {}, policyTypes: [Ingress] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: db, namespace: shop }
spec:
  podSelector: { matchLabels: { app: db } }
  ingress:
    - from:
        - ipBlock: { cidr: 0.0.0.0/0, except: [10.61.0.0/16] }
        - ipBlock: { cidr: '::/0', except: ['fd00:61::/112'] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: web, namespace: shop }
spec:
  podSelector: { matchLabels: { app: web } }
  ingress:
    - from: [{ ipBlock: { cidr: 10.90.0.0/24 } }, { ipBlock: { cidr: 'fd00:90::/64' } }]
      ports: [{ port: 80 }]
",
        rows: &[
            ("*", "*", ALL),
            ("*", SHOP, NONE),
            ("node1", "web", ALL),
            // The pods of rack 1 are in the exceptions.
            ("outside|node1", "db", ALL),
            ("outside", "web", &[WEB]),
        ],
    },
    Case {
        name: "egress denied",
        policies: EGRESS_DENY,
        // A pod's own node is no exception.
        rows: &[("*", "*", ALL), (SHOP, "*", NONE)],
    },
    Case {
        name: "egress to selected peers",
        policies: "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: deny-egress, namespace: shop }
spec: { podSelector: {}, policyTypes: [Egress] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: api, namespace: shop }
spec:
  podSelector: { matchLabels: { app: api } }
  policyTypes: [Egress]
  egress: [{ to: [{ podSelector: { matchLabels: { app: db } } }], ports: [{ port: alt }] }]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: db, namespace: shop }
spec:
  podSelector: { matchLabels: { app: db } }
  policyTypes: [Egress]
  egress:
    - to: [{ ipBlock: { cidr: 10.90.0.0/24 } }, { ipBlock: { cidr: 'fd00:90::/64' } }]
      ports: [{ port: 53, protocol: UDP }]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: web, namespace: shop }
spec:
  podSelector: { matchLabels: { app: web } }
  policyTypes: [Egress]
  egress:
    - to: [{ namespaceSelector: { matchLabels: { team: ops } } }]
    - to: [{ ipBlock: { cidr: 10.51.0.11/32 } }, { ipBlock: { cidr: 'fd00:51::11/128' } }]
      ports: [{ port: 8000, endPort: 8100 }]
",
        rows: &[
            ("*", "*", ALL),
            (SHOP, "*", NONE),
            ("api", "db", &[ALT]),
            ("db", "outside", &[DNS]),
            ("web", "tool", ALL),
            ("web", "node1", &[ALT, HIGH]),
        ],
    },
    Case {
        name: "Admin tier",
        policies: "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: deny-ingress, namespace: shop }
spec: { podSelector: {}, policyTypes: [Ingress] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: web, namespace: shop }
spec:
  podSelector: { matchLabels: { app: web } }
  ingress: [{ from: [{ namespaceSelector: { matchLabels: { team: guests } } }] }]
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: { name: ops-first }
spec:
  tier: Admin
  priority: 10
  subject: { namespaces: { matchLabels: { team: shop } } }
  ingress:
    - action: Accept
      from: [{ namespaces: { matchLabels: { team: ops } } }]
      protocols: [{ tcp: { destinationPort: { number: 80 } } }]
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: { name: guests }
spec:
  tier: Admin
  priority: 20
  subject: { namespaces: { matchLabels: { team: shop } } }
  ingress:
    - action: Pass
      from: [{ pods: { namespaceSelector: { matchLabels: { team: guests } }, podSelector: {} } }]
      protocols: [{ tcp: { destinationPort: { range: { start: 8080, end: 8081 } } } }]
    - action: Deny
      from: [{ namespaces: { matchLabels: { team: guests } } }]
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: { name: ops-last }
spec:
  tier: Admin
  priority: 30
  subject: { namespaces: {} }
  ingress: [{ action: Deny, from: [{ namespaces: { matchLabels: { team: ops } } }] }]
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: { name: guests-stay }
spec:
  tier: Admin
  priority: 30
  subject: { pods: { namespaceSelector: {}, podSelector: { matchLabels: { app: api } } } }
  egress:
    - { action: Deny, to: [{ networks: [10.90.0.0/24, 'fd00:90::/64'] }], protocols: [{ udp: { destinationPort: { range: { start: 1, end: 65535 } } } }, { tcp: { destinationPort: { range: { start: 1, end: 65535 } } } }] }
",
        rows: &[
            ("*", "*", ALL),
            ("*", SHOP, NONE),
            ("node1", "web", ALL),
            // Accepted before the Deny of `ops-last`, and before NetworkPolicies.
            ("tool", "*", NONE),
            ("tool", SHOP, &[WEB]),
            ("tool", "outside|node1", ALL),
            // Passed to NetworkPolicies: one of them allows guests at `web`.
            ("guest", "web", &[ALT]),
            ("guest|api", "outside", &[Port::Icmp]),
        ],
    },
    Case {
        name: "Baseline tier",
        policies: "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: db, namespace: shop }
spec:
  podSelector: { matchLabels: { app: db } }
  ingress: [{ ports: [{ port: 8080 }] }]
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: { name: baseline }
spec:
  tier: Baseline
  priority: 5
  subject: { namespaces: {} }
  ingress:
    - { action: Accept, from: [{ namespaces: { matchLabels: { team: ops } } }], protocols: [{ udp: { destinationPort: { number: 53 } } }] }
    - { action: Deny, from: [{ namespaces: { matchExpressions: [{ key: team, operator: In, values: [ops] }] } }] }
",
        rows: &[
            ("*", "*", ALL),
            ("tool", "web|api|guest", &[DNS]),
            // A NetworkPolicy selects `db`, so the Baseline tier has no effect there.
            ("*", "db", &[ALT]),
        ],
    },
];

/// All ends of connections.
struct Scene<'a, 'b> {
    world: &'a World<'b>,
    pods: Vec<Running>,
    _servers: Vec<Servers>,
}

fn run(context: &Context) -> Result<Verdict> {
    world::run(context, "policies-kube", Channel::Standard, NAMESPACES, |world| {
        let world = &*world;
        let pods = PODS.iter().map(|plan| world.attach(plan)).collect::<Result<Vec<_>>>()?;
        let mut servers = Vec::new();
        for pod in &pods {
            servers.push(Servers::start(&pod.sandbox.ns)?);
        }
        for host in ["node1", "outside"] {
            servers.push(Servers::start(&world.bed.host(host)?.ns)?);
        }
        let scene = Scene { world, pods, _servers: servers };
        let mut made = 0;
        let began = Instant::now();
        for (number, case) in CASES.iter().enumerate() {
            made += scene.case(number).with_context(|| format!("case {:?}", case.name))?;
        }
        let took = began.elapsed();
        scene.established().context("an established connection")?;
        let labels = scene.labels().context("labels of a pod on another node")?;
        let service = scene.service(context).context("a Service")?;
        passed(format!(
            "{made} connections of {} cases in {:.1} s; a label on another node takes effect after {:.0} ms{service}",
            CASES.len(),
            took.as_secs_f64(),
            ms(labels)
        ))
    })
}

impl Scene<'_, '_> {
    fn pod(&self, name: &str) -> Result<&Running> {
        self.pods.iter().find(|pod| pod.name == name).with_context(|| format!("no pod {name}"))
    }

    fn end(&self, name: &str, v4: bool) -> Result<(Namespace, IpAddr)> {
        let fixed = match name {
            "node1" => NODE1,
            "outside" => OUTSIDE,
            _ => {
                let pod = self.pod(name)?;
                return Ok((pod.sandbox.ns.clone(), of_family(&pod.addresses, v4)?));
            }
        };
        Ok((self.world.bed.host(name)?.ns.clone(), fixed[usize::from(!v4)].parse()?))
    }

    /// All connections of a case.
    fn cells(&self, number: usize, rows: &[Row]) -> Result<Vec<Cell>> {
        let names: Vec<&str> = PODS.iter().map(|plan| plan.name).chain(["node1", "outside"]).collect();
        let mut cells = Vec::new();
        for from in &names {
            for to in names.iter().filter(|to| *to != from) {
                let is_host = |name: &str| matches!(name, "node1" | "outside");
                if is_host(from) && is_host(to) {
                    continue;
                }
                for (index, port) in PORTS.into_iter().enumerate() {
                    let v4 = (number + index + cells.len() / PORTS.len()).is_multiple_of(2);
                    cells.push(Cell {
                        name: format!("{from} → {to}"),
                        from: self.end(from, v4)?.0,
                        to: self.end(to, v4)?.1,
                        port,
                        open: is_open(rows, from, to, port),
                    });
                }
            }
        }
        Ok(cells)
    }

    /// Runs a case; returns the number of its connections.
    fn case(&self, number: usize) -> Result<usize> {
        let case = &CASES[number];
        if number > 0 {
            self.world.replace_policies(case.policies)?;
        }
        let cells = self.cells(number, case.rows)?;
        wait_equal(&cells, SOON)?;
        equal(&cells)?;
        Ok(cells.len())
    }

    /// A connection that exists before a policy denies it goes on. A new one is dropped.
    fn established(&self) -> Result<()> {
        self.world.replace_policies("")?;
        let (web, api) = (self.pod("web")?, self.pod("api")?);
        for v4 in [true, false] {
            let to = of_family(&web.addresses, v4)?;
            let open = [Cell {
                name: "api → web".to_owned(),
                from: api.sandbox.ns.clone(),
                to,
                port: WEB,
                open: true,
            }];
            wait_equal(&open, SOON)?;
            let mut connection = Echoed::open(&api.sandbox.ns, &web.sandbox.ns, to)?;
            connection.exchange().context("before the policy")?;
            self.world.cluster.apply(INGRESS_DENY)?;
            let [mut denied] = open;
            denied.open = false;
            wait_equal(&[denied], SOON)?;
            connection.exchange().context("after the policy")?;
            self.world.replace_policies("")?;
        }
        Ok(())
    }

    /// A policy of `web` on node1 selects `api` on node2 by a label that changes. Returns the time
    /// from the start of the request until the first connection.
    fn labels(&self) -> Result<Duration> {
        self.world.replace_policies(
            "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: clients, namespace: shop }
spec:
  podSelector: { matchLabels: { app: web } }
  ingress: [{ from: [{ podSelector: { matchLabels: { client: 'yes' } } }] }]
",
        )?;
        let (web, api) = (self.pod("web")?, self.pod("api")?);
        let cells = |open: bool| -> Result<[Cell; 2]> {
            let cell = |v4: bool| -> Result<Cell> {
                Ok(Cell {
                    name: "api → web".to_owned(),
                    from: api.sandbox.ns.clone(),
                    to: of_family(&web.addresses, v4)?,
                    port: WEB,
                    open,
                })
            };
            Ok([cell(true)?, cell(false)?])
        };
        wait_equal(&cells(false)?, SOON)?;
        let (since, to) = (Instant::now(), of_family(&web.addresses, true)?);
        self.world.label(api, &json!({ "client": "yes" }))?;
        // Short attempts: the time of a dropped one would be part of the result.
        let took = wait_for("the label to take effect", SOON, || {
            let target = SocketAddr::from((to, 80));
            let attempt = api.sandbox.ns.within(|| {
                Ok(TcpStream::connect_timeout(&target, Duration::from_millis(10)).map_err(|e| e.to_string()))
            })?;
            Ok(match attempt {
                Ok(_) => Seen::Yes(since.elapsed()),
                Err(error) => Seen::NotYet(error),
            })
        })?;
        equal(&cells(true)?)?;
        self.world.label(api, &json!({ "client": null }))?;
        wait_equal(&cells(false)?, SOON)?;
        Ok(took)
    }

    /// A Service's address: policies see the pods, not the Service's address.
    fn service(&self, context: &Context) -> Result<String> {
        let Ok(program) = Assets::proxy(&context.place)? else { return Ok(String::new()) };
        let World { cluster, bed, .. } = self.world;
        let (db, web, api) = (self.pod("db")?, self.pod("web")?, self.pod("api")?);
        let backend = of_family(&db.addresses, true)?;
        let (namespace, account) = proxy::ACCOUNT;
        let kubeconfig = cluster.service_account(namespace, account)?;
        cluster.create(proxy::RIGHTS)?;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "db", "namespace": "shop" },
            "spec": { "ports": [{ "port": 1080, "targetPort": 80 }] },
        });
        cluster.create(&service.to_string())?;
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": "db", "namespace": "shop", "labels": { "kubernetes.io/service-name": "db" } },
            "addressType": "IPv4", "ports": [{ "name": "", "port": 80, "protocol": "TCP" }],
            "endpoints": [{ "addresses": [backend], "conditions": { "ready": true }, "nodeName": "node3" }],
        });
        cluster.create(&slice.to_string())?;
        let address: IpAddr = cluster
            .kubectl(["-n", "shop", "get", "service", "db", "-o", "jsonpath={.spec.clusterIP}"])?
            .parse()
            .context("the Service's address")?;
        let mut proxies = Vec::new();
        for node in ["node1", "node2"] {
            proxies.push(proxy::start(
                cluster.folder(),
                bed.host(node)?,
                &program,
                &kubeconfig,
                Mode::Nftables,
            )?);
        }
        self.world.replace_policies(
            "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: db, namespace: shop }
spec:
  podSelector: { matchLabels: { app: db } }
  ingress: [{ from: [{ podSelector: { matchLabels: { app: web } } }], ports: [{ port: web }] }]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: web, namespace: shop }
spec:
  podSelector: { matchLabels: { app: web } }
  policyTypes: [Egress]
  egress: [{ to: [{ podSelector: { matchLabels: { app: db } } }], ports: [{ port: 80 }] }]
",
        )?;
        let cell = |from: &Running, open: bool| Cell {
            name: format!("{} → Service db", from.name),
            from: from.sandbox.ns.clone(),
            to: address,
            port: Port::Tcp(1080),
            open,
        };
        wait_equal(&[cell(web, true)], SOON).context("kube-proxy's rules")?;
        wait_equal(&[cell(api, false)], SOON)?;
        equal(&[cell(web, true), cell(api, false)])?;
        let direct = [Cell { to: backend, port: WEB, ..cell(web, true) }];
        ensure!(differences(&direct)?.is_empty(), "web does not reach db directly");
        proxies.iter_mut().try_for_each(|proxy| proxy.still_running())?;
        ensure!(connect(&api.sandbox.ns, backend, WEB, false)? == Outcome::Dropped, "api reaches db");
        Ok("; a Service's address as its pods".to_owned())
    }
}

/// A connection whose other end returns everything.
struct Echoed {
    stream: TcpStream,
}

impl Echoed {
    fn open(from: &Namespace, at: &Namespace, to: IpAddr) -> Result<Self> {
        let listener = at.within(|| Ok(TcpListener::bind(("::", 0))?))?;
        let to = SocketAddr::from((to, listener.local_addr()?.port()));
        let stream = from.within(|| Ok(TcpStream::connect(to)?))?;
        stream.set_read_timeout(Some(SOON))?;
        let (mut other, _) = listener.accept()?;
        // Ends with the connection.
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok(length @ 1..) = other.read(&mut buffer) {
                let _gone = other.write_all(&buffer[..length]);
            }
        });
        Ok(Self { stream })
    }

    fn exchange(&mut self) -> Result<()> {
        let mut buffer = [0; 4];
        self.stream.write_all(b"ping")?;
        self.stream.read_exact(&mut buffer)?;
        ensure!(buffer == *b"ping");
        Ok(())
    }
}
