//! The cells of the Services matrix, and the documentation's promise for each. No network is
//! involved here.

use std::fmt;

/// A way to reach a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Frontend {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalIp,
    HostPort,
}

/// externalTrafficPolicy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Policy {
    Cluster,
    Local,
}

/// The place of the backend, relative to the target node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backend {
    SameNode,
    SameRack,
    OtherRack,
}

/// The client. Node and pod are on the target node, the backend is on its own node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Outside,
    Node,
    Pod,
    Backend,
}

/// One kind of connection. Its promise is the same in every network, family and mode of kube-proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub frontend: Frontend,
    /// The traffic policy, for frontends that have one.
    pub policy: Option<Policy>,
    pub backend: Backend,
    pub client: Client,
}

/// The source address that the backend sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// The client's own address.
    Client,
    /// An address of the target node.
    AskedNode,
    /// An address of the backend's own node.
    BackendNode,
    /// No source address: the client gets no connection, for this reason.
    Refused(&'static str),
}

pub(crate) const NO_LOCAL_BACKEND: &str = "the asked node has no backend";
pub(crate) const NOT_ROUTED: &str = "the fabric has no route to cluster IPs";

impl Backend {
    pub(crate) const ALL: [Self; 3] = [Self::SameNode, Self::SameRack, Self::OtherRack];
}

impl Client {
    pub(crate) const ALL: [Self; 4] = [Self::Outside, Self::Node, Self::Pod, Self::Backend];
}

impl Cell {
    /// Every cell of one network, family and mode.
    pub(crate) fn all() -> Vec<Self> {
        let external = [Frontend::NodePort, Frontend::LoadBalancer, Frontend::ExternalIp];
        let external = external
            .into_iter()
            .flat_map(|frontend| [Policy::Cluster, Policy::Local].map(|policy| (frontend, Some(policy))));
        [(Frontend::ClusterIp, None)]
            .into_iter()
            .chain(external)
            .chain([(Frontend::HostPort, None)])
            .flat_map(|(frontend, policy)| {
                Backend::ALL.into_iter().flat_map(move |backend| {
                    Client::ALL.map(|client| Self { frontend, policy, backend, client })
                })
            })
            .collect()
    }

    /// The documentation's promise.
    pub(crate) fn promise(self) -> Promise {
        let local = self.policy == Some(Policy::Local);
        let same_node = self.backend == Backend::SameNode;
        match (self.frontend, self.client) {
            (Frontend::ClusterIp, Client::Outside) => Promise::Refused(NOT_ROUTED),
            (Frontend::ClusterIp | Frontend::HostPort, Client::Pod)
            | (Frontend::HostPort, Client::Outside) => Promise::Client,
            // A NodePort names the target node. For all other frontends, the target node is the
            // pod's own node.
            (Frontend::ClusterIp | Frontend::HostPort, Client::Backend)
            | (Frontend::LoadBalancer | Frontend::ExternalIp, Client::Backend) => Promise::BackendNode,
            (_, Client::Node) => Promise::AskedNode,
            (Frontend::NodePort, Client::Backend) | (_, Client::Outside) if local && !same_node => {
                Promise::Refused(NO_LOCAL_BACKEND)
            }
            (_, Client::Outside | Client::Pod) if local => Promise::Client,
            (_, Client::Outside | Client::Pod | Client::Backend) => Promise::AskedNode,
        }
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
            Self::ExternalIp => "externalIP",
            Self::HostPort => "hostPort",
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        })
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameNode => "this node",
            Self::SameRack => "other node of the rack",
            Self::OtherRack => "other rack",
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outside => "outside",
            Self::Node => "node",
            Self::Pod => "pod",
            Self::Backend => "the backend itself",
        })
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "the client",
            Self::AskedNode => "the asked node",
            Self::BackendNode => "the backend's node",
            Self::Refused(why) => return write!(f, "no connection: {why}"),
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.frontend)?;
        if let Some(policy) = self.policy {
            write!(f, " {policy}")?;
        }
        write!(f, ", backend on {}, from {}", self.backend, self.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(frontend: Frontend, policy: Option<Policy>, backend: Backend, client: Client) -> Promise {
        Cell { frontend, policy, backend, client }.promise()
    }

    #[test]
    fn there_are_96_different_cells() {
        let mut cells = Cell::all();
        assert_eq!(cells.len(), 96);
        cells.sort_unstable();
        cells.dedup();
        assert_eq!(cells.len(), 96);
    }

    #[test]
    fn local_keeps_the_source_or_refuses() {
        for frontend in [Frontend::NodePort, Frontend::LoadBalancer, Frontend::ExternalIp] {
            let outside = |backend| promise(frontend, Some(Policy::Local), backend, Client::Outside);
            assert_eq!(outside(Backend::SameNode), Promise::Client);
            assert_eq!(outside(Backend::SameRack), Promise::Refused(NO_LOCAL_BACKEND));
            assert_eq!(outside(Backend::OtherRack), Promise::Refused(NO_LOCAL_BACKEND));
        }
    }

    #[test]
    fn a_backend_that_reaches_itself_sees_its_node() {
        for cell in Cell::all() {
            if cell.client == Client::Backend && cell.frontend != Frontend::NodePort {
                assert_eq!(cell.promise(), Promise::BackendNode, "{cell}");
            }
        }
    }

    #[test]
    fn cluster_ip_keeps_a_pods_address() {
        for backend in Backend::ALL {
            assert_eq!(promise(Frontend::ClusterIp, None, backend, Client::Pod), Promise::Client);
        }
    }

    #[test]
    fn policy_cluster_shows_the_asked_node_outside() {
        for cell in Cell::all() {
            if cell.policy == Some(Policy::Cluster) && cell.client == Client::Outside {
                assert_eq!(cell.promise(), Promise::AskedNode, "{cell}");
            }
        }
    }
}
