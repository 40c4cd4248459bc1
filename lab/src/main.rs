#![allow(clippy::disallowed_methods)] // a lab measures wall time; only the engine in bgp/ must not read a clock
//! `cargo lab`: whole fabrics on one machine. Topologies are containerlab files; each node is a network namespace with
//! the real daemons of Debian's packages in it, or a Trunkline node with the agent and plugin built from this tree.
//!
//! ```text
//! topology  reads lab/topologies/*.clab.yml, strictly
//!   ├─ fabric   brings one up and down: host (namespaces, mounts), daemons (FRR, BIRD, GoBGP, the agent), evidence (after a failure)
//!   └─ containerlab   likewise, by containerlab and Docker: builds the images, deploys, and gives back the same fabric
//!        ├─ demo    the tour on two-racks, with times and lost packets
//!        ├─ tests   fmt to labs, one function each
//!        └─ bench   attach, codec, fib, l2, memory and speakers, each against its peer in the same run
//! kube: a real Kubernetes API server and etcd, for tests of the controller and of agents that take their work from it
//! uml: a user-mode kernel that runs some of the tests, on machines whose kernel lacks VLAN and IPVLAN devices
//! pinger, capture (tcpdump), routes (a route monitor), cni (a runtime's side of the plugin), client (`trunkline … -o json`): the instruments
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
mod pods;
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

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};

use crate::fabric::{Fabric, Place};
use crate::progress::{say, step, step_with};
use crate::topology::{Image, Topology};

/// Whole fabrics on one machine: real routers and Trunkline nodes in network namespaces.
///
/// Everything a lab does stays in namespaces called tl-…, its files in target/lab/. Missing Debian packages are installed.
/// All commands but `list` need root.
#[derive(Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Put this into the names of namespaces and folders, so that two labs of one topology can run side by side.
    #[arg(long, global = true, value_name = "TAG")]
    tag: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Bring a topology up and leave it running.
    #[command(after_help = "Example:\n  cargo lab up two-racks --pods 2")]
    Up {
        /// A topology's name: see `cargo lab list`.
        topology: String,
        /// Attach this many pods to each Trunkline node: pod1, pod2 and so on.
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=250))]
        pods: u16,
    },
    /// Take a topology down: its daemons, its namespaces, its pods.
    Down {
        /// A topology's name: see `cargo lab list`.
        topology: String,
    },
    /// Run a command on a node of a topology that is up, or a shell if no command is given.
    #[command(
        after_help = "Examples:\n  cargo lab exec two-racks node1a trunkline peers\n  cargo lab exec two-racks tor1a vtysh -c 'show bgp summary'"
    )]
    Exec {
        /// A topology's name: see `cargo lab list`.
        topology: String,
        /// A node of it.
        node: String,
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Attach, detach and enter pods of a topology that is up.
    Pod {
        #[command(subcommand)]
        action: Pod,
    },
    /// The tour of two-racks: pods, routes, pings, restarts, a cut, each with its figure.
    Demo {
        /// Print the summary as one JSON object on standard output.
        #[arg(long)]
        json: bool,
        /// In containers that containerlab deploys; needs Docker and containerlab.
        #[arg(long)]
        containerlab: bool,
    },
    /// Build the container images of all topologies' nodes, for `containerlab deploy -t lab/topologies/….clab.yml`.
    Images,
    /// Build the Debian package of agent and plugin, for hosts without Kubernetes; needs cargo-deb.
    Deb,
    /// Run every check and test, from formatting to whole fabrics, or those whose name contains a filter.
    Test {
        /// Only tests whose name contains one of these.
        filter: Vec<String>,
        /// Name the tests instead of running them.
        #[arg(long)]
        list: bool,
    },
    /// Measure Trunkline and what it is compared with in the same run, and print figures and ratio.
    ///
    /// The exit status is 1 if a promised bound is not met.
    Bench {
        #[arg(value_enum)]
        what: Bench,
        /// Of `speakers`: only these; all if none is named.
        #[arg(long, value_enum, value_delimiter = ',')]
        speakers: Vec<bench::speakers::Speaker>,
        /// Of `guard`: the folder with `trunkline` and `trunkline-cni` of an earlier commit, to compare with; without it the guard is switched off
        /// there.
        #[arg(long, value_name = "FOLDER")]
        before: Option<std::path::PathBuf>,
        /// Print the figures as one JSON object on standard output.
        #[arg(long)]
        json: bool,
    },
    /// Fuzz the speaker's codec and sessions; without a target, all of them.
    ///
    /// The exit status is 1 if something was found.
    Fuzz {
        /// Only these targets: update, messages, session, bfd, differential.
        target: Vec<String>,
        /// How long, each target.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Do not fuzz: take what earlier runs found to reach more over into the committed corpus.
        #[arg(long)]
        minimise: bool,
    },
    /// Write deploy/crds, the CustomResourceDefinitions, from the types of api/.
    Crds {
        /// Write nothing; the exit status is 1 if a file is not current.
        #[arg(long)]
        check: bool,
    },
    /// Write what is made from the code: docs/{cli,config,crds,metrics,services}.md, docs/agent.schema.json, dashboards/.
    Docs {
        /// Write nothing; the exit status is 1 if a file is not current.
        #[arg(long)]
        check: bool,
    },
    /// A Kubernetes API server with etcd, and nothing else of Kubernetes.
    Kube {
        #[command(subcommand)]
        action: Kube,
    },
    /// List the topologies, and which are up.
    List,
    /// Run a command in a user-mode kernel, which has VLAN and IPVLAN devices whatever this machine's kernel has.
    ///
    /// It sees this machine's files, and what it writes is gone with it; it has no network but what it makes.
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
    /// What `uml` and tests run in the user-mode kernel.
    #[command(hide = true)]
    UserModeKernel {
        #[command(subcommand)]
        action: Inside,
    },
}

/// A pod on a Trunkline node of a topology that is up.
#[derive(clap::Args)]
struct PodOf {
    /// A topology's name: see `cargo lab list`.
    topology: String,
    /// A Trunkline node of it.
    node: String,
    /// The pod's name.
    name: String,
}

#[derive(Subcommand)]
enum Pod {
    /// Create a namespace and attach it through the CNI plugin, as a container runtime does.
    ///
    /// Prints the pod's addresses. `cargo lab down` removes the pod with its node.
    #[command(
        after_help = "Examples:\n  cargo lab pod add two-racks node1a web\n  cargo lab pod add --network rack1 two-racks node1a db"
    )]
    Add {
        #[command(flatten)]
        pod: PodOf,
        /// The Network; without it the agent chooses, as for a pod that names none.
        #[arg(long, value_name = "NETWORK")]
        network: Option<String>,
    },
    /// Detach a pod through the CNI plugin and remove its namespace.
    Del {
        #[command(flatten)]
        pod: PodOf,
    },
    /// Run a command in a pod's network namespace, or a shell if no command is given.
    #[command(after_help = "Example:\n  cargo lab pod exec two-racks node1a web ip addr")]
    Exec {
        #[command(flatten)]
        pod: PodOf,
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

#[derive(Subcommand)]
enum Kube {
    /// Start it on loopback, print how to reach it, and keep it until Ctrl-C.
    ///
    /// kube-apiserver and kubectl are taken from the folder that KUBEBUILDER_ASSETS names; without it Go builds them, once.
    Up,
}

#[derive(Subcommand)]
enum Inside {
    /// As its first process: carries out an order.
    Init {
        order: std::path::PathBuf,
        /// What the kernel adds to every first process's command line: console=tty0.
        added: Vec<String>,
    },
    /// Runs one test and prints its verdict as JSON.
    Test {
        name: String,
        /// What the test's part outside hands to the part inside.
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
    /// Reading and writing UPDATEs, against zettabgp and netgauze.
    Codec,
    /// 100,000 routes from a peer into the kernel, against `ip -batch`.
    Fib,
    /// The guard and the marks of translated connections: ADD, throughput and connections per second, with 10 and with 1,000 pods.
    Guard,
    /// Giving addresses: in memory, to 2,000 pods at once on a real API server, and what others' cost an agent.
    Ipam,
    /// Attaching to a VLAN by veth and by ipvlan, against the bridge and ipvlan plugins, and iperf3; in a user-mode kernel.
    L2,
    /// The agent's memory with 250 pods and two peers.
    Memory,
    /// Asking an agent with 1,000,000 routes: scrapes, searches, `trunkline routes`, and what sessions feel of it; against BIRD and FRR.
    Scrape,
    /// Passing routes on, against BIRD, FRR and GoBGP: time and memory.
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

fn up(place: &Place, name: &str, count: u16) -> Result<()> {
    packages::need_root("cargo lab up")?;
    let topology = Topology::load(&place.topology_file(name)?)?;
    packages::need(packages::ALWAYS.into_iter().chain(topology.packages()))?;
    let product = match topology.with_image(Image::Node).next() {
        Some(_) => product::build(place)?,
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
