#![cfg_attr(not(feature = "suite"), allow(dead_code, unused_imports))] // parts that only the suite uses
#![allow(clippy::disallowed_methods)] // a lab measures wall time; only the engine in bgp/ must not read a clock
//! `cargo lab`: whole fabrics on one machine. Topologies are containerlab files. Each node is a
//! network namespace with the real daemons of Debian's packages, or a Trunkline node with the agent
//! and plugin built from this tree.
//!
//! Two programs are built from this package. `cargo lab` is the small one, for labs by hand and the
//! demo, and compiles in half a minute. The default feature `suite` adds everything else, with the
//! dependencies on the product's crates and on kube. If a command needs the second program, `cargo
//! lab` builds this program and becomes it ([`fn@suite`]).
//!
//! ```text
//! topology  reads lab/topologies/*.clab.yml, strictly
//!   ├─ fabric         creates and removes one: host (namespaces, mounts), daemons (FRR, BIRD,
//!   │                 GoBGP, the agent), evidence (after a failure)
//!   └─ containerlab   the same with containerlab and Docker: builds images, deploys, returns a Fabric
//!        ├─ demo      the tour on two-racks, with times and lost packets
//!        ├─ tests     from formatting to labs, one function each
//!        └─ bench     attach, codec, fib, l2, memory, services and speakers, each with its reference in one run
//! kube: a real Kubernetes API server and etcd, for tests of the controller and of agents in a cluster
//! cluster: a real cluster of nodes with kubelets, with upstream's end-to-end tests
//! uml:  a user-mode kernel for some tests, on machines whose kernel lacks VLAN and IPVLAN devices
//! instruments: pinger, capture (tcpdump), greeter and connections (TCP), routes (a route monitor), cni (a runtime's side of the
//!       plugin), client (`trunkline … -o json`)
//! ```

mod cache;
mod capture;
mod cli;
mod client;
mod cni;
mod connections;
mod containerlab;
mod daemons;
mod demo;
mod evidence;
mod fabric;
mod greeter;
mod host;
mod interrupt;
mod kube;
mod link_faults;
mod netns;
mod packages;
mod pinger;
mod pods;
mod product;
mod progress;
mod routers;
mod routes;
mod shell;
mod stats;
mod topology;

#[cfg(feature = "suite")]
mod bench;
#[cfg(feature = "suite")]
mod browser;
#[cfg(feature = "suite")]
mod cgroup;
#[cfg(feature = "suite")]
mod cluster;
#[cfg(feature = "suite")]
mod crds;
#[cfg(feature = "suite")]
mod dashboards;
#[cfg(feature = "suite")]
mod deb;
#[cfg(feature = "suite")]
mod docs;
#[cfg(feature = "suite")]
mod forge;
#[cfg(feature = "suite")]
mod fuzz;
#[cfg(feature = "suite")]
mod interop;
#[cfg(feature = "suite")]
mod podman;
#[cfg(feature = "suite")]
mod probe;
#[cfg(feature = "suite")]
mod stillness;
#[cfg(feature = "suite")]
mod suite;
#[cfg(feature = "suite")]
mod terminal;
#[cfg(feature = "suite")]
mod tests;
#[cfg(feature = "suite")]
mod uml;

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;

use crate::cli::{Cli, Command, Pod, PodOf, Suite};
use crate::fabric::{Fabric, Place};
use crate::product::Profile;
use crate::progress::{say, step, step_with};
use crate::topology::{Image, Topology};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    interrupt::install()?;
    let place = Place::find(cli.tag)?;
    match cli.command {
        Command::Up { topology, pods } => up(&place, &topology, pods)?,
        Command::Down { topology } => {
            packages::need_root("cargo lab down")?;
            let removed = step(&format!("taking {topology} down"), || Fabric::down(&place, &topology))?;
            say(&format!("{topology} is down: {removed} namespaces removed"));
        }
        Command::Exec { topology, node, command } => {
            return exec(&place, &topology, &node, &or_shell(command));
        }
        Command::Pod { action } => return pod(&place, action),
        Command::Images => {
            packages::need_root("cargo lab images")?;
            let product = product::build(&place, Profile::Quick)?;
            let files = place
                .topology_names()
                .into_iter()
                .map(|name| Ok(Topology::load(&place.topology_file(&name)?)?));
            let topologies = files.collect::<Result<Vec<_>>>()?;
            let built = containerlab::images::build(&place, &topologies, &product)?;
            say(&format!("{built} images; containerlab deploy -t lab/topologies/two-racks.clab.yml"));
        }
        Command::Demo { json, containerlab } => {
            return Ok(if demo::demo(&place, json, containerlab)? {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        Command::List => list(&place)?,
        Command::Suite(command) => return suite(&place, command),
    }
    Ok(ExitCode::SUCCESS)
}

fn up(place: &Place, name: &str, count: u16) -> Result<()> {
    packages::need_root("cargo lab up")?;
    let topology = Topology::load(&place.topology_file(name)?)?;
    packages::need(packages::ALWAYS.into_iter().chain(topology.packages()))?;
    let product = match topology.with_image(Image::Node).next() {
        Some(_) => product::build(place, Profile::Quick)?,
        None => {
            ensure!(count == 0, "--pods: {name} has no Trunkline node; `cargo lab list` shows topologies");
            product::folder(place)
        }
    };
    let fabric = step_with(
        &format!("bringing {name} up"),
        || Fabric::up(place, name, &product),
        |f| f.topology.summary(),
    )?;
    let pods = if count == 0 {
        Ok(Vec::new())
    } else {
        let title = format!("{count} pods for each Trunkline node, by the CNI plugin");
        step(&title, || pods::add_everywhere(&fabric, count))
    };
    say(&format!("\n{name} is up; its files and logs are in {}", fabric.folder.display()));
    for (role, command) in [
        (fabric.topology.with_image(Image::Node).next(), "trunkline peers"),
        (fabric.topology.with_image(Image::Frr).next(), "vtysh -c 'show bgp ipv4 unicast summary'"),
        (fabric.topology.with_image(Image::Bird).next(), "birdc show protocols"),
        (fabric.topology.with_image(Image::GoBgp).next(), "gobgp neighbor"),
    ] {
        if let Some(node) = role {
            say(&format!("  cargo lab exec {name} {node} {command}"));
        }
    }
    if let Some(node) = fabric.topology.with_image(Image::Node).next() {
        say(&format!("  cargo lab pod add {name} {node} web"));
    }
    say(&format!("  cargo lab down {name}"));
    fabric.leave_running()?;
    let rows = pods.with_context(|| format!("{name} is up, but not all of its pods are attached"))?;
    print!("{}", progress::table(&rows));
    Ok(())
}

fn pod(place: &Place, action: Pod) -> Result<ExitCode> {
    packages::need_root("cargo lab pod")?;
    match action {
        Pod::Add { pod: PodOf { topology, node, name }, network } => {
            let fabric = Fabric::open(place, &topology)?;
            let addresses = pods::add(&fabric, &node, &name, network.as_deref())?;
            println!("{}", pods::line(&addresses));
            say(&format!("  cargo lab pod exec {topology} {node} {name} ip addr"));
            say(&format!("  cargo lab exec {topology} {node} trunkline pods"));
        }
        Pod::Del { pod: PodOf { topology, node, name } } => {
            pods::del(&Fabric::open(place, &topology)?, &node, &name)?;
        }
        Pod::Exec { pod: PodOf { topology, node, name }, command } => {
            let fabric = Fabric::open(place, &topology)?;
            let error = pods::exec(&fabric, &node, &name, &or_shell(command))?;
            return Err(error).context("ip netns exec");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The command, or the user's shell if there is none.
fn or_shell(command: Vec<String>) -> Vec<String> {
    if !command.is_empty() {
        return command;
    }
    vec![std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned())]
}

#[cfg(feature = "suite")]
fn suite(place: &Place, command: Suite) -> Result<ExitCode> {
    suite::run(place, command)
}

/// Becomes the lab with the feature `suite`, which cargo builds first.
#[cfg(not(feature = "suite"))]
fn suite(place: &Place, _: Suite) -> Result<ExitCode> {
    let manifest = place.repository.join("Cargo.toml");
    let mut cargo = product::cargo();
    cargo.args(["run", "--quiet", "--package", "lab", "--manifest-path"]).arg(manifest).arg("--");
    // It returns only if it fails.
    let error = cargo.args(std::env::args_os().skip(1)).exec();
    Err(error).context("cargo cannot be started")
}

/// Becomes the command: signals, standard streams and exit code are the command's own.
fn exec(place: &Place, topology: &str, node: &str, command: &[String]) -> Result<ExitCode> {
    packages::need_root("cargo lab exec")?;
    let fabric = Fabric::open(place, topology)?;
    let (program, args) = command.split_first().context("a command")?;
    // It returns only if it fails.
    let error = fabric.host(node)?.command(program, args).exec();
    Err(error).with_context(|| program.clone())
}

fn list(place: &Place) -> Result<()> {
    let mut rows = vec![vec!["TOPOLOGY".to_owned(), "STATE".to_owned(), "NODES".to_owned()]];
    for name in place.topology_names() {
        let topology = Topology::load(&place.topology_file(&name)?)?;
        let state = if Fabric::open(place, &name).is_ok() { "up" } else { "" };
        rows.push(vec![name, state.to_owned(), topology.summary()]);
    }
    print!("{}", progress::table(&rows));
    Ok(())
}
