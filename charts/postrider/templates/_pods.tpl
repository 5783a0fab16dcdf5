{{/* What pods have in common. All of them pass Pod Security "restricted". */}}

{{- define "postrider.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "postrider.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Labels and annotations of a part's pods: dict "root" $ "component" "ingest" "values" .Values.ingest "settings" text. */}}
{{- define "postrider.podMetadata" -}}
labels:
  {{- include "postrider.labels" . | nindent 2 }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  kubectl.kubernetes.io/default-container: {{ .component }}
  checksum/config: {{ .settings | sha256sum }}
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "postrider.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where the pods of a part run: dict "root" $ "component" "ingest" "values" .Values.ingest. */}}
{{- define "postrider.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range .values.topologySpreadConstraints }}
- {{- toYaml . | nindent 2 }}
  {{- if not .labelSelector }}
  labelSelector:
    matchLabels:
      {{- include "postrider.selector" $ | nindent 6 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The port of probes and metrics, by which monitors find it: dict "root" $ "component" "ingest". The dispatcher has no token to
ask the Kubernetes API with who may read metrics: its are plain. */}}
{{- define "postrider.metricsPort" -}}
{{ ternary "https-metrics" "metrics" (and .root.Values.metrics.auth (ne .component "dispatcher")) }}
{{- end }}

{{- define "postrider.probes" -}}
{{- $port := include "postrider.metricsPort" . -}}
{{- $scheme := ternary "HTTPS" "HTTP" (eq $port "https-metrics") -}}
livenessProbe:
  httpGet: {path: /livez, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 10
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 3
{{- end }}

{{/* Other parts wait for the schema that the controller's pod makes. */}}
{{- define "postrider.waitForSchema" -}}
- name: wait-for-schema
  {{- include "postrider.ownImage" . | nindent 2 }}
  args: [migrate, --wait]
  env:
  {{- include "postrider.databaseEnv" . | nindent 2 }}
  - {name: POSTRIDER_TIMEOUT, value: 24h}
  {{- include "postrider.logEnv" . | nindent 2 }}
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 64Mi}
  securityContext:
    {{- include "postrider.containerSecurity" . | nindent 4 }}
  volumeMounts:
  {{- include "postrider.databaseMount" . | nindent 2 }}
{{- end }}

{{/* A token for the Kubernetes API, for the one container that mounts it. Pods have none by default. */}}
{{- define "postrider.apiTokenVolume" -}}
- name: kubernetes-api
  projected:
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3607}
    - configMap:
        name: kube-root-ca.crt
        items: [{key: ca.crt, path: ca.crt}]
    - downwardAPI:
        items:
        - path: namespace
          fieldRef: {fieldPath: metadata.namespace}
{{- end }}

{{- define "postrider.apiTokenMount" -}}
- {name: kubernetes-api, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{/* Seconds, replicas and the like: numbers come as floating point. */}}
{{- define "postrider.scalar" -}}
{{- if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{- define "postrider.ownNamespaceEnv" -}}
- name: POSTRIDER_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- {name: POSTRIDER_RELEASE, value: {{ .Release.Name | quote }}}
{{- end }}

{{/* For what does not follow a settings file. */}}
{{- define "postrider.logEnv" -}}
- {name: POSTRIDER_LOG_LEVEL, value: {{ .Values.log.level | quote }}}
{{ include "postrider.logFormatEnv" . }}
{{- end }}

{{- define "postrider.logFormatEnv" -}}
- {name: POSTRIDER_LOG_FORMAT, value: {{ .Values.log.format | quote }}}
{{- end }}
