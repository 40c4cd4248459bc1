//! The operator's commands: each sends a request to the running agent and prints the answer.
//!
//! `-o json` prints the answer unchanged ([`trunkline_api::control`] has the fields). The tables
//! are for people and may change.

use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::Context;

use ipnet::IpNet;

use clap::{Parser, Subcommand, ValueEnum};
use trunkline_api::control::{
    AgentStatus, Direction, DrainPhase, DrainStatus, DumpDone, Events, Explanation, PacketPath, Peer,
    PeerDone, PodStatus, PoliciesView, PolicyAnswer, PolicyQuestion, Query, Route, ServiceView, Table,
};
use trunkline_api::service::Protocol;
use trunkline_bgp::types::PeerKey;
use trunkline_bgp::wire::Notification;

use crate::arguments::{ClientArgs, Output};
use crate::bundle::SupportBundle;
use crate::completions::{self, Shell};
use crate::doctor::{self, Doctor};
use crate::install::{Install, InstallPaths};
use crate::migrate::{self, Migrate};
use crate::policies::DecidedPath;
use crate::{client, events, policies, services, show, watch};

/// Pod networking on the real network: the node's agent and the operator's commands.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version, max_term_width = 100)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node's agent in the foreground.
    Agent {
        /// Configuration file; docs/config.md describes every field.
        #[arg(long, value_name = "FILE", default_value = "/etc/trunkline/agent.yaml")]
        config: PathBuf,
        /// Check the configuration and the manifests, print the faults, and exit.
        #[arg(long)]
        check: bool,
        /// Run even if a process on this node listens on hybridnet's socket.
        #[arg(long)]
        beside_hybridnet: bool,
    },
    /// Install the CNI plugin and its configuration on this node.
    InstallCni {
        /// Files and folders of the installation.
        #[command(flatten)]
        install: Install,
        /// Install even if a daemon of hybridnet seems to run: the runtime then uses this
        /// configuration.
        #[arg(long)]
        beside_hybridnet: bool,
    },
    /// Remove the CNI plugin and its configuration from this node.
    UninstallCni(InstallPaths),
    /// Show the state of the agent: readiness, networks, subnets and peers.
    Status {
        /// For the readiness probe of the agent's pod: print nothing if the agent serves this node;
        /// otherwise print the reason and exit with code 1. Peers and networks count only until the
        /// agent is ready for the first time; then only the agent's own faults count.
        #[arg(long, conflicts_with = "output")]
        probe: bool,
        /// Arguments of the request.
        #[command(flatten)]
        args: ClientArgs,
    },
    /// Show the BGP peers or the details of one peer; reset or refresh a session.
    #[command(args_conflicts_with_subcommands = true)]
    Peers {
        /// The action on a peer's session.
        #[command(subcommand)]
        action: Option<PeerCommand>,
        /// Show only this peer, with its session, messages and last errors. An unnumbered peer is
        /// also known by its interface.
        #[arg(value_name = "ADDRESS")]
        peer: Option<String>,
        /// Arguments of the request.
        #[command(flatten)]
        args: ClientArgs,
    },
    /// Show the selected paths, the paths received from a peer, or the paths advertised to a peer.
    Routes {
        /// Show the paths received from this peer, including rejected paths.
        #[arg(long, value_name = "PEER", conflicts_with = "advertised")]
        received: Option<PeerKey>,
        /// Show the paths advertised to this peer.
        #[arg(long, value_name = "PEER")]
        advertised: Option<PeerKey>,
        /// Explain the routing of PREFIX: each path with the results of import policy and decision
        /// process, and each peer with the reason why the prefix is advertised or not. An address
        /// means its host route.
        #[arg(long, value_name = "PREFIX", value_parser = prefix, conflicts_with_all = ["received", "advertised", "mrt"])]
        explain: Option<IpNet>,
        /// Write the tables to FILE as MRT (TABLE_DUMP_V2), for programs such as bgpdump; `-` is
        /// standard output.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["received", "advertised"])]
        mrt: Option<PathBuf>,
        /// Arguments of the request.
        #[command(flatten)]
        args: ClientArgs,
    },
    /// Show the attached pods and their addresses.
    Pods {
        /// Show only these pods: by name, `namespace/name`, container ID or its beginning, or
        /// address.
        #[arg(value_name = "POD")]
        pod: Option<String>,
        /// Show the path of a packet from POD to DST according to the kernel: rules, routes and
        /// neighbour entries in the pod and on this node, the return path, and the decisions of
        /// network policies about connections in both directions.
        #[arg(long, value_name = "DST", requires = "pod")]
        path: Option<IpAddr>,
        /// With --path: source address of the packet. Default: the pod's kernel selects the
        /// address.
        #[arg(long, value_name = "ADDRESS", requires = "path")]
        from: Option<IpAddr>,
        /// With --path: protocol and destination port of the packet, such as tcp/8080, for the
        /// decisions of network policies. Default: a packet without ports, such as ICMP.
        #[arg(long, value_name = "PROTOCOL/PORT", requires = "path", value_parser = policies::port)]
        port: Option<(Protocol, u16)>,
        /// With --path: network namespace of the pod, if the file that the runtime recorded no
        /// longer exists.
        #[arg(long, value_name = "FILE", requires = "path")]
        netns: Option<PathBuf>,
        /// Arguments of the request.
        #[command(flatten)]
        args: ClientArgs,
    },
    /// Show the service addresses of this node: their state, and the reason if one is withheld.
    Services {
        /// Show only the Services with this name, in detail: `NAME` or `NAMESPACE/NAME`.
        #[arg(value_name = "SERVICE")]
        name: Option<String>,
        /// Arguments of the request.
        #[command(flatten)]
        args: ClientArgs,
    },
    /// Show the network policies in force on this node: their pods, and the packets that each
    /// allowed or denied.
    Policies {
        /// Show only the policies with this name, in detail: `NAME` or `NAMESPACE/NAME`.
        #[arg(value_name = "POLICY")]
        name: Option<String>,
        /// Arguments of the request.
        #[command(flatten)]
        args: ClientArgs,
    },
    /// Show the recent session and route events, including events of earlier runs of the agent.
    Events {
        /// Continue to print new events.
        #[arg(short, long)]
        follow: bool,
        /// Arguments of the request. With --follow, `-o json` prints one event per line.
        #[command(flatten)]
        args: ClientArgs,
    },
    /// Show peers, networks, pods, events and service addresses live in this terminal.
    ///
    /// Peers that are down come first; press `?` for the keys.
    Watch {
        /// Socket of the agent.
        #[arg(long, value_name = "PATH", default_value = trunkline_api::attach::DEFAULT_SOCKET)]
        socket: PathBuf,
    },
    /// Find the faults of this host that affect pods, and recommend actions.
    ///
    /// The exit code is 0 without findings, 1 with warnings, 2 with errors.
    Doctor(Doctor),
    /// Write one archive for a ticket: the agent's answers, configuration, kernel state, log.
    ///
    /// The archive contains no passwords, keys or tokens. If the agent does not answer, only its
    /// answers are missing. The archive lists all missing data.
    SupportBundle(SupportBundle),
    /// Drain this node: move its traffic to other paths and leave the fabric.
    ///
    /// Sends GRACEFUL_SHUTDOWN (RFC 8326) to the peers, waits, withdraws all prefixes, and shuts
    /// the sessions down. The drain continues without this command and survives restarts of the
    /// agent.
    Drain {
        /// Wait until the drain is complete.
        #[arg(long)]
        wait: bool,
        /// Message to the peers' operators at the end (RFC 9003), at most 255 octets.
        #[arg(long, value_name = "TEXT", default_value = "", value_parser = message)]
        message: String,
        /// Arguments of the request.
        #[command(flatten)]
        args: ClientArgs,
    },
    /// Undo a drain, or stop a drain in progress: this node advertises its prefixes again.
    Undrain(ClientArgs),
    /// Convert the settings of another network to Trunkline's.
    #[command(subcommand)]
    Migrate(Migrate),
    /// Print the completion script of a shell for this command line.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// Actions on a peer's session.
#[derive(Debug, Subcommand)]
pub enum PeerCommand {
    /// Reset the session: end it and start a new one. The peer receives Cease/Administrative Reset.
    /// A wait after an error ends too.
    Reset {
        /// The peer, by address; an unnumbered peer also by its interface.
        #[arg(value_name = "PEER")]
        peer: String,
        /// Hard reset: no side retains paths, even if both support graceful restart after a
        /// NOTIFICATION (RFC 8538).
        #[arg(long)]
        hard: bool,
        /// Message to the peer's operator (RFC 9003), at most 255 octets.
        #[arg(long, value_name = "TEXT", default_value = "", value_parser = message)]
        message: String,
        /// Arguments of the request.
        #[command(flatten)]
        args: ClientArgs,
    },
    /// Request or send all routes again without a new session (ROUTE-REFRESH, RFC 2918).
    SoftRefresh {
        /// The peer, by address; an unnumbered peer also by its interface.
        #[arg(value_name = "PEER")]
        peer: String,
        /// The direction of the refresh.
        #[arg(value_enum, default_value_t = RefreshDirection::In)]
        direction: RefreshDirection,
        /// Arguments of the request.
        #[command(flatten)]
        args: ClientArgs,
    },
}

/// The direction of a soft refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RefreshDirection {
    /// The peer sends its routes again.
    In,
    /// This node sends its routes again.
    Out,
}

/// Runs a command. Only the answer is written to standard output.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Agent { .. }
        | Command::InstallCni { .. }
        | Command::UninstallCni(_)
        | Command::Completions { .. }
        | Command::Migrate(_)
        | Command::Doctor(_)
        | Command::SupportBundle(_) => {
            anyhow::bail!("not a request to the agent")
        }
        Command::Status { probe: true, args } => {
            let status: AgentStatus = client::query(&args.socket, Query::Agent)?;
            anyhow::ensure!(status.not_serving.is_empty(), "{}", status.not_serving.join("; "));
            Ok(())
        }
        Command::Status { probe: false, args } => {
            let status: AgentStatus = client::query(&args.socket, Query::Agent)?;
            print(args.output, &status, show::agent)
        }
        Command::Peers { action: Some(PeerCommand::Reset { peer, hard, message, args }), .. } => {
            let done: PeerDone = client::query(&args.socket, Query::ResetPeer { peer, hard, message })?;
            print(args.output, &done, show::peer_done)
        }
        Command::Peers { action: Some(PeerCommand::SoftRefresh { peer, direction, args }), .. } => {
            let direction = match direction {
                RefreshDirection::In => Direction::In,
                RefreshDirection::Out => Direction::Out,
            };
            let done: PeerDone = client::query(&args.socket, Query::RefreshPeer { peer, direction })?;
            print(args.output, &done, show::peer_done)
        }
        Command::Peers { action: None, peer, args } => {
            let peers: Vec<Peer> = client::query(&args.socket, Query::Peers { address: peer.clone() })?;
            match peer {
                Some(_) => print(args.output, &peers, |peers| peers.iter().map(show::peer).collect()),
                None => print(args.output, &peers, |peers| show::peers(peers)),
            }
        }
        Command::Routes { mrt: Some(file), args, .. } => dump(&file, &args),
        Command::Routes { explain: Some(prefix), args, .. } => {
            let explanation: Explanation = client::query(&args.socket, Query::Explain { prefix })?;
            print(args.output, &explanation, show::explanation)
        }
        Command::Routes { received, advertised, mrt: None, explain: None, args } => {
            let table = match (received, advertised) {
                (Some(peer), _) => Table::Received { peer: peer.to_string() },
                (None, Some(peer)) => Table::Advertised { peer: peer.to_string() },
                (None, None) => Table::Best,
            };
            let mut routes: Vec<Route> = client::query(&args.socket, Query::Routes { table })?;
            // The sort by prefix is stable, so paths of one prefix keep the agent's order.
            routes.sort_by_key(|route| route.prefix);
            print(args.output, &routes, |routes| show::routes(routes))
        }
        Command::Drain { wait, message, args } => {
            let mut status: DrainStatus = client::query(&args.socket, Query::Drain { message })?;
            if wait {
                status = client::query_when(&args.socket, Query::DrainStatus { wait })?;
                if status.phase != DrainPhase::Drained {
                    anyhow::bail!("another operator has undrained this node meanwhile (`trunkline undrain`)")
                }
            }
            print(args.output, &status, show::drain)
        }
        Command::Undrain(args) => {
            let status: DrainStatus = client::query(&args.socket, Query::Undrain)?;
            print(args.output, &status, show::drain)
        }
        Command::Events { follow: true, args } => events::follow(&args),
        Command::Events { follow: false, args } => {
            let kept: Events =
                client::query(&args.socket, Query::Events { after: 0, run: None, wait: false })?;
            print(args.output, &kept, events::table)
        }
        Command::Watch { socket } => watch::watch(&socket),
        Command::Services { name, args } => {
            let everywhere = name.is_some();
            let query = Query::Services { name: name.clone(), everywhere };
            let views: Vec<ServiceView> = client::query(&args.socket, query)?;
            let Some(name) = name else {
                return print(args.output, &views, |views| services::table(views));
            };
            anyhow::ensure!(
                !views.is_empty(),
                "no Service {name} with an address is known on this node: `trunkline services` lists all addresses"
            );
            let explanations = match args.output {
                Output::Table => services::explain(&args.socket, &views)?,
                Output::Json => Vec::new(),
            };
            print(args.output, &views, |views| services::details(views, &explanations))
        }
        Command::Policies { name, args } => {
            let mut view: PoliciesView = client::query(&args.socket, Query::Policies)?;
            let Some(name) = name else { return print(args.output, &view, policies::table) };
            policies::retain(&mut view, &name);
            anyhow::ensure!(
                !view.policies.is_empty(),
                "no network policy {name} is known on this node: `trunkline policies` lists all policies"
            );
            print(args.output, &view, policies::details)
        }
        Command::Pods { pod, path, from, port, netns, args } => {
            let mut pods: Vec<PodStatus> = client::query(&args.socket, Query::Pods)?;
            pods.retain(|status| pod.as_ref().is_none_or(|pod| names(pod, status)));
            match (path, pod) {
                (Some(destination), Some(pod)) => {
                    let (container_id, netns) = one(&pods, &pod, netns)?;
                    let question = Query::Path { container_id, destination, source: from };
                    let path: PacketPath = client::query_into(&args.socket, question, netns.as_fd())?;
                    let (policies, fault) = match decisions(&args.socket, &path, port) {
                        Ok(policies) => (policies, None),
                        Err(error) if port.is_some() => return Err(error),
                        Err(error) => (None, Some(format!("{error:#}"))),
                    };
                    let decided = DecidedPath { path, policies };
                    print(args.output, &decided, |decided| policies::path(decided, port, fault.as_deref()))
                }
                _ => print(args.output, &pods, |pods| show::pods(pods)),
            }
        }
    }
}

/// Examines this host, and returns the exit code.
pub fn examine(doctor: &Doctor) -> anyhow::Result<u8> {
    let findings = doctor.host.examine();
    print(doctor.output, &findings, |findings| doctor::table(findings))?;
    Ok(doctor::exit_code(&findings))
}

/// Converts settings of another network. Notes about the conversion are on standard error.
pub fn convert(from: &Migrate) -> anyhow::Result<()> {
    let converted = migrate::convert(from)?;
    for note in &converted.notes {
        eprintln!("{note}");
    }
    write(converted.values.as_bytes())
}

/// Prints the completions for a shell.
pub fn complete(shell: Shell) -> anyhow::Result<()> {
    write(&completions::script(shell))
}

/// Requests the decisions of network policies about a packet.
fn decisions(
    socket: &Path,
    path: &PacketPath,
    port: Option<(Protocol, u16)>,
) -> anyhow::Result<Option<PolicyAnswer>> {
    let Some(pod) = path.source else { return Ok(None) };
    let question = PolicyQuestion { pod, peer: path.destination, port };
    client::query(socket, Query::PolicyDecision { question }).map(Some)
}

/// Whether the operator's text refers to this pod.
fn names(written: &str, pod: &PodStatus) -> bool {
    let address = written.parse().is_ok_and(|address| pod.addresses.contains(&address));
    address || written == pod.name || written == pod.title() || pod.container_id.starts_with(written)
}

/// The container of these interfaces, and its network namespace. This process opens the namespace,
/// because the agent may be in another mount namespace.
fn one(pods: &[PodStatus], written: &str, netns: Option<PathBuf>) -> anyhow::Result<(String, File)> {
    let Some(first) = pods.first() else {
        anyhow::bail!("no pod {written} is attached here: `trunkline pods` lists the attached pods")
    };
    if let Some(other) = pods.iter().find(|pod| pod.container_id != first.container_id) {
        let titles = [first, other].map(|pod| format!("{} ({})", pod.title(), pod.container_id));
        anyhow::bail!("{written} matches several pods, {}: select one by its container ID", titles.join(", "))
    }
    let path = match netns {
        Some(path) => path,
        None if first.netns.is_empty() => anyhow::bail!(
            "the network namespace of {} is not recorded: name it with --netns, for example /proc/PID/ns/net of one of its processes",
            first.title()
        ),
        None => PathBuf::from(&first.netns),
    };
    let file = File::open(&path).with_context(|| {
        format!(
            "the network namespace of {}, {}, cannot be opened: name it with --netns, for example /proc/PID/ns/net of one of its processes",
            first.title(),
            path.display()
        )
    })?;
    Ok((first.container_id.clone(), file))
}

/// A prefix, or an address as host route. Host bits are cleared.
fn prefix(text: &str) -> Result<IpNet, String> {
    let prefix = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    prefix
        .map(|prefix| prefix.trunc())
        .map_err(|_| "write a prefix such as 10.0.0.0/8, or an address".to_owned())
}

/// A text for the peers' operators; its length field has one octet.
fn message(text: &str) -> Result<String, String> {
    match text.len() {
        _ if text.chars().any(char::is_control) => {
            Err("the text has control characters: write plain text".to_owned())
        }
        0..=Notification::MAX_COMMUNICATION => Ok(text.to_owned()),
        octets => Err(format!(
            "the text has {octets} octets: write at most {} octets",
            Notification::MAX_COMMUNICATION
        )),
    }
}

/// Makes the agent write its tables into a file. The summary goes to standard error if the file is
/// standard output.
fn dump(path: &Path, args: &ClientArgs) -> anyhow::Result<()> {
    let stdout = path.as_os_str() == "-";
    let done: DumpDone = if stdout {
        client::query_into(&args.socket, Query::Dump, io::stdout().as_fd())?
    } else {
        let file = File::create(path).with_context(|| format!("{} cannot be created", path.display()))?;
        client::query_into(&args.socket, Query::Dump, file.as_fd())?
    };
    if !stdout {
        return print(args.output, &done, |done| show::dump(path, done));
    }
    eprint!("{}", show::dump(path, &done));
    Ok(())
}

fn print<T: serde::Serialize>(
    output: Output,
    answer: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let text = match output {
        Output::Table => table(answer),
        Output::Json => serde_json::to_string_pretty(answer)? + "\n",
    };
    write(text.as_bytes())
}

fn write(text: &[u8]) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text) {
        // A closed pipe, as in `trunkline routes | head`, is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => Ok(outcome?),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        for good in [
            "trunkline agent --config /x",
            "trunkline peers 10.0.0.1 -o json",
            "trunkline routes --received 2001:db8::1",
            "trunkline peers fe80::1%eth0",
            "trunkline peers eth0",
            "trunkline peers reset fe80::1%eth0 --hard --socket /x",
            "trunkline peers soft-refresh eth0",
            "trunkline peers soft-refresh 10.0.0.1 out -o json",
            "trunkline routes --mrt /tmp/tables.mrt",
            "trunkline routes --mrt -",
            "trunkline routes --explain 10.0.0.0/8 -o json",
            "trunkline routes --explain 2001:db8::1",
            "trunkline events -o json",
            "trunkline events --follow",
            "trunkline watch --socket /x",
            "trunkline drain --wait --message disk",
            "trunkline status --socket /x -o json",
            "trunkline status --probe --socket /x",
            "trunkline undrain --socket /x",
            "trunkline completions bash",
            "trunkline migrate hybridnet --values hybridnet.yaml",
            "trunkline migrate hybridnet --values -",
            "trunkline doctor --config /x --socket /y --conf-dir /z -o json",
            "trunkline support-bundle",
            "trunkline support-bundle -o - --routes 100 --log-lines 0 --config /x --socket /y --conf-dir /z",
            "trunkline services -o json",
            "trunkline services default/web --socket /x",
            "trunkline policies -o json",
            "trunkline policies default/web --socket /x",
            "trunkline pods web-0 --path 192.0.2.1 --port tcp/8080",
            "trunkline pods --socket /x -o table",
            "trunkline pods default/web-0",
            "trunkline pods web-0 --path 192.0.2.1 --from 10.0.0.7 --netns /run/netns/x -o json",
        ] {
            Cli::try_parse_from(good.split(' ')).unwrap();
        }
        for bad in [
            "trunkline",
            "trunkline routes --received 1.2.3.4 --advertised 1.2.3.4",
            "trunkline routes --received tor1",
            "trunkline peers reset",
            "trunkline completions csh",
            "trunkline migrate",
            "trunkline migrate hybridnet",
            "trunkline migrate metallb --values -",
            "trunkline status --probe -o json",
            "trunkline peers 10.0.0.1 reset 10.0.0.1",
            "trunkline peers soft-refresh 10.0.0.1 both",
            "trunkline pods --path 192.0.2.1",
            "trunkline watch -o json",
            "trunkline pods web-0 --from 192.0.2.1",
            "trunkline pods web-0 --port tcp/80",
            "trunkline pods web-0 --path 192.0.2.1 --port 80",
        ] {
            Cli::try_parse_from(bad.split(' ')).unwrap_err();
        }
        let long = "x".repeat(256);
        Cli::try_parse_from(["trunkline", "peers", "reset", "eth0", "--message", &long]).unwrap_err();
    }
}
