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
    PeerDone, PodStatus, Query, Route, Table,
};
use trunkline_bgp::types::PeerKey;
use trunkline_bgp::wire::Notification;

use crate::arguments::{ClientArgs, Output};
use crate::bundle::SupportBundle;
use crate::completions::{self, Shell};
use crate::doctor::{self, Doctor};
use crate::install::{Install, InstallPaths};
use crate::{client, events, packet_path, show, watch};

/// Pod networking on the real network: the node's agent, and what an operator asks of it.
#[derive(Debug, Parser)]
#[command(name = "trunkline", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node's agent in the foreground.
    Agent {
        /// The configuration; docs/config.md has every field.
        #[arg(long, value_name = "FILE", default_value = "/etc/trunkline/agent.yaml")]
        config: PathBuf,
        /// Read and check the configuration and the manifests, say what is wrong, and end.
        #[arg(long)]
        check: bool,
        /// Run although something on this node listens on hybridnet's socket.
        #[arg(long)]
        beside_hybridnet: bool,
    },
    /// Put the CNI plugin and its configuration in place on this node.
    InstallCni {
        /// What goes where.
        #[command(flatten)]
        what: Install,
        /// Install beside a daemon that looks like hybridnet's: the runtime goes by this configuration from then on.
        #[arg(long)]
        beside_hybridnet: bool,
    },
    /// Take them away.
    UninstallCni(InstallPaths),
    /// The agent at a glance: is it ready, its networks, subnets and peers.
    Status {
        /// Say nothing where the agent serves this node, and end with exit code 1 and what is missing where it does not: for the readiness probe of
        /// its pod. Peers and networks count until the agent was ready once; after that only what is its own.
        #[arg(long, conflicts_with = "output")]
        probe: bool,
        /// How to ask.
        #[command(flatten)]
        ask: ClientArgs,
    },
    /// BGP peers, or everything about one; or do something with the session of one.
    #[command(args_conflicts_with_subcommands = true)]
    Peers {
        /// What to do with it.
        #[command(subcommand)]
        act: Option<PeerCommand>,
        /// Only this peer, with its session, messages and last errors; an unnumbered one also by its interface.
        #[arg(value_name = "ADDRESS")]
        peer: Option<String>,
        /// How to ask.
        #[command(flatten)]
        ask: ClientArgs,
    },
    /// Routes: the paths in use, those that one peer told, or those that one was told.
    Routes {
        /// What this peer told, refused paths included.
        #[arg(long, value_name = "PEER", conflicts_with = "advertised")]
        received: Option<PeerKey>,
        /// What this peer was told.
        #[arg(long, value_name = "PEER")]
        advertised: Option<PeerKey>,
        /// Why PREFIX is routed as it is: each path, what import policy and the decision said of it, and for each peer
        /// whether it is told and why not. An address stands for its host route.
        #[arg(long, value_name = "PREFIX", value_parser = prefix, conflicts_with_all = ["received", "advertised", "mrt"])]
        explain: Option<IpNet>,
        /// Write the tables to FILE as MRT (TABLE_DUMP_V2), for bgpdump and its like; `-` is standard output.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["received", "advertised"])]
        mrt: Option<PathBuf>,
        /// How to ask.
        #[command(flatten)]
        ask: ClientArgs,
    },
    /// Attached pods and their addresses.
    Pods {
        /// Only these: by name, `namespace/name`, container ID (its beginning will do) or address.
        #[arg(value_name = "POD")]
        pod: Option<String>,
        /// What becomes of a packet from POD to DST: the rules, routes and neighbours that it meets in the pod and on this node, and the way
        /// back, as the kernel says.
        #[arg(long, value_name = "DST", requires = "pod")]
        path: Option<IpAddr>,
        /// With --path: the packet's source address. Otherwise the pod's kernel chooses.
        #[arg(long, value_name = "ADDRESS", requires = "path")]
        from: Option<IpAddr>,
        /// With --path: the pod's network namespace, if it is no longer where the runtime had it.
        #[arg(long, value_name = "FILE", requires = "path")]
        netns: Option<PathBuf>,
        /// How to ask.
        #[command(flatten)]
        ask: ClientArgs,
    },
    /// What happened lately: the last session and route events, those of earlier runs of the agent included.
    Events {
        /// Stay, and print what happens from now on too.
        #[arg(short, long)]
        follow: bool,
        /// How to ask. With --follow, `-o json` prints one event a line.
        #[command(flatten)]
        ask: ClientArgs,
    },
    /// Peers, networks, pods and events in this terminal, live.
    ///
    /// What is down comes first; `?` says what the keys do.
    Watch {
        /// The agent's socket.
        #[arg(long, value_name = "PATH", default_value = trunkline_api::attach::DEFAULT_SOCKET)]
        socket: PathBuf,
    },
    /// Look what on this host keeps pods from working, and say what to do.
    ///
    /// The exit code is 0 if all is well, 1 with warnings, 2 with errors.
    Doctor(Doctor),
    /// Write one archive for a ticket: the agent's answers, configuration, kernel state, log.
    ///
    /// It has no passwords, keys or tokens. An agent that does not answer costs its answers alone, and what else cannot be had is said.
    SupportBundle(SupportBundle),
    /// Leave the fabric without losing what has another way.
    ///
    /// Tells the peers (GRACEFUL_SHUTDOWN, RFC 8326), gives them time, takes back all that was told, and shuts the sessions down. It goes on by
    /// itself, and lasts over restarts of the agent.
    Drain {
        /// Wait until it is done.
        #[arg(long)]
        wait: bool,
        /// What the peers' operators read at the end (RFC 9003), at most 255 octets.
        #[arg(long, value_name = "TEXT", default_value = "", value_parser = message)]
        message: String,
        /// How to ask.
        #[command(flatten)]
        ask: ClientArgs,
    },
    /// Come back into the fabric, or go no further out of it.
    Undrain(ClientArgs),
    /// Print what a shell needs to complete this command line.
    Completions {
        /// For this shell.
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// What to do with a peer's session.
#[derive(Debug, Subcommand)]
pub enum PeerCommand {
    /// End the session and begin a new one; a wait after an error ends too. The peer is told (Administrative Reset).
    Reset {
        /// The peer, by address; an unnumbered one also by its interface.
        #[arg(value_name = "PEER")]
        peer: String,
        /// Keep nothing over it on either side, even where both have graceful restart after a NOTIFICATION (RFC 8538).
        #[arg(long)]
        hard: bool,
        /// What the peer's operator reads (RFC 9003), at most 255 octets.
        #[arg(long, value_name = "TEXT", default_value = "", value_parser = message)]
        message: String,
        /// How to ask.
        #[command(flatten)]
        ask: ClientArgs,
    },
    /// Have everything told again without ending the session (ROUTE-REFRESH, RFC 2918).
    SoftRefresh {
        /// The peer, by address; an unnumbered one also by its interface.
        #[arg(value_name = "PEER")]
        peer: String,
        /// Who tells everything again.
        #[arg(value_enum, default_value_t = RefreshDirection::In)]
        way: RefreshDirection,
        /// How to ask.
        #[command(flatten)]
        ask: ClientArgs,
    },
}

/// Which way routes are told again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RefreshDirection {
    /// The peer.
    In,
    /// This node.
    Out,
}

/// Runs a command. Only the answer is written to standard output.
pub fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Agent { .. }
        | Command::InstallCni { .. }
        | Command::UninstallCni(_)
        | Command::Completions { .. }
        | Command::Doctor(_)
        | Command::SupportBundle(_) => {
            anyhow::bail!("no question to the agent")
        }
        Command::Status { probe: true, ask } => {
            let status: AgentStatus = client::query(&ask.socket, Query::Agent)?;
            anyhow::ensure!(status.not_serving.is_empty(), "{}", status.not_serving.join("; "));
            Ok(())
        }
        Command::Status { probe: false, ask } => {
            let status: AgentStatus = client::query(&ask.socket, Query::Agent)?;
            print(ask.output, &status, show::agent)
        }
        Command::Peers { act: Some(PeerCommand::Reset { peer, hard, message, ask }), .. } => {
            let done: PeerDone = client::query(&ask.socket, Query::ResetPeer { peer, hard, message })?;
            print(ask.output, &done, show::peer_done)
        }
        Command::Peers { act: Some(PeerCommand::SoftRefresh { peer, way, ask }), .. } => {
            let direction = match way {
                RefreshDirection::In => Direction::In,
                RefreshDirection::Out => Direction::Out,
            };
            let done: PeerDone = client::query(&ask.socket, Query::RefreshPeer { peer, direction })?;
            print(ask.output, &done, show::peer_done)
        }
        Command::Peers { act: None, peer, ask } => {
            let peers: Vec<Peer> = client::query(&ask.socket, Query::Peers { address: peer.clone() })?;
            match peer {
                Some(_) => print(ask.output, &peers, |peers| peers.iter().map(show::peer).collect()),
                None => print(ask.output, &peers, |peers| show::peers(peers)),
            }
        }
        Command::Routes { mrt: Some(file), ask, .. } => dump(&file, &ask),
        Command::Routes { explain: Some(prefix), ask, .. } => {
            let explanation: Explanation = client::query(&ask.socket, Query::Explain { prefix })?;
            print(ask.output, &explanation, show::explanation)
        }
        Command::Routes { received, advertised, mrt: None, explain: None, ask } => {
            let table = match (received, advertised) {
                (Some(peer), _) => Table::Received { peer: peer.to_string() },
                (None, Some(peer)) => Table::Advertised { peer: peer.to_string() },
                (None, None) => Table::Best,
            };
            let mut routes: Vec<Route> = client::query(&ask.socket, Query::Routes { table })?;
            // The agent's order; paths of one prefix keep their order.
            routes.sort_by_key(|route| route.prefix);
            print(ask.output, &routes, |routes| show::routes(routes))
        }
        Command::Drain { wait, message, ask } => {
            let mut status: DrainStatus = client::query(&ask.socket, Query::Drain { message })?;
            if wait {
                status = client::query_when(&ask.socket, Query::DrainStatus { wait })?;
                if status.phase != DrainPhase::Drained {
                    anyhow::bail!("somebody else has brought this node back meanwhile (`trunkline undrain`)")
                }
            }
            print(ask.output, &status, show::drain)
        }
        Command::Undrain(ask) => {
            let status: DrainStatus = client::query(&ask.socket, Query::Undrain)?;
            print(ask.output, &status, show::drain)
        }
        Command::Events { follow: true, ask } => events::follow(&ask),
        Command::Events { follow: false, ask } => {
            let kept: Events =
                client::query(&ask.socket, Query::Events { after: 0, run: None, wait: false })?;
            print(ask.output, &kept, events::table)
        }
        Command::Watch { socket } => watch::watch(&socket),
        Command::Pods { pod, path, from, netns, ask } => {
            let mut pods: Vec<PodStatus> = client::query(&ask.socket, Query::Pods)?;
            pods.retain(|status| pod.as_ref().is_none_or(|pod| names(pod, status)));
            match (path, pod) {
                (Some(destination), Some(pod)) => {
                    let (container_id, netns) = one(&pods, &pod, netns)?;
                    let question = Query::Path { container_id, destination, source: from };
                    let walked: PacketPath = client::query_into(&ask.socket, question, netns.as_fd())?;
                    print(ask.output, &walked, packet_path::show)
                }
                _ => print(ask.output, &pods, |pods| show::pods(pods)),
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

/// Prints the completions for a shell.
pub fn complete(shell: Shell) -> anyhow::Result<()> {
    write(&completions::script(shell))
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
        anyhow::bail!("no pod {written} is attached here: `trunkline pods` lists those that are")
    };
    if let Some(other) = pods.iter().find(|pod| pod.container_id != first.container_id) {
        let titles = [first, other].map(|pod| format!("{} ({})", pod.title(), pod.container_id));
        anyhow::bail!("{written} is several pods: name one of {} by its container ID", titles.join(", "))
    }
    let path = match netns {
        Some(path) => path,
        None if first.netns.is_empty() => anyhow::bail!(
            "where the network namespace of {} is was not recorded: name it with --netns, /proc/PID/ns/net of one of its processes will do",
            first.title()
        ),
        None => PathBuf::from(&first.netns),
    };
    let file = File::open(&path).with_context(|| {
        format!(
            "the network namespace of {}, {}, cannot be opened: name it with --netns, /proc/PID/ns/net of one of its processes will do",
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
            Err("it has control characters: write plain text".to_owned())
        }
        0..=Notification::MAX_COMMUNICATION => Ok(text.to_owned()),
        octets => Err(format!("it has {octets} octets: at most {} travel", Notification::MAX_COMMUNICATION)),
    }
}

/// Makes the agent write its tables into a file. The summary goes to standard error if the file is
/// standard output.
fn dump(path: &Path, ask: &ClientArgs) -> anyhow::Result<()> {
    let stdout = path.as_os_str() == "-";
    let done: DumpDone = if stdout {
        client::query_into(&ask.socket, Query::Dump, io::stdout().as_fd())?
    } else {
        let file = File::create(path).with_context(|| format!("{} cannot be made", path.display()))?;
        client::query_into(&ask.socket, Query::Dump, file.as_fd())?
    };
    if !stdout {
        return print(ask.output, &done, |done| show::dump(path, done));
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
            "trunkline doctor --config /x --socket /y --conf-dir /z -o json",
            "trunkline support-bundle",
            "trunkline support-bundle -o - --routes 100 --log-lines 0 --config /x --socket /y --conf-dir /z",
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
            "trunkline status --probe -o json",
            "trunkline peers 10.0.0.1 reset 10.0.0.1",
            "trunkline peers soft-refresh 10.0.0.1 both",
            "trunkline pods --path 192.0.2.1",
            "trunkline watch -o json",
            "trunkline pods web-0 --from 192.0.2.1",
        ] {
            Cli::try_parse_from(bad.split(' ')).unwrap_err();
        }
        let long = "x".repeat(256);
        Cli::try_parse_from(["trunkline", "peers", "reset", "eth0", "--message", &long]).unwrap_err();
    }
}
