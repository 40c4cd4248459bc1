//! Runs `docs/migrate-from-metallb.md`: MetalLB's own CRDs, roles, manifests and controller allocate
//! addresses on a real API server, and Trunkline, installed by its chart, takes them over; back, and
//! forth again. The agents advertise to the real ToRs of the topology `rack`.
//!
//! The test also looks at the page of an agent, in a browser: here are Services of many kinds.
//!
//! Invariant: from its first address on, a Service never has another one. A watch records every
//! version of every Service.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::super::kube::install::{NODES, rolled_out, wait_text, with_page};
use super::super::kube::walk::Walk;
use super::super::page::ServicesView;
use super::super::{Context, Test, Verdict, passed};
use super::world::{PATIENCE, World, ports, service};
use crate::browser;
use crate::client;
use crate::daemons::vtysh_json;
use crate::fabric::{Fabric, Place};
use crate::kube::Cluster;
use crate::kube::daemon::Daemon;
use crate::kube::golang::{Module, find_go};
use crate::packages;
use crate::progress::say;
use crate::shell::{Seen, cmd, wait_for};

pub(super) const TEST: Test = Test {
    name: "service-addresses/metallb",
    about: "docs/migrate-from-metallb.md followed with MetalLB's own controller: each Service keeps its address, back \
            and forth; the agents advertise before MetalLB ends",
    run: migrate,
};

/// The package of MetalLB's controller.
const CONTROLLER: &str = "go.universe.tf/metallb/controller";
const NAMESPACE: &str = "metallb-system";
/// MetalLB writes it on each Service that it serves.
const ALLOCATED: &str = "metallb.io/ip-allocated-from-pool";

/// Services as users of MetalLB have them, with the beginning of the address that MetalLB gives,
/// and the pool.
fn services() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let none = || json!({});
    let udp = json!({"ports": [{"port": 53, "protocol": "UDP"}]});
    let dual = json!({"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"});
    let of =
        |name: &'static str, annotations: Value, spec: Value| (name, foreign(name, annotations, spec, None));
    [
        (of("web", none(), none()), "203.0.113.", "public"),
        (of("shop/api", none(), none()), "198.51.100.", "shop"),
        (of("dual", none(), dual), "203.0.113.", "public"),
        (of("local", none(), json!({"externalTrafficPolicy": "Local"})), "203.0.113.", "public"),
        (of("asked", json!({"metallb.io/loadBalancerIPs": "203.0.113.50"}), none()), "203.0.113.50", "public"),
        (of("old", json!({"metallb.universe.tf/loadBalancerIPs": "203.0.113.51"}), none()), "203.0.113.51", "public"),
        (of("field", none(), json!({"loadBalancerIP": "203.0.113.52"})), "203.0.113.52", "public"),
        (of("pooled", json!({"metallb.io/address-pool": "reserved"}), none()), "198.51.100.6", "reserved"),
        (
            of(
                "dns-udp",
                json!({"metallb.io/allow-shared-ip": "dns", "metallb.io/loadBalancerIPs": "203.0.113.53"}),
                udp,
            ),
            "203.0.113.53",
            "public",
        ),
        (
            of(
                "dns-tcp",
                json!({"metallb.universe.tf/allow-shared-ip": "dns", "metallb.universe.tf/loadBalancerIPs": "203.0.113.53"}),
                json!({"ports": ports(53)}),
            ),
            "203.0.113.53",
            "public",
        ),
        (of("shared-1", json!({"metallb.io/allow-shared-ip": "both"}), none()), "203.0.113.", "public"),
        (
            of("shared-2", json!({"metallb.io/allow-shared-ip": "both"}), json!({"ports": ports(81)})),
            "203.0.113.",
            "public",
        ),
    ]
    .into_iter()
    .map(|((name, object), start, pool)| (name, object, start, pool))
    .collect()
}

/// A Service of another class than Trunkline's, or without a class.
fn foreign(name: &str, annotations: Value, spec: Value, class: Option<&str>) -> Value {
    let mut object = service(name, annotations, spec);
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("loadBalancerClass");
        if let Some(class) = class {
            spec.insert("loadBalancerClass".to_owned(), json!(class));
        }
    }
    object
}

/// MetalLB's controller, and MetalLB's source with its manifests. The inner error names the missing
/// part of this machine.
pub(in crate::tests) fn programs(place: &Place) -> Result<Result<(PathBuf, PathBuf), String>> {
    let module = Module::open(place)?;
    let first = || {
        say("  MetalLB's controller is built from source, once for this machine: two minutes on two cores")
    };
    if let Err(missing) = module.build(&[CONTROLLER], first)? {
        return Ok(Err(missing));
    }
    let Some(go) = find_go() else {
        return Ok(Err(
            "no manifests of MetalLB: install Go (https://go.dev/dl), which loads its module".to_owned()
        ));
    };
    Ok(Ok((module.program(CONTROLLER)?, module.foreign_source(&go, "metallb", "go.universe.tf/metallb")?)))
}

fn migrate(context: &Context) -> Result<Verdict> {
    packages::need(browser::PACKAGES)?;
    let (program, source) = match programs(&context.place)? {
        Ok(found) => found,
        Err(missing) => return Ok(Verdict::Skipped(missing)),
    };
    with_page(context, "metallb", "docs/migrate-from-metallb.md", |cluster, fabric, _, mut page| {
        trunkline(cluster, fabric, &page)?;
        let mut view = ServicesView::open(context, fabric.host(NODES[0])?)?;
        view.wait(&["No service address"])?;
        let it = Migration { cluster, fabric, world: World { cluster }, program: &program };
        it.install_metallb(&source)?;
        it.world.cluster.apply(&page.manifests("An example")?)?;
        let recorder = it.record()?;
        let mut metallb = it.start()?;
        let mut all = it.serve()?;

        page.section("Before")?;
        page.section("1. The CRDs")?;
        page.section("2. Both programs side by side")?;
        let trial = it.world.wait("trial", "203.0.113.24")?;
        ensure!(it.allocated("trial")?.is_empty(), "MetalLB serves a Service of Trunkline's class");
        page.section("3. Advertisements and pools")?;
        it.advertised_by_agents(&all)?;
        // MetalLB still allocates, also from ranges that Trunkline has now.
        all.insert("late".to_owned(), it.given("late", "public", "203.0.113.")?);
        it.claims(&[&trial])?;
        metallb.still_running()?;
        // Each row has a Service, its address, policy, endpoints, state and reason.
        let reason = "no endpoint of the Service is ready";
        let proxy = ["Service proxy", "not checked"];
        let web = [
            "default/web",
            all["web"].as_str(),
            "LoadBalancer of public",
            "0/1",
            "advertised",
            "by ServiceAdvertisement public",
        ];
        let local = ["default/local", all["local"].as_str(), "Local", "0/0", "withheld", reason];
        view.wait(&[&proxy[..], &web[..], &local[..], &["198.51.100.16/28"]].concat())?;

        page.section("4. MetalLB's controller")?;
        metallb.stop()?;
        page.section("5. Services with MetalLB's class")?;
        it.unchanged(&all)?;
        let said = page.section("6. Trunkline's controller")?;
        it.taken_over(&all, &trial, &said)?;
        all.insert("new".to_owned(), it.new_address("new", &all)?);
        view.wait(&["default/new", all["new"].as_str()])?;
        view.end()?;

        page.any_section("Back", &[])?;
        it.unchanged(&all)?;
        let mut metallb = it.start()?;
        all.insert("again".to_owned(), it.given("again", "public", "203.0.113.")?);
        it.unchanged(&all)?;
        it.advertised_by_agents(&all)?;

        page.any_section("4. MetalLB's controller", &[])?;
        metallb.stop()?;
        let said = page.any_section("6. Trunkline's controller", &[])?;
        it.taken_over(&all, &trial, &said)?;
        page.section("7. The speakers")?;
        it.advertised_by_agents(&all)?;
        page.section("8. After the migration")?;
        it.unchanged(&all)?;
        it.nothing_left(&all)?;
        all.insert("last".to_owned(), it.new_address("last", &all)?);
        it.unchanged(&all)?;
        let versions = recorder.check(&all)?;
        passed(format!(
            "{}; {} Services kept their addresses in {versions} versions of their statuses",
            page.finish()?,
            all.len()
        ))
    })
}

/// Installs Trunkline as `docs/install.md` does. The nodes have no service proxy.
fn trunkline(cluster: &Cluster, fabric: &Fabric, page: &Walk) -> Result<()> {
    let mut install = page.other("docs/install.md")?;
    install.any_section("2. The CRDs", &[])?;
    let image = "--set image.repository=";
    let without_proxy = format!("--set agent.config.services.proxy.kind=none {image}");
    install.any_section("3. The chart", &[(image, &without_proxy)])?;
    for what in ["deployment/trunkline-controller", "daemonset/trunkline-agent"] {
        rolled_out(cluster, what)?;
    }
    install.any_section("4. Networks", &[])?;
    for node in NODES {
        client::wait_established(fabric.host(node)?, PATIENCE)?;
    }
    Ok(())
}

/// Addresses by Service.
type Addresses = BTreeMap<String, String>;

struct Migration<'a> {
    cluster: &'a Cluster,
    fabric: &'a Fabric,
    world: World<'a>,
    program: &'a Path,
}

impl Migration<'_> {
    /// MetalLB's CRDs, roles and workloads. The kubelet has stand-ins for the workloads' programs, and
    /// no webhook is registered, because nothing in the cluster would serve it.
    fn install_metallb(&self, source: &Path) -> Result<()> {
        for namespace in [NAMESPACE, "shop"] {
            self.cluster.kubectl(["create", "namespace", namespace])?;
        }
        let folder = |name: &str| source.join("config").join(name).display().to_string();
        let crds = folder("crd/bases");
        self.cluster.kubectl(["apply", "--server-side", "-f", &crds])?;
        self.cluster.kubectl(["wait", "--for=condition=Established", "--timeout=30s", "-f", &crds])?;
        let file = source.join("config/rbac/role.yaml");
        let roles = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        // Its kustomization writes the namespaces of the accounts.
        let account = "  - kind: ServiceAccount\n";
        ensure!(roles.contains(account), "{}: no {account:?}", file.display());
        let roles = roles.replace(account, &format!("{account}    namespace: {NAMESPACE}\n"));
        let roles_file = self.cluster.folder().join("metallb-roles.yaml");
        std::fs::write(&roles_file, roles)?;
        let (roles, accounts) = (roles_file.display().to_string(), folder("rbac/service-accounts.yaml"));
        let (controller, speaker) =
            (folder("controllers/controller.yaml"), folder("controllers/speaker.yaml"));
        for file in [&accounts, &roles, &controller, &speaker] {
            self.cluster.kubectl(["apply", "-n", NAMESPACE, "-f", file])?;
        }
        Ok(())
    }

    /// Starts MetalLB's controller with its own rights.
    fn start(&self) -> Result<Daemon> {
        let account = self.cluster.service_account(NAMESPACE, "controller")?;
        let namespace = format!("--namespace={NAMESPACE}");
        let program = self.program.display().to_string();
        let mut command = cmd(&program, [namespace.as_str(), "--webhook-mode=disabled", "--port=0"]);
        command.env("KUBECONFIG", account).env("METALLB_BGP_TYPE", "frr");
        self.cluster.daemon("metallb-controller", command)
    }

    /// Creates the Services, and waits for the addresses from MetalLB.
    fn serve(&self) -> Result<Addresses> {
        let mut all = Addresses::new();
        let services = services();
        for (name, object, start, pool) in services {
            self.world.apply(&[object])?;
            all.insert(name.to_owned(), self.wait_given(name, pool, start)?);
        }
        ensure!(all["shared-1"] == all["shared-2"], "MetalLB shares no address: {all:?}");
        ensure!(all["dual"].split(',').count() == 2, "{all:?}");
        // A MetalLB with --lb-class serves this one.
        let class = "example.com/metallb";
        let asked = json!({"metallb.io/address-pool": "reserved"});
        self.world.apply(&[foreign("legacy", asked, json!({}), Some(class))])?;
        let (address, status) =
            ("198.51.100.70", json!({"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.70"}]}}}));
        let patch = status.to_string();
        self.cluster.kubectl([
            "patch",
            "service",
            "legacy",
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ])?;
        all.insert("legacy".to_owned(), address.to_owned());
        for name in ["web", "shop/api"] {
            self.ready_endpoint(name)?;
        }
        Ok(all)
    }

    /// Creates a Service without a class, and returns the address from MetalLB.
    fn given(&self, name: &str, pool: &str, start: &str) -> Result<String> {
        self.world.apply(&[foreign(name, json!({}), json!({}), None)])?;
        self.wait_given(name, pool, start)
    }

    fn wait_given(&self, name: &str, pool: &str, start: &str) -> Result<String> {
        wait_for(&format!("MetalLB's address for {name}"), PATIENCE, || {
            let (has, by) = (self.world.addresses(name)?, self.allocated(name)?);
            let is = !has.is_empty() && has.starts_with(start) && by == pool;
            Ok(if is { Seen::Yes(has) } else { Seen::NotYet(format!("{has:?} of {by:?}")) })
        })
    }

    /// Creates a Service without a class, and returns the address from Trunkline. No other Service
    /// may have it.
    fn new_address(&self, name: &str, all: &Addresses) -> Result<String> {
        self.world.apply(&[foreign(name, json!({}), json!({}), None)])?;
        let has = self.world.wait(name, "203.0.113.")?;
        let others: Vec<_> = all.iter().filter(|(_, other)| other.split(',').any(|one| one == has)).collect();
        ensure!(others.is_empty(), "{name} has {has}, and so have {others:?}");
        ensure!(self.allocated(name)?.is_empty(), "MetalLB serves {name}");
        Ok(has)
    }

    /// The pool that MetalLB wrote on a Service.
    fn allocated(&self, name: &str) -> Result<String> {
        Ok(self.world.get(name)?["metadata"]["annotations"][ALLOCATED]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// An EndpointSlice with a ready endpoint on a node beyond this fabric.
    fn ready_endpoint(&self, name: &str) -> Result<()> {
        let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": name},
            },
            "endpoints": [{"addresses": ["100.64.9.1"], "conditions": {"ready": true}, "nodeName": "elsewhere"}],
            "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
        });
        self.cluster.apply(&slice.to_string()).map(drop)
    }

    fn unchanged(&self, all: &Addresses) -> Result<()> {
        for (name, had) in all {
            let has = self.world.addresses(name)?;
            ensure!(has == *had, "{name} had {had}, and has {has:?}");
        }
        Ok(())
    }

    /// Checks that these addresses, and no others, have a claim.
    fn claims(&self, addresses: &[&str]) -> Result<()> {
        let mut wanted: Vec<&str> = addresses.iter().flat_map(|text| text.split(',')).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let text =
            self.cluster.kubectl(["get", "serviceaddresses", "-o", "jsonpath={.items[*].spec.address}"])?;
        let mut has: Vec<&str> = text.split_whitespace().collect();
        has.sort_unstable();
        ensure!(has == wanted, "claims for {has:?} instead of {wanted:?}");
        Ok(())
    }

    /// Checks that Trunkline has taken every address over: its claim, pool and key, and the condition.
    fn taken_over(&self, all: &Addresses, trial: &str, said: &str) -> Result<()> {
        self.unchanged(all)?;
        let changed: Vec<&str> = said.lines().filter(|line| line.starts_with(['<', '>'])).collect();
        ensure!(changed.is_empty(), "diff: {changed:?}");
        for (name, address) in all {
            let condition = self.world.condition(name)?;
            ensure!(
                condition["status"] == "True" && condition["message"].as_str().is_none_or(str::is_empty),
                "{name}: {condition}"
            );
            let bare = name.split_once('/').map_or(name.as_str(), |(_, bare)| bare);
            for address in address.split(',') {
                let claim = self.world.claim(address)?.with_context(|| format!("{address}: no claim"))?;
                let named = claim["spec"]["services"].as_array().into_iter().flatten();
                ensure!(named.filter(|of| of["name"] == bare).count() == 1, "{name}: {claim}");
            }
        }
        let mut addresses: Vec<&str> = all.values().map(String::as_str).collect();
        addresses.push(trial);
        self.claims(&addresses)?;
        for (name, _, _, pool) in services() {
            for address in all[name].split(',') {
                let claim = self.world.claim(address)?.context("a claim")?;
                ensure!(claim["spec"]["pool"] == pool, "{name}: {claim}");
            }
        }
        for (name, key) in [("dns-udp", "dns"), ("shared-1", "both")] {
            let claim = self.world.claim(&all[name])?.context("a claim")?;
            let users = claim["spec"]["services"].as_array().map_or(0, Vec::len);
            ensure!(claim["spec"]["sharingKey"] == key && users == 2, "{name}: {claim}");
        }
        for name in all.keys() {
            let lost: Vec<String> = self
                .world
                .events(name)?
                .into_iter()
                .filter(|event| event.starts_with("AddressLost") || event.starts_with("AllocationFailed"))
                .collect();
            ensure!(lost.is_empty(), "{name}: {lost:?}");
        }
        Ok(())
    }

    /// Waits until both nodes advertise as the page's ServiceAdvertisements describe.
    fn advertised_by_agents(&self, all: &Addresses) -> Result<()> {
        let web = format!("{}/32", all["web"]);
        let attributes = ["65000:100", "65000:1:2"];
        for tor in ["tor1", "tor2"] {
            self.wait_paths(tor, &web, 2, &attributes)?;
        }
        // The pool shop: one prefix for its addresses, to one router.
        self.wait_paths("tor1", "198.51.100.16/28", 2, &[])?;
        self.wait_paths("tor2", "198.51.100.16/28", 0, &[])
    }

    fn wait_paths(&self, tor: &str, prefix: &str, count: usize, attributes: &[&str]) -> Result<()> {
        let host = self.fabric.host(tor)?;
        wait_for(&format!("{count} paths to {prefix} in {tor}"), PATIENCE, || {
            let answer = vtysh_json(host, &format!("show bgp ipv4 unicast {prefix} json"))?;
            let exact = answer["prefix"] == prefix;
            let paths = answer["paths"].as_array().filter(|_| exact).cloned().unwrap_or_default();
            let has = |path: &Value| {
                let words = |field: &str| path[field]["string"].as_str().unwrap_or_default().to_owned();
                let text = format!("{} {}", words("community"), words("largeCommunity"));
                attributes.iter().all(|attribute| text.split_whitespace().any(|word| word == *attribute))
            };
            Ok(Seen::when(paths.len() == count && paths.iter().all(has), || answer.to_string()))
        })
    }

    /// Nothing of MetalLB is left that the page deletes.
    fn nothing_left(&self, all: &Addresses) -> Result<()> {
        let kinds =
            "ipaddresspools,bgpadvertisements,bgppeers,bfdprofiles,communities,deployments,daemonsets";
        wait_text(
            self.cluster,
            &["-n", NAMESPACE, "get", kinds, "-o", "name"],
            "MetalLB to be gone",
            str::is_empty,
        )?;
        for name in all.keys() {
            ensure!(self.allocated(name)?.is_empty(), "{name} still has {ALLOCATED}");
        }
        let trial = self.cluster.kubectl(["get", "service,servicepool", "-A", "-o", "name"])?;
        ensure!(!trial.contains("trial"), "{trial}");
        Ok(())
    }

    /// Records each version of each Service from now on.
    fn record(&self) -> Result<Recorder> {
        let columns =
            "jsonpath={.metadata.namespace}/{.metadata.name} {.status.loadBalancer.ingress[*].ip}{\"\\n\"}";
        let command = self.cluster.kubectl_command(&["get", "services", "-A", "--watch", "-o", columns]);
        Ok(Recorder(self.cluster.daemon("services-watch", command)?))
    }
}

/// A watch of all Services, which writes a line for each version.
struct Recorder(Daemon);

impl Recorder {
    /// Waits until the watch has written the last version of every Service, and checks every version:
    /// no Service ever had another address than now. Only the one that the page creates again was
    /// without an address meanwhile. Returns the number of versions.
    fn check(mut self, all: &Addresses) -> Result<usize> {
        let log = self.0.log().to_owned();
        self.0.wait_while_running("the watch to write every Service", PATIENCE, || {
            let (known, versions) = Self::known(&std::fs::read_to_string(&log)?, all)?;
            Ok(if known == *all { Seen::Yes(versions) } else { Seen::NotYet(format!("{known:?}")) })
        })
    }

    /// The last address of each of these Services, and the number of their versions.
    fn known(log: &str, all: &Addresses) -> Result<(Addresses, usize)> {
        let (mut known, mut versions) = (Addresses::new(), 0);
        // The last line may be incomplete.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let Some((name, has)) = line.split_once(' ') else { continue };
            let name = name.strip_prefix("default/").unwrap_or(name);
            if !all.contains_key(name) {
                continue;
            }
            versions += 1;
            let has = has.split_whitespace().collect::<Vec<_>>().join(",");
            match known.get(name) {
                _ if has.is_empty() && (name == "legacy" || !known.contains_key(name)) => {}
                Some(had) if *had != has => bail!("{name} had {had}, and then {has:?}"),
                Some(_) => {}
                None => drop(known.insert(name.to_owned(), has)),
            }
        }
        Ok((known, versions))
    }
}
