//! `services`: service addresses in the fabric.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use trunkline_api::names;
use trunkline_api::resources::ServiceProxyKind;

use crate::services::Settings;
use crate::text_kinds::AddressAndPort;

/// Advertisement of Services' addresses: docs/services.md. Pools and ServiceAdvertisements are
/// objects of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ServicesConfig {
    /// Whether this node advertises Services' addresses. Needs `source: kube`.
    pub enabled: bool,
    /// The service proxy of this node. An address is advertised only while the proxy forwards it.
    pub proxy: ServiceProxyConfig,
}

/// The service proxy of this node. An address is advertised only while the proxy forwards it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ServiceProxyConfig {
    /// The service proxy.
    pub kind: ServiceProxyKind,
    /// The address of kube-proxy's `/healthz` (its `healthzBindAddress`).
    #[schemars(with = "AddressAndPort")]
    pub health_address: SocketAddr,
    /// Time for which addresses stay advertised while the service proxy does not answer, in
    /// seconds. Its rules stay in the kernel, and a restart needs less time.
    #[schemars(range(max = 3600))]
    pub restart_seconds: u16,
    /// Time from a change to its rules, in milliseconds, if the agent cannot see the rules. Default:
    /// twice kube-proxy's `minSyncPeriod`.
    #[schemars(range(max = 60_000))]
    pub settle_milliseconds: u16,
}

impl Default for ServicesConfig {
    fn default() -> Self {
        ServicesConfig { enabled: true, proxy: ServiceProxyConfig::default() }
    }
}

impl Default for ServiceProxyConfig {
    fn default() -> Self {
        ServiceProxyConfig {
            kind: ServiceProxyKind::Auto,
            health_address: SocketAddr::from((Ipv4Addr::LOCALHOST, 10256)),
            restart_seconds: 60,
            settle_milliseconds: 2_000,
        }
    }
}

impl ServicesConfig {
    /// Checks the section. The error contains the field and the remedy.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let ServiceProxyConfig { health_address, restart_seconds, settle_milliseconds, .. } = self.proxy;
        if health_address.port() == 0 || health_address.ip().is_unspecified() {
            let message = format!(
                "{health_address} is no address of a server: write the address and port where this \
                 node reaches kube-proxy's /healthz, such as 127.0.0.1:10256"
            );
            return Err(("services.proxy.healthAddress", message));
        }
        if restart_seconds > 3_600 {
            let message = format!("{restart_seconds} is out of range: write 0 to 3600");
            return Err(("services.proxy.restartSeconds", message));
        }
        if settle_milliseconds > 60_000 {
            let message = format!("{settle_milliseconds} is out of range: write 0 to 60000");
            return Err(("services.proxy.settleMilliseconds", message));
        }
        Ok(())
    }

    /// The settings of the services task. Its cache is beside the store.
    pub(super) fn settings(&self, store: &Path, deferral: Duration) -> Settings {
        Settings {
            deferral,
            restart: Duration::from_secs(self.proxy.restart_seconds.into()),
            settle: Duration::from_millis(self.proxy.settle_milliseconds.into()),
            proxy_address: self.proxy.health_address.to_string(),
            class: Arc::from(names::LOAD_BALANCER_CLASS),
            cache: store.with_file_name("services.json"),
        }
    }
}
