{{- define "fencelock.name" -}}
{{ ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "fencelock.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fencelock.labels" -}}
{{ include "fencelock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "fencelock.meta" -}}
metadata:
  name: {{ include "fencelock.name" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "fencelock.labels" . | nindent 4 }}
{{- end }}

{{- define "fencelock.scheme" -}}
{{ ternary "HTTPS" "HTTP" (hasKey (.Values.config | default dict) "FENCELOCK_TLS_CERT_FILE") }}
{{- end }}

{{- define "fencelock.goMemLimit" -}}
{{- $limit := (((.Values.resources | default dict).limits | default dict).memory | default "") | toString -}}
{{- if .Values.goMemLimit -}}
{{ .Values.goMemLimit }}
{{- else if hasSuffix "Gi" $limit -}}
{{ div (mul (trimSuffix "Gi" $limit | int) 1024 9) 10 }}MiB
{{- else if hasSuffix "Mi" $limit -}}
{{ div (mul (trimSuffix "Mi" $limit | int) 9) 10 }}MiB
{{- else -}}
{{ fail "set goMemLimit: resources.limits.memory is not in Mi or Gi" }}
{{- end -}}
{{- end }}
