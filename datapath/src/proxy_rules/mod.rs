//! The service proxy's rules: which ports of which addresses it translates on this node.
//!
//! ```text
//!  nf_tables ──notifications──► reader thread ──messages──► [`state`] ──commit──► RuleUpdate ──► agent
//!      ▲                         │    ▲
//!      └──dump: start, overrun───┘    └── interest (prefixes), look_again ◄────────────────────── agent
//! ```
//!
//! kube-proxy reports its health, but not which rules it has written. The rules themselves are in
//! the kernel, and the kernel reports each change. So nothing is polled:
//!
//! - In mode nftables, kube-proxy has a table in each family with the maps `service-ips` and
//!   `no-endpoint-services` (`elements`).
//! - In mode iptables over nf_tables (`iptables-nft`), it has rules in the chains `KUBE-SERVICES`
//!   and `KUBE-EXTERNAL-SERVICES` (`rules`).
//! - The rules of legacy iptables, IPVS and eBPF are not in nf_tables: [`Backend::Invisible`].
//!
//! nf_tables ends each transaction with a message that has the generation of the ruleset. The state
//! compares ports only then. kube-proxy in mode iptables rewrites `KUBE-SERVICES` at each change:
//! 10,000 notifications, and no difference. If the kernel drops notifications (ENOBUFS), the
//! thread reads all rules again. It reports only differences then, too.
//!
//! The thread changes nothing in the kernel. It works in the network namespace of the thread that
//! calls [`ProxyRules::spawn`].

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ipnet::IpNet;
use tokio::sync::{mpsc, watch};
use trunkline_api::service::Protocol;

mod elements;
mod reader;
mod rules;
mod state;
#[cfg(test)]
mod tests;

/// Size of the receive buffer in octets, for [`ProxyRules::spawn`]. A rewrite of 10,000 rules in mode
/// iptables needs 17 MB with the kernel's structures; the kernel doubles this value.
pub const RECEIVE_BUFFER: usize = 16 << 20;

/// Where the service proxy keeps its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// kube-proxy in mode nftables.
    Nftables,
    /// kube-proxy in mode iptables, with iptables over nf_tables.
    IptablesNft,
    /// Rules that nf_tables does not show: legacy iptables, IPVS, or an unknown layout.
    Invisible,
    /// There are no rules of a service proxy.
    Absent,
}

/// A port of a service address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressPort {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port number.
    pub port: u16,
}

/// The effect of the rules on packets from outside to one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortRules {
    /// A rule translates them, and none drops them.
    Forwarded,
    /// A rule drops or rejects them, because this node has no endpoint for them.
    Blocked,
    /// No rule matches them.
    Missing,
}

/// A changed port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleChange {
    /// The port.
    pub port: AddressPort,
    /// Its rules now.
    pub rules: PortRules,
}

/// The changes of one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleUpdate {
    /// Where the rules are.
    pub backend: Backend,
    /// Whether `changes` has all ports of the interest: a port without an entry is
    /// [`PortRules::Missing`]. True after the start and after a change of the interest.
    pub complete: bool,
    /// The changed ports.
    pub changes: Vec<RuleChange>,
}

/// Finds the backend in the calling thread's network namespace. Needs CAP_NET_ADMIN.
///
/// # Errors
/// nf_tables cannot be read.
pub fn find_backend() -> io::Result<Backend> {
    reader::find_backend()
}

/// A handle to the reader thread. The thread ends when the handle is dropped.
#[derive(Debug)]
pub struct ProxyRules {
    look: mpsc::UnboundedSender<()>,
    rereads: Arc<AtomicU64>,
}

impl ProxyRules {
    /// Starts the thread. `interest` has the prefixes whose ports are reported. While it is empty, the
    /// thread reads the backend once and does not listen. `receive_buffer` has a unit of octets: [`RECEIVE_BUFFER`].
    ///
    /// # Errors
    /// The thread cannot be started, or its runtime.
    pub fn spawn(
        interest: watch::Receiver<Vec<IpNet>>,
        receive_buffer: usize,
    ) -> io::Result<(ProxyRules, mpsc::UnboundedReceiver<RuleUpdate>)> {
        let (look, looks) = mpsc::unbounded_channel();
        let (updates, receiver) = mpsc::unbounded_channel();
        let rereads = Arc::new(AtomicU64::new(0));
        let reader = reader::Reader::new(interest, receive_buffer, looks, updates, Arc::clone(&rereads));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new()
            .name("proxy-rules".to_owned())
            .spawn(move || runtime.block_on(reader.run()))?;
        Ok((ProxyRules { look, rereads }, receiver))
    }

    /// Looks for an invisible backend again. The kernel does not report changes of IPVS and of
    /// legacy iptables, so the caller does this when the service proxy's health changes.
    pub fn look_again(&self) {
        let _ = self.look.send(());
    }

    /// How often lost notifications made the thread read all rules again.
    pub fn rereads(&self) -> u64 {
        self.rereads.load(Ordering::Relaxed)
    }
}
