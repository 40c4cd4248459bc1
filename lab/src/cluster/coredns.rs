//! The cluster's DNS: CoreDNS on the pod network, as kubeadm installs it, without resolvers outside.

use super::images::COREDNS;
use super::layout::Layout;

/// The manifest.
pub(super) fn manifest(layout: &Layout) -> String {
    let addresses: Vec<String> = layout.dns_service().iter().map(|address| format!("'{address}'")).collect();
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    format!(
        "{RIGHTS}---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: coredns, namespace: kube-system, labels: {{k8s-app: kube-dns}}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{k8s-app: kube-dns}}}}
  template:
    metadata: {{labels: {{k8s-app: kube-dns}}}}
    spec:
      serviceAccountName: coredns
      priorityClassName: system-cluster-critical
      dnsPolicy: Default
      containers:
        - name: coredns
          image: {COREDNS}
          imagePullPolicy: Never
          command: [/coredns]
          args: [-conf, /etc/coredns/Corefile]
          volumeMounts: [{{name: config, mountPath: /etc/coredns}}]
          readinessProbe: {{httpGet: {{path: /ready, port: 8181}}, periodSeconds: 2}}
          livenessProbe: {{httpGet: {{path: /health, port: 8080}}, initialDelaySeconds: 30}}
      volumes: [{{name: config, configMap: {{name: coredns, items: [{{key: Corefile, path: Corefile}}]}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system, labels: {{k8s-app: kube-dns, kubernetes.io/name: CoreDNS}}}}
spec:
  selector: {{k8s-app: kube-dns}}
  clusterIP: {first}
  clusterIPs: [{all}]
  ipFamilyPolicy: {policy}
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]
",
        first = addresses.first().map_or("None", String::as_str),
        all = addresses.join(", "),
    )
}

const RIGHTS: &str = "apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: 'system:coredns'}
rules:
  - {apiGroups: [''], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: 'system:coredns'}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: 'system:coredns'}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
      errors
      health
      ready
      kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
      }
      cache 30
      reload
    }
";
