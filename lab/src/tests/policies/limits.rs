//! One tenant writes inputs of `docs/limits.md` at their bounds and far beyond, to a real API
//! server. Agents and controller have the chart's memory limits. Meanwhile the pods of another
//! tenant start, connect and are protected.
//!
//! An input without a row on the page fails the test, and a row without an input too. The suite writes
//! the most expensive inputs at 10 times their bounds, a soak every input at 1, 10 and 100 times. With the
//! environment variable `TRUNKLINE_LIMITS_ROWS`, only rows with one of these texts, separated by `|`, are
//! written, and with `TRUNKLINE_LIMITS_SCALES` at these multiples, such as `1,10`.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Pid;
use trunkline_api::control::{PoliciesView, PolicyState};

use super::table::{Cell, equal, wait_equal};
use super::traffic::{Outcome, Port, Servers, connect};
use super::world::{self, Channel, NODES, Plan, Running, SOON, World, of_family};
use super::{Context, Test, Verdict};
use crate::bench::memory::megabytes;
use crate::cgroup::MemoryLimit;
use crate::client;
use crate::demo::ms;
use crate::netns::Namespace;
use crate::progress::say;
use crate::shell::{Seen, wait_for};
use crate::tests::passed;

mod inputs;

use inputs::{ATTACHED, CRDS, Input, NAMESPACES, clear, namespace};

pub(super) const TEST: Test = Test {
    name: "policies/limits",
    about: "a tenant writes inputs of docs/limits.md up to 100 times their bounds, with the chart's memory limits: \
            nothing is killed, and the other tenant's pods start, connect and stay protected",
    run,
};

/// The variable that selects rows.
const ROWS: &str = "TRUNKLINE_LIMITS_ROWS";
/// The variable with other multiples of the bounds.
const SCALES: &str = "TRUNKLINE_LIMITS_SCALES";

/// The Namespace of the tenant who writes.
const TENANT: &str = "tenant";
/// The Namespace of the other tenant.
const VICTIM: &str = "victim";
/// The chart's limits (`agent.resources`, `controller.resources`).
const AGENT_LIMIT: u64 = 512 << 20;
const CONTROLLER_LIMIT: u64 = 1 << 30;
/// The memory that a hostile tenant may cost an agent, in MB of 1,000,000 octets.
const MOST_GROWTH_MB: f64 = 64.0 * 1.048_576;
/// Multiples of a bound: in the suite, and in a soak.
const SUITE: [usize; 1] = [10];
const SOAK: [usize; 3] = [1, 10, 100];
/// A bound that ends a hang. The verdict has the longest ADD.
const HANG: Duration = Duration::from_secs(30);

const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: tenant, labels: { team: tenant } }
---
apiVersion: v1
kind: Namespace
metadata: { name: victim, labels: { team: victim } }
---
apiVersion: trunkline.io/v1alpha1
kind: ServicePool
metadata: { name: written }
spec: { addresses: [29.0.0.0/24] }
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: db, namespace: victim }
spec:
  podSelector: { matchLabels: { app: db } }
  ingress: [{ from: [{ podSelector: { matchLabels: { app: web } } }] }]
";

fn plan<'a>(namespace: &'a str, name: &'a str, node: &'a str, labels: &'a [(&'a str, &'a str)]) -> Plan<'a> {
    Plan { namespace, name, node, labels }
}

fn run(context: &Context) -> Result<Verdict> {
    inputs::match_rows(&context.place.repository)?;
    let scales: &[usize] = if context.long { &SOAK } else { &SUITE };
    let chosen = match std::env::var(SCALES) {
        Ok(scales) => scales.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>().context(SCALES)?,
        Err(_) => scales.to_vec(),
    };
    let scales = &chosen;
    let rows = std::env::var(ROWS).ok();
    let is_wanted = |input: &&Input| match &rows {
        Some(rows) => rows.split('|').any(|text| input.row.contains(text)),
        None => context.long || input.costly,
    };
    let inputs: Vec<&Input> = inputs::all().filter(is_wanted).collect();
    ensure!(!inputs.is_empty(), "no row has a text of {ROWS}={rows:?}");
    let namespaces = (0..NAMESPACES).map(|n| {
        format!(
            "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {{ name: {}, labels: {{ team: tenant }} }}",
            namespace(n)
        )
    });
    let objects = namespaces
        .chain(CRDS.map(|crd| format!("\n---\n{crd}")))
        .fold(OBJECTS.to_owned(), |all, one| all + &one);
    world::run(context, "policies-limits", Channel::Standard, &objects, |world| {
        let web = world.attach(&plan(VICTIM, "web", "node2", &[("app", "web")]))?;
        let db = world.attach(&plan(VICTIM, "db", "node1", &[("app", "db")]))?;
        let other = world.attach(&plan(VICTIM, "other", "node2", &[("app", "other")]))?;
        // The tenant's policies are compiled on the nodes of its pods.
        for (number, node) in ["node1", "node2"].into_iter().enumerate() {
            world.attach(&plan(TENANT, &format!("{ATTACHED}{number}"), node, &[("app", "evil")]))?;
        }
        for number in 0..NAMESPACES {
            let name = format!("{ATTACHED}-of{number}");
            world.attach(&plan(&namespace(number), &name, "node1", &[("app", "evil")]))?;
        }
        let _servers = Servers::start(&db.sandbox.ns)?;
        let cells = [cell(&web, &db, true)?, cell(&other, &db, false)?];
        wait_equal(&cells, SOON)?;
        let programs = Programs::limit(world)?;
        let connections = Connections::start(&web.sandbox.ns, of_family(&db.addresses, true)?);
        let mut figures = Figures::default();
        for input in &inputs {
            for scale in scales {
                attack(world, input, *scale, &programs, &cells, &mut figures)
                    .with_context(|| format!("{}, {scale} times its bound", input.row))?;
            }
        }
        let (made, lost) = connections.stop()?;
        ensure!(
            made > 0 && lost.is_empty(),
            "{} of {made} connections failed: {:?}",
            lost.len(),
            lost.first()
        );
        passed(format!(
            "{} inputs up to {} times their bounds: {made} connections, none lost; {} ADDs, the longest {:.0} ms; \
             at most {:.1} MB more memory of an agent, {:.1} MB of the controller; {}",
            inputs.len(),
            scales.last().copied().unwrap_or_default(),
            figures.adds,
            ms(figures.longest),
            figures.agent_mb,
            figures.controller_mb,
            if programs.groups.is_empty() { "no memory limit on this machine" } else { "nothing killed" },
        ))
    })
}

/// What the attacks cost.
#[derive(Default)]
struct Figures {
    adds: usize,
    longest: Duration,
    agent_mb: f64,
    controller_mb: f64,
}

/// Writes one input. Meanwhile a pod of the other tenant starts, and its rules hold.
fn attack(
    world: &World<'_>,
    input: &Input,
    scale: usize,
    programs: &Programs,
    cells: &[Cell],
    figures: &mut Figures,
) -> Result<()> {
    let began = Instant::now();
    (input.write)(world, scale)?;
    let wrote = began.elapsed();
    let mut longest = Duration::ZERO;
    for (number, node) in ["node1", "node2"].into_iter().enumerate() {
        let name = format!("late{number}");
        let labels = [("app", "db")];
        let sandbox = world.create(&plan(VICTIM, &name, node, &labels))?;
        let began = Instant::now();
        let late = world.start(sandbox).context("a pod of the other tenant")?;
        let took = began.elapsed();
        ensure!(took < HANG, "ADD of a pod of the other tenant took {took:?}");
        figures.adds += 1;
        longest = longest.max(took);
        equal(cells).context("the other tenant's policy")?;
        world.remove(late)?;
    }
    programs.wait_current(world)?;
    programs.unharmed(world)?;
    let (agent, controller) = programs.growth()?;
    say(&format!(
        "  {}, {scale} times: written in {:.1} s, ADDs of {:.0} ms at most, in force after {:.1} s, an agent {agent:+.1} MB, the controller {controller:+.1} MB",
        input.row,
        wrote.as_secs_f64(),
        ms(longest),
        began.elapsed().as_secs_f64(),
    ));
    figures.longest = figures.longest.max(longest);
    figures.agent_mb = figures.agent_mb.max(agent);
    figures.controller_mb = figures.controller_mb.max(controller);
    ensure!(agent <= MOST_GROWTH_MB, "the input costs an agent {agent:.1} MB, at most {MOST_GROWTH_MB:.1}");
    clear(world)?;
    programs.wait_current(world)
}

fn cell(from: &Running, to: &Running, open: bool) -> Result<Cell> {
    Ok(Cell {
        name: format!("{} → {}", from.name, to.name),
        from: from.sandbox.ns.clone(),
        to: of_family(&to.addresses, true)?,
        port: Port::Tcp(80),
        open,
    })
}

/// The processes under attack.
struct Programs {
    agents: Vec<(Pid, f64)>,
    controller: (Pid, f64),
    groups: Vec<MemoryLimit>,
}

impl Programs {
    /// Gives each process the chart's memory limit.
    fn limit(world: &World<'_>) -> Result<Self> {
        let mut groups = Vec::new();
        let mut limited = |name: &str, pid: Pid, octets: u64| -> Result<()> {
            if let Some(group) = MemoryLimit::create(&format!("tl-limits-{name}"), octets)? {
                group.insert(pid)?;
                groups.push(group);
            }
            Ok(())
        };
        let mut agents = Vec::new();
        for node in NODES {
            let pid = client::agent(world.bed.host(node)?)?;
            limited(node, pid, AGENT_LIMIT)?;
            agents.push((pid, resident(pid)?));
        }
        let controller = world.controller.first().context("a controller")?;
        limited("controller", controller, CONTROLLER_LIMIT)?;
        let controller = (controller, resident(controller)?);
        Ok(Self { agents, controller, groups })
    }

    /// Fails if a process was killed or replaced.
    fn unharmed(&self, world: &World<'_>) -> Result<()> {
        for group in &self.groups {
            ensure!(group.kills()? == 0, "the kernel killed a process at its memory limit");
        }
        for (node, (pid, _)) in NODES.into_iter().zip(&self.agents) {
            let now = client::agent(world.bed.host(node)?)?;
            ensure!(now == *pid, "the agent of {node} is another process");
        }
        resident(self.controller.0).map(drop).context("the controller has ended")
    }

    /// Waits until each agent has all rules in force.
    fn wait_current(&self, world: &World<'_>) -> Result<()> {
        for node in NODES {
            let host = world.bed.host(node)?;
            wait_for(&format!("the rules of {node}"), SOON, || {
                let view: PoliciesView = client::ask(host, &["policies"])?;
                let is_current = view.summary.state == PolicyState::InForce;
                Ok(Seen::when(is_current, || format!("{:?}", view.summary)))
            })?;
        }
        Ok(())
    }

    /// The largest growth of an agent, and that of the controller, in MB.
    fn growth(&self) -> Result<(f64, f64)> {
        let mut most: f64 = 0.0;
        for (pid, before) in &self.agents {
            most = most.max(resident(*pid)? - before);
        }
        Ok((most, resident(self.controller.0)? - self.controller.1))
    }
}

fn resident(pid: Pid) -> Result<f64> {
    megabytes(pid, "status", "VmRSS")
}

/// One connection after the other, until it is stopped.
struct Connections {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    thread: JoinHandle<Result<Vec<Outcome>>>,
}

impl Connections {
    fn start(from: &Namespace, to: IpAddr) -> Self {
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (from, stopped, count) = (from.clone(), Arc::clone(&stop), Arc::clone(&made));
        let thread = std::thread::spawn(move || {
            let mut lost = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let outcome = connect(&from, to, Port::Tcp(80), true)?;
                count.fetch_add(1, Ordering::Relaxed);
                if outcome != Outcome::Open {
                    lost.push(outcome);
                }
            }
            Ok(lost)
        });
        Self { stop, made, thread }
    }

    /// The number of connections, and the outcomes of those that failed.
    fn stop(self) -> Result<(u64, Vec<Outcome>)> {
        self.stop.store(true, Ordering::Relaxed);
        let lost = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((self.made.load(Ordering::Relaxed), lost))
    }
}
