//! The client of a remote cluster's API server.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use trunkline_api::resources::RemoteClusterSpec;
use trunkline_daemon::apiserver;

/// Time limit of a request if `spec.timeout` is 0 or absent.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Unusable credentials. The text names the field, and never its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("spec.{field}: {message}")]
pub(super) struct CredentialFault {
    field: &'static str,
    message: String,
}

fn fault(field: &'static str, message: impl Into<String>) -> CredentialFault {
    CredentialFault { field, message: message.into() }
}

/// The time limit of a request.
pub(super) fn patience(spec: &RemoteClusterSpec) -> Duration {
    if spec.timeout == 0 { PATIENCE } else { Duration::from_secs(spec.timeout.into()) }
}

/// Creates a client. The client sends no request yet.
///
/// # Errors
/// A field is unusable.
pub(super) async fn client(spec: &RemoteClusterSpec) -> Result<Client, CredentialFault> {
    if !spec.api_endpoint.starts_with("https://") {
        return Err(fault("apiEndpoint", "is no https URL: write https://HOST:PORT"));
    }
    for (field, text) in [
        ("caData", spec.ca_data.as_str()),
        ("certData", spec.cert_data.as_str()),
        ("keyData", spec.key_data.expose()),
    ] {
        let is_pem = STANDARD.decode(text).is_ok_and(|pem| pem.starts_with(b"-----BEGIN "));
        if !is_pem {
            return Err(fault(field, "is no PEM in base64: copy the value from a kubeconfig"));
        }
    }
    // kube reads the credentials.
    let kubeconfig: Kubeconfig = serde_json::from_value(json!({
        "clusters": [{"name": "it", "cluster": {
            "server": spec.api_endpoint, "certificate-authority-data": spec.ca_data,
        }}],
        "users": [{"name": "it", "user": {
            "client-certificate-data": spec.cert_data, "client-key-data": spec.key_data.expose(),
        }}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }))
    .map_err(|_| fault("keyData", "is unreadable: copy the value from a kubeconfig"))?;
    // The error could quote a value.
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(|_| {
            fault(
                "apiEndpoint",
                "or caData, certData or keyData is unusable: compare them with a kubeconfig that works",
            )
        })?;
    apiserver::client(config).map_err(|_| {
        fault(
            "certData",
            "or keyData is unusable: write the certificate and the key of one client certificate",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn faults_name_the_field_and_not_its_content() {
        let pem = STANDARD
            .encode("-----BEGIN CERTIFICATE-----\nnonsense-of-a-certificate\n-----END CERTIFICATE-----\n");
        let spec = |endpoint: &str, key: &str| -> RemoteClusterSpec {
            serde_json::from_value(json!({
                "apiEndpoint": endpoint, "caData": pem, "certData": pem, "keyData": key,
            }))
            .unwrap()
        };
        for (spec, words) in [
            (
                spec("http://192.0.2.1:6443", "a"),
                "spec.apiEndpoint: is no https URL: write https://HOST:PORT",
            ),
            (spec("https://192.0.2.1:6443", "secret-key"), "spec.keyData: is no PEM in base64"),
            (spec("https://192.0.2.1:6443", &pem), "spec."),
        ] {
            let Err(error) = client(&spec).await else { panic!("{words}") };
            let text = error.to_string();
            assert!(
                text.contains(words) && !text.contains("secret-key") && !text.contains("nonsense"),
                "{text}"
            );
            assert!(!format!("{spec:?}").contains("secret-key"));
        }
    }
}
