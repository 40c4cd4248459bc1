//! Webhook configurations: the requests that the API server sends, and its behaviour without an
//! answer.
//!
//! - `resources.…`: every write of Networks, Subnets and ServicePools; create and update of
//!   ServiceAdvertisements, AnycastAddresses and AgentSettings; writes of IPInstances and
//!   RemoteSubnets, except the controller's;
//!   writes of NodeInfos, unless the agent repeats the addresses that it has there already. Without
//!   an answer of the webhook they are refused. Otherwise a wrong Network would stay in the API
//!   server.
//! - `pods.…`, `mutate-pods.…`: create of pods. Without an answer of the webhook they are admitted:
//!   a cluster must be able to start its network components while its network is down.
//!
//! So the webhook cannot lock out any system component: only Trunkline's own kinds fail closed.
//! The webhook handles the pods of every namespace, including kube-system. Pods of kube-system on
//! the pod network need the webhook too, because the webhook selects nodes with a free address.
//! Pods and namespaces with the label `webhook.hybridnet.io/ignore: "true"` are exempt, such as the
//! controller's own pods.
//!
//! Status writes of agents and controller are subresources, for which the webhook is not called.
//!
//! `deploy/helm/trunkline/templates/webhooks.yaml` is generated from this module
//! ([`chart_template`]), and a test keeps it current. It does not contain `caBundle`: the
//! controller writes it (`certificates`), and an upgrade of the chart keeps it.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::ObjectMeta;
use trunkline_api::names::{GROUP, MULTICLUSTER_GROUP, OWN_GROUP, OWN_VERSION, label};

/// Name of both configurations.
pub const NAME: &str = "trunkline-webhook";
/// The API server's timeout, in seconds. The webhook's own timeout (`DEADLINE`) is shorter, so the
/// webhook writes the error text.
const TIMEOUT: i32 = 10;

/// The webhook's address for the API server.
#[derive(Clone, Debug)]
pub enum Address {
    /// A Service of the cluster, at port 443.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// `https://host:port`, for an API server that cannot reach Services.
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

/// The configurations, for service accounts in this namespace. The controller's writes of
/// IPInstances are exempt; the agents' writes of NodeInfos are not.
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
    let pods = || vec![rule(("", "v1"), &["pods"], &["CREATE"], "Namespaced")];
    let resources = validating(
        "resources",
        "Fail",
        vec![
            rule((GROUP, "v1"), &["networks", "subnets"], &["CREATE", "UPDATE", "DELETE"], "Cluster"),
            rule((GROUP, "v1"), &["ipinstances"], &["CREATE", "UPDATE"], "Namespaced"),
            rule((GROUP, "v1"), &["nodeinfoes"], &["CREATE", "UPDATE"], "Cluster"),
            rule((MULTICLUSTER_GROUP, "v1"), &["remotesubnets"], &["CREATE", "UPDATE"], "Cluster"),
            rule((OWN_GROUP, OWN_VERSION), &["servicepools"], &["CREATE", "UPDATE", "DELETE"], "Cluster"),
            rule(
                (OWN_GROUP, OWN_VERSION),
                &["serviceadvertisements", "anycastaddresses", "agentsettings"],
                &["CREATE", "UPDATE"],
                "Cluster",
            ),
        ],
    );
    let resources = ValidatingWebhook {
        // A label must not switch off the rules for resources.
        object_selector: None,
        match_conditions: Some(vec![
            MatchCondition {
                name: "not-by-the-controller".to_owned(),
                expression: format!(
                    "!(request.resource.resource in ['ipinstances', 'remotesubnets']) || \
                     request.userInfo.username != '{account}-controller'"
                ),
            },
            // The start of an agent that changes no address in its NodeInfo must not depend on the
            // webhook.
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

/// The chart's template of both, for its Service and its service account in the release's
/// namespace.
pub fn chart_template() -> Result<String, serde_json::Error> {
    const NAMESPACE: &str = "release-namespace";
    let address = Address::Service { namespace: NAMESPACE.to_owned(), name: NAME.to_owned() };
    let (validating, mutating) = configurations(&address, NAMESPACE);
    // JSON is valid YAML, so no other serializer is needed.
    let both = [serde_json::to_string_pretty(&validating)?, serde_json::to_string_pretty(&mutating)?];
    let both = both.join("\n---\n").replace(NAMESPACE, "{{ .Release.Namespace }}");
    let both = with_expressions_of_values(&both);
    let about = "{{- /* Generated from controller/src/webhook/configuration.rs: change it there. */}}";
    Ok(format!("{about}\n{{{{- if .Values.webhook.enabled }}}}\n{both}\n{{{{- end }}}}\n"))
}

/// Adds the chart's value `webhook.additionalPodMatchExpressions` to each selector of pods.
fn with_expressions_of_values(text: &str) -> String {
    const SELECTOR: &str = "\"objectSelector\": {";
    const END: &str = "\n        ]";
    const MORE: &str =
        "{{- range .Values.webhook.additionalPodMatchExpressions }},\n          {{ toJson . }}{{- end }}";
    let mut parts = text.split(SELECTOR);
    let mut done = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        done += SELECTOR;
        done += &part.replacen(END, &format!("{MORE}{END}"), 1);
    }
    done
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

/// A rule for resources of an API group and version.
fn rule(
    (group, version): (&str, &str),
    resources: &[&str],
    operations: &[&str],
    scope: &str,
) -> RuleWithOperations {
    let all = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    RuleWithOperations {
        api_groups: all(&[group]),
        api_versions: all(&[version]),
        operations: all(operations),
        resources: all(resources),
        scope: Some(scope.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_selectors_of_pods_have_expressions_of_the_values() {
        let template = chart_template().unwrap();
        let more = template.matches("range .Values.webhook.additionalPodMatchExpressions").count();
        assert_eq!((more, template.matches("objectSelector").count()), (2, 2));
        let (resources, _) = template.split_once("pods.networking.alibaba.com").unwrap();
        assert!(!resources.contains("additionalPodMatchExpressions"), "labels must not exempt resources");
    }

    #[test]
    fn chart_template_is_current() {
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
