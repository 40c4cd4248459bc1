//! Metrics of `trunkline-controller` and its webhook.

use super::Kind::{Counter, Gauge, Histogram};
use super::catalogue;

const ALLOCATION: &[f64] = &[0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
const VERDICT: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

catalogue! {
    "The controller", "" {
        BUILD_INFO = Gauge, Bool, "trunkline_controller_build_info" ["version"], "the version that runs; always 1";
        LEADER = Gauge, Bool, "trunkline_controller_leader" [], "1 while this replica leads";
        IPINSTANCES = Gauge, Count, "trunkline_controller_ipinstances" [], "known IPInstances";
        WATCH_FAILURES = Counter, Count, "trunkline_controller_watch_failures_total" ["kind"],
            "watches of the API server that ended or could not start";
        EVENTS_DROPPED = Counter, Count, "trunkline_controller_events_dropped_total" [], "events that were not written: too many at once, or refused";
        ALLOCATIONS = Histogram(ALLOCATION), Seconds, "trunkline_controller_allocation_seconds" [],
            "allocation of a pod's addresses, from the decision to the API server's answer";
        ADDRESSES = Counter, Count, "trunkline_controller_addresses_total" ["what"],
            "addresses that were `given` (allocated), `kept` (retained for the next pod of the name), or `given_back` (released)";
        ALLOCATION_FAILURES = Counter, Count, "trunkline_controller_allocation_failures_total" ["reason"],
            "failed allocations for a pod: `annotation` (unreadable), `network` (none for the pod on its node), `exhausted` (no free address), `address` (the named one is not available), `vm` (the pod's virtual machine is not known, or another pod has its addresses), `attached` (the former sandbox still has the address), `api` (the API server refused), `unanswered` (it did not answer)";
        RECONCILE_FAILURES = Counter, Count, "trunkline_controller_reconcile_failures_total" ["queue", "reason"],
            "failed reconciliations by kind of object (each one is repeated); `reason` is `api` (the API server refused a request), `unanswered` (it did not answer), `not_leader` (another replica leads), or a reason of trunkline_controller_allocation_failures_total";
        PODS = Gauge, Count, "trunkline_controller_pods" [], "leader: pods with a node that are known";
        PODS_WAITING = Gauge, Count, "trunkline_controller_pods_waiting" [], "leader: pods without an address yet; each has an event with the reason";
        ADDRESSES_HELD = Gauge, Count, "trunkline_controller_addresses_held" [],
            "leader: addresses of ended or deleted pods whose sandbox is still attached by the report of its node's agent; they are free when the agent reports its end, when the Node is deleted, or with the taint node.kubernetes.io/out-of-service";
        CONFLICTS = Gauge, Count, "trunkline_controller_address_conflicts" [],
            "leader: IPInstances with the address of another IPInstance; any value but 0 is a \
             fault";
        UNSUPPORTED_OBJECTS = Gauge, Count, "trunkline_controller_unsupported_objects" ["kind"],
            "leader: objects that request an unsupported feature: `VirtualMachineInstance` (pods of KubeVirt without `--vm-ip-retain`, whose addresses are not retained); the first 20 have an event";
        POLICY_FAULTS = Gauge, Count, "trunkline_controller_policy_faults" ["kind"],
            "leader: policies with an entry that is not in force as written: `NetworkPolicy`, `ClusterNetworkPolicy`; each has an event `InvalidPolicyEntry` with the entry and its effect";
        REMOTE_CONNECTED = Gauge, Bool, "trunkline_controller_remote_cluster_connected" ["cluster"],
            "leader: whether the API server of a RemoteCluster answers, with usable credentials and a UUID that neither this cluster nor another RemoteCluster has";
        REMOTE_AWAY = Gauge, Seconds, "trunkline_controller_remote_cluster_away_seconds" ["cluster"],
            "leader: the time for which it has not answered or has refused requests; 0 while it answers";
        REMOTE_MIRRORED = Gauge, Count, "trunkline_controller_remote_cluster_objects" ["cluster", "kind"],
            "leader: mirrored `subnets`, `vteps` and `endpoint_slices` of a RemoteCluster, the `endpoints` behind its VTEPs, `refused` subnets, which overlap others or have the wrong netID, `refused_endpoints` of Services, with addresses outside of its mirrored subnets and nodes, objects above the controller's limits, or their events (`left_out`), and objects whose writes wait (`delayed`)";
        QUEUE_DEPTH = Gauge, Count, "trunkline_controller_queue_depth" ["queue"], "leader: queued objects, by kind";
        QUEUE_FAILING = Gauge, Count, "trunkline_controller_queue_failing" ["queue"], "leader: objects with a failed last reconciliation";
        NETWORK_ADDRESSES = Gauge, Count, "trunkline_controller_network_addresses" ["network", "family", "state"],
            "leader: addresses of a network: `total`, `used`, `available`; for pairs \
             (`dualstack`) only `available`";
    }

    "The controller's service addresses", "`pool` is the name of a ServicePool." {
        SERVICE_ADDRESSES = Gauge, Count, "trunkline_controller_service_addresses" ["pool", "family", "state"],
            "leader: addresses of a pool: `total`, `allocated`, `available` (free for Services without a request)";
        SERVICES = Gauge, Count, "trunkline_controller_services" ["state"],
            "leader: Services of type LoadBalancer and of Trunkline's class: `allocated` (with an address), `waiting` (without, or not with the addresses that they request; each has an event with the reason), `unadvertised` (an endpoint is ready, and no node advertises the address), `without_endpoint` (no endpoint is ready in the family of the address); the last two once agents have written a NodeServices";
        SERVICE_CONFLICTS = Gauge, Count, "trunkline_controller_service_conflicts" [],
            "leader: Services with an address in their status that a ServiceAddress gives to others; any value but 0 for more than a moment is a fault";
        SERVICE_ALLOCATION_FAILURES = Counter, Count, "trunkline_controller_service_allocation_failures_total" ["reason"],
            "attempts that did not give a Service the addresses that it requests; `reason` is that of the condition trunkline.io/AddressAllocated, such as `Exhausted`, `NoPool`, `NotInPool`, `Taken` or `PortTaken`";
    }

    "The controller's listeners", "`listener` is `metrics`, `probes` or `webhook`." {
        CONNECTIONS = Gauge, Count, "trunkline_controller_connections" ["listener"], "open connections";
        CONNECTIONS_DROPPED = Counter, Count, "trunkline_controller_connections_dropped_total" ["listener", "reason"],
            "connections that a listener closed: `evicted` (in favour of a newer one), `no_request` (no TLS handshake or no complete request head in time), `source_limit` and `total_limit` (refused: too many requests under way, from that source or in all), `descriptors` (evicted because the process had no descriptor left)";
    }

    "The controller's webhook", "" {
        WEBHOOK_REQUESTS = Counter, Count, "trunkline_webhook_requests_total" ["path", "kind", "verdict"],
            "admission requests; `verdict` is `accepted`, `refused` or `failed` (no verdict: the API server's failure policy decides)";
        WEBHOOK_DURATION = Histogram(VERDICT), Seconds, "trunkline_webhook_request_duration_seconds" ["path", "kind"], "time to a verdict";
        WEBHOOK_CERTIFICATE = Gauge, Timestamp, "trunkline_webhook_certificate_expires_timestamp_seconds" [],
            "when the webhook's own certificate expires; 0 if it comes from a file";
    }
}
