//! Metrics of `trunkline agent`.

use super::Kind::{Counter, Gauge, Histogram};
use super::catalogue;

/// An attach takes milliseconds, unless it waits for a peer.
const ATTACH: &[f64] = &[0.001, 0.002, 0.004, 0.006, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0, 30.0];
/// Waits for the fabric or the API server.
const WAITS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

catalogue! {
    "The agent", "" {
        BUILD_INFO = Gauge, Bool, "trunkline_build_info" ["version"], "the version that runs; always 1";
        UPTIME = Gauge, Seconds, "trunkline_uptime_seconds" [], "time since the agent started";
        READY = Gauge, Bool, "trunkline_ready" [], "1 if pods can be attached";
        MANIFESTS_IN_FORCE = Gauge, Bool, "trunkline_manifests_in_force" [],
            "0 while the current manifests are rejected and an earlier state is in force";
        MANIFESTS_REFUSED = Counter, Count, "trunkline_manifests_refused_total" [], "rejected edits of the manifests";
        STORE_USABLE = Gauge, Bool, "trunkline_store_usable" [],
            "0 while no address is allocated because the store is full, damaged or unreachable";
        ATTACHMENTS = Gauge, Count, "trunkline_attachments" [], "attached pods' interfaces";
        UNRECORDED = Gauge, Count, "trunkline_unrecorded_pods" [],
            "pods in the kernel without a record (the store was lost); they keep running";
    }

    "The agent's own listener", "Where `/metrics`, the probes and the page are served (`httpAddress`); `listener` is `http`." {
        CONNECTIONS = Gauge, Count, "trunkline_http_connections" ["listener"], "open connections";
        CONNECTIONS_DROPPED = Counter, Count, "trunkline_http_connections_dropped_total" ["listener", "reason"],
            "connections that the listener closed: `evicted` (in favour of a newer one), `no_request` (no complete request head in time), `source_limit` and `total_limit` (refused: too many requests under way, from that source or in all), `descriptors` (evicted because the process had no descriptor left)";
    }

    "OpenTelemetry", "With `telemetry.otlp` only. `signal` is `logs` (events) or `traces` (attached and detached pods)." {
        OTLP_REQUESTS = Counter, Count, "trunkline_otlp_requests_total" ["signal", "outcome"],
            "requests to the collector: `ok`, `refused` (a final answer), `unavailable` (no answer, or a request to retry)";
        OTLP_EXPORTED = Counter, Count, "trunkline_otlp_exported_total" ["signal"], "records and spans that the collector accepted";
        OTLP_DROPPED = Counter, Count, "trunkline_otlp_dropped_total" ["signal", "reason"],
            "lost records and spans: `queue` (no room while the collector did not answer), `refused` (by the collector), `stop` (left over when the agent stopped)";
    }

    "The API server", "With `source: kube` only." {
        CLUSTER_CONNECTED = Gauge, Bool, "trunkline_cluster_connected" [], "1 while no watch of the API server fails";
        CLUSTER_OUTAGE = Gauge, Seconds, "trunkline_cluster_outage_seconds" [],
            "time since a watch of the API server started to fail; 0 if none fails";
        CLUSTER_FAULTS = Gauge, Count, "trunkline_cluster_faults" [],
            "objects of the API server that are not applied unchanged; `trunkline status` lists them";
        CLUSTER_UNWRITTEN = Gauge, Count, "trunkline_cluster_unwritten" [], "statuses that this node still has to write";
        CLUSTER_REQUESTS = Histogram(WAITS), Seconds, "trunkline_cluster_request_duration_seconds" ["what", "outcome"],
            "the API server's answers to this node's writes: `ipinstance` (the user of an \
             address), `vtep` (this node's end of the tunnels), `peers` (in NodeInfo's status), \
             `services` (this node's NodeServices)";
        CLUSTER_REQUEST_FAILURES = Counter, Count, "trunkline_cluster_request_failures_total" ["what", "reason"],
            "writes that failed; `reason` is `refused` (by the API server), `no_answer` (in time), `failed` (not sent, or an answer that cannot be read)";
        CLUSTER_ADDRESS_WAIT = Histogram(WAITS), Seconds, "trunkline_cluster_address_wait_seconds" ["outcome"],
            "the part of an attach that waits for the pod's IPInstances from the API server: the controller's decision, and the delay of this node's watch";
        WATCH_LIVE = Gauge, Bool, "trunkline_cluster_watch_live" ["watch"], "1 while a watch has its list and does not fail";
        WATCH_LAST_EVENT = Gauge, Seconds, "trunkline_cluster_watch_last_event_seconds" ["watch"],
            "time since the last change or bookmark of a watch; bookmarks come about once a minute";
        WATCH_EVENTS = Counter, Count, "trunkline_cluster_watch_events_total" ["watch"], "changes and bookmarks of a watch";
        WATCH_ERRORS = Counter, Count, "trunkline_cluster_watch_errors_total" ["watch"], "failures of a watch";
    }

    "Settings by node label", "[AgentSettings](agent-settings.md) that select this node; `name` is the object's." {
        SETTINGS_FIELDS = Gauge, Count, "trunkline_settings_fields" ["name"], "fields of the agent's configuration that the object sets on this node";
        SETTINGS_PENDING = Gauge, Count, "trunkline_settings_pending_restart" [],
            "changed fields that apply at the next start of the agent; `trunkline status` lists them";
    }

    "Networks and pods", "" {
        NETWORK_REFUSED = Gauge, Bool, "trunkline_network_refused" ["network"], "1 for a network that this node does not serve";
        NETWORK_ATTACHMENTS = Gauge, Count, "trunkline_network_attachments" ["network"], "attached pods' interfaces in a network, on this node";
        SUBNET_ADDRESSES = Gauge, Count, "trunkline_subnet_addresses" ["network", "subnet", "state"],
            "addresses of a subnet: `total`, `used`, `free`; with `source: kube` of the whole cluster, as the Subnet's status has them";
        SUBNET_DEVICE_UP = Gauge, Bool, "trunkline_subnet_device_up" ["network", "subnet"],
            "VLAN and VXLAN: 1 while the subnet's device carries its pods, otherwise 0 (`trunkline status` has the reason)";
        SUBNET_UNASSIGNED = Counter, Count, "trunkline_subnet_unassigned_packets_total" ["network", "subnet"],
            "packets from the fabric for an address of the subnet that no pod of this node has, dropped here; packets that leave by an [alternate path](data-path.md#alternate-paths-a-router-that-does-not-know-the-pod) are not included";
        REQUESTS = Histogram(ATTACH), Seconds, "trunkline_request_duration_seconds" ["command", "network", "outcome"],
            "requests of the CNI plugin, from the first octet to the answer; `attach`, `detach`, \
             `check`, `gc`, `status`. The network is empty for `check`, `gc` and `status`, and \
             for an attach that failed before its network was known";
        ATTACH_GATE = Histogram(WAITS), Seconds, "trunkline_attach_gate_seconds" ["network", "outcome"],
            "the readiness gate: the part of an attach that waits until the addresses are advertised to an established peer";
        WIRE_CHECK = Histogram(WAITS), Seconds, "trunkline_wire_check_seconds" ["family", "outcome"],
            "the link check: the part of an attach to a VLAN that probes for the gateway and for another host with the address: `ok`, `no_answer` (of the gateway), `in_use`, or `error` (the probe could not be sent)";
    }

    "Anycast addresses", "[AnycastAddresses](anycast.md) that select this node; `name` is the object's." {
        ANYCAST_HEALTHY = Gauge, Bool, "trunkline_anycast_healthy" ["name"],
            "1 while the health checks of all its addresses pass, 0 while one fails or the object is not in force here (`trunkline status` has the reason)";
        ANYCAST_ADDRESSES = Gauge, Count, "trunkline_anycast_addresses" ["name", "state"],
            "its addresses on this node: `advertised`, `shuttingDown` (advertised with GRACEFUL_SHUTDOWN), `retained` (advertised since before a restart, not confirmed yet), `withheld`";
    }

    "Nodes of the overlay", "" {
        CLAIMS_IGNORED = Gauge, Count, "trunkline_node_claims_ignored" ["what"],
            "claims of other nodes' NodeInfos that the agent ignores: `vtep` (no tunnel to the node), `address` (an entry of `localIPs`); `trunkline status` has the reasons";
    }

    "Remote clusters", "[Remote clusters](multi-cluster.md) as this node uses them; `cluster` is the RemoteCluster." {
        REMOTE_SUBNETS = Gauge, Count, "trunkline_remote_cluster_subnets" ["cluster"], "accepted RemoteSubnets";
        REMOTE_VTEPS = Gauge, Count, "trunkline_remote_cluster_vteps" ["cluster"], "accepted RemoteVteps; 0 on a node without an overlay";
        REMOTE_ENDPOINTS = Gauge, Count, "trunkline_remote_cluster_endpoints" ["cluster"], "accepted addresses of pods behind these VTEPs";
        REMOTE_IGNORED = Gauge, Count, "trunkline_remote_cluster_ignored" ["cluster", "what"],
            "parts that this node ignores because another owner has the address, or because a limit excludes it: `subnet`, `vtep`, `address` (of a VTEP), `endpoint`; `trunkline status` has the reasons";
    }

    "Convergence", "" {
        ATTACH_TO_ADVERTISED = Histogram(WAITS), Seconds, "trunkline_convergence_attach_to_advertised_seconds" ["network"],
            "from an attach's first octet until the pod's addresses were in the Adj-RIB-Out of an established peer and written to it";
        PEER_LOSS_TO_KERNEL = Histogram(WAITS), Seconds, "trunkline_convergence_peer_loss_to_kernel_seconds" [],
            "from the end of a session until the kernel has all resulting changes: received routes have other next hops or are removed, default routes too. Only for losses without retained paths (graceful restart changes no route)";
    }

    "The kernel", "" {
        KERNEL_ROUTES = Gauge, Count, "trunkline_kernel_routes" ["state"],
            "the agent's routes: `wanted`; of these, `installed`; and `stale`: routes of the \
             agent's last run, which stay until BGP has converged";
        KERNEL_REPAIRS = Counter, Count, "trunkline_kernel_repairs_total" [], "kernel objects that another program removed or changed, and the agent repaired";
        KERNEL_ERRORS = Counter, Count, "trunkline_kernel_errors_total" ["reason"],
            "changes that the kernel refused, by errno (`ENOSPC`, `ENETUNREACH`, …, `other`), or `sysctl`, `nftables`, `link` (a device of the plan), `netlink` (the socket itself); a reason has a series once it has occurred";
        FORWARDING_ENTRIES = Gauge, Count, "trunkline_vxlan_forwarding_entries" ["state"],
            "forwarding entries of the tunnels, one for each other node: `wanted`, of these `installed`";
        FORWARDING_REPAIRS = Counter, Count, "trunkline_vxlan_forwarding_repairs_total" [],
            "forwarding entries that another program removed or added, and the agent repaired; also in `trunkline_kernel_repairs_total`";
    }

    "Alternate paths", "Packets that a router sent this node for a pod of another node; [data-path.md](data-path.md#alternate-paths-a-router-that-does-not-know-the-pod)." {
        ALTERNATE_PACKETS = Counter, Count, "trunkline_alternate_path_packets_total" ["action"],
            "`forwarded` to another router, which means that the first one does not know the pod's route, and `dropped` because no router does; absent on nodes with one uplink";
    }

    "Probes", "Packets through each established router that find faults which no session shows; [probes.md](probes.md) has the checks. `check` is `peer`, `toPods`, `fromPods`, `size`, `target` or `targetSize`; a check that does not apply has no series." {
        PROBE_STATE = Gauge, Code, "trunkline_probe_state" ["peer", "family", "check"],
            "0 unproven (no probe has returned yet, and nothing shows that one should have), 1 good, 2 failing (three probes in a row were lost)";
        PROBE_FAULT = Gauge, Bool, "trunkline_probe_fault" ["peer", "family", "fault"],
            "1 while the checks show a fault: `silent` (no probe returns), `toPods` (the router does not send this node the packets for its pods), `fromPods` (it drops packets from pods), `size` (it drops large packets), `target` and `targetSize` (other nodes do not answer through it)";
        PROBE_SENT = Counter, Count, "trunkline_probe_sent_total" ["peer", "family", "check"], "probes sent since the session came up";
        PROBE_LOST = Counter, Count, "trunkline_probe_lost_total" ["peer", "family", "check"], "probes that did not return within a second";
        PROBE_LEFT_OUT = Gauge, Bool, "trunkline_probe_left_out" ["peer", "family"],
            "1 while the router is left out of the pods' next hops because of a fault (`probes.failover`)";
    }

    "The guard", "Packets that pods and foreign tunnels may not send; [security.md](security.md#the-guard) has the rules." {
        GUARD_IN_FORCE = Gauge, Bool, "trunkline_guard_in_force" [],
            "1 while the guard's rules are in the kernel, or if the configuration disables the guard";
        GUARD_DROPPED = Counter, Count, "trunkline_guard_dropped_total" ["reason"],
            "packets that the guard dropped: `source` (not the pod's address), `arp_sender`, `router_advertisement`, `icmp_redirect`, `icmp_error` (about a connection of others), `dhcp_server`, `bgp`, `bfd` (from a pod, or by a Service, to a node), `vxlan_from_pod` (to this node), `vxlan_forwarded` (the overlay through this node), `vtep` (from a host that is no node, or by a Service)";
        GUARD_REPAIRS = Counter, Count, "trunkline_guard_repairs_total" [],
            "how often another program changed the guard's tables and the agent repaired them; also in `trunkline_kernel_repairs_total`";
    }

    "Service addresses", "Addresses of Services on this node; [services.md](services.md#when-a-node-advertises-an-address) has the rules. `trunkline services` shows each address." {
        SERVICE_ADDRESSES = Gauge, Count, "trunkline_service_addresses" ["state", "family"],
            "addresses by state: `withheld`, `advertised`, `shuttingDown` (with GRACEFUL_SHUTDOWN), `retained` (since before a restart)";
        SERVICES_WITHHELD = Gauge, Count, "trunkline_services_withheld" ["reason"],
            "withheld addresses by reason; a reason has a series once it has occurred";
        SERVICE_KNOWN = Gauge, Bool, "trunkline_service_known" [],
            "1 once Services, EndpointSlices, pools and advertisements are known";
        SERVICE_TO_FABRIC = Histogram(WAITS), Seconds, "trunkline_service_to_fabric_seconds" [],
            "from an event (an endpoint is ready, or the service proxy has rules) until the new prefix was written to a peer; one of the prefixes that change together";
        SERVICE_PROXY_UP = Gauge, Bool, "trunkline_service_proxy_up" [],
            "1 while the service proxy of this node is healthy, or if the configuration has none";
        SERVICE_PROXY_VISIBLE = Gauge, Bool, "trunkline_service_proxy_rules_visible" [],
            "1 if the agent can read the rules of the service proxy";
        SERVICE_PROXY_LAG = Gauge, Seconds, "trunkline_service_proxy_lag_seconds" [],
            "time for which rules of the service proxy differ from the endpoints; 0 if none differs, or if the rules cannot be seen";
    }

    "Network policies", "With `networkPolicies.enabled`; [network-policies.md](network-policies.md) has the rules. `policy` is `NetworkPolicy NAMESPACE/NAME` or `ClusterNetworkPolicy NAME`; only policies that select pods of this node have series." {
        POLICY_STATE = Gauge, Code, "trunkline_policy_state" [],
            "0 loading (the lists of the API server are not complete: the rules of the last run are in force, and new pods wait), 1 in force, 2 retained (the API server does not answer), 3 refused (by the kernel: the former rules are in force, and new pods wait)";
        POLICIES = Gauge, Count, "trunkline_policies" [], "NetworkPolicies and ClusterNetworkPolicies that the node knows";
        POLICY_PODS = Gauge, Count, "trunkline_policy_pods" [], "pods of this node that a policy selects";
        POLICY_OBJECTS = Gauge, Count, "trunkline_policy_objects" ["kind"], "`chains` and `sets` of nftables";
        POLICY_UNENFORCED = Gauge, Count, "trunkline_policy_unenforced_interfaces" [],
            "interfaces of pods that a policy selects and whose packets do not pass the node's rules (attachment ipvlan)";
        POLICY_WAITING = Gauge, Count, "trunkline_policy_waiting_pods" [], "attachments that wait for their rules";
        POLICY_FAULTY = Gauge, Count, "trunkline_policy_faulty" [],
            "policies with an entry that matches nothing or denies everything, because this version cannot read it, and policies above their budget; `trunkline policies` has the fields";
        POLICY_FAILED_CLOSED = Gauge, Count, "trunkline_policy_failed_closed" [],
            "policies above their budget, or refused by the kernel: their pods are isolated, other policies are in force";
        POLICY_REPAIRS = Counter, Count, "trunkline_policy_repairs_total" [],
            "how often another program changed the table of the policies and the agent repaired it; also in `trunkline_kernel_repairs_total`";
        POLICY_DROPPED = Counter, Count, "trunkline_policy_dropped_total" ["policy", "direction"],
            "packets that a policy dropped; if several NetworkPolicies isolate a pod, the first one by name counts. The series begins anew when the policy's rules do";
        POLICY_AUDITED = Counter, Count, "trunkline_policy_audited_total" ["policy", "direction"],
            "packets that a policy would have dropped, of Namespaces with `trunkline.io/policy-mode: audit`";
        POLICY_CHANGE = Histogram(WAITS), Seconds, "trunkline_policy_change_seconds" [],
            "from an event of policies, Namespaces or pods until its change is in the kernel";
    }

    "BGP", "`peer` is the peer's address; a link-local one has its interface (`fe80::1%eth0`). \
     For an unnumbered peer that was not found yet, it is the interface alone. `family` is \
     `ipv4-unicast` or `ipv6-unicast`." {
        DRAIN_PHASE = Gauge, Code, "trunkline_drain_phase" [],
            "the drain stage of this node (`trunkline drain`): 0 undrained, 1 announcing, 2 withdrawing, 3 drained";
        ESTABLISHED_PEERS = Gauge, Count, "trunkline_bgp_established_peers" [],
            "BGP sessions that are Established; 0 while the speaker does not run. On nodes in a BGP network with configured peers";
        CONVERGED = Gauge, Bool, "trunkline_bgp_converged" ["family"], "1 once the first route selection after the start is done";
        DISAGGREGATED = Gauge, Bool, "trunkline_bgp_disaggregated" [],
            "1 while pods of BGP networks are advertised without NO_EXPORT, because a peer is down";
        WAY_OUT_NEXT_HOPS = Gauge, Count, "trunkline_bgp_way_out_next_hops" ["family", "state"],
            "next hops of the pods' default route: `used` in the kernel; `left_out`: established peers that are no next hops, because they advertise no default route and another peer does";
        WAY_OUT_ADVERTISED = Gauge, Bool, "trunkline_bgp_way_out_advertised" ["family"],
            "1 while the next hops follow from default routes that peers advertise, 0 while no peer advertises one and all configured peers are next hops";
        DUPLICATE_IDENTIFIERS = Gauge, Count, "trunkline_bgp_duplicate_identifiers" [],
            "BGP identifiers of two routers: two peers with different AS numbers, or a peer and this node";
        SPEAKER_RUNNING = Gauge, Bool, "trunkline_bgp_speaker_running" [],
            "1 while the speaker runs; on nodes in a BGP network. While it is 0, routes and rules of running pods stay, and the start is tried again";
        LISTENING = Gauge, Bool, "trunkline_bgp_listening" ["address"],
            "1 while incoming BGP connections are accepted at a configured address, otherwise 0 (`trunkline status` has the reason); sessions that this node opens need no listening address";
        REFUSED_CONNECTIONS = Counter, Count, "trunkline_bgp_refused_connections_total" [],
            "connections closed at once: from no configured peer, or not allowed now";
        RANGE_PEERS = Gauge, Count, "trunkline_bgp_range_peers" ["prefix", "kind"], "dynamic neighbours from a configured prefix: `there` now, and the `limit`";
        RANGE_REFUSED = Counter, Count, "trunkline_bgp_range_refused_total" ["prefix"], "connections refused because the limit was reached";
        BMP_UP = Gauge, Bool, "trunkline_bmp_station_up" ["station"], "1 while the BMP station is connected";
        BMP_BYTES = Counter, Bytes, "trunkline_bmp_station_bytes_total" ["station"], "octets sent to it";
        PEER_STATE = Gauge, Code, "trunkline_bgp_peer_state" ["peer", "remote_as"],
            "1 Idle, 2 Connect, 3 Active, 4 OpenSent, 5 OpenConfirm, 6 Established (RFC 4271 §8.2.2)";
        PEER_SHUTDOWN = Gauge, Bool, "trunkline_bgp_peer_shutdown" ["peer"], "1 for a peer that is administratively down: it does not count as missing";
        PEER_STATE_SECONDS = Gauge, Seconds, "trunkline_bgp_peer_state_seconds" ["peer"], "time in this state; without a session the state changes with each attempt, and `trunkline_bgp_peer_down_seconds` does not";
        PEER_DOWN_SECONDS = Gauge, Seconds, "trunkline_bgp_peer_down_seconds" ["peer"],
            "time without an Established session: since the last one was lost, or since the peer was configured; 0 while one is Established";
        PEER_DOWN_REASON = Gauge, Bool, "trunkline_bgp_peer_down_reason" ["peer", "reason"],
            "1 while no session is Established, with the kind of the cause; alerts.md lists the kinds and the fixes. One series per peer, none before the first attempt has failed";
        PEER_LOSSES = Counter, Count, "trunkline_bgp_peer_losses_total" ["peer", "reason"],
            "times the session left Established, by kind of cause; a kind has a series once it has occurred";
        PEER_FLAPS = Counter, Count, "trunkline_bgp_peer_flaps_total" ["peer"], "times the session left Established";
        PEER_HOLD_TIME = Gauge, Seconds, "trunkline_bgp_peer_hold_time_seconds" ["peer"], "negotiated hold time, 0 is off; for established sessions";
        PEER_KEEPALIVE = Gauge, Seconds, "trunkline_bgp_peer_keepalive_seconds" ["peer"], "time between KEEPALIVEs of this node, 0 is off; for established sessions";
        PEER_RESTART_TIME = Gauge, Seconds, "trunkline_bgp_peer_restart_time_seconds" ["peer"],
            "the Restart Time that the peer advertises, if both sides have graceful restart (RFC 4724); for established sessions";
        PEER_ROUND_TRIP = Gauge, Seconds, "trunkline_bgp_peer_round_trip_seconds" ["peer"],
            "round-trip time of the TCP connection to the peer, smoothed by the kernel (RFC 6298) and read from it at each scrape; for established sessions";
        PEER_RESTART_STATE = Gauge, Code, "trunkline_bgp_peer_graceful_restart_state" ["peer", "family"],
            "0 no path would be retained if the session were lost, 1 the peer's paths would be retained, 2 they are retained (stale), 3 they are long-lived stale (RFC 9494)";
        PEER_STALE_EXPIRY = Gauge, Seconds, "trunkline_bgp_peer_stale_expiry_seconds" ["peer", "family"],
            "time until stale paths are removed, unless the peer advertises them again; absent without stale paths";
        PEER_END_OF_RIB_PENDING = Gauge, Bool, "trunkline_bgp_peer_end_of_rib_pending" ["peer", "family", "direction"],
            "1 while End-of-RIB of an established session was not received (`received`) or not sent (`sent`) yet";
        PEER_PREFIXES = Gauge, Count, "trunkline_bgp_peer_prefixes" ["peer", "family", "kind"],
            "prefixes: `received`, `accepted`, `advertised`, `stale`; of the stale ones, \
             `long_lived_stale`";
        PEER_MAX_PREFIXES = Gauge, Count, "trunkline_bgp_peer_max_prefixes" ["peer"], "the prefix limit over both families, if there is one";
        PEER_MESSAGES = Counter, Count, "trunkline_bgp_peer_messages_total" ["peer", "direction", "kind"],
            "messages: `received` or `sent`; `open`, `update`, `notification`, `keepalive`, `route_refresh`";
        PEER_BYTES = Counter, Bytes, "trunkline_bgp_peer_bytes_total" ["peer", "direction"], "octets of messages";
        PEER_LAST_ERROR_AGE = Gauge, Seconds, "trunkline_bgp_peer_last_error_age_seconds" ["peer"],
            "age of the last error; `trunkline peers` has its text, which would be an unbounded label here";
        PEER_NOTIFICATION_AGE = Gauge, Seconds, "trunkline_bgp_peer_last_notification_age_seconds" ["peer", "direction", "code", "subcode"],
            "age of the last NOTIFICATION, `received` or `sent`, with its error code and subcode (RFC 4271 §4.5): one series per direction";
    }

    "BFD", "There is a session for each peer with `bfd`, and these series for each." {
        BFD_UP = Gauge, Bool, "trunkline_bfd_session_up" ["peer"], "1 while the peer's BFD session is Up";
        BFD_STATE = Gauge, Code, "trunkline_bfd_session_state" ["peer"], "0 AdminDown, 1 Down, 2 Init, 3 Up (RFC 5880 §4.1)";
        BFD_INTERVAL = Gauge, Seconds, "trunkline_bfd_session_transmit_interval_seconds" ["peer"], "the negotiated interval between packets of this side, before jitter";
        BFD_DETECTION = Gauge, Seconds, "trunkline_bfd_session_detection_time_seconds" ["peer"],
            "the detection time: the session goes Down after this time without a packet; absent \
             before the first packet of the peer";
        BFD_TRANSITIONS = Counter, Count, "trunkline_bfd_session_transitions_total" ["peer", "to"],
            "times the session became Up (`to=\"up\"`) and left Up (`to=\"down\"`)";
        BFD_DETECTIONS = Counter, Count, "trunkline_bfd_session_detections_total" ["peer"],
            "times the session left Up because no packet arrived within the detection time; in the other cases the peer signalled Down";
        BFD_PACKETS = Counter, Count, "trunkline_bfd_session_packets_total" ["peer", "direction"], "BFD packets, `received` or `sent`";
        BFD_REFUSED = Counter, Count, "trunkline_bfd_refused_packets_total" ["reason"],
            "rejected BFD packets since the BGP speaker started, by reason. `socket`: the kernel dropped the packet at the socket, because the socket's filter rejected its TTL, source address or interface, or because the buffer was full. The agent received and rejected the others: `ttl` (not 255 over one hop), `link` (the peer's address, another link), `peer` (no peer's address), `discriminator` (unknown), `malformed`, `authentication` (the A bit)";
    }
}
