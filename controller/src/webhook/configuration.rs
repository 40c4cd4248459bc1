//! What the API server asks the webhook, and what it does when nobody answers.
//!
//! | webhook | asked about | nobody answers |
//! |---|---|---|
//! | `resources.…` | Networks and Subnets: create, update, delete; IPInstances that others than the controller create or change; NodeInfos in which an agent claims other addresses than before | refused: a wrong Network would be there for good |
//! | `pods.…`, `mutate-pods.…` | pods: create | passes: a cluster whose network is down must be able to start what brings it up |
//!
//! So nothing of the system can be locked out: what fails closed are Trunkline's own kinds, and pods pass in every namespace,
//! kube-system too (whose pods on the pod network need the webhook as others do: they are scheduled where an address is left). A pod, or a
//! namespace, with the label `webhook.hybridnet.io/ignore: "true"` is never asked about; the controller's own pods have it.
//!
//! Agents' and the controller's writes of statuses are subresources, which are not asked about at all.
//!
//! `deploy/helm/trunkline/templates/webhooks.yaml` is generated from here ([`chart_template`]) and a test keeps it current. `caBundle` is
//! not in it: the controller writes it (`certificates`), and an upgrade of the chart leaves it alone.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::ObjectMeta;
use trunkline_api::names::{GROUP, label};

/// Name of both configurations.
pub const NAME: &str = "trunkline-webhook";
/// The most that the API server waits, in seconds; the server gives up earlier (`DEADLINE`), so that a failure is its own and said.
const TIMEOUT: i32 = 10;

/// Where the API server finds the webhook.
#[derive(Clone, Debug)]
pub enum Address {
    /// A Service of the cluster, at port 443.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// `https://host:port`, for an API server that does not reach Services.
    Url(String),
}

impl Address {
    fn client_config(&self, path: &str) -> WebhookClientConfig {
        match self {
            Address::Service { namespace, name } => WebhookClientConfig {
                service: Some(ServiceReference {
                    name: name.clone(),
                    namespace: namespace.clone(),
                    path: Some(path.to_owned()),
                    port: Some(443),
                }),
                ..WebhookClientConfig::default()
            },
            Address::Url(url) => {
                WebhookClientConfig { url: Some(format!("{url}{path}")), ..WebhookClientConfig::default() }
            }
        }
    }
}

/// The configurations, for the accounts in this namespace: the controller's IPInstances are not asked about, the NodeInfos of agents are.
pub fn configurations(
    address: &Address,
    namespace: &str,
) -> (ValidatingWebhookConfiguration, MutatingWebhookConfiguration) {
    let account = format!("system:serviceaccount:{namespace}:trunkline");
    let metadata = || ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
    let validating = |name: &str, failure: &str, rules: Vec<RuleWithOperations>| ValidatingWebhook {
        name: format!("{name}.{GROUP}"),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: address.client_config("/validate"),
        failure_policy: Some(failure.to_owned()),
        match_policy: Some("Equivalent".to_owned()),
        object_selector: Some(unless_ignored()),
        rules: Some(rules),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT),
        ..ValidatingWebhook::default()
    };
    let pods = || vec![rule("", &["pods"], &["CREATE"], "Namespaced")];
    let resources = validating(
        "resources",
        "Fail",
        vec![
            rule(GROUP, &["networks", "subnets"], &["CREATE", "UPDATE", "DELETE"], "Cluster"),
            rule(GROUP, &["ipinstances"], &["CREATE", "UPDATE"], "Namespaced"),
            rule(GROUP, &["nodeinfoes"], &["CREATE", "UPDATE"], "Cluster"),
        ],
    );
    let resources = ValidatingWebhook {
        // Nobody gets past the rules of resources by a label.
        object_selector: None,
        match_conditions: Some(vec![
            MatchCondition {
                name: "ipinstances-by-others".to_owned(),
                expression: format!(
                    "request.resource.resource != 'ipinstances' || request.userInfo.username != '{account}-controller'"
                ),
            },
            // A start of an agent, which changes nothing, needs nobody who answers.
            MatchCondition {
                name: "new-claims-of-agents".to_owned(),
                expression: format!(
                    "request.resource.resource != 'nodeinfoes' || (request.userInfo.username.startsWith('{account}-agent') && \
                     object.?spec.vtepInfo.hasValue() && (oldObject == null || oldObject.?spec != object.?spec))"
                ),
            },
        ]),
        ..resources
    };
    let validated = ValidatingWebhook {
        namespace_selector: Some(unless_ignored()),
        ..validating("pods", "Ignore", pods())
    };
    let mutated = MutatingWebhook {
        name: format!("mutate-pods.{GROUP}"),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: address.client_config("/mutate"),
        failure_policy: Some("Ignore".to_owned()),
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(unless_ignored()),
        object_selector: Some(unless_ignored()),
        reinvocation_policy: Some("Never".to_owned()),
        rules: Some(pods()),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT),
        ..MutatingWebhook::default()
    };
    (
        ValidatingWebhookConfiguration { metadata: metadata(), webhooks: Some(vec![resources, validated]) },
        MutatingWebhookConfiguration { metadata: metadata(), webhooks: Some(vec![mutated]) },
    )
}

/// The chart's template of both: for its Service and its service account, in the namespace that it is installed in.
pub fn chart_template() -> Result<String, serde_json::Error> {
    const NAMESPACE: &str = "release-namespace";
    let address = Address::Service { namespace: NAMESPACE.to_owned(), name: NAME.to_owned() };
    let (validating, mutating) = configurations(&address, NAMESPACE);
    // JSON is YAML, and needs no other writer.
    let both = [serde_json::to_string_pretty(&validating)?, serde_json::to_string_pretty(&mutating)?];
    let both = both.join("\n---\n").replace(NAMESPACE, "{{ .Release.Namespace }}");
    let about = "{{- /* Made of controller/src/webhook/configuration.rs: change it there. */}}";
    Ok(format!("{about}\n{{{{- if .Values.webhook.enabled }}}}\n{both}\n{{{{- end }}}}\n"))
}

fn unless_ignored() -> LabelSelector {
    LabelSelector {
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: label::WEBHOOK_IGNORE.to_owned(),
            operator: "NotIn".to_owned(),
            values: Some(vec!["true".to_owned(), "TRUE".to_owned()]),
        }]),
        ..LabelSelector::default()
    }
}

fn rule(group: &str, resources: &[&str], operations: &[&str], scope: &str) -> RuleWithOperations {
    let all = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    RuleWithOperations {
        api_groups: all(&[group]),
        api_versions: all(&["v1"]),
        operations: all(operations),
        resources: all(resources),
        scope: Some(scope.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_has_it_as_it_is_here() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/trunkline/templates/webhooks.yaml");
        let template = chart_template().unwrap();
        if std::env::var_os("WRITE_CHART").is_some() {
            std::fs::write(file, &template).unwrap();
        }
        let there = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            there == template,
            "deploy/helm/trunkline/templates/webhooks.yaml is not current: run this test with WRITE_CHART=1"
        );
    }
}
