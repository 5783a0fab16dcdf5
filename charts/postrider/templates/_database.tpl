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

{{/* Where the embedded Postgres is reached. A StatefulSet's own Service, without an address, would do; but its name resolves to
the pod's address, or to nothing, and the DNS remembers either for a while after the pod was replaced. */}}
{{- define "postrider.databaseService" -}}
{{ include "postrider.fullname" . }}-database
{{- end }}

{{/* What a container connects with. Credentials are files, so that a rotated password needs no restart: variables never
change. "database" is the volume of the parts, "database-owner" that of migrations, which the schema's owner makes, past a
pooler; both are mounted in the same place. */}}
{{- define "postrider.databaseEnv" -}}
{{- include "postrider.connectionEnv" (dict "root" . "direct" .Values.database.keys.directURL) }}
{{- end }}

{{- define "postrider.ownerEnv" -}}
{{- include "postrider.connectionEnv" (dict "root" . "direct" (ternary "" .Values.database.keys.directURL (ne .Values.database.keys.ownerURL ""))) }}
{{- end }}

{{- define "postrider.connectionEnv" -}}
{{- $v := .root.Values -}}
{{- $kind := include "postrider.database" .root -}}
{{- if eq $kind "embedded" -}}
- {name: POSTRIDER_DATABASE_URL, value: "postgres://postrider@{{ include "postrider.databaseService" .root }}.{{ .root.Release.Namespace }}.svc:5432/postrider?sslmode=disable"}
- {name: POSTRIDER_DATABASE_PASSWORD_FILE, value: /etc/postrider/database/password}
{{- else -}}
- {name: POSTRIDER_DATABASE_URL_FILE, value: /etc/postrider/database/url}
{{- if and (eq $kind "external") .direct }}
- {name: POSTRIDER_DATABASE_DIRECT_URL_FILE, value: /etc/postrider/database/direct-url}
{{- end }}
{{- if or $v.database.tls.mode (include "postrider.databaseCA" .root) }}
- {name: PGSSLMODE, value: {{ $v.database.tls.mode | default "verify-full" }}}
{{- end }}
{{- if include "postrider.databaseCA" .root }}
- {name: PGSSLROOTCERT, value: /etc/postrider/database/ca.crt}
{{- end }}
{{- end }}
- {name: POSTRIDER_DATABASE_MAX_CONNS, value: {{ include "postrider.scalar" $v.database.maxConnections | quote }}}
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

{{- define "postrider.databaseMount" -}}
- {name: database, mountPath: /etc/postrider/database, readOnly: true}
{{- end }}

{{- define "postrider.ownerMount" -}}
- {name: {{ ternary "database-owner" "database" (include "postrider.ownerApart" . | eq "true") }}, mountPath: /etc/postrider/database, readOnly: true}
{{- end }}

{{/* "true" where migrations have credentials of their own. */}}
{{- define "postrider.ownerApart" -}}
{{- and (eq (include "postrider.database" .) "external") (ne .Values.database.keys.ownerURL "") -}}
{{- end }}

{{- define "postrider.databaseVolume" -}}
{{- include "postrider.connectionVolume" (dict "root" . "name" "database" "url" .Values.database.keys.url "direct" .Values.database.keys.directURL) }}
{{- end }}

{{- define "postrider.ownerVolume" -}}
{{- if include "postrider.ownerApart" . | eq "true" }}
{{- include "postrider.connectionVolume" (dict "root" . "name" "database-owner" "url" .Values.database.keys.ownerURL "direct" "") }}
{{- end }}
{{- end }}

{{- define "postrider.connectionVolume" -}}
{{- $v := .root.Values -}}
{{- $kind := include "postrider.database" .root -}}
- name: {{ .name }}
  projected:
    sources:
    {{- if eq $kind "embedded" }}
    - secret: {name: {{ include "postrider.passwordSecret" .root }}, items: [{key: {{ $v.postgres.embedded.passwordKey }}, path: password}]}
    {{- else if eq $kind "cloudnativepg" }}
    - secret: {name: {{ include "postrider.postgresName" .root }}-app, items: [{key: uri, path: url}]}
    - secret: {name: {{ include "postrider.databaseCA" .root }}, items: [{key: ca.crt, path: ca.crt}]}
    {{- else }}
    - secret:
        name: {{ $v.database.existingSecret }}
        items:
        - {key: {{ .url }}, path: url}
        {{- with .direct }}
        - {key: {{ . }}, path: direct-url}
        {{- end }}
    {{- with $v.database.tls.caSecret }}
    - secret: {name: {{ . }}, items: [{key: {{ $v.database.tls.caKey }}, path: ca.crt}]}
    {{- end }}
    {{- end }}
{{- end }}
