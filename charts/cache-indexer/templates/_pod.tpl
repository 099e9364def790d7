{{/* What the pods of the query service and of the collectors have in common.
     Takes a dict: root, component ("query" or "collector"), automount. */}}
{{- define "ci.podMetadata" -}}
{{- $ := .root -}}
annotations:
  checksum/config: {{ include "ci.config" $ | sha256sum }}
  {{- with $.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
labels:
  {{- include "ci.selector" (list $ .component) | nindent 2 }}
  {{- with $.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "ci.podSpec" -}}
{{- $ := .root -}}
{{- $component := .component -}}
serviceAccountName: {{ include "ci.serviceAccountName" $ }}
automountServiceAccountToken: {{ .automount }}
# Variables for every Service of the namespace are of no use here.
enableServiceLinks: false
{{- include "ci.placement" $ }}
{{- with $.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- else }}
{{- if ne $.Values.podAntiAffinity "none" }}
affinity:
  podAntiAffinity:
    {{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "ci.selector" (list $ .component) | fromYaml)) }}
    {{- if eq $.Values.podAntiAffinity "hard" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      {{- toYaml (list $term) | nindent 6 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      {{- toYaml (list (dict "weight" 100 "podAffinityTerm" $term)) | nindent 6 }}
    {{- end }}
{{- end }}
{{- end }}
{{- with $.Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $constraint := deepCopy . }}
  {{- if not .labelSelector }}{{- $_ := set $constraint "labelSelector" (dict "matchLabels" (include "ci.selector" (list $ $component) | fromYaml)) }}{{- end }}
  {{- toYaml (list $constraint) | nindent 2 }}
  {{- end }}
{{- end }}
volumes:
  - name: config
    configMap:
      name: {{ include "ci.fullname" $ }}
  - name: tmp
    emptyDir:
      medium: Memory
      sizeLimit: 64Mi
  {{- with include "ci.redisSecret" $ }}
  - name: redis-password
    secret:
      secretName: {{ . }}
      items:
        - key: {{ (index $.Values.redis.auth $component).passwordKey }}
          path: password
  {{- end }}
  {{- with $.Values.redis.tls.caSecret }}
  - name: redis-ca
    secret:
      secretName: {{ . }}
      items:
        - key: {{ $.Values.redis.tls.caKey }}
          path: ca.crt
  {{- end }}
  {{- with $.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Where pods may run and as whom: every pod of the release. */}}
{{- define "ci.placement" }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Image, environment and mounts of a container of ours. Takes the same dict. */}}
{{- define "ci.container" -}}
{{- $ := .root -}}
{{- /* The bundled Redis has fixed users. */ -}}
{{- $user := ternary .component (index $.Values.redis.auth .component).username (eq (include "ci.bundled" $) "true") -}}
image: "{{ $.Values.image.repository }}:{{ $.Values.image.tag }}"
imagePullPolicy: {{ $.Values.image.pullPolicy }}
securityContext:
  {{- toYaml $.Values.securityContext | nindent 2 }}
env:
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  {{- if include "ci.redisSecret" $ }}
  {{- with $user }}
  - name: CACHE_INDEXER_REDIS_USERNAME
    value: {{ . | quote }}
  {{- end }}
  - name: CACHE_INDEXER_REDIS_PASSWORD_FILE
    value: /etc/cache-indexer-redis/password
  {{- end }}
  {{- with $.Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - name: config
    mountPath: /etc/cache-indexer
    readOnly: true
  - name: tmp
    mountPath: /tmp
  {{- if include "ci.redisSecret" $ }}
  - name: redis-password
    mountPath: /etc/cache-indexer-redis
    readOnly: true
  {{- end }}
  {{- if $.Values.redis.tls.caSecret }}
  - name: redis-ca
    mountPath: /etc/cache-indexer-redis-ca
    readOnly: true
  {{- end }}
  {{- with $.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
