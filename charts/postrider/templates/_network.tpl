{{/* Rules that several NetworkPolicies have in common. */}}

{{- define "postrider.egressDNS" -}}
- ports:
  {{- range .Values.networkPolicy.dnsPorts }}
  - {protocol: UDP, port: {{ int . }}}
  - {protocol: TCP, port: {{ int . }}}
  {{- end }}
{{- end }}

{{- define "postrider.egressAPI" -}}
- ports:
  {{- range .Values.networkPolicy.apiServerPorts }}
  - {protocol: TCP, port: {{ int . }}}
  {{- end }}
{{- end }}

{{- define "postrider.egressDatabase" -}}
{{- $kind := include "postrider.database" . -}}
{{- if eq $kind "external" -}}
- ports:
  {{- range .Values.networkPolicy.databasePorts }}
  - {protocol: TCP, port: {{ int . }}}
  {{- end }}
{{- else -}}
- to:
  - podSelector:
      matchLabels:
        {{- if eq $kind "embedded" }}
        {{- include "postrider.selector" (dict "root" $ "component" "postgres") | nindent 8 }}
        {{- else }}
        cnpg.io/cluster: {{ include "postrider.postgresName" . }}
        {{- end }}
  ports: [{protocol: TCP, port: 5432}]
{{- end -}}
{{- end }}

{{- define "postrider.ingressMetrics" -}}
- ports: [{protocol: TCP, port: 8081}]
  {{- with .Values.networkPolicy.metricsFrom }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
