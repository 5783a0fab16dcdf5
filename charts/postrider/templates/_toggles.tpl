{{/* "true" or nothing: dict "root" $ "value" auto|true|false "kind" "monitoring.coreos.com/v1/PodMonitor". */}}
{{- define "postrider.on" -}}
{{- $value := toString .value -}}
{{- if eq $value "true" -}}true
{{- else if and (eq $value "auto") (.root.Capabilities.APIVersions.Has .kind) -}}true
{{- end -}}
{{- end }}

{{/* Replicas at least: dict "root" $ "component" "ingest". */}}
{{- define "postrider.minReplicas" -}}
{{- $values := index .root.Values .component -}}
{{- if and (eq .component "dispatcher") (ne $values.autoscaling.mode "None") -}}{{ int $values.autoscaling.minReplicas }}
{{- else if and (eq .component "ingest") $values.autoscaling.enabled -}}{{ int $values.autoscaling.minReplicas }}
{{- else -}}{{ int $values.replicas }}
{{- end -}}
{{- end }}

{{/* The receiver of `helm test`. */}}
{{- define "postrider.testCIDRs" -}}
{{- if .Values.tests.clusterIP -}}
- {{ .Values.tests.clusterIP }}/{{ ternary 128 32 (contains ":" .Values.tests.clusterIP) }}
{{- else if .Values.tests.allowedCIDRs -}}
{{ toYaml .Values.tests.allowedCIDRs }}
{{- else -}}
{{ fail "tests.enabled: give tests.clusterIP, a free address of the cluster's Service range, or tests.allowedCIDRs" }}
{{- end -}}
{{- end }}
