//! The command line of `cargo lab`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// Whole fabrics on one machine: real routers and Trunkline nodes in network namespaces.
///
/// A lab uses only namespaces called tl-… and files in target/lab/. It installs missing Debian
/// packages. All commands except `list` need root.
#[derive(Parser)]
#[command(name = "cargo lab", bin_name = "cargo lab", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Tag in the names of namespaces and folders, for two labs of one topology at the same time.
    #[arg(long, global = true, value_name = "TAG")]
    pub tag: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a topology and leave it running.
    #[command(after_help = "Example:\n  cargo lab up two-racks --pods 2")]
    Up {
        /// A topology's name: see `cargo lab list`.
        topology: String,
        /// Attach this many pods to each Trunkline node: pod1, pod2 and so on.
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=250))]
        pods: u16,
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
    /// Attach, detach and enter pods of a running topology.
    Pod {
        #[command(subcommand)]
        action: Pod,
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
    /// List the topologies and their states.
    List,
    #[command(flatten)]
    Suite(Suite),
}

/// Commands of the lab with the feature `suite`.
#[derive(Subcommand)]
pub(crate) enum Suite {
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
    /// Repeat the long rounds of tests: fuzzing, kills of the leading controller, outages of the API
    /// server.
    ///
    /// `cargo lab test` runs short rounds of the same tests. A soak ends at the first failure, with
    /// exit status 1. One round of all takes half an hour on two cores.
    #[command(
        after_help = "Examples:\n  cargo lab soak --hours 8\n  cargo lab soak kube/leader-kill --rounds 20"
    )]
    Soak {
        /// Run only tests with one of these in their name.
        filter: Vec<String>,
        /// Begin no round after this number of hours.
        #[arg(long, value_name = "N", conflicts_with = "rounds")]
        hours: Option<f64>,
        /// Number of rounds.
        #[arg(long, value_name = "N", default_value_t = 1)]
        rounds: u32,
    },
    /// Measure Trunkline and a reference in the same run, and print figures and ratio.
    ///
    /// The exit status is 1 if a bound is not met.
    Bench {
        #[arg(value_enum)]
        what: Bench,
        /// For `speakers`: only these; the default is all.
        #[arg(long, value_enum, value_delimiter = ',')]
        speakers: Vec<Speaker>,
        /// For `services`: only these parts; the default is all.
        #[arg(long, value_enum, value_delimiter = ',')]
        parts: Vec<ServicesPart>,
        /// For `guard` and `services`: the folder with `trunkline` and `trunkline-cni` of an earlier
        /// commit as the reference. Without it the reference of `guard` has the guard switched off,
        /// and `services` has no reference. `services` only measures the part `size` of it.
        #[arg(long, value_name = "FOLDER")]
        before: Option<PathBuf>,
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
    /// Start a Kubernetes API server alone, or a whole cluster.
    Kube {
        #[command(subcommand)]
        action: Kube,
    },
    /// Run upstream's tests of [sig-network] on a real cluster, and print a table of failures.
    ///
    /// The tests run on the cluster of `cargo lab kube up --nodes`. If it is not up, this command
    /// creates a cluster and removes it. The exit status is 1 if a test failed.
    /// lab/src/cluster/exclusions.rs lists the tests that are left out, with reasons. With --cyclonus
    /// the tests are cyclonus' generated cases of network policies.
    #[command(
        name = "e2e",
        after_help = "Examples:\n  cargo lab e2e --focus 'Services|HostPort'\n  cargo lab e2e --proxy nftables --racks 2\n  cargo lab e2e --focus '\\[Conformance\\]' --disturb 20\n  cargo lab e2e --cyclonus --nodes 3"
    )]
    E2e(E2e),
    /// Forward a port of the machine's loopback into a network namespace.
    #[command(hide = true)]
    Forward(Forward),
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

/// A pod on a Trunkline node of a running topology.
#[derive(Args)]
pub(crate) struct PodOf {
    /// A topology's name: see `cargo lab list`.
    pub topology: String,
    /// A Trunkline node of the topology.
    pub node: String,
    /// The pod's name.
    pub name: String,
}

#[derive(Subcommand)]
pub(crate) enum Pod {
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
pub(crate) enum Kube {
    /// Start an API server and keep it until Ctrl-C; or with --nodes a whole cluster, which stays.
    ///
    /// Prints a kubeconfig. Without --nodes there are only etcd and kube-apiserver on loopback;
    /// kube-apiserver and kubectl come from the folder in KUBEBUILDER_ASSETS, or Go builds them
    /// once. A cluster has real kubelets, containerd and kube-proxy on nodes below one ToR for each
    /// rack (FRR in odd racks, BIRD in even racks), and Trunkline by its chart.
    #[command(
        after_help = "Examples:\n  cargo lab kube up\n  cargo lab kube up --nodes 2\n  cargo lab kube up --nodes 4 --racks 2 --proxy nftables"
    )]
    Up {
        /// Number of nodes of a whole cluster.
        #[arg(long, value_name = "N")]
        nodes: Option<u8>,
        /// Number of racks.
        #[arg(long, value_name = "R", default_value_t = 1, requires = "nodes")]
        racks: u8,
        /// Mode of kube-proxy.
        #[arg(long, value_enum, default_value_t = ProxyMode::Iptables, requires = "nodes")]
        proxy: ProxyMode,
        /// Address families of pods, Services and nodes.
        #[arg(long, value_enum, default_value_t = Families::Dual, requires = "nodes")]
        family: Families,
    },
    /// Remove the cluster of `cargo lab kube up --nodes`.
    Down,
    /// Build the programs of a cluster and of upstream's tests, once for this machine.
    ///
    /// This takes 22 minutes on two cores. `cargo lab kube up --nodes` and `cargo lab e2e` build
    /// them too; `cargo lab test` never does.
    Build,
}

#[derive(Args)]
pub(crate) struct E2e {
    /// Run only tests whose full name matches this regular expression (Go's syntax).
    #[arg(long, value_name = "REGEX")]
    pub focus: Option<String>,
    /// Run cyclonus' generated cases of network policies instead of upstream's tests; all of them
    /// take 16 minutes on two cores. The name of a case ends with its tags.
    #[arg(long, conflicts_with = "processes")]
    pub cyclonus: bool,
    /// Mode of kube-proxy; the default is iptables.
    #[arg(long, value_enum)]
    pub proxy: Option<ProxyMode>,
    /// Number of nodes; the default is 2.
    #[arg(long, value_name = "N")]
    pub nodes: Option<u8>,
    /// Number of racks; the default is 1.
    #[arg(long, value_name = "R")]
    pub racks: Option<u8>,
    /// Address families of pods, Services and nodes; the default is both.
    #[arg(long, value_enum)]
    pub family: Option<Families>,
    /// Number of tests that run at the same time.
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub processes: u8,
    /// Meanwhile restart or kill an agent, a controller or a kube-proxy each time this many seconds
    /// have passed.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(5..))]
    pub disturb: Option<u64>,
}

#[derive(Args)]
pub(crate) struct Forward {
    pub namespace: String,
    pub port: u16,
}

/// The kind of kube-proxy's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProxyMode {
    Iptables,
    Nftables,
}

/// The address families of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Families {
    Ipv4,
    Ipv6,
    /// Both; IPv4 is the default family.
    Dual,
}

#[derive(Subcommand)]
pub(crate) enum Inside {
    /// As its first process: execute an order.
    Init {
        order: PathBuf,
        /// The kernel appends this to the first process's command line: console=tty0.
        added: Vec<String>,
    },
    /// Run one test and print its verdict as JSON.
    Test {
        name: String,
        /// Data from the test's outside part for its inside part.
        #[arg(long)]
        handed: Option<PathBuf>,
    },
    /// `cargo lab bench l2`.
    BenchL2 {
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Bench {
    /// Attaching containers, against the ptp and host-local plugins.
    Attach,
    /// Another cluster with 1,000 nodes and 10,000 pods: the agent's memory, and the time from a pod's
    /// move in one cluster to the route in the other.
    Clusters,
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
    /// Attaching a pod with two interfaces, against one with a single interface.
    Interfaces,
    /// Attaching to a VLAN by veth and by ipvlan, against the bridge and ipvlan plugins, and iperf3;
    /// in a user-mode kernel.
    L2,
    /// The agent's memory with 250 pods and two peers.
    Memory,
    /// Network policies on a real API server: a label's change until the kernel has it, ADD, memory,
    /// a cold start and traffic, with 1,000 policies and 10,000 remote pods.
    Policy,
    /// Queries to an agent with 1,000,000 routes: scrapes, searches, `trunkline routes`, and their
    /// effect on sessions; against BIRD and FRR.
    Scrape,
    /// Service addresses on a real API server: an endpoint's change until the ToR has the route or
    /// has lost it, the agent's memory with 10,000 Services, and the cost of a change.
    Services,
    /// Readvertising routes, against BIRD, FRR and GoBGP: time and memory.
    Speakers,
}

/// A part of `cargo lab bench services`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ServicesPart {
    /// Times from an endpoint's change to the ToR.
    Latency,
    /// Memory with 10,000 Services, and the cost of a change.
    Size,
    /// The time from a program's end until its anycast address is withdrawn.
    Anycast,
}

/// A speaker under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Speaker {
    Trunkline,
    Bird,
    Frr,
    Gobgp,
}
