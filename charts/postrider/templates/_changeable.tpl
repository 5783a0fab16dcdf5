{{/* The settings that may change while the pods run: each part's settings file, in one ConfigMap. The kubelet brings a change
into the pods within a minute or two, and the parts look every other second. A flag is named as it is. */}}

{{- define "postrider.controllerFile" -}}
{{- include "postrider.logFile" . }}
{{- include "postrider.destinationFile" . }}
{{- include "postrider.entries" (dict "prefix" "default-" "values" .Values.defaults) }}
{{- include "postrider.entries" (dict "prefix" "limit-" "values" (omit .Values.limits "timeout")) }}
{{- end }}

{{- define "postrider.dispatcherFile" -}}
{{- include "postrider.logFile" . }}
{{- include "postrider.destinationFile" . }}
event-retention: {{ .Values.retention.events | quote }}
attempt-retention: {{ .Values.retention.attempts | quote }}
dead-letter-retention: {{ .Values.retention.deadLetters | quote }}
endpoint-retention: {{ .Values.retention.endpoints | quote }}
{{- end }}

{{- define "postrider.ingestFile" -}}
{{- include "postrider.logFile" . }}
{{- end }}

{{- define "postrider.logFile" }}
log-level: {{ .Values.log.level | quote }}
{{- end }}

{{/* Where webhooks may go. The receiver of `helm test` is let in with tests.enabled alone. */}}
{{- define "postrider.destinationFile" -}}
{{- $d := .Values.destination -}}
{{- $allowed := $d.allowedCIDRs -}}
{{- $ports := list -}}
{{- range $d.allowedPorts }}{{ $ports = append $ports (int .) }}{{ end }}
{{- if .Values.tests.enabled -}}
{{- $allowed = concat $allowed (include "postrider.testCIDRs" . | fromYamlArray) | uniq -}}
{{- if $ports }}{{ $ports = append $ports 8080 | uniq }}{{ end }}
{{- end }}
destination-allowed-cidrs: {{ toJson $allowed }}
destination-denied-cidrs: {{ toJson $d.deniedCIDRs }}
destination-allowed-ports: {{ toJson $ports }}
destination-allow-http: {{ or $d.allowHTTP .Values.tests.enabled }}
{{- end }}

{{- define "postrider.entries" -}}
{{- range $name, $value := .values }}
{{- if not (kindIs "invalid" $value) }}
{{ $.prefix }}{{ kebabcase $name }}: {{ include "postrider.scalar" $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "postrider.settingsEnv" -}}
- {name: POSTRIDER_SETTINGS_FILE, value: /etc/postrider/settings/settings.yaml}
{{- end }}

{{- define "postrider.settingsMount" -}}
- {name: settings, mountPath: /etc/postrider/settings, readOnly: true}
{{- end }}

{{/* dict "root" $ "component" "ingest". */}}
{{- define "postrider.settingsVolume" -}}
- name: settings
  configMap:
    name: {{ include "postrider.fullname" .root }}-settings
    items: [{key: {{ .component }}.yaml, path: settings.yaml}]
{{- end }}
