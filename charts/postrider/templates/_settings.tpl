{{/* The settings of the parts that are read at the start alone: text of "NAME: value" lines, the data of a ConfigMap. A flag
is named as its variable. A change rolls the pods. Those that may change while the pods run are in _changeable.tpl. */}}

{{- define "postrider.flags" -}}
{{- range $name, $value := .flags }}
{{- if not (kindIs "invalid" $value) }}
POSTRIDER_{{ $.prefix }}{{ $name | snakecase | upper }}: {{ include "postrider.scalar" $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* A lease must outlast the longest request: a dispatcher cannot change either while requests are under way. */}}
{{- define "postrider.limitTimeout" -}}
{{- with .Values.limits.timeout }}
POSTRIDER_LIMIT_TIMEOUT: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "postrider.servedNamespaces" -}}
{{- with .Values.watchNamespaces }}
POSTRIDER_WATCH_NAMESPACES: {{ join "," . | quote }}
{{- end }}
{{- end }}

{{- define "postrider.controllerSettings" -}}
{{- include "postrider.limitTimeout" . }}
{{- include "postrider.flags" (dict "prefix" "" "flags" .Values.controller.settings) }}
POSTRIDER_METRICS_AUTH: {{ .Values.metrics.auth | quote }}
POSTRIDER_CONTROLLER_SHUTDOWN_TIMEOUT: "{{ int .Values.controller.shutdownSeconds }}s"
{{- include "postrider.servedNamespaces" . }}
{{- if .Values.controller.takeOver }}
POSTRIDER_TAKE_OVER: "true"
{{- end }}
{{- if .Values.controller.confirmSweep }}
POSTRIDER_CONFIRM_SWEEP: "true"
{{- end }}
{{- end }}

{{- define "postrider.dispatcherSettings" -}}
{{- include "postrider.limitTimeout" . }}
{{- include "postrider.flags" (dict "prefix" "" "flags" .Values.dispatcher.settings) }}
POSTRIDER_GRACE: "{{ int .Values.dispatcher.graceSeconds }}s"
{{- with .Values.startPaused }}
POSTRIDER_START_PAUSED: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "postrider.ingestSettings" -}}
{{- include "postrider.flags" (dict "prefix" "" "flags" .Values.ingest.settings) }}
{{- include "postrider.servedNamespaces" . }}
POSTRIDER_METRICS_AUTH: {{ .Values.metrics.auth | quote }}
POSTRIDER_IDEMPOTENCY_WINDOW: {{ .Values.idempotencyWindow | quote }}
POSTRIDER_DRAIN_DELAY: "{{ int .Values.ingest.drainSeconds }}s"
POSTRIDER_SHUTDOWN_TIMEOUT: "{{ int .Values.ingest.shutdownSeconds }}s"
{{- end }}
