//! The agent's answers as text for people.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;

use trunkline_api::bandwidth::Bandwidth;
use trunkline_api::control::{
    AgentStatus, BfdDiagnostic, ClusterStatus, CordonStatus, Dated, DrainCause, DrainPhase, DrainStatus,
    DumpDone, Explanation, GuardStatus, Peer, PeerCause, PeerDone, PeerFamily, PodStatus, Route, RouteOrigin,
    SubnetStatus,
};

use crate::anycast;
use crate::policies;
use crate::probes;
use crate::remote;
use crate::settings;
use crate::table::{Columns, duration};
use crate::ways_out;

/// The summary of the agent's status.
pub fn agent(status: &AgentStatus) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<11} {value}");
    };
    line("node", status.node.clone());
    line("agent", format!("version {}, up {}", status.version, duration(status.uptime_seconds)));
    match status.ready {
        true => line("ready", "yes".to_owned()),
        false => status.not_ready.iter().enumerate().for_each(|(index, reason)| {
            line("ready", if index == 0 { format!("no: {reason}") } else { format!("    {reason}") });
        }),
    }
    if status.drain.phase != DrainPhase::Undrained || status.drain.cordon.is_some() {
        drain(&status.drain).lines().enumerate().for_each(|(index, text)| {
            line(if index == 0 { "drain" } else { "" }, text.to_owned());
        });
    }
    let manifests = &status.manifests;
    let state = match (manifests.applied, manifests.refused.is_empty()) {
        (_, true) => "in force".to_owned(),
        (true, false) => "REFUSED, the previous state stays in force".to_owned(),
        (false, false) => "REFUSED, nothing was applied yet".to_owned(),
    };
    line("manifests", format!("{} {state}", manifests.folder));
    manifests.refused.iter().for_each(|fault| line("", fault.clone()));
    if let Some(cluster) = &status.cluster {
        line("api server", api_server(cluster));
        cluster.faults.iter().for_each(|fault| line("", format!("NOT SERVED: {fault}")));
    }
    line("store", status.store.path.clone());
    status.store.fault.iter().for_each(|fault| line("", format!("UNUSABLE: {fault}")));
    match &status.bgp {
        Some(bgp) => line(
            "bgp",
            format!(
                "AS {}, router ID {}, {} of {} peers established, {}{}",
                bgp.local_as,
                bgp.router_id,
                bgp.established,
                bgp.peers,
                match bgp.converged.as_slice() {
                    [] => "not converged yet".to_owned(),
                    families => format!("converged: {}", families.join(", ")),
                },
                if bgp.graceful_shutdown { ", GRACEFUL_SHUTDOWN to all peers" } else { "" }
            ),
        ),
        None => line("bgp", "none: no BGP network is on this node".to_owned()),
    }
    if let Some(peer) = status.bgp.as_ref().and_then(|bgp| bgp.disaggregated.as_ref()) {
        line("", format!("pods are advertised without NO_EXPORT while peer {peer} is down"));
    }
    for way in status.bgp.iter().flat_map(|bgp| &bgp.ways_out) {
        ways_out::lines(way).into_iter().for_each(|(name, text)| line(name, text));
    }
    for duplicate in status.bgp.iter().flat_map(|bgp| &bgp.duplicate_identifiers) {
        line("", duplicate.text.clone());
    }
    if let Some(fault) = status.bgp.as_ref().and_then(|bgp| bgp.fault.as_ref()) {
        line(
            "",
            format!(
                "NOT RUNNING: {fault}: routes and rules of running pods stay, the agent tries the start again"
            ),
        );
    }
    for listener in status.bgp.iter().flat_map(|bgp| &bgp.listening) {
        let Some(fault) = &listener.fault else { continue };
        let since = duration(listener.fault_seconds.unwrap_or_default());
        line("listening", format!("{} NOT ACCEPTING connections for {since}: {fault}", listener.address));
        line("", "outgoing sessions work; the agent tries the address again".to_owned());
    }
    for range in status.bgp.iter().flat_map(|bgp| &bgp.ranges) {
        let refused = match range.refused {
            0 => String::new(),
            refused => format!(", {refused} connections REFUSED over the limit"),
        };
        let (there, limit) = (range.peers, range.limit);
        let text = match &range.fault {
            Some(fault) => {
                format!("no neighbour from {}, AS {}, REFUSED: {fault}", range.prefix, range.remote_as)
            }
            None => format!("{there} of {limit} from {}, AS {}{refused}", range.prefix, range.remote_as),
        };
        line("neighbours", text);
    }
    for station in status.bgp.iter().flat_map(|bgp| &bgp.stations) {
        let state = if station.connected { "connected" } else { "NOT CONNECTED" };
        let error = station.last_error.as_ref().filter(|_| !station.connected);
        let error = error.map(|error| format!(": {error}")).unwrap_or_default();
        line("bmp", format!("{} {state} for {}{error}", station.address, duration(station.seconds)));
    }
    if let Some(fault) = &status.http_fault {
        line("http", format!("/metrics, /healthz and /readyz are NOT SERVED: {fault}"));
    }
    for (index, text) in status.settings.iter().map(settings::line).enumerate() {
        line(if index == 0 { "settings" } else { "" }, text);
    }
    for (index, text) in status.anycast.iter().flat_map(anycast::lines).enumerate() {
        line(if index == 0 { "anycast" } else { "" }, text);
    }
    for (index, text) in remote::ignored_claims(&status.ignored_claims).into_iter().enumerate() {
        line(if index == 0 { "nodes" } else { "" }, text);
    }
    for (index, text) in status.remote_clusters.iter().flat_map(remote::lines).enumerate() {
        line(if index == 0 { "remote" } else { "" }, text);
    }
    line("pods", format!("{} attached", status.attachments));
    if status.unrecorded > 0 {
        line(
            "",
            format!(
                "{} more in the kernel without a record: the store was lost; they keep running",
                status.unrecorded
            ),
        );
    }
    let kernel = &status.kernel;
    line(
        "kernel",
        format!(
            "{} of {} routes, {} stale, {} rules, {} repairs, {} errors",
            kernel.routes_installed,
            kernel.routes_wanted,
            kernel.routes_stale,
            kernel.rules,
            kernel.repairs,
            kernel.errors
        ),
    );
    if kernel.forwarding_wanted > 0 {
        line(
            "tunnels",
            format!(
                "{} of {} forwarding entries, {} repairs",
                kernel.forwarding_installed, kernel.forwarding_wanted, kernel.forwarding_repairs
            ),
        );
    }
    for (index, text) in status.probes.iter().flat_map(probes::lines).enumerate() {
        line(if index == 0 { "probes" } else { "" }, text);
    }
    if let Some(paths) = &status.alternate_paths {
        line(
            "alternate",
            format!(
                "{} packets to pods of other nodes forwarded to another router, {} dropped",
                paths.forwarded, paths.dropped
            ),
        );
    }
    match &status.policies {
        Some(summary) => policies::lines(summary).into_iter().enumerate().for_each(|(index, text)| {
            line(if index == 0 { "policies" } else { "" }, text);
        }),
        None => line("policies", "off by configuration".to_owned()),
    }
    line("guard", guard(&status.guard));
    kernel.last_error.iter().for_each(|error| line("", format!("last error: {error}")));
    let mut subnets =
        Columns::new(&["NETWORK", "MODE", "TABLE", "SUBNET", "CIDR", "DEVICE", "USED", "FREE", "TOTAL"]);
    let mut refused = String::new();
    let mut limits = String::new();
    for network in &status.networks {
        if let Some(reason) = &network.refused {
            let _ = writeln!(refused, "network {} is not served here: {reason}", network.name);
        }
        for subnet in &network.subnets {
            if let Some(reason) = &subnet.refused {
                let _ = writeln!(refused, "subnet {} is not served here: {reason}", subnet.name);
                continue;
            }
            for limit in subnet_limits(subnet) {
                let _ = writeln!(limits, "subnet {}: {limit}", subnet.name);
            }
            subnets.row([
                network.name.clone(),
                network.mode.to_string(),
                subnet.table.map(|table| table.to_string()).unwrap_or_default(),
                subnet.name.clone(),
                subnet.cidr.map(|cidr| cidr.to_string()).unwrap_or_default(),
                device(subnet),
                subnet.used.to_string(),
                subnet.free.to_string(),
                subnet.total.to_string(),
            ]);
        }
    }
    format!("{text}\n{}{limits}{refused}", subnets.render())
}

/// The pods that get addresses of a subnet, and the retention, if they are not the defaults.
fn subnet_limits(subnet: &SubnetStatus) -> Vec<String> {
    let mut limits = Vec::new();
    if subnet.disabled {
        limits.push("disabled: no pod gets a new address".to_owned());
    }
    if !subnet.allowed_namespaces.is_empty() {
        let namespaces = subnet.allowed_namespaces.join(", ");
        limits.push(format!("new addresses only for pods of Namespaces {namespaces}"));
    }
    match subnet.retention.as_deref() {
        Some("never") => limits.push("retained addresses are never released".to_owned()),
        Some(time) => limits.push(format!("retained addresses are released after {time}")),
        None => {}
    }
    limits
}

/// `in force, 12 dropped (source 10, bfd 2), 0 repairs`
fn guard(guard: &GuardStatus) -> String {
    if !guard.enabled {
        return "off by configuration".to_owned();
    }
    if !guard.in_force {
        return format!("NOT IN FORCE: {}", guard.fault.as_deref().unwrap_or("being loaded"));
    }
    let dropped: Vec<String> = guard
        .dropped
        .iter()
        .filter(|(_, packets)| **packets > 0)
        .map(|(reason, packets)| format!("{reason} {packets}"))
        .collect();
    let reasons = if dropped.is_empty() { String::new() } else { format!(" ({})", dropped.join(", ")) };
    let all: u64 = guard.dropped.values().sum();
    format!("in force, {all} packets dropped{reasons}, {} repairs", guard.repairs)
}

/// `https://10.0.0.1:6443 connected`, or the duration of the outage.
fn api_server(cluster: &ClusterStatus) -> String {
    let state = match (cluster.connected, cluster.outage_seconds) {
        (true, _) => "connected".to_owned(),
        (false, Some(seconds)) => {
            format!("NOT ANSWERING for {}: the last known state stays in force", duration(seconds))
        }
        (false, None) => "no answer yet".to_owned(),
    };
    let error = cluster.last_error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
    let unwritten = match cluster.unwritten {
        0 => String::new(),
        count => format!(", {count} status updates pending"),
    };
    format!("{} {state}{error}{unwritten}", cluster.server)
}

/// `eth0.10@eth0`, `eth0 (untagged)`, or `-` for a network without a VLAN device.
fn device(subnet: &SubnetStatus) -> String {
    let parent = subnet.parent.as_deref().unwrap_or_default();
    match (&subnet.device, subnet.vlan, &subnet.device_fault) {
        (None, _, _) => "-".to_owned(),
        (Some(_), Some(id), Some(_)) => format!("VLAN {id}: NONE"),
        (Some(name), Some(0), None) => format!("{name} (untagged)"),
        (Some(name), _, _) => format!("{name}@{parent}"),
    }
}

/// One line for each peer.
pub fn peers(peers: &[Peer]) -> String {
    let mut columns = Columns::new(&[
        "PEER",
        "AS",
        "STATE",
        "FOR",
        "RECEIVED",
        "ACCEPTED",
        "ADVERTISED",
        "FLAPS",
        "BFD",
        "CAUSE",
    ]);
    for peer in peers {
        let sum =
            |count: fn(&PeerFamily) -> usize| peer.families.iter().map(count).sum::<usize>().to_string();
        columns.row([
            if peer.range.is_some() { format!("{} (dynamic)", peer.name()) } else { peer.name() },
            peer.remote_as.to_string(),
            if peer.shutdown { "Shutdown".to_owned() } else { peer.state.to_string() },
            duration(peer.down_seconds.unwrap_or(peer.state_seconds)),
            sum(|family| family.received),
            sum(|family| family.accepted),
            sum(|family| family.advertised),
            peer.flaps.to_string(),
            peer.bfd.as_ref().map_or("-", |bfd| bfd.state.name()).to_owned(),
            why(peer),
        ]);
    }
    columns.render()
}

/// The cause of a peer's outage; for an established peer, the cause of its last outage.
fn why(peer: &Peer) -> String {
    match (&peer.cause, &peer.last_loss) {
        (Some(cause), _) => caused(cause),
        (None, Some(loss)) if peer.is_established() => format!("was down: {}", caused(loss)),
        _ => peer.last_error.as_ref().map(dated).unwrap_or_default(),
    }
}

fn caused(cause: &PeerCause) -> String {
    format!("{} ({} ago)", cause.text, duration(cause.seconds_ago))
}

/// All details of one peer.
pub fn peer(peer: &Peer) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<22} {value}");
    };
    line("peer", peer.name());
    peer.range.iter().for_each(|prefix| line("", format!("dynamic neighbour from {prefix}")));
    line("AS", format!("{}, local AS {}", peer.remote_as, peer.local_as));
    line(
        "state",
        match peer.down_seconds {
            Some(seconds) => format!("{}, no session for {}", peer.state, duration(seconds)),
            None => format!("{} for {}", peer.state, duration(peer.state_seconds)),
        },
    );
    if let Some(cause) = &peer.cause {
        line("cause", caused(cause));
        line("", format!("→ {}", cause.advice));
    }
    if !peer.rules.is_empty() {
        line("paths", peer.rules.join(", "));
    }
    if peer.shutdown {
        line("", "administratively down".to_owned());
    }
    if peer.optional {
        line("", "pods may be ready without it (allowNotEstablished)".to_owned());
    }
    if let Some(seconds) = peer.next_attempt_seconds {
        line("next attempt", format!("in {}", duration(seconds)));
    }
    line("flaps", peer.flaps.to_string());
    peer.max_prefixes.iter().for_each(|most| line("prefix limit", most.to_string()));
    if let Some(bfd) = &peer.bfd {
        line(
            "BFD",
            format!(
                "{} for {}, the peer reports {}",
                bfd.state,
                duration(bfd.state_seconds),
                bfd.remote_state
            ),
        );
        let hops = if bfd.multihop { "multihop" } else { "one hop" };
        let detection = match bfd.detection_milliseconds {
            Some(milliseconds) => format!("detection time {milliseconds} ms"),
            None => "no packet from the peer yet".to_owned(),
        };
        line("", format!("{hops}, a packet every {} ms, {detection}", bfd.transmit_milliseconds));
        line(
            "",
            format!(
                "Up {} times, left Up {} times ({} by timeout), {} packets in, {} out",
                bfd.ups, bfd.downs, bfd.detections, bfd.packets_received, bfd.packets_sent
            ),
        );
        for (whose, diagnostic) in
            [("last left Up", &bfd.diagnostic), ("the peer last left Up", &bfd.remote_diagnostic)]
        {
            if let BfdDiagnostic::Text(diagnostic) = diagnostic {
                line("", format!("{whose}: {diagnostic}"));
            }
        }
    }
    if let Some(session) = &peer.session {
        line("connection", format!("{} to {}", session.local, session.remote));
        session.round_trip_microseconds.iter().for_each(|microseconds| {
            line("round trip", format!("{:.3} ms", *microseconds as f64 / 1000.0));
        });
        line("router ID", session.router_id.to_string());
        let timer = |seconds| if seconds == 0 { "off".to_owned() } else { format!("{seconds}s") };
        line(
            "timers",
            format!("hold {}, keepalive {}", timer(session.hold_seconds), timer(session.keepalive_seconds)),
        );
        session
            .peer_restart_seconds
            .iter()
            .for_each(|seconds| line("peer's restart time", format!("{seconds}s")));
        line("capabilities sent", session.capabilities_sent.join(", "));
        line("capabilities received", session.capabilities_received.join(", "));
    }
    for family in &peer.families {
        line(
            &family.family,
            match family.negotiated {
                false if family.stale > 0 => {
                    let long = match family.long_lived_stale {
                        0 => String::new(),
                        long => format!(", {long} of them long-lived: used only as the last resort"),
                    };
                    format!("{} stale paths are retained{long}", family.stale)
                }
                false => "not negotiated".to_owned(),
                true => format!(
                    "{} received, {} accepted, {} stale{}, {} advertised; End-of-RIB {}",
                    family.received,
                    family.accepted,
                    family.stale,
                    match family.long_lived_stale {
                        0 => String::new(),
                        long => format!(" ({long} long-lived)"),
                    },
                    family.advertised,
                    match (family.end_of_rib_received, family.end_of_rib_sent) {
                        (true, true) => "in and out",
                        (true, false) => "in",
                        (false, true) => "out",
                        (false, false) => "neither in nor out",
                    }
                ),
            },
        );
    }
    for (name, messages) in [("received", &peer.received), ("sent", &peer.sent)] {
        line(
            name,
            format!(
                "{} OPEN, {} UPDATE, {} NOTIFICATION, {} KEEPALIVE, {} ROUTE-REFRESH; {} octets",
                messages.open,
                messages.update,
                messages.notification,
                messages.keepalive,
                messages.route_refresh,
                messages.octets
            ),
        );
    }
    match &peer.last_loss {
        Some(loss) => line("last session down", caused(loss)),
        None => peer.last_down.iter().for_each(|said| line("last session down", dated(said))),
    }
    peer.last_attempt.iter().for_each(|attempt| line("last attempt", caused(attempt)));
    for (name, said) in [
        ("notification sent", &peer.notification_sent),
        ("notification received", &peer.notification_received),
    ] {
        said.iter().for_each(|said| {
            let ago = duration(said.seconds_ago);
            // The NOTIFICATION that ends a session precedes the loss by less than a second.
            let old = !peer.is_established()
                && peer.last_loss.as_ref().is_some_and(|loss| said.seconds_ago > loss.seconds_ago + 1);
            let of = if old { ", before this outage" } else { "" };
            line(
                name,
                format!("{} (code {}, subcode {}; {ago} ago{of})", said.text, said.code, said.subcode),
            );
        });
    }
    text
}

/// The drain stage of a node.
pub fn drain(status: &DrainStatus) -> String {
    let since = duration(status.phase_seconds);
    let mut text = match status.phase {
        DrainPhase::Undrained => "undrained: this node is part of the fabric\n".to_owned(),
        DrainPhase::Announcing => match status.settle_seconds {
            Some(left) => format!(
                "announcing for {since}: every peer has received GRACEFUL_SHUTDOWN, the fabric has \
                 another {} to use other paths\n",
                duration(left)
            ),
            None => format!("announcing for {since}: the peers receive GRACEFUL_SHUTDOWN\n"),
        },
        DrainPhase::Withdrawing => {
            format!("withdrawing for {since}: the peers receive withdrawals of all prefixes\n")
        }
        DrainPhase::Drained => {
            let back = match status.cause {
                Some(DrainCause::Cordon) => "`kubectl uncordon` or `trunkline undrain` ends the drain",
                _ => "`trunkline undrain` ends the drain",
            };
            format!("DRAINED for {since}: no session, and no pod can be attached; {back}\n")
        }
    };
    if status.cause == Some(DrainCause::Cordon) {
        text.push_str("because it is cordoned in Kubernetes, and its pods were deleted\n");
    }
    match (status.cordon, status.phase) {
        (Some(CordonStatus { overruled: true, .. }), _) => {
            text.push_str(
                "the node is cordoned in Kubernetes, and is not drained: an operator ran \
                 `trunkline undrain`\n",
            );
        }
        (Some(CordonStatus { pods_left, .. }), DrainPhase::Undrained) => {
            let _ = writeln!(
                text,
                "the node is cordoned in Kubernetes, and is drained after its pods were deleted: \
                 {pods_left} left"
            );
        }
        _ => {}
    }
    if !status.message.is_empty() {
        let _ = writeln!(text, "message to the peers' operators: {}", status.message);
    }
    if status.prefixes > 0 {
        let _ = writeln!(
            text,
            "of {} prefixes of this node, peers had another path to {}",
            status.prefixes, status.alternatives
        );
    }
    for fault in &status.faults {
        let _ = writeln!(text, "{fault}");
    }
    text
}

/// The result of an action on a peer's session.
pub fn peer_done(done: &PeerDone) -> String {
    format!("{}: {}\n", done.peer, done.done)
}

/// One line for each path.
pub fn routes(routes: &[Route]) -> String {
    let mut columns = Columns::new(&[
        "",
        "PREFIX",
        "PEER",
        "ID",
        "NEXT HOP",
        "AS PATH",
        "MED",
        "PREF",
        "COMMUNITIES",
        "NOT USED BECAUSE",
    ]);
    let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
    for route in routes {
        let mark = |set, mark| if set { mark } else { "" };
        let marks =
            [mark(route.best, "*"), mark(route.filtered.is_some(), "f"), mark(route.stale, "s")].concat();
        columns.row([
            marks,
            route.prefix.to_string(),
            route.peer.clone().unwrap_or_else(|| "here".to_owned()),
            number(route.path_id),
            route.next_hop.map_or_else(|| "self".to_owned(), |address| address.to_string()),
            format!("{} {}", route.as_path, origin(route.origin)).trim_start().to_owned(),
            number(route.med),
            number(route.local_pref),
            route.communities.join(" "),
            route.filtered.clone().unwrap_or_default(),
        ]);
    }
    format!("* best, f filtered, s stale; origin: i IGP, e EGP, ? incomplete\n{}", columns.render())
}

/// Every path with its result, then every peer with the prefix's advertisement to it.
pub fn explanation(explanation: &Explanation) -> String {
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "here".to_owned());
    let mut text = format!("{}\n", explanation.prefix);
    match (explanation.paths.is_empty(), explanation.covered_by) {
        (false, _) => {}
        (true, None) => text.push_str("no path, and no covering prefix with a path\n"),
        (true, Some(covering)) => {
            let _ = writeln!(text, "no path; the longest covering prefix with a path is {covering}");
        }
    }
    if !explanation.paths.is_empty() {
        let mut columns =
            Columns::new(&["", "PATH FROM", "NEXT HOP", "AS PATH", "MED", "PREF", "STANDING", "REASON"]);
        let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
        for path in &explanation.paths {
            let route = &path.route;
            let imported = path.import.as_ref().filter(|ruling| ruling.accepted).and_then(|ruling| {
                let name = ruling.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
                ruling.rule.map(|rule| format!("import policy, rule {rule}{name}"))
            });
            let reason = [Some(path.reason.clone()).filter(|reason| !reason.is_empty()), imported];
            let stale = if route.stale { "s" } else { "" };
            columns.row([
                format!("{}{stale}", if route.best { "*" } else { "" }),
                name(&route.peer),
                route.next_hop.map_or_else(|| "self".to_owned(), |next_hop| next_hop.to_string()),
                format!("{} {}", route.as_path, origin(route.origin)).trim_start().to_owned(),
                number(route.med),
                number(route.local_pref),
                path.standing.to_string(),
                reason.into_iter().flatten().collect::<Vec<_>>().join("; "),
            ]);
        }
        text.push_str(&columns.render());
    }
    if !explanation.peers.is_empty() {
        text.push('\n');
        let mut columns = Columns::new(&["PEER", "PATH FROM", "STANDING", "REASON"]);
        for peer in &explanation.peers {
            // If nothing is advertised to the peer, the row refers to no path.
            let about = peer.from.is_some() || peer.export.is_some();
            columns.row([
                peer.peer.clone(),
                if about { name(&peer.from) } else { String::new() },
                peer.standing.to_string(),
                peer.reason.clone(),
            ]);
        }
        text.push_str(&columns.render());
    }
    if let Some(way) = &explanation.way_out {
        text.push('\n');
        text.push_str(&ways_out::explanation(way));
    }
    text
}

/// ORIGIN as routers abbreviate it.
fn origin(origin: RouteOrigin) -> &'static str {
    match origin {
        RouteOrigin::Igp => "i",
        RouteOrigin::Egp => "e",
        RouteOrigin::Incomplete | RouteOrigin::Unknown => "?",
    }
}

/// The summary of a dump.
pub fn dump(path: &Path, done: &DumpDone) -> String {
    format!(
        "{} prefixes with {} paths from {} peers, {} octets in {}\n",
        done.prefixes,
        done.paths,
        done.peers,
        done.octets,
        path.display()
    )
}

/// One line for each interface of a pod. Extra source prefixes have a column if a pod has some.
pub fn pods(pods: &[PodStatus]) -> String {
    let has_prefixes = pods.iter().any(|pod| !pod.extra_prefixes.is_empty());
    let mut names =
        vec!["POD", "CONTAINER", "IF", "NETWORK", "ADDRESSES", "MAC", "HOST IF", "LIMITS", "STATE"];
    if has_prefixes {
        names.push("EXTRA PREFIXES");
    }
    let mut columns = Columns::new(&names);
    for pod in pods {
        let addresses: Vec<String> = pod.addresses.iter().map(IpAddr::to_string).collect();
        let mut cells = vec![
            if pod.name.is_empty() { String::new() } else { pod.title() },
            pod.container_id.chars().take(12).collect(),
            pod.ifname.clone(),
            pod.network.clone(),
            addresses.join(","),
            pod.mac.clone(),
            pod.host_ifname.clone(),
            limits(&pod.bandwidth),
            pod.state.to_string(),
        ];
        if has_prefixes {
            let prefixes: Vec<String> = pod.extra_prefixes.iter().map(ToString::to_string).collect();
            cells.push(prefixes.join(","));
        }
        columns.row(cells);
    }
    columns.render()
}

/// `in 10M out 5M`, in bits per second.
pub(crate) fn limits(bandwidth: &Bandwidth) -> String {
    let shown: Vec<String> = [("in", bandwidth.ingress), ("out", bandwidth.egress)]
        .into_iter()
        .filter_map(|(way, limit)| Some(format!("{way} {}", bits(limit?.rate))))
        .collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(" ") }
}

/// The number with the largest unit that leaves a whole number.
fn bits(mut number: u64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let mut place = 0;
    while number != 0 && number.is_multiple_of(1000) && place + 1 < units.len() {
        (number, place) = (number / 1000, place + 1);
    }
    format!("{number}{}", units[place])
}

fn dated(said: &Dated) -> String {
    format!("{} ({} ago)", said.text, duration(said.seconds_ago))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_a_subnet_are_shown() {
        let subnet = |more: serde_json::Value| -> SubnetStatus {
            let mut subnet = serde_json::json!({
                "name": "pods", "cidr": "10.0.0.0/24", "total": 254, "used": 3, "free": 251, "refused": null,
            });
            for (name, value) in more.as_object().unwrap() {
                subnet[name] = value.clone();
            }
            serde_json::from_value(subnet).unwrap()
        };
        let limits = |more| subnet_limits(&subnet(more)).join("; ");
        assert_eq!(limits(serde_json::json!({})), "");
        assert_eq!(
            limits(serde_json::json!({"disabled": true, "allowedNamespaces": ["a", "b"], "retention": "3d"})),
            "disabled: no pod gets a new address; new addresses only for pods of Namespaces a, b; \
             retained addresses are released after 3d"
        );
        assert_eq!(
            limits(serde_json::json!({"retention": "never"})),
            "retained addresses are never released"
        );
    }
}
