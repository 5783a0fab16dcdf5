{{/* How Prometheus reads metrics that are not for everybody. The certificate is of the pod's own making: it keeps the token from
who only listens. */}}
{{- define "postrider.scrapeAuth" -}}
scheme: https
tlsConfig: {insecureSkipVerify: true}
{{- with .Values.metrics.tokenSecret }}
{{- if .name }}
authorization:
  type: Bearer
  credentials: {name: {{ .name }}, key: {{ .key }}}
{{- end }}
{{- end }}
{{- end }}
