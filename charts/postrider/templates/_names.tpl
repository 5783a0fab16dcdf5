{{/* Names, labels and images. */}}

{{- define "postrider.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The beginning of all names. Short enough for the longest ending and what Kubernetes adds to it. */}}
{{- define "postrider.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "postrider.name" .) .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "postrider.name" .) | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* Names of cluster-scoped objects carry the namespace: another release may have the same name. */}}
{{- define "postrider.clusterName" -}}
{{ include "postrider.fullname" . }}-{{ .Release.Namespace }}
{{- end }}

{{/* What selects the pods of a component: dict "root" $ "component" "ingest". It never changes. */}}
{{- define "postrider.selector" -}}
app.kubernetes.io/name: {{ include "postrider.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "postrider.labels" -}}
{{ include "postrider.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: postrider
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* An image, by digest or by tag: dict "image" .Values.image "tag" "what an empty tag means". */}}
{{- define "postrider.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .tag }}
{{- end -}}
{{- end }}

{{- define "postrider.ownImage" -}}
image: {{ include "postrider.image" (dict "image" .Values.image "tag" .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "postrider.controllerAccount" -}}
{{ .Values.serviceAccounts.controller.name | default (printf "%s-controller" (include "postrider.fullname" .)) }}
{{- end }}

{{- define "postrider.ingestAccount" -}}
{{ .Values.serviceAccounts.ingest.name | default (printf "%s-ingest" (include "postrider.fullname" .)) }}
{{- end }}

{{- define "postrider.keyringSecret" -}}
{{ .Values.keyring.existingSecret | default (printf "%s-keyring" (include "postrider.fullname" .)) }}
{{- end }}

{{- define "postrider.passwordSecret" -}}
{{ .Values.postgres.embedded.existingSecret | default (printf "%s-postgres" (include "postrider.fullname" .)) }}
{{- end }}

{{/* The Secret with ingest's certificate; empty: no TLS. */}}
{{- define "postrider.tlsSecret" -}}
{{- with .Values.ingest.tls -}}
{{- if .existingSecret -}}{{ .existingSecret }}
{{- else if .certManager.enabled -}}{{ include "postrider.fullname" $ }}-ingest-tls
{{- end -}}
{{- end -}}
{{- end }}

{{- define "postrider.ingestPort" -}}
{{ .Values.ingest.service.port | default (ternary 443 80 (ne (include "postrider.tlsSecret" .) "")) | int }}
{{- end }}
