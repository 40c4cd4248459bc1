#![allow(clippy::disallowed_methods)] // a lab measures wall time; only the engine in bgp/ must not read a clock
//! `cargo lab`: whole fabrics on one machine. Topologies are containerlab files. Each node is a
//! network namespace with the real daemons of Debian's packages, or a Trunkline node with the agent
//! and plugin built from this tree.
//!
//! ```text
//! topology  reads lab/topologies/*.clab.yml, strictly
//!   ├─ fabric         creates and removes one: host (namespaces, mounts), daemons (FRR, BIRD,
//!   │                 GoBGP, the agent), evidence (after a failure)
//!   └─ containerlab   the same with containerlab and Docker: builds images, deploys, returns a Fabric
//!        ├─ demo      the tour on two-racks, with times and lost packets
//!        ├─ tests     from formatting to labs, one function each
//!        └─ bench     attach, codec, fib, l2, memory and speakers, each with its reference in one run
//! kube: a real Kubernetes API server and etcd, for tests of the controller and of agents in a cluster
//! uml:  a user-mode kernel for some tests, on machines whose kernel lacks VLAN and IPVLAN devices
//! instruments: pinger, capture (tcpdump), routes (a route monitor), cni (a runtime's side of the
//!       plugin), client (`trunkline … -o json`)
//! ```

mod bench;
mod browser;
mod capture;
mod client;
mod cni;
mod containerlab;
mod crds;
mod daemons;
mod dashboards;
mod deb;
mod demo;
mod docs;
mod evidence;
mod fabric;
mod forge;
mod fuzz;
mod host;
mod interop;
mod interrupt;
mod kube;
mod link_faults;
mod netns;
mod packages;
mod pinger;
mod podman;
mod probe;
mod product;
mod progress;
mod routers;
mod routes;
mod shell;
mod stats;
mod stillness;
mod terminal;
mod tests;
mod topology;
mod uml;

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

use crate::fabric::{Fabric, Place};
use crate::progress::{say, step, step_with};
use crate::topology::{Image, Topology};

/// Whole fabrics on one machine: real routers and Trunkline nodes in network namespaces.
///
/// A lab uses only namespaces called tl-… and files in target/lab/. It installs missing Debian
/// packages. All commands except `list` need root.
#[derive(Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Tag in the names of namespaces and folders, for two labs of one topology at the same time.
    #[arg(long, global = true, value_name = "TAG")]
    tag: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Create a topology and leave it running.
    Up {
        /// A topology's name: see `cargo lab list`.
        topology: String,
    },
    /// Remove a topology: its daemons, namespaces and pods.
    Down {
        /// A topology's name: see `cargo lab list`.
        topology: String,
    },
    /// Run a command, or else a shell, on a node of a running topology.
    #[command(
        after_help = "Examples:\n  cargo lab exec two-racks node1a trunkline peers\n  cargo lab exec two-racks tor1a vtysh -c 'show bgp summary'"
    )]
    Exec {
        /// A topology's name: see `cargo lab list`.
        topology: String,
        /// A node of the topology.
        node: String,
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Run the tour of two-racks: pods, routes, pings, restarts, faults, with figures.
    Demo {
        /// Print the summary as one JSON object on standard output.
        #[arg(long)]
        json: bool,
        /// Use containers that containerlab deploys; needs Docker and containerlab.
        #[arg(long)]
        containerlab: bool,
    },
    /// Build the container images of all topologies' nodes, for
    /// `containerlab deploy -t lab/topologies/….clab.yml`.
    Images,
    /// Build the Debian package of agent and plugin, for hosts without Kubernetes; needs cargo-deb.
    Deb,
    /// Run all checks and tests, from formatting to whole fabrics, or those that match a filter.
    Test {
        /// Run only tests with one of these in their name.
        filter: Vec<String>,
        /// List the tests instead of running them.
        #[arg(long)]
        list: bool,
    },
    /// Measure Trunkline and a reference in the same run, and print figures and ratio.
    ///
    /// The exit status is 1 if a bound is not met.
    Bench {
        #[arg(value_enum)]
        what: Bench,
        /// For `speakers`: only these; the default is all.
        #[arg(long, value_enum, value_delimiter = ',')]
        speakers: Vec<bench::speakers::Speaker>,
        /// For `guard`: the folder with `trunkline` and `trunkline-cni` of an earlier commit as the
        /// reference. By default the reference has the guard switched off.
        #[arg(long, value_name = "FOLDER")]
        before: Option<std::path::PathBuf>,
        /// Print the figures as one JSON object on standard output.
        #[arg(long)]
        json: bool,
    },
    /// Fuzz the speaker's codec and sessions; the default is all targets.
    ///
    /// The exit status is 1 if a fault was found.
    Fuzz {
        /// Targets: update, messages, session, bfd, differential.
        target: Vec<String>,
        /// Seconds for each target.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Do not fuzz: add inputs of earlier runs that reach more code to the committed corpus.
        #[arg(long)]
        minimise: bool,
    },
    /// Generate deploy/crds, the CustomResourceDefinitions, from the types of api/.
    Crds {
        /// Write nothing; the exit status is 1 if a file is not current.
        #[arg(long)]
        check: bool,
    },
    /// Generate docs/{cli,config,crds,metrics,services}.md, docs/agent.schema.json and dashboards/
    /// from the code.
    Docs {
        /// Write nothing; the exit status is 1 if a file is not current.
        #[arg(long)]
        check: bool,
    },
    /// Start a Kubernetes API server with etcd, without other parts of Kubernetes.
    Kube {
        #[command(subcommand)]
        action: Kube,
    },
    /// List the topologies and their states.
    List,
    /// Run a command in a user-mode kernel, which has VLAN and IPVLAN devices.
    ///
    /// It can read this machine's files; its own changes of files are lost at its end. It has no
    /// network except the devices that it creates.
    #[command(
        after_help = "Example:\n  cargo lab uml -- sh -c 'ip link add eth0 type dummy && ip link add link eth0 vlan10 type vlan id 10 && ip link'"
    )]
    Uml {
        /// Kill the command after this many seconds.
        #[arg(long, default_value_t = 600)]
        bound: u64,
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Internal commands inside the user-mode kernel.
    #[command(hide = true)]
    UserModeKernel {
        #[command(subcommand)]
        action: Inside,
    },
}

#[derive(Subcommand)]
enum Kube {
    /// Start it on loopback, print its kubeconfig, and keep it until Ctrl-C.
    ///
    /// kube-apiserver and kubectl come from the folder in KUBEBUILDER_ASSETS; otherwise Go builds
    /// them once.
    Up,
}

#[derive(Subcommand)]
enum Inside {
    /// As its first process: execute an order.
    Init {
        order: std::path::PathBuf,
        /// The kernel appends this to the first process's command line: console=tty0.
        added: Vec<String>,
    },
    /// Run one test and print its verdict as JSON.
    Test {
        name: String,
        /// Data from the test's outside part for its inside part.
        #[arg(long)]
        handed: Option<std::path::PathBuf>,
    },
    /// `cargo lab bench l2`.
    BenchL2 {
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Bench {
    /// Attaching containers, against the ptp and host-local plugins.
    Attach,
    /// Decoding and encoding UPDATEs, against zettabgp and netgauze.
    Codec,
    /// 100,000 routes from a peer into the kernel, against `ip -batch`.
    Fib,
    /// The guard and the marks of translated connections: ADD, throughput and connections per
    /// second, with 10 and with 1,000 pods.
    Guard,
    /// Address allocation: in memory, for 2,000 pods at once on a real API server, and the cost of
    /// other nodes' addresses for an agent.
    Ipam,
    /// Attaching to a VLAN by veth and by ipvlan, against the bridge and ipvlan plugins, and iperf3;
    /// in a user-mode kernel.
    L2,
    /// The agent's memory with 250 pods and two peers.
    Memory,
    /// Queries to an agent with 1,000,000 routes: scrapes, searches, `trunkline routes`, and their
    /// effect on sessions; against BIRD and FRR.
    Scrape,
    /// Readvertising routes, against BIRD, FRR and GoBGP: time and memory.
    Speakers,
}

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
        Command::Up { topology } => up(&place, &topology)?,
        Command::Down { topology } => {
            packages::need_root("cargo lab down")?;
            let removed = step(&format!("taking {topology} down"), || Fabric::down(&place, &topology))?;
            say(&format!("{topology} is down: {removed} namespaces removed"));
        }
        Command::Exec { topology, node, command } => return exec(&place, &topology, &node, &command),
        Command::Images => {
            packages::need_root("cargo lab images")?;
            let product = product::build(&place)?;
            let files = place
                .topology_names()
                .into_iter()
                .map(|name| Ok(Topology::load(&place.topology_file(&name)?)?));
            let topologies = files.collect::<Result<Vec<_>>>()?;
            let built = containerlab::images::build(&place, &topologies, &product)?;
            say(&format!("{built} images; containerlab deploy -t lab/topologies/two-racks.clab.yml"));
        }
        Command::Deb => say(&deb::build(&place)?.display().to_string()),
        Command::Demo { json, containerlab } => {
            return Ok(if demo::demo(&place, json, containerlab)? {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        Command::Bench { what, json, speakers, before } => {
            let met = match what {
                Bench::Attach => bench::attach::bench(&place, json)?,
                Bench::Codec => bench::codec::bench(&place, json)?,
                Bench::Fib => bench::fib::bench(&place, json)?,
                Bench::Guard => bench::guard::bench(&place, json, before.as_deref())?,
                Bench::Ipam => bench::ipam::bench(&place, json)?,
                Bench::L2 => bench::l2::bench(&place, json)?,
                Bench::Memory => bench::memory::bench(&place, json)?,
                Bench::Scrape => bench::scrape::bench(&place, json)?,
                Bench::Speakers => bench::speakers::bench(&place, json, &speakers)?,
            };
            return Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Test { list: true, .. } => tests::list(),
        Command::Test { filter, list: false } => {
            return Ok(if tests::run(&place, &filter)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Fuzz { target, seconds, minimise } => {
            let good = fuzz::run(&place, &target, seconds, minimise)?;
            return Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Crds { check } => {
            return Ok(if crds::run(&place, check)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Docs { check } => {
            return Ok(if docs::run(&place, check)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Kube { action: Kube::Up } => kube::up(&place)?,
        Command::List => list(&place)?,
        Command::Uml { bound, command } => {
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let ended = uml::run(&place, "command", &command, std::time::Duration::from_secs(bound))?;
            print!("{}", ended.stdout);
            return Ok(ExitCode::from(ended.status));
        }
        Command::UserModeKernel { action: Inside::Init { order, .. } } => uml::init(&order)?,
        Command::UserModeKernel { action: Inside::BenchL2 { json } } => {
            return Ok(if bench::l2::inside(&place, json)? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::UserModeKernel { action: Inside::Test { name, handed } } => {
            tests::run_inside(&place, &name, handed)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn up(place: &Place, name: &str) -> Result<()> {
    packages::need_root("cargo lab up")?;
    let topology = Topology::load(&place.topology_file(name)?)?;
    packages::need(packages::ALWAYS.into_iter().chain(topology.packages()))?;
    let product = match topology.with_image(Image::Node).next() {
        Some(_) => product::build(place)?,
        None => product::folder(place),
    };
    let fabric = step_with(
        &format!("bringing {name} up"),
        || Fabric::up(place, name, &product),
        |f| f.topology.summary(),
    )?;
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
    say(&format!("  cargo lab down {name}"));
    fabric.leave_running()
}

/// Becomes the command: signals, standard streams and exit code are the command's own.
fn exec(place: &Place, topology: &str, node: &str, command: &[String]) -> Result<ExitCode> {
    packages::need_root("cargo lab exec")?;
    let fabric = Fabric::open(place, topology)?;
    let shell = [std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned())];
    let command = if command.is_empty() { &shell[..] } else { command };
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
