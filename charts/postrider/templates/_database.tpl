{{/* Which Postgres is used, and how pods reach it. */}}

{{/* external, cloudnativepg or embedded. */}}
{{- define "postrider.database" -}}
{{- $d := .Values.database -}}
{{- if and $d.existingSecret $d.cloudnativePG.enabled -}}
{{ fail "database.existingSecret and database.cloudnativePG.enabled: both name a database; leave one out" }}
{{- else if $d.existingSecret -}}external
{{- else if $d.cloudnativePG.enabled -}}cloudnativepg
{{- else if .Values.postgres.embedded.enabled -}}embedded
{{- else -}}
{{ fail "there is no database: give database.existingSecret, or enable database.cloudnativePG or postgres.embedded" }}
{{- end -}}
{{- end }}

{{- define "postrider.postgresName" -}}
{{ include "postrider.fullname" . }}-postgres
{{- end }}

{{/* The variables that parts connect with. */}}
{{- define "postrider.databaseEnv" -}}
{{- $d := .Values.database -}}
{{- $kind := include "postrider.database" . -}}
{{- if eq $kind "external" -}}
- name: POSTRIDER_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ $d.existingSecret }}, key: {{ $d.keys.url }}}}
{{- with $d.keys.directURL }}
- name: POSTRIDER_DATABASE_DIRECT_URL
  valueFrom: {secretKeyRef: {name: {{ $d.existingSecret }}, key: {{ . }}}}
{{- end }}
{{- else if eq $kind "cloudnativepg" -}}
- name: POSTRIDER_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ include "postrider.postgresName" . }}-app, key: uri}}
{{- else -}}
- {name: POSTRIDER_DATABASE_URL, value: "postgres://postrider@{{ include "postrider.postgresName" . }}.{{ .Release.Namespace }}.svc:5432/postrider?sslmode=disable"}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "postrider.passwordSecret" . }}, key: {{ .Values.postgres.embedded.passwordKey }}}}
{{- end }}
{{ include "postrider.databaseOptionsEnv" . }}
{{- end }}

{{/* The same for migrations, which the owner of the schema makes, past a pooler. */}}
{{- define "postrider.ownerEnv" -}}
{{- $d := .Values.database -}}
{{- if and (eq (include "postrider.database" .) "external") $d.keys.ownerURL -}}
- name: POSTRIDER_DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ $d.existingSecret }}, key: {{ $d.keys.ownerURL }}}}
{{ include "postrider.databaseOptionsEnv" . }}
{{- else -}}
{{ include "postrider.databaseEnv" . }}
{{- end -}}
{{- end }}

{{- define "postrider.databaseOptionsEnv" -}}
{{- $mode := .Values.database.tls.mode -}}
{{- $ca := include "postrider.databaseCA" . -}}
- {name: POSTRIDER_DATABASE_MAX_CONNS, value: {{ include "postrider.scalar" .Values.database.maxConnections | quote }}}
{{- if ne (include "postrider.database" .) "embedded" }}
{{- if or $mode $ca }}
- {name: PGSSLMODE, value: {{ $mode | default "verify-full" }}}
{{- end }}
{{- if $ca }}
- {name: PGSSLROOTCERT, value: /etc/postrider/database/ca.crt}
{{- end }}
{{- end }}
{{- end }}

{{/* The Secret with the certificate authority of the database; empty: there is none. */}}
{{- define "postrider.databaseCA" -}}
{{- $kind := include "postrider.database" . -}}
{{- if and (eq $kind "external") .Values.database.tls.caSecret -}}
{{ .Values.database.tls.caSecret }}
{{- else if eq $kind "cloudnativepg" -}}
{{ include "postrider.postgresName" . }}-ca
{{- end -}}
{{- end }}

{{- define "postrider.databaseCAMount" -}}
- {name: database-ca, mountPath: /etc/postrider/database, readOnly: true}
{{- end }}

{{- define "postrider.databaseCAVolume" -}}
- name: database-ca
  secret:
    secretName: {{ include "postrider.databaseCA" . }}
    items: [{key: {{ ternary "ca.crt" .Values.database.tls.caKey (eq (include "postrider.database" .) "cloudnativepg") }}, path: ca.crt}]
{{- end }}
