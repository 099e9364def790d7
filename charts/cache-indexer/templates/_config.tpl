{{/* config.yaml, whole. Sections go in as they stand in the values; the schema has refused what is no key. */}}
{{- define "ci.config" -}}
{{- $redis := dict "url" (include "ci.redisUrl" .) "timeout" .Values.redis.timeout -}}
{{- with include "ci.redisReadUrl" . }}{{- $_ := set $redis "readUrl" . }}{{- end -}}
{{- $tls := dict "insecure" .Values.redis.tls.insecure -}}
{{- if .Values.redis.tls.caSecret }}{{- $_ := set $tls "caFile" "/etc/cache-indexer-redis-ca/ca.crt" }}{{- end -}}
{{- $_ := set $redis "tls" $tls -}}
{{- $collector := pick .Values.collector "leaseDuration" "bufferBatches" "bufferBytes" -}}
{{- $_ := set $collector "addr" (printf ":%d" (int .Values.collector.port)) -}}
{{- $http := merge (dict "addr" (printf ":%d" (int .Values.service.targetPort))) .Values.http -}}
{{- /* Helm drops a key that is set to null, and here null means something. */ -}}
{{- $blockKey := merge (dict) .Values.blockKey -}}
{{- if not (hasKey .Values.blockKey "pythonHashSeed") }}{{- $_ := set $blockKey "pythonHashSeed" nil }}{{- end -}}
{{- $config := dict "log" .Values.log "http" $http "redis" $redis "collector" $collector "blockKey" $blockKey "discovery" .Values.discovery "ingest" .Values.ingest -}}
{{- if .Values.pools }}{{- $_ := set $config "pools" .Values.pools -}}
{{- else }}{{- $_ := set $config "pool" .Values.pool -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The namespaces in which pods are looked for, as a JSON list; empty without discovery by pods. */}}
{{- define "ci.namespaces" -}}
{{- $top := .Values.discovery -}}
{{- $found := list -}}
{{- range (.Values.pools | default (list dict)) -}}
{{- $own := .discovery | default dict -}}
{{- if eq (default $top.source $own.source) "kubernetes" -}}
{{- $found = append $found (coalesce $own.namespace $top.namespace $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- toJson (uniq $found) -}}
{{- end -}}
