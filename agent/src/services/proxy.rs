//! The service proxy of this node: its health and its rules become inputs of the services task.
//!
//! ```text
//!  service proxy ◄──held connection──► [`health`] ──ProxyHealth──►┌──────┐
//!  kernel ──► trunkline_datapath::proxy_rules ──RuleUpdate───────►│ join │──Rules, Proxy──► services task
//!                                                                 └──────┘
//! ```
//!
//! The join sends the changed ports before a new state of the rules: with a new state, the services
//! task already knows all ports. While the services task is busy, the join merges further changes,
//! so its memory is bounded by the number of ports.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::{Notify, mpsc, watch};
use trunkline_api::control::ProxyRulesState;
use trunkline_datapath::proxy_rules::{self, AddressPort, Backend, ProxyRules, RuleUpdate};

use super::{PortRules, ProxyHealth, ProxyState, RuleChange, RuleChanges, ServicesInput};

mod health;

/// The observers of the service proxy, before their start.
#[derive(Debug)]
pub struct ProxyObserver {
    /// The address of kube-proxy's `/healthz`. None: `services.proxy.kind` is `none`, so nothing is
    /// observed.
    pub health_address: Option<SocketAddr>,
    /// Prefixes whose rules are reported: see [`super::ProxyRequests`].
    pub interest: watch::Receiver<Vec<IpNet>>,
    /// Requests a check of the health: see [`super::ProxyRequests`].
    pub check: Arc<Notify>,
}

impl ProxyObserver {
    /// Starts the observers. They end when the receiver of `inputs` is dropped.
    ///
    /// # Errors
    /// The thread that reads the rules cannot be started.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(self, inputs: mpsc::Sender<ServicesInput>) -> io::Result<()> {
        let Some(address) = self.health_address else {
            let state =
                ProxyState { health: ProxyHealth::NotChecked, rules: Some(ProxyRulesState::NotVisible) };
            tokio::spawn(async move { inputs.send(ServicesInput::Proxy(state)).await });
            return Ok(());
        };
        let (rules, updates) = ProxyRules::spawn(self.interest, proxy_rules::RECEIVE_BUFFER)?;
        let rules = Arc::new(rules);
        let (sender, health) = watch::channel(ProxyHealth::Unknown);
        // An invisible backend appears and disappears without an event.
        let answered = {
            let rules = Arc::clone(&rules);
            move || rules.look_again()
        };
        tokio::spawn(health::observe(address, health::Pace::default(), self.check, sender, answered));
        let join = Join { health, updates, pending: Pending::default(), inputs };
        tokio::spawn(join.run());
        Ok(())
    }
}

/// Changes that the services task does not have yet.
#[derive(Debug, Default)]
struct Pending {
    complete: bool,
    changes: BTreeMap<AddressPort, PortRules>,
    rules: Option<ProxyRulesState>,
    health: Option<ProxyHealth>,
}

impl Pending {
    fn add(&mut self, update: RuleUpdate) {
        if update.complete {
            self.complete = true;
            self.changes.clear();
        }
        self.changes.extend(update.changes.iter().map(|change| (change.port, port_rules(change.rules))));
        self.rules = Some(match update.backend {
            Backend::Nftables => ProxyRulesState::Nftables,
            Backend::IptablesNft => ProxyRulesState::Iptables,
            Backend::Invisible => ProxyRulesState::NotVisible,
            Backend::Absent => ProxyRulesState::Absent,
        });
    }

    fn take_changes(&mut self) -> Option<RuleChanges> {
        if !self.complete && self.changes.is_empty() {
            return None;
        }
        let changes = std::mem::take(&mut self.changes).into_iter().map(|(port, rules)| RuleChange {
            address: port.address,
            protocol: port.protocol,
            port: port.port,
            rules,
        });
        Some(RuleChanges { complete: std::mem::take(&mut self.complete), changes: changes.collect() })
    }

    fn is_empty(&self) -> bool {
        !self.complete && self.changes.is_empty() && self.rules.is_none() && self.health.is_none()
    }
}

/// Joins health and rules.
struct Join {
    health: watch::Receiver<ProxyHealth>,
    updates: mpsc::UnboundedReceiver<RuleUpdate>,
    pending: Pending,
    inputs: mpsc::Sender<ServicesInput>,
}

impl Join {
    /// Runs until the services task or an observer ends.
    async fn run(mut self) {
        let mut state = ProxyState { health: ProxyHealth::Unknown, rules: None };
        loop {
            tokio::select! {
                update = self.updates.recv() => match update {
                    Some(update) => self.pending.add(update),
                    None => return,
                },
                changed = self.health.changed() => match changed {
                    Ok(()) => self.pending.health = Some(*self.health.borrow_and_update()),
                    Err(_) => return,
                },
                permit = self.inputs.reserve(), if !self.pending.is_empty() => {
                    let Ok(permit) = permit else { return };
                    if let Some(changes) = self.pending.take_changes() {
                        permit.send(ServicesInput::Rules(changes));
                        continue;
                    }
                    let next = ProxyState {
                        health: self.pending.health.take().unwrap_or(state.health),
                        rules: self.pending.rules.take().or(state.rules),
                    };
                    if next != state {
                        state = next;
                        permit.send(ServicesInput::Proxy(state));
                    }
                }
                () = self.inputs.closed() => return,
            }
        }
    }
}

fn port_rules(rules: proxy_rules::PortRules) -> PortRules {
    match rules {
        proxy_rules::PortRules::Forwarded => PortRules::Forwarded,
        proxy_rules::PortRules::Blocked => PortRules::Blocked,
        proxy_rules::PortRules::Missing => PortRules::Missing,
    }
}

#[cfg(test)]
mod tests {
    use trunkline_api::service::Protocol;

    use super::*;

    fn update(backend: Backend, complete: bool, ports: &[(u16, proxy_rules::PortRules)]) -> RuleUpdate {
        let change = |(port, rules): &(u16, proxy_rules::PortRules)| proxy_rules::RuleChange {
            port: AddressPort { address: [192, 0, 2, 1].into(), protocol: Protocol::Tcp, port: *port },
            rules: *rules,
        };
        RuleUpdate { backend, complete, changes: ports.iter().map(change).collect() }
    }

    fn rules(complete: bool, ports: &[(u16, PortRules)]) -> String {
        let change = |(port, rules): &(u16, PortRules)| RuleChange {
            address: [192, 0, 2, 1].into(),
            protocol: Protocol::Tcp,
            port: *port,
            rules: *rules,
        };
        let changes = RuleChanges { complete, changes: ports.iter().map(change).collect() };
        format!("{:?}", ServicesInput::Rules(changes))
    }

    fn proxy(health: ProxyHealth, rules: Option<ProxyRulesState>) -> String {
        format!("{:?}", ServicesInput::Proxy(ProxyState { health, rules }))
    }

    #[tokio::test]
    async fn changes_are_merged_and_come_before_the_state() {
        use proxy_rules::PortRules::{Blocked, Forwarded, Missing};
        let (health, receiver) = watch::channel(ProxyHealth::Unknown);
        let (updates, updates_receiver) = mpsc::unbounded_channel();
        let (inputs, mut outputs) = mpsc::channel(1);
        inputs
            .try_send(ServicesInput::Proxy(ProxyState { health: ProxyHealth::Unknown, rules: None }))
            .unwrap();
        let join = Join { health: receiver, updates: updates_receiver, pending: Pending::default(), inputs };
        let task = tokio::spawn(join.run());
        // The services task is busy: its queue is full.
        for update in [
            update(Backend::Absent, true, &[(9, Forwarded)]),
            update(Backend::Nftables, true, &[(80, Forwarded), (81, Forwarded)]),
            update(Backend::Nftables, false, &[(80, Blocked), (82, Forwarded)]),
            update(Backend::Nftables, false, &[(81, Missing)]),
        ] {
            updates.send(update).unwrap();
        }
        health.send(ProxyHealth::Up).unwrap();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let mut next = async || format!("{:?}", outputs.recv().await.unwrap());
        assert_eq!(next().await, proxy(ProxyHealth::Unknown, None), "the first one in the queue");
        let all = [(80, PortRules::Blocked), (81, PortRules::Missing), (82, PortRules::Forwarded)];
        assert_eq!(next().await, rules(true, &all));
        assert_eq!(next().await, proxy(ProxyHealth::Up, Some(ProxyRulesState::Nftables)));
        updates.send(update(Backend::Nftables, false, &[(82, Missing)])).unwrap();
        assert_eq!(next().await, rules(false, &[(82, PortRules::Missing)]), "the state is the same");
        health.send(ProxyHealth::Unhealthy).unwrap();
        assert_eq!(next().await, proxy(ProxyHealth::Unhealthy, Some(ProxyRulesState::Nftables)));
        drop(outputs);
        task.await.unwrap();
    }

    #[tokio::test]
    async fn without_a_service_proxy_nothing_is_observed() {
        let (inputs, mut outputs) = mpsc::channel(1);
        let (_interest, receiver) = watch::channel(Vec::new());
        let observer = ProxyObserver { health_address: None, interest: receiver, check: Arc::default() };
        observer.spawn(inputs).unwrap();
        let input = format!("{:?}", outputs.recv().await.unwrap());
        assert_eq!(input, proxy(ProxyHealth::NotChecked, Some(ProxyRulesState::NotVisible)));
        assert!(outputs.recv().await.is_none());
    }
}
