{{/* The settings of the parts: text of "NAME: value" lines, the data of a ConfigMap. A flag is named as its variable. */}}

{{- define "postrider.flags" -}}
{{- range $name, $value := .flags }}
{{- if not (kindIs "invalid" $value) }}
POSTRIDER_{{ $.prefix }}{{ $name | snakecase | upper }}: {{ include "postrider.scalar" $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where webhooks may go. The receiver of `helm test` is let in with tests.enabled alone. */}}
{{- define "postrider.destinationSettings" -}}
{{- $d := .Values.destination -}}
{{- $allowed := $d.allowedCIDRs -}}
{{- $http := $d.allowHTTP -}}
{{- if .Values.tests.enabled -}}
{{- $allowed = concat $allowed (include "postrider.testCIDRs" . | fromYamlArray) | uniq -}}
{{- $http = true -}}
{{- end -}}
{{- with $allowed }}
POSTRIDER_DESTINATION_ALLOWED_CIDRS: {{ join "," . | quote }}
{{- end }}
{{- with $d.deniedCIDRs }}
POSTRIDER_DESTINATION_DENIED_CIDRS: {{ join "," . | quote }}
{{- end }}
{{- if $d.allowedPorts }}
{{- $ports := list -}}
{{- range $d.allowedPorts }}{{ $ports = append $ports (int . | toString) }}{{ end }}
{{- if .Values.tests.enabled }}{{ $ports = append $ports "8080" | uniq }}{{ end }}
POSTRIDER_DESTINATION_ALLOWED_PORTS: {{ join "," $ports | quote }}
{{- end }}
POSTRIDER_DESTINATION_ALLOW_HTTP: {{ $http | quote }}
{{- end }}

{{- define "postrider.limitTimeout" -}}
{{- with .Values.limits.timeout }}
POSTRIDER_LIMIT_TIMEOUT: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "postrider.controllerSettings" -}}
{{- include "postrider.destinationSettings" . }}
{{- include "postrider.flags" (dict "prefix" "DEFAULT_" "flags" .Values.defaults) }}
{{- include "postrider.flags" (dict "prefix" "LIMIT_" "flags" .Values.limits) }}
{{- include "postrider.flags" (dict "prefix" "" "flags" .Values.controller.settings) }}
POSTRIDER_CONTROLLER_SHUTDOWN_TIMEOUT: "{{ int .Values.controller.shutdownSeconds }}s"
{{- with .Values.watchNamespaces }}
POSTRIDER_WATCH_NAMESPACES: {{ join "," . | quote }}
{{- end }}
{{- if .Values.controller.takeOver }}
POSTRIDER_TAKE_OVER: "true"
{{- end }}
{{- if .Values.controller.confirmSweep }}
POSTRIDER_CONFIRM_SWEEP: "true"
{{- end }}
{{- end }}

{{- define "postrider.dispatcherSettings" -}}
{{- include "postrider.destinationSettings" . }}
{{- include "postrider.limitTimeout" . }}
{{- include "postrider.flags" (dict "prefix" "" "flags" .Values.dispatcher.settings) }}
POSTRIDER_GRACE: "{{ int .Values.dispatcher.graceSeconds }}s"
POSTRIDER_EVENT_RETENTION: {{ .Values.retention.events | quote }}
POSTRIDER_ATTEMPT_RETENTION: {{ .Values.retention.attempts | quote }}
POSTRIDER_DEAD_LETTER_RETENTION: {{ .Values.retention.deadLetters | quote }}
POSTRIDER_ENDPOINT_RETENTION: {{ .Values.retention.endpoints | quote }}
{{- end }}

{{- define "postrider.ingestSettings" -}}
{{- include "postrider.flags" (dict "prefix" "" "flags" .Values.ingest.settings) }}
POSTRIDER_IDEMPOTENCY_WINDOW: {{ .Values.idempotencyWindow | quote }}
POSTRIDER_DRAIN_DELAY: "{{ int .Values.ingest.drainSeconds }}s"
POSTRIDER_SHUTDOWN_TIMEOUT: "{{ int .Values.ingest.shutdownSeconds }}s"
{{- end }}
