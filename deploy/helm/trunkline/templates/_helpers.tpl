{{- define "trunkline.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "trunkline.labels" -}}
app.kubernetes.io/name: trunkline
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Labels for selectors: they must not change with an upgrade. */}}
{{- define "trunkline.selector" -}}
app.kubernetes.io/name: trunkline
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* The agents as JSON: one DaemonSet and one account for all nodes, or one for each of agent.racks. */}}
{{- define "trunkline.agents" -}}
{{- $agents := list }}
{{- range $rack := .Values.agent.racks }}
{{- range $other := $agents }}
{{- $apart := false }}
{{- range $key, $value := $rack.nodeSelector }}
{{- if and (hasKey $other.nodeSelector $key) (ne (get $other.nodeSelector $key) $value) }}
{{- $apart = true }}
{{- end }}
{{- end }}
{{- if not $apart }}
{{- fail (printf "agent.racks: %s and %s may select the same node, which would run two agents: use one label with different values in both nodeSelectors" $other.rack $rack.name) }}
{{- end }}
{{- end }}
{{- $selector := merge (dict) $rack.nodeSelector $.Values.agent.nodeSelector }}
{{- $agents = append $agents (dict "rack" $rack.name "name" (print "trunkline-agent-" $rack.name) "nodeSelector" $selector "keySecrets" (default list $rack.keySecrets)) }}
{{- end }}
{{- if not $agents }}
{{- $agents = list (dict "rack" "" "name" "trunkline-agent" "nodeSelector" .Values.agent.nodeSelector "keySecrets" .Values.agent.keySecrets) }}
{{- end }}
{{- toJson (dict "agents" $agents) }}
{{- end }}
