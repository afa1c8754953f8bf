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
