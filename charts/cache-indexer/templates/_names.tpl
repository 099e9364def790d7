{{- define "ci.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* What the names of objects begin with. Short enough for the longest suffix. */}}
{{- define "ci.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "ci.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "ci.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ci.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "ci.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object; takes (list $ component). */}}
{{- define "ci.labels" -}}
{{- $ := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
{{ include "ci.selector" . }}
{{- end -}}

{{/* Labels by which a component's pods are selected: these never change. */}}
{{- define "ci.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ include "ci.name" $ }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* The bundled Redis: "true" when it is installed. */}}
{{- define "ci.bundled" -}}
{{- if not .Values.redis.url }}true{{ end -}}
{{- end -}}

{{- define "ci.redisUrl" -}}
{{- default (printf "redis://%s-redis:6379/0" (include "ci.fullname" .)) .Values.redis.url -}}
{{- end -}}

{{- define "ci.redisReadUrl" -}}
{{- if .Values.redis.readUrl -}}
{{- .Values.redis.readUrl -}}
{{- else if and (include "ci.bundled" .) (gt (int .Values.redis.bundled.readReplicas) 0) -}}
{{- printf "redis://%s-redis-read:6379/0" (include "ci.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* The Secret with Redis's passwords; empty: there are none. */}}
{{- define "ci.redisSecret" -}}
{{- if .Values.redis.auth.existingSecret -}}
{{- .Values.redis.auth.existingSecret -}}
{{- else if include "ci.bundled" . -}}
{{- include "ci.fullname" . }}-redis
{{- end -}}
{{- end -}}
