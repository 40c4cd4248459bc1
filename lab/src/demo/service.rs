//! Steps of the tour on a service address: an AnycastAddress of one node in each rack, with a
//! program behind it. This is the kind of service address that needs no cluster; a Service of
//! Kubernetes has its own steps ([`super::load_balancer`]).

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use rustix::process::Signal;

use super::{PATIENCE, Pod, Tour, ms};
use crate::client;
use crate::connections::{Attempt, Connections, Outcome};
use crate::greeter::Greeter;
use crate::progress::step_with;
use crate::routers;
use crate::routes::RouteMonitor;
use crate::shell::{Seen, wait_for};

const ADDRESSES: [&str; 2] = ["10.210.0.53", "fd00:210::53"];
const PORT: u16 = 5353;
const MANIFEST: &str = "
apiVersion: trunkline.io/v1alpha1
kind: AnycastAddress
metadata: { name: demo }
spec:
  addresses: ['10.210.0.53', 'fd00:210::53']
  gracefulShutdownSeconds: 0
  check: { tcp: { port: 5353 }, intervalMilliseconds: 50, timeoutMilliseconds: 50, rise: 2, fall: 3 }
";
/// The time between a client's connections.
const PAUSE: Duration = Duration::from_millis(5);
/// Time without the agent.
const AWAY: Duration = Duration::from_secs(2);
/// Clients go on for this time after an event. By then a delayed loss would be visible.
const AFTER: Duration = Duration::from_secs(1);

impl<'a> Tour<'a> {
    /// Two nodes have the address. The program of the first one ends and starts again; then its
    /// agent is killed and starts again.
    pub(super) fn service(&mut self) -> Result<()> {
        let (first, second) = (self.nodes[0], self.nodes[2]);
        ensure!(self.rack(first) != self.rack(second), "{first} and {second} are in one rack");
        let prefixes = addresses()?.map(IpNet::from);
        let manifests = [first, second]
            .map(|node| self.fabric.file(&format!("{}/{node}/manifests/anycast.yaml", super::TOPOLOGY)));
        let mut servers = Vec::new();
        let work = || {
            for (node, manifest) in [first, second].into_iter().zip(&manifests) {
                servers.push(Greeter::listen(&self.fabric.host(node)?.ns, PORT)?);
                self.host_routes(node, "replace")?;
                std::fs::write(manifest, MANIFEST)?;
            }
            for monitor in self.spines.values() {
                monitor.wait(&prefixes, true, PATIENCE)?;
            }
            let mut found = 0;
            for spine in self.spines.keys() {
                let table = routers::kernel_routes(self.fabric.host(spine)?)?;
                found += prefixes.iter().filter(|prefix| table.contains(prefix)).count();
            }
            self.each_client_is_served()?;
            Ok(found)
        };
        let expected = prefixes.len() * self.spines.len();
        let title = format!("a service address on {first} and {second}, in every spine");
        self.summary.service_spine_routes =
            step_with(&title, work, |found: &usize| format!("{found} of {expected}"))?;
        self.summary.service_spine_routes_expected = expected;

        let work = || {
            let clients = self.clients()?;
            std::thread::sleep(AFTER);
            let began = Instant::now();
            drop(servers.remove(0));
            std::thread::sleep(AFTER);
            let attempts = end(clients);
            let failed: Vec<&Attempt> = attempts.iter().filter(|it| it.outcome != Outcome::Served).collect();
            let last = failed.iter().map(|it| it.began).max();
            let recovery = last.map_or(Duration::ZERO, |at| at.saturating_duration_since(began) + PAUSE);
            servers.push(Greeter::listen(&self.fabric.host(first)?.ns, PORT)?);
            Ok((ms(recovery), failed.len(), attempts.len()))
        };
        let title = format!("its program on {first} ends, connections every 5 ms");
        let words = |(recovery, failed, all): &(f64, usize, usize)| {
            format!("the other answers after {recovery:.0} ms, {failed} of {all} connections failed")
        };
        let (recovery, failed, _) = step_with(&title, work, words)?;
        self.summary.service_death_recovery_ms = recovery;
        self.summary.service_death_failed_connections = failed;

        let title = format!("{first}'s agent killed (SIGKILL) and started, connections every 5 ms");
        let words = |(attempts, routes): &(Vec<Attempt>, usize)| {
            format!("{} of {} connections failed, {routes} routes lost", failures(attempts), attempts.len())
        };
        let (attempts, routes) = step_with(&title, || self.service_through_kill(first, &prefixes), words)?;
        self.summary.service_restart_failed_connections = failures(&attempts);
        self.summary.service_restart_connections = attempts.len();
        self.summary.service_restart_lost_routes = routes;

        for (node, manifest) in [first, second].into_iter().zip(manifests) {
            std::fs::remove_file(manifest)?;
            self.host_routes(node, "del")?;
        }
        Ok(())
    }

    /// Adds or removes a node's own routes to the clients, by its ToRs. Here nodes have no default
    /// route as a real host has it.
    fn host_routes(&self, node: &'a str, action: &str) -> Result<()> {
        let mut gateways: Vec<IpAddr> = Vec::new();
        for (tor, _) in self.tors_of(node)? {
            let text = self.fabric.host(tor)?.sh("ip -o addr show dev rack scope global")?;
            let prefixes =
                text.lines().filter_map(|line| line.split_whitespace().nth(3)?.parse::<IpNet>().ok());
            gateways.extend(prefixes.map(|prefix| prefix.addr()));
        }
        for client in self.client_pods()? {
            for address in &client.addresses {
                let family = gateways.iter().filter(|gateway| gateway.is_ipv4() == address.is_ipv4());
                let hops: String = family.map(|gateway| format!(" nexthop via {gateway}")).collect();
                self.fabric.host(node)?.sh(&format!("ip route {action} {address}{hops}"))?;
            }
        }
        Ok(())
    }

    /// A pod in each rack, on nodes without the address.
    fn client_pods(&self) -> Result<Vec<&Pod>> {
        let on = |node: &&str| {
            let pod = self.pods.iter().find(|pod| pod.sandbox.node == **node);
            pod.with_context(|| format!("no pod on {node}"))
        };
        [self.nodes[1], self.nodes[3]].iter().map(on).collect()
    }

    fn service_through_kill(&self, node: &'a str, prefixes: &[IpNet]) -> Result<(Vec<Attempt>, usize)> {
        // The first ToR has the route again since the program is back.
        for (tor, _) in self.tors_of(node)? {
            let host = self.fabric.host(tor)?;
            wait_for(&format!("the service address in {tor}"), PATIENCE, || {
                let table = routers::kernel_routes(host)?;
                let there = prefixes.iter().all(|prefix| table.contains(prefix));
                Ok(Seen::when(there, || "no route".to_owned()))
            })?;
        }
        self.each_client_is_served()?;
        let routers = self.fabric.topology.with_role("tor").chain(self.fabric.topology.with_role("spine"));
        let monitors =
            routers.map(|r| RouteMonitor::start(&self.fabric.host(r)?.ns)).collect::<Result<Vec<_>>>()?;
        let clients = self.clients()?;
        let host = self.fabric.host(node)?;
        client::end_agent(host, Signal::KILL)?;
        std::thread::sleep(AWAY);
        client::start_agent(host)?;
        self.wait_restored(node)?;
        std::thread::sleep(AFTER);
        let attempts = end(clients);
        Ok((attempts, monitors.iter().map(|monitor| monitor.removed(prefixes).len()).sum()))
    }

    /// Waits until an agent that has started has its sessions, and its ToRs retain no stale route.
    pub(super) fn wait_restored(&self, node: &'a str) -> Result<()> {
        let host = self.fabric.host(node)?;
        client::wait_established(host, PATIENCE)?;
        client::wait_bfd(host, PATIENCE)?;
        for (tor, address) in self.tors_of(node)? {
            routers::wait_neighbour(self.fabric.host(tor)?, &address, true, PATIENCE)?;
            routers::wait_nothing_stale(self.fabric.host(tor)?, &address, PATIENCE)?;
        }
        Ok(())
    }

    fn clients(&self) -> Result<Vec<Connections>> {
        let targets = targets()?;
        let start = |pod: &Pod| Connections::start(&pod.sandbox.ns, &targets, 1, PAUSE);
        self.client_pods()?.into_iter().map(start).collect()
    }

    fn each_client_is_served(&self) -> Result<()> {
        wait_for("connections to the service address", PATIENCE, || {
            let clients = self.clients()?;
            std::thread::sleep(Duration::from_millis(200));
            let attempts = end(clients);
            let good = failures(&attempts) == 0 && !attempts.is_empty();
            let last = attempts.iter().rfind(|it| it.outcome != Outcome::Served);
            Ok(Seen::when(good, || format!("{last:?}")))
        })
    }
}

pub(super) fn end(clients: Vec<Connections>) -> Vec<Attempt> {
    clients.into_iter().flat_map(Connections::end).collect()
}

pub(super) fn failures(attempts: &[Attempt]) -> usize {
    attempts.iter().filter(|it| it.outcome != Outcome::Served).count()
}

fn addresses() -> Result<[IpAddr; 2]> {
    Ok([ADDRESSES[0].parse()?, ADDRESSES[1].parse()?])
}

fn targets() -> Result<[SocketAddr; 2]> {
    Ok(addresses()?.map(|address| SocketAddr::from((address, PORT))))
}
